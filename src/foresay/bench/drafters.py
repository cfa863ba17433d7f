"""Every drafter beside no drafts: the same questions, the same target, taking turns.

A *way* is a drafter's name, or "none". Each has an engine and a drafter of its own for the whole
run, which learns from all answers, as a user would have it. Ways take turns question by question,
and who begins changes. A drafter may change how long an answer takes and never its tokens, so all
are compared with those of "none".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from statistics import geometric_mean, median
from typing import TYPE_CHECKING, Any

from foresay.bench.questions import Question, in_order
from foresay.budget.policy import Fixed, Policy, make_policy
from foresay.counts import acceptance, first_difference, tokens_per_step
from foresay.drafter import MAX_BUDGET
from foresay.drafters.lineup import check_drafter_name, parts_of
from foresay.errors import InputError
from foresay.models.progress import Progress, silent
from foresay.sampling.params import SamplingParams

if TYPE_CHECKING:
    from foresay.engine.llm import LLM, Prompt, Result

__all__ = [
    *("NONE", "Answered", "Round", "Table", "answer_all", "check_nodes", "in_turns", "ways_of"),
]

NONE = "none"

# Sampled: that needs all that greedy decoding needs, and the noise.
_WARM_UP = ("Name three colours.", SamplingParams(max_tokens=12, seed=1, ignore_eos=True))
_EVERY = 8  # chunks between two looks at a drafter's memory; the first is empty


def ways_of(names: str) -> list[str]:
    """Names with commas between, each once and "none" first: all others are compared with it.

    Raises: InputError for what is no drafter's name.
    """
    ways = [name.strip() for name in names.split(",")]
    for name in ways:
        if name != NONE:
            check_drafter_name(name)
        if "corpus" in parts_of(name):
            raise InputError(
                f"the drafter {name!r} needs a corpus file, which is not compared here; expected "
                "drafters that need none"
            )
    return list(dict.fromkeys([NONE, *ways]))


def check_nodes(nodes: int | None) -> None:
    """Refuse a number of nodes that no draft can have.

    Raises: InputError.
    """
    if nodes is not None and not 1 <= nodes <= MAX_BUDGET:
        raise InputError(f"the nodes of a draft are {nodes}; expected 1 to {MAX_BUDGET}")


@dataclass(slots=True)
class Answered:
    """What one way made of some questions.

    seconds  until the last token, prefill included
    results  every answer
    bytes    the most that the drafter was seen to hold; None without one
    gave_up  whether the drafter failed, after which the engine goes on without it
    """

    seconds: float = 0.0
    results: list[Result] = field(default_factory=list)
    bytes: int | None = None
    gave_up: bool = False

    @classmethod
    def together(cls, several: Iterable[Answered]) -> Answered:
        """All of them as one."""
        found = cls()
        for one in several:
            found.seconds += one.seconds
            found.results += one.results
            found.gave_up |= one.gave_up
            found.held(one.bytes)
        return found

    def held(self, bytes: int | None) -> None:
        """Note what the drafter was seen to hold."""
        if bytes is not None:
            self.bytes = max(self.bytes or 0, bytes)

    @property
    def texts(self) -> list[list[int] | None]:
        """The tokens of every answer; None for one that failed."""
        return [None if one.error is not None else one.token_ids for one in self.results]

    def differences(self, other: Answered) -> list[tuple[int, int | None]]:
        """(answer, token) of the first difference of every answer that has one; token None: one of
        both failed."""
        found: list[tuple[int, int | None]] = []
        for number, (a, b) in enumerate(zip(self.texts, other.texts, strict=True)):
            if a is None or b is None:
                found.append((number, None))
            elif (token := first_difference(a, b)) is not None:
                found.append((number, token))
        return found

    @property
    def tokens(self) -> int:
        return sum(one.stats.tokens for one in self.results)

    @property
    def steps(self) -> int:
        """Decode steps; see `foresay.counts`."""
        return sum(one.stats.steps for one in self.results)

    @property
    def tokens_per_step(self) -> float:
        """See `foresay.counts`."""
        return tokens_per_step(self.tokens, self.steps)

    def as_dict(self) -> dict[str, Any]:
        """As plain values, without the texts."""
        steps, stats = max(self.steps, 1), [one.stats for one in self.results]
        drafted, accepted = sum(s.drafted for s in stats), sum(s.accepted for s in stats)
        drafting = sum(s.seconds["draft"] for s in stats)
        return {
            "tokens_per_step": round(self.tokens_per_step, 4),
            "nodes_per_step": round(drafted / steps, 4),
            "acceptance": round(acceptance(accepted, drafted), 4),
            "draft_ms_per_step": round(1e3 * drafting / steps, 4),
            "tokens": self.tokens,
            "steps": self.steps,
            "seconds": round(self.seconds, 4),
            "bytes": self.bytes,
        }


@dataclass(frozen=True, slots=True)
class Round:
    """One question, answered by every way."""

    question: Question
    answers: dict[str, Answered]

    @property
    def differences(self) -> list[str]:
        """A sentence for every way whose text is not that of "none", or whose answer failed."""
        found = []
        for way, answered in self.answers.items():
            for number, token in self.answers[NONE].differences(answered)[:1]:
                place = ", which failed" if token is None else f" from token {token + 1} on"
                about = f"{way} differs from {NONE} in answer {number + 1}{place}"
                found.append(f"{self.question.where}: {about}")
        return found

    def speedup(self, way: str) -> float:
        """Seconds without drafts by seconds with them."""
        return self.answers[NONE].seconds / self.answers[way].seconds


@dataclass(frozen=True, slots=True)
class Table:
    """All rounds of one comparison.

    nodes  of every draft; None: as many as the adaptive policy chose
    """

    nodes: int | None
    rounds: list[Round]

    @property
    def ways(self) -> list[str]:
        """The ways in the order that they were named in."""
        return list(self.rounds[0].answers) if self.rounds else []

    @property
    def categories(self) -> list[str]:
        return in_order(one.question.category for one in self.rounds)

    @property
    def differences(self) -> list[str]:
        return [sentence for one in self.rounds for sentence in one.differences]

    @property
    def failures(self) -> list[str]:
        """A sentence for every way whose drafter failed: its figures are in part those of none."""
        return [
            f"the drafter {way} failed, and was not asked again"
            for way in self.ways
            if self.total(way).gave_up
        ]

    def total(self, way: str, category: str | None = None) -> Answered:
        """Over all questions, or those of one category."""
        return Answered.together(one.answers[way] for one in self._of(category))

    def speedups(self, way: str, category: str | None = None) -> list[float]:
        """One ratio for each question."""
        return [one.speedup(way) for one in self._of(category)]

    def _of(self, category: str | None) -> list[Round]:
        return [one for one in self.rounds if category in (None, one.question.category)]

    def row(self, way: str) -> dict[str, Any]:
        """A way's line, as plain values."""
        ratios = self.speedups(way)
        return {
            "drafter": way,
            **self.total(way).as_dict(),
            "speedup_median": round(median(ratios), 4),
            "speedup_mean": round(geometric_mean(ratios), 4),
            "by_category": {
                category: {
                    "tokens_per_step": round(self.total(way, category).tokens_per_step, 4),
                    "speedup_mean": round(geometric_mean(self.speedups(way, category)), 4),
                }
                for category in self.categories
            },
        }

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "policy": "adaptive" if self.nodes is None else "fixed",
            "nodes": self.nodes,
            "questions": {category: len(self._of(category)) for category in self.categories},
            "rows": [self.row(way) for way in self.ways],
            "identical": not self.differences,
            "differences": self.differences,
            "failures": self.failures,
        }


def answer_all(
    llm: LLM,
    ways: Sequence[str],
    questions: Sequence[Question],
    nodes: int | None = None,
    progress: Progress = silent,
) -> Iterator[Round]:
    """Answer every question in every way; each round as soon as it is done.

    llm       the target; its own drafter is not used
    ways      as `ways_of` gives them
    nodes     of every draft; None: the adaptive policy
    progress  called with "measure", "warm", then "answer": tokens of all ways and turns

    Raises: InputError for a question that cannot be answered, and what a drafter raises that
    cannot draft for this target.
    """
    return in_turns(_engines(llm, ways, nodes, progress), questions, progress)


def in_turns(
    engines: Mapping[str, LLM], questions: Sequence[Question], progress: Progress = silent
) -> Iterator[Round]:
    """Answer every question with every engine, the way "none" among them; the first to answer
    changes, since the second finds the processor's caches warm.

    progress  called with "warm", then "answer": tokens of all ways and turns

    Raises: InputError for a question that cannot be answered.
    """
    ways = list(engines)
    progress("warm", 0, None)
    for engine in engines.values():  # first calls of a library are slow, and must not count
        engine.generate(*_WARM_UP, chat=engine.tokenizer.chats)
    done, total = 0, len(ways) * sum(map(_most_tokens, questions))
    progress("answer", done, total)
    for number, question in enumerate(questions):
        at = number % len(ways)
        found: dict[str, Answered] = {}
        for way in [*ways[at:], *ways[:at]]:
            before = done

            def advance(tokens: int) -> None:
                nonlocal done
                done += tokens
                progress("answer", done, total)

            found[way] = _answered(engines[way], question, advance)
            found[way].gave_up = way != NONE and not engines[way].engine.drafter.active
            advance(before + _most_tokens(question) - done)  # answers may have ended early
        yield Round(question, {way: found[way] for way in ways})


def _engines(
    llm: LLM, ways: Sequence[str], nodes: int | None, progress: Progress
) -> dict[str, LLM]:
    """One for each way. The machine is measured once, for all of them."""
    from foresay.engine.measure import measured_cost

    cost = measured_cost(llm.target, progress) if nodes is None else None

    def policy() -> Policy:
        return Fixed(k=nodes) if nodes is not None else make_policy("adaptive", deepcopy(cost))

    return {
        way: llm.beside(None, NONE) if way == NONE else llm.beside(way, policy()) for way in ways
    }


def _answered(llm: LLM, question: Question, advance: Callable[[int], None]) -> Answered:
    """One conversation; each turn is asked with all that was said before."""
    answered = Answered()
    drafter, calls, aside = llm.engine.drafter, 0, 0.0

    def watch(tokens: int) -> None:
        nonlocal calls, aside
        began = time.perf_counter()
        if drafter.active and calls % _EVERY == 1:
            answered.held(drafter.bytes_used())
        calls += 1
        advance(tokens)
        aside += time.perf_counter() - began

    said: list[str] = []
    for turn in question.turns:
        said.append(turn)
        began, aside = time.perf_counter(), 0.0
        try:
            results = llm.generate(_prompt(llm, said), question.params, progress=watch)
        except InputError as error:
            raise InputError(f"{question.where}: {error}") from error
        answered.seconds += time.perf_counter() - began - aside
        answered.results += results
        said.append(results[0].text)
    if drafter.active:
        answered.held(drafter.bytes_used())
    return answered


def _prompt(llm: LLM, said: Sequence[str]) -> Prompt:
    """The user and the model in turns; as one text for a model that does not chat."""
    if not llm.tokenizer.chats:
        return "\n\n".join(said)
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(said)]


def _most_tokens(question: Question) -> int:
    return len(question.turns) * question.params.n * question.params.max_tokens
