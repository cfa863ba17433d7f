"""Match the rows of vLLM's batch to the texts of earlier steps.

vLLM gives no request ids: rows are condensed, swapped, preempted and resumed. So a text has a key:
its length, and its tokens at places further and further back from its end. A row whose text
*before* this step's tokens has the key of a known text continues it. Equal texts have equal keys,
and it does not matter which of them is taken. If two different texts have the same key, one drafts
from the other's tokens: a worse draft, nothing else.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from foresay._core import read_rows

__all__ = ["Rows", "Texts"]

Text = TypeVar("Text")
Int64s = NDArray[np.int64]


class Rows:
    """The rows that got tokens in a step, in their order.

    numbers  their places in the batch
    lengths  of their texts, with the new tokens
    tokens   the new tokens of all rows, and
    offsets  where each row's begin in there
    before   a key of each text without the new tokens, and
    after    with them

    Raises: InputError for a row outside the batch, longer than the array or shorter than its new
    tokens; TypeError for arrays of another dtype.
    """

    __slots__ = ("after", "before", "lengths", "numbers", "offsets", "tokens")

    def __init__(
        self, sampled: list[list[int]], num_tokens: NDArray[Any], token_ids: NDArray[np.int32]
    ) -> None:
        lengths = np.ascontiguousarray(num_tokens, np.int32)
        self.numbers, self.lengths, self.tokens, self.offsets, self.before, self.after = read_rows(
            sampled, lengths, token_ids
        )

    def __len__(self) -> int:
        return len(self.numbers)


class Texts(Generic[Text]):
    """Known texts by their keys; a text that is not claimed for `grace` steps is finished."""

    def __init__(self, grace: int) -> None:
        self._grace = grace
        self._step = 0
        self._keys: Int64s = np.empty(0, np.int64)
        self._present: list[Text] = []  # in the last step, in the order of the keys
        self._absent: dict[int, list[tuple[int, Text]]] = {}  # since when; the longest absent first
        self._missed: deque[tuple[int, int]] = deque()  # since when, and by which key
        self.returned = 0  # texts that were claimed after they had been absent
        self.unmoved = False  # whether the last claim found each text where it was

    def __len__(self) -> int:
        return len(self._present) + sum(map(len, self._absent.values()))

    def claim(self, keys: Int64s) -> list[Text | None]:
        """Take the text of each key; None where there is none.

        Mutates: the known texts; those of the last step that are not claimed count as absent.
        """
        self._step += 1
        texts: list[Text | None] = list(self._present)
        self.unmoved = len(keys) == len(texts) and bool((keys == self._keys).all())
        if not self.unmoved:
            texts = self._search(keys.tolist())
        self._present = []
        return texts

    def _search(self, keys: list[int]) -> list[Text | None]:
        known: dict[int, list[Text]] = {}
        for key, text in zip(self._keys.tolist(), self._present, strict=True):
            known.setdefault(key, []).append(text)
        found: list[Text | None] = []
        for key in keys:
            texts = known.get(key)
            found.append(texts.pop() if texts else self._return(key))
        for key, texts in known.items():
            for text in texts:
                self._absent.setdefault(key, []).append((self._step, text))
                self._missed.append((self._step, key))
        return found

    def _return(self, key: int) -> Text | None:
        waiting = self._absent.get(key)
        if not waiting:
            return None
        self.returned += 1
        text = waiting.pop()[1]
        if not waiting:
            del self._absent[key]
        return text

    def store(self, keys: Int64s, texts: Sequence[Text]) -> list[Text]:
        """Store the texts under these keys; returns the texts that are finished.

        Valid until: the next `claim`.
        """
        self._keys, self._present = keys, list(texts)
        return self._over(self._step - self._grace)

    def end_absent(self) -> list[Text]:
        """The texts that were not in the last step, which are finished with this."""
        return self._over(self._step)

    def _over(self, last: int) -> list[Text]:
        """Take the texts that have been absent since step `last`, or for longer."""
        over: list[Text] = []
        while self._missed and self._missed[0][0] <= last:
            since, key = self._missed.popleft()
            waiting = self._absent.get(key)
            if waiting and waiting[0][0] <= since:
                over.append(waiting.pop(0)[1])
                if not waiting:
                    del self._absent[key]
        return over
