"""The linear layers on the CPU: laid out once for the machine, and with bits one can rely on.

oneDNN lays the weights out anew at every call of an ordinary Linear, which takes longer than the
multiplication where the rows are few. And the order in which products are added may depend on how
many rows there are: so the classes of row counts with equal bits are found by trying, and calls
are kept within one of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

__all__ = ["ANY_ROWS", "PackedLinear", "RowRange", "pack"]

_TRIED = (*range(1, 41), 48, 56, 64, 65, 80, 96, 128, 160, 192, 256, 384, 512, 768, 1024)
_SAME_AS = 8  # rows that others are compared with: a usual draft
_COMPARED = 64
_ENOUGH_WORK = 2 << 30  # multiplications: more rows of a wide layer are not tried


@dataclass(frozen=True, slots=True)
class RowRange:
    """Row counts whose results have the same bits, row by row.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """

    least: int
    most: int

    def __and__(self, other: RowRange) -> RowRange:
        return RowRange(max(self.least, other.least), min(self.most, other.most))


ANY_ROWS = RowRange(1, 1 << 62)
_FOUND: dict[tuple[object, ...], RowRange] = {}  # by kind of layer: it is the machine's, not ours


class PackedLinear(nn.Module):
    """A Linear whose weight is laid out for the machine. `rows` says how many it takes at once:
    more are done in parts, fewer are filled up with zeros.

    Mutates: nothing. Valid until: for ever. Raises: as torch. GIL: released by torch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.rows = ANY_ROWS
        self.bias = bias
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 16)

    def forward(self, x: Tensor) -> Tensor:
        if self.rows.least <= x.numel() // self.in_features <= self.rows.most:
            return self._multiply(x)
        flat = x.reshape(-1, self.in_features)
        parts = max(-(-len(flat) // self.rows.most), 1)
        out = torch.cat([self._filled(part) for part in flat.tensor_split(parts)])
        return out.reshape(*x.shape[:-1], self.out_features)

    def _filled(self, x: Tensor) -> Tensor:
        missing = max(self.rows.least - len(x), 0)
        return self._multiply(nn.functional.pad(x, (0, 0, 0, missing)))[: len(x)]

    def _multiply(self, x: Tensor) -> Tensor:
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def pack(model: nn.Module, *, deterministic: bool) -> RowRange:
    """Replace the model's linear layers by packed ones, where the machine can do that and gives
    the same results; if `deterministic`, find the row counts that each must be given.

    Mutates: the model. Valid until: for ever; the range is what every step must have rows of.
    Raises: nothing. GIL: released by torch.
    """
    rows = ANY_ROWS
    for parent, name, layer in list(_linears(model)):
        weight = layer.weight if isinstance(layer, nn.Linear) else layer.weight.t()
        packed = _packed(weight, layer.bias, layer)
        if packed is None:
            continue
        if deterministic:
            kind = (*weight.shape, weight.dtype, layer.bias is not None, torch.get_num_threads())
            if kind not in _FOUND:
                _FOUND[kind] = row_range(packed)
            packed.rows = _FOUND[kind]
            rows = rows & RowRange(packed.rows.least, ANY_ROWS.most)
        setattr(parent, name, packed)
    return rows


@torch.inference_mode()
def row_range(layer: PackedLinear) -> RowRange:
    """The row counts around a usual draft's that give the same bits, found by trying: on a layer of
    the same shape, since it is the shape by which the library chooses.

    Mutates: nothing. Valid until: the number of torch's threads changes. Raises: nothing. GIL:
    released by torch.
    """
    outs, ins = layer.out_features, layer.in_features
    tried = [rows for rows in _TRIED if rows <= max(_ENOUGH_WORK // (ins * outs), 64)]
    x, weight = _telling(tried[-1], outs, ins)
    trial = PackedLinear(weight.to(layer.packed.dtype), layer.bias)
    x = x.to(layer.packed.dtype)
    wanted = torch.cat([trial._multiply(part) for part in x[:_COMPARED].split(_SAME_AS)])
    same = [
        torch.equal(trial._multiply(x[:rows])[:_COMPARED], wanted[: min(rows, _COMPARED)])
        for rows in tried
    ]
    at = tried.index(_SAME_AS)
    low = next((i + 1 for i in range(at, -1, -1) if not same[i]), 0)
    high = next((i - 1 for i in range(at, len(tried)) if not same[i]), len(tried) - 1)
    return RowRange(tried[low], max(tried[high] // 16 * 16, _SAME_AS))  # whole tiles


def _telling(rows: int, outs: int, ins: int) -> tuple[Tensor, Tensor]:
    """Rows and a weight whose products tell in which order they were added: most of them cancel
    each other, so that what is left is mostly rounding. Of ordinary ones the rounding of the result
    hides the order but for one in thousands, and a long text meets that one.
    """
    generator = torch.Generator().manual_seed(1)
    pairs = 3 * ins // 8
    places = torch.randperm(ins, generator=generator)
    large = torch.randn(rows, pairs, generator=generator)
    small = 1e-3 * torch.randn(rows, ins - 2 * pairs, generator=generator)
    twice = torch.randn(outs, pairs, generator=generator)
    once = torch.randn(outs, ins - 2 * pairs, generator=generator)
    x = torch.cat([large, -large, small], dim=1)[:, places]
    return x, torch.cat([twice, twice, once], dim=1)[:, places]


def _packed(weight: Tensor, bias: Tensor | None, layer: nn.Module) -> PackedLinear | None:
    """None where the operation is not there, refuses the layer or is wrong."""
    x = torch.linspace(-1, 1, 4 * weight.shape[1]).reshape(4, -1).to(weight.dtype)
    try:
        with torch.inference_mode():
            packed = PackedLinear(weight, bias)
            given, wanted = packed(x).float(), layer(x).float()
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    close = 1e-4 if weight.dtype == torch.float32 else 2e-2
    return packed if bool((given - wanted).abs().max() <= close * wanted.abs().max()) else None


def _linears(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear | Conv1D]]:
    for parent in model.modules():
        children: Iterable[tuple[str, nn.Module]] = parent.named_children()
        for name, child in children:
            if type(child) in (nn.Linear, Conv1D) and child.weight.device.type == "cpu":
                yield parent, name, child
