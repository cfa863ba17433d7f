"""Tree attention over paged keys and values, in Triton.

The rows of a tile are the query heads that share a head of keys, times the nodes: so all nodes of a
draft tree read the keys of their text once. Each item of work is one tile and one chunk of the
text, or all chunks of a span of 1,024 positions (`csrc/paged/step.hpp`); `combine` adds what is
left to add, so that both give the same bits.

The bits of a row depend on its query, its position and the keys that it sees, in the order of the
text, and on nothing else. A block of keys that a row does not see changes nothing of it, to the
bit: its weights are 0 and its sums are multiplied by 1. A product has 64 rows, filled up, so that
it is always made of the same instructions.

With TRITON_INTERPRET=1 all this runs on the CPU, slowly.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor
from triton.tools.tensor_descriptor import TensorDescriptor  # type: ignore[import-untyped]

from foresay._core import PagedStep, PagePool
from foresay.models.gpu.chained import (
    begin_early,
    chained,
    fetch_bytes,
    wait_for_kernel_before,
)
from foresay.models.gpu.inputs import StepInputs

__all__ = ["BLOCK", "Heads", "attention", "least_items", "tile_rows"]

BLOCK = PagePool.PAGE
"""Keys that are read at once: a page."""
_TILE = 64  # rows of a product: nodes times query heads
_ITEM_FIELDS = tl.constexpr(PagedStep.ITEM_FIELDS)
_SPAN = tl.constexpr(16)  # blocks of a span
_CHUNK = 2  # blocks of a chunk of the first span
_PROGRAMS = 1  # for each multiprocessor: where there are fewer, items are chunks
_STAGES = 3  # blocks of keys that are under way
_LOG2_E = 1.4426950408889634


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


def least_items(heads: Heads, device: torch.device) -> int:
    """Items that keep a device busy."""
    if heads.padded > 128:
        return 1 << 30  # the sums of a chunk and of a span do not fit into the registers
    if device.type != "cuda":
        return 16
    count = torch.cuda.get_device_properties(device).multi_processor_count
    return -(-_PROGRAMS * count // heads.keys)


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
    results  float32 [.., query heads, padded], and states [2, .., query heads]: of the items
    """
    how, between, by_span = chained(query.device), len(states) // 2, inputs.by_span
    blocks = [_blocks(each) for each in (keys, values)]
    attend[(inputs.item_capacity * heads.keys,)](
        query, *blocks, keys, values, inputs.items, inputs.positions, inputs.row_paths,
        inputs.path_slots, inputs.path_ends, inputs.heap, results, states, between,
        scaling * _LOG2_E, cap, window, group=heads.group, key_heads=heads.keys,
        width=heads.padded, tile=_TILE, block=BLOCK, chunk=_CHUNK, capped=cap > 0,
        windowed=window > 0, by_span=by_span, tail=2 if by_span else 4, num_warps=4,
        num_stages=_STAGES, **how,
    )  # fmt: skip
    combine[(inputs.row_capacity, heads.queries)](
        results, states, between, inputs.first_results, inputs.strides, inputs.counts, out,
        heads.queries, heads.width, padded=heads.padded, chunk=_CHUNK, by_span=by_span,
        num_warps=1, **how,
    )  # fmt: skip


def _blocks(memory: Tensor) -> TensorDescriptor:
    """Keys or values for the copy engine (TMA): a block of one head at once."""
    width = memory.shape[-1]
    return TensorDescriptor.from_tensor(memory.view(-1, width), [BLOCK, width])


@triton.jit  # type: ignore[untyped-decorator]
def add_block(  # type: ignore[no-untyped-def]
    query, keys, values, visible, top, total, sums, scale, cap, capped: tl.constexpr,
    masked: tl.constexpr,
):  # fmt: skip
    """One block of keys more, by the softmax that goes along: the highest score so far, the sum of
    the weights, and the weighted values. Without a mask it has the bits that it has with one
    through which all is seen. After a `top` of -inf it begins anew."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    if capped:
        # tanh by exp2, of a score that log2(e) was multiplied into
        scores *= scale
        size = tl.exp2(-2.0 * tl.abs(scores) / cap)
        bent = (1.0 - size) / (1.0 + size) * (cap * 1.4426950408889634)
        scores = tl.where(scores < 0, -bent, bent)
    if masked:
        scores = tl.where(visible, scores, -float("inf"))
    highest = tl.max(scores, 1)
    higher = tl.maximum(top, highest if capped else highest * scale)
    safe = tl.where(higher == -float("inf"), 0.0, higher)
    if capped:
        weights = tl.exp2(scores - safe[:, None])
    else:  # said, and not left to the compiler, which might do so only where there is no mask
        weights = tl.exp2(tl.fma(scores, scale, -safe[:, None]))
    rescale = tl.exp2(top - safe)
    total = tl.fma(total, rescale, tl.sum(weights, 1))
    sums = sums * rescale[:, None]
    sums = tl.dot(weights.to(values.dtype), values, sums, input_precision="ieee")
    return higher, total, sums


@triton.jit
def fold(top, total, its_top, its_total):  # type: ignore[no-untyped-def]
    """What a chunk adds to those before it: the highest score of all, the sum of the weights, and
    by what the sums before and its own are multiplied. One of which nothing is seen adds 0."""
    higher = tl.maximum(top, its_top)
    safe = tl.where(higher == -float("inf"), 0.0, higher)
    before, own = tl.exp2(top - safe), tl.exp2(its_top - safe)
    return higher, tl.fma(total, before, its_total * own), before, own


@triton.jit  # type: ignore[untyped-decorator]
def path_block(  # type: ignore[no-untyped-def]
    keys_at, values_at, heap_at, path_slots_at, path_ends_at, number, at, whole, key_head, key,
    dim, key_heads: tl.constexpr, block: tl.constexpr, width: tl.constexpr,
):  # fmt: skip
    """A block of a path: its places, keys and values; behind the path's end these are 0."""
    slots_at = heap_at + tl.load(path_slots_at + number) - whole * block
    last = tl.load(path_ends_at + number)
    place = at * block + key
    slot = tl.load(slots_at + place, place < last, 0)
    page, offset = (slot // block).to(tl.int64), slot % block
    from_here = ((page * key_heads + key_head) * block + offset) * width
    mine = (place < last)[:, None]
    keys = tl.load(keys_at + from_here[:, None] + dim[None, :], mine, 0.0)
    values = tl.load(values_at + from_here[:, None] + dim[None, :], mine, 0.0)
    return place, keys, values


@triton.jit  # type: ignore[untyped-decorator]
def fetch_tail(  # type: ignore[no-untyped-def]
    keys_at, values_at, heap_at, path_slots_at, path_ends_at, path, key_head,
    key_heads: tl.constexpr, block: tl.constexpr, width: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """Bring the page where a path begins into the cache, and what says where its keys are."""
    if chained:
        slots_at = heap_at + tl.load(path_slots_at + path)
        page = (tl.load(slots_at) // block + 0 * tl.load(path_ends_at + path)).to(tl.int64)
        from_here = (page * key_heads + key_head) * (block * width)
        many: tl.constexpr = block * width * keys_at.dtype.element_ty.primitive_bitwidth // 8
        fetch_bytes((keys_at + from_here).to(tl.int64), many)
        fetch_bytes((values_at + from_here).to(tl.int64), many)


@triton.jit  # type: ignore[untyped-decorator]
def attend(  # type: ignore[no-untyped-def]
    query_at, keys, values, keys_at, values_at, items_at, positions_at, row_paths_at,
    path_slots_at, path_ends_at, heap_at, results_at, states_at, between, scale, cap, window,
    group: tl.constexpr, key_heads: tl.constexpr, width: tl.constexpr, tile: tl.constexpr,
    block: tl.constexpr, chunk: tl.constexpr, capped: tl.constexpr, windowed: tl.constexpr,
    by_span: tl.constexpr, tail: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """One item, one head of keys: the blocks that are stored whole, then those of the paths.

    keys, values  all blocks, for the copy engine; `keys_at`, `values_at`: the same memory
    """
    begin_early(chained)
    program = tl.program_id(0)
    item_at, key_head = items_at + program // key_heads * _ITEM_FIELDS, program % key_heads
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
    live = (path >= path_begin) & (path < path_end)
    dim, key = tl.arange(0, width), tl.arange(0, block)
    heads: tl.constexpr = key_heads * group
    nearest = position - (window if windowed else 1 << 30)
    # Blocks of a chunk in this span: of an item that is a chunk it does not matter.
    size = tl.where(begin < _SPAN, chunk, tl.where(begin < 2 * _SPAN, 4, _SPAN))
    if windowed:
        begin = tl.maximum(begin, tl.maximum(low - window + 1, 0) // block)
    whole = stored // block  # blocks that are stored whole
    # All pages at once, so that the loop has no address to wait for.
    each = tl.arange(0, _SPAN)
    all_pages = tl.load(heap_at + pages + begin + each, begin + each < tl.minimum(end, whole), 0)
    # No kernel of the step writes to blocks that are stored whole: they may come before the wait.
    early: tl.constexpr = not by_span and width <= 128  # else there are too few registers
    if early:  # noqa: SIM102 (what is known to the compiler stands alone)
        if end > whole and rows > 0:
            fetch_tail(
                keys_at, values_at, heap_at, path_slots_at, path_ends_at, path_begin, key_head,
                key_heads, block, width, chained,
            )  # fmt: skip
    query_at += ((first + row) * heads + head)[:, None] * width + dim[None, :]
    query = tl.zeros([tile, width], query_at.dtype.element_ty)
    if not early or begin >= tl.minimum(end, whole):
        wait_for_kernel_before(chained)
        query = tl.load(query_at, live[:, None], 0.0)
    if rows == 0:
        return
    top = tl.full([tile], -float("inf"), tl.float32)
    total = tl.zeros([tile], tl.float32)
    sums = tl.zeros([tile, width], tl.float32)
    if by_span:
        tops, totals, all_sums = top, total, sums
    for at in range(begin, tl.minimum(end, whole)):
        if by_span:  # noqa: SIM102
            if at % size == 0:  # the chunk before has ended; here, where no product is under way
                tops, totals, before, own = fold(tops, totals, top, total)
                all_sums = tl.fma(all_sums, before[:, None], sums * own[:, None])
                top = tl.full([tile], -float("inf"), tl.float32)
        page = tl.sum(tl.where(each == at - begin, all_pages, 0))
        block_keys = keys.load([(page * key_heads + key_head) * block, 0])
        block_values = values.load([(page * key_heads + key_head) * block, 0])
        if early:  # noqa: SIM102
            if at == begin:
                wait_for_kernel_before(chained)
                query = tl.load(query_at, live[:, None], 0.0)
        visible = (at * block + key)[None, :] > nearest[:, None]
        top, total, sums = add_block(
            query, block_keys, block_values, visible, top, total, sums, scale, cap, capped, windowed
        )
    if end > whole:
        lowest = tl.maximum(begin, whole)
        for number in range(lowest // size, (end - 1) // size + 1):
            from_block = tl.maximum(lowest, number * size)
            if by_span:  # noqa: SIM102
                if from_block % size == 0:
                    tops, totals, before, own = fold(tops, totals, top, total)
                    all_sums = tl.fma(all_sums, before[:, None], sums * own[:, None])
                    top = tl.full([tile], -float("inf"), tl.float32)
            # The blocks of all paths are one loop, whose loads begin before they are needed.
            many = tl.minimum(end, (number + 1) * size) - from_block
            for step in tl.range(0, (path_end - path_begin) * many, num_stages=tail):
                its = path_begin + step // many
                place, block_keys, block_values = path_block(
                    keys_at, values_at, heap_at, path_slots_at, path_ends_at, its,
                    from_block + step % many, whole, key_head, key, dim, key_heads, block, width,
                )  # fmt: skip
                visible = (place[None, :] <= position[:, None]) & (path == its)[:, None]
                visible = visible & (place[None, :] > nearest[:, None])
                top, total, sums = add_block(
                    query, block_keys, block_values, visible, top, total, sums, scale, cap, capped,
                    True,
                )  # fmt: skip
    if by_span:
        top, total, before, own = fold(tops, totals, top, total)
        sums = tl.fma(all_sums, before[:, None], sums * own[:, None])
    to_here = ((out + row) * heads + head).to(tl.int64)
    tl.store(results_at + to_here[:, None] * width + dim[None, :], sums, live[:, None])
    tl.store(states_at + to_here, top, live)
    tl.store(states_at + between + to_here, total, live)


@triton.jit  # type: ignore[untyped-decorator]
def folded(  # type: ignore[no-untyped-def]
    results_at, states_at, between, first, stride, begin, end, top, total, sums, dim,
    many: tl.constexpr, padded: tl.constexpr,
):  # fmt: skip
    """With these results more, `many` at most, in their order."""
    for at in tl.static_range(many):
        here = first + (begin + at) * stride
        there = end > begin + at
        its_top = tl.load(states_at + here, there, -float("inf"))
        its_total = tl.load(states_at + between + here, there, 0.0)
        its = tl.load(results_at + here * padded + dim, dim < tl.where(there, padded, 0), 0.0)
        top, total, before, own = fold(top, total, its_top, its_total)
        sums = tl.fma(sums, before, its * own)
    return top, total, sums


_AT_ONCE = tl.constexpr(8)


@triton.jit  # type: ignore[untyped-decorator]
def combine(  # type: ignore[no-untyped-def]
    results_at, states_at, between, firsts_at, strides_at, counts_at, out_at, heads, width,
    padded: tl.constexpr, chunk: tl.constexpr, by_span: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """One row and head: its results together, in their order. Of results of chunks, those of the
    first two spans are added first, each by itself; a later span is one chunk."""
    begin_early(chained)
    row, head = tl.program_id(0), tl.program_id(1)
    first = tl.load(firsts_at + row).to(tl.int64) * heads + head
    stride = tl.load(strides_at + row) * heads
    count = tl.load(counts_at + row)
    dim = tl.arange(0, padded)
    wait_for_kernel_before(chained)
    top, total, begin = -float("inf"), 0.0, 0
    sums = tl.zeros([padded], tl.float32)
    if not by_span:  # without a branch, so that all of them are asked for at once
        chunks: tl.constexpr = _SPAN // chunk
        top, total, sums = folded(
            results_at, states_at, between, first, stride, 0, count, top, total, sums, dim, chunks,
            padded,
        )  # fmt: skip
        its_top, its_total = -float("inf"), 0.0
        its = tl.zeros([padded], tl.float32)
        its_top, its_total, its = folded(
            results_at, states_at, between, first, stride, chunks, count, its_top, its_total, its,
            dim, 4, padded,
        )  # fmt: skip
        top, total, before, own = fold(top, total, its_top, its_total)
        sums = tl.fma(sums, before, its * own)
        begin = chunks + 4
    for at in range(begin, count, _AT_ONCE):
        top, total, sums = folded(
            results_at, states_at, between, first, stride, at, count, top, total, sums, dim,
            _AT_ONCE, padded,
        )  # fmt: skip
    mean = sums / tl.where(total == 0.0, 1.0, total)
    out = out_at + (row * heads + head) * width + dim
    tl.store(out, mean.to(out_at.dtype.element_ty), dim < width)
