"""What is written before the form of an answer begins: reasoning, up to `StructuredOutputs.after`.

Until that text has been written nothing is masked. It may end inside a token: then the rest of the
token has to be a legal beginning of the form, and such a token is masked if it is not.

A rule with `[lazy]` says the same inside a grammar. It serves where a form may begin at once or
behind reasoning, which no lead can tell; but it needs a mask for every token of the reasoning, and
cannot stand before a grammar of a user's own. So there are both.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable

__all__ = ["Lead"]


class Lead:
    """The text that the form begins behind.

    text    UTF-8
    tokens  the bytes of each token of the vocabulary, in the order of their ids
    """

    def __init__(self, text: bytes, tokens: Iterable[bytes]) -> None:
        self.text = text
        # By how many bytes of the text a token has to supply: those that have more bytes than that.
        self._beyond: dict[int, list[int]] = defaultdict(list)
        ends = [(missing, text[-missing:]) for missing in range(1, len(text))]
        firsts = frozenset(text)
        for token, given in enumerate(tokens):
            if not given or (given[0] not in firsts and text not in given):
                continue
            for missing, end in ends:
                if len(given) > missing and given.startswith(end):
                    self._beyond[missing].append(token)
            at = given.find(text)
            if at >= 0 and at + len(text) < len(given):
                self._beyond[len(text)].append(token)

    def after(self, tail: bytes, token: bytes) -> tuple[bytes, bytes | None]:
        """What is to be remembered of the text when a token was added to its `tail`, and the bytes
        behind the lead: None if it has not ended."""
        whole = tail + token
        at = whole.find(self.text)
        if at >= 0:
            return b"", whole[at + len(self.text) :]
        for size in range(min(len(self.text) - 1, len(whole)), 0, -1):
            if whole.endswith(self.text[:size]):
                return whole[-size:], None
        return b"", None

    def ending(self, tail: bytes) -> list[int]:
        """The tokens that would end the lead, and have bytes behind it."""
        found: set[int] = set()
        for missing, tokens in self._beyond.items():
            if tail.endswith(self.text[: len(self.text) - missing]):
                found.update(tokens)
        return sorted(found)
