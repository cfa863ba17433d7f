"""Tree attention over paged keys and values, in Triton.

The rows of a tile are the query heads that share a head of keys, times the nodes: so all nodes of a
draft tree read the keys of their text once. Each item of work is one tile and one chunk of the
text (`csrc/paged/step.hpp`); `combine` adds a row's chunks in their order.

The bits of a row depend on its query, its position and the keys that it sees, in the order of the
text, and on nothing else. A block of keys that a row does not see changes nothing of it, to the
bit: its weights are 0 and its sums are multiplied by 1. A product has 64 rows, filled up, so that
it is always made of the same instructions.

With TRITON_INTERPRET=1 all this runs on the CPU, slowly.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from foresay.models.gpu.chained import begin_early, chained, wait_for_kernel_before
from foresay.models.gpu.inputs import StepInputs

__all__ = ["BLOCK", "Heads", "attention", "tile_rows"]

BLOCK = 64
"""Keys that are read at once: a page."""
_TILE = 64  # rows of a product: nodes times query heads
_ITEM_FIELDS = tl.constexpr(10)  # PagedStep::kItemFields


@dataclass(frozen=True, slots=True)
class Heads:
    """The heads of a layer. `padded`: the width of a head in memory, a power of 2."""

    queries: int
    keys: int
    width: int
    padded: int

    @property
    def group(self) -> int:
        """Query heads that share a head of keys."""
        return self.queries // self.keys


def tile_rows(heads: Heads) -> int:
    """Rows of a step in a tile."""
    return _TILE // heads.group


def attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    inputs: StepInputs,
    results: Tensor,
    states: Tensor,
    out: Tensor,
    heads: Heads,
    *,
    scaling: float,
    window: int = 0,
    cap: float = 0.0,
) -> None:
    """Write the attention of all rows into `out` [rows, query heads * width].

    query    [rows, query heads, padded]
    keys     [pages, key heads, BLOCK, padded], and values too
    results  float32 [.., query heads, padded], and states [2, .., query heads]: for the chunks
    """
    how = chained(query.device)
    between = len(states) // 2
    attend[(inputs.item_capacity, heads.keys)](
        query, keys, values, inputs.items, inputs.positions, inputs.row_paths, inputs.path_slots,
        inputs.path_ends, inputs.heap, results, states, between,
        scaling * 1.4426950408889634, cap, window,
        group=heads.group, key_heads=heads.keys, width=heads.padded, tile=_TILE, block=BLOCK,
        capped=cap > 0, windowed=window > 0, num_warps=4, num_stages=3, **how,
    )  # fmt: skip
    combine[(inputs.row_capacity, heads.queries)](
        results, states, between, inputs.first_results, inputs.strides, inputs.counts, out,
        heads.queries, heads.width, padded=heads.padded, num_warps=1, **how,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def add_block(query, keys, values, visible, top, total, sums, scale, cap, capped: tl.constexpr):  # type: ignore[no-untyped-def]
    """One block of keys more, by the softmax that goes along: the highest score so far, the sum of
    the weights, and the weighted values."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee") * scale
    if capped:
        # tanh by exp2, of a score that log2(e) was multiplied into
        size = tl.exp2(-2.0 * tl.abs(scores) / cap)
        bent = (1.0 - size) / (1.0 + size) * (cap * 1.4426950408889634)
        scores = tl.where(scores < 0, -bent, bent)
    scores = tl.where(visible, scores, -float("inf"))
    higher = tl.maximum(top, tl.max(scores, 1))
    safe = tl.where(higher == -float("inf"), 0.0, higher)
    weights = tl.exp2(scores - safe[:, None])
    rescale = tl.exp2(top - safe)
    total = total * rescale + tl.sum(weights, 1)
    sums = sums * rescale[:, None]
    sums = tl.dot(weights.to(values.dtype), values, sums, input_precision="ieee")
    return higher, total, sums


@triton.jit  # type: ignore[untyped-decorator]
def attend(  # type: ignore[no-untyped-def]
    query_at, keys_at, values_at, items_at, positions_at, row_paths_at, path_slots_at,
    path_ends_at, heap_at, results_at, states_at, between, scale, cap, window,
    group: tl.constexpr, key_heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
    block: tl.constexpr, capped: tl.constexpr, windowed: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """One item, one head of keys: all blocks of its chunk."""
    begin_early(chained)
    item_at = items_at + tl.program_id(0) * _ITEM_FIELDS
    key_head = tl.program_id(1)
    first, rows = tl.load(item_at), tl.load(item_at + 1)
    pages, stored = tl.load(item_at + 2), tl.load(item_at + 3)
    path_begin, path_end = tl.load(item_at + 4), tl.load(item_at + 5)
    begin, end = tl.load(item_at + 6), tl.load(item_at + 7)
    out, low = tl.load(item_at + 8), tl.load(item_at + 9)

    lane = tl.arange(0, tile)
    row, head = lane // group, key_head * group + lane % group
    live = row < rows
    position = tl.load(positions_at + first + row, live, -1)
    path = tl.load(row_paths_at + first + row, live, -1)
    dim, key = tl.arange(0, width), tl.arange(0, block)
    heads: tl.constexpr = key_heads * group
    nearest = position - (1 << 30)
    if windowed:
        nearest = position - window
        begin = tl.maximum(begin, tl.maximum(low - window + 1, 0) // block)
    whole = stored // block  # blocks that are stored whole
    inside = key[:, None] * width + dim[None, :]
    wait_for_kernel_before(chained)
    if rows == 0:
        return
    query = tl.load(
        query_at + ((first + row) * heads + head)[:, None] * width + dim[None, :],
        live[:, None],
        0.0,
    )
    top = tl.full([tile], -float("inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    sums = tl.zeros([tile, width], tl.float32)
    for at in range(begin, tl.minimum(end, whole)):
        page = tl.load(heap_at + pages + at).to(tl.int64)
        from_here = (page * key_heads + key_head) * (block * width)
        keys = tl.load(keys_at + from_here + inside)
        values = tl.load(values_at + from_here + inside)
        visible = (at * block + key)[None, :] > nearest[:, None]
        top, total, sums = add_block(
            query, keys, values, visible, top, total, sums, scale, cap, capped
        )
    if end > whole:
        for number in range(path_begin, path_end):
            slots_at = heap_at + tl.load(path_slots_at + number) - whole * block
            last = tl.load(path_ends_at + number)
            to = tl.minimum(end, (last + block - 1) // block)
            for at in range(tl.maximum(begin, whole), to):
                place = at * block + key
                slot = tl.load(slots_at + place, place < last, 0)
                page, offset = (slot // block).to(tl.int64), slot % block
                from_here = ((page * key_heads + key_head) * block + offset) * width
                mine = (place < last)[:, None]
                keys = tl.load(keys_at + from_here[:, None] + dim[None, :], mine, 0.0)
                values = tl.load(values_at + from_here[:, None] + dim[None, :], mine, 0.0)
                visible = place[None, :] <= position[:, None]
                visible &= (place[None, :] > nearest[:, None]) & (path == number)[:, None]
                top, total, sums = add_block(
                    query, keys, values, visible, top, total, sums, scale, cap, capped
                )
    to_here = ((out + row) * heads + head).to(tl.int64)
    tl.store(results_at + to_here[:, None] * width + dim[None, :], sums, live[:, None])
    tl.store(states_at + to_here, top, live)
    tl.store(states_at + between + to_here, total, live)


_STATES, _RESULTS = tl.constexpr(64), tl.constexpr(8)


@triton.jit  # type: ignore[untyped-decorator]
def combine(  # type: ignore[no-untyped-def]
    results_at, states_at, between, firsts_at, strides_at, counts_at, out_at, heads, width,
    padded: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """One row and head: its chunks together, in their order. A chunk of which it sees nothing
    changes nothing, and so do places behind the last one."""
    begin_early(chained)
    row, head = tl.program_id(0), tl.program_id(1)
    first, stride = tl.load(firsts_at + row), tl.load(strides_at + row)
    count = tl.load(counts_at + row)
    dim, many, some = tl.arange(0, padded), tl.arange(0, _STATES), tl.arange(0, _RESULTS)
    wait_for_kernel_before(chained)
    top = tl.full([_STATES], -float("inf"), tl.float32)
    for begin in range(0, count, _STATES):
        at = (first + (begin + many) * stride) * heads + head
        top = tl.maximum(top, tl.load(states_at + at, begin + many < count, -float("inf")))
    highest = tl.max(top)
    highest = tl.where(highest == -float("inf"), 0.0, highest)
    totals = tl.zeros([_STATES], tl.float32)
    for begin in range(0, count, _STATES):
        at = (first + (begin + many) * stride) * heads + head
        inside = begin + many < count
        its = tl.exp2(tl.load(states_at + at, inside, -float("inf")) - highest)
        totals += tl.load(states_at + between + at, inside, 0.0) * its
    sums = tl.zeros([_RESULTS, padded], tl.float32)
    for begin in range(0, count, _RESULTS):
        at = ((first + (begin + some) * stride) * heads + head).to(tl.int64)
        inside = begin + some < count
        its = tl.exp2(tl.load(states_at + at, inside, -float("inf")) - highest)
        found = tl.load(results_at + at[:, None] * padded + dim[None, :], inside[:, None], 0.0)
        sums += found * its[:, None]
    total = tl.sum(totals)
    mean = tl.sum(sums, 0) / tl.where(total == 0.0, 1.0, total)
    out = out_at + (row * heads + head) * width + dim
    tl.store(out, mean.to(out_at.dtype.element_ty), dim < width)
