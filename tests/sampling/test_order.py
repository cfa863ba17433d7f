"""The order of the logits processors that a request chooses."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation import logits_process as hf

from engine.asking import STOPS, answers, prompts, wanted
from engine.drafters import Scripted
from foresay import SamplingParams
from foresay.engine.engine import Engine
from foresay.errors import InputError
from foresay.models.load_transformers import target_of
from foresay.sampling import VerificationInput
from foresay.sampling import processors as readable
from foresay.sampling.params import PROCESSORS
from models import zoo

ORDERS = list(permutations(PROCESSORS))
LIMITS: dict[str, Any] = {"temperature": 0.4, "top_k": 9, "top_p": 0.8, "min_p": 0.07}
WARPERS = {
    "temperature": hf.TemperatureLogitsWarper,
    "top_k": hf.TopKLogitsWarper,
    "top_p": hf.TopPLogitsWarper,
    "min_p": hf.MinPLogitsWarper,
}


def test_the_default_is_that_of_transformers() -> None:
    assert SamplingParams().processor_order == ("temperature", "top_k", "top_p", "min_p")


def test_the_reference_is_the_processors_of_transformers_in_every_order() -> None:
    """Batches and drafts: `test_processors.py` and `test_verify.py`, whose inputs have orders."""
    rows = (np.random.default_rng(0).normal(size=(20, 200)) * 2).astype(np.float32)
    kept = set()
    for order in ORDERS:
        request = VerificationInput(SamplingParams(**LIMITS, processor_order=order), 0, [1])
        found = [readable.scores(row, request) for row in rows]
        for row, ours in zip(rows, found, strict=True):
            expected = torch.from_numpy(row.copy())[None]
            for name in order:
                expected = WARPERS[name](LIMITS[name])(torch.tensor([[1]]), expected)
            np.testing.assert_array_equal(ours, expected[0].numpy(), err_msg=str(order))
        kept.add(tuple(np.isfinite(found).sum(axis=1)))
    assert len(kept) >= 4, "if all orders kept the same, this would show nothing"


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
