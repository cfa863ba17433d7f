"""The answers of one chat request as deltas: all APIs are made of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from foresay.engine.answers import Chunk
from foresay.serve.chat.calls import CallReader
from foresay.serve.chat.deltas import Call, Content, Delta, Reasoning
from foresay.serve.chat.formats import ToolFormat
from foresay.serve.chat.reasoning import Begin, Markers, ReasoningReader

__all__ = ["ChatAnswers", "ChatForm", "Said", "gathered"]


@dataclass(frozen=True, slots=True)
class ChatForm:
    """What the text of an answer may hold beside content.

    format   how calls of tools are written; None: none are made
    names    of the tools that may be called
    must     whether the answer has to be calls
    markers  around the reasoning; None: there is none
    begin    how the answer begins, see `begin_of`
    kept     control tokens that are part of the text, for the sake of these
    """

    format: ToolFormat | None = None
    names: frozenset[str] = frozenset()
    must: bool = False
    markers: Markers | None = None
    begin: Begin = "none"
    kept: frozenset[int] = frozenset()


@dataclass(slots=True)
class Said:
    """A whole answer. `calls` are its calls, and the text of each one's arguments."""

    reasoning: str
    content: str
    calls: list[tuple[Call, str]]


class ChatAnswers:
    """Reads the chunks of the answers to one request."""

    def __init__(self, form: ChatForm, answers: int) -> None:
        self._readers = [_Reader(form) for _ in range(answers)]

    def read(self, chunk: Chunk) -> list[Delta]:
        """What a chunk adds to its answer, in order."""
        return self._readers[chunk.index].read(chunk)

    def finish_reason(self, chunk: Chunk) -> Literal["stop", "length", "tool_calls"] | None:
        """Why the answer has ended, for an answer that has not failed; to be asked after `read`."""
        reason = chunk.finish_reason
        if reason == "stop" and self._readers[chunk.index].called:
            return "tool_calls"
        return reason if reason in ("stop", "length") else None

    @property
    def reasoning_tokens(self) -> int:
        """Tokens of reasoning so far, its markers among them."""
        return sum(reader.reasoning_tokens for reader in self._readers)


class _Reader:
    """Of one answer."""

    def __init__(self, form: ChatForm) -> None:
        self._reasoning = ReasoningReader(form.markers, form.begin)
        self._calls = None
        if form.format is not None:
            self._calls = CallReader(form.format, form.names, must=form.must)
        # The same text once more, token by token: where the reasoning ends, to count its tokens.
        self._counter = ReasoningReader(form.markers, form.begin)
        self._undecided = 0
        self.reasoning_tokens = 0

    @property
    def called(self) -> bool:
        """Whether there are calls, and no stop string has cut off the last one."""
        return self._calls is not None and self._calls.calls > 0 and not self._calls.within

    def read(self, chunk: Chunk) -> list[Delta]:
        ended = chunk.finish_reason is not None
        for word in chunk.words or ():
            self._count(word)
        found: list[Delta] = []
        for delta in self._reasoning.read(chunk.text, ended=ended):
            if isinstance(delta, Content) and self._calls is not None:
                found += self._calls.read(delta.text)
            else:
                found.append(delta)
        if ended and self._calls is not None:
            found += self._calls.read("", ended=True)
        return found

    def _count(self, word: str) -> None:
        before = self._counter.reasoning
        undecided = self._counter.undecided
        self._counter.read(word)
        if before or self._counter.reasoning:
            self.reasoning_tokens += 1 + self._undecided
            self._undecided = 0
        elif undecided:
            self._undecided += 1


def gathered(deltas: Iterable[Delta]) -> Said:
    """A whole answer from its deltas."""
    reasoning, content = list[str](), list[str]()
    calls: list[Call] = []
    arguments: list[list[str]] = []
    for delta in deltas:
        if isinstance(delta, Reasoning):
            reasoning.append(delta.text)
        elif isinstance(delta, Content):
            content.append(delta.text)
        elif isinstance(delta, Call):
            calls.append(delta)
            arguments.append([])
        else:
            arguments[delta.index].append(delta.text)
    texts: Sequence[str] = ["".join(parts) for parts in arguments]
    return Said("".join(reasoning), "".join(content), list(zip(calls, texts, strict=True)))
