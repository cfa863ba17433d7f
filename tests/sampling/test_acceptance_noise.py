"""The torch twin of the keyed noise against the specification."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from foresay.errors import InputError, TokenTypeError
from foresay.sampling import noise
from foresay.sampling.acceptance import noise as batched
from sampling.choose_cases import (
    CASES,
    POSITIONS,
    SEEDS,
    Case,
    Expected,
    as_int64,
    differences,
    tensors,
)

TOKENS = [0, 1, 2**16, 151_643, 2**31 - 1]


def run(case: Case) -> Expected:
    choice = batched.choose(*tensors(case), case.stream)
    return Expected(*(tensor.numpy() for tensor in choice))


@pytest.mark.parametrize("stream", [0, 3, 16, 2**32 - 1])
def test_uniforms_are_the_specification_s(stream: int) -> None:
    rng = np.random.default_rng(stream)
    seeds = [*SEEDS, *(int(s) for s in rng.integers(2**64, size=20, dtype=np.uint64))]
    positions = (POSITIONS * len(seeds))[: len(seeds)]
    tokens = np.array([*TOKENS, *rng.integers(2**31, size=50)], np.int64)
    arguments = (
        torch.from_numpy(as_int64(seeds)),
        torch.tensor(positions),
        torch.from_numpy(tokens),
        stream,
    )
    uniforms, gumbels = batched.uniform(*arguments), batched.gumbel(*arguments)
    assert uniforms.dtype == gumbels.dtype == torch.float64
    for i, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        key = (seed, position, tokens.astype(np.int32), stream)
        np.testing.assert_array_equal(uniforms[i].numpy(), noise.uniform(*key))
        np.testing.assert_allclose(gumbels[i].numpy(), noise.gumbel(*key), rtol=0, atol=1e-14)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize("held", [7, 1 << 22], ids=["seven tokens at a time", "whole rows"])
def test_choose(case: Case, held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batched, "_SLICE", held * max(1, len(case.logits)))
    assert differences(case, run(case)) == []


def test_half_precision_is_converted() -> None:
    case = next(case for case in CASES if case.name == "3 x 260")
    for dtype in (torch.bfloat16, torch.float16):
        logits, temperatures, *keys = tensors(case)
        short = logits.to(dtype)
        narrow, wide = (
            batched.choose(rows, temperatures, keys[0], keys[1]) for rows in (short, short.float())
        )
        assert all(torch.equal(a, b) for a, b in zip(narrow, wide, strict=True))


def test_misuse_is_refused() -> None:
    ones, ids = torch.ones(2), torch.zeros(2, dtype=torch.int64)
    logits = torch.zeros(2, 3)
    for arguments, sentence in (
        ((logits, ones, ids.int(), ids), r"seeds is int32\[2\]; expected a tensor int64\[2\]"),
        ((logits, ones, ids, ids[:1]), r"positions is int64\[1\]; expected a tensor int64\[2\]"),
        ((logits.double(), ones, ids, ids), r"logits is float64\[2, 3\]; expected a tensor"),
        ((logits, ones[:1], ids, ids), r"temperatures is float32\[1\]"),
    ):
        with pytest.raises(TokenTypeError, match=sentence):
            batched.choose(*arguments)
    with pytest.raises(TokenTypeError, match="tokens is int32"):
        batched.uniform(ids, ids, ids.int(), 0)
    with pytest.raises(InputError, match="stream -1"):
        batched.gumbel(ids, ids, ids, -1)


def test_importing_it_does_not_import_triton() -> None:
    code = "import sys, foresay.sampling.acceptance.noise; sys.exit('triton' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
