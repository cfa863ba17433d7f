"""Top-k, top-p and min-p in Triton kernels, for CUDA, without a wait.

A limit keeps the highest scores of a row, so all there is to find is the lowest one that is kept:
the smallest t for which what lies above it weighs less than a goal. For top-k every token weighs 1
and the goal is k. For top-p a token weighs its mass, a whole number, and the goal is a share of all
of it; sums of whole numbers are the same in any order.

    weigh    what lies above each of 16 rungs below the highest score, and in all
    collect  the scores above the rung where the goal is reached, side by side
    decide   t, by narrowing its place in the order of floats to a 16th in each round
    write    the scores that are kept, divided by the temperature

Each reads the row once, but for `decide`, which reads what was collected, mostly a small part.
With TRITON_INTERPRET=1 all this runs on the CPU, slowly.

Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held while the
work is handed to the device.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from foresay.sampling.acceptance import planned
from foresay.sampling.acceptance.triton import float_of, order_of
from foresay.sampling.acceptance.triton_penalties import split
from foresay.sampling.processors import parts

__all__ = ["limited"]

_BLOCK, _WARPS = 256, 4
_WRITTEN = 1024  # tokens at once where each is looked at alone
_RUNGS = tl.constexpr(16)
_K_DIVIDED, _P_DIVIDED = tl.constexpr(planned.K_DIVIDED), tl.constexpr(planned.P_DIVIDED)
_MIN_DIVIDED, _K_BEFORE_P = tl.constexpr(planned.MIN_DIVIDED), tl.constexpr(planned.K_BEFORE_P)
_MIN_BEFORE_P = tl.constexpr(planned.MIN_BEFORE_P)
_LOWEST = tl.constexpr(-2139095041)  # the place of -inf in the order of floats


def limited(
    values: Tensor,
    top: Tensor,
    worst: Tensor,
    sent: Mapping[str, Tensor],
    limits: planned.Limits,
) -> Tensor:
    """The scores of the rows, limited; float32 [R, V].

    top    float32 [R]: the highest number of each row, NaN if there is one
    worst  the same before the row was edited
    """
    rows, vocabulary = values.shape
    if values.stride(1) != 1:
        values = values.contiguous()
    splits, part = split(rows, vocabulary, _BLOCK)
    new: Any = values.new_empty
    given = [values, values.stride(0), vocabulary, part, top]
    given += [sent[f"p.{name}"] for name in ("divisors", "top_k", "top_p", "min_p", "flags")]
    scale = torch.full([1], parts(vocabulary), dtype=torch.float64, device=values.device)
    least = new([2, rows], dtype=torch.float32)  # the lowest kept by top-k, and by top-p
    last = new([rows], dtype=torch.int32)  # the last id of those that tie with the latter
    chooses = bool(limits.most or limits.by_p)
    here: Any = torch.cuda.device_of  # Triton launches on the current device, not the tensor's
    with here(values):
        if chooses:
            counts = new([rows, splits, 16], dtype=torch.int32)
            masses = new([rows, splits, 16], dtype=torch.int64)
            totals = new([rows, splits], dtype=torch.int64)
            collected = new([rows, vocabulary], dtype=torch.float32)
            sizes = torch.zeros(rows, dtype=torch.int32, device=values.device)
            width = triton.next_power_of_2(splits)
            found = [counts, masses, totals]
            layout = {"block": _BLOCK, "num_warps": _WARPS, "enable_fp_fusion": False}
            weigh[(rows, splits)](*given, scale, *found, **layout)
            collect[(rows, splits)](*given, *found, sizes, collected, width=width, **layout)
            decide[(rows,)](
                *given, scale, *found, sizes, collected, least, last, splits, width=width, **layout
            )
        kept: Tensor = new([rows, vocabulary], dtype=torch.float32)
        splits, part = split(rows, vocabulary, _WRITTEN)
        given[3] = part
        write[(rows, splits)](
            *given, worst, least, last, kept, chooses=chooses, block=_WRITTEN, num_warps=_WARPS,
            enable_fp_fusion=False,
        )  # fmt: skip
    return kept


@triton.jit
def divided(x, divisor, flags, bit):  # type: ignore[no-untyped-def]
    """The scores as a limit sees them: before the division by the temperature, or after."""
    return tl.where((flags & bit) != 0, tl.div_rn(x, divisor), x)


@triton.jit
def key_of(z):  # type: ignore[no-untyped-def]
    """Integers in the order of the floats; both zeros are one."""
    return order_of(tl.where(z == 0.0, 0.0, z))


@triton.jit
def finite(x):  # type: ignore[no-untyped-def]
    return (x > -float("inf")) & (x < float("inf"))


@triton.jit
def mass(z, top, scale):  # type: ignore[no-untyped-def]
    share = tl.exp(z.to(tl.float64) - top.to(tl.float64))
    return tl.floor(share * scale).to(tl.int64)


@triton.jit
def rungs(top):  # type: ignore[no-untyped-def]
    """16 scores below the highest: closely spaced where most of the mass is."""
    lane = tl.arange(0, _RUNGS).to(tl.float32)
    return top - tl.where(lane < 13, lane + 1, (lane - 11) * 8)


@triton.jit
def known(row, top_at, divisors_at, k_at, p_at, least_at, flags_at):  # type: ignore[no-untyped-def]
    """What is known of a row: its limits, the highest score as each limit sees it, whether top-k
    limits it, and whether what lies above the rungs is weighed for top-p. Where top-k comes first,
    so few tokens are left to top-p that it weighs what was collected."""
    top, divisor, flags = tl.load(top_at + row), tl.load(divisors_at + row), tl.load(flags_at + row)
    k, p, least = tl.load(k_at + row), tl.load(p_at + row), tl.load(least_at + row)
    k_top, p_top = (
        divided(top, divisor, flags, _K_DIVIDED),
        divided(top, divisor, flags, _P_DIVIDED),
    )
    min_top = divided(top, divisor, flags, _MIN_DIVIDED)
    by_k = (k > 0) & finite(k_top)
    by_mass = (p < 1.0) & finite(p_top) & ((by_k == 0) | ((flags & _K_BEFORE_P) == 0))
    return k, p, least, divisor, flags, k_top, p_top, min_top, by_k, by_mass


@triton.jit
def left_to_p(x, divisor, flags, min_top, least, k_least):  # type: ignore[no-untyped-def]
    """Which tokens the limits before top-p leave to it."""
    z = divided(x, divisor, flags, _MIN_DIVIDED)
    limited = ((flags & _MIN_BEFORE_P) != 0) & finite(min_top)
    top = tl.where(limited, min_top, 0.0)
    enough = tl.exp(z.to(tl.float64) - top.to(tl.float64)) >= tl.where(limited, least, -1.0)
    k_bound = tl.where((flags & _K_BEFORE_P) != 0, k_least, -float("inf"))
    return enough & (divided(x, divisor, flags, _K_DIVIDED) >= k_bound)


@triton.jit  # type: ignore[untyped-decorator]
def weigh(  # type: ignore[no-untyped-def]
    x_at, stride, vocabulary, part, top_at, divisors_at, k_at, p_at, least_at, flags_at, scale_at,
    counts_at, masses_at, totals_at, block: tl.constexpr,
):  # fmt: skip
    """Of one part of a row: how many tokens lie above each rung, their mass, and that of all."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    _k, _p, least, divisor, flags, k_top, p_top, min_top, by_k, by_mass = known(
        row, top_at, divisors_at, k_at, p_at, least_at, flags_at
    )
    scale = tl.load(scale_at)
    k_rungs, p_rungs = rungs(k_top), rungs(p_top)
    counts = tl.zeros([block, _RUNGS], tl.int32)
    masses, totals = tl.zeros([block, _RUNGS], tl.int64), tl.zeros([block], tl.int64)
    if by_k | by_mass:
        begin, end = split * part, tl.minimum(split * part + part, vocabulary)
        for start in range(begin, end, block):
            ids = start + tl.arange(0, block)
            x = tl.load(x_at + row * stride + ids, ids < end, -float("inf")).to(tl.float32)
            if by_k:
                z = divided(x, divisor, flags, _K_DIVIDED)
                counts += (z[:, None] > k_rungs[None, :]).to(tl.int32)
            if by_mass:
                z = divided(x, divisor, flags, _P_DIVIDED)
                inside = left_to_p(x, divisor, flags, min_top, least, -float("inf"))
                own = tl.where(inside, mass(z, p_top, scale), 0)
                masses += tl.where(z[:, None] > p_rungs[None, :], own[:, None], 0)
                totals += own
    at = row * tl.num_programs(1) + split
    lane = tl.arange(0, _RUNGS)
    tl.store(counts_at + at * _RUNGS + lane, tl.sum(counts, 0))
    tl.store(masses_at + at * _RUNGS + lane, tl.sum(masses, 0))
    tl.store(totals_at + at, tl.sum(totals, 0))


@triton.jit  # type: ignore[untyped-decorator]
def summed(numbers_at, row, splits, width: tl.constexpr):  # type: ignore[no-untyped-def]
    """What the parts of a row found for each rung, together."""
    split, lane = tl.arange(0, width), tl.arange(0, _RUNGS)
    at = (row * splits + split[:, None]) * _RUNGS + lane[None, :]
    return tl.sum(tl.load(numbers_at + at, split[:, None] < splits, 0), 0)


@triton.jit  # type: ignore[untyped-decorator]
def total_of(totals_at, row, splits, width: tl.constexpr):  # type: ignore[no-untyped-def]
    split = tl.arange(0, width)
    return tl.sum(tl.load(totals_at + row * splits + split, split < splits, 0), 0)


@triton.jit
def reached(weights, goal, ladder):  # type: ignore[no-untyped-def]
    """The highest rung above which there is as much as the goal; -inf if there is none."""
    return tl.max(tl.where(weights.to(tl.float64) >= goal, ladder, -float("inf")), 0)


@triton.jit
def missed(weights, goal, ladder, top):  # type: ignore[no-untyped-def]
    """The lowest rung above which there is less than the goal; the top if there is none."""
    return tl.min(tl.where(weights.to(tl.float64) < goal, ladder, top), 0)


@triton.jit  # type: ignore[untyped-decorator]
def collect(  # type: ignore[no-untyped-def]
    x_at, stride, vocabulary, part, top_at, divisors_at, k_at, p_at, least_at, flags_at,
    counts_at, masses_at, totals_at, sizes_at, collected_at, width: tl.constexpr,
    block: tl.constexpr,
):  # fmt: skip
    """The scores of one part of a row that `decide` needs, in any order."""
    row, split, splits = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.num_programs(1)
    k, p, _least, divisor, flags, k_top, p_top, _min_top, by_k, by_mass = known(
        row, top_at, divisors_at, k_at, p_at, least_at, flags_at
    )
    if by_k | by_mass:
        above_k = tl.full([], float("inf"), tl.float32)
        above_p = tl.full([], float("inf"), tl.float32)
        if by_k:
            above_k = reached(summed(counts_at, row, splits, width), k, rungs(k_top))
        if by_mass:
            goal = p * total_of(totals_at, row, splits, width).to(tl.float64)
            above_p = reached(summed(masses_at, row, splits, width), goal, rungs(p_top))
        begin, end = split * part, tl.minimum(split * part + part, vocabulary)
        for start in range(begin, end, block):
            ids = start + tl.arange(0, block)
            x = tl.load(x_at + row * stride + ids, ids < end, -float("inf")).to(tl.float32)
            taken = (divided(x, divisor, flags, _K_DIVIDED) > above_k) | (
                divided(x, divisor, flags, _P_DIVIDED) > above_p
            )
            size = tl.sum(taken.to(tl.int32), 0)
            if size > 0:
                first = tl.atomic_add(sizes_at + row, size, sem="relaxed")
                place = first + tl.cumsum(taken.to(tl.int32), 0) - 1
                tl.store(collected_at + row * vocabulary + place, x, taken)


@triton.jit
def narrower(lo, hi, weights, goal, probes):  # type: ignore[no-untyped-def]
    """Bounds of the smallest place above which there is less than the goal, from what is above 16
    places between the old ones."""
    less = weights.to(tl.float64) < goal
    hi = tl.minimum(hi, tl.min(tl.where(less, probes, hi), 0))
    lo = tl.maximum(lo, tl.max(tl.where(less, lo, probes + 1), 0))
    return lo, hi


@triton.jit
def probes_of(lo, hi):  # type: ignore[no-untyped-def]
    """16 places from lo to hi; int64, as all places here: their differences need 33 bits."""
    step = (hi - lo) // 16 + 1
    return tl.minimum(lo + tl.arange(0, _RUNGS).to(tl.int64) * step, hi)


@triton.jit  # type: ignore[untyped-decorator]
def decide(  # type: ignore[no-untyped-def]
    x_at, stride, vocabulary, part, top_at, divisors_at, k_at, p_at, least_at, flags_at, scale_at,
    counts_at, masses_at, totals_at, sizes_at, collected_at, lowest_at, last_at, splits,
    width: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """The lowest scores of a row that top-k and top-p keep, each as the limit sees them, and the
    last id that top-p keeps of those with its lowest score."""
    row = tl.program_id(0).to(tl.int64)
    k, p, least, divisor, flags, k_top, p_top, min_top, by_k, by_mass = known(
        row, top_at, divisors_at, k_at, p_at, least_at, flags_at
    )
    scale, size = tl.load(scale_at), tl.load(sizes_at + row)
    few_at = collected_at + row * vocabulary
    k_least, p_least = (
        tl.full([], -float("inf"), tl.float32),
        tl.full([], -float("inf"), tl.float32),
    )
    last = tl.full([], 0, tl.int32) + vocabulary
    if by_k:
        weights, ladder = summed(counts_at, row, splits, width), rungs(k_top)
        below = reached(weights, k, ladder)
        # Nothing lies between -inf and the lowest place.
        lo = tl.maximum(key_of(below).to(tl.int64) + 1, _LOWEST)
        lo = tl.where(below == -float("inf"), _LOWEST, lo)
        hi = key_of(missed(weights, k, ladder, k_top)).to(tl.int64)
        while lo < hi:
            probes = probes_of(lo, hi)
            above = tl.zeros([block, _RUNGS], tl.int32)
            for start in range(0, size, block):
                ids = start + tl.arange(0, block)
                x = tl.load(few_at + ids, ids < size, -float("inf"))
                key = key_of(divided(x, divisor, flags, _K_DIVIDED))
                above += (key[:, None] > probes.to(tl.int32)[None, :]).to(tl.int32)
            lo, hi = narrower(lo, hi, tl.sum(above, 0), k, probes)
        k_least = float_of(hi.to(tl.int32))
    if (p < 1.0) & finite(p_top):
        lo, hi = tl.full([], _LOWEST, tl.int64), key_of(p_top).to(tl.int64)
        if by_mass:
            total = total_of(totals_at, row, splits, width)
            goal = p * total.to(tl.float64)
            weights, ladder = summed(masses_at, row, splits, width), rungs(p_top)
            below = reached(weights, goal, ladder)
            lo = tl.where(below == -float("inf"), lo, key_of(below).to(tl.int64) + 1)
            hi = key_of(missed(weights, goal, ladder, p_top)).to(tl.int64)
        else:
            sums = tl.zeros([block], tl.int64)
            for start in range(0, size, block):
                ids = start + tl.arange(0, block)
                x = tl.load(few_at + ids, ids < size, -float("inf"))
                inside = left_to_p(x, divisor, flags, min_top, least, k_least)
                own = mass(divided(x, divisor, flags, _P_DIVIDED), p_top, scale)
                sums += tl.where(inside, own, 0)
            goal = p * tl.sum(sums, 0).to(tl.float64)
        # In the last round, where lo is hi, what lies above it is weighed, and what ties with it.
        heavier, ties, searching = tl.full([], 0, tl.int64), tl.full([], 0, tl.int32), lo <= hi
        while searching:
            probes = probes_of(lo, hi)
            searching = lo < hi
            above, equal = tl.zeros([block, _RUNGS], tl.int64), tl.zeros([block], tl.int32)
            for start in range(0, size, block):
                ids = start + tl.arange(0, block)
                x = tl.load(few_at + ids, ids < size, -float("inf"))
                inside = left_to_p(x, divisor, flags, min_top, least, k_least)
                z = divided(x, divisor, flags, _P_DIVIDED)
                own, key = tl.where(inside, mass(z, p_top, scale), 0), key_of(z)
                above += tl.where(key[:, None] > probes.to(tl.int32)[None, :], own[:, None], 0)
                equal += ((key == hi.to(tl.int32)) & inside & (ids < size)).to(tl.int32)
            weights = tl.sum(above, 0)
            heavier, ties = tl.min(weights, 0), tl.sum(equal, 0)  # those of the last round count
            lo, hi = narrower(lo, hi, weights, goal, probes)
        p_least = float_of(hi.to(tl.int32))
        one = mass(p_least, p_top, scale)
        # How many of those that tie are kept: each, while what is before it weighs less.
        few, many = tl.full([], 0, tl.int32), ties
        while few < many:
            middle = (few + many) // 2
            before = heavier + middle.to(tl.int64) * one
            within = before.to(tl.float64) < goal
            few, many = tl.where(within, middle + 1, few), tl.where(within, many, middle)
        if many < ties:
            seen = tl.full([], 0, tl.int32)
            start = tl.full([], 0, tl.int32)
            while seen < many:
                ids = start + tl.arange(0, block)
                x = tl.load(x_at + row * stride + ids, ids < vocabulary, -float("inf"))
                x = x.to(tl.float32)
                inside = left_to_p(x, divisor, flags, min_top, least, k_least)
                tied = (divided(x, divisor, flags, _P_DIVIDED) == p_least) & inside
                tied &= ids < vocabulary
                order = seen + tl.cumsum(tied.to(tl.int32), 0)
                last = tl.minimum(
                    last, tl.min(tl.where(tied & (order == many), ids, vocabulary), 0)
                )
                seen += tl.sum(tied.to(tl.int32), 0)
                start += block
    tl.store(lowest_at + row, k_least)
    tl.store(lowest_at + tl.num_programs(0) + row, p_least)
    tl.store(last_at + row, last)


@triton.jit  # type: ignore[untyped-decorator]
def write(  # type: ignore[no-untyped-def]
    x_at, stride, vocabulary, part, top_at, divisors_at, k_at, p_at, least_at, flags_at, worst_at,
    lowest_at, last_at, kept_at, chooses: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    """One part of a row, limited and divided; a bad row holds only what makes it bad."""
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top, divisor, flags = (
        tl.load(top_at + row), tl.load(divisors_at + row), tl.load(flags_at + row),
    )  # fmt: skip
    worst, least = tl.load(worst_at + row), tl.load(least_at + row)
    min_top = divided(top, divisor, flags, _MIN_DIVIDED)
    by_min = (least > 0.0) & finite(min_top)
    k_least, p_least = (
        tl.full([], -float("inf"), tl.float32),
        tl.full([], -float("inf"), tl.float32),
    )
    last = tl.full([], 0, tl.int32) + vocabulary
    if chooses:
        k_least, last = tl.load(lowest_at + row), tl.load(last_at + row)
        p_least = tl.load(lowest_at + tl.num_programs(0) + row)
    begin, end = split * part, tl.minimum(split * part + part, vocabulary)
    for start in range(begin, end, block):
        ids = start + tl.arange(0, block)
        x = tl.load(x_at + row * stride + ids, ids < end, -float("inf")).to(tl.float32)
        by_p = divided(x, divisor, flags, _P_DIVIDED)
        kept = (by_p > p_least) | ((by_p == p_least) & (ids <= last))
        kept &= divided(x, divisor, flags, _K_DIVIDED) >= k_least
        if by_min:
            z = divided(x, divisor, flags, _MIN_DIVIDED)
            kept &= tl.exp(z.to(tl.float64) - min_top.to(tl.float64)) >= least
        # A number above all limits may have come of the division; it is never cut.
        out = tl.where(kept, tl.div_rn(x, divisor), -float("inf"))
        out = tl.where((worst != worst) | (worst == float("inf")), worst, out)
        tl.store(kept_at + row * vocabulary + ids, out, ids < end)
