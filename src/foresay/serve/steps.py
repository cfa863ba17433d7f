"""What the last steps did. Every tenant sees its own share only: the acceptance rate of another
tenant would tell something about its texts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from foresay.counts import tokens_per_step

__all__ = ["Ended", "Share", "StepReport", "Steps"]

_LINE = 200  # steps that are remembered


@dataclass(slots=True)
class Share:
    """One tenant's part of a step, or of all steps.

    answers   that got tokens, counted once per step
    drafts    of those, that had drafted tokens to verify
    rows      rows of logits: one per answer, and one per drafted token
    lengths   how many answers had so many tokens accepted, by that number
    seconds   by phase: a step's time is divided equally among its requests
    """

    steps: int = 0
    answers: int = 0
    drafts: int = 0
    drafted: int = 0
    accepted: int = 0
    tokens: int = 0
    lengths: dict[int, int] = field(default_factory=dict)
    seconds: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return self.answers + self.drafted

    def add(self, drafted: int, accepted: int, tokens: int) -> None:
        """Count what a step did for one answer."""
        self.answers += 1
        self.drafts += drafted > 0
        self.drafted += drafted
        self.accepted += accepted
        self.tokens += tokens
        self.lengths[accepted] = self.lengths.get(accepted, 0) + 1

    def merge(self, other: Share) -> None:
        """Count another share in."""
        self.steps += other.steps
        self.answers += other.answers
        self.drafts += other.drafts
        self.drafted += other.drafted
        self.accepted += other.accepted
        self.tokens += other.tokens
        for length, count in other.lengths.items():
            self.lengths[length] = self.lengths.get(length, 0) + count
        for phase, spent in other.seconds.items():
            self.seconds[phase] = self.seconds.get(phase, 0.0) + spent


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

    def note(self, step: StepReport) -> None:
        """Remember a step.

        Mutates: the time line and the sums.
        """
        self._line.append(step)
        for tenant, share in step.shares.items():
            self._sums.setdefault(tenant, Share()).merge(share)

    def seen_by(self, tenant: str | None) -> dict[str, Any]:
        """What a tenant may see: the sums and the time line of its own requests.

        Valid until: the next step.
        """
        total = self._sums.get(tenant, Share())
        line = [(step, step.shares[tenant]) for step in self._line if tenant in step.shares]
        return {
            "totals": {
                "steps": total.steps,
                "answers_in_steps": total.answers,
                "drafted": total.drafted,
                "accepted": total.accepted,
                "tokens": total.tokens,
                "tokens_per_step": tokens_per_step(total.tokens, total.answers),
                "accepted_lengths": {str(k): v for k, v in sorted(total.lengths.items())},
            },
            "timeline": [
                {
                    "start": round(step.start, 6),
                    "seconds": {name: round(s, 6) for name, s in share.seconds.items()},
                    "answers": share.answers,
                    "rows": share.rows,
                    "drafted": share.drafted,
                    "accepted": share.accepted,
                    "tokens": share.tokens,
                }
                for step, share in line
            ],
        }
