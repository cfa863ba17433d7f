"""Linear layers of the core, on every level that the machine offers: against products in float64,
and that a row's bits are its own."""

from __future__ import annotations

import os

import numpy as np
import pytest
from numpy.typing import NDArray

from core.attention_twin import doubles, shortened
from foresay import _core
from pairs import pairs

Bits = NDArray[np.uint16]
on_each_level = pytest.mark.parametrize("level", _core.cpu_levels())


def bits(rng: np.random.Generator, *shape: int) -> Bits:
    return shortened(rng.standard_normal(shape).astype(np.float32))


def product(layer: _core.Linear, x: Bits, threads: int = 1) -> Bits:
    out = np.full((*x.shape[:-1], layer.out_features), 0x7FC0, np.uint16)
    layer.multiply(x, out, threads)
    return out


@pytest.mark.parametrize(
    ("level", "size", "rows", "with_bias"),
    pairs(
        _core.cpu_levels(),
        [(1, 1), (2, 33), (31, 16), (32, 32), (33, 7), (100, 50), (576, 192), (700, 96)],
        [1, 2, 15, 16, 17, 31, 32, 33, 49, 64, 65, 100, 200],
        [False, True],
    ),
)
def test_equals_the_exact_product(
    level: str, size: tuple[int, int], rows: int, with_bias: bool
) -> None:
    ins, outs = size
    rng = np.random.default_rng(ins + rows)
    weight, bias, x = bits(rng, outs, ins), bits(rng, outs), bits(rng, rows, ins)
    layer = _core.Linear(weight, bias if with_bias else None, level)
    assert (layer.in_features, layer.out_features) == (ins, outs)
    assert layer.bytes >= 2 * ins * outs
    wanted = doubles(x) @ doubles(weight).T + with_bias * doubles(bias)
    large = np.abs(doubles(x)) @ np.abs(doubles(weight)).T + with_bias * np.abs(doubles(bias))
    # One rounding to 8 bits, and one of a float32 for each product.
    given = doubles(product(layer, x, 2))
    assert np.all(np.abs(given - wanted) <= np.abs(wanted) / 256 + large * (ins + 1) * 2.0**-24)


def telling(rng: np.random.Generator, rows: int, ins: int) -> Bits:
    """Rows whose products mostly cancel each other if the weight repeats too."""
    half = bits(rng, rows, ins // 2)
    x = np.concatenate([half, half ^ 0x8000], axis=1)
    x[:, ::7] = bits(rng, rows, len(range(0, ins, 7)))
    return x


@on_each_level
@pytest.mark.parametrize(("ins", "outs"), [(96, 80), (70, 33), (576, 192)])
def test_the_bits_of_a_row_are_its_own(ins: int, outs: int, level: str) -> None:
    rng = np.random.default_rng(3)
    half = bits(rng, outs, ins // 2)
    layer = _core.Linear(np.concatenate([half, half], axis=1), bits(rng, outs), level)
    x = telling(rng, 130, ins)
    alone = np.concatenate([product(layer, x[i : i + 1]) for i in range(130)])
    for rows in range(1, 131):
        for threads in (1, 2, 3):
            assert np.array_equal(product(layer, x[:rows], threads), alone[:rows]), (rows, threads)
    for first in (1, 5, 16, 31, 47):  # at other places, among other rows
        assert np.array_equal(product(layer, x[first:], 2), alone[first:])
        others = x.copy()
        others[:first] = 0x7FC0  # not a number
        others[first + 1 :] = bits(rng, 129 - first, ins)
        assert np.array_equal(product(layer, others, 2)[first], alone[first])


@on_each_level
def test_many_rows_at_once(level: str) -> None:
    rng = np.random.default_rng(4)
    layer = _core.Linear(
        bits(rng, 48, 2048), None, level
    )  # so deep that rows are taken in several blocks
    x = bits(rng, 450, 2048)
    alone = np.concatenate([product(layer, x[i : i + 1]) for i in range(450)])
    assert np.array_equal(product(layer, x, 2), alone)


@on_each_level
def test_rows_may_lie_at_equal_distances(level: str) -> None:
    rng = np.random.default_rng(5)
    weight = bits(rng, 24, 64)
    layer, x = _core.Linear(weight, None, level), bits(rng, 2, 3, 2, 64)
    wanted = product(layer, x)
    assert np.array_equal(product(layer, np.concatenate([x, x], axis=-1)[..., :64]), wanted)
    assert np.array_equal(product(layer, x[0, ::-1, 0]), wanted[0, ::-1, 0])
    assert np.array_equal(
        product(layer, np.broadcast_to(x[0, 0, 0], (20, 64)))[19], wanted[0, 0, 0]
    )
    assert np.array_equal(product(layer, x[0, 0, 0]), wanted[0, 0, 0])
    assert product(layer, x[:, :0]).shape == (2, 0, 2, 24)
    transposed = _core.Linear(np.ascontiguousarray(weight.T).T, None, level)
    assert np.array_equal(product(transposed, x), wanted)


@on_each_level
def test_infinities_and_what_is_no_number(level: str) -> None:
    layer = _core.Linear(shortened(np.eye(33, dtype=np.float32)), None, level)
    x = np.zeros((2, 33), np.uint16)
    x[0, 32] = 0x7F80
    assert np.all(np.isnan(doubles(product(layer, x)[0, :32])))
    assert product(layer, x)[0, 32] == 0x7F80
    assert not product(layer, x)[1].any()


@pytest.mark.skipif("FORESAY_SANITIZE" in os.environ, reason="torch under the sanitizers")
def test_tensors_of_torch() -> None:
    torch = pytest.importorskip("torch")
    weight, x = torch.randn(40, 64).bfloat16(), torch.randn(2, 9, 64).bfloat16()
    out = torch.empty(2, 9, 40, dtype=torch.bfloat16)
    _core.Linear(weight).multiply(x, out)
    same = product(
        _core.Linear(weight.view(torch.int16).numpy().view(np.uint16)),
        x.view(torch.int16).numpy().view(np.uint16),
    )
    assert np.array_equal(out.view(torch.int16).numpy().view(np.uint16), same)
