"""Equality with plain decoding over random scripts: the main proof of rule `match`.

A script is some requests with random sampling parameters and a random schedule: which requests are
in which step, in which order, and what is drafted. Every request must generate exactly the tokens
of plain decoding, and must fail exactly where plain decoding fails. There is no statistic in it:
one difference is a bug, and `replay` plays its script again.

Everything is drawn from (seed, index of the script), so a script is the same on every machine.

Mutates: nothing. Valid until: for ever. Raises: InputError for a Verify that does not give one
verdict per request; whatever the Verify itself raises. GIL: held.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from foresay.arrays import Floats
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError, LogitsError
from foresay.lossless.toy import DRAFTS, DraftPlan, Plain, Toy, plain, random_inputs
from foresay.sampling import reference
from foresay.sampling.verification import VerificationInput
from foresay.verdict import Verdict, VerdictBatch

Verified: TypeAlias = tuple[Sequence[Verdict] | VerdictBatch, Mapping[int, LogitsError]]
Verify: TypeAlias = Callable[[DraftBatch, Floats, Sequence[VerificationInput]], Verified]
"""Drafts, their logits (request i has its n_i + 1 rows in a row) and the requests' inputs, to a
verdict each; the mapping names the requests whose first row has invalid logits. Their verdicts are
empty."""

SCHEDULES = 4
"""So many scripts in a row have the same requests: plain decoding costs as much as they do."""

NO_VERDICT = Verdict._trusted(np.empty(0, np.int32), np.empty(0, np.int32))


@dataclass(frozen=True, slots=True)
class ScriptsResult:
    """What was played, and sentences on what differed: none, if all is exact."""

    counts: Counter[str]
    """Scripts, requests, tokens and what else was counted; a proof needs some of each."""
    differences: tuple[str, ...] = ()

    def __add__(self, other: ScriptsResult) -> ScriptsResult:
        counts = self.counts.copy()
        counts.update(other.counts)  # unlike `+`, it keeps what was counted as 0
        return ScriptsResult(counts, self.differences + other.differences)

    @property
    def equal(self) -> bool:
        """Whether nothing differed, and all that a script can do was done."""
        return not self.differences and all(self.counts.values())

    def __str__(self) -> str:
        counted = ", ".join(f"{n} {what}" for what, n in self.counts.items())
        first = f"; the first: {self.differences[0]}" if self.differences else ""
        return f"{len(self.differences)} differences in {counted}{first}"


def play(
    one: Callable[[int], ScriptsResult],
    scripts: int,
    progress: Callable[[int, int], None] | None = None,
    enough: int = 10,
) -> ScriptsResult:
    """Play scripts 0, 1, … by `one`, this many or until `enough` differences are found.

    `progress(done, scripts)` is called after every script.
    """
    total = ScriptsResult(Counter())
    for index in range(scripts):
        total += one(index)
        if progress is not None:
            progress(index + 1, scripts)
        if len(total.differences) >= enough:
            break
    return total


def run(
    verify: Verify,
    scripts: int = 1000,
    seed: int = 0,
    progress: Callable[[int, int], None] | None = None,
    enough: int = 100,
) -> ScriptsResult:
    """`play` scripts with this function under test."""
    return play(partial(replay, verify, seed=seed), scripts, progress, enough)


def reference_match(
    drafts: DraftBatch, logits: Floats, inputs: Sequence[VerificationInput]
) -> Verified:
    """`reference.match`, one request after the other."""
    verdicts, failures = [], {}
    for i, (draft, one) in enumerate(zip(drafts, inputs, strict=True)):
        start = int(drafts.offsets[i]) + i
        try:
            verdict = reference.match(draft, logits[start : start + len(draft) + 1], one)
        except LogitsError as error:
            failures[i], verdict = error, NO_VERDICT
        verdicts.append(verdict)
    return verdicts, failures


@dataclass(slots=True, eq=False)
class _Request:
    number: int
    input: VerificationInput  # as it was in the beginning
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


def replay(verify: Verify, index: int, seed: int = 0) -> ScriptsResult:
    """Play script `index` of `run(…, seed=seed)`."""
    rng = random.Random(f"{seed}/{index}")
    toy, alike, cases = _case(seed, index // SCHEDULES)
    requests = [
        _Request(number, one, truth, rng.choice((0, 0, 1, 4)))
        for number, (one, truth) in enumerate(cases)
    ]
    presence, preemption = rng.choice((0.4, 0.8, 1.0)), rng.choice((0.0, 0.1))
    drafters = rng.sample(DRAFTS, rng.randint(1, len(DRAFTS)))
    counts = Counter(scripts=1, requests=len(requests), steps=0, tokens=0, accepted=0)
    differences: list[str] = []
    while any(request.live for request in requests):
        live = [request for request in requests if request.live]
        members = [r for r in live if not r.away and rng.random() < presence]
        for request in live:
            request.away = max(0, request.away - 1)
        if not members:
            continue
        rng.shuffle(members)  # no request has a place of its own
        inputs = [replace(r.input, output=np.array(r.output, np.int32)) for r in members]
        plans = [DraftPlan(i, r.rest, alike) for i, r in zip(inputs, members, strict=True)]
        drafts = [Draft(*rng.choice(drafters)(rng, plan)) for plan in plans]
        texts = [[*np.asarray(r.input.prompt).tolist(), *r.output] for r in members]
        rows = [toy.rows(text, draft) for text, draft in zip(texts, drafts, strict=True)]
        verdicts, failures = verify(DraftBatch.of(drafts), np.concatenate(rows), inputs)
        if len(verdicts) != len(members):
            raise InputError(f"{len(verdicts)} verdicts came back for {len(members)} requests")
        counts["steps"] += 1
        for i, request in enumerate(members):
            verdict, failure = verdicts[i], failures.get(i)
            found = _difference(request, drafts[i], verdict, failure)
            if found is not None:
                where = f"script {index}, request {request.number}, token "
                differences.append(f"{where}{len(request.output) + found[0]}: {found[1]}")
            if found is None and failure is not None:
                counts["failed"] += 1
            counts["accepted"] += len(verdict.path)
            counts["tokens"] += len(verdict.tokens)
            request.output += verdict.tokens.tolist()
            request.live = found is None and failure is None and not request.done
            if rng.random() < preemption:
                request.away = rng.randint(1, 5)
    return ScriptsResult(counts, tuple(differences))


def _difference(
    request: _Request, draft: Draft, verdict: Verdict, failure: LogitsError | None
) -> tuple[int, str] | None:
    """Where (counted from the text so far), and what was expected and came; None if all is well."""
    tokens, path, rest = verdict.tokens.tolist(), verdict.path.tolist(), request.rest
    end = "the end of the answer" if request.truth.error is None else str(request.truth.error)
    if failure is not None and not rest and request.truth.error is not None:
        empty = not tokens and not path
        return None if empty else (0, f"expected {end}, got the failure and tokens {tokens}")
    if failure is not None or not tokens:
        expected = f"token {rest[0]}" if rest else end
        return 0, f"expected {expected}, got {failure or 'an empty verdict'}"
    for at, token in enumerate(tokens):
        if at >= len(rest) or token != rest[at]:
            expected = f"token {rest[at]}" if at < len(rest) else end
            return at, f"expected {expected}, got token {token}"
    if len(path) != len(tokens) - 1:
        expected = f"{len(tokens) - 1} nodes for {len(tokens)} tokens"
    elif not all(0 <= node < len(draft) for node in path):
        expected = f"nodes 0 to {len(draft) - 1}"
    elif any(int(draft.parents[node]) != before for before, node in pairwise([-1, *path])):
        expected = f"a path from the root by {draft.parents.tolist()}"
    elif draft.tokens[path].tolist() != tokens[:-1]:
        expected = f"nodes of tokens {tokens[:-1]} in {draft.tokens.tolist()}"
    else:
        return None
    return 0, f"expected {expected}, got path {path}"


@lru_cache(maxsize=4)
def _case(seed: int, number: int) -> tuple[Toy, Toy, tuple[tuple[VerificationInput, Plain], ...]]:
    """The requests of some scripts with what plain decoding makes of them; their target, and a
    drafter's model that resembles it."""
    rng = random.Random(f"{seed}/case/{number}")
    toy = Toy(rng.choice((8, 8, 16, 33, 64)), rng.getrandbits(32), rng.choice((0, 0, 0, 0.06)))
    inputs = random_inputs(rng, toy.vocabulary)
    alike = replace(toy, disturbed=rng.choice((0.3, 1.0)))
    return toy, alike, tuple((one, plain(toy.logits, one)) for one in inputs)
