"""A chat's deltas as the output items of a response, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from foresay.serve.answer_schema import ChatLogprob
from foresay.serve.chat.deltas import Arguments, Call, Content, Delta
from foresay.serve.responses import events
from foresay.serve.responses.events import Event
from foresay.serve.responses.items import new_id
from foresay.serve.responses.schema import (
    FunctionCallItem,
    MessageItem,
    OutputItem,
    OutputText,
    ReasoningItem,
    ReasoningText,
)

__all__ = ["Output"]


class Output:
    """The items of one response, in their order. One is open at a time, until another begins.

    names   the namespace and the name of each function that has a namespace, by the chat's name
    number  gives the next event's number
    """

    def __init__(self, names: Mapping[str, tuple[str, str]], number: Callable[[], int]) -> None:
        self._names = names
        self._number = number
        self._done: list[OutputItem] = []
        self._open: OutputItem | None = None
        self._texts: list[str] = []  # of the open item
        self._logprobs: list[ChatLogprob] = []  # of the open item

    @property
    def items(self) -> list[OutputItem]:
        """The items that have ended."""
        return self._done

    def add(self, delta: Delta, logprobs: Sequence[ChatLogprob] = ()) -> list[Event]:
        """More of the answer, and the log probabilities of its tokens."""
        if isinstance(delta, Arguments):
            assert isinstance(self._open, FunctionCallItem)
            self._texts.append(delta.text)
            return [self._told(events.FunctionArgumentsDelta, delta=delta.text)]
        if isinstance(delta, Call):
            found = self._close("completed")
            namespace, name = self._names.get(delta.name, ("", delta.name))
            more = {"namespace": namespace} if namespace else {}
            call = FunctionCallItem(new_id("fc"), delta.id, name, "", "in_progress", **more)
            return [*found, self._begin(call)]
        if isinstance(delta, Content):
            found = self._message()
            self._texts.append(delta.text)
            self._logprobs += logprobs
            kind, listed = events.OutputTextDelta, list(logprobs)
            told = self._told(kind, content_index=0, delta=delta.text, logprobs=listed)
            return [*found, told]
        found = self._reasoning()
        self._texts.append(delta.text)
        return [*found, self._told(events.ReasoningDelta, content_index=0, delta=delta.text)]

    def end(self, *, complete: bool, logprobs: Sequence[ChatLogprob] = ()) -> list[Event]:
        """The end, and what is left of the log probabilities; an answer without any item becomes
        an empty message."""
        found = [] if self._open is not None or self._done else self._message()
        self._logprobs += logprobs
        return found + self._close("completed" if complete else "incomplete")

    def cut(self) -> list[Event]:
        """The answer has failed: what is open stays as it is."""
        return self._close("incomplete")

    def _message(self) -> list[Event]:
        if isinstance(self._open, MessageItem):
            return []
        found = self._close("completed")
        item = MessageItem(new_id("msg"), "assistant", [], "in_progress")
        return [*found, self._begin(item), self._part(events.PartAdded, OutputText("", [], []))]

    def _reasoning(self) -> list[Event]:
        if isinstance(self._open, ReasoningItem):
            return []
        found = self._close("completed")
        item = ReasoningItem(new_id("rs"), [], [], "in_progress")
        return [*found, self._begin(item), self._part(events.PartAdded, ReasoningText(""))]

    def _begin(self, item: OutputItem) -> Event:
        self._open = item
        number, at = self._number(), len(self._done)
        told = msgspec.structs.replace(item)  # the item itself gets its content later
        return events.ItemAdded(sequence_number=number, output_index=at, item=told)

    def _close(self, status: Any) -> list[Event]:
        item = self._open
        if item is None:
            return []
        text = "".join(self._texts)
        found: list[Event]
        if isinstance(item, FunctionCallItem):
            item.arguments = text
            found = [self._told(events.FunctionArgumentsDone, arguments=text)]
        elif isinstance(item, ReasoningItem):
            item.content = [ReasoningText(text)]
            found = [self._told(events.ReasoningDone, content_index=0, text=text)]
            found.append(self._part(events.PartDone, item.content[0]))
        else:
            part = OutputText(text, [], self._logprobs)
            item.content = [part]
            more = {"text": text, "logprobs": part.logprobs}
            found = [self._told(events.OutputTextDone, content_index=0, **more)]
            found.append(self._part(events.PartDone, part))
        item.status = status
        number, at = self._number(), len(self._done)
        found.append(events.ItemDone(sequence_number=number, output_index=at, item=item))
        self._done.append(item)
        self._open, self._texts, self._logprobs = None, [], []
        return found

    def _part(self, kind: Callable[..., Event], part: OutputText | ReasoningText) -> Event:
        return self._told(kind, content_index=0, part=part)

    def _told(self, kind: Callable[..., Event], **more: Any) -> Event:
        """An event of the open item."""
        assert self._open is not None
        places = {"item_id": self._open.id, "output_index": len(self._done)}
        return kind(sequence_number=self._number(), **places, **more)
