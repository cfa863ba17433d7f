"""The response to one request to /v1/responses, whole or as a stream."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence

from foresay.engine.answers import Chunk
from foresay.serve.answer import DONE, PING, Shape, as_refused, encoded, typed_event
from foresay.serve.answer_schema import ChatLogprob
from foresay.serve.chat.deltas import Content
from foresay.serve.responses import events
from foresay.serve.responses.events import Event
from foresay.serve.responses.items import new_id
from foresay.serve.responses.kept import Kept
from foresay.serve.responses.output import Output
from foresay.serve.responses.schema import (
    Failure,
    Incomplete,
    InputTokens,
    Item,
    Reasoning,
    Response,
    ResponseBody,
    ResponseUsage,
    TextField,
    TextFormat,
)
from foresay.serve.responses.translate import Tools

__all__ = ["ResponseShape"]


class ResponseShape:
    """The shape of one response.

    chat   the shape of the chat that it is made of
    items  the input of this request
    keep   takes the response when it has ended; None: it is not kept
    """

    ping = PING

    def __init__(
        self,
        chat: Shape,
        body: ResponseBody,
        items: Sequence[Item],
        tools: Tools,
        model: str,
        keep: Callable[[Kept], None] | None,
    ) -> None:
        self.generation = chat.generation
        self._chat = chat
        self._items = items
        self._keep = keep
        self._number = itertools.count().__next__
        names = {chat: name for name, chat in tools.names.items()}
        self._output = Output(names, self._number)
        self._logprobs: list[ChatLogprob] = []  # of tokens whose text has not come
        self._response = _begun(body, tools, model, kept=keep is not None)

    def whole(self, chunks: Sequence[Chunk]) -> Response:
        """The response, from its one chunk.

        Raises: Refused if it has failed.
        """
        (chunk,) = chunks
        if chunk.finish_reason not in ("stop", "length"):
            raise as_refused(chunk)
        self._read(chunk)
        return self._response

    def begin(self) -> bytes:
        """The first events."""
        told = [events.CreatedEvent, events.InProgressEvent]
        return b"".join(
            typed_event(kind(sequence_number=self._number(), response=self._response))
            for kind in told
        )

    def events(self, chunk: Chunk) -> bytes:
        """A chunk as server-sent events."""
        if chunk.finish_reason not in ("cancelled", "error"):
            return b"".join(map(typed_event, self._read(chunk)))
        found = self._output.cut()
        response = self._response
        response.status = "failed"
        response.error = Failure("server_error", str(as_refused(chunk)))
        response.output, response.usage = self._output.items, self._usage()
        found.append(events.FailedEvent(sequence_number=self._number(), response=response))
        return b"".join(map(typed_event, found))

    def tail(self) -> bytes:
        """What ends the stream."""
        return DONE

    def _read(self, chunk: Chunk) -> list[Event]:
        found: list[Event] = []
        deltas = self._chat.deltas(chunk)
        self._logprobs += self._chat.chat_logprobs(chunk) or ()
        for delta in deltas:
            told: list[ChatLogprob] = []
            if isinstance(delta, Content):
                told, self._logprobs = self._logprobs, []
            found += self._output.add(delta, told)
        if deltas and not any(isinstance(delta, Content) for delta in deltas):
            self._logprobs = []  # they were not of the text
        reason = self._chat.finish_reason(chunk)
        return found if reason is None else [*found, *self._end(complete=reason != "length")]

    def _end(self, *, complete: bool) -> list[Event]:
        found = self._output.end(complete=complete, logprobs=self._logprobs)
        response = self._response
        response.output, response.usage = self._output.items, self._usage()
        response.completed_at = int(time.time())
        response.status = "completed" if complete else "incomplete"
        kind: Callable[..., Event] = events.CompletedEvent
        if not complete:
            response.incomplete_details = Incomplete("max_output_tokens")
            kind = events.IncompleteEvent
        if self._keep is not None:
            before = response.previous_response_id
            self._keep(Kept(response.id, before, encoded(response), encoded(self._items)))
        return [*found, kind(sequence_number=self._number(), response=response)]

    def _usage(self) -> ResponseUsage:
        usage, cached = self._chat.usage(), self._chat.usage().prompt_tokens_details.cached_tokens
        return ResponseUsage(
            *(usage.prompt_tokens, InputTokens(cached, 0)),
            *(usage.completion_tokens, usage.completion_tokens_details),
            usage.total_tokens,
        )


def _begun(body: ResponseBody, tools: Tools, model: str, *, kept: bool) -> Response:
    """A response before its first token."""
    text, choice = body.text, body.tool_choice
    form = text.format if text is not None and text.format is not None else TextFormat("text")
    return Response(
        id=new_id("resp"),
        created_at=int(time.time()),
        completed_at=None,
        status="in_progress",
        incomplete_details=None,
        error=None,
        model=model,
        previous_response_id=body.previous_response_id,
        instructions=body.instructions,
        output=[],
        tools=tools.told,
        tool_choice="auto" if choice is None else choice,
        parallel_tool_calls=body.parallel_tool_calls is not False,
        text=TextField(form, (text and text.verbosity) or "medium"),
        reasoning=body.reasoning or Reasoning(),
        truncation="disabled",
        temperature=1.0 if body.temperature is None else body.temperature,
        top_p=1.0 if body.top_p is None else body.top_p,
        presence_penalty=body.presence_penalty or 0.0,
        frequency_penalty=body.frequency_penalty or 0.0,
        top_logprobs=body.top_logprobs or 0,
        max_output_tokens=body.max_output_tokens,
        max_tool_calls=body.max_tool_calls,
        store=kept,
        background=False,
        service_tier="default",
        metadata=body.metadata or {},
        prompt_cache_key=body.prompt_cache_key,
        safety_identifier=body.safety_identifier,
        user=body.user,
        usage=None,
    )
