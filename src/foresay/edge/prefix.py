"""The hash of a prefix: CRC-32 of the prompt's and the answer's ids, as little-endian int32.

It rolls: the hash of a longer prefix is computed from that of the shorter one and the new ids. A
draft names the position it starts at and the hash there, so the cloud knows a draft for another
text. It guards against mistakes, not against attackers: a wrong draft can only cost time.
"""

from __future__ import annotations

import zlib
from array import array

from foresay.arrays import Int32s, IntsLike, as_tokens
from foresay.draft import Draft
from foresay.drafters.external import hash_after
from foresay.errors import InputError

__all__ = ["Prefix", "hash_after", "hashes_along"]


def hashes_along(draft: Draft, before: int) -> list[int]:
    """For each node the hash of the prefix with the path down to that node; `before`: without."""
    data, parents = _bytes(draft.tokens), draft.parents.tolist()
    found: list[int] = []
    for at, parent in enumerate(parents):
        start = before if parent < 0 else found[parent]
        found.append(zlib.crc32(data[4 * at : 4 * at + 4], start))
    return found


class Prefix:
    """The hashes of one stream: at the end of the prompt, and after each token of the answer.

    start      tokens of the prompt: the first position that has a hash
    position   tokens so far

    `extend` mutates it; it keeps 4 bytes per token of the answer, and no ids. Raises:
    TokenTypeError, InputError when constructed.
    """

    def __init__(self, prompt: IntsLike) -> None:
        self.start = len(prompt)
        self._hashes = array("I", [hash_after(prompt)])

    @property
    def position(self) -> int:
        return self.start + len(self._hashes) - 1

    def extend(self, tokens: IntsLike) -> None:
        """Add committed tokens. Raises: TokenTypeError, InputError; then nothing was added."""
        data = _bytes(tokens)
        last = self._hashes[-1]
        for at in range(0, len(data), 4):
            last = zlib.crc32(data[at : at + 4], last)
            self._hashes.append(last)

    def at(self, position: int) -> int:
        """The hash there. Raises: InputError outside `start` … `position`."""
        if not self.start <= position <= self.position:
            raise InputError(
                f"position is {position}; expected one from {self.start}, the end of the prompt, "
                f"to {self.position}"
            )
        return self._hashes[position - self.start]

    def agrees(self, position: int, found: int) -> bool:
        """Whether the prefix has that hash there; False where it has none."""
        return self.start <= position <= self.position and self.at(position) == found


def _bytes(tokens: IntsLike) -> bytes:
    ids: Int32s = as_tokens(tokens)
    return ids.astype("<i4", copy=False).tobytes()
