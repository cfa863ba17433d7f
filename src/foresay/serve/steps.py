"""What the last steps did. Every tenant sees its own share only: the acceptance rate of another
tenant would tell something about its texts.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from foresay.counts import tokens_per_step
from foresay.serve.answer_schema import StepOfTenant, Totals

__all__ = ["Ended", "Share", "StepReport", "Steps"]

_LINE = 200  # steps that are remembered


@dataclass(slots=True)
class Share:
    """One tenant's part of a step, or of all steps.

    answers   that got tokens, counted once per step
    drafts    of those, that had drafted tokens to verify
    lengths   by the number of accepted tokens, how many answers had it
    seconds   of a step by phase: its time is divided equally among its requests
    """

    steps: int = 0
    answers: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    def add(self, drafted: int, accepted: int, tokens: int) -> None:
        """Count what a step did for one answer."""
        self.answers += 1
        self.drafts += drafted > 0
        self.drafted += drafted
        self.accepted += accepted
        self.tokens += tokens
        self.lengths[accepted] += 1

    def merge(self, other: Share) -> None:
        """Count another share in."""
        self.steps += other.steps
        self.answers += other.answers
        self.drafts += other.drafts
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.tokens += other.tokens
        self.lengths.update(other.lengths)

    def shown(self, start: float) -> StepOfTenant:
        """For the time line, of a step that began at `start`. Its rows of logits: one per answer,
        and one per drafted token."""
        seconds = {phase: round(spent, 6) for phase, spent in self.seconds.items()}
        rows = self.answers + self.drafted
        return StepOfTenant(
            round(start, 6), seconds, self.answers, rows, self.drafted, self.accepted, self.tokens
        )


@dataclass(frozen=True, slots=True)
class StepReport:
    """One step.

    start        seconds since the server began
    seconds      by phase, of all tenants together
    shares       of the tenants that took part
    gaps         seconds since the last tokens, of each answer that had some before
    preemptions  of requests in this step
    """

    start: float
    seconds: Mapping[str, float]
    shares: Mapping[str | None, Share]
    gaps: Sequence[float] = ()
    preemptions: int = 0


@dataclass(frozen=True, slots=True)
class Ended:
    """An answer that has ended. Seconds are from the arrival of the request.

    shared       tokens of the prompt that came from the prefix cache
    began        when it was first in a step; None if it never was
    first        when its first token came; None without a token
    last         when its last token came; None without a token
    total        when it ended
    longest      tokens of the longest answer to the same prompt; only in the one that ends last
    preemptions  that no StepReport has counted
    """

    tenant: str | None
    reason: str
    prompt_tokens: int
    tokens: int
    shared: int
    began: float | None
    first: float | None
    last: float | None
    total: float
    n: int
    max_tokens: int
    longest: int | None
    preemptions: int


class Steps:
    """The time line, and the sums by tenant. It lives in the event loop."""

    def __init__(self) -> None:
        self._line: deque[StepReport] = deque(maxlen=_LINE)
        self._sums: dict[str | None, Share] = {}
        self.total = Share()
        """Of all tenants."""

    def note(self, step: StepReport) -> None:
        """Remember a step.

        Mutates: the time line and the sums.
        """
        self._line.append(step)
        for tenant, share in step.shares.items():
            self._sums.setdefault(tenant, Share()).merge(share)
            self.total.merge(share)

    def seen_by(self, tenant: str | None) -> tuple[Totals, list[StepOfTenant]]:
        """What a tenant may see: the sums and the time line of its own requests.

        Valid until: the next step.
        """
        total = self._sums.get(tenant, Share())
        totals = Totals(
            total.steps,
            total.answers,
            total.drafted,
            total.accepted,
            total.tokens,
            tokens_per_step(total.tokens, total.answers),
            {str(length): times for length, times in sorted(total.lengths.items())},
        )
        line = [(step.start, step.shares[tenant]) for step in self._line if tenant in step.shares]
        return totals, [share.shown(start) for start, share in line]
