"""A toy target, its plain decoding, random requests and toy drafters: what scripts are made of.

The logits are a pure function of the whole text, so that whatever differs from plain decoding was
done by the verification: another path, another order and another prompt all give other rows.

Mutates: nothing but the state of the `rng` that is given. Valid until: for ever. Raises: InputError
for a vocabulary that is too small. GIL: held.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TypeAlias

import numpy as np

from foresay.arrays import Floats, IntsLike
from foresay.draft import Draft
from foresay.errors import InputError, LogitsError
from foresay.sampling.noise import Doubles, gumbel, seed_of_sample
from foresay.sampling.params import PROCESSORS, SamplingParams
from foresay.sampling.reference import match
from foresay.sampling.verification import VerificationInput

_ROWS = 256
_WORD, _FACTOR, _START = (1 << 64) - 1, 0x9E3779B97F4A7C15, 0x243F6A8885A308D3
_NOTHING = Draft.empty()


@dataclass(frozen=True, slots=True, eq=False)
class Toy:
    """A target of `vocabulary` tokens. Every text has one of 256 rows, found by its hash.

    bad        the share of rows with invalid logits: NaN, +inf or nothing but -inf
    disturbed  how far (in logits) the rows are from those of the same toy with 0: a drafter that
               resembles the target. Which rows are bad does not change.
    """

    vocabulary: int
    seed: int
    bad: float = 0.0
    disturbed: float = 0.0
    pool: Floats = field(init=False, repr=False)

    def __post_init__(self) -> None:
        if self.vocabulary < 4:
            raise InputError(f"vocabulary is {self.vocabulary}; expected at least 4")
        object.__setattr__(self, "pool", _pool(self))

    def logits(self, context: IntsLike) -> Floats:
        """float32[V] after this text; do not write to it."""
        row: Floats = self.pool[_row_of(_hash(_ints(context)))]
        return row

    def rows(self, context: IntsLike, draft: Draft) -> Floats:
        """float32[n + 1, V]: row 0 after the text, row i + 1 after node i and its path."""
        found = [_hash(_ints(context))]
        for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
            found.append(_longer(found[parent + 1], token))
        rows: Floats = self.pool[[_row_of(text) for text in found]]
        return rows


@dataclass(frozen=True, slots=True)
class Plain:
    """The answer of plain decoding, and the error that it ended with, if any."""

    tokens: tuple[int, ...]
    error: LogitsError | None


def plain(logits: Callable[[list[int]], Floats], request: VerificationInput) -> Plain:
    """Plain decoding, one token at a time from where `request` stands: the oracle. `logits` is the
    target's row after a text.

    It ends where max_tokens is reached, after a token of `request.stops`, or at invalid logits.
    """
    tokens: list[int] = []
    while True:
        now = replace(request, output=np.concatenate([request.output, tokens]).astype(np.int32))
        row = logits([*np.asarray(now.prompt).tolist(), *np.asarray(now.output).tolist()])
        try:
            verdict = match(_NOTHING, row[np.newaxis], now)
        except LogitsError as error:
            return Plain(tuple(tokens), error)
        tokens.append(int(verdict.tokens[0]))
        if tokens[-1] in request.stops or len(tokens) == request.room:
            return Plain(tuple(tokens), None)


def random_inputs(rng: random.Random, vocabulary: int) -> list[VerificationInput]:
    """One to eight requests with all kinds of parameters, some with the same seed, none begun."""
    inputs: list[VerificationInput] = []
    end, most = rng.randrange(vocabulary), rng.randint(1, 6)
    while len(inputs) < most:
        seed = rng.choice([0, 2**64 - 1, rng.getrandbits(64), *(one.seed for one in inputs[:2])])
        params = _random_params(rng, vocabulary, seed)
        prompt = [rng.randrange(vocabulary) for _ in range(rng.randint(0, 9))]
        stops = params.stop_ids if params.ignore_eos else (end, *params.stop_ids)
        seeds = [seed_of_sample(seed, sample) for sample in range(params.n)]
        inputs += [VerificationInput(params, s, prompt, (), stops) for s in seeds]
    return inputs


def _random_params(rng: random.Random, vocabulary: int, seed: int) -> SamplingParams:
    """Every parameter is off more often than on, so each occurs alone and together with others."""

    def maybe(off: float, *values: float) -> float:
        return rng.choice(values) if rng.random() < 0.3 else off

    most, tokens = rng.randint(1, 24), range(vocabulary)
    return SamplingParams(
        max_tokens=most,
        temperature=rng.choice((0.0, 0.0, 0.3, 0.8, 1.0, 1.0, 1.5, 3.0)),
        top_k=int(maybe(0, 1, 2, 5, vocabulary, vocabulary + 3)),
        top_p=maybe(1.0, 1e-6, 0.3, 0.8, 0.99),
        min_p=maybe(0.0, 0.02, 0.2, 1.0),
        repetition_penalty=maybe(1.0, 0.7, 1.2, 4.0),
        presence_penalty=maybe(0.0, -1.0, 0.7, 3.0),
        frequency_penalty=maybe(0.0, -0.5, 0.7, 2.0),
        logit_bias={
            rng.choice(tokens): maybe(1.5, -np.inf, -4.0, 6.0) for _ in range(rng.choice((0, 0, 3)))
        },
        # Also a token that the vocabulary does not have: some tokenizers name such.
        stop=[rng.choice((*tokens, vocabulary + 1)) for _ in range(rng.choice((0, 1, 2)))],
        seed=seed,
        n=rng.choice((1, 1, 1, 2, 3)),
        ignore_eos=rng.random() < 0.3,
        min_tokens=int(maybe(0, most // 2, most)),
        processor_order=rng.sample(PROCESSORS, 4) if rng.random() < 0.3 else PROCESSORS,
    )


@dataclass(frozen=True, slots=True, eq=False)
class DraftPlan:
    """What a toy drafter knows: unlike a real one, also the rest of the answer."""

    request: VerificationInput
    rest: tuple[int, ...]
    """The rest of the answer in plain decoding."""
    alike: Toy
    """A toy that resembles the target."""


Tree: TypeAlias = tuple[list[int], list[int]]
"""Tokens and parents."""


def _nothing(rng: random.Random, plan: DraftPlan) -> Tree:
    return [], []


def _garbage(rng: random.Random, plan: DraftPlan) -> Tree:
    return _chain(_any(rng, plan, 6))


def _right_then_wrong(rng: random.Random, plan: DraftPlan) -> Tree:
    return _chain([*plan.rest[: rng.randint(1, 8)], *_any(rng, plan, 3)])


def _past_the_end(rng: random.Random, plan: DraftPlan) -> Tree:
    """All of the answer and more: past the token that stops it, longer than its room."""
    return _chain([*plan.rest, *_any(rng, plan, 4)])


def _edges(rng: random.Random, plan: DraftPlan) -> Tree:
    """The first and the last token of the vocabulary, which are also what padding looks like."""
    edge = rng.choice((0, plan.alike.vocabulary - 1))
    return _chain([*plan.rest[: rng.randint(0, 2)], *[edge] * rng.randint(1, 4)])


def _bush(rng: random.Random, plan: DraftPlan) -> Tree:
    """A tree with the truth on one branch, in any order that has parents before children."""
    tokens, parents, right, tip = [], [], list(plan.rest[: rng.randint(1, 6)]), -1
    for _ in range(rng.randint(2, 14)):
        if right and rng.random() < 0.5:
            tokens.append(right.pop(0))
            parents.append(tip)
            tip = len(tokens) - 1
        else:
            tokens += _any(rng, plan, 1)
            parents.append(rng.randint(-1, len(parents) - 1))
    return tokens, parents


def _twins(rng: random.Random, plan: DraftPlan) -> Tree:
    """Every token of a right branch several times below one parent; any of them goes on."""
    tokens: list[int] = []
    parents: list[int] = []
    tip = -1
    for token in [*plan.rest[: rng.randint(1, 4)], *_any(rng, plan, 1)]:
        twins = range(len(tokens), len(tokens) + rng.randint(1, 3))
        tokens += [token] * len(twins)
        parents += [tip] * len(twins)
        tip = rng.choice(twins)
    return tokens, parents


def _coupled(rng: random.Random, plan: DraftPlan) -> Tree:
    """What a model that resembles the target would write with the target's noise."""
    request, chain = plan.request, list[int]()
    text = np.concatenate([request.prompt, request.output]).tolist()
    for _ in range(rng.randint(1, 6)):
        row = plan.alike.logits(text + chain).astype(np.float64)
        if not request.params.greedy:
            added = _noise(request.seed, len(text + chain), len(row))
            row = row / request.params.temperature + added
        chain.append(int(np.argmax(row)))
    return _chain(chain)


MakeDraft: TypeAlias = Callable[[random.Random, DraftPlan], Tree]
DRAFTS: tuple[MakeDraft, ...] = (
    _nothing,
    _garbage,
    _right_then_wrong,
    _past_the_end,
    _edges,
    _bush,
    _twins,
    _coupled,
)
"""Each makes a draft tree, with right tokens and wrong ones."""


def _any(rng: random.Random, plan: DraftPlan, most: int) -> list[int]:
    return [rng.randrange(plan.alike.vocabulary) for _ in range(rng.randint(1, most))]


def _chain(tokens: list[int]) -> Tree:
    return tokens, list(range(-1, len(tokens) - 1))


@lru_cache(maxsize=4096)
def _noise(seed: int, position: int, vocabulary: int) -> Doubles:
    return gumbel(seed, position, range(vocabulary))


def _ints(context: IntsLike) -> Sequence[int]:
    found: Sequence[int] = context.tolist() if isinstance(context, np.ndarray) else context
    return found


def _hash(tokens: Iterable[int]) -> int:
    text = _START
    for token in tokens:
        text = _longer(text, token)
    return text


def _longer(text: int, token: int) -> int:
    """The hash of a text with one token more. Two rounds, so that low bits reach the high ones."""
    text = ((text ^ (token + 1)) * _FACTOR) & _WORD
    return ((text ^ (text >> 29)) * _FACTOR) & _WORD


def _row_of(text: int) -> int:
    return (text >> 40) % _ROWS


def _pool(toy: Toy) -> Floats:
    """Rows of all kinds that verification must cope with, most of them like a model's."""
    rng = np.random.default_rng(toy.seed)
    shape = (_ROWS, toy.vocabulary)
    pool = rng.standard_normal(shape) - 2.0
    peaks = rng.integers(0, toy.vocabulary, (_ROWS, 3))
    np.put_along_axis(pool, peaks, rng.uniform(0.0, 4.0, (_ROWS, 3)), axis=1)
    kind = rng.random(_ROWS)
    sure, tied, holed = kind < 0.1, (kind >= 0.1) & (kind < 0.25), (kind >= 0.25) & (kind < 0.4)
    pool[sure, peaks[sure, 0]] += 25.0
    pool[tied] = np.round(pool[tied])
    holes = rng.random(shape) < 0.4
    holes[np.arange(_ROWS), peaks[:, 0]] = False  # something must be left
    pool[holes & holed[:, np.newaxis]] = -np.inf
    bad = np.flatnonzero(rng.random(_ROWS) < toy.bad)
    what, where = rng.integers(0, 3, len(bad)), rng.integers(0, toy.vocabulary, len(bad))
    pool[bad[what == 2]] = -np.inf
    pool[bad, where] = np.array([np.nan, np.inf, -np.inf])[what]
    if toy.disturbed:  # last, from the same stream: all that came before is as without
        pool += toy.disturbed * rng.standard_normal(shape)
    return pool.astype(np.float32)
