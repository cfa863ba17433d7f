"""The demonstration: the same prompts without and with speculation, compared token by token.

What a step costs by its rows is shown beside it: a draft pays where verifying it costs less than
the steps that it saves.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from foresay.bench.drafters import NONE, Answered, in_turns
from foresay.bench.questions import Question
from foresay.budget.adaptive import Adaptive
from foresay.drafter import Source
from foresay.models.progress import Progress, silent

if TYPE_CHECKING:
    from foresay.engine.llm import LLM

__all__ = ["Comparison", "Demo", "StepTime", "compare", "step_times"]

ROWS = (1, 4, 8, 16)
CONTEXT = 256  # tokens of the text: about what the prompts and their answers have


@dataclass(frozen=True, slots=True)
class StepTime:
    """What a step of some rows takes: one for the next token, the others verify a draft.

    relative  compared with a step of one row
    """

    rows: int
    seconds: float
    relative: float

    @property
    def break_even(self) -> float | None:
        """How many drafted tokens such a step must accept to be worth its time; None where even all
        of them are too few, or nothing is drafted.
        """
        least = self.relative - 1
        return least if least < self.rows - 1 else None

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "rows": self.rows,
            "seconds": round(self.seconds, 6),
            "relative": round(self.relative, 4),
            "break_even": None if self.break_even is None else round(self.break_even, 4),
        }


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prompt's answers without and with speculation; prompt None: of the whole demonstration."""

    prompt: Question | None
    plain: Answered
    fast: Answered

    @property
    def differences(self) -> list[tuple[int, int]]:
        """(answer, token) of the first difference of every answer that has one; an answer that
        failed differs from its first token on.
        """
        return [(answer, token or 0) for answer, token in self.plain.differences(self.fast)]

    @property
    def identical(self) -> bool:
        return not self.differences

    @property
    def tokens_per_step(self) -> float:
        return self.fast.tokens_per_step

    @property
    def speedup(self) -> float:
        """Seconds without speculation by seconds with it."""
        return self.plain.seconds / self.fast.seconds

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "answers": len(self.fast.results),
            "tokens": self.fast.tokens,
            "plain_seconds": round(self.plain.seconds, 4),
            "speculative_seconds": round(self.fast.seconds, 4),
            "plain_steps": self.plain.steps,
            "speculative_steps": self.fast.steps,
            "tokens_per_step": round(self.tokens_per_step, 4),
            "speedup": round(self.speedup, 4),
            "identical": self.identical,
        }


@dataclass(frozen=True, slots=True)
class Demo:
    """All comparisons, in the order of the prompts."""

    comparisons: list[Comparison]

    @property
    def total(self) -> Comparison:
        return Comparison(
            None,
            Answered.together(comparison.plain for comparison in self.comparisons),
            Answered.together(comparison.fast for comparison in self.comparisons),
        )

    @property
    def sources(self) -> Counter[Source]:
        """How many tokens were drafted from where."""
        results = self.total.fast.results
        own = Source.MODEL
        return Counter(s for r in results for s in r.sources or [own] * len(r.token_ids))


def step_times(llm: LLM) -> list[StepTime]:
    """What a decode step of one request takes, as it was measured when the model was loaded and
    corrected since; nothing for a policy that does not measure it.
    """
    policy = llm.engine.policy
    if not isinstance(policy, Adaptive):
        return []
    times = policy.cost.grid(ROWS, (CONTEXT,))[:, 0].tolist()
    return [StepTime(*step, step[1] / times[0]) for step in zip(ROWS, times, strict=True)]


def compare(
    plain: LLM, fast: LLM, questions: Sequence[Question], progress: Progress = silent
) -> Iterator[Comparison]:
    """Answer every question with both, which take turns; each comparison as soon as it is made.

    progress  as of `in_turns`

    Raises: InputError for a question that cannot be answered.
    """
    for one in in_turns({NONE: plain, "fast": fast}, questions, progress):
        yield Comparison(one.question, one.answers[NONE], one.answers["fast"])
