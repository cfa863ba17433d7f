"""When the edge sends what it drafted, and how far it drafts ahead of the verdict: the gate.

This is lossless. Every committed token comes from the cloud, and every drafted token goes there in
its order, or is dropped because the cloud rejected one before it. The gate drops none: it looks at
a token's own probability only to stop *after* it. So the text is the same with any thresholds.

    hard token   a signal beyond its threshold, or a rule that marks it
    hard ratio   hard tokens / k, of a block of k tokens
    block rule   hard ratio > R_hard: send the whole block, and wait for the verdict

A hard token that does not trigger the block rule ends a micro-batch: send it with all before it,
and draft ahead half as far. `auc` is for choosing signals: it says whether one foretells rejection.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import IntsLike, check_positive
from foresay.edge.text_rules import Rules
from foresay.errors import InputError
from foresay.sampling.signals import Signals

__all__ = [
    "OFF",
    "Auc",
    "Decision",
    "Gate",
    "Thresholds",
    "auc",
    "auc_by_signal",
    "nll_threshold",
    "usual_gate",
]

Bools: TypeAlias = NDArray[np.bool_]


_SIGNALS = {"nll": 1, "entropy_bits": 1, "margin": -1, "variance": 1}
"""The signals of `sampling.signals.Signals`; 1: a token is hard above the threshold, -1: below."""
_MOST = {"nll": math.inf, "entropy_bits": math.inf, "margin": 1.0, "variance": 1.0}
"""Their largest values."""


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
        if self.hard_ratio is None:
            raise InputError("hard_ratio is None; expected a number from 0 to 1")
        for name, most in {**_MOST, "hard_ratio": 1.0}.items():
            value = getattr(self, name)
            if value is not None and not 0 <= value <= most:
                what = "0 or more" if most == math.inf else f"0 to {most:g}"
                raise InputError(f"{name} is {value!r}; expected None or a number, {what}")


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

        A signal that is not known marks nothing. The rules count if there is a `text`, with the
        `offsets` and `tokens` that `Rules.mask` takes.

        Raises: InputError for signals and offsets of different lengths, a text without offsets, or
        neither signals nor text.
        """
        marks: list[Bools] = []
        if signals is not None:
            uncertain = np.zeros(len(signals), np.bool_)
            for name, side in _SIGNALS.items():
                values, limit = getattr(signals, name), getattr(self.thresholds, name)
                if values is not None and limit is not None:
                    uncertain |= side * values > side * limit
            marks.append(uncertain)
        if text is not None:
            if offsets is None:
                raise InputError("there is a text without offsets; expected those of the tokens")
            rules = Rules(()) if self.rules is None else self.rules
            marks.append(rules.mask(text, offsets, tokens))
        if not marks:
            raise InputError("there are neither signals nor a text; expected one of them or both")
        if marks[0].size != marks[-1].size:
            raise InputError(
                f"there are signals of {marks[0].size} tokens and offsets of {marks[-1].size}; "
                "expected equally many"
            )
        return marks[0] | marks[-1]

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
        k        the length of a block: the tokens that are sent even if none is hard
        window   how many tokens may be without a verdict at a time
        done     the drafter has no more tokens

        The ratio is hard tokens / k already while the block grows, and / n once it has n > k
        tokens: a block that is certain to be above R_hard is not drafted to its end.
        Whoever has to wait has sent everything: `ahead` of 0 implies that all tokens are sent.

        Raises: InputError for `sent` outside 0 to n, k or window below 1.
        """
        check_positive(k, "k")
        check_positive(window, "window")
        marks = _marks(hard, "hard")
        n = marks.size
        if type(sent) is not int or not 0 <= sent <= n:
            raise InputError(f"sent is {sent!r}; expected a whole number from 0 to {n}")
        ratio = int(marks.sum()) / max(k, n)
        blocked = ratio > self.thresholds.hard_ratio
        if blocked or done:
            return Decision(n - sent, 0, ratio, blocked)
        ahead = max(0, (max(1, window // 2) if marks.any() else window) - n)
        send = n - sent
        if ahead and send < k:  # no further than to the last hard one
            send = max((np.flatnonzero(marks[sent:]) + 1).tolist(), default=0)
        return Decision(send, ahead, ratio, blocked)


def usual_gate(word_counts: Mapping[str, int] | None = None) -> Gate:
    """All signals and rules: a token below a chance of 0.3 is hard, one whose chance varies by 0.1
    over passes with dropout, and what the rules mark; rare words by these counts."""
    return Gate(Thresholds(nll=1.2, variance=0.01), Rules(word_counts=word_counts))


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


class Auc(NamedTuple):
    """The area under the ROC curve: the chance that a rejected token has a larger signal than an
    accepted one, where a tie counts half. 1: the signal separates them; .5: it says nothing; below
    .5: it points the other way. None if there is no rejected or no accepted token.

    Only examined tokens count: the accepted ones and the first rejected one of each draft. What
    became of the tokens behind a rejection is not known.
    """

    area: float | None
    rejected: int
    accepted: int


def auc(signal: Sequence[float] | NDArray[Any], rejected: Sequence[bool] | Bools) -> Auc:
    """The area of a signal that is *large* where the drafter is uncertain; for the margin, pass
    its negative. inf is a value like any other.

    Exact: pairs are counted in whole numbers and divided once. Raises: InputError, also for NaN.
    """
    values = Signals(nll=np.asarray(signal)).nll  # which checks it
    assert values is not None
    lost = _marks(rejected, "rejected")
    if values.size != lost.size:
        raise InputError(
            f"there are {values.size} signals and {lost.size} outcomes; expected equally many"
        )
    bad, good = values[lost], np.sort(values[~lost])
    if not bad.size or not good.size:
        return Auc(None, bad.size, good.size)
    below, up_to = (np.searchsorted(good, bad, side=side) for side in ("left", "right"))
    return Auc(int((below + up_to).sum()) / (2 * bad.size * good.size), bad.size, good.size)


def auc_by_signal(signals: Signals, rejected: Sequence[bool] | Bools) -> dict[str, Auc]:
    """The area of each known signal by its name; the margin is turned round."""
    return {
        name: auc(side * values, rejected)
        for name, side in _SIGNALS.items()
        if (values := getattr(signals, name)) is not None
    }


def _marks(marks: Sequence[bool] | Bools, name: str) -> Bools:
    """True or False per token, as an array. Raises: InputError."""
    values = np.asarray(marks)
    if values.ndim != 1 or (values.size and values.dtype != np.bool_):
        raise InputError(f"{name} is {marks!r}; expected True or False per token")
    return values.astype(np.bool_)
