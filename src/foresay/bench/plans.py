"""What is simulated: how drafts are used, and on which machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

from foresay.arrays import check_positive
from foresay.bench.recorded import OracleDrafter
from foresay.bench.step_costs import StepTable
from foresay.budget.policy import Policy, make_policy
from foresay.drafter import Drafter
from foresay.drafters.lineup import Share
from foresay.drafters.suffix import SamRule, SuffixDrafter
from foresay.engine.pages import PAGE
from foresay.errors import InputError
from foresay.traces import Trace, TraceOrder

__all__ = ["PLANS", "Plan", "Setup"]

PolicyName = Literal["none", "threshold", "fixed", "dynamic-k", "adaptive", "oracle"]
Spread = Literal["round", "length"]


@dataclass(frozen=True, slots=True)
class Plan:
    """How drafts are used.

    policy  none, threshold (a published setting: SAM-Decoding's rule on a request's own text, a
            chain of `k` while at most `batch` requests run), fixed (`k` nodes), dynamic-k,
            adaptive, or oracle (adaptive, with a drafter that knows the answers: an upper bound)
    share   what requests draft from: own text, also their group, or that and finished answers
    order   in which requests are admitted: of the file, or one of every group first
    k       drafted nodes of threshold (None: 3) and fixed (None: 8)
    batch   the most requests with which threshold drafts
    """

    policy: PolicyName
    share: Share = "none"
    order: TraceOrder = "file"
    k: int | None = None
    batch: int = 8

    @classmethod
    def parse(cls, text: str, *, k: int | None = None, batch: int = 8) -> Plan:
        """From POLICY[:SHARE[:ORDER]].

        Raises: InputError.
        """
        found = text.split(":")
        valid = get_args(PolicyName), get_args(Share), get_args(TraceOrder)
        if len(found) > 3:
            raise InputError(f"the plan is {text!r}; expected POLICY[:SHARE[:ORDER]]")
        for name, value, known in zip(("policy", "share", "order"), found, valid, strict=False):
            if value not in known:
                raise InputError(
                    f"{name} is {value!r} in the plan {text!r}; expected one of {', '.join(known)}"
                )
        policy, share, order, *_ = (*found, *("none", "file")[len(found) - 1 :])
        names_of: Any = {"policy": policy, "share": share, "order": order}
        plan = cls(**names_of, k=k, batch=batch)
        plan.policy_with(None)
        return plan

    @property
    def name(self) -> str:
        """As `parse` reads it; what does not matter is left out."""
        if self.policy == "none" or self.policy == "oracle":
            return self.policy if self.order == "file" else f"{self.policy}:none:{self.order}"
        return f"{self.policy}:{self.share}:{self.order}"

    def policy_with(self, table: StepTable | None) -> Policy:
        """The policy of the engine; adaptive knows the cost of steps by the table.

        Raises: InputError.
        """
        if self.policy == "threshold":
            return make_policy("threshold", k=3 if self.k is None else self.k, batch=self.batch)
        if self.policy == "fixed":
            return make_policy("fixed", k=8 if self.k is None else self.k)
        if self.policy in ("adaptive", "oracle"):
            return make_policy("adaptive", None if table is None else table.cost())
        return make_policy(self.policy)

    def drafter(self, traces: Sequence[Trace]) -> Drafter[Any] | None:
        """A new drafter, for requests that answer as these traces did."""
        if self.policy == "none":
            return None
        if self.policy == "oracle":
            return OracleDrafter(traces)
        if self.policy == "threshold":
            rule = SamRule(l_threshold=1)
            return SuffixDrafter(history=self.share == "all", rule=rule, threads=1)
        return SuffixDrafter(history=self.share == "all", threads=1)


PLANS = tuple(
    Plan.parse(text)
    for text in (
        "none",
        "threshold",
        "fixed:all:stagger",
        "dynamic-k:all:stagger",
        "adaptive",
        "adaptive:group",
        "adaptive:all",
        "adaptive:all:stagger",
        "oracle",
    )
)
"""What is compared if nothing is asked for."""


_MOST_REPLICAS = 1 << 16  # each takes memory, also without requests


@dataclass(frozen=True, slots=True)
class Setup:
    """The machine that is simulated.

    table          what steps take
    replicas       engines, each with its own requests
    spread         how groups are dealt out: one after the other ("round"), or the longest first, to
                   the replica with the fewest tokens ("length": knows the answers' lengths)
    running        requests in one step of an engine
    max_rows       prompt tokens in one step
    kv_tokens      tokens that the KV cache of a replica holds; None: enough for all
    max_tokens     the limit of answers that policies know; None: the longest recorded answer
    draft_seconds  what drafting takes for one request and step
    """

    table: StepTable
    replicas: int = 1
    spread: Spread = "round"
    running: int = 256
    max_rows: int = 512
    kv_tokens: int | None = None
    max_tokens: int | None = None
    draft_seconds: float = 0.0

    def __post_init__(self) -> None:
        for name in ("replicas", "running", "max_rows"):
            check_positive(getattr(self, name), name)
        if self.replicas > _MOST_REPLICAS:
            raise InputError(f"replicas is {self.replicas}; expected 1 to {_MOST_REPLICAS}")
        for name in ("kv_tokens", "max_tokens"):
            if getattr(self, name) is not None:
                check_positive(getattr(self, name), name)
        if self.kv_tokens is not None and self.kv_tokens < PAGE:
            raise InputError(
                f"kv_tokens is {self.kv_tokens}; expected at least {PAGE}, for the smallest text"
            )
        if self.spread not in get_args(Spread):
            raise InputError(f"spread is {self.spread!r}; expected round or length")
        if not 0 <= self.draft_seconds < 1:
            raise InputError(
                f"draft_seconds is {self.draft_seconds!r}; expected seconds from 0 to less than 1"
            )
