"""The processors on a device: against the readable ones, by torch and by the Triton kernels (on a
GPU if there is one, else in Triton's interpreter, as in test_triton.py)."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
import pytest
import torch

from foresay import Draft, DraftBatch
from foresay.arrays import Floats
from foresay.errors import LogitsError
from foresay.sampling import SamplingParams, VerificationBatch, VerificationInput
from foresay.sampling import processors as readable
from foresay.sampling.acceptance import planned
from foresay.sampling.acceptance.rows import Rows
from foresay.sampling.acceptance.upload import upload
from foresay.sampling.params import PROCESSORS
from foresay.sampling.reference import path_to
from sampling.cases import random_draft, random_input, random_rows
from sampling.test_triton import CUDA, DEVICE, TOO_LATE

SLOW = [] if CUDA else [pytest.mark.slow]  # in the interpreter they take seconds
KERNELS = ["torch", pytest.param("triton", marks=SLOW)]


@pytest.fixture(autouse=True)
def interpreted(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if "triton" in request.node.name and not CUDA:
        if TOO_LATE:
            pytest.skip("runs in a process of its own, from test_triton.py")
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        from foresay.sampling.acceptance import triton_penalties

        monkeypatch.setattr(triton_penalties, "_PROGRAMS", 16)  # it runs one after the other


def found(
    logits: torch.Tensor,
    drafts: DraftBatch,
    inputs: list[VerificationInput],
    kernel: Any,
    which: Any = None,
) -> np.ndarray[Any, Any]:
    """Processed scores, divided by the temperature where a row is sampled."""
    device = torch.device(DEVICE if kernel == "triton" else "cpu")
    batch = VerificationBatch.of(inputs)
    plan = planned.plan(Rows.of(drafts), batch, logits.shape[1], which)
    sent = upload(plan.arrays, device)
    with np.errstate(all="ignore"):
        given = planned.scores(plan, logits.to(device), sent, kernel)
    divisors = torch.where(given.temperatures == 0, 1, given.temperatures)
    values: np.ndarray[Any, Any] = (given.values / divisors[:, None]).cpu().numpy()
    return values


def expected(logits: Floats, request: VerificationInput, path: Any = ()) -> Floats | str:
    try:
        return readable.scores(logits, request, path)
    except LogitsError as error:
        return str(error)


def assert_same(got: np.ndarray[Any, Any], wanted: Floats | str) -> None:
    if not isinstance(wanted, str):
        np.testing.assert_array_equal(got, wanted)
    elif "NaN" in wanted:
        assert np.isnan(got).any()
    elif "+inf" in wanted:
        assert (got == np.inf).any() and not np.isnan(got).any()
    else:
        assert (got == -np.inf).all()


def check_batch(seed: int, kernel: Any, sizes: list[int], requests: int) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = int(rng.choice(sizes))
    drafts = [random_draft(rng, vocabulary) for _ in range(requests)]
    logits = [random_rows(rng, len(d) + 1, vocabulary) for d in drafts]
    if seed % 3 == 0:
        logits[0][-1, rng.integers(vocabulary)] = rng.choice([np.nan, np.inf])
    inputs = [random_input(rng, vocabulary) for _ in drafts]
    batch = DraftBatch.of(drafts)
    rows = Rows.of(batch)
    which = rng.permutation(len(rows))[: max(1, len(rows) // 2)] if seed % 2 else None
    got = found(torch.from_numpy(np.concatenate(logits)), batch, inputs, kernel, which)
    for i, row in enumerate(range(len(rows)) if which is None else which):
        owner = int(rows.request[row])
        node = int(row - rows.starts[owner]) - 1
        path = drafts[owner].tokens[path_to(drafts[owner], node)]
        assert_same(got[i], expected(logits[owner][node + 1], inputs[owner], path))


@pytest.mark.parametrize("seed", range(150))
def test_by_torch(seed: int) -> None:
    check_batch(seed, "torch", [1, 2, 9, 60, 3000], 5)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=SLOW if seed > 5 else []) for seed in range(300 if CUDA else 24)],
)
def test_by_triton(seed: int) -> None:
    check_batch(seed, "triton", [1, 2, 9, 60, 300] if not CUDA else [1, 9, 300, 3000, 40000], 2)


def limited(kernel: Any, rows: list[Floats], params: list[SamplingParams]) -> None:
    inputs = [VerificationInput(one, 0, [1]) for one in params]
    none = DraftBatch.of([Draft.empty()] * len(rows))
    got = found(torch.from_numpy(np.stack(rows)), none, inputs, kernel)
    for i, (row, request) in enumerate(zip(rows, inputs, strict=True)):
        with np.errstate(all="ignore"):
            assert_same(got[i], expected(row, request))


ORDERS = list(permutations(PROCESSORS))


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("some", [slice(at, None, 4) for at in range(4)], ids=range(4))
def test_every_order(kernel: str, some: slice) -> None:
    """With scores that tie only after the division, or before it."""
    rng = np.random.default_rng(3)
    params = [
        SamplingParams(
            temperature=1e6 if at % 2 else 0.7, top_k=17, top_p=0.8, min_p=0.02, processor_order=o
        )
        for at, o in enumerate(ORDERS[some])
    ]
    rows = [np.round(rng.normal(size=40) * 3, 1).astype(np.float32) for _ in params]
    limited(kernel, rows, params)


def _shapes() -> dict[str, Floats]:
    rng = np.random.default_rng(4)
    plain = rng.normal(size=300).astype(np.float32)
    zeros = np.where(rng.random(300) < 0.5, np.float32(-0.0), np.float32(0.0))
    few = np.full(300, -np.inf, np.float32)
    few[[7, 70, 299]] = [1, 2, 1]
    return {
        "plain": plain,
        "all equal": np.full(300, 2.5, np.float32),
        "both zeros": zeros,
        "three left": few,
        "tiny": plain * np.float32(1e-42),
        "huge": plain * np.float32(1e37),
        "far below the top": np.where(np.arange(300) == 5, 90, plain).astype(np.float32),
        "steep": plain * np.float32(30),
        "two heights": np.where(rng.random(300) < 0.5, np.float32(-20), np.float32(-20.25)),
    }


LIMITS: list[dict[str, Any]] = [
    {"top_k": 1},
    {"top_k": 50},
    {"top_k": 299},
    {"top_p": 1e-9},
    {"top_p": 0.5},
    {"top_p": 0.999999},
    {"min_p": 0.3},
    {"top_k": 50, "top_p": 0.5},
    {"top_k": 50, "top_p": 0.5, "processor_order": ["top_p", "top_k", "temperature", "min_p"]},
    {"min_p": 0.3, "top_p": 0.7, "processor_order": ["min_p", "top_p", "top_k", "temperature"]},
]


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("name", list(_shapes()))
def test_shapes_of_rows(kernel: str, name: str) -> None:
    params = [SamplingParams(temperature=0.5 if i % 2 else 1, **p) for i, p in enumerate(LIMITS)]
    limited(kernel, [_shapes()[name]] * len(params), params)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_shorter_floats_are_converted(kernel: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    short = torch.randn(2, 70, generator=draw).to(dtype)
    inputs = [
        VerificationInput(SamplingParams(top_k=5, top_p=0.9), 0, [1]),
        VerificationInput(SamplingParams(top_p=0.9, repetition_penalty=1.5), 0, [1]),
    ]
    none = DraftBatch.of([Draft.empty()] * 2)
    np.testing.assert_array_equal(
        found(short, none, inputs, kernel), found(short.float(), none, inputs, kernel)
    )
