"""The state of one running request, owned by the engine's thread."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

from foresay.drafter import Source
from foresay.engine.answers import Answer, Chunk
from foresay.engine.request import Request, RequestStats
from foresay.engine.text import IncrementalDetokenizer
from foresay.serve.steps import Ended, Share
from foresay.serve.stream import AnswerStream
from foresay.serve.validate import GenerationRequest

__all__ = ["RequestState"]


class RequestState:
    """A request of the engine with its answer, the stream that takes it, and what was counted."""

    __slots__ = (
        *("_arrived", "_began", "_counted", "_first", "_last_at", "_spent", "_step", "_words"),
        *("answer", "generation", "request", "stream"),
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
        self.generation = generation
        self.request = request
        self.answer = Answer(request, index=index)
        self._arrived = perf_counter()
        self._began: float | None = None
        self._first: float | None = None
        self._last_at: float | None = None
        self._counted = RequestStats()
        self._step = (0, 0)  # drafted and accepted tokens of the last one
        self._words: IncrementalDetokenizer | None = None
        if generation.by_token or generation.details or generation.form.markers is not None:
            params = generation.params
            self._words = IncrementalDetokenizer(decode, params.stop_texts, params.min_tokens)
            with suppress(Exception):  # of the tokenizer: the engine will meet it, too
                self._words.follow(request.prompt.tolist())

    def account(self, share: Share, start: float) -> list[float]:
        """Add what the request took and got since the last call, in a step that began at `start`.
        Returns the seconds since its previous tokens; an empty list if it got its first, or none.

        Mutates: the share, the state, the stream's number of decoded tokens.
        """
        stats, counted = self.request.stats, self._counted
        self._began = start if self._began is None else self._began
        for phase, spent in stats.seconds.items():
            share.seconds[phase] += spent - counted.seconds[phase]
            counted.seconds[phase] = spent
        if stats.steps == counted.steps:
            return []  # it was prefilled, or failed before a forward pass
        now, before, tokens = perf_counter(), self._last_at, stats.tokens - counted.tokens
        if tokens:
            self._first = now if self._first is None else self._first
            self._last_at = now
            if not self.generation.unwanted:
                self.stream.written += tokens
        self._step = (stats.drafted - counted.drafted, stats.accepted - counted.accepted)
        share.add(*self._step, tokens)
        counted.steps, counted.tokens = stats.steps, stats.tokens
        counted.drafted, counted.accepted = stats.drafted, stats.accepted
        return [] if before is None or not tokens else [now - before]

    def chunk(self, seconds: float) -> Chunk:
        """What was not sent to the client yet, after a step of `seconds`.

        Mutates: the state: the chunk counts as sent.
        """
        request, stats, begin = self.request, self.request.stats, self.answer.streamed
        ids: list[int] = request.tokens[len(request.prompt) + begin :].tolist()
        sources = None
        if self.generation.details:
            known = request.sources[begin : begin + len(ids)]
            sources = known + [Source.MODEL] * (len(ids) - len(known))
        whole = not self.generation.stream
        drafted, accepted = (stats.drafted, stats.accepted) if whole else self._step
        return self.answer.chunk(
            words=None if self._words is None else self._words_of(ids),
            sources=sources,
            drafted=drafted,
            accepted=accepted,
            seconds=sum(stats.seconds.values()) if whole else seconds,
        )

    def ended(self) -> Ended:
        """The statistics of an answer that has ended. To be called once.

        Mutates: the stream's list of ended answers.
        """
        stats, params = self.request.stats, self.generation.params
        siblings = self.stream.ends.setdefault(self.answer.index // params.n, [])
        siblings.append(stats.tokens)

        def since(moment: float | None) -> float | None:
            return None if moment is None else moment - self._arrived

        return Ended(
            self.request.tenant,
            str(self.request.finish_reason),
            stats.prompt_tokens,
            stats.tokens,
            stats.shared_tokens,
            began=since(self._began),
            first=since(self._first),
            last=since(self._last_at),
            total=perf_counter() - self._arrived,
            n=params.n,
            max_tokens=params.max_tokens,
            longest=max(siblings) if len(siblings) == params.n else None,
            preemptions=self.preemptions(),
        )

    def preemptions(self) -> int:
        """Preemptions since the last call.

        Mutates: the state: they are counted now.
        """
        before, now = self._counted.preemptions, self.request.stats.preemptions
        self._counted.preemptions = now
        return now - before

    def _words_of(self, ids: list[int]) -> list[str]:
        """The text of each token; of a character in several tokens, all in the last."""
        assert self._words is not None
        words = []
        for token in ids:
            with suppress(Exception):  # the engine ends the answer for this error
                if token not in self.request.stops:
                    self._words.add(token)
            words.append(self._words.take())
        if self.request.finished and words:
            with suppress(Exception):
                self._words.finish()
            words[-1] += self._words.take(ended=True)
        return words
