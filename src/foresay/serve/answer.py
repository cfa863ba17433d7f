"""OpenAI's shapes: whole answers, chunks of streams, usage, errors."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from foresay import __version__
from foresay.engine.text import AnswerText
from foresay.errors import ForesayError, InputError
from foresay.sampling.logprobs import TokenLogprob
from foresay.serve.limits import Refused
from foresay.serve.stream import Piece, split
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


def error_body(refused: Refused) -> dict[str, Any]:
    """The body of an error."""
    said = str(refused).encode("utf-8", "backslashreplace").decode()
    return {
        "error": {
            "message": said,
            "type": refused.kind,
            "param": refused.param,
            "code": refused.code,
        }
    }


def as_refused(piece: Piece) -> Refused:
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
        kind = "chat.completion" if generation.chat else "text_completion"
        chunk = ".chunk" if generation.chat and generation.stream else ""
        self._head: dict[str, Any] = {
            "id": f"{'chatcmpl' if generation.chat else 'cmpl'}-{secrets.token_hex(12)}",
            "object": kind + chunk,
            "created": int(time.time()),
            "model": model,
            "system_fingerprint": f"foresay-{__version__}",
        }
        self._tokens = [0] * generation.answers
        self._shared = [0] * generation.answers
        self._read: dict[int, AnswerText] = {}  # answers, up to the tokens that were listed
        self._begun = [False] * generation.answers

    def whole(self, pieces: Sequence[Piece]) -> dict[str, Any]:
        """The body of an answer that is not streamed, from one piece for each choice.

        Raises: Refused if one has failed.
        """
        choices = []
        for piece in sorted(pieces, key=lambda p: p.index):
            if piece.finish_reason not in ("stop", "length"):
                raise as_refused(piece)
            choice = self._choice(piece)
            if self._generation.details:
                choice["foresay"] = _details(piece)
            choices.append(choice)
        body = {**self._head, "choices": choices, "usage": self._usage()}
        if self._generation.token_ids and self._generation.chat:
            body["prompt_token_ids"] = self._generation.prompts[0].tolist()
        return body

    def events(self, piece: Piece) -> bytes:
        """A piece as server-sent events."""
        generation = self._generation
        if piece.finish_reason in ("cancelled", "error"):
            return event(error_body(as_refused(piece)))
        events = b""
        for part in split(piece) if generation.by_token else [piece]:
            chunk = {**self._head, "choices": [self._choice(part)]}
            if generation.usage_always:
                chunk["usage"] = self._usage()
            elif generation.usage:
                chunk["usage"] = None
            if generation.details:
                chunk["foresay"] = _details(part)
            events += event(chunk)
        return events

    def tail(self) -> bytes:
        """The last events of a stream."""
        if not self._generation.usage:
            return DONE
        return event({**self._head, "choices": [], "usage": self._usage()}) + DONE

    def _choice(self, piece: Piece) -> dict[str, Any]:
        generation, at = self._generation, piece.index
        if generation.unwanted:
            piece = replace(piece, text="", token_ids=[], logprobs=piece.logprobs and [])
        first, self._begun[at] = not self._begun[at], True
        self._tokens[at] += len(piece.token_ids)
        self._shared[at] = piece.shared_tokens
        choice: dict[str, Any] = {"index": at, "finish_reason": piece.finish_reason}
        if generation.chat:
            said: dict[str, Any] = {"content": piece.text}
            if first:
                said["role"] = "assistant"
            choice["delta" if generation.stream else "message"] = said
            choice["logprobs"] = self._chat_logprobs(piece)
        else:
            echo = first and generation.texts is not None
            prompt = (
                generation.texts[at // generation.params.n] if echo and generation.texts else ""
            )
            choice["text"] = prompt + piece.text
            choice["logprobs"] = self._logprobs(piece)
        if generation.token_ids:
            choice["token_ids"] = piece.token_ids
            if first and not generation.chat:
                choice["prompt_token_ids"] = generation.prompts[at // generation.params.n].tolist()
        return choice

    def _usage(self) -> dict[str, Any]:
        generation = self._generation
        prompts, answers = sum(map(len, generation.prompts)), sum(self._tokens)
        return {
            "prompt_tokens": prompts,
            "completion_tokens": answers,
            "total_tokens": prompts + answers,
            # Each prompt counts once, for any number of answers.
            "prompt_tokens_details": {"cached_tokens": sum(self._shared[:: generation.params.n])},
        }

    def _logprobs(self, piece: Piece) -> dict[str, Any] | None:
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
        return {
            "tokens": [self._words.of(token) for token, _ in listed],
            "token_logprobs": [None if p is None else _finite(p.logprob) for _, p in listed],
            "top_logprobs": [None if p is None else self._top(p) for _, p in listed],
            "text_offset": offsets,
        }

    def _top(self, found: TokenLogprob) -> dict[str, float]:
        """The likeliest tokens by text, and the token itself; the likelier one of equal texts."""
        top: dict[str, float] = {}
        for token, value in (*found.top.items(), (found.token, found.logprob)):
            top.setdefault(self._words.of(token), _finite(value))
        return top

    def _chat_logprobs(self, piece: Piece) -> dict[str, Any] | None:
        if piece.logprobs is None:
            return None
        return {"content": [self._chat_logprob(found) for found in piece.logprobs], "refusal": None}

    def _chat_logprob(self, found: TokenLogprob) -> dict[str, Any]:
        top = [self._chat_token(token, value) for token, value in found.top.items()]
        return {**self._chat_token(found.token, found.logprob), "top_logprobs": top}

    def _chat_token(self, token: int, value: float) -> dict[str, Any]:
        words = self._words
        return {
            "token": words.of(token),
            "logprob": _finite(value),
            "bytes": words.bytes_of(token),
        }


def _details(piece: Piece) -> dict[str, Any]:
    return {
        "words": piece.words,
        "sources": piece.sources,
        "drafted": piece.drafted,
        "accepted": piece.accepted,
        "step_seconds": round(piece.seconds, 6),
    }


def _places(text: AnswerText, tokens: Sequence[int]) -> list[int]:
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
