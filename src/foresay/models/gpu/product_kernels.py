"""The kernels of products (`products.py`): two that take rows by their addresses, and two wide
ones, for many rows.

A wide kernel leaves the rows to the copy engine (TMA), which needs no registers for addresses and
fills up with zeros behind the last row, so that a program can have more of both: an SM reads the
rows again for each program it runs, and with many rows that is what it waits for. Its parts end
where a step ends. Programs that share weights follow each other, so that they read them once.

Every kernel adds the inputs of one output and one row in the same order by the same instruction.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from foresay.models.gpu.chained import begin_early, fetch, wait_for_kernel_before

__all__ = ["multiply", "multiply_gated", "multiply_gated_wide", "multiply_wide"]


@triton.jit  # type: ignore[untyped-decorator]
def place_of(number, size0, size1, size2, offset1, offset2, outputs: tl.constexpr):  # type: ignore[no-untyped-def]
    """Of the program of that number: where its weights are from the first ones on, its first output
    among theirs, how many they have, and the first of these in the result."""
    tiles0, tiles1 = tl.cdiv(size0, outputs), tl.cdiv(size1, outputs)
    second, third = number >= tiles0, number >= tiles0 + tiles1
    own = number - tl.where(third, tiles0 + tiles1, tl.where(second, tiles0, 0))
    size = tl.where(third, size2, tl.where(second, size1, size0))
    column = tl.where(third, size0 + size1, tl.where(second, size0, 0))
    matrix = tl.where(third, offset2, tl.where(second, offset1, 0))
    return tl.multiple_of(matrix.to(tl.int64), 8), own * outputs, size, column


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def multiply(  # type: ignore[no-untyped-def]
    rows_at, weights_at, out_at, count, inputs, part, all_outputs, size0, size1, size2,
    offset1, offset2, outputs: tl.constexpr, tile: tl.constexpr, tile2: tl.constexpr,
    step: tl.constexpr, even: tl.constexpr, fetched: tl.constexpr, policy: tl.constexpr,
    chained: tl.constexpr,
):  # fmt: skip
    """Some outputs of one part of the inputs, for one or two tiles of rows."""
    matrix, first, size, column = place_of(
        tl.program_id(0), size0, size1, size2, offset1, offset2, outputs
    )
    split = tl.program_id(1)
    output = first + tl.arange(0, outputs)
    each = tl.arange(0, step)
    safe = tl.minimum(output, size - 1).to(tl.int64)
    weights_at += matrix
    begin, end = split * part, tl.minimum(split * part + part, inputs)
    if fetched:
        lines = begin + tl.arange(0, fetched // 64) * 64
        fetch(weights_at + safe[:, None] * inputs + tl.minimum(lines, end - 1)[None, :], chained)
    weights_at += safe[:, None] * inputs + each[None, :]
    row = tl.program_id(2) * (tile + tile2) + tl.arange(0, tile)
    some_at = rows_at + row[:, None] * inputs + each[None, :]
    there = (row < count)[:, None]
    sums = tl.zeros([outputs, tile], tl.float32)
    more: tl.constexpr = tile2 > 0
    if more:
        row2 = tl.program_id(2) * (tile + tile2) + tile + tl.arange(0, tile2)
        some2_at = rows_at + row2[:, None] * inputs + each[None, :]
        there2 = (row2 < count)[:, None]
        sums2 = tl.zeros([outputs, tile2], tl.float32)
    wait_for_kernel_before(chained)
    for at in range(begin, end, step):
        if even:
            weights = tl.load(weights_at + at, eviction_policy=policy)
            some = tl.load(some_at + at, there, 0.0)
        else:
            inside = (at + each < end)[None, :]
            weights = tl.load(weights_at + at, inside, 0.0, eviction_policy=policy)
            some = tl.load(some_at + at, there & inside, 0.0)
        sums = tl.dot(weights, tl.trans(some), sums, input_precision="ieee")
        if more:
            if even:
                some2 = tl.load(some2_at + at, there2, 0.0)
            else:
                some2 = tl.load(some2_at + at, there2 & (at + each < end)[None, :], 0.0)
            sums2 = tl.dot(weights, tl.trans(some2), sums2, input_precision="ieee")
    begin_early(chained)  # not sooner: the next kernel would take memory's speed from this one
    valid, place = (output < size)[:, None], (column + output)[:, None]
    to = (split * count + row).to(tl.int64)[None, :] * all_outputs + place
    tl.store(out_at + to, sums, valid & (row < count)[None, :])
    if more:
        to2 = (split * count + row2).to(tl.int64)[None, :] * all_outputs + place
        tl.store(out_at + to2, sums2, valid & (row2 < count)[None, :])


@triton.jit  # type: ignore[untyped-decorator]
def activated(gates, ups, gelu: tl.constexpr):  # type: ignore[no-untyped-def]
    """What becomes of a gate and its up."""
    if gelu:
        inner = 0.7978845608028654 * (gates + 0.044715 * gates * gates * gates)
        return gates / (1.0 + tl.exp(-2.0 * inner)) * ups
    return gates / (1.0 + tl.exp(-gates)) * ups


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def multiply_gated(  # type: ignore[no-untyped-def]
    rows_at, gate_at, between, out_at, count, inputs, outputs, width: tl.constexpr,
    tile: tl.constexpr, tile2: tl.constexpr, step: tl.constexpr, even: tl.constexpr,
    gelu: tl.constexpr, fetched: tl.constexpr, policy: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """Some outputs of both, and what becomes of them."""
    output = tl.program_id(0) * width + tl.arange(0, width)
    each = tl.arange(0, step)
    safe = tl.minimum(output, outputs - 1).to(tl.int64)
    between = tl.multiple_of(between, 8)
    if fetched:
        lines = tl.minimum(tl.arange(0, fetched // 64) * 64, inputs - 1)
        ahead = gate_at + safe[:, None] * inputs + lines[None, :]
        fetch(ahead, chained)
        fetch(ahead + between, chained)
    gate_at += safe[:, None] * inputs + each[None, :]
    up_at = gate_at + between
    row = tl.program_id(1) * (tile + tile2) + tl.arange(0, tile)
    some_at = rows_at + row[:, None] * inputs + each[None, :]
    there = (row < count)[:, None]
    gates, ups = tl.zeros([width, tile], tl.float32), tl.zeros([width, tile], tl.float32)
    more: tl.constexpr = tile2 > 0
    if more:
        row2 = tl.program_id(1) * (tile + tile2) + tile + tl.arange(0, tile2)
        some2_at = rows_at + row2[:, None] * inputs + each[None, :]
        there2 = (row2 < count)[:, None]
        gates2, ups2 = tl.zeros([width, tile2], tl.float32), tl.zeros([width, tile2], tl.float32)
    wait_for_kernel_before(chained)
    for at in range(0, inputs, step):
        if even:
            some = tl.trans(tl.load(some_at + at, there, 0.0))
            gate = tl.load(gate_at + at, eviction_policy=policy)
            up = tl.load(up_at + at, eviction_policy=policy)
        else:
            inside = (at + each < inputs)[None, :]
            some = tl.trans(tl.load(some_at + at, there & inside, 0.0))
            gate = tl.load(gate_at + at, inside, 0.0, eviction_policy=policy)
            up = tl.load(up_at + at, inside, 0.0, eviction_policy=policy)
        gates = tl.dot(gate, some, gates, input_precision="ieee")
        ups = tl.dot(up, some, ups, input_precision="ieee")
        if more:
            if even:
                some2 = tl.trans(tl.load(some2_at + at, there2, 0.0))
            else:
                mask = there2 & (at + each < inputs)[None, :]
                some2 = tl.trans(tl.load(some2_at + at, mask, 0.0))
            gates2 = tl.dot(gate, some2, gates2, input_precision="ieee")
            ups2 = tl.dot(up, some2, ups2, input_precision="ieee")
    begin_early(chained)  # not sooner: the next kernel would take memory's speed from this one
    valid = (output < outputs)[:, None]
    found = activated(gates, ups, gelu).to(out_at.dtype.element_ty)
    to = row.to(tl.int64)[None, :] * outputs + output[:, None]
    tl.store(out_at + to, found, valid & (row < count)[None, :])
    if more:
        found2 = activated(gates2, ups2, gelu).to(out_at.dtype.element_ty)
        to2 = row2.to(tl.int64)[None, :] * outputs + output[:, None]
        tl.store(out_at + to2, found2, valid & (row2 < count)[None, :])


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def multiply_wide(  # type: ignore[no-untyped-def]
    rows, rows2, weights_at, out_at, count, inputs, part, all_outputs, size0, size1, size2,
    offset1, offset2, outputs: tl.constexpr, tile: tl.constexpr, tile2: tl.constexpr,
    step: tl.constexpr, copied: tl.constexpr, fetched: tl.constexpr, policy: tl.constexpr,
    chained: tl.constexpr,
):  # fmt: skip
    """As `multiply`. The rows come as descriptors: `tile` of them at once, and `tile2`. So do the
    weights, where they are `copied`."""
    matrix, first, size, column = place_of(
        tl.program_id(1), size0, size1, size2, offset1, offset2, outputs
    )
    split = tl.program_id(2)
    begin, end = split * part, tl.minimum(split * part + part, inputs)
    if not copied:
        output = tl.minimum(first + tl.arange(0, outputs), size - 1).to(tl.int64)
        weights_at += matrix + output[:, None] * inputs
        if fetched:
            lines = begin + tl.arange(0, fetched // 64) * 64
            fetch(weights_at + tl.minimum(lines, end - 1)[None, :], chained)
        weights_at += tl.arange(0, step)[None, :]
    row = tl.program_id(0) * (tile + tile2)
    sums = tl.zeros([outputs, tile], tl.float32)
    more: tl.constexpr = tile2 > 0
    if more:
        sums2 = tl.zeros([outputs, tile2], tl.float32)
    wait_for_kernel_before(chained)
    for at in range(begin, end, step):
        if copied:
            weights = weights_at.load([first, at])
        else:
            weights = tl.load(weights_at + at, eviction_policy=policy)
        sums = tl.dot(weights, rows.load([row, at]).T, sums, input_precision="ieee")
        if more:
            some2 = rows2.load([row + tile, at])
            sums2 = tl.dot(weights, some2.T, sums2, input_precision="ieee")
    begin_early(chained)
    out_at += split.to(tl.int64) * count * all_outputs + column
    write(out_at, sums, row, count, first, size, all_outputs)
    if more:
        write(out_at, sums2, row + tile, count, first, size, all_outputs)


@triton.jit
def write(out_at, found, row, count, output, outputs, width):  # type: ignore[no-untyped-def]
    """What was found [outputs, rows], from that row and output on, of rows that are so wide."""
    rows = (row + tl.arange(0, found.shape[1]))[None, :]
    places = (output + tl.arange(0, found.shape[0]))[:, None]
    to = out_at + rows.to(tl.int64) * width + places
    tl.store(to, found.to(out_at.dtype.element_ty), (rows < count) & (places < outputs))


@triton.jit  # type: ignore[untyped-decorator]
def pairs_at(gate_at, between, pair, outputs, inputs, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """Where so many gates and their ups begin, by turns 8 of each: so both of a pair will be in
    one thread."""
    each = tl.arange(0, 2 * width)
    output = tl.minimum(pair + each // 16 * 8 + each % 8, outputs - 1).to(tl.int64)
    return gate_at + (output * inputs + (each // 8 % 2) * between)[:, None]


@triton.jit  # type: ignore[untyped-decorator]
def pairs_activated(sums, gelu: tl.constexpr):  # type: ignore[no-untyped-def]
    """[pairs, rows] of such sums."""
    groups: tl.constexpr = sums.shape[0] // 16
    apart = tl.permute(tl.reshape(sums, [groups, 2, 8, sums.shape[1]]), (0, 2, 3, 1))
    gates, ups = tl.split(apart)
    return tl.reshape(activated(gates, ups, gelu), [groups * 8, sums.shape[1]])


@triton.jit(do_not_specialize=["count"])  # type: ignore[untyped-decorator]
def multiply_gated_wide(  # type: ignore[no-untyped-def]
    rows, rows2, gate_at, up, out_at, count, inputs, outputs, width: tl.constexpr,
    width2: tl.constexpr, tile: tl.constexpr, tile2: tl.constexpr, step: tl.constexpr,
    gelu: tl.constexpr, copied: tl.constexpr, fetched: tl.constexpr, policy: tl.constexpr,
    chained: tl.constexpr,
):  # fmt: skip
    """As `multiply_gated`, for `width` outputs and `width2` more: with a number that is no power of
    2, as many programs as a GPU runs at once may have equal shares. There are two tiles of weights:
    each has gates and ups by turns, `up` being what is between them; or, `copied`, one has the
    gates and one the ups, both as descriptors."""
    pair, row = tl.program_id(1) * (width + width2), tl.program_id(0) * (tile + tile2)
    more: tl.constexpr = tile2 > 0
    other: tl.constexpr = copied or width2 > 0
    height: tl.constexpr = width if copied else 2 * width
    height2: tl.constexpr = width if copied else 2 * width2
    if not copied:
        each = tl.arange(0, step)[None, :]
        lines = tl.arange(0, max(fetched, 64) // 64)[None, :] * 64
        between, lines = tl.multiple_of(up, 8), tl.minimum(lines, inputs - 1)
        weights_at = pairs_at(gate_at, between, pair, outputs, inputs, width)
        if fetched:
            fetch(weights_at + lines, chained)
        weights_at += each
        if other:
            weights2_at = pairs_at(gate_at, between, pair + width, outputs, inputs, width2)
            if fetched:
                fetch(weights2_at + lines, chained)
            weights2_at += each
    sums = tl.zeros([height, tile], tl.float32)
    if more:
        sums_right = tl.zeros([height, tile2], tl.float32)
    if other:
        sums_below = tl.zeros([height2, tile], tl.float32)
        if more:
            sums_last = tl.zeros([height2, tile2], tl.float32)
    wait_for_kernel_before(chained)
    for at in range(0, inputs, step):
        if copied:
            weights = gate_at.load([pair, at])
        else:
            weights = tl.load(weights_at + at, eviction_policy=policy)
        some = rows.load([row, at]).T
        sums = tl.dot(weights, some, sums, input_precision="ieee")
        if more:
            some2 = rows2.load([row + tile, at]).T
            sums_right = tl.dot(weights, some2, sums_right, input_precision="ieee")
        if other:
            if copied:
                weights2 = up.load([pair, at])
            else:
                weights2 = tl.load(weights2_at + at, eviction_policy=policy)
            sums_below = tl.dot(weights2, some, sums_below, input_precision="ieee")
            if more:
                sums_last = tl.dot(weights2, some2, sums_last, input_precision="ieee")
    begin_early(chained)
    if copied:
        write(out_at, activated(sums, sums_below, gelu), row, count, pair, outputs, outputs)
        if more:
            found = activated(sums_right, sums_last, gelu)
            write(out_at, found, row + tile, count, pair, outputs, outputs)
    else:
        write(out_at, pairs_activated(sums, gelu), row, count, pair, outputs, outputs)
        if more:
            found = pairs_activated(sums_right, gelu)
            write(out_at, found, row + tile, count, pair, outputs, outputs)
        if other:
            found = pairs_activated(sums_below, gelu)
            write(out_at, found, row, count, pair + width, outputs, outputs)
            if more:
                found = pairs_activated(sums_last, gelu)
                write(out_at, found, row + tile, count, pair + width, outputs, outputs)
