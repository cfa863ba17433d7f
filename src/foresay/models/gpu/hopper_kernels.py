"""The product of few rows for Hopper, in Gluon: weights come before the kernel waits for the one
before it.

A program asks the copy engine (TMA) for as many steps of its weights as it has memory for, at once,
and only then waits for the kernel that makes the rows. So the memory is busy while the kernels
between two products run, which have little to read. As soon as the last weights are asked for, the
next kernel may begin, and ask for its own.

It adds the inputs of one output and one row in the same order by the same instruction as the
kernels of `product_kernels.py`. Gluon has no interpreter; the tests run it on a twin of the copy
engine.
"""

# mypy: ignore-errors
# Gluon's language has no types.

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

__all__ = ["multiply_early"]

# Renamed in Triton 3.7.
copy = tma.async_load if hasattr(tma, "async_load") else tma.async_copy_global_to_shared


@gluon.jit
def begin_early():
    """The next kernel may start; see `chained.py`."""
    gl.inline_asm_elementwise(
        "griddepcontrol.launch_dependents; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def wait_for_kernel_before():
    """From here on, what earlier kernels have written can be read."""
    gl.inline_asm_elementwise(
        "griddepcontrol.wait; // $0", "=r", [], dtype=gl.int32, is_pure=False, pack=1
    )


@gluon.jit
def ask_for_weights(
    weights, which, first, at, there, ready, to, to2, many: gl.constexpr, gated: gl.constexpr
):
    """One step of the weights, if it is `there`: of one matrix, of that one of `many`, or of gate
    and up."""
    size: gl.constexpr = weights[0].block_type.nbytes
    mbarrier.expect(ready, 2 * size if gated else size, there)
    if gated:
        copy(weights[0], [first, at], ready, to, there)
        copy(weights[1], [first, at], ready, to2, there)
    else:
        for number in gl.static_range(many):
            mine = there & (which == number)
            copy(weights[number], [first, at], ready, to, mine)


@gluon.jit
def ask_for_rows(rows, rows2, row, at, there, ready, to, to2, more: gl.constexpr):
    """One step of the rows, in one tile or two."""
    size: gl.constexpr = rows.block_type.nbytes + (rows2.block_type.nbytes if more else 0)
    mbarrier.expect(ready, size, there)
    copy(rows, [row, at], ready, to, there)
    if more:
        second = row + rows.block_type.shape[0]
        copy(rows2, [second, at], ready, to2, there)


@gluon.jit
def done(sums, ups, sums2, ups2, left: gl.constexpr, gated: gl.constexpr, more: gl.constexpr):
    """The sums, when at most so many products are under way."""
    if gated and more:
        sums, ups, sums2, ups2 = warpgroup_mma_wait(left, [sums, ups, sums2, ups2])
    elif gated:
        sums, ups = warpgroup_mma_wait(left, [sums, ups])
    elif more:
        sums, sums2 = warpgroup_mma_wait(left, [sums, sums2])
    else:
        sums = warpgroup_mma_wait(left, [sums])
    return sums, ups, sums2, ups2


@gluon.jit
def activated(gates, ups, gelu: gl.constexpr):
    """As in `product_kernels.py`."""
    if gelu:
        inner = 0.7978845608028654 * (gates + 0.044715 * gates * gates * gates)
        return gates / (1.0 + gl.exp(-2.0 * inner)) * ups
    return gates / (1.0 + gl.exp(-gates)) * ups


@gluon.jit
def write(out_at, found, row, count, output, outputs, width, layout: gl.constexpr):
    """What was found [outputs, rows], from that row and output on, of rows that are so wide."""
    places = output + gl.arange(0, found.shape[0], gl.SliceLayout(1, layout))[:, None]
    rows = row + gl.arange(0, found.shape[1], gl.SliceLayout(0, layout))[None, :]
    to = out_at + rows.to(gl.int64) * width + places
    gl.store(to, found.to(out_at.dtype.element_ty), (rows < count) & (places < outputs))


@gluon.jit(do_not_specialize=["count"])
def multiply_early(
    weights0, weights1, weights2, rows, rows2, out_at, count, inputs, part, all_outputs, size0,
    size1, size2, stages: gl.constexpr, many: gl.constexpr, gated: gl.constexpr,
    more: gl.constexpr, lag: gl.constexpr, gelu: gl.constexpr, num_warps: gl.constexpr,
):  # fmt: skip
    """Some outputs of one part of the inputs of `many` matrices, or of gate and up, for one tile of
    rows or two.

    weights0 to 2, rows, rows2  for the copy engine
    stages  steps of the inputs that there is memory for
    lag     1: the products of a step are under way while those of the next are begun
    """
    weights = (weights0, weights1, weights2)
    outputs: gl.constexpr = weights0.block_type.shape[0]
    step: gl.constexpr = weights0.block_type.shape[1]
    tile: gl.constexpr = rows.block_type.shape[0]
    tile2: gl.constexpr = rows2.block_type.shape[0] if more else 8
    number, split = gl.program_id(1), gl.program_id(2)
    row = gl.program_id(0) * (tile + tile2 if more else tile)
    which, size, column = 0, size0, 0
    if many > 1:
        tiles0, tiles1 = gl.cdiv(size0, outputs), gl.cdiv(size1, outputs)
        if number >= tiles0 + tiles1:
            which, size, column, number = 2, size2, size0 + size1, number - tiles0 - tiles1
        elif number >= tiles0:
            which, size, column, number = 1, size1, size0, number - tiles0
    first, begin = number * outputs, split * part
    steps = gl.cdiv(gl.minimum(part, inputs - begin), step)
    dtype: gl.constexpr = weights0.dtype
    held = gl.allocate_shared_memory(dtype, [stages, outputs, step], weights0.layout)
    held2 = held
    if gated:
        held2 = gl.allocate_shared_memory(dtype, [stages, outputs, step], weights0.layout)
    some = gl.allocate_shared_memory(dtype, [stages, tile, step], rows.layout)
    some2 = some
    if more:
        some2 = gl.allocate_shared_memory(dtype, [stages, tile2, step], rows2.layout)
    ready = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    rows_ready = gl.allocate_shared_memory(gl.int64, [stages, 1], mbarrier.MBarrierLayout())
    for at in gl.static_range(stages):
        mbarrier.init(ready.index(at), count=1)
        mbarrier.init(rows_ready.index(at), count=1)
    for at in gl.static_range(stages):
        ask_for_weights(
            weights, which, first, begin + at * step, at < steps, ready.index(at), held.index(at),
            held2.index(at), many, gated,
        )  # fmt: skip
    if steps <= stages:
        begin_early()
    wait_for_kernel_before()
    for at in gl.static_range(stages):
        ask_for_rows(
            rows, rows2, row, begin + at * step, at < steps, rows_ready.index(at), some.index(at),
            some2.index(at), more,
        )  # fmt: skip
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, tile, 16])
    layout2: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [num_warps, 1], [16, tile2, 16])
    sums = gl.zeros([outputs, tile], gl.float32, layout)
    sums2 = gl.zeros([outputs, tile2], gl.float32, layout2)
    ups, ups2 = sums, sums2
    left: gl.constexpr = (2 if gated else 1) * (2 if more else 1) * lag
    for at in range(steps):
        slot, turn = at % stages, at // stages & 1
        mbarrier.wait(ready.index(slot), turn)
        mbarrier.wait(rows_ready.index(slot), turn)
        right = some.index(slot).permute((1, 0))
        sums = warpgroup_mma(held.index(slot), right, sums, is_async=True)
        if gated:
            ups = warpgroup_mma(held2.index(slot), right, ups, is_async=True)
        if more:
            right2 = some2.index(slot).permute((1, 0))
            sums2 = warpgroup_mma(held.index(slot), right2, sums2, is_async=True)
            if gated:
                ups2 = warpgroup_mma(held2.index(slot), right2, ups2, is_async=True)
        sums, ups, sums2, ups2 = done(sums, ups, sums2, ups2, left, gated, more)
        # Nothing reads this slot any more: it is filled with what comes next.
        free, later = (at - lag + stages) % stages, at - lag + stages
        there = (later < steps) & (at >= lag)
        ask_for_weights(
            weights, which, first, begin + later * step, there, ready.index(free), held.index(free),
            held2.index(free), many, gated,
        )  # fmt: skip
        ask_for_rows(
            rows, rows2, row, begin + later * step, there, rows_ready.index(free), some.index(free),
            some2.index(free), more,
        )  # fmt: skip
        if later == steps - 1:
            begin_early()
    if lag:
        sums, ups, sums2, ups2 = done(sums, ups, sums2, ups2, 0, gated, more)
    if gated:
        write(out_at, activated(sums, ups, gelu), row, count, first, size, size, layout)
        if more:
            found = activated(sums2, ups2, gelu)
            write(out_at, found, row + tile, count, first, size, size, layout2)
    else:
        out_at += split.to(gl.int64) * count * all_outputs + column
        write(out_at, sums, row, count, first, size, all_outputs, layout)
        if more:
            write(out_at, sums2, row + tile, count, first, size, all_outputs, layout2)
