"""The default policy: verify what pays, on this machine, for this load, by calibrated scores.

A step commits one token per request and the nodes that are accepted. Taken best first over the
whole batch, n nodes are expected to make B + (sum of n chances) tokens in a time that the measured
cost model knows. The n with the most tokens per second is taken. Costs rise in stairs, so every n
is tried, also 0. Where a load has urgencies, a request's tokens count by what they save: a row, and
for the last request the rest of a step (`urgency.worth_of_tokens`). For a request whose
tokens are worth next to nothing nothing is drafted.

What is never tried is never learned. A small share of the time (0.4 %) may be lost on verifying
more than seems to pay, and as much on drafting more (`trials`): each has an account of its own, so
that the trials of one never take those of the other.

One step is `budgets`, `choose`, `observe`, in this order and of one `Load`; a step without drafts
may leave out `choose`. The next step may begin before this one is observed. A drafter that decides
by itself whether some of its work pays is told the `price` of time between the first two, and what
it `spent` on such work is not weighed here again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresay import _core
from foresay.arrays import sizes_of
from foresay.budget.calibration import Calibration
from foresay.budget.cost import StepCost, seconds_lost
from foresay.budget.draft_size import DraftSize
from foresay.budget.load import Load, StepFacts, within_max_tokens
from foresay.budget.price import PriceOfTime
from foresay.budget.selected import SelectedNodes
from foresay.budget.trials import MOST_LOSS, SHARE, TrialAccount
from foresay.budget.urgency import worth_of_tokens
from foresay.draft import DraftBatch
from foresay.errors import InputError

__all__ = ["Adaptive"]

_NONE = np.empty(0, np.int32)
_LEAST_REACH = 8  # nodes
_FORGETS = 0.95  # a step's share of what the last steps verified
_LEAST_WORTH = 0.1  # of a token; for requests below it nothing is drafted
_COME = 2  # tokens, until a step can verify what was looked at: see `engine.ahead`
_STEPS = 4  # that were begun and not observed: see `engine.ahead`


class _Trial(NamedTuple):
    """More than seems to pay: drafted (without `chosen`), or verified."""

    seconds_per_token: float  # of the best choice as far as known
    chosen: SelectedNodes | None = None
    extra: NDArray[np.int64] | None = None  # the nodes of `chosen` that are more
    price: float = 0.0  # the seconds they take


@dataclass(slots=True, eq=False)
class _Begun:
    """What is remembered of a step from `budgets` to `observe`."""

    load: Load  # its tokens count by what they are worth
    asked: int = 0  # nodes of a request
    drafting_for: int = 0  # requests
    plain: float = 0.0  # expected seconds without drafts and other rows
    spent: float = 0.0  # on drafts that the drafter itself has weighed
    trial: _Trial | None = None


class Adaptive:
    """Nodes by chance over the whole batch, as many as raise tokens per second.

    cost    how long a step takes; this policy keeps it current
    most    nodes that one request may draft
    total   nodes that all requests together may draft; each may always draft 4
    share   of the time, which trials may lose

    Raises: InputError when constructed.
    """

    name = "adaptive"

    def __init__(
        self, cost: StepCost, *, most: int = 32, total: int = 512, share: float = SHARE
    ) -> None:
        for name, value in (("most", most), ("total", total)):
            if type(value) is not int or not 1 <= value <= 4096:
                raise InputError(f"{name} is {value!r}; expected a whole number from 1 to 4096")
        if not 0 <= share < 1:
            raise InputError(f"share is {share!r}; expected a number from 0 to less than 1")
        self.cost = cost
        self._most = most
        self._total = total
        self._calibration = Calibration()
        self._draft_size = DraftSize(most)
        self._account = TrialAccount(share)  # of verifying more
        self._drafting_account = TrialAccount(share)  # of drafting more
        self._verified = float(most)  # nodes of a request: the most of the last steps
        self._price = PriceOfTime()
        # The steps that were not observed yet, by the load they were given; a step may fail.
        self._begun: deque[tuple[Load, _Begun]] = deque(maxlen=_STEPS)

    def budgets(self, load: Load) -> list[int]:
        """Nodes each request may draft: as many as are worth the time of drafting."""
        step = self._begin(load)
        self._begun.append((load, step))
        cap = self._cap(step)
        if self._looking(step):
            step.asked = cap
            return self._for_each(step, cap)
        if not cap:
            return self._for_each(step, 0)
        plan = self._draft_size.plan(self.cost, cap, step.load, step.drafting_for, step.plain)
        step.asked = plan.best
        if plan.trial and self._drafting_account.covers(plan.loss):
            # Its price: the draft, and verification beyond a plain step. See `observe`.
            step.asked = plan.trial
            step.trial = _Trial(plan.seconds_per_token)
        return self._for_each(step, step.asked)

    def goes_ahead(self, load: Load) -> bool:
        """Whether nothing is to be drafted, or drafts can be looked at meanwhile."""
        step = self._begin(load)
        if step.drafting_for and not self._looking(step):
            return not any(self.budgets(load))
        self._begun.append((load, step))
        return True

    def looks(self, load: Load) -> list[int]:
        """As many nodes as `budgets`, where drafting takes less than a step."""
        step = self._begin(load)
        return self._for_each(step, self._cap(step) if self._looking(step) else 0)

    def pays(self, drafts: DraftBatch, load: Load) -> bool:
        """Whether the step that could verify their rest, two tokens later, is expected to make more
        tokens per second, with all that the host does for it."""
        step = self._begin(load)
        step.asked = self._cap(step)
        within = within_max_tokens(drafts, load)
        if not within.any():
            return False
        order, gains = self._ranked_within(drafts, step, within)
        gains[drafts.depths[order] <= _COME] = 0
        tokens, times = self._tokens_and_times(drafts, step, order, gains)
        return bool((tokens / times).argmax())

    def saw(self, firsts: DraftBatch, right: NDArray[np.bool_], load: Load) -> None:
        """Calibrate by what came without being verified."""
        self._calibration.observe(firsts, right, load.tenants, load.ids)

    def _begin(self, load: Load) -> _Begun:
        """A step, before anything is asked for."""
        step = _Begun(self._with_worth(load))
        count = len(load)
        if count:
            step.plain = self.cost.of(count, load.keys, load.keys, count)
            step.drafting_for = int((self._left(step) > 1).sum())
        return step

    def _left(self, step: _Begun) -> NDArray[np.int64]:
        """How many tokens each request may still get that are worth something."""
        load = step.load
        if load.weights is None:
            return load.tokens_left
        return np.where(load.weights >= _LEAST_WORTH, load.tokens_left, 0)

    def _cap(self, step: _Begun) -> int:
        """Nodes that a request may draft, at most."""
        if not step.drafting_for:
            return 0
        return min(self._most, max(4, self._total // step.drafting_for), self._reach())

    def _for_each(self, step: _Begun, asked: int) -> list[int]:
        return [asked if n > 1 else 0 for n in self._left(step).tolist()]

    def _looking(self, step: _Begun) -> bool:
        """Whether drafts can be looked at while a device computes."""
        drafting = self._draft_size
        return (
            step.load.overlaps
            and not drafting.weighs
            and drafting.seconds(self._cap(step)) < step.plain
        )

    def _reach(self) -> int:
        """Nodes of a request that may be worth verifying: twice as many as lately. Where few are, a
        drafter that makes many takes time for nothing."""
        return max(_LEAST_REACH, 1 << (2 * math.ceil(self._verified) - 1).bit_length())

    def price(self, load: Load) -> tuple[float, float, float]:
        """The seconds that a committed token is worth in this step, those of a verified node, and
        of the step without drafts; after `budgets`, of the same load. The drafter that is told
        weighs by it what its slow work gains.
        """
        self._draft_size.weighs = True
        return self._price.of(self.cost, load, self._step_of(load).plain)

    def spent(self, seconds: float) -> None:
        """So much of the last step's drafting was weighed by the drafter, by that price."""
        if self._begun:
            self._begun[-1][1].spent = seconds

    def choose(self, drafts: DraftBatch, load: Load) -> SelectedNodes:
        """The nodes worth verifying.

        Raises: InputError for a number of drafts that does not fit the load.
        """
        drafts = DraftBatch.of(drafts)
        step = self._step_of(load)
        load = step.load
        within = within_max_tokens(drafts, load)
        if not within.any():
            return SelectedNodes(drafts, within)
        order, gains = self._ranked_within(drafts, step, within)
        tokens, times = self._tokens_and_times(drafts, step, order, gains)
        best = taken = int((tokens / times).argmax())
        if best < len(order):
            taken = self._tried(best, tokens, times)
        keep = np.zeros(len(within), bool)
        keep[order[:taken]] = True
        chosen = SelectedNodes(drafts, keep)
        if taken > best and step.trial is None:
            extra = chosen.flat.searchsorted(order[best:taken])
            price = float(times[taken] - times[best])
            step.trial = _Trial(float(times[best] / tokens[best]), chosen, extra, price)
        return chosen

    def _ranked_within(
        self, drafts: DraftBatch, step: _Begun, within: NDArray[np.bool_]
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        return self._ranked(drafts, step.load, None if within.all() else within.nonzero()[0])

    def _ranked(
        self, drafts: DraftBatch, load: Load, nodes: NDArray[np.int64] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Flat indices by falling gain, parents first, and the gains: chances, or by weight."""
        chances = self._calibration(drafts, load.tenants)
        worth = np.ones(len(drafts))
        if load.ids is not None:
            worth = self._calibration.factors(load.ids)
        if load.weights is not None:
            worth = worth * load.weights
        return _core.ranked(chances, drafts.offsets, worth, nodes)

    def _tokens_and_times(
        self,
        drafts: DraftBatch,
        step: _Begun,
        order: NDArray[np.int64],
        gains: NDArray[np.float64],
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """[n]: expected tokens and seconds of the step if the first n of `order` are verified."""
        load = step.load
        drafting = self._draft_size.seconds(step.asked) + step.spent
        tokens, times = self.cost.expected(
            order,
            gains,
            drafts.offsets,
            load.contexts,
            other_rows=load.other_rows,
            other_reads=load.other_reads,
            tokens=load.worth,
            seconds=drafting,
        )
        if load.overlaps:  # who verifies nothing does not wait for the host
            times[0] -= drafting
        return tokens, times

    def _tried(self, best: int, tokens: NDArray[np.float64], times: NDArray[np.float64]) -> int:
        """`best`, or more if the account covers what seems to be lost by it."""
        loss = seconds_lost(tokens, times, times[best] / tokens[best])
        bearable = np.flatnonzero(loss <= MOST_LOSS * times[0])
        taken = int(bearable[-1])
        return taken if taken > best and self._account.covers(float(loss[taken])) else best

    def observe(self, step: StepFacts) -> None:
        """Learn what the step took and what its nodes were worth.

        Mutates: the cost model, the calibration, the account.
        """
        begun = self._step_of(step.load)
        while self._begun and self._begun.popleft()[1] is not begun:
            pass  # it was begun before, and failed
        load, drafts = begun.load, step.chosen.drafts
        requests, nodes = len(load), len(drafts.tokens)
        keys = load.keys
        rows, reads = requests + load.other_rows, keys + load.other_reads
        self._verified *= _FORGETS
        if nodes:
            counts = sizes_of(drafts.offsets)
            self._verified = max(self._verified, float(counts.max()))
            reads += int(counts @ load.contexts) + nodes
            self._calibration.observe(drafts, step.accepted, load.tenants, load.ids)
        self.cost.observe(rows + nodes, reads, step.seconds, keys, requests)
        drafting = max(step.draft_seconds - begun.spent, 0.0)
        places = step.chosen.nodes if nodes else _NONE
        self._draft_size.observe(begun.asked, drafting, begun.drafting_for, places, step.accepted)
        self._price.observe(step, begun.plain)
        self._settle(step, begun, rows + nodes, reads, keys)

    def _step_of(self, load: Load) -> _Begun:
        """What is remembered of the step with this load."""
        for given, step in reversed(self._begun):
            if given is load:
                return step
        return _Begun(self._with_worth(load))

    def _with_worth(self, load: Load) -> Load:
        """The load, with what a token is worth to each request on this machine as weights."""
        if load.weights is None or len(load) < 2:
            return load
        requests, keys = len(load), load.keys
        whole = self.cost.of(requests, keys, keys, requests)
        one = self.cost.of(1, keys / requests, keys / requests, 1)
        row = max(whole - one, 0.0) / (requests - 1)
        share = min(1.0, requests * row / whole) if whole > 0 else 1.0
        return replace(load, weights=worth_of_tokens(load.weights, share))

    def _settle(self, step: StepFacts, begun: _Begun, rows: int, reads: int, keys: int) -> None:
        """Pay the trial of this step from the account, or its gain into it."""
        trial, load = begun.trial, begun.load
        if trial is not None and trial.chosen is None:  # more was drafted
            rows, reads = rows - load.other_rows, reads - load.other_reads
            took = self.cost.of(rows, reads, keys, len(load)) + self._draft_size.seconds(
                begun.asked
            )
            won = float(load.worth_of(step.chosen.drafts) @ step.accepted)
            self._drafting_account.settle(
                seconds_lost(load.worth + won, took, trial.seconds_per_token)
            )
        elif trial is not None and trial.chosen is step.chosen:  # more was verified
            worth = load.worth_of(step.chosen.drafts)[trial.extra]
            won = float(worth @ step.accepted[trial.extra])
            self._account.settle(seconds_lost(won, trial.price, trial.seconds_per_token))
        for account in (self._account, self._drafting_account):
            account.earn(step.seconds + step.draft_seconds, begun.plain)
