"""The link between edge and cloud: what a round costs, and how many tokens to draft for it.

    blocking      draft k tokens, send them, wait: (k t_d + RTT + t_v) / E(k) seconds per token
    draft-ahead   draft on while the verdict is on its way, and lose a round trip only at a
                  rejection: t_d + (RTT + t_v) / E(infinity), a bound
    cloud only    the cloud streams by itself: t_v

t_d are the edge's seconds per drafted token, RTT those of the network alone, t_v those of the
cloud. E(k) = 1 + S_1 + ... + S_k are the tokens that a round commits, where S_i is the chance that
position i is accepted with all before it: the survival curve. Acceptance is not one number: it
falls, or rises, with the position. With one number a, S_i = a^i and 1 / E(infinity) = 1 - a.

No clock is read here: rounds are told to `Link.observe` as measured. Choices are for speed alone;
what is committed does not depend on them.
"""

from __future__ import annotations

import math
import sys
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import check_positive
from foresay.budget.policy import DynamicK
from foresay.errors import InputError

__all__ = [
    "START",
    "AcceptanceRule",
    "EdgeK",
    "HasWindow",
    "Link",
    "LinkRule",
    "Round",
    "Times",
    "best_k",
    "blocking_seconds",
    "check_seconds",
    "window_of",
]

Doubles: TypeAlias = NDArray[np.float64]
Curve: TypeAlias = Sequence[float] | NDArray[Any]

_PRIOR = 16  # observations that the position before is worth


def check_seconds(name: str, value: object) -> None:
    """Refuse what is no number of seconds. Raises: InputError."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not (number and 0 <= value <= sys.float_info.max):  # type: ignore[operator]
        raise InputError(
            f"{name} is {value!r:.100}; expected a finite number of seconds, 0 or more"
        )


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds: `rtt` of the network without the cloud's own time, `draft` of one drafted token,
    `verify` of one verification in the cloud, with its queue.

    Raises: InputError for one that is not finite or below 0.
    """

    rtt: float
    draft: float
    verify: float

    def __post_init__(self) -> None:
        for name in ("rtt", "draft", "verify"):
            check_seconds(name, getattr(self, name))


START = Times(rtt=0.05, draft=0.003, verify=0.015)
"""What is assumed before anything was measured."""


@dataclass(frozen=True, slots=True)
class Round:
    """One verified draft as measured; a time of None was not measured.

    sent        tokens that the cloud verified
    accepted    how many of them it accepted, from the first
    rtt         seconds of the network, without the cloud's own time
    draft       seconds that the edge took for all `sent` tokens
    verify      seconds from the draft's arrival in the cloud to the verdict
    bytes_up, bytes_down   on the wire
    examined    of `sent` tokens those whose predecessors were all accepted; None: as in a chain
    hard        of `sent` tokens, by the gate; None: there is none

    Raises: InputError for a value that is not valid.
    """

    sent: int
    accepted: int
    rtt: float | None = None
    draft: float | None = None
    verify: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    hard: int | None = None
    examined: int | None = None

    @property
    def la_over_k(self) -> float | None:
        """Accepted by sent tokens; None: nothing was sent."""
        return self.accepted / self.sent if self.sent else None

    @property
    def alpha_mean(self) -> float | None:
        """Accepted by examined tokens; None: none was examined."""
        examined = min(self.accepted + 1, self.sent) if self.examined is None else self.examined
        return self.accepted / examined if examined else None

    def __post_init__(self) -> None:
        bounds = {
            "sent": (0, math.inf, ""),
            "accepted": (0, self.sent, ", as sent"),
            "examined": (self.accepted, self.sent, ", as sent"),
            "hard": (0, self.sent, ", as sent"),
            "bytes_up": (0, math.inf, ""),
            "bytes_down": (0, math.inf, ""),
        }
        for name, (least, most, why) in bounds.items():
            value = getattr(self, name)
            if value is None and name in ("examined", "hard"):
                continue
            if type(value) is not int or not least <= value <= most:
                raise InputError(
                    f"{name} is {value!r}; expected a whole number from {least} to {most}{why}"
                )
        for name in ("rtt", "draft", "verify"):
            if getattr(self, name) is not None:
                check_seconds(name, getattr(self, name))


def blocking_seconds(survival: Curve, times: Times) -> Doubles:
    """Seconds per token if every round drafts k tokens and waits, for k = 0 to len(survival)."""
    tokens = 1 + np.append(0.0, np.cumsum(survival))
    seconds = np.arange(tokens.size) * times.draft + times.rtt + times.verify
    per_token: Doubles = seconds / tokens
    return per_token


def best_k(survival: Curve, times: Times, *, least: int = 1, most: int = 64) -> tuple[int, float]:
    """(k, seconds per token): the k from `least` to `most` that is fastest with blocking; of
    equally fast ones the smallest. A curve shorter than `most` is a bound too.

    Raises: InputError for bounds outside 0 to len(survival).
    """
    per_token = blocking_seconds(survival, times)
    last = min(most, per_token.size - 1)
    if not 0 <= least <= last:
        raise InputError(f"least is {least}; expected 0 to {last}, the largest k")
    k = least + int(per_token[least : last + 1].argmin())
    return k, float(per_token[k])


def window_of(k: int, times: Times, *, most: int = 256) -> int:
    """Tokens without a verdict that keep the link full: those that are drafted until a verdict is
    back, ceil((RTT + t_v) / t_d), and a draft of `k`; at most `most`."""
    check_positive(k, "k")
    check_positive(most, "most")
    waiting = times.rtt + times.verify
    if waiting >= times.draft * most:  # also if drafting takes no time
        return most
    return min(most, math.ceil(waiting / times.draft) + k)


class Link:
    """What was measured of the link and both machines, kept current.

    start         times before anything was measured; the first measurement replaces each
    acceptance    of a position before anything was measured
    longest       positions of the survival curve
    memory        how many observations of a position count: older ones fade
    recent        how many round trips a quantile is taken over

    Raises: InputError when constructed.
    """

    def __init__(
        self,
        *,
        start: Times = START,
        acceptance: float = 0.7,
        longest: int = 64,
        memory: int = 200,
        recent: int = 64,
    ) -> None:
        for name, value in (("longest", longest), ("memory", memory), ("recent", recent)):
            check_positive(value, name)
        if not 0 <= acceptance <= 1:
            raise InputError(f"acceptance is {acceptance!r}; expected 0 to 1")
        self._start = start
        self._prior = acceptance
        self._keep = 1 - 1 / memory
        self._ewmas: dict[str, float] = {}
        self._rtts: deque[float] = deque(maxlen=recent)
        self._examined = np.zeros(longest)  # by position, faded
        self._accepted = np.zeros(longest)

    def observe(self, done: Round) -> None:
        """Learn from one round.

        A position counts as examined if all before it were accepted; those behind a rejection say
        nothing. What is known of positions beyond the draft fades, so that they are tried again.
        """
        self._follow("rtt", done.rtt)
        self._follow("verify", done.verify)
        if done.draft is not None and done.sent:
            self._follow("draft", done.draft / done.sent)
        if done.rtt is not None:
            self._rtts.append(done.rtt)
        examined = min(done.accepted + 1, done.sent, self._examined.size)
        self._examined[:examined] = self._examined[:examined] * self._keep + 1
        self._accepted[:examined] *= self._keep
        self._accepted[: min(done.accepted, examined)] += 1
        if done.sent:
            self._examined[done.sent :] *= self._keep
            self._accepted[done.sent :] *= self._keep

    def _follow(self, name: str, value: float | None) -> None:
        if value is not None:
            old = self._ewmas.get(name, value)
            self._ewmas[name] = old + (value - old) / 8  # as TCP's smoothed round-trip time

    @property
    def times(self) -> Times:
        """The moving averages, or `start` where nothing was measured."""
        known, start = self._ewmas, self._start
        return Times(
            known.get("rtt", start.rtt),
            known.get("draft", start.draft),
            known.get("verify", start.verify),
        )

    def rtt_quantile(self, q: float = 0.9) -> float:
        """The round-trip time that this share of the recent rounds stayed at or below: one of
        theirs, or `start` before the first.

        Raises: InputError for q outside 0 to 1.
        """
        if not 0 <= q <= 1:
            raise InputError(f"q is {q!r}; expected 0 to 1")
        if not self._rtts:
            return self._start.rtt
        return float(np.quantile(self._rtts, q, method="inverted_cdf"))

    def survival(self) -> Doubles:
        """S_i for i = 1 to `longest`: the chance that position i and all before it are accepted.

        A position begins with what the one before it has, as if observed 16 times, and position 1
        with `acceptance`. So positions that were never tried continue the curve.
        """
        chances, before = np.empty(self._examined.size), self._prior
        pairs = zip(self._accepted.tolist(), self._examined.tolist(), strict=True)
        for at, (accepted, examined) in enumerate(pairs):
            before = (accepted + _PRIOR * before) / (examined + _PRIOR)
            chances[at] = before
        curve: Doubles = np.cumprod(chances).astype(np.float64)
        return curve

    def best_k(self, *, least: int = 1, most: int = 64) -> int:
        """The k that is fastest with blocking, by what is known now.

        Raises: InputError for bounds outside 0 to `longest`.
        """
        return best_k(self.survival(), self.times, least=least, most=most)[0]

    def window(self, k: int, *, q: float = 0.9, most: int = 256) -> int:
        """Tokens without a verdict that keep the link full with this quantile of the round-trip
        time, as `window_of`."""
        times = self.times
        slow = Times(max(times.rtt, self.rtt_quantile(q)), times.draft, times.verify)
        return window_of(k, slow, most=most)


@runtime_checkable
class EdgeK(Protocol):
    """How many tokens the edge drafts for the next round."""

    def next_k(self) -> int:
        """Until the next `observe` always the same."""
        ...

    def observe(self, done: Round) -> None:
        """Learn from a round; one that sent nothing changes no k."""
        ...


@runtime_checkable
class HasWindow(Protocol):
    """Of an `EdgeK` that also says how many tokens may be in flight."""

    def window(self) -> int:
        """How many tokens may be without a verdict at a time, at least 1."""
        ...


class AcceptanceRule:
    """k + 1 if `up` of the draft or more was accepted, k - 1 if `down` or less: `DynamicK` for one
    stream. It knows nothing of times.

    Raises: InputError when constructed.
    """

    def __init__(
        self, *, k: int = 6, least: int = 3, most: int = 12, up: float = 0.8, down: float = 0.4
    ) -> None:
        self._rule = DynamicK(k=k, least=least, most=most, up=up, down=down)
        self._k = k

    def next_k(self) -> int:
        """As `EdgeK`."""
        return self._k

    def observe(self, done: Round) -> None:
        """As `EdgeK`."""
        if done.sent:
            self._k = self._rule.next_k(self._k, done.accepted, done.sent)


class LinkRule:
    """The k that is fastest by what the link was measured to be. `window()` is for draft-ahead.

    Raises: InputError for bounds outside 1 to the link's `longest`.
    """

    def __init__(self, link: Link | None = None, *, least: int = 1, most: int = 64) -> None:
        self.link = Link() if link is None else link
        check_positive(least, "least")
        self._least, self._most = least, most
        self._k = self.link.best_k(least=least, most=most)

    def next_k(self) -> int:
        """As `EdgeK`."""
        return self._k

    def observe(self, done: Round) -> None:
        """As `EdgeK`; the link learns too."""
        self.link.observe(done)
        if done.sent:
            self._k = self.link.best_k(least=self._least, most=self._most)

    def window(self) -> int:
        """How many tokens may be without a verdict at a time, at least 1."""
        return self.link.window(self._k)
