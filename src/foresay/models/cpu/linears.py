"""The linear layers on the CPU: weights packed once for the machine, and batch-invariant.

The core multiplies bfloat16 so on every machine. oneDNN multiplies float32, and the order in which
it adds products may depend on how many rows there are, or on a row's place in a block: so the row
counts with equal bits are found by tests, and calls are kept among them. Prefill rows come many at
once, with row counts of their own; what is prefill does not depend on other texts.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from foresay import _core

__all__ = [
    "ANY_ROWS",
    "PackedLinear",
    "RowRange",
    "linear_layers",
    "multiplied_by_torch",
    "pack",
    "prefilling",
    "warn_if_slow",
]

_log = logging.getLogger("foresay.models")
_TRIED = (*range(1, 18), 23, 24, 31, 32, 33, 40, 47, 48, 56, 64, 80, 96, 112, 128, 144, 160, 192)
_DECODE, _PREFILL = 8, 128  # rows that others are compared with: of a draft, of a prompt
_BLOCKS = (1, 6, 12, 24, 48)  # rows of the blocks that are tried; the first that works is taken
_COMPARED = 64
_ENOUGH_WORK = 6 << 30  # multiplications: more rows of a very wide layer are not tried
_FEW = 64  # rows of the output layer that are tried: of a prompt it computes the last row only


@dataclass(frozen=True, slots=True)
class RowRange:
    """Row counts whose results have the same bits, row by row: the multiples of `block` from
    `least` to `most`, which are such multiples themselves.
    """

    least: int
    most: int
    block: int = 1

    def __contains__(self, rows: int) -> bool:
        return self.least <= rows <= self.most and rows % self.block == 0

    def missing(self, rows: int) -> int:
        """How many rows are to be added to at most `most` of them."""
        return max(self.least, -(-rows // self.block) * self.block) - rows


ANY_ROWS = RowRange(1, 1 << 62)
_PACKED = (nn.Linear, Conv1D)
_SAID: list[bool] = []  # whether the process has warned that a model is slow
# By kind of layer: it depends on the machine, not on the model.
_FOUND: dict[tuple[object, ...], tuple[RowRange, RowRange]] = {}


@dataclass(frozen=True, slots=True)
class _Prefilling:
    """How many of the rows are prefill: the first ones, or the first ones in `order`."""

    rows: int
    prefill: int
    order: Tensor | None = None
    back: Tensor | None = None


_NO_PREFILL = _Prefilling(0, 0)
_PREFILLING: ContextVar[_Prefilling] = ContextVar("foresay_prefilling", default=_NO_PREFILL)


@contextmanager
def prefilling(prefill: Tensor) -> Iterator[None]:
    """While the body runs, the rows marked in `prefill` (bool[T]) are prefill."""
    count = int(prefill.sum())
    order = back = None
    if count and not bool(prefill[:count].all()):
        order = torch.argsort((~prefill).int(), stable=True)
        back = torch.argsort(order)
    token = _PREFILLING.set(_Prefilling(len(prefill), count, order, back))
    try:
        yield
    finally:
        _PREFILLING.reset(token)


class PackedLinear(nn.Module):
    """A Linear whose weight is packed for the machine. `decode` says how many rows it takes at
    once, and `prefill` how many prefill rows: more are computed in parts, fewer are padded with
    zeros. `transposed`: the layer that it replaces has its weight as [ins, outs].

    Raises: as torch.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, transposed: bool = False) -> None:
        super().__init__()
        weight = weight.t() if transposed else weight
        self.transposed = transposed
        self.out_features, self.in_features = weight.shape
        self.decode = self.prefill = ANY_ROWS
        self.bias, self.dtype = bias, weight.dtype
        self.core: _core.Linear | None = None
        self.packed: Tensor | None = None
        small = weight.dtype == torch.bfloat16 and (bias is None or bias.dtype == torch.bfloat16)
        if small:
            self.core = _core.Linear(weight.detach(), None if bias is None else bias.detach())
        else:
            self.packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), 16)

    def forward(self, x: Tensor) -> Tensor:
        rows, now = x.numel() // self.in_features, _PREFILLING.get()
        first = now.prefill if now.rows == rows and self.prefill is not self.decode else 0
        if not first and rows in self.decode:
            return self._multiply(x)
        if not rows:  # of an expert without tokens
            return x.new_empty(*x.shape[:-1], self.out_features)
        flat = x.reshape(-1, self.in_features)
        if first and now.order is not None:
            flat = flat[now.order]
        parts = self._in_parts(flat[:first], self.prefill) if first else []
        out = torch.cat([*parts, *self._in_parts(flat[first:], self.decode)])
        if first and now.back is not None:
            out = out[now.back]
        return out.reshape(*x.shape[:-1], self.out_features)

    def _in_parts(self, x: Tensor, rows: RowRange) -> list[Tensor]:
        if len(x) in rows:
            return [self._multiply(x)]
        found = []
        for part in x.tensor_split(-(-len(x) // rows.most)) if len(x) else ():
            missing = rows.missing(len(part))
            filled = nn.functional.pad(part, (0, 0, 0, missing)) if missing else part
            found.append(self._multiply(filled)[: len(part)])
        return found

    def _multiply(self, x: Tensor) -> Tensor:
        if self.core is not None:
            given = x.new_empty(*x.shape[:-1], self.out_features)
            self.core.multiply(x.contiguous(), given, torch.get_num_threads())
            return given
        out: Tensor = torch.ops.mkldnn._linear_pointwise(x, self.packed, self.bias, "none", [], "")
        return out


def pack(model: nn.Module, *, deterministic: bool) -> None:
    """Replace the model's linear layers by packed ones, where the machine can do that and gives
    the same results; if `deterministic`, find the row counts that each must be given.
    """
    output = model.get_output_embeddings() if isinstance(model, PreTrainedModel) else None
    for parent, name, layer, path in list(linear_layers(model)):
        packed = _packed(layer)
        if packed is None:
            continue
        if deterministic and packed.core is None:
            most = _FEW if layer is output else _TRIED[-1]
            shape = (packed.out_features, packed.in_features, packed.dtype)
            kind = (*shape, layer.bias is not None, torch.get_num_threads(), most)
            if kind not in _FOUND:
                _FOUND[kind] = row_ranges(packed, most)
            packed.decode, packed.prefill = _FOUND[kind]
            if "experts" in path:  # which get some of the step's rows, and do not know which
                packed.prefill = packed.decode
        setattr(parent, name, packed)


def warn_if_slow(model: nn.Module) -> None:
    """Where torch has no fast product of bfloat16: say, once per process, that a packed model of
    bfloat16 still asks torch for some.

    Mutates: torch's settings: at its first such product torch warns, with a stack of addresses, and
    turns oneDNN off for the process; it is turned off here, before that.
    """
    if torch.ops.mkldnn._is_mkldnn_bf16_supported():
        return
    if any(weight.dtype == torch.bfloat16 for weight in model.parameters()):
        torch.backends.mkldnn.set_flags(_enabled=False)
    if multiplied_by_torch(model, packed=True) and not _SAID:
        _SAID.append(True)
        _log.warning(
            "%s multiplies bfloat16 in torch, which has no fast product of it on this processor "
            'and may take a hundred times as long; dtype="float32" is faster here',
            type(model).__name__,
        )


def multiplied_by_torch(model: nn.Module, *, packed: bool) -> bool:
    """Whether the model has weights of bfloat16 that torch multiplies: those of experts, most of
    all. Where it is not `packed` yet, not those that `pack` will take.
    """
    return any(
        weight.dtype == torch.bfloat16 and weight.ndim > 1
        for module in model.modules()
        if not isinstance(module, nn.Embedding)  # looked up
        and (packed or type(module) not in _PACKED)
        for weight in module.parameters(recurse=False)
    )


@torch.inference_mode()
def row_ranges(layer: PackedLinear, most: int = _TRIED[-1]) -> tuple[RowRange, RowRange]:
    """The row counts, up to `most`, around a usual draft's that give the same bits, and those
    around a part of a prompt's; the same range if all do, or if fewer are tried. Found by
    trying, on a layer of the same shape, since it is the shape by which the library chooses.
    """
    outs, ins = layer.out_features, layer.in_features
    most = min(max(_ENOUGH_WORK // (ins * outs), _FEW), most)
    x, weight = _telling(most, outs, ins)
    trial, x = PackedLinear(weight.to(layer.dtype), layer.bias), x.to(layer.dtype)
    for block in _BLOCKS:
        counts = _TRIED if block == 1 else range(block, _TRIED[-1] + 1, block)
        tried = [rows for rows in counts if rows <= most]
        decode = _same_rows(trial, x, tried, -(-_DECODE // block) * block, block)
        if decode is None:
            continue
        prompt = _PREFILL // block * block
        if decode.most >= prompt or prompt not in tried:
            return decode, decode
        return decode, _same_rows(trial, x, tried, prompt, block) or decode
    one = RowRange(1, 1)
    return one, one


def _same_rows(
    layer: PackedLinear, x: Tensor, tried: list[int], center: int, block: int
) -> RowRange | None:
    """The tried counts around `center` that give the same bits as it wherever a row stands, or None
    where those of `center` itself depend on that."""

    def steady(rows: int) -> Tensor | None:
        first = layer._multiply(x[:rows])
        moved = layer._multiply(x[:rows].roll(1, 0))
        return first if torch.equal(moved, first.roll(1, 0)) else None

    if steady(center) is None:
        return None
    parts = torch.split(x[: max(_COMPARED, center)], center)
    wanted = torch.cat([layer._multiply(part) for part in parts if len(part) == center])

    def same(rows: int) -> bool:
        found = steady(rows)
        compared = min(rows, len(wanted))
        return found is not None and torch.equal(found[:compared], wanted[:compared])

    at = tried.index(center)
    below = [*itertools.takewhile(same, reversed(tried[:at]))]
    above = [*itertools.takewhile(same, tried[at + 1 :])]
    most = above[-1] if above else center
    whole = max(most // 16 * 16, center) if block == 1 else most  # whole tiles
    return RowRange(below[-1] if below else center, whole, block)


def _telling(rows: int, outs: int, ins: int) -> tuple[Tensor, Tensor]:
    """Rows and a weight whose products tell in which order they were added: most of them cancel
    each other, so that what is left is mostly rounding. Of ordinary ones the rounding of the result
    hides the order but for one in thousands, and a long text meets that one.
    """
    # With its type by name: another thread that reads a model changes torch's default meanwhile.
    generator = torch.Generator().manual_seed(1)
    pairs = 3 * ins // 8
    places = torch.randperm(ins, generator=generator)
    large = torch.randn(rows, pairs, generator=generator, dtype=torch.float32)
    small = 1e-3 * torch.randn(rows, ins - 2 * pairs, generator=generator, dtype=torch.float32)
    twice = torch.randn(outs, pairs, generator=generator, dtype=torch.float32)
    once = torch.randn(outs, ins - 2 * pairs, generator=generator, dtype=torch.float32)
    x = torch.cat([large, -large, small], dim=1)[:, places]
    return x, torch.cat([twice, twice, once], dim=1)[:, places]


def _packed(layer: nn.Linear | Conv1D) -> PackedLinear | None:
    """None where the operation is not there, refuses the layer or is wrong."""
    transposed = isinstance(layer, Conv1D)
    weight, bias = layer.weight.t() if transposed else layer.weight, layer.bias
    x = torch.linspace(-1, 1, 4 * weight.shape[1], dtype=torch.float32)
    x = x.reshape(4, -1).to(weight.dtype)
    try:
        with torch.inference_mode():
            packed = PackedLinear(layer.weight, bias, transposed=transposed)
            given = packed(x).float()
            wanted = layer(x) if packed.core is None else _in_float32(x, weight, bias)
    except (RuntimeError, AttributeError, NotImplementedError):
        return None
    close = 1e-4 if weight.dtype == torch.float32 else 2e-2
    wanted = wanted.float()
    return packed if bool((given - wanted).abs().max() <= close * wanted.abs().max()) else None


def _in_float32(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """The product of bfloat16 in parts, which take little memory: torch may have none of it that is
    fast on this machine."""
    found = torch.cat([x.float() @ part.float().t() for part in torch.split(weight, 4096)], dim=1)
    return found if bias is None else found + bias.float()


def linear_layers(model: nn.Module) -> Iterator[tuple[nn.Module, str, nn.Linear | Conv1D, str]]:
    """The linear layers on the processor: where each is, by which name, and its whole path."""
    for path, parent in model.named_modules():
        children: Iterable[tuple[str, nn.Module]] = parent.named_children()
        for name, child in children:
            if not isinstance(child, (nn.Linear, Conv1D)) or type(child) not in _PACKED:
                continue  # also a subclass, which does more than a Linear
            if child.weight.device.type == "cpu":
                yield parent, name, child, f"{path}.{name}".lstrip(".")
