"""How many drafted nodes a step verifies, and of which requests: the policies by name.

    none        nothing is drafted
    fixed       k nodes for every request
    threshold   k nodes while at most `batch` requests run, none above: the switch of rollouts
    dynamic-k   k goes up by 1 after a draft of which 80 % was accepted, down by 1 after one of
                which at most 40 % was; one k per request
    adaptive    what pays on this machine (`adaptive`), the default

A step calls `budgets` before it drafts, `choose` with the drafts, and `observe` with the outcome;
where all budgets are 0, nothing is chosen.
No policy changes a text; every one leaves out nodes beyond max_tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import sizes_of
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.load import Load, StepFacts, within_max_tokens
from foresay.budget.selected import SelectedNodes
from foresay.draft import DraftBatch
from foresay.drafter import MAX_BUDGET
from foresay.errors import InputError

__all__ = [
    "POLICIES",
    "DynamicK",
    "Fixed",
    "NoDrafts",
    "Policy",
    "Pricing",
    "ProbesDrafts",
    "Threshold",
    "make_policy",
]


@runtime_checkable
class Policy(Protocol):
    """Decides, step by step, how many nodes are drafted and which of them are verified. The next
    step may begin before the one before it is observed; a step is known by its `Load`."""

    name: str

    def budgets(self, load: Load) -> list[int]:
        """Nodes each request may draft; 0 where only 1 token is left. It may be asked of a step
        that is not computed then: only what is observed has happened.

        Mutates: what the policy remembers of this step. Valid until: for ever. Raises: nothing.
        GIL: held.
        """
        ...

    def choose(self, drafts: DraftBatch, load: Load) -> SelectedNodes:
        """Which of the drafted nodes are verified: with a node always its parent. Not called in a
        step in which all budgets are 0.

        Mutates: what the policy remembers of this step. Valid until: for ever. Raises: InputError
        for a number of drafts that does not fit the load. GIL: held.
        """
        ...

    def observe(self, step: StepFacts) -> None:
        """Learn the outcome of the step: once per step, also of one without drafts.

        Mutates: the policy. Valid until: outweighed by later steps. Raises: nothing. GIL: held.
        """
        ...


@runtime_checkable
class Pricing(Protocol):
    """A policy that knows what time is worth. Between `budgets` and `choose` a drafter that wants
    to know is told the price, and the policy what was spent by it.
    """

    def price(self, load: Load) -> tuple[float, float, float]:
        """The seconds that a committed token is worth in this step, those of a verified node, and
        of the step without drafts."""
        ...

    def spent(self, seconds: float) -> None:
        """So much of this step's drafting was weighed by the drafter."""
        ...


@runtime_checkable
class ProbesDrafts(Protocol):
    """A policy that wants to see drafts while a device computes steps without any: probes, which
    are not verified. So it knows what drafts would be worth before anything waits for them.
    """

    def runs_ahead(self, load: Load) -> bool:
        """In place of `budgets`: whether a step with this load is started without drafts, before
        the step before it has been read."""
        ...

    def probe_budgets(self, load: Load) -> list[int]:
        """Nodes that each request may draft as a probe."""
        ...

    def probe_pays(self, drafts: DraftBatch, load: Load) -> bool:
        """Whether waiting for the text and verifying the rest of such drafts is expected to make
        more tokens per second."""
        ...

    def observe_probe(self, firsts: DraftBatch, right: NDArray[np.bool_], load: Load) -> None:
        """The first tokens of probes, and which of them came."""
        ...


class Fixed:
    """`k` nodes for every request, always.

    Raises: InputError when constructed.
    """

    name = "fixed"

    def __init__(self, *, k: int = 8) -> None:
        self.k = _whole("k", k, 0, MAX_BUDGET)

    def budgets(self, load: Load) -> list[int]:
        """`k` nodes where more than 1 token is left."""
        return [self.k if left > 1 else 0 for left in load.tokens_left.tolist()]

    def choose(self, drafts: DraftBatch, load: Load) -> SelectedNodes:
        """All nodes within max_tokens.

        Raises: InputError for a number of drafts that does not fit the load.
        """
        drafts = DraftBatch.of(drafts)
        return SelectedNodes(drafts, within_max_tokens(drafts, load))

    def observe(self, step: StepFacts) -> None:
        """Nothing is learned."""


class NoDrafts(Fixed):
    """Nothing is drafted: the plain loop."""

    name = "none"

    def __init__(self) -> None:
        super().__init__(k=0)


class Threshold(Fixed):
    """`k` nodes while at most `batch` requests decode, none above.

    Raises: InputError when constructed.
    """

    name = "threshold"

    def __init__(self, *, k: int = 8, batch: int = 8) -> None:
        super().__init__(k=k)
        self.batch = _whole("batch", batch, 0, 2**31)

    def budgets(self, load: Load) -> list[int]:
        """As `Fixed`, or nothing if the batch is too large."""
        return super().budgets(load) if len(load) <= self.batch else [0] * len(load)


class DynamicK(Fixed):
    """A `k` for each request that follows how much of its last draft was accepted.

    Accepted / drafted of `up` or more: k + 1, at most `most`; of `down` or less: k - 1, at least
    `least`. Of a tree, the longest path counts as what was drafted. A step without a draft changes
    nothing. The last `remembered` requests are told apart by `Load.ids`; without ids there is one
    k, which follows the sums over the batch.

    Raises: InputError when constructed.
    """

    name = "dynamic-k"

    def __init__(
        self,
        *,
        k: int = 6,
        least: int = 3,
        most: int = 12,
        up: float = 0.8,
        down: float = 0.4,
        remembered: int = 4096,
    ) -> None:
        super().__init__(k=k)
        self.least = _whole("least", least, 1, k)
        self.most = _whole("most", most, k, MAX_BUDGET)
        if not 0 <= down < up <= 1:
            raise InputError(f"down is {down!r} and up {up!r}; expected 0 <= down < up <= 1")
        self.up, self.down = up, down
        self._remembered = _whole("remembered", remembered, 1, 2**31)
        self._of: dict[int, int] = {}  # the k of each request, least recently changed first

    def budgets(self, load: Load) -> list[int]:
        """Each request's own k."""
        if load.ids is None:
            return super().budgets(load)
        pairs = zip(load.ids.tolist(), load.tokens_left.tolist(), strict=True)
        return [self._of.get(request, self.k) if left > 1 else 0 for request, left in pairs]

    def observe(self, step: StepFacts) -> None:
        """Let each k follow its last draft.

        Mutates: the k of the requests that drafted. Valid until: their next draft.
        """
        drafts, ids = step.chosen.drafts, step.load.ids
        if not len(drafts.tokens):
            return
        owner = np.repeat(np.arange(len(drafts)), sizes_of(drafts.offsets))
        drafted = np.zeros(len(drafts), np.int64)
        np.maximum.at(drafted, owner, drafts.depths)
        accepted = np.bincount(owner[step.accepted], minlength=len(drafts))
        if ids is None:
            self.k = self.next_k(self.k, int(accepted.sum()), int(drafted.sum()))
            return
        for request, won, of in zip(ids.tolist(), accepted.tolist(), drafted.tolist(), strict=True):
            if of:
                self._of[request] = self.next_k(self._of.pop(request, self.k), won, of)
        while len(self._of) > self._remembered:
            del self._of[next(iter(self._of))]

    def next_k(self, k: int, accepted: int, drafted: int) -> int:
        """The k after a draft of `drafted` tokens (1 or more), `accepted` of them, at this k.

        Mutates: nothing. Raises: ZeroDivisionError without a draft.
        """
        ratio = accepted / drafted
        if ratio >= self.up:
            return min(k + 1, self.most)
        return max(k - 1, self.least) if ratio <= self.down else k


POLICIES: dict[str, Callable[..., Policy]] = {
    kind.name: kind for kind in (NoDrafts, Fixed, Threshold, DynamicK, Adaptive)
}
"""The policies by name."""


def make_policy(
    policy: str | Policy = "adaptive", cost: StepCost | None = None, **settings: Any
) -> Policy:
    """The policy of that name with these settings, or the given policy itself.

    `cost` is for `adaptive`, which without one begins with a prior and learns.

    Raises: InputError for a name or a setting that does not exist, a value out of range, or
    settings for a policy that is made already.
    """
    if not isinstance(policy, str):
        if not isinstance(policy, Policy):
            raise InputError(f"policy is {policy!r}; expected a name or a Policy")
        if settings:
            raise InputError(
                f"the settings {', '.join(settings)} came with a policy that is made already; "
                "expected the name of a policy"
            )
        return policy
    kind = POLICIES.get(policy)
    if kind is None:
        raise InputError(f"policy is {policy!r}; expected one of {', '.join(POLICIES)}")
    valid = [name for name in inspect.signature(kind).parameters if name != "cost"]
    for name in settings:
        if name not in valid:
            raise InputError(
                f"the policy {policy!r} has no setting {name!r}; expected "
                f"{', '.join(valid) if valid else 'none'}"
            )
    if kind is Adaptive:
        return Adaptive(StepCost() if cost is None else cost, **settings)
    return kind(**settings)


def _whole(name: str, value: object, least: int, most: int) -> int:
    if type(value) is not int or not least <= value <= most:
        raise InputError(f"{name} is {value!r}; expected a whole number from {least} to {most}")
    return value
