"""DAPO: group-normalised advantages, clip-higher, dynamic sampling, token-mean loss, overlong
shaping.

Everything here is a function of its arguments. A "group" is the samples of one prompt.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from foresay.arrays import check_positive
from foresay.errors import InputError
from foresay.sampling.noise import Doubles

__all__ = [
    "PolicyTerms",
    "advantages",
    "entropies",
    "fill_batch",
    "informative",
    "overlong_penalty",
    "policy_terms",
    "token_logprobs",
    "token_mean",
]

Group = TypeVar("Group")


def overlong_penalty(length: int, *, cap: int, buffer: int) -> float:
    """What is added to the reward of an answer: 0 up to `cap - buffer` tokens, from there down to
    -1 at `cap`.

    Raises: InputError for a buffer that is not below the cap.
    """
    if not 0 <= buffer < cap:
        raise InputError(f"buffer is {buffer}; expected 0 or more, below the cap of {cap} tokens")
    over = length - (cap - buffer)
    if over <= 0:
        return 0.0
    return max(-over / buffer, -1.0) if buffer else -1.0


def informative(rewards: Sequence[float]) -> bool:
    """Whether a group's rewards differ: otherwise all of its advantages are 0."""
    return len(set(rewards)) > 1


def advantages(rewards: Sequence[float]) -> Doubles:
    """Of each sample of a group: its reward less the mean, over the standard deviation (of a
    sample, n - 1). All 0 where the rewards are equal.
    """
    given = np.asarray(rewards, np.float64)
    if not informative(rewards):
        return np.zeros(len(given))
    found: Doubles = (given - given.mean()) / (given.std(ddof=1) + 1e-6)
    return found


def fill_batch(
    draw: Callable[[], Sequence[Group]],
    keep: Callable[[Group], bool],
    *,
    wanted: int,
    rounds: int,
) -> tuple[list[Group], list[Group]]:
    """Dynamic sampling: draw groups until `wanted` of them are kept, at most `rounds` times. The
    ones to train with, and all that were drawn. Of more than `wanted` the first ones are taken.

    Raises: InputError; what `draw` and `keep` raise.
    """
    check_positive(wanted, "wanted")
    check_positive(rounds, "rounds")
    kept: list[Group] = []
    drawn: list[Group] = []
    for _ in range(rounds):
        new = draw()
        drawn += new
        kept += [group for group in new if keep(group)]
        if len(kept) >= wanted:
            break
    return kept[:wanted], drawn


def token_logprobs(logits: Tensor, tokens: Tensor, *, temperature: float = 1.0) -> Tensor:
    """float32[B, T]: the log probability of each token under the logits of its own place.

    logits  [B, T, V]: those that were computed before each token
    tokens  int64[B, T]
    """
    scaled = logits.float() / temperature
    picked = scaled.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return picked - scaled.logsumexp(-1)


def entropies(logits: Tensor, *, temperature: float = 1.0) -> Tensor:
    """float32[B, T]: of the distribution of each token, in nats."""
    logs = (logits.float() / temperature).log_softmax(-1)
    return -(logs.exp() * logs).sum(-1)


@dataclass(frozen=True, slots=True)
class PolicyTerms:
    """The loss of each token, and where clipping took its gradient away.

    losses         float32[B, T]
    clipped_low    bool[B, T]: the ratio is below 1 - low, the advantage negative
    clipped_high   bool[B, T]: the ratio is above 1 + high, the advantage positive
    """

    losses: Tensor
    clipped_low: Tensor
    clipped_high: Tensor


def policy_terms(
    new: Tensor, old: Tensor, advantage: Tensor, *, low: float = 0.2, high: float = 0.28
) -> PolicyTerms:
    """The clipped objective, negated, with a wider bound above (clip-higher).

    new        float32[B, T]: log probabilities by the model that is trained
    old        float32[B, T]: by the model that sampled the tokens
    advantage  float32[B] of each sample
    """
    ratio = (new - old).exp()
    gain = advantage.unsqueeze(-1)
    losses = -torch.minimum(ratio * gain, ratio.clamp(1 - low, 1 + high) * gain)
    return PolicyTerms(losses, (ratio < 1 - low) & (gain < 0), (ratio > 1 + high) & (gain > 0))


def token_mean(losses: Tensor, mask: Tensor, *, tokens: int) -> Tensor:
    """The mean over all tokens of a batch, so that each token of a long answer counts as much as
    one of a short answer.

    mask    bool[B, T]: which places are tokens of an answer
    tokens  how many tokens the whole batch has: parts of a batch add up to its mean
    """
    check_positive(tokens, "tokens")
    return torch.where(mask, losses, 0.0).sum() / tokens
