"""The keyed noise and the choice in one Triton kernel, for CUDA.

A twin of `acceptance/noise.py` that reads the logits once and writes three numbers per row. The
uniforms are those of `foresay.sampling.noise`, bit for bit. The logarithm is CUDA's in float64,
which is within 1 to 2 units in the last place, so a value may differ from numpy's in its last bits;
another token can win only where two perturbed values are closer than that.

What makes it fast is what it leaves out. Noise is never above -log(1 - u), and that is at most
53 log 2. So with the best value so far in hand,

    a block whose largest logit is too low for any noise costs nothing but its reading;
    in other blocks a token needs its random word and one approximate exp2, to see that it lost;
    the exact noise, in float64, is for the few blocks with a token that may have won.

Each row is cut into parts for as many programs, which tell each other the best value so far, and a
second, small kernel merges what they found. What a program hears changes what it leaves out, never
what it finds.
With TRITON_INTERPRET=1 all this runs on the CPU, slowly.

Mutates: nothing. Valid until: for ever. Raises: as `foresay.sampling.acceptance.noise`. GIL: held
while the work is handed to the device.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]
from torch import Tensor

from foresay.sampling.acceptance.noise import Choice, check_rows
from foresay.sampling.noise import Stream
from foresay.sampling.processors import RowStatus

__all__ = ["LAYOUT", "Layout", "choose"]


class Layout(NamedTuple):
    """How the work lies on the GPU; the result does not depend on it."""

    splits: int
    """Programs per row."""
    block: int
    """Tokens per step of a program, a power of 2."""
    warps: int = 1
    """Warps per program."""
    registers: int | None = None
    """The most registers per thread; None leaves it to the compiler."""


LAYOUT = Layout(splits=37, block=256, warps=1, registers=96)
"""The best on an H200 (benchmarks/gpu_sampling.py): many small programs, because those that start
later know from the others what they must beat; one warp, which compares its lanes without a
barrier; and as many registers as spill nothing."""

_M0, _M1 = tl.constexpr(0xD2511F53), tl.constexpr(0xCD9E8D57)
_W0, _W1 = tl.constexpr(0x9E3779B9), tl.constexpr(0xBB67AE85)
_LOG2E = tl.constexpr(1.4426950408889634)
_MARGIN = tl.constexpr(2.0**-18)
_NO_TOKEN = tl.constexpr(2**31 - 1)
_NAN, _INFINITE = tl.constexpr(int(RowStatus.NAN)), tl.constexpr(int(RowStatus.INFINITE))
_EMPTY = tl.constexpr(int(RowStatus.EMPTY))


def choose(
    logits: Tensor,
    temperatures: Tensor,
    seeds: Tensor,
    positions: Tensor,
    stream: int = Stream.TARGET,
    layout: Layout = LAYOUT,
) -> Choice:
    """The token of each row with the largest logit / temperature + noise, as
    `acceptance.noise.choose`.

    Raises: TokenTypeError, InputError.
    """
    check_rows(logits, temperatures, seeds, positions, stream)
    rows, vocabulary = logits.shape
    splits, block, warps, registers = layout
    if vocabulary and logits.stride(1) != 1:
        logits = logits.contiguous()
    rest = [x.contiguous() for x in (temperatures, seeds, positions)]
    part = triton.cdiv(triton.cdiv(vocabulary, splits), block) * block
    new: Any = logits.new_empty
    found, ids = new([rows, splits], dtype=torch.float64), new([rows, splits], dtype=torch.int32)
    tokens, values = new([rows], dtype=torch.int64), new([rows], dtype=torch.float64)
    status = new([rows], dtype=torch.uint8)
    known: Any = logits.new_full([rows], torch.iinfo(torch.int32).min, dtype=torch.int32)
    if not rows:
        return Choice(tokens, values, status)
    here: Any = torch.cuda.device_of  # Triton launches on the current device, not the tensor's
    with here(logits):
        scan[(rows, splits)](
            logits, logits.stride(0), *rest, stream, vocabulary, part, known, found, ids,
            block=block, num_warps=warps, maxnreg=registers, enable_fp_fusion=True,
        )  # fmt: skip
        merge[(rows,)](
            found, ids, tokens, values, status,
            splits=splits, width=triton.next_power_of_2(splits), num_warps=1, enable_fp_fusion=True,
        )  # fmt: skip
    return Choice(tokens, values, status)


@triton.jit
def words(seed, position, ids, stream):  # type: ignore[no-untyped-def]
    """The first two of Philox's four words; the compiler drops what only the others need, and
    computes once per row what the ids have not reached yet: both leave 14 products of 20."""
    k0, k1 = seed.to(tl.uint32), (seed >> 32).to(tl.uint32)
    c0, c1, c2, c3 = position.to(tl.uint32), ids.to(tl.uint32), stream.to(tl.uint32), 0
    for _ in tl.static_range(10):
        product0, product1 = c0.to(tl.uint64) * _M0, c2.to(tl.uint64) * _M1
        # The brackets let what is still the same for all ids be computed once.
        c0, c1 = (product1 >> 32).to(tl.uint32) ^ (c1 ^ k0), product1.to(tl.uint32)
        c2, c3 = (product0 >> 32).to(tl.uint32) ^ (c3 ^ k1), product0.to(tl.uint32)
        k0, k1 = k0 + _W0, k1 + _W1
    return c0, c1


@triton.jit
def larger(a, b):  # type: ignore[no-untyped-def]
    """The maximum, NaN if one is: a row with NaN must not go unseen."""
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def highest(floats):  # type: ignore[no-untyped-def]
    """The maximum of floats that are not NaN. Of integers in their order, because a warp finds the
    maximum of those in one instruction."""
    return float_of(tl.max(order_of(floats)))


@triton.jit
def order_of(floats):  # type: ignore[no-untyped-def]
    """Integers in the order of floats."""
    bits = floats.to(tl.int32, bitcast=True)
    return bits ^ ((bits >> 31) & 0x7FFFFFFF)


@triton.jit
def float_of(order):  # type: ignore[no-untyped-def]
    """The float that has this place in the order."""
    return (order ^ ((order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def announce(known_at, value):  # type: ignore[no-untyped-def]
    """Tell the other programs of the row what they must beat."""
    tl.atomic_max(known_at, order_of(value.to(tl.float32)), sem="relaxed")


@triton.jit
def offset_known(known_at, unsure):  # type: ignore[no-untyped-def]
    """`offset_of` the best value that any program has found in the row; +inf at the beginning."""
    order = tl.load(known_at, volatile=True)
    return tl.where(order == -2147483648, float("inf"), offset_of(float_of(order)) + unsure)


@triton.jit
def perturbed(logits, divisor, word0, word1):  # type: ignore[no-untyped-def]
    """The exact value: the division rounded to float32 as IEEE has it, the noise in float64."""
    number = (word0.to(tl.uint64) << 20) | (word1 >> 12).to(tl.uint64)
    u = (number.to(tl.float64) + 0.5) * 2.0**-52
    return tl.div_rn(logits, divisor).to(tl.float64) - tl.log(-tl.log(u))


@triton.jit
def offset_of(best):  # type: ignore[no-untyped-def]
    """What `scan` adds to a scaled logit to see whether it can still beat `best`.

    The maximum also stands in for the NaN that a best of NaN or +inf, which ends the row, would be.
    """
    b = best.to(tl.float32)
    return tl.maximum(32.0 - b * _LOG2E + _MARGIN * (tl.abs(b) + 64.0), -3.4e38)


@triton.jit(do_not_specialize=["stream"])  # type: ignore[untyped-decorator]
def scan(  # type: ignore[no-untyped-def]
    logits_at, stride, temperatures_at, seeds_at, positions_at, stream, vocabulary, part,
    known_at, found_at, ids_at, block: tl.constexpr,
):  # fmt: skip
    """The best value and token of one part of one row; NaN if it has one, -inf if it has nothing.

    A token can win only if x + g >= best, with x = logit / temperature. With v = ~word0, 1 - u is
    above v / 2**32, so g < -log(v / 2**32), and it can win only if

        v <= exp2(e)    with e = (x - best) log2(e) + 32

    `logit * rough + offset` is e in float32. The roundings of `rough` (by a division that is off by
    up to 2 units), of x itself, of the offset and of the sum put it off by at most
    2**-24 (20 |best| + 500), if x is so near to best that it can win at all (within 37); exp2 and
    the conversion of v add less than 2**-20. `_MARGIN` raises e by 2**-18 (|best| + 64), which is
    three times as much. A temperature whose inverse has not the full
    precision of float32 is `unsure`, and all its tokens are candidates.
    """
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    temperature, seed = tl.load(temperatures_at + row), tl.load(seeds_at + row)
    position = tl.load(positions_at + row)
    logits_at += row * stride
    greedy = temperature == 0.0
    divisor = tl.where(greedy, 1.0, temperature)
    ordinary = (divisor > 1e-30) & (divisor < 1e30)
    rough, unsure = tl.where(ordinary, _LOG2E / divisor, 0.0), tl.where(ordinary, 0.0, float("inf"))
    reach = tl.where(greedy, 32.0, 32.0 - 53.0)  # below it, no noise is large enough
    best, token = tl.full([], -float("inf"), tl.float64), tl.full([], -1, tl.int32)
    known_at += row
    offset = offset_known(known_at, unsure)
    begin, end = split * part, tl.minimum(split * part + part, vocabulary)
    ids = begin + tl.arange(0, block)
    following = tl.load(logits_at + ids, ids < end, -float("inf"))
    for start in range(begin, end, block):
        ids = start + tl.arange(0, block)
        logits = following.to(tl.float32)
        following = tl.load(logits_at + block + ids, ids + block < end, -float("inf"))
        # Four neighbours lie in one thread: looking at them together needs no other thread.
        tops = tl.reduce(tl.reshape(logits, [block // 4, 4]), 1, larger)
        chance = tl.where(tops == -float("inf"), tops, tops * rough + offset)
        chance = highest(tl.where(chance == chance, chance, float("inf")))
        if chance >= reach:
            top, noisy = tl.full([], 0.0, tl.float32), ~greedy
            if greedy | (chance == float("inf")):
                top = tl.reduce(tops, 0, larger)
                noisy &= top < float("inf")
            if ~noisy:  # no noise is wanted, or the row is bad
                if ~(top.to(tl.float64) <= best):
                    best = larger(best, top.to(tl.float64))  # NaN for good
                    token = tl.min(tl.where(logits == top, ids, _NO_TOKEN))
                    announce(known_at, best)
                    offset = offset_of(best) + unsure
            else:
                word0, _ = words(seed, position, ids, stream)
                # First the luckiest word with the highest logit, whosever they are: mostly that
                # already ends the block, without a number per token.
                lucky = (~tl.max(word0)).to(tl.float32)
                if ~(lucky > tl.exp2(chance)):
                    offset = tl.minimum(offset, offset_known(known_at, unsure))
                    v = (~word0).to(tl.float32)
                    lost = v > tl.exp2(logits * rough + offset)
                    if tl.min(lost.to(tl.int32)) == 0:
                        # The most promising one alone: its value nearly always ends the others.
                        promise = tl.where(lost, -float("inf"), logits * rough - tl.log2(v + 1.0))
                        one = start + tl.argmax(promise, 0)
                        logit = tl.load(logits_at + one, one < vocabulary, -float("inf"))
                        one0, one1 = words(seed, position, one, stream)
                        value = perturbed(logit.to(tl.float32), divisor, one0, one1)
                        if value > best:
                            best, token, offset = value, one, offset_of(value) + unsure
                            announce(known_at, value)
                        lost = (v > tl.exp2(logits * rough + offset)) | (ids == one)
                        if tl.min(lost.to(tl.int32)) == 0:
                            # The seed is read again, or the compiler would keep all words of all
                            # blocks in registers for this rare case.
                            again = tl.load(seeds_at + row, volatile=True)
                            word0, word1 = words(again, position, ids, stream)
                            every = perturbed(logits, divisor, word0, word1)
                            most = tl.max(every)
                            first = tl.min(tl.where(every == most, ids, _NO_TOKEN))
                            if most > best:
                                best, token, offset = most, first, offset_of(most) + unsure
                                tl.atomic_max(
                                    known_at, order_of(most.to(tl.float32)), sem="relaxed"
                                )
                            elif most == best:
                                token = tl.minimum(token, first)
    out = row * tl.num_programs(1) + split
    tl.store(found_at + out, best)
    tl.store(ids_at + out, token)


@triton.jit  # type: ignore[untyped-decorator]
def merge(  # type: ignore[no-untyped-def]
    found_at, ids_at, tokens_at, values_at, status_at, splits: tl.constexpr, width: tl.constexpr
):
    """One row's choice from those of its parts, the lowest id of equals."""
    row = tl.program_id(0).to(tl.int64)
    lane = tl.arange(0, width)
    at = row * splits + lane
    found = tl.load(found_at + at, lane < splits, -float("inf"))
    best = tl.reduce(found, 0, larger)
    token = tl.min(tl.where(found == best, tl.load(ids_at + at, lane < splits, -1), _NO_TOKEN))
    status = tl.where(best == float("inf"), _INFINITE, tl.where(best == -float("inf"), _EMPTY, 0))
    status = tl.where(best != best, _NAN, status)
    tl.store(tokens_at + row, tl.where(status == 0, token, -1).to(tl.int64))
    tl.store(values_at + row, tl.where(status == 0, best, float("nan")))
    tl.store(status_at + row, status.to(tl.uint8))
