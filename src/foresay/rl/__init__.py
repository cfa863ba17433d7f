"""Rollouts for reinforcement learning: many samples of many prompts, exactly as without drafts."""

from foresay.rl.rollouts import Rollout, Rollouts

__all__ = ["Rollout", "Rollouts"]
