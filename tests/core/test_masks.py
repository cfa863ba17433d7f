"""Masks over rows of logits, held against numpy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from foresay import _core
from foresay.errors import InputError

WIDTHS = (1, 2, 31, 32, 33, 64, 95, 1500)


def forbidden(row: Any, mask: Any) -> Any:
    bits = np.zeros(len(row), bool)
    given = np.unpackbits(mask.view(np.uint8), bitorder="little")[: len(row)].astype(bool)
    bits[: len(given)] = given
    return np.where(bits | ~(row < np.inf), row, np.float32(-np.inf))


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("short", [False, True])
def test_what_has_no_bit_is_forbidden(width: int, short: bool) -> None:
    random = np.random.default_rng(width)
    words = max(-(-width // 32) - short, 0)
    for threads in (1, 2, 7):
        logits = random.normal(size=(9, width)).astype(np.float32)
        bad = random.random(logits.shape)
        logits[bad < 0.05] = np.nan
        logits[bad > 0.95] = np.inf
        logits[(bad > 0.5) & (bad < 0.55)] = -np.inf
        rows = random.permutation(9)[:5]
        masks = random.integers(-(2**31), 2**31, (5, words)).astype(np.int32)
        masks[0], masks[1] = -1, 0
        wanted = logits.copy()
        for row, mask in zip(rows, masks, strict=True):
            wanted[row] = forbidden(logits[row], mask)
        _core.forbid(logits, rows=rows, masks=masks, threads=threads)
        assert (logits.view(np.uint32) == wanted.view(np.uint32)).all()


@pytest.mark.parametrize(
    ("rows", "masks", "said"),
    [
        ([0, 3], 2, "rows has row 3, but there are 3 rows"),
        ([-1], 1, "rows has row -1, but there are 3 rows"),
        ([0, 2, 0], 3, "rows has row 0 twice; expected each row once"),
        ([0], 2, "masks"),
    ],
)
def test_nothing_is_written_for_wrong_rows(rows: list[int], masks: int, said: str) -> None:
    logits = np.ones((3, 40), np.float32)
    with pytest.raises(InputError, match=said):
        _core.forbid(logits, rows=np.array(rows), masks=np.zeros((masks, 2), np.int32), threads=1)
    assert (logits == 1).all()
    with pytest.raises(InputError, match="threads"):
        _core.forbid(logits, rows=np.array([0]), masks=np.zeros((1, 2), np.int32), threads=0)
