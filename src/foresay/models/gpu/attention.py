"""Tree attention over paged keys and values, in Triton.

The rows of a tile are the query heads that share a head of keys, times the nodes: so all nodes of a
draft tree read the keys of their text once. Each item of work is one tile and one chunk of the
text (`csrc/paged/step.hpp`); `combine` adds a row's chunks in their order.

The bits of a row depend on its query, its position and the keys that it sees, in the order of the
text, and on nothing else. A block of keys that a row does not see changes nothing of it, to the
bit: its weights are 0 and its sums are multiplied by 1. A product has 64 rows, filled up, so that
it is always made of the same instructions. Two tiles of one text may read its keys together: each
has its own products, of the same instructions again.

With TRITON_INTERPRET=1 all this runs on the CPU, slowly.
"""

from __future__ import annotations

from dataclasses import dataclass

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from foresay._core import PagedStep, PagePool
from foresay.models.gpu.chained import (
    NOTHING,
    Ahead,
    begin_early,
    chained,
    fetch_ahead,
    fetch_bytes,
    wait_for_kernel_before,
)
from foresay.models.gpu.inputs import StepInputs
from foresay.models.gpu.tuning import Tuning

__all__ = ["BLOCK", "Heads", "attention", "tile_rows"]

BLOCK = PagePool.PAGE
"""Keys that are read at once: a page."""
_TILE = 64  # rows of a product: nodes times query heads
_ITEM_FIELDS = tl.constexpr(PagedStep.ITEM_FIELDS)
_BLOCKS = tl.constexpr(16)  # of a chunk, at most


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
    tuning: Tuning = Tuning(),  # noqa: B008 (it is frozen)
    ahead: tuple[Ahead, Ahead] = (NOTHING, NOTHING),
) -> None:
    """Write the attention of all rows into `out` [rows, query heads * width].

    query    [rows, query heads, padded]
    keys     [pages, key heads, BLOCK, padded], and values too
    results  float32 [.., query heads, padded], and states [2, .., query heads]: for the chunks
    ahead    what each of the two kernels fetches
    """
    how = chained(query.device)
    between = len(states) // 2
    first, second = ahead[0].programs(heads.keys), ahead[1].programs(heads.queries)
    attend[(first + inputs.item_capacity, heads.keys)](
        query, keys, values, inputs.items, inputs.positions, inputs.row_paths, inputs.path_slots,
        inputs.path_ends, inputs.heap, results, states, between,
        scaling * 1.4426950408889634, cap, window, **ahead[0].arguments(heads.keys),
        group=heads.group, key_heads=heads.keys, width=heads.padded, tile=_TILE, block=BLOCK,
        capped=cap > 0, windowed=window > 0, pair=inputs.tiles == 2,
        lean=tuning.lean and not cap, known=tuning.known, flat=tuning.flat,
        fetched=tuning.keys if how["chained"] else 0, num_warps=4, num_stages=tuning.stages, **how,
    )  # fmt: skip
    combine[(second + inputs.row_capacity, heads.queries)](
        results, states, between, inputs.first_results, inputs.strides, inputs.counts, out,
        heads.queries, heads.width, **ahead[1].arguments(heads.queries), padded=heads.padded,
        early=tuning.early, num_warps=1, **how,
    )  # fmt: skip


@triton.jit  # type: ignore[untyped-decorator]
def add_block(  # type: ignore[no-untyped-def]
    query, keys, values, visible, top, total, sums, scale, cap, capped: tl.constexpr,
    masked: tl.constexpr, lean: tl.constexpr,
):  # fmt: skip
    """One block of keys more, by the softmax that goes along: the highest score so far, the sum of
    the weights, and the weighted values. Without a mask it has the bits that it has with one
    through which all is seen."""
    scores = tl.dot(query, tl.trans(keys), input_precision="ieee")
    if not lean:
        scores *= scale
    if capped:
        # tanh by exp2, of a score that log2(e) was multiplied into
        size = tl.exp2(-2.0 * tl.abs(scores) / cap)
        bent = (1.0 - size) / (1.0 + size) * (cap * 1.4426950408889634)
        scores = tl.where(scores < 0, -bent, bent)
    if masked:
        scores = tl.where(visible, scores, -float("inf"))
    if lean:
        higher = tl.maximum(top, tl.max(scores, 1) * scale)
    else:
        higher = tl.maximum(top, tl.max(scores, 1))
    safe = tl.where(higher == -float("inf"), 0.0, higher)
    if lean:
        # Said and not left to the compiler, which might do so only where there is no mask.
        weights = tl.exp2(tl.fma(scores, scale, -safe[:, None]))
    else:
        weights = tl.exp2(scores - safe[:, None])
    rescale = tl.exp2(top - safe)
    total = total * rescale + tl.sum(weights, 1)
    sums = sums * rescale[:, None]
    sums = tl.dot(weights.to(values.dtype), values, sums, input_precision="ieee")
    return higher, total, sums


@triton.jit  # type: ignore[untyped-decorator]
def fetch_keys(  # type: ignore[no-untyped-def]
    keys_at, values_at, page, key_head, key_heads: tl.constexpr, size: tl.constexpr,
):  # fmt: skip
    """Bring a page of one head into the cache; `size`: its numbers."""
    from_here = (page.to(tl.int64) * key_heads + key_head) * size
    many: tl.constexpr = size * keys_at.dtype.element_ty.primitive_bitwidth // 8
    fetch_bytes((keys_at + from_here).to(tl.int64), many)
    fetch_bytes((values_at + from_here).to(tl.int64), many)


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


@triton.jit
def path_visible(place, position, nearest, mine):  # type: ignore[no-untyped-def]
    """Which places a row sees; `mine`: the path is its own."""
    visible = (place[None, :] <= position[:, None]) & (place[None, :] > nearest[:, None])
    return visible & mine[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def attend(  # type: ignore[no-untyped-def]
    query_at, keys_at, values_at, items_at, positions_at, row_paths_at, path_slots_at,
    path_ends_at, heap_at, results_at, states_at, between, scale, cap, window, ahead_at,
    ahead_bytes, group: tl.constexpr, key_heads: tl.constexpr, width: tl.constexpr,
    tile: tl.constexpr, block: tl.constexpr, capped: tl.constexpr, windowed: tl.constexpr,
    pair: tl.constexpr, lean: tl.constexpr, known: tl.constexpr, flat: tl.constexpr,
    fetched: tl.constexpr, fetchers: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """One item, one head of keys: all blocks of its chunk. An item of a `pair` may have the rows of
    two tiles."""
    begin_early(chained)
    item, key_head = tl.program_id(0), tl.program_id(1)
    if fetchers:
        if item < fetchers:
            wait_for_kernel_before(chained)
            fetch_ahead(ahead_at, ahead_bytes, item * key_heads + key_head, fetchers * key_heads)
            return
        item -= fetchers
    item_at = items_at + item * _ITEM_FIELDS
    first, rows = tl.load(item_at), tl.load(item_at + 1)
    pages, stored = tl.load(item_at + 2), tl.load(item_at + 3)
    path_begin, path_end = tl.load(item_at + 4), tl.load(item_at + 5)
    begin, end = tl.load(item_at + 6), tl.load(item_at + 7)
    out, low = tl.load(item_at + 8), tl.load(item_at + 9)

    lane = tl.arange(0, tile)
    row, head = lane // group, key_head * group + lane % group
    each: tl.constexpr = tile // group
    live = row < (tl.minimum(rows, each) if pair else rows)
    position = tl.load(positions_at + first + row, live, -1)
    path = tl.load(row_paths_at + first + row, live, -1)
    dim, key = tl.arange(0, width), tl.arange(0, block)
    heads: tl.constexpr = key_heads * group
    nearest = position - (1 << 30)
    if windowed:
        nearest = position - window
        begin = tl.maximum(begin, tl.maximum(low - window + 1, 0) // block)
    if pair:
        row2 = row + each
        live2 = (row < each) & (row2 < rows)
        position2 = tl.load(positions_at + first + row2, live2, -1)
        path2 = tl.load(row_paths_at + first + row2, live2, -1)
        nearest2 = position2 - (window if windowed else 1 << 30)
    whole = stored // block  # blocks that are stored whole
    inside = key[:, None] * width + dim[None, :]
    masked: tl.constexpr = windowed or not lean
    if fetched:  # no kernel of the step writes to these, or it does not matter: this reads nothing
        for at in range(begin, tl.minimum(tl.minimum(end, whole), begin + fetched)):
            page = tl.load(heap_at + pages + at)
            fetch_keys(keys_at, values_at, page, key_head, key_heads, block * width)
        if end > whole:
            slot = tl.load(heap_at + tl.load(path_slots_at + path_begin))
            fetch_keys(keys_at, values_at, slot // block, key_head, key_heads, block * width)
    if known:  # so that the loop has no address to wait for
        each_block = tl.arange(0, _BLOCKS)
        here = begin + each_block
        all_pages = tl.load(heap_at + pages + here, here < tl.minimum(end, whole), 0)
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
    if pair:
        query2 = tl.load(
            query_at + ((first + row2) * heads + head)[:, None] * width + dim[None, :],
            live2[:, None],
            0.0,
        )
        top2 = tl.full([tile], -float("inf"), tl.float32)
        total2 = tl.zeros([tile], tl.float32)
        sums2 = tl.zeros([tile, width], tl.float32)
    for at in range(begin, tl.minimum(end, whole)):
        if known:
            page = tl.sum(tl.where(each_block == at - begin, all_pages, 0))
        else:
            page = tl.load(heap_at + pages + at)
        from_here = (page.to(tl.int64) * key_heads + key_head) * (block * width)
        keys = tl.load(keys_at + from_here + inside)
        values = tl.load(values_at + from_here + inside)
        place = at * block + key
        visible = place[None, :] > nearest[:, None]
        top, total, sums = add_block(
            query, keys, values, visible, top, total, sums, scale, cap, capped, masked, lean
        )
        if pair:
            visible2 = place[None, :] > nearest2[:, None]
            top2, total2, sums2 = add_block(
                query2, keys, values, visible2, top2, total2, sums2, scale, cap, capped, masked,
                lean,
            )  # fmt: skip
    if end > whole:
        lowest = tl.maximum(begin, whole)
        if flat:  # one loop, whose loads are under way before they are needed
            span = end - lowest
            for step in tl.range(0, (path_end - path_begin) * span, num_stages=4):
                number = path_begin + step // span
                place, keys, values = path_block(
                    keys_at, values_at, heap_at, path_slots_at, path_ends_at, number,
                    lowest + step % span, whole, key_head, key, dim, key_heads, block, width,
                )  # fmt: skip
                visible = path_visible(place, position, nearest, path == number)
                top, total, sums = add_block(
                    query, keys, values, visible, top, total, sums, scale, cap, capped, True, lean
                )
                if pair:
                    visible2 = path_visible(place, position2, nearest2, path2 == number)
                    top2, total2, sums2 = add_block(
                        query2, keys, values, visible2, top2, total2, sums2, scale, cap, capped,
                        True, lean,
                    )  # fmt: skip
        else:
            for number in range(path_begin, path_end):
                last = tl.load(path_ends_at + number)
                for at in range(lowest, tl.minimum(end, (last + block - 1) // block)):
                    place, keys, values = path_block(
                        keys_at, values_at, heap_at, path_slots_at, path_ends_at, number, at,
                        whole, key_head, key, dim, key_heads, block, width,
                    )  # fmt: skip
                    visible = path_visible(place, position, nearest, path == number)
                    top, total, sums = add_block(
                        query, keys, values, visible, top, total, sums, scale, cap, capped, True,
                        lean,
                    )  # fmt: skip
                    if pair:
                        visible2 = path_visible(place, position2, nearest2, path2 == number)
                        top2, total2, sums2 = add_block(
                            query2, keys, values, visible2, top2, total2, sums2, scale, cap,
                            capped, True, lean,
                        )  # fmt: skip
    to_here = ((out + row) * heads + head).to(tl.int64)
    tl.store(results_at + to_here[:, None] * width + dim[None, :], sums, live[:, None])
    tl.store(states_at + to_here, top, live)
    tl.store(states_at + between + to_here, total, live)
    if pair:
        to_here += each * heads
        tl.store(results_at + to_here[:, None] * width + dim[None, :], sums2, live2[:, None])
        tl.store(states_at + to_here, top2, live2)
        tl.store(states_at + between + to_here, total2, live2)


_STATES, _RESULTS = tl.constexpr(64), tl.constexpr(8)


@triton.jit  # type: ignore[untyped-decorator]
def chunks_of(  # type: ignore[no-untyped-def]
    results_at, states_at, first, stride, number, count, heads, head, dim, padded: tl.constexpr
):  # fmt: skip
    """Of the chunks with these numbers: the highest scores, and the sums."""
    at = ((first + number * stride) * heads + head).to(tl.int64)
    inside = number < count
    found = tl.load(results_at + at[:, None] * padded + dim[None, :], inside[:, None], 0.0)
    return tl.load(states_at + at, inside, -float("inf")), found


@triton.jit  # type: ignore[untyped-decorator]
def combine(  # type: ignore[no-untyped-def]
    results_at, states_at, between, firsts_at, strides_at, counts_at, out_at, heads, width,
    ahead_at, ahead_bytes, padded: tl.constexpr, early: tl.constexpr, fetchers: tl.constexpr,
    chained: tl.constexpr,
):  # fmt: skip
    """One row and head: its chunks together, in their order. A chunk of which it sees nothing
    changes nothing, and so do places behind the last one."""
    begin_early(chained)
    row, head = tl.program_id(0), tl.program_id(1)
    if fetchers:
        if row < fetchers:
            wait_for_kernel_before(chained)
            fetch_ahead(ahead_at, ahead_bytes, row * heads + head, fetchers * heads)
            return
        row -= fetchers
    first, stride = tl.load(firsts_at + row), tl.load(strides_at + row)
    count = tl.load(counts_at + row)
    dim, many, some = tl.arange(0, padded), tl.arange(0, _STATES), tl.arange(0, _RESULTS)
    wait_for_kernel_before(chained)
    if early:
        states_here = (first + many * stride) * heads + head
        top0 = tl.load(states_at + states_here, many < count, -float("inf"))
        total0 = tl.load(states_at + between + states_here, many < count, 0.0)
        tops1, found1 = chunks_of(
            results_at, states_at, first, stride, some, count, heads, head, dim, padded
        )
        tops2, found2 = chunks_of(
            results_at, states_at, first, stride, some + _RESULTS, count, heads, head, dim, padded
        )
    top = tl.full([_STATES], -float("inf"), tl.float32)
    if early:
        top = top0
    for begin in range(_STATES if early else 0, count, _STATES):
        at = (first + (begin + many) * stride) * heads + head
        top = tl.maximum(top, tl.load(states_at + at, begin + many < count, -float("inf")))
    highest = tl.max(top)
    highest = tl.where(highest == -float("inf"), 0.0, highest)
    totals = tl.zeros([_STATES], tl.float32)
    if early:
        totals += total0 * tl.exp2(top0 - highest)
    for begin in range(_STATES if early else 0, count, _STATES):
        at = (first + (begin + many) * stride) * heads + head
        inside = begin + many < count
        its = tl.exp2(tl.load(states_at + at, inside, -float("inf")) - highest)
        totals += tl.load(states_at + between + at, inside, 0.0) * its
    sums = tl.zeros([_RESULTS, padded], tl.float32)
    if early:
        sums += found1 * tl.exp2(tops1 - highest)[:, None]
        sums += found2 * tl.exp2(tops2 - highest)[:, None]
    for begin in range(2 * _RESULTS if early else 0, count, _RESULTS):
        tops, found = chunks_of(
            results_at, states_at, first, stride, begin + some, count, heads, head, dim, padded
        )
        its = tl.exp2(tops - highest)
        sums += found * its[:, None]
    total = tl.sum(totals)
    mean = tl.sum(sums, 0) / tl.where(total == 0.0, 1.0, total)
    out = out_at + (row * heads + head) * width + dim
    tl.store(out, mean.to(out_at.dtype.element_ty), dim < width)
