"""Linear layers with weights in blocks, of every format, on every level that the machine offers:
against the `gguf` package's widened weights, and that a row's bits are its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from core.block_twin import (
    BLOCK,
    BY_NAME,
    FORMATS,
    Bytes,
    Floats,
    Format,
    halves,
    product,
    weights,
    widened,
)
from foresay import _core
from foresay.errors import InputError
from pairs import pairs

LEVELS = _core.cpu_levels()
QUANTISED = [form for form in FORMATS if form.quantised]
INS = 512  # two stored blocks of K formats
on_each_level = pytest.mark.parametrize("level", LEVELS)


def name_of(form: Format) -> str:
    return form.name


of_each_format = pytest.mark.parametrize("form", FORMATS, ids=name_of)
of_each_quantised = pytest.mark.parametrize("form", QUANTISED, ids=name_of)


def layer_of(form: Format, stored: Bytes, level: str = "", **others: Any) -> _core.BlockLinear:
    ins = stored.shape[1] * form.numbers
    return _core.BlockLinear(form.name, stored.reshape(-1), len(stored), ins, level=level, **others)


def rows_of(rng: np.random.Generator, rows: int, ins: int = INS) -> Floats:
    """Like activations: a few numbers are much larger than the others."""
    x = rng.standard_normal((rows, ins)) * np.where(rng.random((rows, ins)) < 0.02, 20, 1)
    return x.astype(np.float32)


def multiply(layer: _core.BlockLinear, x: Floats, threads: int = 1) -> Floats:
    out = np.full((len(x), layer.out_features), np.nan, np.float32)
    layer.multiply(x, out, threads)
    return out


# --- values ----------------------------------------------------------------------------------


@on_each_level
@of_each_format
def test_a_row_is_what_gguf_makes_of_it(form: Format, level: str) -> None:
    stored = weights(np.random.default_rng(1), form, 19, INS)
    layer = layer_of(form, stored, level)
    assert (layer.format, layer.in_features, layer.out_features) == (form.name, INS, 19)
    assert layer.stored_bytes == stored.size <= layer.bytes
    given = np.stack([layer.row(out) for out in range(19)])
    assert np.array_equal(given, widened(form, stored))
    with pytest.raises(InputError, match=r"^row 19 is not there; expected 0 to 18$"):
        layer.row(19)


@pytest.mark.parametrize(
    ("form", "level", "outs", "with_bias"),
    pairs(FORMATS, LEVELS, [1, 7, 33, 64], [False, True]),
)
def test_equals_the_readable_product(form: Format, level: str, outs: int, with_bias: bool) -> None:
    rng = np.random.default_rng(outs)
    stored, x = weights(rng, form, outs, INS), rows_of(rng, 100)
    bias = rng.standard_normal(outs).astype(np.float32) if with_bias else None
    layer = layer_of(form, stored, level, bias=bias)
    wanted = product(form, stored, x, bias)
    for rows in (*range(1, 18), 33, 100):
        assert wanted.last(rows).agrees(multiply(layer, x[-rows:], 2)), rows


@on_each_level
@of_each_format
@pytest.mark.parametrize("blocks", [1, 2, 3, 9])
def test_rows_of_few_inputs(form: Format, blocks: int, level: str) -> None:
    """Of one block, and of numbers that fill no vector."""
    rng = np.random.default_rng(blocks)
    ins = blocks * form.numbers if form.quantised else 4 * blocks + 1
    stored, x = weights(rng, form, 5, ins), rows_of(rng, 9, ins)
    assert product(form, stored, x).agrees(multiply(layer_of(form, stored, level), x))


@on_each_level
@of_each_format
def test_outputs_can_be_rows_in_another_order(form: Format, level: str) -> None:
    rng = np.random.default_rng(2)
    stored, x = weights(rng, form, 37, INS), rows_of(rng, 6)
    bias = rng.standard_normal(37).astype(np.float32)  # of the outputs, not of the stored rows
    for order in (rng.permutation(37).astype(np.int32), np.zeros(37, np.int32)):
        ordered = layer_of(form, stored, level, order=order, bias=bias)
        straight = layer_of(form, np.ascontiguousarray(stored[order]), level, bias=bias)
        assert np.array_equal(multiply(ordered, x), multiply(straight, x))
        assert np.array_equal(ordered.row(5), straight.row(5))


# --- bits ------------------------------------------------------------------------------------


@on_each_level
@of_each_format
def test_the_bits_of_a_row_are_its_own(form: Format, level: str) -> None:
    rng = np.random.default_rng(3)
    layer, x = layer_of(form, weights(rng, form, 43, INS), level), rows_of(rng, 100)
    alone = np.concatenate([multiply(layer, x[i : i + 1]) for i in range(100)])
    for rows in (*range(1, 18), 33, 100):
        for threads in (1, 3):
            assert np.array_equal(multiply(layer, x[:rows], threads), alone[:rows]), rows
            assert np.array_equal(multiply(layer, x[-rows:], threads), alone[-rows:]), rows
    for wrong in (np.nan, np.inf, -np.inf, 3e38, 1e-42, 0.0):
        for first in (0, 8, 99):  # among other rows
            others = np.full_like(x, wrong)
            others[first] = x[first]
            assert np.array_equal(multiply(layer, others, 2)[first], alone[first]), wrong


@of_each_format
def test_levels_that_fuse_have_the_same_bits(form: Format) -> None:
    """Plain rounds a product before it is added."""
    rng = np.random.default_rng(4)
    stored, x = weights(rng, form, 43, INS), rows_of(rng, 21)
    fused = [multiply(layer_of(form, stored, level), x) for level in LEVELS if level != "plain"]
    for other in fused[1:]:
        assert np.array_equal(other, fused[0])
    plain = multiply(layer_of(form, stored, "plain"), x)
    assert product(form, stored, x).agrees(plain)
    if fused:
        assert not np.array_equal(plain, fused[0])


@on_each_level
def test_many_rows_and_outputs(level: str) -> None:
    """More rows than stay in a cache, more products than one thread takes."""
    rng = np.random.default_rng(5)
    form = BY_NAME["Q4_1"]
    stored, x = weights(rng, form, 200, 4096), rows_of(rng, 300, 4096)
    layer = layer_of(form, stored, level)
    found = multiply(layer, x, 3)
    assert product(form, stored, x).agrees(found)
    for row in (0, 1, 127, 128, 299):
        assert np.array_equal(multiply(layer, x[row : row + 1]), found[row : row + 1])
    assert multiply(layer, x[:0]).shape == (0, 200)


# --- limits ----------------------------------------------------------------------------------


@on_each_level
@of_each_quantised
@pytest.mark.parametrize("byte", [0x00, 0x0F, 0xF0, 0xFF, 0x80, 0x7F])
def test_integers_at_their_limits(form: Format, byte: int, level: str) -> None:
    """Every sum of products as large as it can be: all weights are the same, and all inputs are
    127 or -127 times a scale."""
    rng = np.random.default_rng(6)
    stored = np.full((9, INS // form.numbers, form.bytes), byte, np.uint8)
    for at in form.halves:
        stored[..., at : at + 2] = halves(np.float32(rng.uniform(0.5, 1, stored.shape[:2])))
    scales = np.repeat(rng.uniform(0.5, 1, (7, INS // BLOCK)), BLOCK, axis=1)
    signs = np.ones((7, INS))
    signs[1], signs[2, ::2], signs[3, 16:32], signs[4, ::32] = -1, -1, -1, -1
    x = (signs * scales).astype(np.float32)
    found = multiply(layer_of(form, stored, level), x)
    assert product(form, stored, x).agrees(found)


@on_each_level
@of_each_quantised
@pytest.mark.parametrize("byte", [0x80, 0x7F])
def test_single_weights_at_their_limits(form: Format, byte: int, level: str) -> None:
    """One input at a time: what is not exact shows."""
    stored = np.full((3, 1, form.bytes), byte, np.uint8)
    for at in form.halves:
        stored[..., at : at + 2] = halves(np.ones((3, 1), np.float32))
    x = np.eye(form.numbers, dtype=np.float32) * np.float32(127)
    found = multiply(layer_of(form, stored, level), x) / 127
    assert np.allclose(found, widened(form, stored).T, rtol=1e-6, atol=0)


@on_each_level
@of_each_format
def test_activations_at_their_limits(form: Format, level: str) -> None:
    rng = np.random.default_rng(7)
    bias = rng.standard_normal(11).astype(np.float32)
    stored = weights(rng, form, 11, INS)
    layer = layer_of(form, stored, level, bias=bias)
    none = np.zeros((3, INS), np.float32)
    none[1], none[2] = -0.0, 1e-42  # so small that their products are none
    assert np.array_equal(multiply(layer, none), np.broadcast_to(bias, (3, 11)))
    x = rows_of(rng, 4)
    x[0] *= np.float32(1e-25)
    x[1] *= np.float32(1e30)
    x[2, : INS // 2] *= np.float32(1e-20)
    x[3, ::BLOCK] = 1e20  # all others are less than one 127th of it
    assert product(form, stored, x, bias).agrees(multiply(layer, x))


@on_each_level
@of_each_format
@pytest.mark.parametrize("wrong", [np.nan, -np.nan, np.inf, -np.inf])
def test_what_is_no_number_stays_none(form: Format, wrong: float, level: str) -> None:
    """And is not taken for one, wherever in a row it stands."""
    rng = np.random.default_rng(8)
    layer = layer_of(form, weights(rng, form, 11, INS), level)
    for place in (0, 15, 16, 31, 300, INS - 1):
        x = rows_of(rng, 5)
        x[2, place] = wrong
        finite = np.isfinite(multiply(layer, x))
        assert not finite[2].any() and finite[[0, 1, 3, 4]].all(), place


# --- the tests themselves: what is wrong is seen ----------------------------------------------


def swapped(form: Format, stored: Bytes) -> Bytes:
    low = stored[3, 0, slice(*form.low)]
    stored[3, 0, slice(*form.low)] = low >> 4 | low << 4
    return stored


def scaled(form: Format, stored: Bytes) -> Bytes:
    stored[3, 0, form.scales[0]] ^= 1  # the last bit of one scale
    return stored


def without_minimum(form: Format, stored: Bytes) -> Bytes:
    assert form.minimum is not None
    stored[3, 0, form.minimum : form.minimum + 2] = 0
    return stored


def without_high_bit(form: Format, stored: Bytes) -> Bytes:
    stored[3, 0, form.high[0]] &= 0x7F  # of one weight: some of the outputs have it
    stored[4, 0, form.high[0]] ^= 0x80
    return stored


def one_off(form: Format, stored: Bytes) -> Bytes:
    """The integer of one weight is the next one."""
    stored[3, 0, form.low[0]] ^= 1
    return stored


@pytest.mark.parametrize(
    ("form", "damage"),
    [
        (form, damage)
        for form in QUANTISED
        for damage in (scaled, swapped, without_minimum, without_high_bit, one_off)
        if (damage is not swapped or form.name != "Q8_0")
        and (damage is not without_minimum or form.minimum is not None)
        and (damage is not without_high_bit or form.high != (0, 0))
    ],
    ids=lambda one: one.name if isinstance(one, Format) else one.__name__,
)
def test_damage_is_seen(form: Format, damage: Any) -> None:
    """A kernel that read the blocks so would fail above."""
    rng = np.random.default_rng(9)
    stored, x = weights(rng, form, 7, INS), rows_of(rng, 33)
    wanted = product(form, stored, x)
    assert wanted.agrees(multiply(layer_of(form, stored), x))
    assert not wanted.agrees(multiply(layer_of(form, damage(form, stored.copy())), x))


@of_each_quantised
def test_a_wrong_offset_and_a_wrong_rounding_are_seen(form: Format) -> None:
    rng = np.random.default_rng(10)
    stored, x = weights(rng, form, 7, INS), rows_of(rng, 33)
    wanted = product(form, stored, x)
    given = multiply(layer_of(form, stored), x)
    unit = np.abs(widened(form, stored)).max() / 128  # at most the step between two weights
    blocks = x[:, :BLOCK].astype(np.float64).sum(axis=1, keepdims=True)
    assert not wanted.agrees((given + unit * blocks).astype(np.float32))
    cut = x.copy()
    cut[:, 1] = np.nextafter(x[:, 1] * 0.99, 0)  # one number lands on another integer
    assert not wanted.agrees(multiply(layer_of(form, stored), cut))


# --- refusals --------------------------------------------------------------------------------


@on_each_level
@of_each_quantised
@pytest.mark.parametrize("half", [0x7C00, 0xFC00, 0x7E00, 0xFFFF])
def test_scales_that_are_no_numbers_are_refused(form: Format, half: int, level: str) -> None:
    sound = weights(np.random.default_rng(11), form, 5, INS)
    for at in form.halves:
        stored = sound.copy()
        stored[4, -1, at : at + 2] = np.array([half], "<u2").view(np.uint8)
        with pytest.raises(InputError, match=r"^block \d+ of output 4 has a scale that is no num"):
            layer_of(form, stored, level)


@on_each_level
@pytest.mark.parametrize("name", ["F32", "F16", "BF16"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_weights_that_are_no_numbers_are_refused(name: str, value: float, level: str) -> None:
    form = BY_NAME[name]
    stored = weights(np.random.default_rng(12), form, 5, 9)
    bits = {"F32": "<f4", "F16": "<f2", "BF16": "<f4"}[name]
    stored[3, 7] = np.array([value], bits).view(np.uint8)[-form.bytes :]
    with pytest.raises(InputError, match=r"^number 7 of output 3 is none; the file is damaged$"):
        layer_of(form, stored, level)
