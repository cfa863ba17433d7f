"""How much memory texts may hold: counted in pages of tokens.

On the CPU a text's keys and values lie in one piece, and pages only count; on a GPU they are the
memory's layout as well. Whoever holds pages is named by any hashable key, so that a check can say
who holds what.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from foresay.errors import InputError

__all__ = ["PAGE", "Pages", "pages_of"]

PAGE = 64
"""Tokens per page."""


class Pages:
    """A number of pages, and who holds how many of them.

    Mutates: only through `hold` and `release`. Valid until: for ever. Raises: InputError when
    constructed. GIL: held.
    """

    def __init__(self, total: int) -> None:
        if not isinstance(total, int) or total < 1:
            raise InputError(f"the number of pages is {total!r}; it is a whole number from 1")
        self.total = total
        self._held: dict[Hashable, int] = {}
        self._in_use = 0

    @property
    def in_use(self) -> int:
        return self._in_use

    @property
    def free(self) -> int:
        return self.total - self._in_use

    def hold(self, holder: Hashable, tokens: int) -> bool:
        """Let `holder` hold what `tokens` tokens need, no more and no less; False if there is not
        enough, and nothing has changed.

        Mutates: the count. Valid until: `release`. Raises: nothing. GIL: held.
        """
        pages, held = pages_of(tokens), self._held.get(holder, 0)
        if pages - held > self.free:
            return False
        self._held[holder] = pages
        self._in_use += pages - held
        return True

    def release(self, holder: Hashable) -> None:
        """Take back all that `holder` holds; nothing, if it holds none.

        Mutates: the count. Valid until: for ever. Raises: nothing. GIL: held.
        """
        self._in_use -= self._held.pop(holder, 0)

    def check_integrity(self, lengths: Mapping[Hashable, int]) -> None:
        """Check that exactly these holders hold pages, each enough for its length.

        Mutates: nothing. Valid until: the next call. Raises: RuntimeError that names the first
        broken promise. GIL: held.
        """
        if self._in_use != sum(self._held.values()) or not 0 <= self._in_use <= self.total:
            raise RuntimeError(f"{self._in_use} pages are counted, {self._held} are held")
        for holder in self._held.keys() ^ lengths.keys():
            verb = "holds pages and is not there" if holder in self._held else "holds no pages"
            raise RuntimeError(f"{holder!r} {verb}")
        for holder, length in lengths.items():
            if self._held[holder] < pages_of(length):
                raise RuntimeError(f"{holder!r} has {length} tokens in {self._held[holder]} pages")


def pages_of(tokens: int) -> int:
    """How many pages so many tokens need.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """
    return -(-tokens // PAGE)
