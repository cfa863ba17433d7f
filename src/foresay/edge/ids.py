"""Token ids packed into bytes: each in max(8, bits of the largest id) bits, lowest bit first.

The last byte is filled with zero bits, fewer than 8 of them. No id has fewer than 8 bits, so the
number of bytes says how many ids there are. This module knows only numpy.
"""

from __future__ import annotations

import numpy as np

from foresay.arrays import MAX_TOKEN, Int32s, IntsLike, as_tokens
from foresay.errors import InputError

__all__ = ["MAX_VOCABULARY", "bits_of", "count_of", "pack", "unpack"]

MAX_VOCABULARY = MAX_TOKEN + 1


def bits_of(vocabulary: int) -> int:
    """The bits of one id. Raises: InputError for a vocabulary that cannot be."""
    if type(vocabulary) is not int or not 1 <= vocabulary <= MAX_VOCABULARY:
        raise InputError(
            f"vocabulary is {vocabulary!r:.100}; expected a whole number from 1 to {MAX_VOCABULARY}"
        )
    return max(8, (vocabulary - 1).bit_length())


def pack(tokens: IntsLike, vocabulary: int, name: str = "tokens") -> bytes:
    """The ids as bytes. Raises: InputError for an id outside the vocabulary, TokenTypeError."""
    bits, ids = bits_of(vocabulary), as_tokens(tokens, name)
    _check_ids(ids, vocabulary, name)
    rows = np.unpackbits(ids.astype("<i4", copy=False).view(np.uint8), bitorder="little")
    return np.packbits(rows.reshape(-1, 32)[:, :bits], bitorder="little").tobytes()


def count_of(packed: bytes, vocabulary: int) -> int:
    """How many ids those bytes hold.

    Raises: InputError for a number of bytes that no number of ids has.
    """
    bits = bits_of(vocabulary)
    count, left = divmod(8 * len(packed), bits)
    if left >= 8:
        raise InputError(
            f"packed ids have {len(packed)} bytes; expected {(count * bits + 7) // 8} for {count} "
            f"ids of {bits} bits, or {((count + 1) * bits + 7) // 8} for {count + 1}"
        )
    return count


def unpack(packed: bytes, vocabulary: int) -> Int32s:
    """The ids in those bytes.

    Raises: InputError for an id outside the vocabulary, a wrong number of bytes, and for bits after
    the last id that are not zero.
    """
    count, bits = count_of(packed, vocabulary), bits_of(vocabulary)
    used = count * bits
    if len(packed) and packed[-1] >> (8 - (8 * len(packed) - used)):
        raise InputError(
            f"packed ids end with the byte {packed[-1]:#04x}; expected its last "
            f"{8 * len(packed) - used} bits to be zero, after {count} ids of {bits} bits"
        )
    rows = np.zeros((count, 32), np.uint8)
    flat = np.unpackbits(np.frombuffer(packed, np.uint8), count=used, bitorder="little")
    rows[:, :bits] = flat.reshape(count, bits)
    ids = np.packbits(rows, bitorder="little").view("<i4").astype(np.int32, copy=False)
    _check_ids(ids, vocabulary)
    return ids


def _check_ids(ids: Int32s, vocabulary: int, name: str = "tokens") -> None:
    if len(ids) and int(ids.max()) >= vocabulary:
        at = int(np.argmax(ids >= vocabulary))
        raise InputError(
            f"{name}[{at}] is {ids[at]}; expected a token id below {vocabulary}, the vocabulary"
        )
