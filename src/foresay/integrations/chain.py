"""One text after the other, for hosts that only show a text as it is now and want to know how it
goes on.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from foresay.arrays import Int32s
from foresay.draft import Verdict
from foresay.drafter import Drafter

__all__ = ["Chain"]


class Chain:
    """A drafter behind a text that is seen again and again, each time longer; a text that does not
    continue the last one is a new request.

    Mutates: the drafter, by `after`. Valid until: for ever. Raises: see `after`. GIL: as the
    drafter.
    """

    def __init__(self, drafter: Drafter[Any]) -> None:
        self._drafter = drafter
        self._state: Any = None
        self._text: Int32s = np.empty(0, np.int32)
        self._guess: Int32s = np.empty(0, np.int32)

    def after(self, text: Int32s, most: int) -> Int32s:
        """A guess of at most so many tokens.

        Mutates: the drafter observes what is new in the text. Valid until: for ever. Raises: as the
        drafter. GIL: as the drafter.
        """
        if self._state is None or not self._continues(text):
            if self._state is not None:
                self._drafter.finish(self._state)
            self._state = self._drafter.begin(text)
        elif len(text) > len(self._text):
            new = text[len(self._text) :]
            self._drafter.observe([self._state], [Verdict(self._path(new), new)])
        self._text = text.copy()
        (draft,) = self._drafter.propose([self._state], [most])
        # Of a tree its first path; of a chain that is all of it.
        branches = np.flatnonzero(draft.parents != np.arange(-1, len(draft) - 1))
        self._guess = draft.tokens[: branches[0] if len(branches) else len(draft)]
        return self._guess

    def _continues(self, text: Int32s) -> bool:
        return np.array_equal(text[: len(self._text)], self._text)

    def _path(self, new: Int32s) -> Int32s:
        """The guesses that were right, of those before the host's own last token."""
        size = min(len(self._guess), len(new) - 1)
        wrong = np.flatnonzero(self._guess[:size] != new[:size])
        return np.arange(wrong[0] if len(wrong) else size, dtype=np.int32)
