"""What may be chosen by measurement: each choice gives what the others give, and what is fetched
ahead is what comes next."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foresay.draft import Draft
from foresay.models.gpu import attention, chained, elementwise
from foresay.models.gpu.chained import Ahead
from foresay.models.gpu.tuning import Tuning
from models import zoo
from models.on_gpu import CUDA, DEVICE, gpu_target, needs_kernels
from models.test_gpu import SMALL, of
from models.test_gpu_kernels import (
    CASES,
    STANDARD,
    Attention,
    _sums_in_order,
    attended,
    values_of,
    wanted,
)

pytestmark = [needs_kernels, pytest.mark.usefixtures("_sums_in_order")]
__all__ = ["_sums_in_order"]

LARGE = {  # texts that fill a tile: of 4 rows, or 10
    "a tile and a row": Attention(16, 1, 16, ((127, (-1, 0, 1, 2, 0)), (5, (-1,)))),
    "groups of 6": Attention(6, 1, 16, ((70, (-1, *range(10), 4)),)),
    "two tiles and a row": Attention(16, 1, 16, ((66, (-1, *range(8))),), window=60),
}
SAME = {
    "known": replace(STANDARD, known=True),
    "flat": replace(STANDARD, flat=True, stages=5),
    "early": replace(STANDARD, early=True),
    "groups": replace(STANDARD, groups=2),
    "all": replace(STANDARD, known=True, flat=True, early=True, groups=2),
}


@cache
def standard(case: Attention, tuning: Tuning) -> list[Tensor]:
    return attended(case, values_of(case), torch.float32, tuning)


def same(case: Attention, tuning: Tuning, beside: Tuning = STANDARD) -> bool:
    found = attended(case, values_of(case), torch.float32, tuning)
    both = zip(found, standard(case, beside), strict=True)
    return all(torch.equal(one, other) for one, other in both)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (name != "all")) for name in SAME]
)
@pytest.mark.parametrize("case", LARGE)
def test_no_bit_of_attention_is_another(case: str, name: str) -> None:
    assert same(LARGE[case], SAME[name])


def test_a_tile_that_is_left_out_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An item of two tiles, of which the kernel reads one."""
    run = attention.attend

    class Wrong:
        def __getitem__(self, grid: object) -> Callable[..., Any]:
            return lambda *given, **more: run[grid](*given, **{**more, "pair": False})

    monkeypatch.setattr(attention, "attend", Wrong())
    assert not same(LARGE["a tile and a row"], SAME["groups"])


def test_many_chunks_are_added_in_the_same_order() -> None:
    """More than are read before it is known which score is the highest."""
    case = Attention(1, 1, 16, ((64 * 17 + 5, (-1,)),))
    fine = replace(STANDARD, chunk=1)
    assert same(case, replace(fine, early=True), fine)
    assert not same(case, fine), "other chunks are other sums"


@pytest.mark.parametrize("chunk", [1, 4])
@pytest.mark.parametrize("case", ["groups of 3", "a window", "a narrow one and a cap"])
def test_other_chunks_and_fewer_masks_are_attention(case: str, chunk: int) -> None:
    its, tuning = CASES[case], replace(SAME["all"], chunk=chunk, lean=True)
    values = values_of(its)
    found = attended(its, values, torch.float32, tuning)
    for given, text, own in zip(found, its.texts, values, strict=True):
        assert torch.allclose(given.double(), wanted(its, *text, own), atol=2e-5), text


@pytest.mark.parametrize("tuning", [SAME["all"], replace(SAME["all"], lean=True, chunk=1)])
def test_a_block_has_the_same_bits_stored_and_as_a_path(tuning: Tuning) -> None:
    """The last row of a chain over the end of a block, and the same row over what is stored."""
    chain = Attention(6, 1, 16, ((60, tuple(range(-1, 9))),))
    plain = Attention(6, 1, 16, ((69, (-1,)),))
    ((query, keys, others),) = values_of(chain)
    (whole,) = attended(chain, [(query, keys, others)], torch.float32, tuning)
    (alone,) = attended(plain, [(query[-1:], keys, others)], torch.float32, tuning)
    assert torch.equal(whole[-1:], alone)


# What is fetched


class Fetched:
    """Stands for `fetch_bytes`: what was asked for, as begin and end."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.pieces: list[tuple[int, int]] = []
        for module in (chained, attention):
            patch.setattr(module, "fetch_bytes", self)

    def __call__(self, address: Any, size: Any) -> None:
        begin, many = (
            it if isinstance(it, int) else int(it.handle.data.item()) for it in (address, size)
        )
        assert many > 0 and many % 16 == 0 and begin % 16 == 0
        self.pieces.append((begin, begin + many))

    def of(self, tensor: Tensor) -> list[tuple[int, int]]:
        """The pieces within a tensor, by place; one behind the other they are one."""
        low = tensor.data_ptr()
        found: list[tuple[int, int]] = []
        for begin, end in sorted(self.pieces):
            if not low <= begin < low + tensor.nbytes:
                continue
            assert end <= low + tensor.nbytes
            if found and found[-1][1] + low == begin:
                begin = found.pop()[0] + low
            found.append((begin - low, end - low))
        return found


@pytest.mark.skipif(CUDA, reason="what is fetched is seen in the interpreter alone")
@pytest.mark.parametrize("programs", [1, 3, 200])
@pytest.mark.parametrize("size", [16, 8192, 100_000])
def test_each_byte_is_fetched_once(
    programs: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    fetched, weights = Fetched(monkeypatch), torch.zeros(1 << 17, dtype=torch.uint8)
    residual, norm = torch.ones(2, 16), torch.ones(16)
    out, parts = torch.zeros(2, 16), torch.ones(1, 2, 16)
    monkeypatch.setattr(chained, "_FETCHERS", programs)
    ahead = Ahead(weights[:size])
    elementwise.add_and_norm[(ahead.programs() + 2,)](
        parts, 32, norm, norm, residual, norm, out, 16, 1e-5, **ahead.arguments(), parts=1,
        padded=16, biased=False, after=False, above_one=False, chained=False, num_warps=1,
    )  # fmt: skip
    assert fetched.of(weights) == [(0, size // 16 * 16)]
    assert torch.equal(residual, torch.full((2, 16), 2.0)) and out.all()
    assert sum(end - begin for begin, end in fetched.pieces) == size // 16 * 16


@pytest.mark.skipif(CUDA, reason="what is fetched is seen in the interpreter alone")
def test_weights_that_come_next_are_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    target = gpu_target(zoo.make("llama", **SMALL))
    text, tree = np.array([5, 6, 7], np.int32), Draft(np.array([8, 9], np.int32), [-1, 0])

    def logits() -> Tensor:
        return target.forward([of(target, text, tree)]).logits.clone()

    plain = logits()
    fetched = Fetched(monkeypatch)
    assert torch.equal(logits(), plain) and not fetched.pieces

    def always(weights: Tensor, begin: int, size: int) -> Ahead:
        each = weights.element_size()
        return Ahead(weights.view(-1)[begin // each : (begin + size) // each])

    monkeypatch.setattr(Ahead, "of", always)
    monkeypatch.setattr(chained, "_FETCHERS", 5)
    target.decoder.tuning = Tuning(
        rotate=64, attend=128, combine=192, first_norm=256, last_norm=320
    )
    assert torch.equal(logits(), plain)
    first, second = target.decoder.layers
    for layer in (first, second):
        assert fetched.of(layer.out.weights[0]) == [(0, 64)]
        assert fetched.of(layer.gate) == [(0, 128)]
        assert fetched.of(layer.up) == [(0, 192 + 256)]
    assert fetched.of(first.qkv.weights[0]) == []
    assert fetched.of(second.qkv.weights[0]) == [(0, 320)]
    assert fetched.of(target.decoder.head.weights[0]) == [(0, 320)]
    assert sum(end - begin for begin, end in fetched.pieces) == 2 * (64 + 128 + 192 + 256 + 320)

    target.decoder.streamed = type("", (), {"layer": int, "release": list})()
    fetched.pieces.clear()
    assert torch.equal(logits(), plain) and not fetched.pieces


@pytest.mark.skipif(CUDA, reason="what is fetched is seen in the interpreter alone")
def test_keys_are_fetched_before_they_are_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first blocks of a chunk, and the page where the text ends."""
    fetched = Fetched(monkeypatch)
    run, pages = attention.attend, list[Tensor]()

    class Fetches:
        def __getitem__(self, grid: object) -> Callable[..., Any]:
            def start(*given: Any, **more: Any) -> None:
                pages.extend(given[1:3])
                run[grid](*given, **{**more, "fetched": 1})

            return start

    monkeypatch.setattr(attention, "attend", Fetches())
    case = Attention(2, 2, 16, ((64 * 3 + 5, (-1,)),))
    assert same(case, STANDARD)
    monkeypatch.undo()
    size = 64 * 16 * 4
    for tensor in pages[:2]:  # two chunks of two blocks: 0 and 2, and the last
        parts = [(begin // size, end // size) for begin, end in fetched.of(tensor)]
        heads = sorted({head for begin, end in parts for head in range(begin, end)})
        assert [head % 2 for head in heads] == [0, 1] * 3
        assert len({head // 2 for head in heads}) == 3
    assert DEVICE == "cpu"
