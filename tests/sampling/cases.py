"""One table of cases for every way to verify: each is a batch that all of them must treat alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from foresay import Draft
from foresay.arrays import Floats
from foresay.sampling import SamplingParams, VerificationInput
from foresay.sampling.params import PROCESSORS

V = 12
GREEDY = SamplingParams(temperature=0)


@dataclass(frozen=True)
class Case:
    """A batch: drafts, the logits of each (n + 1 rows), inputs."""

    name: str
    drafts: list[Draft]
    logits: list[Floats]
    inputs: list[VerificationInput]
    failing: set[int] = field(default_factory=set)


def one_input(
    seed: int = 0, output: tuple[int, ...] = (), stops: tuple[int, ...] = (), **params: Any
) -> VerificationInput:
    return VerificationInput(SamplingParams(**params), seed, [1, 2, 3], list(output), stops)


def peaked(tokens: list[int], vocabulary: int = V) -> Floats:
    """Rows that are all but certain of these tokens."""
    rows = np.full((len(tokens), vocabulary), -30, np.float32)
    rows[np.arange(len(tokens)), tokens] = 30
    return rows


def table() -> list[Case]:
    return [*_fixed(), *_masked(), *_random()]


def alone(name: str, draft: Draft, rows: Floats, request: VerificationInput) -> Case:
    return Case(name, [draft], [rows], [request])


def _fixed() -> Iterator[Case]:
    sampled, greedy = one_input(7), VerificationInput(GREEDY, 1, [1])
    chain, good = Draft.chain([4, 5, 6]), peaked([4, 5, 6, 7])
    inputs = [one_input(seed) for seed in range(3)]
    yield Case("no requests", [], [], [])
    yield Case("no drafts", [Draft.empty()] * 3, [peaked([4])] * 3, inputs)
    yield alone("all accepted", chain, good, sampled)
    yield alone("first rejected", chain, peaked([3, 5, 6, 7]), sampled)
    yield alone("second rejected", chain, peaked([4, 0, 6, 7]), sampled)
    yield Case("greedy", [chain] * 2, [peaked([4, 5, 0, 7])] * 2, [greedy] * 2)
    yield Case(
        "greedy and sampled in one batch, ragged",
        [chain, Draft.empty(), Draft.chain([4])],
        [good, peaked([2]), peaked([4, 9])],
        [greedy, one_input(5), one_input(6, temperature=0.5)],
    )
    yield alone("greedy ties go to the lowest id", chain, np.zeros((4, V), np.float32), greedy)
    ends = Draft.chain([0, V - 1])
    yield alone("token id 0 and the last one", ends, peaked([0, V - 1, 0]), sampled)
    tree = Draft([4, 4, 5, 6, 7], [-1, -1, 0, 1, 3])
    rows = peaked([4, 6, 6, 9, 7, 8])
    yield alone("duplicate siblings: the longer one is followed", tree, rows, sampled)
    both = Draft([4, 4, 5, 5], [-1, -1, 1, 0])
    rows = peaked([4, 5, 5, 9, 9])
    yield alone("duplicate siblings of one length: the first end", both, rows, sampled)
    wide = Draft([2, 4, 5, 8, 6, 5], [-1, -1, 1, 1, 3, 3])
    yield alone("a greedy tree", wide, peaked([4, 0, 8, 0, 6, 3, 7]), greedy)
    for name, stop in (("first", 4), ("middle", 5), ("bonus", 7), ("none of them", 9)):
        yield alone(f"a stop inside the path: {name}", chain, good, one_input(stops=(stop, 11)))
    for room in (1, 2, 3, 4, 5):
        request = one_input(output=(9,), max_tokens=room + 1)
        yield alone(f"room for {room}", chain, good, request)
    rising = np.add(good, np.arange(V), dtype=np.float32)
    silent = one_input(stops=(6,), min_tokens=3)
    yield alone("a stop is forbidden before min_tokens, along the path", chain, rising, silent)
    yield from _bad()


def _bad() -> Iterator[Case]:
    chain, good = Draft.chain([4, 5, 6]), peaked([4, 5, 6, 7])
    pair, first = [chain] * 2, one_input(1)

    def row_of(value: float, row: int, token: int | slice) -> Floats:
        rows: Floats = good.copy()
        rows[row, token] = value
        return rows

    for name, value in (("NaN", np.nan), ("+inf", np.inf)):
        for params in ({}, {"top_k": 3}, {"temperature": 0}, {"repetition_penalty": 1.5}):
            for row in range(4):
                yield Case(
                    f"{name} in row {row}, {params}",
                    [chain] * 3,
                    [good, row_of(value, row, 8), good],
                    [first, one_input(2, **params), one_input(3)],
                    {1} if row == 0 else set(),
                )
        silent, rows = one_input(2, stops=(8,), min_tokens=2), [good, row_of(value, 0, 8)]
        yield Case(f"{name} on a stop that is forbidden", pair, rows, [first, silent], {1})
    every = slice(None)
    rows, greedy = [row_of(-np.inf, 0, every), good], one_input(2, temperature=0)
    yield Case("all -inf", pair, rows, [first, greedy], {0})
    forbidden = one_input(2, logit_bias=dict.fromkeys(range(V), -np.inf))
    yield Case("all forbidden", pair, [good, good], [first, forbidden], {1})
    rows = [peaked([3, 5, 6, 7]), row_of(np.nan, 2, every)]
    rows[0][1:] = np.nan
    yield Case("a bad row that is not reached is no failure", pair, rows, [first, one_input(2)])
    masked = good.copy()
    masked[:, 8:] = -np.inf
    yield alone("-inf is valid", chain, masked, first)


def _masked() -> Iterator[Case]:
    chain, good = Draft.chain([4, 5, 6]), peaked([4, 5, 6, 7])
    pair, first = [chain] * 2, one_input(1)
    every = np.ones((4, V), bool)

    def with_masks(allowed: Any, **params: Any) -> VerificationInput:
        return replace(one_input(3, **params), masks=mask_of(np.broadcast_to(allowed, (4, V))))

    for row in range(4):
        barred, only, nothing = every.copy(), every.copy(), every.copy()
        barred[row, 4 + row] = False
        only[row] = np.arange(V) == 9
        nothing[row] = False
        for name, masks in (("barred", barred), ("one is left", only), ("nothing", nothing)):
            failing = {1} if name == "nothing" and row == 0 else set()
            for params in ({}, {"temperature": 0}, {"top_k": 3}, {"repetition_penalty": 1.5}):
                wanted = [first, with_masks(masks, **params)]
                yield Case(
                    f"masked, row {row}: {name}, {params}", pair, [good] * 2, wanted, failing
                )
    for bias in (100.0, -100.0):
        some = with_masks(np.arange(V) != 4, logit_bias={4: bias})
        yield Case(f"a bias of {bias} on a masked token", pair, [good] * 2, [first, some])
    silent = with_masks(np.arange(V) < 2, stops=(1,), min_tokens=3)
    yield Case("masked to a stop that is forbidden, and another", pair, [good] * 2, [silent, first])
    silent = with_masks(np.arange(V) == 1, stops=(1,), min_tokens=3)
    yield Case("masked to a stop that is forbidden", pair, [good] * 2, [silent, first], {0})
    rows = good.copy()
    rows[:, 9] = -np.inf
    lost = with_masks(np.arange(V) == 9)
    yield Case("masked to what has -inf", pair, [rows, good], [lost, first], {0})
    for value in (np.nan, np.inf):
        rows = good.copy()
        rows[0, 8] = value
        some = with_masks(np.arange(V) != 8)
        yield Case(f"{value} on a masked token", pair, [rows, good], [some, first], {0})
    for seed in range(30):
        rng = np.random.default_rng(1000 + seed)
        vocabulary = int(rng.choice([1, 5, 31, 32, 33, 64, 700]))
        drafts = [random_draft(rng, vocabulary) for _ in range(int(rng.integers(1, 6)))]
        logits = [random_rows(rng, len(d) + 1, vocabulary) for d in drafts]
        inputs = [random_input(rng, vocabulary) for _ in drafts]
        for at, draft in enumerate(drafts):
            if rng.random() < 0.7:
                allowed = rng.random((len(draft) + 1, vocabulary)) < rng.choice([0.2, 0.7])
                inputs[at] = replace(inputs[at], masks=mask_of(allowed))
        yield Case(f"random masks {seed}", drafts, logits, inputs)


def mask_of(allowed: Any) -> Any:
    """bool[R, V] as masks; what is beyond the vocabulary is set, which must not matter."""
    bits = np.ones((len(allowed), -(-allowed.shape[1] // 32) * 32), bool)
    bits[:, : allowed.shape[1]] = allowed
    return np.packbits(bits, axis=1, bitorder="little").view(np.int32)


def _random() -> Iterator[Case]:
    for seed in range(60):
        rng = np.random.default_rng(seed)
        vocabulary = int(rng.choice([1, 2, 5, 12, 40, 1500]))
        size = int(rng.integers(1, 7))
        drafts = [random_draft(rng, vocabulary) for _ in range(size)]
        logits = [random_rows(rng, len(d) + 1, vocabulary) for d in drafts]
        yield Case(
            f"random {seed}", drafts, logits, [random_input(rng, vocabulary) for _ in drafts]
        )


def random_draft(rng: np.random.Generator, vocabulary: int) -> Draft:
    n = int(rng.integers(0, 8))
    tokens = rng.integers(0, vocabulary, n)
    parents = [int(rng.integers(-1, i)) for i in range(n)]
    if n and rng.random() < 0.4:
        parents = list(range(-1, n - 1))
    return Draft(tokens.astype(np.int32), np.array(parents, np.int32))


def sampled_draft(rng: np.random.Generator, vocabulary: int, without_replacement: bool) -> Draft:
    """A tree whose tokens are sampled from the probs it carries."""
    shape = random_draft(rng, vocabulary)
    tokens, rows = list[int](), list[Floats]()
    for node, parent in enumerate(shape.parents):
        weights = rng.gamma(0.5, size=vocabulary) + 1e-9
        weights[rng.random(vocabulary) < 0.3] = 0
        if without_replacement:
            siblings = [s for s in range(node) if shape.parents[s] == parent]
            weights[[tokens[s] for s in siblings]] = 0
        if weights.sum() == 0:  # nothing is left to draw
            weights = np.ones(vocabulary)
        row = (weights / weights.sum()).astype(np.float32)
        rows.append(row)
        tokens.append(int(rng.choice(vocabulary, p=row / row.sum(dtype=np.float64))))
    probs = np.array(rows, np.float32).reshape(len(tokens), vocabulary)
    return Draft(np.array(tokens, np.int32), shape.parents, probs=probs)


def random_rows(rng: np.random.Generator, rows: int, vocabulary: int) -> Floats:
    scale = float(rng.choice([0.5, 3]))
    logits: Floats = (rng.normal(size=(rows, vocabulary)) * scale).astype(np.float32)
    if rng.random() < 0.3:  # ties
        logits = np.round(logits)
    if rng.random() < 0.3:
        mask = rng.random(logits.shape) < 0.3
        mask[np.arange(rows), rng.integers(0, vocabulary, rows)] = False
        logits[mask] = -np.inf
    return logits


def random_input(rng: np.random.Generator, vocabulary: int) -> VerificationInput:
    def maybe(value: Any, otherwise: Any) -> Any:
        return value if rng.random() < 0.4 else otherwise

    output = rng.integers(0, vocabulary, int(rng.integers(0, 6)))
    min_tokens = maybe(int(rng.integers(0, 9)), 0)
    params = SamplingParams(
        max_tokens=max(len(output) + int(rng.integers(1, 9)), min_tokens),
        temperature=maybe(0.0, float(rng.choice([0.3, 1.0, 2.0]))),
        top_k=maybe(int(rng.integers(0, vocabulary + 2)), 0),
        top_p=maybe(float(rng.choice([0.1, 0.5, 0.9, 0.99])), 1.0),
        min_p=maybe(float(rng.choice([0.01, 0.2, 1.0])), 0.0),
        repetition_penalty=maybe(1.3, 1.0),
        presence_penalty=maybe(0.7, 0.0),
        frequency_penalty=maybe(-0.4, 0.0),
        logit_bias=maybe({int(rng.integers(0, vocabulary)): float(rng.normal() * 3)}, {}),
        min_tokens=min_tokens,
    )
    stops = tuple(int(t) for t in rng.integers(0, vocabulary, int(rng.integers(0, 3))))
    if len(set(stops)) == vocabulary:
        stops = ()
    prompt = rng.integers(0, vocabulary, int(rng.integers(0, 10)))
    seed = int(rng.integers(0, 2**63)) * 2 + int(rng.integers(0, 2))
    if seed % 2:  # from the seed, so that everything else stays as it is
        order = np.random.default_rng(seed).permutation(PROCESSORS).tolist()
        params = replace(params, processor_order=order)
    return VerificationInput(params, seed, prompt.astype(np.int32), output.astype(np.int32), stops)
