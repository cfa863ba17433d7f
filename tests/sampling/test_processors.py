"""The processors against transformers' own, and the batched form against the readable one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from foresay import Draft, DraftBatch
from foresay.errors import InputError, LogitsError
from foresay.sampling import SamplingParams, VerificationBatch, VerificationInput
from foresay.sampling import processors as readable
from foresay.sampling.acceptance import processors
from foresay.sampling.acceptance.rows import Rows
from foresay.sampling.reference import path_to
from sampling.cases import random_draft, random_input, random_rows


def of_transformers(
    params: SamplingParams, text: list[int], logits: np.ndarray[Any, Any], eos: list[int]
) -> Any:
    """The scores of transformers, in the order in which its generate builds the processors."""
    ids, scores = torch.tensor([text]), torch.from_numpy(logits.copy())[None]
    steps: list[Any] = []
    if params.logit_bias:
        steps.append(
            hf.SequenceBiasLogitsProcessor([[[t], b] for t, b in params.logit_bias.items()])
        )
    if params.repetition_penalty != 1:
        steps.append(hf.RepetitionPenaltyLogitsProcessor(params.repetition_penalty))
    if params.min_tokens:
        steps.append(hf.MinNewTokensLengthLogitsProcessor(3, params.min_tokens, eos, device="cpu"))
    if params.temperature not in (0, 1):
        steps.append(hf.TemperatureLogitsWarper(params.temperature))
    if params.top_k:
        steps.append(hf.TopKLogitsWarper(params.top_k))
    if params.top_p < 1:
        steps.append(hf.TopPLogitsWarper(params.top_p))
    if params.min_p:
        steps.append(hf.MinPLogitsWarper(params.min_p))
    for step in steps:
        scores = step(ids, scores)
    return scores[0].numpy()


@pytest.mark.parametrize("seed", range(200))
def test_the_processors_of_transformers(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = int(rng.choice([5, 50, 1000]))
    logits = rng.normal(size=vocabulary).astype(np.float32) * 3  # no ties: there it is arbitrary
    params = SamplingParams(
        temperature=float(rng.choice([0.25, 0.7, 1.0, 1.7])),
        top_k=int(rng.choice([0, 1, 3, 40])) if rng.random() < 0.5 else 0,
        top_p=float(rng.choice([0.3, 0.9])) if rng.random() < 0.5 else 1.0,
        min_p=float(rng.choice([0.02, 0.3])) if rng.random() < 0.5 else 0.0,
        repetition_penalty=float(rng.choice([1.0, 1.3, 0.8])),
        logit_bias={int(t): float(rng.normal()) for t in rng.integers(0, vocabulary, 3)},
        min_tokens=int(rng.choice([0, 3, 4])),
    )
    eos = [int(rng.integers(0, vocabulary))]
    text = [int(t) for t in rng.integers(0, vocabulary, 6)]
    ours = readable.scores(logits, VerificationInput(params, 0, text[:3], text[3:], tuple(eos)))
    np.testing.assert_array_equal(ours, of_transformers(params, text, logits, eos))


def test_presence_and_frequency_count_the_answer_and_the_path() -> None:
    params = SamplingParams(presence_penalty=0.5, frequency_penalty=0.25)
    row = readable.scores(
        np.zeros(6, np.float32), VerificationInput(params, 0, [1, 1], [2, 3, 3]), [3, 4]
    )
    np.testing.assert_array_equal(row, [0, 0, -0.75, -1.25, -0.75, 0])


def test_order_of_top_p_among_equals_is_by_token_id() -> None:
    params = SamplingParams(top_p=0.5)
    row = readable.scores(
        np.array([0, 1, 0, 1, 0, 1, 1], np.float32), VerificationInput(params, 0, [1])
    )
    assert np.flatnonzero(np.isfinite(row)).tolist() == [1, 3, 5]


def test_top_p_counts_right_in_a_large_vocabulary() -> None:
    size = 1 << 20
    request = VerificationInput(SamplingParams(top_p=0.75), 0, [1])
    row = readable.scores(np.zeros(size, np.float32), request)
    assert np.isfinite(row).sum() == size * 3 // 4
    rows = Rows.of(DraftBatch.of([Draft.empty()]))
    given = processors.scores(torch.zeros(1, size), rows, VerificationBatch.of([request]))
    np.testing.assert_array_equal(given.values[0].numpy(), row)


@pytest.mark.parametrize("seed", range(150))
def test_the_batched_processors_are_the_readable_ones(seed: int) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = int(rng.choice([1, 2, 9, 60, 3000]))
    drafts = [random_draft(rng, vocabulary) for _ in range(5)]
    logits = [random_rows(rng, len(d) + 1, vocabulary) for d in drafts]
    inputs = [random_input(rng, vocabulary) for _ in drafts]
    rows = Rows.of(DraftBatch.of(drafts))
    tensor = torch.from_numpy(np.concatenate(logits))
    which = rng.permutation(len(rows))[: max(1, len(rows) // 2)] if seed % 2 else None
    given = processors.scores(tensor, rows, VerificationBatch.of(inputs), which)
    weights = processors.unnormalised_softmax(given, given.values.amax(dim=-1))
    probs = (weights / weights.sum(dim=-1, keepdim=True)).numpy()
    for i, row in enumerate(range(len(rows)) if which is None else which):
        owner = rows.request[row]
        node, request, draft = int(row - rows.starts[owner]) - 1, inputs[owner], drafts[owner]
        try:
            path = draft.tokens[path_to(draft, node)]
            expected = readable.scores(logits[owner][node + 1], request, path)
        except LogitsError:
            assert not np.isfinite(given.values[i].numpy()).any()
            continue
        temperature = given.temperatures[i].item()
        values = given.values[i].numpy() / np.float32(temperature or 1)
        np.testing.assert_array_equal(values, expected)
        np.testing.assert_allclose(
            probs[i], readable.probabilities(expected, request.params.greedy), atol=1e-14
        )


def test_bad_token_ids() -> None:
    logits = np.zeros(5, np.float32)
    with pytest.raises(InputError, match="logit_bias names token 5; the vocabulary has 5"):
        readable.scores(logits, VerificationInput(SamplingParams(logit_bias={5: 1.0}), 0, [1]))


def test_the_caller_keeps_its_logits() -> None:
    rows = Rows.of(DraftBatch.of([Draft.empty()]))
    logits = torch.zeros(1, 4)
    processors.scores(
        logits,
        rows,
        VerificationBatch.of([VerificationInput(SamplingParams(logit_bias={1: 2.0}), 0, [1])]),
    )
    assert not logits.any()


# What both twins could get wrong alike, written out by hand.


def kept(row: list[float], output: Any = (), stops: Any = (), **params: Any) -> Any:
    request = VerificationInput(SamplingParams(**params), 0, [1], list(output), stops)
    found = readable.scores(np.array(row, np.float32), request)
    rows = Rows.of(DraftBatch.of([Draft.empty()]))
    given = processors.scores(torch.tensor([row]), rows, VerificationBatch.of([request]))
    np.testing.assert_array_equal(
        given.values[0].numpy() / np.float32(given.temperatures[0] or 1), found
    )
    return np.flatnonzero(np.isfinite(found)).tolist()


def test_edges_by_hand() -> None:
    assert kept([0.0] * 4, top_p=0.5) == [0, 1], "those before the third have exactly half"
    assert kept([0.0] * 4, top_p=0.51) == [0, 1, 2]
    assert kept([0.0] * 4, top_p=1e-9) == [0], "one is always left"
    assert kept([1.0, 3.0, 3.0, 2.0], min_p=1.0) == [1, 2]
    assert kept([0.0, 2.0, 2.0, 1.0], top_k=1) == [1, 2], "what ties with the last one stays"
    assert kept([0.0] * 4, output=[3, 3], stops=(2,), min_tokens=3) == [0, 1, 3]
    assert kept([0.0] * 4, output=[3, 3, 3], stops=(2,), min_tokens=3) == [0, 1, 2, 3]


def test_the_order_of_roundings() -> None:
    """Presence and frequency are subtracted one after the other, each rounded to float32."""
    params = SamplingParams(presence_penalty=1.0, frequency_penalty=1.0)
    row = readable.scores(
        np.array([2**25, 0], np.float32), VerificationInput(params, 0, [1], [0, 0])
    )
    assert row[0] == 2**25 - 2, "2**25 - 1 is rounded up, then 2 are subtracted; at once it were 4"
