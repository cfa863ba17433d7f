"""What is sent next: how many tokens, cut where, and whether the gate says to wait.

Nothing here changes what is committed; it decides when drafts travel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay.edge.drafting import Part
from foresay.edge.gating import Decode, Gate, read_tokens
from foresay.edge.link import EdgeK
from foresay.edge.text import EdgeText
from foresay.sampling.signals import Signals, nll_of_scores

__all__ = ["CONTEXT", "Marks", "Sending"]

CONTEXT = 32
"""Tokens before a draft that a rule of the gate sees."""


class Marks:
    """Which tokens in flight are hard, by position; what is committed is forgotten."""

    def __init__(self) -> None:
        self._hard: dict[int, bool] = {}

    def note(self, position: int, hard: Sequence[bool]) -> None:
        self._hard.update((position + at, bool(mark)) for at, mark in enumerate(hard))

    def between(self, start: int, end: int) -> list[bool]:
        self._hard = {at: mark for at, mark in self._hard.items() if at >= start}
        return [self._hard.get(at, False) for at in range(start, end)]


class Sending:
    """How much of a draft is sent now.

    rule     how many tokens one message has; with a `window()` also how many may be in flight
    tree     where nothing is in flight, a whole tree is sent
    ahead    False: one draft is in flight, and the next one follows its verdict
    gate     ends messages at hard tokens, and waits where too many are hard; None: no gate
    decode   for the gate's rules, which read text; None: only its signals are used

    `cut` mutates the marks; all else is read.
    """

    def __init__(
        self,
        rule: EdgeK,
        *,
        ahead: bool = True,
        tree: bool = False,
        gate: Gate | None = None,
        decode: Decode | None = None,
    ) -> None:
        self.rule = rule
        self.ahead = ahead
        self.tree = tree
        self.gate = gate
        self._decode = decode
        self._marks = Marks()
        self.credit = 0
        """Tokens that the cloud allows in flight."""
        self.nodes = 0
        """Tokens that the cloud allows in one draft."""

    @property
    def k(self) -> int:
        """Tokens of the next message, at most."""
        return max(0, min(self.rule.next_k(), self.nodes, self.credit))

    @property
    def window(self) -> int:
        """Tokens that may be in flight."""
        asked = getattr(self.rule, "window", None)
        return min(self.credit, int(asked())) if asked is not None else self.credit

    def room(self, text: EdgeText) -> int:
        """How many tokens may be sent now; 0: wait for a verdict.

        With drafts in flight, half of k is the least: a message has a header too.
        """
        k, flying = self.k, text.in_flight
        if not flying:
            return k
        if not self.ahead:
            return 0
        left = self.window - flying
        return min(k, left) if left >= max(1, k // 2) else 0

    def cut(self, part: Part, text: EdgeText, room: int) -> Part | None:
        """What of a part is sent now, at most `room` tokens; None: wait for a verdict."""
        part = part.first(room)
        if not len(part):
            return None
        chain = part.draft.parents.tolist() == list(range(-1, len(part) - 1))
        if self.gate is None or not chain:
            return part
        head = text.head
        flying = self._marks.between(text.confirmed, head)
        k, window = max(1, self.k), max(1, self.window)
        if flying and not self.gate.decide(flying, sent=len(flying), k=k, window=window).ahead:
            return None
        new = self._hard(part, text)
        for count in range(1, len(part) + 1):  # as if it were drafted token by token
            found = self.gate.decide(
                [*flying, *new[:count]],
                sent=len(flying),
                k=k,
                window=window,
                done=count == len(part),
            )
            if found.send:
                self._marks.note(head, new[: found.send])
                return replace(part.first(found.send), hard=sum(new[: found.send]))
        return None

    def _hard(self, part: Part, text: EdgeText) -> list[bool]:
        assert self.gate is not None
        signals = part.signals
        if signals is None and part.draft.scores is not None:
            falling = np.minimum.accumulate(np.clip(part.draft.scores, 0, 1))
            signals = Signals(nll=nll_of_scores(falling))
        given: dict[str, Any] = {}
        if self._decode is not None and self.gate.rules is not None:
            given = self._read(part, text)
        if signals is None and not given:
            return [False] * len(part)
        marks: NDArray[np.bool_] = self.gate.hard(signals, **given)
        return [bool(mark) for mark in marks]

    def _read(self, part: Part, text: EdgeText) -> dict[str, Any]:
        """The draft as text behind the tokens before it, for the rules."""
        assert self._decode is not None
        before = [*text.prompt.tolist(), *text.tokens[: text.confirmed - text.start], *text.ahead()]
        before = before[-CONTEXT:]
        whole, offsets = read_tokens(self._decode, before, part.draft.tokens.tolist())
        return {"text": whole, "offsets": offsets, "tokens": part.draft.tokens}
