"""Test doubles small enough to read."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from foresay import Draft, Verdict, Wants
from foresay.arrays import Int32s, IntsLike
from foresay.drafter import SeededParams
from foresay.errors import UnknownGroup


class Scripted:
    """A drafter that proposes what it is told and writes down what it hears.

    A state is the list of tokens of the request; `script` maps the number of observed tokens to the
    draft. `events` is the life of all requests in order.
    """

    def __init__(self, script: dict[int, Draft] | None = None, wants: Wants | None = None) -> None:
        self.script = script or {}
        self.wants = wants or Wants()
        self.events: list[str] = []
        self.verdicts: list[Verdict] = []
        self.groups: list[str | None] = []
        self.sampling: list[SeededParams | None] = []

    def begin(
        self,
        prompt: Int32s,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> list[int]:
        self.events.append(f"begin {prompt.tolist()}")
        self.groups.append(group)
        self.sampling.append(sampling)
        return [len(prompt), *prompt.tolist()]

    def propose(self, states: Sequence[list[int]], budgets: Sequence[int], /) -> list[Draft]:
        self.events.append(f"propose {len(states)}")
        return [
            _cut(self.script.get(len(state) - 1 - state[0], Draft.empty()), budget)
            for state, budget in zip(states, budgets, strict=True)
        ]

    def observe(self, states: Sequence[list[int]], verdicts: Sequence[Verdict], /) -> None:
        self.events.append(f"observe {[v.tokens.tolist() for v in verdicts]}")
        for state, verdict in zip(states, verdicts, strict=True):
            state += verdict.tokens.tolist()
            self.verdicts.append(verdict)

    def finish(self, state: list[int], /) -> None:
        self.events.append(f"finish {state[1:]}")

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        if group not in self.groups:
            raise UnknownGroup(f"group {group!r} is not known")
        self.events.append(f"drop {group}" if tenant is None else f"drop {group} of {tenant}")

    def add_to_group(
        self, group: str, prompt: IntsLike, answer: IntsLike, *, tenant: str | None = None
    ) -> None:
        self.groups.append(group)

    def text(self, state: list[int], /) -> Int32s:
        return np.array(state[1:], np.int32)


def _cut(draft: Draft, budget: int) -> Draft:
    scores = None if draft.scores is None else draft.scores[:budget]
    return Draft(draft.tokens[:budget], draft.parents[:budget], scores)


def in_order(draft: Draft) -> list[tuple[int, ...]]:
    """The root path of each node."""
    found: list[tuple[int, ...]] = []
    for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
        found.append((*found[parent], token) if parent >= 0 else (token,))
    return found


def paths(draft: Draft) -> set[tuple[int, ...]]:
    """The root paths of a draft: what the tree says, whatever the order of its nodes."""
    return set(in_order(draft))


def tokens(*values: int) -> Int32s:
    return np.array(values, np.int32)
