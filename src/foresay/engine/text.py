"""Tokens to text while they come, and the stop strings that end an answer.

A character may need several tokens, and how a token reads may depend on the one before it. So each
new token is decoded together with a few before it, and what is still incomplete waits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["IncrementalDetokenizer"]

Decode = Callable[[Sequence[int]], str]
_INCOMPLETE = "\ufffd"
_LONGEST_CHARACTER = 4  # tokens, if each is a byte: what is incomplete after them stays so


class IncrementalDetokenizer:
    """The text of one answer, token by token, up to the first stop string.

    decode  token ids to text
    stops   stop strings; the first to be complete ends the answer, and is not part of the text
    least   a stop string that is complete within this number of tokens ends nothing

    Raises: what `decode` raises.
    """

    def __init__(self, decode: Decode, stops: Sequence[str] = (), least: int = 0) -> None:
        self._decode = decode
        self._stops = tuple(stops)
        self._longest = max(map(len, self._stops), default=0)
        self._tokens: list[int] = []
        self._from = 0  # tokens before this one are not decoded any more
        self._read = 0  # tokens before this one are in the text
        self._least = least  # tokens that are still to come before a stop counts
        self._free = 0  # characters of those tokens: a stop string within them ends nothing
        self._taken = 0  # characters that `take` has given out
        self.text = ""
        self.stopped: str | None = None

    def follow(self, prompt: Sequence[int]) -> None:
        """Decode the first token as one after the prompt: many tokenizers leave out the space
        before a text's first word. To be called before any token is added, or not at all.

        Raises: what `decode` raises.
        """
        tail = list(prompt[-_LONGEST_CHARACTER:])
        if not self._decode(tail).endswith(_INCOMPLETE):  # else it begins inside a character
            self._tokens, self._read = tail, len(tail)

    def add(self, token: int) -> bool:
        """Append a token; whether the text now ends, because a stop string is complete.

        Mutates: the text, which loses the stop string and all after it. Valid until: the next
        call. Raises: what `decode` raises.
        """
        self._tokens.append(token)
        before = self._decode(self._tokens[self._from : self._read])
        after = self._decode(self._tokens[self._from :])
        new = after[len(before) :]
        waits = len(self._tokens) - self._read <= _LONGEST_CHARACTER and after.endswith(_INCOMPLETE)
        if self._least:
            self._least -= 1
            self._free = len(self.text) + len(new.rstrip(_INCOMPLETE) if waits else new)
        if waits and not self._hits(new):  # a stop ends the text, whatever is behind it
            return False
        return bool(new) and self._extend(new)

    def finish(self) -> None:
        """Add what was incomplete until now: no more tokens come.

        Raises: what `decode` raises.
        """
        if self.stopped is None:
            before = self._decode(self._tokens[self._from : self._read])
            self._extend(self._decode(self._tokens[self._from :])[len(before) :])

    def take(self, *, ended: bool = False) -> str:
        """The text since the last call that no stop string can take back; all, once it `ended`."""
        end = len(self.text) if ended or self.stopped is not None else self._certain()
        new = self.text[self._taken : end]
        self._taken = max(self._taken, end)
        return new

    def _hits(self, new: str) -> list[tuple[int, int, str]]:
        """The stop strings that `new` completes: end, begin and the string of each."""
        known, skipped = max(len(self.text), self._free), max(len(self.text) - self._longest + 1, 0)
        tail, found = self.text[skipped:] + new, []
        for stop in self._stops:
            if (at := tail.find(stop, max(known - len(stop) + 1 - skipped, 0))) >= 0:
                found.append((skipped + at + len(stop), skipped + at, stop))
        return found

    def _extend(self, new: str) -> bool:
        found = self._hits(new)
        self.text += new
        self._from, self._read = self._read, len(self._tokens)
        if not found:
            return False
        # The one that was complete first; of several that end together, the longest.
        _, at, self.stopped = min(found)
        self.text = self.text[:at]
        return True

    def _certain(self) -> int:
        """Where the longest end of the text begins that may become a stop string."""
        for begin in range(max(len(self.text) - self._longest + 1, 0), len(self.text)):
            if any(stop.startswith(self.text[begin:]) for stop in self._stops):
                return begin
        return len(self.text)
