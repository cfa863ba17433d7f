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

from foresay.arrays import sizes_of
from foresay.budget.calibration import Calibration
from foresay.budget.cost import Selection, StepCost, seconds_lost
from foresay.budget.draft_size import DraftSize
from foresay.budget.load import Load, StepFacts, check_drafts_of
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
_TOKENS_AHEAD = 2  # that come before what is left of a probe can be verified: see `engine.ahead`
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
        if self._probes(step):
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

    def runs_ahead(self, load: Load) -> bool:
        """Whether nothing is to be drafted, or drafts can be probed."""
        step = self._begin(load)
        if step.drafting_for and not self._probes(step):
            return not any(self.budgets(load))
        self._begun.append((load, step))
        return True

    def probe_budgets(self, load: Load) -> list[int]:
        """As many nodes as `budgets`, where drafting takes less than a step."""
        step = self._begin(load)
        return self._for_each(step, self._cap(step) if self._probes(step) else 0)

    def probe_pays(self, drafts: DraftBatch, load: Load) -> bool:
        """Whether the step that could verify their rest, two tokens later, is expected to make more
        tokens per second, with all that the host does for it."""
        step = self._begin(load)
        step.asked = self._cap(step)
        found = self._selection(drafts, step)
        gains = np.diff(found.tokens)
        gains[drafts.depths[found.order] <= _TOKENS_AHEAD] = 0
        tokens = found.tokens[0] + np.append(0.0, gains.cumsum())
        return bool((tokens / found.seconds).argmax())

    def observe_probe(self, firsts: DraftBatch, right: NDArray[np.bool_], load: Load) -> None:
        """Calibrate by what came without being verified."""
        self._calibration.observe(firsts, right, load.tenants, load.ids)

    def _begin(self, load: Load) -> _Begun:
        """A step, before anything is asked for."""
        step = _Begun(self._with_worth(load))
        count = len(load)
        if count:
            step.plain = self.cost.of(count, load.keys, load.keys, count)
            step.drafting_for = self._drafting(step.load).count(True)
        return step

    def _drafting(self, load: Load) -> list[bool]:
        """For which requests it is worth to draft: more than one token may come, and they count."""
        if load.weights is None and load.fewest_left > 1:
            return [True] * len(load)
        drafting = load.tokens_left > 1
        if load.weights is not None:
            drafting &= load.weights >= _LEAST_WORTH
        listed: list[bool] = drafting.tolist()
        return listed

    def _cap(self, step: _Begun) -> int:
        """Nodes that a request may draft, at most."""
        if not step.drafting_for:
            return 0
        return min(self._most, max(4, self._total // step.drafting_for), self._reach())

    def _for_each(self, step: _Begun, asked: int) -> list[int]:
        return [asked if drafting else 0 for drafting in self._drafting(step.load)]

    def _probes(self, step: _Begun) -> bool:
        """Whether drafts can be probed while a device computes."""
        drafting = self._draft_size
        return (
            step.load.probed
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
        found = self._selection(drafts, step)
        best, tokens, times = found.best, found.tokens, found.seconds
        keep = np.zeros(len(drafts.tokens), bool)
        keep[found.order[:best]] = True
        if found.most == best:
            return SelectedNodes(drafts, keep)
        per_token = float(times[best] / tokens[best])
        loss = float(seconds_lost(tokens[found.most], times[found.most], per_token))
        if not self._account.covers(loss):
            return SelectedNodes(drafts, keep)
        more = found.order[best : found.most]
        keep[more] = True
        chosen = SelectedNodes(drafts, keep)
        if step.trial is None:
            price = float(times[found.most] - times[best])
            step.trial = _Trial(per_token, chosen, chosen.flat.searchsorted(more), price)
        return chosen

    def _selection(self, drafts: DraftBatch, step: _Begun) -> Selection:
        """How many nodes are worth verifying, and which.

        Raises: InputError for a number of drafts that does not fit the load.
        """
        load = step.load
        check_drafts_of(drafts, load)
        worth = np.ones(len(load)) if load.ids is None else self._calibration.factors(load.ids)
        if load.weights is not None:
            worth = worth * load.weights
        return self.cost.selection(
            drafts,
            self._calibration(drafts, load.tenants),
            worth,
            load,
            seconds=self._draft_size.seconds(step.asked) + step.spent,
            bearable=MOST_LOSS,
        )

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
