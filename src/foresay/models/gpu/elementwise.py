"""What stands between the products of a layer, in Triton, one program for a row or a head: the
embedding, norms with the residual, RoPE with the writing of keys and values, and copies of slots.

The residual is of float32. Each kernel adds the parts of the product before it, in their order, and
reads what is not of the step, as weights, before it waits for the kernel before it.
"""

from __future__ import annotations

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

from foresay.models.gpu.chained import begin_early, wait_for_kernel_before

__all__ = ["add_and_norm", "copy_slots", "embed", "rotate_and_store"]


@triton.jit  # type: ignore[untyped-decorator]
def embed(  # type: ignore[no-untyped-def]
    tokens_at, table_at, residual_at, norm_at, out_at, width, eps, scale,
    padded: tl.constexpr, above_one: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """The embedding of a row's token is its residual; out: its norm."""
    begin_early(chained)
    wait_for_kernel_before(chained)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, padded)
    inside = at < width
    token = tl.load(tokens_at + row).to(tl.int64)
    x = tl.load(table_at + token * width + at, inside, 0.0).to(tl.float32) * scale
    tl.store(residual_at + row * width + at, x, inside)
    normed = norm_of(x, norm_weights(norm_at, at, inside, above_one), width, eps)
    tl.store(out_at + row * width + at, normed.to(out_at.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def norm_weights(norm_at, at, inside, above_one: tl.constexpr):  # type: ignore[no-untyped-def]
    """`above_one`: they are stored as how far they are above 1."""
    weights = tl.load(norm_at + at, inside, 0.0).to(tl.float32)
    return weights + 1.0 if above_one else weights


@triton.jit
def norm_of(x, weights, width, eps):  # type: ignore[no-untyped-def]
    """RMSNorm."""
    return x * tl.rsqrt(tl.sum(x * x) / width + eps) * weights


@triton.jit  # type: ignore[untyped-decorator]
def sum_of_parts(parts_at, parts: tl.constexpr, between, at, inside):  # type: ignore[no-untyped-def]
    """The parts of a product, in their order."""
    total = tl.load(parts_at + at, inside, 0.0)
    for part in tl.static_range(1, parts):
        total += tl.load(parts_at + part * between + at, inside, 0.0)
    return total


@triton.jit  # type: ignore[untyped-decorator]
def add_and_norm(  # type: ignore[no-untyped-def]
    parts_at, between, bias_at, after_at, residual_at, norm_at, out_at, width, eps,
    parts: tl.constexpr, padded: tl.constexpr, biased: tl.constexpr, after: tl.constexpr,
    above_one: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """A product, with its bias, is added to the residual, normed before if `after`; out: the norm
    of the sum."""
    begin_early(chained)
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, padded)
    inside = at < width
    weights = norm_weights(norm_at, at, inside, above_one)
    if biased:
        bias = tl.load(bias_at + at, inside, 0.0).to(tl.float32)
    if after:
        after_weights = norm_weights(after_at, at, inside, above_one)
    wait_for_kernel_before(chained)
    before = tl.load(residual_at + row * width + at, inside, 0.0)
    x = sum_of_parts(parts_at + row * width, parts, between, at, inside)
    if biased:
        x += bias
    if after:
        x = norm_of(x, after_weights, width, eps)
    x += before
    tl.store(residual_at + row * width + at, x, inside)
    normed = norm_of(x, weights, width, eps)
    tl.store(out_at + row * width + at, normed.to(out_at.dtype.element_ty), inside)


@triton.jit  # type: ignore[untyped-decorator]
def rotate_and_store(  # type: ignore[no-untyped-def]
    parts_at, between, query_bias_at, key_bias_at, value_bias_at, query_norm_at, key_norm_at,
    cosines_at, sines_at, positions_at, slots_at, query_at, keys_at, values_at, eps,
    parts: tl.constexpr, queries: tl.constexpr, key_heads: tl.constexpr, width: tl.constexpr,
    turned: tl.constexpr, padded: tl.constexpr, block: tl.constexpr, biased: tl.constexpr,
    normed: tl.constexpr, above_one: tl.constexpr, chained: tl.constexpr,
):  # fmt: skip
    """One head of one row: of queries and keys RoPE, after their norm if there is one; queries go
    to their buffer, keys and values to their slot."""
    begin_early(chained)
    row, head = tl.program_id(0), tl.program_id(1)
    position = tl.load(positions_at + row).to(tl.int64)
    slot = tl.load(slots_at + row)
    at = tl.arange(0, padded)
    inside = at < width
    half: tl.constexpr = turned // 2
    other = tl.where(at < half, at + half, tl.where(at < turned, at - half, at))
    is_value, is_query = head >= queries + key_heads, head < queries
    all_heads: tl.constexpr = queries + 2 * key_heads
    own = head - tl.where(is_query, 0, tl.where(is_value, queries + key_heads, queries))
    if biased:
        if is_query:
            bias_at = query_bias_at
        elif is_value:
            bias_at = value_bias_at
        else:
            bias_at = key_bias_at
        bias = tl.load(bias_at + own * width + at, inside, 0.0).to(tl.float32)
        other_bias = tl.load(bias_at + own * width + other, inside, 0.0).to(tl.float32)
    if normed:
        if is_query:  # noqa: SIM108 (Triton knows no other choice of pointers)
            norm_at = query_norm_at
        else:
            norm_at = key_norm_at
        mine = norm_weights(norm_at, at, inside, above_one)
        its = norm_weights(norm_at, other, inside, above_one)
    angle = position * half + tl.where(at < half, at, at - half)
    cosine = tl.load(cosines_at + angle, at < turned, 1.0)
    sine = tl.load(sines_at + angle, at < turned, 0.0)
    wait_for_kernel_before(chained)
    here = parts_at + row.to(tl.int64) * (all_heads * width) + head * width
    x = sum_of_parts(here, parts, between, at, inside)
    y = sum_of_parts(here, parts, between, other, inside)
    if biased:
        x += bias
        y += other_bias
    if not is_value:
        if normed:
            scale = tl.rsqrt(tl.sum(x * x) / width + eps)
            x, y = x * scale * mine, y * scale * its
        x = x * cosine + tl.where(at < half, -y, y) * sine
    if is_query:
        to = query_at + (row * queries + own).to(tl.int64) * padded + at
        tl.store(to, x.to(query_at.dtype.element_ty))
    else:
        page, offset = (slot // block).to(tl.int64), slot % block
        place = ((page * key_heads + own) * block + offset) * padded + at
        if is_value:
            tl.store(values_at + place, x.to(values_at.dtype.element_ty))
        else:
            tl.store(keys_at + place, x.to(keys_at.dtype.element_ty))


@triton.jit  # type: ignore[untyped-decorator]
def copy_slots(  # type: ignore[no-untyped-def]
    pool_at, from_at, to_at, offsets_at, between, heads, block: tl.constexpr, width: tl.constexpr,
    many: tl.constexpr,
):  # fmt: skip
    """A group of copies of slots, of one head in one layer, of keys or values: in their order, so
    that a slot is read before a later copy writes to it.

    between  numbers from one layer's keys or values to the next
    """
    group, layer, head = tl.program_id(0), tl.program_id(1).to(tl.int64), tl.program_id(2)
    pool_at += layer * between
    end = tl.load(offsets_at + group + 1)
    dim = tl.arange(0, width)
    for begin in range(tl.load(offsets_at + group), end, many):
        at = begin + tl.arange(0, many)
        there = at < end
        source = tl.load(from_at + at, there, 0)
        target = tl.load(to_at + at, there, 0)
        reads = ((source // block).to(tl.int64) * heads + head) * block + source % block
        writes = ((target // block).to(tl.int64) * heads + head) * block + target % block
        values = tl.load(pool_at + reads[:, None] * width + dim[None, :], there[:, None])
        tl.debug_barrier()
        tl.store(pool_at + writes[:, None] * width + dim[None, :], values, there[:, None])
        tl.debug_barrier()
