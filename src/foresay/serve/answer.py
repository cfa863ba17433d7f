"""OpenAI's shapes: whole answers, chunks of streams, usage, errors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from foresay import __version__
from foresay.engine.answers import Chunk
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import ForesayError, InputError
from foresay.sampling.logprobs import TokenLogprob
from foresay.serve import answer_schema
from foresay.serve.chat.answers import ChatAnswers, Said, gathered
from foresay.serve.chat.deltas import Call, Content, Delta, Reasoning
from foresay.serve.limits import Refused
from foresay.serve.stream import split
from foresay.serve.validate import GenerationRequest
from foresay.serve.words import Words

__all__ = ["DONE", "PING", "Shape", "as_refused", "encoded", "error_body", "event", "typed_event"]

DONE = b"data: [DONE]\n\n"
PING = b": ping\n\n"  # a comment, which clients ignore
_LEAST = -9999.0  # JSON has no -inf
_encoder = msgspec.json.Encoder()


def encoded(value: object) -> bytes:
    """A value as JSON."""
    return _encoder.encode(value)


def event(value: object) -> bytes:
    """A value as a server-sent event."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def typed_event(value: msgspec.Struct) -> bytes:
    """A value as a server-sent event that has a name: the value's type."""
    name = str(value.__struct_config__.tag).encode()
    return b"event: " + name + b"\ndata: " + _encoder.encode(value) + b"\n\n"


def error_body(refused: Refused) -> answer_schema.Error:
    """The body of an error."""
    message = str(refused).encode("utf-8", "backslashreplace").decode()
    return answer_schema.Error(
        answer_schema.ErrorFacts(message, refused.kind, refused.param, refused.code)
    )


def as_refused(piece: Chunk) -> Refused:
    """The error of an answer that failed or was cancelled."""
    error: ForesayError | None = piece.error
    if isinstance(error, Refused):
        return error
    if isinstance(error, InputError):
        return Refused(400, str(error))
    if error is not None:
        return Refused(500, str(error), code="engine_error")
    return Refused(503, "the answer was cancelled before its end", code="cancelled")


class Shape:
    """The shapes of the answers to one generation request. `hide`: how many drafted tokens were
    accepted is not told. Other APIs take a chat's deltas from here, and give them other shapes.

    Mutates: it counts tokens.
    """

    ping = PING

    def __init__(
        self, generation: GenerationRequest, words: Words, model: str, *, hide: bool = False
    ) -> None:
        self.generation = generation
        self._words = words
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if generation.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"foresay-{__version__}",
        }
        self._chat = ChatAnswers(generation.form, generation.answers)
        self._hide = hide
        self._drafted = self._accepted = 0
        self._tokens = [0] * generation.answers
        self._shared = [0] * generation.answers
        # Answers, up to the tokens that were listed.
        self._read: dict[int, IncrementalDetokenizer] = {}
        self._begun = [False] * generation.answers

    def whole(
        self, pieces: Sequence[Chunk]
    ) -> answer_schema.CompletionAnswer | answer_schema.ChatAnswer:
        """The body of an answer that is not streamed, from one piece for each choice.

        Raises: Refused if one has failed.
        """
        generation, choices = self.generation, list[Any]()
        for piece in sorted(pieces, key=lambda p: p.index):
            if piece.finish_reason not in ("stop", "length"):
                raise as_refused(piece)
            (choice,) = self._choices(piece)
            if generation.details:
                choice.foresay = _details(piece)
            choices.append(choice)
        usage = self.usage()
        if not generation.chat:
            return answer_schema.CompletionAnswer(**self._head, choices=choices, usage=usage)
        answer = answer_schema.ChatAnswer(**self._head, choices=choices, usage=usage)
        if generation.token_ids:
            answer.prompt_token_ids = generation.prompts[0].tolist()
        return answer

    def events(self, piece: Chunk) -> bytes:
        """A piece as server-sent events."""
        generation = self.generation
        if piece.finish_reason in ("cancelled", "error"):
            return event(error_body(as_refused(piece)))
        events = b""
        for part in split(piece) if generation.by_token else [piece]:
            choices = self._choices(part)
            for choice in choices:
                chunk = self._chunk([choice])
                if generation.usage or generation.usage_always:
                    chunk.usage = self.usage() if generation.usage_always else None
                if generation.details and choice is choices[-1]:
                    chunk.foresay = _details(part)
                events += event(chunk)
        return events

    def begin(self) -> bytes:
        """Nothing comes before the first piece."""
        return b""

    def tail(self) -> bytes:
        """The last events of a stream."""
        if not self.generation.usage:
            return DONE
        chunk = self._chunk([])
        chunk.usage = self.usage()
        return event(chunk) + DONE

    def _chunk(self, choices: list[Any]) -> answer_schema.CompletionChunk | answer_schema.ChatChunk:
        if self.generation.chat:
            return answer_schema.ChatChunk(**self._head, choices=choices)
        return answer_schema.CompletionChunk(**self._head, choices=choices)

    def _choices(self, piece: Chunk) -> list[Any]:
        """A piece as a choice; as several in the stream of a chat, if it has several deltas."""
        generation, at = self.generation, piece.index
        if generation.unwanted:
            piece = replace(piece, text="", token_ids=[], logprobs=piece.logprobs and [])
        first, self._begun[at] = not self._begun[at], True
        deltas = self.deltas(piece)
        head: dict[str, Any] = {"index": at, "finish_reason": piece.finish_reason}
        if generation.token_ids:
            head["token_ids"] = piece.token_ids
        if generation.chat:
            listed = self.chat_logprobs(piece)
            head["logprobs"] = listed and answer_schema.ChatLogprobs(listed, None)
            head["finish_reason"] = self.finish_reason(piece)
            if not generation.stream:
                return [answer_schema.ChatChoice(**head, message=_message(gathered(deltas)))]
            shapes = [_delta(one) for one in deltas] or [answer_schema.Delta(content="")]
            if first:
                shapes[0].role = "assistant"
            none: dict[str, Any] = {"index": at, "finish_reason": None, "logprobs": None}
            return [
                answer_schema.ChatChunkChoice(**(head if one is shapes[-1] else none), delta=one)
                for one in shapes
            ]
        prompt = at // generation.params.n
        echoed = generation.texts[prompt] if first and generation.texts is not None else ""
        if generation.token_ids and first:
            head["prompt_token_ids"] = generation.prompts[prompt].tolist()
        kind: Any = answer_schema.CompletionChoice
        if generation.stream:
            kind = answer_schema.CompletionChunkChoice
        return [kind(**head, text=echoed + piece.text, logprobs=self._logprobs(piece))]

    def deltas(self, piece: Chunk) -> list[Delta]:
        """What a piece adds to an answer; of a completion nothing but its tokens are counted."""
        at = piece.index
        self._tokens[at] += len(piece.token_ids)
        self._shared[at] = piece.shared_tokens
        self._drafted += piece.drafted
        self._accepted += piece.accepted
        return self._chat.read(piece) if self.generation.chat else []

    def finish_reason(self, piece: Chunk) -> answer_schema.ChatReason | None:
        """Why a chat's answer has ended, if it has; to be asked after `deltas`."""
        return self._chat.finish_reason(piece)

    def usage(self) -> answer_schema.Usage:
        """The tokens that were counted."""
        generation = self.generation
        prompts, answers = sum(map(len, generation.prompts)), sum(self._tokens)
        cached = sum(self._shared[:: generation.params.n])
        details = answer_schema.CompletionDetails(self._chat.reasoning_tokens)
        if not self._hide:
            details.accepted_prediction_tokens = self._accepted
            details.rejected_prediction_tokens = self._drafted - self._accepted
        return answer_schema.Usage(
            *(prompts, answers, prompts + answers, answer_schema.PromptDetails(cached), details)
        )

    def _logprobs(self, piece: Chunk) -> answer_schema.Logprobs | None:
        """In the shape of completions: the prompt's tokens first, if they are echoed."""
        if piece.logprobs is None:
            return None
        at = piece.index // self.generation.params.n
        listed: list[tuple[int, TokenLogprob | None]] = []
        offsets: list[int] = []
        if piece.prompt_logprobs is not None:
            prompt: list[int] = self.generation.prompts[at].tolist()
            listed += zip(prompt, piece.prompt_logprobs, strict=True)
            offsets += _places(self._words.places(), prompt)
        begin = len(self.generation.texts[at]) if self.generation.texts is not None else 0
        tokens = [found.token for found in piece.logprobs]
        if piece.index not in self._read:
            self._read[piece.index] = self._words.places(self.generation.prompts[at].tolist())
        read = self._read[piece.index]
        offsets += [begin + place for place in _places(read, tokens)]
        listed += zip(tokens, piece.logprobs, strict=True)
        return answer_schema.Logprobs(
            [self._words.of(token) for token, _ in listed],
            [None if p is None else _finite(p.logprob) for _, p in listed],
            [None if p is None else self._top(p) for _, p in listed],
            offsets,
        )

    def _top(self, found: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens by text, and the token itself; the likelier one of equal texts."""
        top: dict[str, float] = {}
        for token, value in (*found.top.items(), (found.token, found.logprob)):
            top.setdefault(self._words.of(token), _finite(value))
        return top

    def chat_logprobs(self, piece: Chunk) -> list[answer_schema.ChatLogprob] | None:
        """Those of a piece's tokens, if they were requested."""
        if piece.logprobs is None:
            return None
        return [self._chat_logprob(found) for found in piece.logprobs]

    def _chat_logprob(self, found: TokenLogprob) -> answer_schema.ChatLogprob:
        top = [answer_schema.ChatToken(*self._chat_token(*one)) for one in found.top.items()]
        return answer_schema.ChatLogprob(*self._chat_token(found.token, found.logprob), top)

    def _chat_token(self, token: int, value: float) -> tuple[str, float, list[int] | None]:
        return self._words.of(token), _finite(value), self._words.bytes_of(token)


def _message(said: Said) -> answer_schema.Message:
    """A whole answer as OpenAI's message."""
    content = None if said.calls and not said.content else said.content
    message = answer_schema.Message(content, "assistant")
    if said.reasoning:
        message.reasoning_content = message.reasoning = said.reasoning
    if said.calls:
        message.tool_calls = [
            answer_schema.MessageToolCall(call.id, answer_schema.FunctionCall(call.name, arguments))
            for call, arguments in said.calls
        ]
    return message


def _delta(delta: Delta) -> answer_schema.Delta:
    """A delta as OpenAI's."""
    if isinstance(delta, Content):
        return answer_schema.Delta(content=delta.text)
    if isinstance(delta, Reasoning):
        return answer_schema.Delta(reasoning_content=delta.text, reasoning=delta.text)
    if isinstance(delta, Call):
        function = answer_schema.CallDelta("", delta.name)
        call = answer_schema.ToolCallDelta(
            index=delta.index, id=delta.id, type="function", function=function
        )
    else:
        function = answer_schema.CallDelta(delta.text)
        call = answer_schema.ToolCallDelta(index=delta.index, function=function)
    return answer_schema.Delta(tool_calls=[call])


def _details(piece: Chunk) -> answer_schema.Details:
    words, sources, seconds = piece.words or [], piece.sources or [], round(piece.seconds, 6)
    return answer_schema.Details(words, sources, piece.drafted, piece.accepted, seconds)


def _places(text: IncrementalDetokenizer, tokens: Sequence[int]) -> list[int]:
    """Where each token begins in the text that they continue. This is not a sum of their lengths:
    special tokens are not in the text, and one character may have several tokens.
    """
    places = []
    for token in tokens:
        places.append(len(text.text))
        text.add(token)
    return places


def _finite(value: float) -> float:
    return max(value, _LEAST)
