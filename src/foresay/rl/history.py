"""What was sampled for each prompt with the last few versions of the weights.

Only tokens are kept, 4 bytes each. When a prompt is sampled again, its group drafts from them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from foresay.arrays import Int32s, IntsLike, as_tokens, check_positive
from foresay.errors import InputError

__all__ = ["PromptHistory"]

_OVERHEAD = 200  # bytes of a record beside its tokens


class _Record(NamedTuple):
    """The answers to a prompt of one rollout."""

    prompt: bytes
    version: int
    answers: tuple[Int32s, ...]

    @property
    def bytes(self) -> int:
        return _OVERHEAD + len(self.prompt) + sum(answer.nbytes for answer in self.answers)


class PromptHistory:
    """Answers by prompt, of the last versions of the weights, bounded in bytes.

    versions  how many versions before the present one are kept
    limit     bytes; beyond it the oldest answers are dropped

    Raises: InputError when constructed.
    """

    def __init__(self, versions: int, limit: int) -> None:
        if type(versions) is not int or versions < 0:
            raise InputError(f"versions is {versions!r}; expected a whole number from 0")
        check_positive(limit, "limit")
        self._versions = versions
        self._limit = limit
        self._version = 0
        self._bytes = 0
        self._records: deque[_Record] = deque()  # oldest first
        self._of: dict[bytes, list[_Record]] = {}  # likewise

    def __len__(self) -> int:
        """Prompts of which answers are kept."""
        return len(self._of)

    @property
    def bytes_used(self) -> int:
        return self._bytes

    def of(self, prompt: IntsLike) -> list[Int32s]:
        """The answers to a prompt, the oldest first."""
        records = self._of.get(as_tokens(prompt, "prompt").tobytes(), ())
        return [answer for record in records for answer in record.answers]

    def add(self, prompt: IntsLike, answers: Sequence[IntsLike]) -> None:
        """Keep the answers to a prompt, sampled with the present version.

        Beyond the limit the oldest go. Raises: TokenTypeError, InputError.
        """
        if not self._versions:
            return
        # Copies, since a view would keep alive what it is a view of.
        kept = tuple(np.array(as_tokens(answer, "answer"), np.int32) for answer in answers)
        record = _Record(as_tokens(prompt, "prompt").tobytes(), self._version, kept)
        if not kept or record.bytes > self._limit:
            return
        self._records.append(record)
        self._of.setdefault(record.prompt, []).append(record)
        self._bytes += record.bytes
        while self._bytes > self._limit:
            self._drop_oldest()

    def new_version(self) -> None:
        """The weights were replaced: answers of versions that are too old are dropped."""
        self._version += 1
        while self._records and self._version - self._records[0].version > self._versions:
            self._drop_oldest()

    def latest(self, prompt: IntsLike, tokens: int) -> list[Int32s]:
        """The latest answers to a prompt that together have at most `tokens`, the oldest
        first.
        """
        found: list[Int32s] = []
        for answer in reversed(self.of(prompt)):
            tokens -= len(answer)
            if tokens < 0:
                break
            found.append(answer)
        return found[::-1]

    def _drop_oldest(self) -> None:
        record = self._records.popleft()
        of_prompt = self._of[record.prompt]
        of_prompt.pop(0)  # records of a prompt stand in the order of all
        if not of_prompt:
            del self._of[record.prompt]
        self._bytes -= record.bytes
