"""Answers to prompts: their results, and their pieces while they are written."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from foresay.drafter import Source
from foresay.engine.request import FinishReason, Request, RequestStats
from foresay.errors import ForesayError
from foresay.sampling.logprobs import TokenLogprob

__all__ = ["Answer", "Chunk", "Result"]


@dataclass(frozen=True, slots=True)
class Result:
    """One answer.

    prompt         as it was given
    sample         which of the prompt's `n` answers it is
    text           without the stop string that ended it
    token_ids      all of the answer's tokens, the one that ended it included
    finish_reason  "stop", "length", "cancelled" or "error"
    error          why it failed, if it did
    logprobs       one for each token, if they were asked for
    sources        where each token was drafted from, `Source.MODEL` where it is the target's own;
                   if they were asked for
    stats          what it took
    """

    prompt: Any
    prompt_token_ids: list[int]
    sample: int
    text: str
    token_ids: list[int]
    finish_reason: FinishReason
    error: ForesayError | None
    logprobs: list[TokenLogprob] | None
    sources: list[Source] | None
    stats: RequestStats

    def as_dict(self) -> dict[str, Any]:
        """As plain values, for JSON."""
        values: dict[str, Any] = {
            "prompt": self.prompt if isinstance(self.prompt, (str, list)) else None,
            "text": self.text,
            "token_ids": self.token_ids,
            "finish_reason": self.finish_reason,
            "stats": self.stats.as_dict(),
        }
        if self.error is not None:
            values["error"] = str(self.error)
        if self.logprobs is not None:
            values["logprobs"] = [
                {"token": p.token, "logprob": p.logprob, "top": p.top} for p in self.logprobs
            ]
        return values


@dataclass(frozen=True, slots=True)
class Chunk:
    """A piece of a streamed answer; the last one has the result."""

    prompt_index: int
    sample: int
    text: str
    token_ids: list[int]
    result: Result | None


@dataclass(slots=True)
class Answer:
    """A request, the prompt that it belongs to, and what of it was given out."""

    prompt: Any
    prompt_index: int
    sample: int
    request: Request
    given: int = 0
    """Tokens that were streamed."""
    ended: bool = False
    """Whether the chunk with the result was streamed."""

    @property
    def has_news(self) -> bool:
        """Whether there is something to stream: tokens or the end."""
        request = self.request
        if request.finish_reason is not None:
            return not self.ended
        return request.stats.tokens > self.given

    def chunk(self) -> Chunk:
        """What was not streamed yet; now it counts as streamed."""
        request = self.request
        self.ended = request.finished
        ids = request.token_ids
        text = request.answer.take(ended=self.ended) if request.answer else ""
        new, self.given = ids[self.given :], len(ids)
        result = self.result() if self.ended else None
        return Chunk(self.prompt_index, self.sample, text, new, result)

    def result(self) -> Result:
        """The whole answer, which has ended."""
        request = self.request
        assert request.finish_reason is not None and request.answer is not None
        return Result(
            self.prompt,
            request.prompt.tolist(),
            self.sample,
            request.answer.text,
            request.token_ids,
            request.finish_reason,
            request.error,
            None if request.params.logprobs is None else request.logprobs,
            request.sources or None,
            request.stats,
        )
