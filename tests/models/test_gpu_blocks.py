"""Blocks widened by torch are bit for bit what the package gguf makes of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from foresay.errors import InputError, UnsupportedModel
from foresay.models.gpu import blocks as module
from foresay.models.gpu.blocks import widened
from foresay.models.weights.gguf_header import GgmlType
from foresay.models.weights.gguf_values import dequantised

DEVICES = [torch.device(name) for name in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]]
RARE = ("MXFP4", "IQ2_XS", "TQ2_0")
OWN = sorted(kind.name for kind in module._KINDS)
HALVES = {  # where the float16s of a block are
    **dict.fromkeys(("Q4_0", "Q5_0", "Q8_0", "IQ4_NL", "IQ4_XS", "IQ2_XS"), (0,)),
    **dict.fromkeys(("Q4_1", "Q5_1", "Q4_K", "Q5_K"), (0, 2)),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q6_K": (208,),
    "TQ2_0": (64,),
    "MXFP4": (),
}
EXTREME = [0.0, -0.0, 6e-8, -6e-8, 1e-4, -3.0, 65504.0, -65504.0, np.inf, -np.inf, np.nan]


def stored(kind: GgmlType, count: int, *, extreme: bool) -> NDArray[np.uint8]:
    """Blocks of random bytes; their scales are usual ones, or all kinds of extreme ones."""
    rng = np.random.default_rng(int(kind))
    found = rng.integers(0, 256, (count, kind.block_bytes), np.uint8)
    for at in HALVES[kind.name]:
        scales = rng.choice(EXTREME, count) if extreme else rng.normal(size=count)
        with np.errstate(all="ignore"):
            found[:, at : at + 2] = scales.astype("<f2").view(np.uint8).reshape(-1, 2)
    return found


def bits(values: Any) -> NDArray[np.uint32]:
    """All that is no number is one such."""
    found = np.ascontiguousarray(values, np.float32).reshape(-1)
    whole: NDArray[np.uint32] = np.where(np.isnan(found), np.float32(np.nan), found).view(np.uint32)
    return whole


def theirs(blocks: NDArray[np.uint8], kind: GgmlType) -> NDArray[np.float32]:
    return dequantised(blocks, kind)


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("extreme", [False, True])
@pytest.mark.parametrize("name", [*OWN, *RARE])
def test_the_values_are_those_of_gguf(
    name: str, extreme: bool, device: torch.device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one piece and in several of which the last is shorter, and rounded once."""
    kind = GgmlType[name]
    blocks = stored(kind, 67, extreme=extreme)
    expected = theirs(blocks, kind)
    given, shape = torch.from_numpy(blocks.reshape(-1)).to(device), (67, kind.block)
    assert (bits(widened(given, kind, shape, torch.float32).cpu()) == bits(expected)).all()
    monkeypatch.setattr(module, "_VALUES_AT_A_TIME", 10 * kind.block)
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        found = widened(given, kind, shape, dtype)
        assert found.device.type == device.type
        assert found.dtype == dtype and found.shape == shape and found.is_contiguous()
        rounded = torch.from_numpy(expected.copy()).to(dtype)
        assert (bits(found.float().cpu()) == bits(rounded.float())).all()


def test_it_rounds_as_the_copy_in_bfloat16_does() -> None:
    from foresay.models.weights.shards import bf16_of

    kind = GgmlType.Q6_K
    blocks = stored(kind, 50, extreme=False)
    found = widened(torch.from_numpy(blocks.reshape(-1)), kind, (50, 256), torch.bfloat16)
    assert (found.view(torch.int16).numpy().view(np.uint16) == bf16_of(theirs(blocks, kind))).all()


@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("offset", [0, 1])
def test_numbers_are_only_rounded(name: str, offset: int) -> None:
    """Also from bytes that are not aligned."""
    kind = GgmlType[name]
    count = 200
    blocks = np.random.default_rng(3).integers(0, 256, count * kind.block_bytes, np.uint8)
    expected = theirs(blocks.reshape(1, -1), kind)
    moved = torch.zeros(offset + len(blocks), dtype=torch.uint8)
    moved[offset:] = torch.from_numpy(blocks)
    assert (bits(widened(moved[offset:], kind, (count,), torch.float32)) == bits(expected)).all()
    found = widened(moved[offset:], kind, (20, 10), torch.bfloat16)
    assert (bits(found.float()) == bits(torch.from_numpy(expected.copy()).bfloat16().float())).all()


@pytest.mark.parametrize("name", OWN)
def test_every_part_of_a_block_counts(name: str) -> None:
    """Another byte gives other values, so that none is left out above by chance."""
    kind = GgmlType[name]
    block = stored(kind, 1, extreme=False)[0]
    base = widened(torch.from_numpy(block.copy()), kind, (kind.block,), torch.float32)
    for at in range(kind.block_bytes):
        changed = block.copy()
        changed[at] ^= 0x55
        found = widened(torch.from_numpy(changed), kind, (kind.block,), torch.float32)
        assert not torch.equal(found, base), at


def test_blocks_of_another_size_and_kinds_that_nobody_decodes() -> None:
    with pytest.raises(InputError, match="35 bytes are given for 32 weights of Q8_0; expected 34"):
        widened(torch.zeros(35, dtype=torch.uint8), GgmlType.Q8_0, (32,), torch.float32)
    with pytest.raises(InputError, match="expected 34 for each 32"):
        widened(torch.zeros(34, dtype=torch.uint8), GgmlType.Q8_0, (2, 32), torch.float32)
    with pytest.raises(UnsupportedModel, match="of type Q8_1, which cannot be decoded"):
        widened(torch.zeros(40, dtype=torch.uint8), GgmlType.Q8_1, (32,), torch.float32)
