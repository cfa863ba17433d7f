"""A chat's deltas as the content blocks of a message, and the events that tell of them."""

from __future__ import annotations

import msgspec

from foresay.serve.chat.deltas import Arguments, Call, Content, Delta
from foresay.serve.chat.json_text import whole_of
from foresay.serve.messages.schema import (
    BlockDelta,
    BlockStart,
    BlockStop,
    ContentBlock,
    InputDelta,
    MessageEvent,
    TextBlock,
    TextDelta,
    ThinkingBlock,
    ThinkingDelta,
    ToolUseBlock,
)

__all__ = ["Blocks"]

_NOTHING = msgspec.Raw(b"{}")


class Blocks:
    """The blocks of one message, in their order. One is open at a time, until another begins.

    thinking  whether the reasoning is shown
    """

    def __init__(self, *, thinking: bool) -> None:
        self._thinking = thinking
        self._open: ContentBlock | None = None
        self._texts: list[str] = []  # of the open block
        self.content: list[ContentBlock] = []
        """The blocks that have ended."""

    def add(self, delta: Delta) -> list[MessageEvent]:
        """More of the answer."""
        if isinstance(delta, Call):
            return [*self._close(), self._begin(ToolUseBlock(delta.id, delta.name, _NOTHING))]
        if isinstance(delta, Arguments):
            return [self._more(delta.text, InputDelta(delta.text))]
        if isinstance(delta, Content):
            found = self._opened(TextBlock(""))
            return [*found, self._more(delta.text, TextDelta(delta.text))]
        if not self._thinking:
            return []
        found = self._opened(ThinkingBlock("", ""))
        return [*found, self._more(delta.text, ThinkingDelta(delta.text))]

    def end(self) -> list[MessageEvent]:
        """The end; an answer without any block becomes an empty text."""
        empty = self._open is None and not self.content
        return [*(self._opened(TextBlock("")) if empty else ()), *self._close()]

    def _opened(self, block: ContentBlock) -> list[MessageEvent]:
        if type(self._open) is type(block):
            return []
        return [*self._close(), self._begin(block)]

    def _begin(self, block: ContentBlock) -> MessageEvent:
        self._open = block
        return BlockStart(len(self.content), msgspec.structs.replace(block))

    def _more(self, text: str, delta: TextDelta | ThinkingDelta | InputDelta) -> MessageEvent:
        self._texts.append(text)
        return BlockDelta(len(self.content), delta)

    def _close(self) -> list[MessageEvent]:
        block, text = self._open, "".join(self._texts)
        if block is None:
            return []
        if isinstance(block, TextBlock):
            block.text = text
        elif isinstance(block, ThinkingBlock):
            block.thinking = text
        else:
            block.input = msgspec.Raw(whole_of(text).encode())
        self.content.append(block)
        self._open, self._texts = None, []
        return [BlockStop(len(self.content) - 1)]
