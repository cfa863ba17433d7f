"""The order of the logits processors: every path applies them as the readable reference does."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from engine.asking import STOPS, answers, prompts, wanted
from engine.drafters import Scripted
from foresay import Draft, DraftBatch, SamplingParams
from foresay.engine.engine import Engine
from foresay.errors import InputError
from foresay.models.load_transformers import target_of
from foresay.sampling import VerificationBatch, VerificationInput
from foresay.sampling import processors as readable
from foresay.sampling.acceptance import processors
from foresay.sampling.acceptance.rows import Rows
from foresay.sampling.acceptance.verify import verify
from foresay.sampling.params import PROCESSORS
from foresay.sampling.reference import match
from models import zoo

ORDERS = list(permutations(PROCESSORS))
LIMITS: dict[str, Any] = {"temperature": 0.4, "top_k": 9, "top_p": 0.8, "min_p": 0.07}
WARPERS = {
    "temperature": hf.TemperatureLogitsWarper,
    "top_k": hf.TopKLogitsWarper,
    "top_p": hf.TopPLogitsWarper,
    "min_p": hf.MinPLogitsWarper,
}


def logits(rows: int, seed: int = 0) -> Any:
    return (np.random.default_rng(seed).normal(size=(rows, 200)) * 2).astype(np.float32)


def one_input(order: tuple[str, ...], seed: int = 0) -> VerificationInput:
    params = SamplingParams(**LIMITS, repetition_penalty=1.3, processor_order=order)
    return VerificationInput(params, seed, [1, 2, 3], [4, 5])


def test_the_default_is_that_of_transformers() -> None:
    assert SamplingParams().processor_order == ("temperature", "top_k", "top_p", "min_p")


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: "-".join(order))
def test_the_reference_is_the_processors_of_transformers_in_that_order(
    order: tuple[str, ...],
) -> None:
    for seed, row in enumerate(logits(8)):
        params = SamplingParams(**LIMITS, processor_order=order)
        expected = torch.from_numpy(row.copy())[None]
        for name in order:
            expected = WARPERS[name](LIMITS[name])(torch.tensor([[1]]), expected)
        ours = readable.scores(row, VerificationInput(params, seed, [1]))
        np.testing.assert_array_equal(ours, expected[0].numpy())


def test_orders_differ() -> None:
    """Otherwise nothing here would show anything."""
    kept = {
        tuple(np.isfinite(readable.scores(row, one_input(order))).sum() for row in logits(20))
        for order in ORDERS
    }
    assert len(kept) >= 4


def test_a_batch_of_all_orders_is_the_reference_row_by_row() -> None:
    """In one step, among requests that are greedy or have no limit."""
    plain = [VerificationInput(SamplingParams(temperature=t), 0, [1]) for t in (0.0, 0.7)]
    inputs = [*plain, *(one_input(order) for order in ORDERS), *plain]
    rows = Rows.of(DraftBatch.of([Draft.empty()] * len(inputs)))
    values = logits(len(inputs))
    given = processors.scores(torch.from_numpy(values), rows, VerificationBatch.of(inputs))
    for at, one in enumerate(inputs):
        found = given.values[at]
        if given.temperatures[at] > 0:
            found = found / given.temperatures[at]
        np.testing.assert_array_equal(found.numpy(), readable.scores(values[at], one))


def test_drafts_are_accepted_as_the_reference_accepts_them() -> None:
    inputs = [one_input(order, seed) for seed, order in enumerate(ORDERS)]
    random = np.random.default_rng(5)
    values = logits(4 * len(inputs), seed=1)
    drafts = []
    for at, one in enumerate(inputs):
        likely = np.argsort(-readable.scores(values[4 * at], one))[:2]
        drafts.append(Draft([*likely.tolist(), int(random.integers(200))], [-1, -1, 0]))
    verified = verify(
        DraftBatch.of(drafts), torch.from_numpy(values), VerificationBatch.of(inputs), {}
    )
    accepted = 0
    for at, (one, draft) in enumerate(zip(inputs, drafts, strict=True)):
        assert verified.verdicts[at] == match(draft, values[4 * at : 4 * at + 4], one)
        accepted += len(verified.verdicts[at].path)
    assert 0 < accepted < 2 * len(inputs)


def test_answers_with_drafts_are_those_of_the_plain_loop() -> None:
    target = target_of(zoo.make("llama"))
    some = [ORDERS[at] for at in (0, 5, 9, 14, 18, 23)]
    texts = prompts(len(some), seed=3)
    asked = [
        (text, SamplingParams(**{**LIMITS, "temperature": 1.5}, max_tokens=12, processor_order=o))
        for text, o in zip(texts, some, strict=True)
    ]
    expected = wanted(target, asked)
    known = {tuple(text): answer for text, answer in zip(texts, expected, strict=True)}
    requests = answers(Engine(target, Scripted(known), policy="fixed"), asked)
    assert [request.token_ids for request in requests] == expected
    assert sum(request.stats.accepted for request in requests) > 0
    assert requests[0].stops == STOPS


def test_an_edge_stream_refuses_another_order() -> None:
    messages = pytest.importorskip("foresay.edge.messages")
    order = ("top_p", "temperature", "top_k", "min_p")
    assert messages.Sampling.of(SamplingParams(top_p=0.5)).top_p == 0.5
    with pytest.raises(InputError, match=r"processor_order is .*an edge stream has nothing else"):
        messages.Sampling.of(SamplingParams(processor_order=order))
