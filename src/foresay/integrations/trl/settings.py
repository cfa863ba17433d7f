"""How rollouts are made for a trainer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foresay.budget.policy import Policy
from foresay.drafter import Drafter
from foresay.models.target import Target

__all__ = ["Settings"]


@dataclass(frozen=True, slots=True)
class Settings:
    """What does not come from the trainer's own arguments; `foresay.rl.Rollouts` has the defaults'
    reasons. It is checked with the first rollout.

    drafter      "suffix", another name of a drafter, a Drafter, or None: the same text, slower
    policy       how many drafted tokens are verified
    memory       bytes for the KV cache
    max_running  samples in one step; the others wait
    max_rows     prompt tokens in one step
    target       makes a target of a copy of the trainer's model, which belongs to it. None:
                 `target_of` on a CPU, `plain_target_of` on any other device
    """

    drafter: str | Drafter[Any] | None = "suffix"
    policy: str | Policy = "adaptive"
    memory: int = 4 << 30
    max_running: int = 256
    max_rows: int = 512
    target: Callable[[Any], Target] | None = None
