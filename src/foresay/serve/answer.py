"""OpenAI's shapes: whole answers, chunks of streams, usage, errors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec
from msgspec import UNSET

from foresay import __version__
from foresay.engine.answers import Chunk
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import ForesayError, InputError
from foresay.sampling.logprobs import TokenLogprob
from foresay.serve import schema
from foresay.serve.limits import Refused
from foresay.serve.stream import split
from foresay.serve.validate import GenerationRequest
from foresay.serve.words import Words

__all__ = ["DONE", "Shape", "as_refused", "encoded", "error_body", "event"]

DONE = b"data: [DONE]\n\n"
_LEAST = -9999.0  # JSON has no -inf
_encoder = msgspec.json.Encoder()


def encoded(value: object) -> bytes:
    """A value as JSON."""
    return _encoder.encode(value)


def event(value: object) -> bytes:
    """A value as a server-sent event."""
    return b"data: " + _encoder.encode(value) + b"\n\n"


def error_body(refused: Refused) -> schema.Error:
    """The body of an error."""
    message = str(refused).encode("utf-8", "backslashreplace").decode()
    return schema.Error(schema.ErrorFacts(message, refused.kind, refused.param, refused.code))


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
    """The shapes of the answers to one generation request.

    Mutates: it counts tokens.
    """

    def __init__(self, generation: GenerationRequest, words: Words, model: str) -> None:
        self._generation = generation
        self._words = words
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if generation.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"foresay-{__version__}",
        }
        self._tokens = [0] * generation.answers
        self._shared = [0] * generation.answers
        # Answers, up to the tokens that were listed.
        self._read: dict[int, IncrementalDetokenizer] = {}
        self._begun = [False] * generation.answers

    def whole(self, pieces: Sequence[Chunk]) -> schema.CompletionAnswer | schema.ChatAnswer:
        """The body of an answer that is not streamed, from one piece for each choice.

        Raises: Refused if one has failed.
        """
        generation, choices = self._generation, list[Any]()
        for piece in sorted(pieces, key=lambda p: p.index):
            if piece.finish_reason not in ("stop", "length"):
                raise as_refused(piece)
            choice: Any = self._choice(piece)
            if generation.details:
                choice.foresay = _details(piece)
            choices.append(choice)
        usage = self._usage()
        if not generation.chat:
            return schema.CompletionAnswer(**self._head, choices=choices, usage=usage)
        answer = schema.ChatAnswer(**self._head, choices=choices, usage=usage)
        if generation.token_ids:
            answer.prompt_token_ids = generation.prompts[0].tolist()
        return answer

    def events(self, piece: Chunk) -> bytes:
        """A piece as server-sent events."""
        generation = self._generation
        if piece.finish_reason in ("cancelled", "error"):
            return event(error_body(as_refused(piece)))
        events = b""
        for part in split(piece) if generation.by_token else [piece]:
            chunk = self._chunk([self._choice(part)])
            if generation.usage or generation.usage_always:
                chunk.usage = self._usage() if generation.usage_always else None
            if generation.details:
                chunk.foresay = _details(part)
            events += event(chunk)
        return events

    def tail(self) -> bytes:
        """The last events of a stream."""
        if not self._generation.usage:
            return DONE
        chunk = self._chunk([])
        chunk.usage = self._usage()
        return event(chunk) + DONE

    def _chunk(self, choices: list[Any]) -> schema.CompletionChunk | schema.ChatChunk:
        if self._generation.chat:
            return schema.ChatChunk(**self._head, choices=choices)
        return schema.CompletionChunk(**self._head, choices=choices)

    def _choice(self, piece: Chunk) -> schema.Choice:
        generation, at = self._generation, piece.index
        if generation.unwanted:
            piece = replace(piece, text="", token_ids=[], logprobs=piece.logprobs and [])
        first, self._begun[at] = not self._begun[at], True
        self._tokens[at] += len(piece.token_ids)
        self._shared[at] = piece.shared_tokens
        head: dict[str, Any] = {"index": at, "finish_reason": piece.finish_reason}
        if generation.token_ids:
            head["token_ids"] = piece.token_ids
        if generation.chat:
            head["logprobs"] = self._chat_logprobs(piece)
            if not generation.stream:
                return schema.ChatChoice(**head, message=schema.Message(piece.text, "assistant"))
            delta = schema.Delta(piece.text, "assistant" if first else UNSET)
            return schema.ChatChunkChoice(**head, delta=delta)
        prompt = at // generation.params.n
        echoed = generation.texts[prompt] if first and generation.texts is not None else ""
        if generation.token_ids and first:
            head["prompt_token_ids"] = generation.prompts[prompt].tolist()
        kind = schema.CompletionChunkChoice if generation.stream else schema.CompletionChoice
        return kind(**head, text=echoed + piece.text, logprobs=self._logprobs(piece))

    def _usage(self) -> schema.Usage:
        generation = self._generation
        prompts, answers = sum(map(len, generation.prompts)), sum(self._tokens)
        cached = sum(self._shared[:: generation.params.n])
        return schema.Usage(prompts, answers, prompts + answers, schema.PromptDetails(cached))

    def _logprobs(self, piece: Chunk) -> schema.Logprobs | None:
        """In the shape of completions: the prompt's tokens first, if they are echoed."""
        if piece.logprobs is None:
            return None
        at = piece.index // self._generation.params.n
        listed: list[tuple[int, TokenLogprob | None]] = []
        offsets: list[int] = []
        if piece.prompt_logprobs is not None:
            prompt: list[int] = self._generation.prompts[at].tolist()
            listed += zip(prompt, piece.prompt_logprobs, strict=True)
            offsets += _places(self._words.places(), prompt)
        begin = len(self._generation.texts[at]) if self._generation.texts is not None else 0
        tokens = [found.token for found in piece.logprobs]
        if piece.index not in self._read:
            self._read[piece.index] = self._words.places(self._generation.prompts[at].tolist())
        read = self._read[piece.index]
        offsets += [begin + place for place in _places(read, tokens)]
        listed += zip(tokens, piece.logprobs, strict=True)
        return schema.Logprobs(
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

    def _chat_logprobs(self, piece: Chunk) -> schema.ChatLogprobs | None:
        if piece.logprobs is None:
            return None
        return schema.ChatLogprobs([self._chat_logprob(found) for found in piece.logprobs], None)

    def _chat_logprob(self, found: TokenLogprob) -> schema.ChatLogprob:
        top = [schema.ChatToken(*self._chat_token(*one)) for one in found.top.items()]
        return schema.ChatLogprob(*self._chat_token(found.token, found.logprob), top)

    def _chat_token(self, token: int, value: float) -> tuple[str, float, list[int] | None]:
        return self._words.of(token), _finite(value), self._words.bytes_of(token)


def _details(piece: Chunk) -> schema.Details:
    words, sources, seconds = piece.words or [], piece.sources or [], round(piece.seconds, 6)
    return schema.Details(words, sources, piece.drafted, piece.accepted, seconds)


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
