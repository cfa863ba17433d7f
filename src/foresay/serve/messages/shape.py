"""The message that answers one request to /v1/messages, whole or as a stream."""

from __future__ import annotations

import secrets
from collections.abc import Sequence

from foresay.engine.answers import Chunk
from foresay.serve.answer import Shape, as_refused, typed_event
from foresay.serve.messages.blocks import Blocks
from foresay.serve.messages.errors import message_error
from foresay.serve.messages.schema import (
    Message,
    MessageBody,
    MessageDelta,
    MessageEvent,
    MessageStart,
    MessageStop,
    MessageUsage,
    OutputDetails,
    Ping,
    Stop,
    StopReason,
)

__all__ = ["MessageShape"]

_REASONS: dict[str, StopReason] = {
    "stop": "end_turn",
    "length": "max_tokens",
    "tool_calls": "tool_use",
}


class MessageShape:
    """The shape of one message.

    chat  the shape of the chat that it is made of
    """

    ping = typed_event(Ping())

    def __init__(self, chat: Shape, body: MessageBody, model: str) -> None:
        self.generation = chat.generation
        self._chat = chat
        self._cut = chat.generation.params.max_tokens < body.max_tokens  # the context is too small
        thinking = body.thinking
        shown = thinking is not None and thinking.type != "disabled"
        self._blocks = Blocks(thinking=shown and thinking.display != "omitted")  # type: ignore[union-attr]
        self._message = Message(
            id=f"msg_{secrets.token_hex(12)}",
            role="assistant",
            model=model,
            content=[],
            stop_reason=None,
            stop_sequence=None,
            usage=self._usage(),
        )

    def whole(self, chunks: Sequence[Chunk]) -> Message:
        """The message, from its one chunk.

        Raises: Refused if it has failed.
        """
        (chunk,) = chunks
        if chunk.finish_reason not in ("stop", "length"):
            raise as_refused(chunk)
        self._read(chunk)
        return self._message

    def begin(self) -> bytes:
        """The first event."""
        return typed_event(MessageStart(self._message))

    def events(self, chunk: Chunk) -> bytes:
        """A chunk as server-sent events."""
        if chunk.finish_reason in ("cancelled", "error"):
            return typed_event(message_error(as_refused(chunk)))
        return b"".join(map(typed_event, self._read(chunk)))

    def tail(self) -> bytes:
        """Nothing: the last chunk's events end the stream."""
        return b""

    def _read(self, chunk: Chunk) -> list[MessageEvent]:
        message, found = self._message, list[MessageEvent]()
        for delta in self._chat.deltas(chunk):
            found += self._blocks.add(delta)
        reason = self._chat.finish_reason(chunk)
        if reason is None:
            return found
        found += self._blocks.end()
        message.content, message.usage = self._blocks.content, self._usage()
        message.stop_reason, message.stop_sequence = _REASONS[reason], chunk.stopped
        if chunk.stopped is not None and reason == "stop":
            message.stop_reason = "stop_sequence"
        if reason == "length" and self._cut:
            message.stop_reason = "model_context_window_exceeded"
        end = Stop(message.stop_reason, message.stop_sequence)
        return [*found, MessageDelta(end, message.usage), MessageStop()]

    def _usage(self) -> MessageUsage:
        usage = self._chat.usage()
        cached = usage.prompt_tokens_details.cached_tokens
        thought = OutputDetails(usage.completion_tokens_details.reasoning_tokens)
        fresh = usage.prompt_tokens - cached
        return MessageUsage(fresh, 0, cached, usage.completion_tokens, thought)
