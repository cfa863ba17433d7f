"""Linear layers with weights in blocks as one would explain them: weights widened by the `gguf`
package, activations quantised row by row, products in float64."""

from __future__ import annotations

from dataclasses import dataclass

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]

BLOCK = 32  # inputs that share a scale of an activation


@dataclass(frozen=True)
class Format:
    """Where the parts of a stored block are, in bytes. Of a number that is not quantised: none.

    scales      each of half precision
    minimum     of half precision, like a scale; None: there is none
    low, high   the lower four bits (Q8_0: all eight) of the weights, and the others:
                from, to
    offset      what a stored integer is above its value
    """

    name: str
    scales: tuple[int, ...] = ()
    minimum: int | None = None
    low: tuple[int, int] = (0, 0)
    high: tuple[int, int] = (0, 0)
    offset: int = 0

    @property
    def kind(self) -> Kind:
        return Kind[self.name]

    @property
    def numbers(self) -> int:
        """Of a block."""
        return gguf.GGML_QUANT_SIZES[self.kind][0]

    @property
    def bytes(self) -> int:
        """Of a block."""
        return gguf.GGML_QUANT_SIZES[self.kind][1]

    @property
    def quantised(self) -> bool:
        return bool(self.scales)

    @property
    def halves(self) -> tuple[int, ...]:
        """Where numbers of half precision are."""
        return self.scales if self.minimum is None else (*self.scales, self.minimum)


FORMATS = [
    Format("F32"),
    Format("F16"),
    Format("BF16"),
    Format("Q8_0", (0,), low=(2, 34)),
    Format("Q4_0", (0,), low=(2, 18), offset=8),
    Format("Q4_1", (0,), 2, (4, 20)),
    Format("Q5_0", (0,), None, (6, 22), (2, 6), 16),
    Format("Q5_1", (0,), 2, (8, 24), (4, 8)),
    Format("Q4_K", (0,), 2, (16, 144)),
    Format("Q5_K", (0,), 2, (48, 176), (16, 48)),
    Format("Q6_K", (208,), None, (0, 128), (128, 192), 32),
]
BY_NAME = {form.name: form for form in FORMATS}


def halves(values: Floats | Doubles) -> Bytes:
    """[...] as half precision, [..., 2] bytes."""
    return values.astype("<f2")[..., None].view(np.uint8)


def weights(rng: np.random.Generator, form: Format, outs: int, ins: int) -> Bytes:
    """[outs, blocks, bytes]: any bytes at all, but scales like those of models."""
    values = rng.standard_normal((outs, ins)).astype(np.float32)
    if not form.quantised:
        return gguf.quantize(values, form.kind).view(np.uint8).reshape(outs, ins, form.bytes)
    found = rng.integers(0, 256, (outs, ins // form.numbers, form.bytes), np.uint8)
    for at in form.halves:
        found[..., at : at + 2] = halves(rng.standard_normal(found.shape[:2]) * 0.01)
    return found


def widened(form: Format, stored: Bytes) -> Floats:
    """[outs, ins]."""
    rows = np.ascontiguousarray(stored).reshape(len(stored), -1)
    found: Floats = gguf.dequantize(rows, form.kind).astype(np.float32)
    return found.reshape(len(stored), -1)


def quantised(x: Floats) -> Doubles:
    """What is left of rows [rows, ins]: in each block of 32 the largest number becomes 127."""
    blocks = x.reshape(len(x), -1, BLOCK)
    largest = np.abs(blocks).max(axis=2, keepdims=True)
    with np.errstate(all="ignore"):
        inverse = np.where(largest > 2.0**-100, np.float32(127) / largest, np.float32(0))
        integers = np.rint(blocks * inverse)  # of float32; a half goes to the even integer
        scales = (largest * np.float32(1 / 127)).astype(np.float64)
        found: Doubles = (integers * scales).reshape(x.shape)
    return found


@dataclass(frozen=True)
class Product:
    """What a layer should give, [rows, outs], and by how much it may differ."""

    value: Doubles
    tolerance: Doubles

    def last(self, rows: int) -> Product:
        return Product(self.value[-rows:], self.tolerance[-rows:])

    def agrees(self, given: Floats) -> bool:
        return bool(np.all(np.abs(given - self.value) <= self.tolerance))


def product(form: Format, stored: Bytes, x: Floats, bias: Floats | None = None) -> Product:
    """x times the weights, plus the bias.

    A layer rounds a few float32 for each block of 32 inputs, and where nothing is quantised one
    for each input: relative to the sizes of what is added.
    """
    wide, rows = widened(form, stored).astype(np.float64), x.astype(np.float64)
    parts = np.abs(wide)
    roundings = x.shape[1]
    if form.quantised:
        rows, roundings = quantised(x), 5 * x.shape[1] // BLOCK
    if form.minimum is not None:
        without = stored.copy()
        without[..., form.minimum : form.minimum + 2] = 0
        scaled = widened(form, without).astype(np.float64)
        parts = np.abs(scaled) + np.abs(wide - scaled)
    added = np.zeros(len(wide)) if bias is None else bias.astype(np.float64)
    size = np.abs(rows) @ parts.T + np.abs(added)
    return Product(rows @ wide.T + added, size * (roundings + 2) * 2.0**-24)
