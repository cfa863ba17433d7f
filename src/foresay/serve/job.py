"""One answer on its way, as the engine's thread knows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from time import perf_counter

from foresay.engine.request import PHASES, Request
from foresay.engine.text import AnswerText
from foresay.serve.question import Question
from foresay.serve.steps import Ended, Share
from foresay.serve.stream import Piece, Stream

__all__ = ["Job"]


class Job:
    """A request, who asked it, and what was told of it so far.

    Mutates: only through its methods. Valid until: the answer has ended. Raises: nothing. GIL:
    held.
    """

    __slots__ = (
        *("_accepted", "_begun", "_drafted", "_first", "_given", "_last", "_spell", "_spent"),
        *("_tokens", "index", "question", "request", "stream"),
    )

    def __init__(
        self,
        stream: Stream,
        index: int,
        question: Question,
        request: Request,
        decode: Callable[[Sequence[int]], str],
    ) -> None:
        self.stream = stream
        self.index = index
        self.question = question
        self.request = request
        self._begun = perf_counter()
        self._first: float | None = None
        self._given = 0  # tokens that the client was told
        self._drafted = self._accepted = self._tokens = 0  # that were counted
        self._last = (0, 0)  # guesses and accepted ones of the last step
        self._spent = dict.fromkeys(PHASES, 0.0)
        self._spell: AnswerText | None = None
        if question.by_token or question.details:
            params = question.params
            self._spell = AnswerText(decode, params.stop_texts, params.min_tokens)
            with suppress(Exception):  # of whoever decodes: the engine will meet it, too
                self._spell.follow(request.prompt.tolist())

    def account(self, seconds: dict[str, float]) -> None:
        """Add to `seconds` what the request has spent since the last call.

        Mutates: `seconds`, the job. Valid until: for ever. Raises: nothing. GIL: held.
        """
        for phase, spent in self.request.stats.seconds.items():
            seconds[phase] += spent - self._spent[phase]
            self._spent[phase] = spent

    def count(self, share: Share) -> None:
        """Add what the request has got since the last call.

        Mutates: the share, the job. Valid until: for ever. Raises: nothing. GIL: held.
        """
        stats = self.request.stats
        if self._first is None and stats.tokens:
            self._first = perf_counter()
        self._last = (stats.drafted - self._drafted, stats.accepted - self._accepted)
        share.add(*self._last, stats.tokens - self._tokens)
        self._drafted, self._accepted = stats.drafted, stats.accepted
        self._tokens = stats.tokens

    def piece(self, seconds: float) -> Piece:
        """What the client has not been told yet, of a step of so many seconds.

        Mutates: the job: it has been told. Valid until: for ever. Raises: nothing. GIL: as
        decoding.
        """
        request, question = self.request, self.question
        stats, begin = request.stats, self._given
        ids: list[int] = request.tokens[len(request.prompt) + begin :].tolist()
        end = self._given = begin + len(ids)
        sources = None
        if question.details:
            known = request.sources[begin:end]
            sources = known + [""] * (len(ids) - len(known))
        noted = request.prompt_logprobs if begin == 0 else None
        whole = not question.stream
        drafted, accepted = (stats.drafted, stats.accepted) if whole else self._last
        return Piece(
            index=self.index,
            text=request.answer.take(ended=request.finished) if request.answer else "",
            token_ids=ids,
            words=None if self._spell is None else self._spelled(ids),
            logprobs=None if question.params.logprobs is None else request.logprobs[begin:end],
            sources=sources,
            prompt_tokens=stats.prompt_tokens,
            shared_tokens=stats.shared_tokens,
            prompt_logprobs=None if noted is None else list(noted),
            drafted=drafted,
            accepted=accepted,
            seconds=sum(stats.seconds.values()) if whole else seconds,
            finish_reason=request.finish_reason,
            error=request.error,
        )

    def ended(self) -> Ended:
        """What is to be known of the answer when it has ended.

        Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
        """
        stats = self.request.stats
        return Ended(
            self.request.tenant,
            str(self.request.finish_reason),
            stats.prompt_tokens,
            stats.tokens,
            None if self._first is None else self._first - self._begun,
            perf_counter() - self._begun,
        )

    def _spelled(self, ids: list[int]) -> list[str]:
        """The text of each token; of a character in several tokens, all in the last."""
        assert self._spell is not None
        words = []
        for token in ids:
            with suppress(Exception):  # then the engine has ended the answer for it
                if token not in self.request.stops:
                    self._spell.add(token)
            words.append(self._spell.take())
        if self.request.finished and words:
            with suppress(Exception):
                self._spell.finish()
            words[-1] += self._spell.take(ended=True)
        return words
