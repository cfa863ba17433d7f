"""What each step of a rollout did, for analysis: the long tail is seen in it.

The tail of a rollout is the time in which at most `few` of its requests are left: they run or wait,
and no more of them come. Commands and comparisons take FEW unless they are given another number; a
trainer, whose rollouts may be of any size, takes `few_of`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from foresay.counts import acceptance, tokens_per_step

__all__ = ["FEW", "RolloutStats", "StepRecord", "few_of", "write_steps"]

FEW = 8
"""The tail is when at most this number of requests are left."""


def few_of(requests: int) -> int:
    """An eighth of the requests of a rollout, at least 1."""
    return max(1, requests // 8)


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One step of the engine.

    time       seconds from the beginning of the rollout to the end of the step
    seconds    that the step took
    running    requests that it advanced or prefilled
    waiting    requests that waited
    drafted    nodes that were verified
    accepted   nodes that were committed
    committed  tokens that were committed
    """

    time: float
    seconds: float
    running: int
    waiting: int
    drafted: int
    accepted: int
    committed: int

    @property
    def left(self) -> int:
        """Requests that ran or waited."""
        return self.running + self.waiting


@dataclass(frozen=True, slots=True)
class RolloutStats:
    """What one rollout took.

    requests       samples of all prompts
    passes         steps of the engine, each a forward pass of the target
    tokens         of all samples
    drafted        nodes that were verified
    accepted       nodes that were committed
    request_steps  steps summed over the requests that were in them
    seconds        from the call to the end of the last step
    drafter_bytes  the most that the drafter held, where it can tell
    """

    requests: int
    passes: int
    tokens: int
    drafted: int
    accepted: int
    request_steps: int
    seconds: float
    drafter_bytes: int

    @property
    def tokens_per_step(self) -> float:
        """Tokens of a request per step that it was in; see `foresay.counts`."""
        return tokens_per_step(self.tokens, self.request_steps)

    @property
    def acceptance(self) -> float:
        """Share of the verified nodes that were committed."""
        return acceptance(self.accepted, self.drafted)

    def as_dict(self) -> dict[str, float]:
        """All of it as plain values."""
        return asdict(self) | {
            "tokens_per_step": self.tokens_per_step,
            "acceptance": self.acceptance,
        }


def write_steps(steps: Iterable[StepRecord], path: Path) -> None:
    """Write steps as JSON lines, as `foresay tail` reads them. Raises: OSError."""
    lines = [json.dumps(asdict(step)) for step in steps]
    path.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
