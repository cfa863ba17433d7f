"""The keyed noise: which random number belongs to which request, position and token.

A token is the argmax of its processed logits plus Gumbel noise. The noise has no state: it is a
pure function of (seed, position, token id, stream), computed by a counter-based generator. So it is
the same in any order and however often it is computed, and the text does not depend on drafts,
batches or preemption.

    key      the 64-bit seed, low word first
    counter  (position, token id, stream, 0)
    words    Philox 4x32-10 of the two; the first two words are used
    uniform  u = (r + 1/2) / 2**52 with r = word0 * 2**20 + word1 // 2**12
    Gumbel   g = -log(-log(u)) in float64, between -3.604 and 36.737

52 bits, because the largest 53-bit uniform would round to 1 and its noise to infinity. This module
is the specification and the slow, readable twin of `csrc/sampling/noise.cpp` and of
`acceptance/noise.py` and `acceptance/triton.py`, which have the same uniforms bit for bit.

Mutates: nothing. Valid until: for ever. Raises: InputError for a seed, position or token that does
not fit its counter. GIL: held.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.errors import InputError

__all__ = [
    "MAX_GUMBEL",
    "SPEC",
    "Doubles",
    "Stream",
    "gumbel",
    "new_seed",
    "philox",
    "seed_of_sample",
    "uniform",
]

Doubles: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = int | Sequence[int] | NDArray[Any]
Words: TypeAlias = NDArray[np.uint32]

SPEC = "philox4x32-10/gumbel-52/1"
"""Names this noise; a change of any line of the table above is a new name."""

MAX_GUMBEL = 36.74
"""No noise is larger: a token this far below the best perturbed one can never win."""

_MULTIPLIERS = (np.uint64(0xD2511F53), np.uint64(0xCD9E8D57))
_WEYL = (np.uint64(0x9E3779B9), np.uint64(0xBB67AE85))
_LOW, _HALF = np.uint64(0xFFFFFFFF), np.uint64(32)


class Stream(IntEnum):
    """What the noise is for. Two purposes never share a number: they must be independent."""

    TARGET = 0
    """The target's own sample, and that of a drafter that is coupled to it."""
    ACCEPT = 1
    """The coin of rule `rejection`; the number of the attempt stands in for the token id."""
    RESIDUAL = 2
    """The token of rule `rejection` where no draft was accepted."""
    SEED = 3
    """The seeds of a request's further samples."""
    DRAFT = 16
    """This and all above: drafters that sample for rule `rejection`; sibling i uses DRAFT + i. A
    position that is drafted again gets the same noise again, which is sound as long as no node
    depends on deeper ones."""


def philox(counter: Words, key: Words) -> Words:
    """Philox 4x32-10: four random words for four counter words and two key words, [..., 4]."""
    c0, c1, c2, c3 = (counter[..., i].astype(np.uint64) for i in range(4))
    k0, k1 = (key[..., i].astype(np.uint64) for i in range(2))
    for _ in range(10):
        product0, product1 = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (product1 >> _HALF) ^ c1 ^ k0, product1 & _LOW
        c2, c3 = (product0 >> _HALF) ^ c3 ^ k1, product0 & _LOW
        k0, k1 = (k0 + _WEYL[0]) & _LOW, (k1 + _WEYL[1]) & _LOW
    return np.stack([c0, c1, c2, c3], axis=-1).astype(np.uint32)


def uniform(seed: Ints, position: Ints, token: Ints, stream: int = Stream.TARGET) -> Doubles:
    """The uniform in (0, 1) of each token id; the first three arguments are broadcast."""
    whose = _whole("seed", seed, 1 << 64)
    where, what = _whole("position", position, 1 << 32), _whole("token id", token, 1 << 31)
    counter = np.zeros((*np.broadcast_shapes(whose.shape, where.shape, what.shape), 4), np.uint32)
    counter[..., 0], counter[..., 1] = where, what
    counter[..., 2] = _whole("stream", stream, 1 << 32)
    words = philox(counter, _key(whose)).astype(np.uint64)
    r = (words[..., 0] << np.uint64(20)) | (words[..., 1] >> np.uint64(12))
    result: Doubles = (r.astype(np.float64) + 0.5) * 2.0**-52
    return result


def gumbel(seed: Ints, position: Ints, token: Ints, stream: int = Stream.TARGET) -> Doubles:
    """The standard Gumbel noise of each token id."""
    result: Doubles = -np.log(-np.log(uniform(seed, position, token, stream)))
    return result


def seed_of_sample(seed: int, sample: int) -> int:
    """The seed of a request's sample: its own for sample 0, independent ones for the others."""
    if sample == 0:
        return seed
    counter = np.array([_whole("sample", sample, 1 << 32), 0, Stream.SEED, 0], np.uint32)
    words = philox(counter, _key(_whole("seed", seed, 1 << 64)))
    return int(words[0]) | int(words[1]) << 32


def new_seed() -> int:
    """64 random bits, for a request that brings no seed."""
    return secrets.randbits(64)


def _key(seed: NDArray[np.uint64]) -> Words:
    return np.stack([seed & _LOW, seed >> _HALF], axis=-1).astype(np.uint32)


def _whole(name: str, value: Ints, end: int) -> NDArray[np.uint64]:
    """The value as words, if it is a whole number (or several) from 0 to end - 1."""
    array = np.asarray(value)
    fits = array.size == 0 or (
        array.dtype.kind in "iu" and int(array.min()) >= 0 and int(array.max()) < end
    )
    if not fits:
        raise InputError(
            f"{name} {value} is not valid; expected a whole number from 0 to {end - 1}"
        )
    return array.astype(np.uint64)
