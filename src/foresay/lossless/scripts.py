"""Equality with plain decoding over random scripts: the main proof of rule `match`.

A script is some requests with random sampling parameters and a random schedule: which requests are
in which step, in which order, and what is drafted. Every request must generate exactly the tokens
of plain decoding, and must fail exactly where plain decoding fails. There is no statistic in it:
one difference is a bug, and `replay` shows the step in which it happened.

    Verify           the function under test
    reference_match  the readable rule as one
    run, replay      many scripts, and one of them again

Everything is drawn from (seed, index of the script), so a script is the same on every machine.

Mutates: nothing. Valid until: for ever. Raises: InputError for a Verify that does not give one
verdict per request; whatever the Verify itself raises. GIL: held.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from foresay.arrays import Floats
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError, LogitsError
from foresay.lossless.toy import DRAFTS, DraftPlan, Plain, Toy, plain, some_asks
from foresay.sampling import reference
from foresay.sampling.ask import Ask
from foresay.verdict import Verdict, VerdictBatch

__all__ = [
    "SCHEDULES",
    "Difference",
    "ScriptStep",
    "ScriptsResult",
    "Verified",
    "Verify",
    "reference_match",
    "replay",
    "run",
]

Verified: TypeAlias = tuple[Sequence[Verdict] | VerdictBatch, Mapping[int, LogitsError]]
Verify: TypeAlias = Callable[[DraftBatch, Floats, Sequence[Ask]], Verified]
"""Drafts, their logits (request i has its n_i + 1 rows in a row) and asks, to a verdict each; the
mapping names the requests whose first row has invalid logits. Their verdicts are empty."""

SCHEDULES = 4
"""So many scripts in a row have the same requests: plain decoding costs as much as they do."""

_EMPTY = np.empty(0, np.int32)


@dataclass(frozen=True, slots=True)
class Difference:
    """A request that differs from plain decoding; `position` counts within its answer."""

    script: int
    request: int
    position: int
    expected: str
    got: str


@dataclass(frozen=True, slots=True)
class ScriptsResult:
    """What was run, and where it differed from plain decoding: nowhere, if it is exact."""

    scripts: int
    requests: int
    tokens: int
    steps: int
    accepted: int
    """Accepted tokens: a proof needs some."""
    failed: int
    """Requests that ended with invalid logits, as in plain decoding."""
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True, eq=False)
class ScriptStep:
    """One call of the Verify, for the `watch` of a `replay`."""

    members: tuple[int, ...]
    drafts: DraftBatch
    asks: tuple[Ask, ...]
    verdicts: tuple[Verdict, ...]
    failures: Mapping[int, LogitsError]


def reference_match(drafts: DraftBatch, logits: Floats, asks: Sequence[Ask]) -> Verified:
    """`reference.match`, one request after the other."""
    verdicts, failures = [], {}
    for i, (draft, ask) in enumerate(zip(drafts, asks, strict=True)):
        start = int(drafts.offsets[i]) + i
        try:
            verdict = reference.match(draft, logits[start : start + len(draft) + 1], ask)
        except LogitsError as error:
            failures[i], verdict = error, Verdict._trusted(_EMPTY, _EMPTY)
        verdicts.append(verdict)
    return verdicts, failures


def run(
    verify: Verify,
    scripts: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    enough: int = 100,
) -> ScriptsResult:
    """Play this many scripts, or until `enough` differences are found.

    `progress(done, scripts)` is called after every script.
    """
    total = ScriptsResult(0, 0, 0, 0, 0, 0, ())
    for index in range(scripts):
        total = _sum(total, replay(verify, index, seed))
        if progress is not None:
            progress(index + 1, scripts)
        if len(total.differences) >= enough:
            break
    return total


def replay(
    verify: Verify, index: int, seed: int = 0, watch: Callable[[ScriptStep], None] | None = None
) -> ScriptsResult:
    """Play script `index` of `run(…, seed=seed)`; `watch` sees every step once it is verified."""
    play = _Play(index, random.Random(f"{seed}/{index}"), _case(seed, index // SCHEDULES))
    while any(r.live for r in play.requests):
        members = play.members()
        if members:
            step = play.step(verify, members)
            if watch is not None:
                watch(step)
    tokens = sum(len(r.output) for r in play.requests)
    return ScriptsResult(
        1, len(play.requests), tokens, play.steps, play.accepted, play.failed, tuple(play.found)
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Case:
    toy: Toy
    alike: Toy  # a drafter that resembles it
    asks: tuple[Ask, ...]
    truths: tuple[Plain, ...]


@dataclass(slots=True, eq=False)
class _Request:
    number: int
    ask: Ask  # as it was in the beginning
    truth: Plain
    away: int  # steps until it comes, or comes back
    output: list[int] = field(default_factory=list)
    live: bool = True

    @property
    def rest(self) -> tuple[int, ...]:
        return self.truth.tokens[len(self.output) :]

    @property
    def done(self) -> bool:
        return not self.rest and self.truth.error is None


class _Play:
    """One script while it is played; every method moves it on."""

    def __init__(self, script: int, rng: random.Random, case: _Case) -> None:
        self.script, self.rng, self.case = script, rng, case
        self.requests = [
            _Request(i, ask, truth, rng.choice((0, 0, 1, 4)))
            for i, (ask, truth) in enumerate(zip(case.asks, case.truths, strict=True))
        ]
        self.present, self.preempted = rng.choice((0.4, 0.8, 1.0)), rng.choice((0.0, 0.1))
        self.drafters = rng.sample(DRAFTS, rng.randint(1, len(DRAFTS)))
        self.steps = self.accepted = self.failed = 0
        self.found: list[Difference] = []

    def members(self) -> list[_Request]:
        """The requests of the next step: none that is away or has ended. May be empty."""
        live = [r for r in self.requests if r.live]
        here = [r for r in live if not r.away and self.rng.random() < self.present]
        for request in live:
            request.away = max(0, request.away - 1)
        self.rng.shuffle(here)  # no request has a place of its own
        return here

    def step(self, verify: Verify, members: list[_Request]) -> ScriptStep:
        """Draft for these, have it verified, and commit what came back."""
        asks = [replace(r.ask, output=np.array(r.output, np.int32)) for r in members]
        plans = [DraftPlan(a, r.rest, self.case.alike) for a, r in zip(asks, members, strict=True)]
        drafts = [Draft(*self.rng.choice(self.drafters)(self.rng, plan)) for plan in plans]
        texts = [[*np.asarray(r.ask.prompt).tolist(), *r.output] for r in members]
        rows = [self.case.toy.rows(t, d) for t, d in zip(texts, drafts, strict=True)]
        batch = DraftBatch.of(drafts)
        verdicts, failures = verify(batch, np.concatenate(rows), asks)
        if len(verdicts) != len(members):
            raise InputError(f"{len(verdicts)} verdicts came back for {len(members)} requests")
        given = tuple(verdicts[i] for i in range(len(members)))
        self.steps += 1
        for i, request in enumerate(members):
            self._settle(request, drafts[i], given[i], failures.get(i))
        return ScriptStep(tuple(r.number for r in members), batch, tuple(asks), given, failures)

    def _settle(
        self, request: _Request, draft: Draft, verdict: Verdict, failure: LogitsError | None
    ) -> None:
        found = _difference(request, draft, verdict, failure)
        if found is not None:
            at, expected, got = found
            place = len(request.output) + at
            self.found.append(Difference(self.script, request.number, place, expected, got))
        self.failed += found is None and failure is not None
        self.accepted += len(verdict.path)
        request.output += verdict.tokens.tolist()
        request.live = found is None and failure is None and not request.done
        if self.rng.random() < self.preempted:
            request.away = self.rng.randint(1, 5)


def _difference(
    request: _Request, draft: Draft, verdict: Verdict, failure: LogitsError | None
) -> tuple[int, str, str] | None:
    """Where (counted from the text so far), what was expected, what came; None if all is well."""
    tokens, path, rest = verdict.tokens.tolist(), verdict.path.tolist(), request.rest
    end = "the end of the answer" if request.truth.error is None else str(request.truth.error)
    if failure is not None and not rest and request.truth.error is not None:
        return (0, end, f"the failure and tokens {tokens}") if tokens or path else None
    if failure is not None or not tokens:
        return 0, f"token {rest[0]}" if rest else end, str(failure or "an empty verdict")
    for at, token in enumerate(tokens):
        if at >= len(rest) or token != rest[at]:
            return at, f"token {rest[at]}" if at < len(rest) else end, f"token {token}"
    if len(path) != len(tokens) - 1:
        return 0, f"{len(tokens) - 1} nodes for {len(tokens)} tokens", f"path {path}"
    if not all(0 <= node < len(draft) for node in path):
        return 0, f"nodes 0 to {len(draft) - 1}", f"path {path}"
    if any(int(draft.parents[node]) != before for before, node in pairwise([-1, *path])):
        return 0, f"a path from the root by {draft.parents.tolist()}", f"path {path}"
    if draft.tokens[path].tolist() != tokens[:-1]:
        return 0, f"nodes of tokens {tokens[:-1]}", f"path {path} in {draft.tokens.tolist()}"
    return None


@lru_cache(maxsize=4)
def _case(seed: int, number: int) -> _Case:
    """The requests of some scripts, and what plain decoding makes of them."""
    rng = random.Random(f"{seed}/case/{number}")
    toy = Toy(rng.choice((8, 8, 16, 33, 64)), rng.getrandbits(32), rng.choice((0, 0, 0, 0.06)))
    asks = tuple(some_asks(rng, toy.vocabulary))
    alike = replace(toy, disturbed=rng.choice((0.3, 1.0)))
    return _Case(toy, alike, asks, tuple(plain(toy, ask) for ask in asks))


def _sum(a: ScriptsResult, b: ScriptsResult) -> ScriptsResult:
    return ScriptsResult(
        a.scripts + b.scripts,
        a.requests + b.requests,
        a.tokens + b.tokens,
        a.steps + b.steps,
        a.accepted + b.accepted,
        a.failed + b.failed,
        a.differences + b.differences,
    )
