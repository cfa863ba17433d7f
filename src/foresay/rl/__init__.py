"""Rollouts for reinforcement learning: many samples of many prompts, exactly as without drafts."""

from typing import TYPE_CHECKING, Any

from foresay.rl.history import PromptHistory
from foresay.rl.steplog import RolloutStats, StepRecord, write_steps

if TYPE_CHECKING:
    from foresay.rl.rollouts import Rollout, Rollouts

__all__ = ["PromptHistory", "Rollout", "RolloutStats", "Rollouts", "StepRecord", "write_steps"]


def __getattr__(name: str) -> Any:
    """Import what needs torch when it is first asked for: a replay needs the history alone."""
    if name in ("Rollout", "Rollouts"):
        from foresay.rl import rollouts

        return getattr(rollouts, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
