"""One table of drafter scenarios, run on every drafter.

A scenario is a recorded request. `drive` plays the engine for any number of them at once and checks
the contract of `foresay.drafter` after every step, from the outside only.
"""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from foresay import Draft, DraftBatch, Drafter, TopK, Verdict, VerdictBatch, corpus
from foresay.arrays import MAX_TOKEN, Int32s
from foresay.bench.replay import walk
from foresay.drafters import (
    CorpusDrafter,
    ExternalDrafter,
    MergeDrafter,
    NgramDrafter,
    RecycleDrafter,
    SuffixDrafter,
)


@dataclass(frozen=True)
class Scenario:
    name: str
    prompt: list[int]
    output: list[int]
    budgets: tuple[int, ...] = (8,)  # used in turn
    group: str | None = None
    rests: int = 0  # every how many steps nothing is proposed (0: never)
    tenant: str | None = None
    aborts: int | None = None  # finished between propose and observe once it has so many tokens

    @property
    def tokens(self) -> set[int]:
        return {*self.prompt, *self.output}


class Readable(Drafter[Any], Protocol):
    """A drafter that can say what it holds, as each of ours must."""

    def text(self, state: Any, /) -> Int32s: ...


_words = [5, 9, 2, 7]

SCENARIOS = [
    Scenario("repetition", [1, 2, 3, 1, 2], [3, 1, 2, 3, 1, 2, 3, 1, 2, 3]),
    Scenario("one letter", [4], [4] * 20),
    Scenario("nothing repeats", list(range(10, 20)), list(range(20, 40))),
    Scenario("one token prompt", [6], [7, 8, 6, 7, 8, 6, 7]),
    Scenario("one token output", [1, 2, 1], [2]),
    Scenario("budgets vary", _words * 4, _words * 8, budgets=(0, 1, 3, 16)),
    Scenario("budget zero", _words * 3, _words * 3, budgets=(0,)),
    Scenario("ends of the range", [0, MAX_TOKEN, 0], [MAX_TOKEN, 0, MAX_TOKEN, 0, 1]),
    Scenario("sitting out", _words * 3, _words * 6, rests=2),
    Scenario("never proposed", _words * 3, _words * 3, rests=1),
    Scenario("sibling 0", [1, 2, 3], [30, 31, 32, 33, 34, 35, 36, 37], group="g"),
    Scenario("sibling 1", [1, 2, 3], [30, 31, 32, 33, 34, 35, 36, 99], group="g"),
    Scenario("sibling 2", [1, 2, 3], [30, 31, 77, 33, 34, 35, 36, 37], group="g"),
    Scenario("aborted sibling", [1, 2, 3], [30, 31, 32, 33, 34, 35], group="g", aborts=3),
    Scenario("aborted at once", _words * 3, _words, aborts=0),
    Scenario("tenant a", [1, 2, 3], [*range(500, 506)] * 4, group="g", tenant="a"),
    Scenario("tenant a again", [1, 2, 3], [*range(500, 506)] * 4, group="h", tenant="a"),
    Scenario("tenant b", [1, 2, 3], [*range(600, 606)] * 4, group="g", tenant="b"),
    Scenario("long", [i * i % 101 for i in range(900)], [i * i % 101 for i in range(900, 1100)]),
]


@cache
def corpus_file() -> Path:
    """The scenarios themselves as a corpus, built once per run; its ids are below 2^24."""
    folder = Path(tempfile.mkdtemp(prefix="foresay-"))
    atexit.register(shutil.rmtree, folder)
    lines = [
        {"id": s.name, "group": s.group or "", "prompt": s.prompt, "output": s.output}
        for s in SCENARIOS
        if max(s.tokens) < 1 << 24 and s.tenant is None
    ]
    traces = folder / "scenarios.jsonl"
    traces.write_text("".join(json.dumps(line) + "\n" for line in lines))
    corpus.build([traces], folder / "scenarios.foresay")
    return folder / "scenarios.foresay"


DRAFTERS: dict[str, Callable[[], Readable]] = {
    "ngram": NgramDrafter,
    "ngram first": lambda: NgramDrafter(1, 5, occurrence="first"),
    "suffix": lambda: SuffixDrafter(history=False),
    "suffix with history": lambda: SuffixDrafter(history=True),
    "suffix in chains": lambda: SuffixDrafter(chain=True),
    "suffix by sam": lambda: SuffixDrafter(rule="sam"),
    "suffix with a corpus": lambda: SuffixDrafter(corpus=corpus_file()),
    "corpus": lambda: CorpusDrafter(corpus_file()),
    "merge of one": lambda: MergeDrafter(NgramDrafter()),
    "merge of ngrams": lambda: MergeDrafter(NgramDrafter(), NgramDrafter(occurrence="first")),
    "merge of suffix and ngram": lambda: MergeDrafter(SuffixDrafter(), NgramDrafter()),
    "merge with external drafts": lambda: MergeDrafter(SuffixDrafter(), ExternalDrafter()),
    "recycle": RecycleDrafter,
    "recycle, static": lambda: RecycleDrafter(context=1, tree="static"),
    "merge of suffix and recycle": lambda: MergeDrafter(SuffixDrafter(), RecycleDrafter()),
}


class Seat:
    """A request being driven."""

    def __init__(self, drafter: Drafter[Any], scenario: Scenario) -> None:
        self.scenario = scenario
        self.prompt = np.array(scenario.prompt, np.int32)
        self.state = drafter.begin(self.prompt, group=scenario.group, tenant=scenario.tenant)
        self.aborted = False
        self.observed: list[int] = []
        self.budgets: Iterator[int] = cycle(scenario.budgets)
        self.steps = 0

    @property
    def left(self) -> list[int]:
        return self.scenario.output[len(self.observed) :]

    def aborts(self) -> bool:
        limit = self.scenario.aborts
        self.aborted = limit is not None and len(self.observed) >= limit
        return self.aborted

    def rests(self) -> bool:
        self.steps += 1
        return bool(self.scenario.rests) and self.steps % self.scenario.rests == 0


def drive(drafter: Readable, scenarios: Sequence[Scenario], as_lists: bool = False) -> int:
    """Run the scenarios together, checking the contract; returns the number of accepted nodes."""
    seats = [Seat(drafter, scenario) for scenario in scenarios]
    accepted = 0
    while active := [seat for seat in seats if seat.left and not seat.aborted]:
        asked = [seat for seat in active if not seat.rests()]
        paths: dict[int, list[int]] = {}
        drafted: dict[int, Draft] = {}
        if asked:
            states, budgets = [s.state for s in asked], [next(s.budgets) for s in asked]
            drafts = DraftBatch.of(drafter.propose(states, budgets))
            again = DraftBatch.of(drafter.propose(states, budgets))
            assert drafts == again, "proposing changed something that the caller can see"
            check_drafts(drafts, budgets)
            for seat, draft in zip(asked, drafts, strict=True):
                assert set(draft.tokens.tolist()) <= visible(seat.scenario), "another tenant's text"
                paths[id(seat)] = walk(draft, seat.left[:-1])
                drafted[id(seat)] = draft
        for seat in active:
            if seat.aborts():
                drafter.finish(seat.state)
        active = [seat for seat in active if not seat.aborted]
        verdicts = []
        for seat in active:
            path = paths.get(id(seat), [])
            tokens = seat.left[: len(path) + 1]
            draft = drafted.get(id(seat), Draft.empty())
            topk = likeliest(seat, draft, path, drafter.wants.topk) if drafter.wants.topk else None
            verdicts.append(Verdict(path, tokens, topk))
            seat.observed += tokens
            accepted += len(path)
        drafter.observe(
            [seat.state for seat in active], verdicts if as_lists else VerdictBatch.of(verdicts)
        )
        for seat in active:
            committed = seat.scenario.output[: len(seat.observed)]
            assert drafter.text(seat.state).tolist() == seat.scenario.prompt + committed
    for seat in seats:
        if not seat.aborted:
            drafter.finish(seat.state)
    return accepted


def likeliest(seat: Seat, draft: Draft, path: list[int], k: int) -> TopK:
    """As a target that is sure of the answer on its path, and elsewhere of tokens of the prompt."""
    rows = np.full((len(draft) + 1, k), -1, np.int32)
    for row in range(len(draft) + 1):
        depth = path.index(row - 1) + 1 if row - 1 in path else 0 if row == 0 else -1
        next_token = seat.left[depth] if 0 <= depth < len(seat.left) else seat.scenario.prompt[0]
        rows[row, 0] = next_token
        rows[row, 1:] = next(
            (t for t in seat.scenario.prompt if t != next_token), -1 if k == 1 else next_token
        )
        rows[row, 2:] = -1
    logprobs = np.full(rows.shape, -np.inf, np.float32)
    logprobs[:, 0], logprobs[:, 1] = -0.1, -2.5
    return TopK(rows, logprobs)


@cache
def tokens_of(tenant: str | None) -> set[int]:
    return set().union(*(s.tokens for s in SCENARIOS if s.tenant == tenant))


def visible(scenario: Scenario) -> set[int]:
    """What a draft may hold: the tenant's tokens and the corpus, which has those without tenant."""
    return scenario.tokens | tokens_of(scenario.tenant) | tokens_of(None)


def check_drafts(drafts: DraftBatch, budgets: Sequence[int]) -> None:
    assert len(drafts) == len(budgets)
    # The validating constructor checks parents, token range, offsets, and that scores fall.
    assert drafts == DraftBatch(
        drafts.tokens, drafts.parents, drafts.offsets, drafts.scores, drafts.probs
    )
    for draft, budget in zip(drafts, budgets, strict=True):
        assert len(draft) <= budget
        pairs = list(zip(draft.parents.tolist(), draft.tokens.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs), "two siblings have the same token"
