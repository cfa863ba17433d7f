"""Answers to prompts: their results, and their chunks while they are written."""

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
    """What a step, or several, added to one of the answers of a call.

    index, prompt_index, sample  which answer of all, to which prompt, and which of its `n` answers
    logprobs         one for each token, if requested
    sources          where each token was drafted from, if noted
    prompt_tokens    of the prompt; `shared_tokens` of them came from the prefix cache
    prompt_logprobs  of the prompt's tokens, in the answer's first chunk, if requested
    kv_length        tokens of prompt and answer in the KV cache after the step; 0: it has none
    finish_reason    in the last chunk
    stopped          the stop string that ended the answer, in the last chunk, if one did
    error            why the answer failed, in the last chunk, if it did
    result           the whole answer, in the last chunk of `LLM.stream`

    And in a server's:

    words            the text of each token, if requested; together they are `text`
    drafted, accepted, seconds   of the step, or of all steps where the answer comes in one chunk
    """

    index: int
    text: str
    token_ids: list[int]
    words: list[str] | None = None
    logprobs: list[TokenLogprob] | None = None
    sources: list[Source] | None = None
    prompt_tokens: int = 0
    shared_tokens: int = 0
    prompt_logprobs: list[TokenLogprob | None] | None = None
    drafted: int = 0
    accepted: int = 0
    seconds: float = 0.0
    kv_length: int = 0
    finish_reason: FinishReason | None = None
    stopped: str | None = None
    error: ForesayError | None = None
    prompt_index: int = 0
    sample: int = 0
    result: Result | None = None


@dataclass(slots=True)
class Answer:
    """A request, the prompt that it belongs to, and what of it was streamed."""

    request: Request
    prompt: Any = None
    index: int = 0
    prompt_index: int = 0
    sample: int = 0
    streamed: int = 0
    """Tokens that were streamed."""
    ended: bool = False
    """Whether the last chunk was streamed."""

    @property
    def has_news(self) -> bool:
        """Whether there is something to stream: tokens or the end."""
        request = self.request
        if request.finish_reason is not None:
            return not self.ended
        return request.stats.tokens > self.streamed

    def chunk(self, **more: Any) -> Chunk:
        """What was not streamed yet, and `more` fields of the chunk.

        Mutates: the answer: it counts as streamed now.
        """
        request, begin = self.request, self.streamed
        self.ended = request.finished
        ids: list[int] = request.tokens[len(request.prompt) + begin :].tolist()
        end = self.streamed = begin + len(ids)
        noted = request.prompt_logprobs if begin == 0 else None
        return Chunk(
            self.index,
            request.answer.take(ended=self.ended) if request.answer else "",
            ids,
            logprobs=None if request.params.logprobs is None else request.logprobs[begin:end],
            prompt_tokens=request.stats.prompt_tokens,
            shared_tokens=request.stats.shared_tokens,
            prompt_logprobs=None if noted is None else list(noted),
            kv_length=request.stored,
            finish_reason=request.finish_reason,
            stopped=request.answer.stopped if self.ended and request.answer else None,
            error=request.error,
            prompt_index=self.prompt_index,
            sample=self.sample,
            **{"sources": request.sources[begin:end] or None, **more},
        )

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
