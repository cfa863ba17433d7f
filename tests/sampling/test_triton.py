"""The Triton twin of the choice: on a GPU if there is one, else in Triton's interpreter.

Triton reads the variable that asks for its interpreter when it is imported and again when a kernel
runs, and it must not stay set for others. So it is set around both; and if triton was imported
before, the tests of this file run in a process of their own.
"""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from functools import partial
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch

from foresay.errors import InputError
from foresay.sampling.acceptance.match import match
from sampling.cases import Case as VerifyCase
from sampling.cases import table
from sampling.choose_cases import CASES, Case, Expected, differences, tensors
from sampling.test_verify import assert_alike, one_by_one, packed

CUDA = torch.cuda.is_available()
DEVICE = "cuda" if CUDA else "cpu"
TOO_LATE = not CUDA and "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1"
NAMED = {case.name: case for case in CASES}

with pytest.MonkeyPatch.context() as patch:
    if not CUDA:
        patch.setenv("TRITON_INTERPRET", "1")
    if not TOO_LATE:
        importlib.import_module("foresay.sampling.acceptance.triton")


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    if TOO_LATE:
        pytest.skip("runs in a process of its own, below")
    if not CUDA:
        monkeypatch.setenv("TRITON_INTERPRET", "1")
    return importlib.import_module("foresay.sampling.acceptance.triton")


def run(
    kernels: ModuleType, case: Case, splits: int = 2, block: int = 64, dtype: str = "float32"
) -> Expected:
    with np.errstate(all="ignore"):  # inf - inf is NaN without a word on a GPU
        logits, *rest = tensors(case, DEVICE)
        logits = logits.to(getattr(torch, dtype))
        choice = kernels.choose(logits, *rest, case.stream, kernels.Layout(splits, block))
    return Expected(*(tensor.cpu().numpy() for tensor in choice))


QUICK = ("2 x 1", "6 x 64", "no row", "bad rows", "five left", "far above zero", "greedy tie")
EVERY = [
    pytest.param(case, marks=[] if CUDA or case.name in QUICK else pytest.mark.slow)
    for case in CASES
]  # in the interpreter a row takes a tenth of a second


@pytest.mark.parametrize("case", EVERY, ids=lambda case: case.name)
def test_choose(kernels: ModuleType, case: Case) -> None:
    assert differences(case, run(kernels, case)) == []


@pytest.mark.parametrize(
    ("name", "splits", "block"), [("2 x 63", 5, 8), ("2 x 63", 1, 16), ("greedy tie", 4, 64)]
)
def test_the_layout_changes_nothing(
    kernels: ModuleType, name: str, splits: int, block: int
) -> None:
    assert differences(NAMED[name], run(kernels, NAMED[name], splits, block)) == []


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_converted(kernels: ModuleType, dtype: str) -> None:
    case = NAMED["6 x 64"]
    narrow = torch.from_numpy(case.logits).to(getattr(torch, dtype)).float().numpy()
    assert differences(case._replace(logits=narrow), run(kernels, case, dtype=dtype)) == []


def test_the_default_layout_on_rows_that_are_not_contiguous(kernels: ModuleType) -> None:
    case = NAMED["2 x 63"]
    wide = torch.zeros(2, 200, device=DEVICE)
    _, *rest = tensors(case, DEVICE)
    for part in (wide[:, 100:163], wide[:, 1:127:2], wide[:, :63].t().contiguous().t()):
        part.copy_(torch.from_numpy(case.logits))
        with np.errstate(all="ignore"):
            choice = kernels.choose(part, *rest)
        assert differences(case, Expected(*(t.cpu().numpy() for t in choice))) == []


def test_misuse_is_refused(kernels: ModuleType) -> None:
    with pytest.raises(InputError, match="stream 4294967296"):
        run(kernels, NAMED["2 x 1"]._replace(stream=2**32))


@pytest.mark.skipif(not TOO_LATE, reason="all ran here")
@pytest.mark.slow
@pytest.mark.parametrize("which", ["not slow", "slow"])
def test_in_a_process_of_its_own(which: str) -> None:
    files = [__file__, str(Path(__file__).with_name("test_planned.py"))]
    command = [sys.executable, "-m", "pytest", "-q", "-m", which, *files]
    done = subprocess.run(
        command,
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


# The interpreter is slow, so only some of the table, and none with a large vocabulary.
SMALL = [case for case in table() if packed(case).shape[1] <= 60]
SOME = [
    pytest.param(c, marks=[pytest.mark.slow] if at % 6 else []) for at, c in enumerate(SMALL[::5])
]


@pytest.mark.parametrize("case", SOME, ids=lambda case: case.name)
def test_rule_match_through_the_kernel(
    kernels: ModuleType, case: VerifyCase, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not CUDA:  # the default layout has 37 programs per row, and its own test
        few = partial(kernels.choose, layout=kernels.Layout(2, 64))
        monkeypatch.setattr(kernels, "choose", few)
    with np.errstate(all="ignore"):
        verified = match(case.drafts, packed(case).to(DEVICE), case.inputs, kernel="triton")
    assert_alike(verified, one_by_one(case, "match"))
