"""The state of one running request, owned by the engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

from foresay.drafter import Source
from foresay.engine.request import PHASES, Request
from foresay.engine.text import AnswerText
from foresay.serve.steps import Ended, Share
from foresay.serve.stream import AnswerStream, Piece
from foresay.serve.validate import GenerationRequest

__all__ = ["RequestState"]


class RequestState:
    """A request of the engine, its stream, and how much of its answer was sent."""

    __slots__ = (
        *("_accepted", "_asked", "_began", "_drafted", "_first", "_given", "_last", "_last_at"),
        *("_preempted", "_spell", "_spent", "_steps", "_tokens"),
        *("generation", "index", "request", "stream"),
    )

    def __init__(
        self,
        stream: AnswerStream,
        index: int,
        generation: GenerationRequest,
        request: Request,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self.stream = stream
        self.index = index
        self.generation = generation
        self.request = request
        self._asked = perf_counter()
        self._began: float | None = None
        self._first: float | None = None
        self._last_at: float | None = None
        self._preempted = 0  # preemptions that were counted
        self._given = 0  # tokens that were sent to the client
        self._steps = self._drafted = self._accepted = self._tokens = 0  # that were counted
        self._last = (0, 0)  # drafted and accepted tokens of the last step
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._spell: AnswerText | None = None
        if generation.by_token or generation.details:
            params = generation.params
            self._spell = AnswerText(decode, params.stop_texts, params.min_tokens)
            with suppress(Exception):  # of the tokenizer: the engine will meet it, too
                self._spell.follow(request.prompt.tolist())

    def account(self, seconds: dict[str, float], start: float) -> int:
        """Add to `seconds` the time of the request since the last call, in a step that began at
        `start`. Returns how many times it was preempted since.
        """
        if self._began is None:
            self._began = start
        for phase, spent in self.request.stats.seconds.items():
            seconds[phase] += spent - self._spent[phase]
            self._spent[phase] = spent
        return self._preemptions()

    def count(self, share: Share) -> list[float]:
        """Add what the request got since the last call. Returns the seconds since its previous
        tokens; an empty list if these are its first.

        Mutates: the share, the state, the stream's number of decoded tokens.
        """
        stats, now, before = self.request.stats, perf_counter(), self._last_at
        if stats.steps == self._steps:
            return []  # it failed before a forward pass
        self._steps = stats.steps
        if stats.tokens > self._tokens:
            self._first = now if self._first is None else self._first
            self._last_at = now
            if not self.generation.unwanted:
                self.stream.written += stats.tokens - self._tokens
        self._last = (stats.drafted - self._drafted, stats.accepted - self._accepted)
        share.add(*self._last, stats.tokens - self._tokens)
        self._drafted, self._accepted = stats.drafted, stats.accepted
        self._tokens = stats.tokens
        return [] if before is None or self._last_at != now else [now - before]

    def piece(self, seconds: float) -> Piece:
        """What was not sent to the client yet, after a step of so many seconds.

        Mutates: the state: the piece counts as sent.
        """
        request, generation = self.request, self.generation
        stats, begin = request.stats, self._given
        ids: list[int] = request.tokens[len(request.prompt) + begin :].tolist()
        end = self._given = begin + len(ids)
        sources = None
        if generation.details:
            known = request.sources[begin:end]
            sources = known + [Source.MODEL] * (len(ids) - len(known))
        noted = request.prompt_logprobs if begin == 0 else None
        whole = not generation.stream
        drafted, accepted = (stats.drafted, stats.accepted) if whole else self._last
        return Piece(
            index=self.index,
            text=request.answer.take(ended=request.finished) if request.answer else "",
            token_ids=ids,
            words=None if self._spell is None else self._spelled(ids),
            logprobs=None if generation.params.logprobs is None else request.logprobs[begin:end],
            sources=sources,
            prompt_tokens=stats.prompt_tokens,
            shared_tokens=stats.shared_tokens,
            prompt_logprobs=None if noted is None else list(noted),
            drafted=drafted,
            accepted=accepted,
            seconds=sum(stats.seconds.values()) if whole else seconds,
            kv_length=request.stored,
            finish_reason=request.finish_reason,
            error=request.error,
        )

    def ended(self) -> Ended:
        """The statistics of an answer that has ended. To be called once.

        Mutates: the stream's list of ended answers.
        """
        stats, params = self.request.stats, self.generation.params
        siblings = self.stream.ends.setdefault(self.index // params.n, [])
        siblings.append(stats.tokens)

        def since(moment: float | None) -> float | None:
            return None if moment is None else moment - self._asked

        return Ended(
            self.request.tenant,
            str(self.request.finish_reason),
            stats.prompt_tokens,
            stats.tokens,
            stats.shared_tokens,
            began=since(self._began),
            first=since(self._first),
            last=since(self._last_at),
            total=perf_counter() - self._asked,
            n=params.n,
            max_tokens=params.max_tokens,
            longest=max(siblings) if len(siblings) == params.n else None,
            preemptions=self._preemptions(),
        )

    def _preemptions(self) -> int:
        """Preemptions that were not counted yet."""
        before, self._preempted = self._preempted, self.request.stats.preemptions
        return self._preempted - before

    def _spelled(self, ids: list[int]) -> list[str]:
        """The text of each token; of a character in several tokens, all in the last."""
        assert self._spell is not None
        words = []
        for token in ids:
            with suppress(Exception):  # the engine ends the answer for this error
                if token not in self.request.stops:
                    self._spell.add(token)
            words.append(self._spell.take())
        if self.request.finished and words:
            with suppress(Exception):
                self._spell.finish()
            words[-1] += self._spell.take(ended=True)
        return words
