"""When the edge sends what it drafted, and how far it drafts ahead of the verdict.

This is lossless. Every committed token comes from the cloud, and every drafted token goes there in
its order, or is dropped because the cloud rejected one before it. The gate drops none: it looks at
a token's own probability only to stop *after* it. So the text is the same with any thresholds.

    hard token   a signal beyond its threshold, or a rule that marks it
    hard ratio   hard tokens / k, of a block of k tokens
    block rule   hard ratio > R_hard: send the whole block, and wait for the verdict

A hard token that does not trigger the block rule ends a micro-batch: send it with all before it,
and draft ahead half as far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import IntsLike, check_positive
from foresay.edge.gating.rules import Rules
from foresay.errors import InputError
from foresay.sampling.signals import Signals

__all__ = [
    "OFF",
    "Decision",
    "Gate",
    "Thresholds",
    "block_rule",
    "hard_ratio",
    "nll_threshold",
    "usual_gate",
]

Bools: TypeAlias = NDArray[np.bool_]


def _check(name: str, value: float | None, most: float) -> None:
    if value is not None and not 0 <= value <= most:
        what = "0 or more" if most == math.inf else f"0 to {most:g}"
        raise InputError(f"{name} is {value!r}; expected None or a number, {what}")


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Beyond which value a token is hard; None: the signal is not used.

    nll            above it, in nats; None until `nll_threshold` has seen real drafts
    entropy_bits   above it, in bits
    margin         below it
    variance       above it
    hard_ratio     R_hard of the block rule

    Equal to a threshold is not beyond it. Raises: InputError when constructed.
    """

    nll: float | None = None
    entropy_bits: float | None = 2.5
    margin: float | None = 0.2
    variance: float | None = None
    hard_ratio: float = 0.3

    def __post_init__(self) -> None:
        for name, most in (("nll", math.inf), ("entropy_bits", math.inf), ("margin", 1.0)):
            _check(name, getattr(self, name), most)
        _check("variance", self.variance, 1.0)
        if self.hard_ratio is None:
            raise InputError("hard_ratio is None; expected a number from 0 to 1")
        _check("hard_ratio", self.hard_ratio, 1.0)


OFF = Thresholds(entropy_bits=None, margin=None)
"""No signal is used: without rules, blocks of k tokens are sent and nothing is hard."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What to do now.

    send         how many of the tokens that are drafted and not sent are sent now, the first ones
    ahead        how many more tokens may be drafted before the next verdict; 0: wait for it
    hard_ratio   of the tokens without a verdict
    blocked      whether the block rule holds
    """

    send: int
    ahead: int
    hard_ratio: float
    blocked: bool


class Gate:
    """Thresholds and rules; the same input gives the same decision.

    `rules` of None marks no token by its text.
    """

    def __init__(self, thresholds: Thresholds | None = None, rules: Rules | None = None) -> None:
        self.thresholds = Thresholds() if thresholds is None else thresholds
        self.rules = rules

    def hard(
        self,
        signals: Signals | None = None,
        *,
        text: str | None = None,
        offsets: Any = None,
        tokens: IntsLike = (),
    ) -> Bools:
        """Which drafted tokens are hard, bool[n]: by a signal or by a rule.

        A signal that is not known marks nothing. The rules are asked if there is a `text`, with the
        `offsets` and `tokens` that `Rules.mask` takes.

        Raises: InputError for signals and offsets of different lengths, a text
        without offsets, or neither signals nor text.
        """
        found = []
        if signals is not None:
            found.append(self._uncertain(signals))
        if text is not None:
            if offsets is None:
                raise InputError("there is a text without offsets; expected those of the tokens")
            rules = Rules(()) if self.rules is None else self.rules
            found.append(rules.mask(text, offsets, tokens))
        if not found:
            raise InputError("there are neither signals nor a text; expected one of them or both")
        if found[0].size != found[-1].size:
            raise InputError(
                f"there are signals of {found[0].size} tokens and offsets of {found[-1].size}; "
                "expected equally many"
            )
        return found[0] | found[-1]

    def _uncertain(self, signals: Signals) -> Bools:
        limits = self.thresholds
        hard = np.zeros(len(signals), np.bool_)
        for values, limit in (
            (signals.nll, limits.nll),
            (signals.entropy_bits, limits.entropy_bits),
            (signals.variance, limits.variance),
        ):
            if values is not None and limit is not None:
                hard |= values > limit
        if signals.margin is not None and limits.margin is not None:
            hard |= signals.margin < limits.margin
        return hard

    def decide(
        self,
        hard: Sequence[bool] | Bools,
        *,
        sent: int,
        k: int,
        window: int,
        done: bool = False,
    ) -> Decision:
        """What to send now, and how far to draft on.

        hard     of all tokens without a verdict, in order: the first `sent` of them were sent
        k        the length of a block: so many tokens are sent even if none is hard
        window   how many tokens may be without a verdict at a time
        done     the drafter has no more tokens

        The ratio is hard tokens / k already while the block grows, and / n once it has n > k
        tokens: a block that is certain to be above R_hard is not drafted to its end.
        Whoever has to wait has sent everything: `ahead` of 0 implies that all tokens are sent.

        Raises: InputError for `sent` outside 0 to n, k or window below 1.
        """
        check_positive(k, "k")
        check_positive(window, "window")
        marks = _marks(hard)
        n = marks.size
        if type(sent) is not int or not 0 <= sent <= n:
            raise InputError(f"sent is {sent!r}; expected a whole number from 0 to {n}")
        ratio = int(marks.sum()) / max(k, n)
        blocked = ratio > self.thresholds.hard_ratio
        if blocked or done:
            return Decision(n - sent, 0, ratio, blocked)
        room = max(1, window // 2) if marks.any() else window
        ahead = max(0, room - n)
        unsent = marks[sent:]
        if not ahead or unsent.size >= k:
            send = unsent.size
        else:
            send = int(np.flatnonzero(unsent)[-1]) + 1 if unsent.any() else 0
        return Decision(send, ahead, ratio, blocked)


def usual_gate(word_counts: Mapping[str, int] | None = None) -> Gate:
    """All signals and rules: a token below a chance of 0.3 is hard, one whose chance varies by 0.1
    over passes with dropout, and what the rules mark; rare words by these counts."""
    return Gate(Thresholds(nll=1.2, variance=0.01), Rules(word_counts=word_counts))


def hard_ratio(hard: Sequence[bool] | Bools) -> float:
    """The share of hard tokens in a block; 0 for an empty one."""
    marks = _marks(hard)
    return int(marks.sum()) / marks.size if marks.size else 0.0


def block_rule(hard: Sequence[bool] | Bools, most: float = 0.3) -> bool:
    """Whether a whole block is hard: hard ratio > `most`. Equal is not enough."""
    return hard_ratio(hard) > most


def nll_threshold(nlls: Sequence[float] | NDArray[Any], quantile: float = 0.8) -> float:
    """The threshold that this share of real drafted tokens stays at or below: one of `nlls`.

    Raises: InputError without values, for NaN, or if that value is infinite.
    """
    values = np.asarray(nlls)
    if not values.size or values.dtype.kind not in "iuf" or np.isnan(values).any():
        raise InputError(f"nlls are {nlls!r}; expected one number or more, none of them nan")
    if not 0 <= quantile <= 1:
        raise InputError(f"quantile is {quantile!r}; expected 0 to 1")
    found = float(np.quantile(values, quantile, method="inverted_cdf"))
    if not math.isfinite(found):
        raise InputError(f"the quantile {quantile} of nlls is {found}; expected a finite number")
    return found


def _marks(hard: Sequence[bool] | Bools) -> Bools:
    marks = np.asarray(hard)
    if marks.ndim != 1 or (marks.size and marks.dtype != np.bool_):
        raise InputError(f"hard is {hard!r}; expected True or False per token")
    return marks.astype(np.bool_)
