"""How much memory texts may hold: counted in pages of tokens.

On the CPU the KV cache of a text is one piece, and pages only count; on a GPU they are the memory's
layout as well. A holder of pages is any hashable key, so that a check can name it.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping

from foresay.errors import InputError

__all__ = ["PAGE", "Pages", "pages_of"]

PAGE = 64
"""Tokens per page."""


class Pages:
    """A number of pages, and how many each holder has.

    Raises: InputError when constructed.
    """

    def __init__(self, total: int) -> None:
        if not isinstance(total, int) or total < 1:
            raise InputError(f"the number of pages is {total!r}; expected a whole number from 1")
        self.total = total
        self._held: dict[Hashable, int] = {}
        # None while `_held` changes: an interrupt may come between any two operations.
        self._counted: int | None = 0

    @classmethod
    def within(cls, memory: int, bytes_per_token: int) -> Pages:
        """As many as so many bytes hold.

        Raises: InputError for less than one.
        """
        least = PAGE * bytes_per_token
        if memory < least:
            raise InputError(
                f"memory is {memory} bytes; expected at least {least}, for the smallest text of "
                f"{PAGE} tokens"
            )
        return cls(memory // bytes_per_token // PAGE)

    @property
    def in_use(self) -> int:
        if self._counted is None:
            self._counted = sum(self._held.values())
        return self._counted

    @property
    def free(self) -> int:
        return self.total - self.in_use

    def hold(self, holder: Hashable, tokens: int) -> bool:
        """Let `holder` hold exactly what `tokens` tokens need; False if there is not enough, and
        nothing has changed.
        """
        pages, held = pages_of(tokens), self._held.get(holder, 0)
        if pages == held and held:
            return True
        in_use = self.in_use + pages - held
        if pages > held and in_use > self.total:
            return False
        self._counted = None
        self._held[holder] = pages
        self._counted = in_use
        return True

    def release(self, holder: Hashable) -> None:
        """Take back all pages of `holder`, if it has any."""
        in_use = self.in_use - self._held.get(holder, 0)
        self._counted = None
        self._held.pop(holder, None)
        self._counted = in_use

    def release_all_but(self, holders: Collection[Hashable]) -> None:
        """Take back the pages of all other holders."""
        for holder in self._held.keys() - holders:
            self.release(holder)

    def held(self, holder: Hashable) -> int:
        """How many pages `holder` holds."""
        return self._held.get(holder, 0)

    @property
    def held_by(self) -> Mapping[Hashable, int]:
        """The pages of all holders, for who asks of many. Valid until: the next change."""
        return self._held

    def holds(self, holder: Hashable) -> bool:
        """Whether `holder` holds pages.

        Valid until: the next call.
        """
        return holder in self._held

    def check_integrity(self, lengths: Mapping[Hashable, int]) -> None:
        """Check that exactly these holders hold pages, each enough for its length.

        Valid until: the next call. Raises: RuntimeError that names the first violation.
        """
        if self.in_use != sum(self._held.values()) or not 0 <= self.in_use <= self.total:
            raise RuntimeError(f"{self.in_use} pages are counted, {self._held} are held")
        for holder in self._held.keys() ^ lengths.keys():
            verb = "holds pages and is not known" if holder in self._held else "holds no pages"
            raise RuntimeError(f"{holder!r} {verb}")
        for holder, length in lengths.items():
            if self._held[holder] < pages_of(length):
                raise RuntimeError(f"{holder!r} has {length} tokens in {self._held[holder]} pages")


def pages_of(tokens: int) -> int:
    """How many pages these tokens need."""
    return -(-tokens // PAGE)
