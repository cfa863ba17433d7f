"""The batched rules put to a statistical test: real code, real noise, a known distribution.

A small target (four tokens, its probs depend on the token before) writes texts of two tokens
through `acceptance.match` or `acceptance.rejection`, with drafts of every kind in every step, and
the texts are counted against the exact distribution. The wrong subjects draft wrongly while the
verification is the real one; they must be found, or the test proves nothing.

Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held but for torch's own work.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from foresay.draft import DraftBatch
from foresay.lossless.gtest import Outcome, confirmed
from foresay.sampling.acceptance.match import match
from foresay.sampling.acceptance.rejection import rejection
from foresay.sampling.acceptance.rows import Rows
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.ask import Ask, AskBatch
from foresay.sampling.noise import Doubles, gumbel
from foresay.sampling.params import SamplingParams
from foresay.sampling.processors import probabilities, scores

__all__ = ["SUBJECTS", "WRONG_SUBJECTS", "Subject", "test"]

Longs: TypeAlias = NDArray[np.int64]
Seeds: TypeAlias = NDArray[np.uint64]
Text: TypeAlias = tuple[int, ...]
Rule: TypeAlias = Callable[[DraftBatch, torch.Tensor, AskBatch], Verified]

V = 4
PROMPT = (1, 2)
CHUNK = 20_000
TARGET = np.random.default_rng(1).normal(size=(V + 1, V)).astype(np.float32)
"""Logits at the beginning, then after each token."""
DRAFTER = (TARGET + np.random.default_rng(2).normal(size=TARGET.shape)).astype(np.float64)
CHAIN, TREE = np.array([-1, 0]), np.array([-1, -1, 0, 1])


@dataclass(frozen=True)
class Drafted:
    """One tree shape for m requests: tokens [m, n], and what they are said to be sampled from."""

    tokens: Longs
    parents: Longs
    probs: Doubles | None = None


Drafting: TypeAlias = Callable[[np.random.Generator, Seeds, Text], Drafted]
"""The drafts of requests with these seeds, which all have this text."""


@dataclass(frozen=True)
class Subject:
    """A rule with drafts of one kind, and the parameters of sampling."""

    rule: Rule
    draft: Drafting
    params: SamplingParams = SamplingParams()  # noqa: RUF009 (it is frozen)


def test(
    subject: Subject, total_variation: float = 0.005, seed: int = 0, family: int = 1
) -> Outcome:
    """Whether the texts have the target's distribution: a bias of this total variation would be
    found with 99.9 %, and a false alarm in the whole family has a chance below 1e-10."""
    return confirmed(
        lambda seed, n: _texts(subject, seed, n),
        _distribution(subject.params),
        total_variation=total_variation,
        family=family,
        seed=seed,
    )


def _distribution(params: SamplingParams) -> Doubles:
    """The chance of each text of two tokens."""
    first = probabilities(scores(TARGET[0], Ask(params, 0, PROMPT)), params.greedy)
    second = [
        probabilities(scores(TARGET[1 + x], Ask(params, 0, PROMPT, [x])), params.greedy)
        for x in range(V)
    ]
    return np.concatenate([first[x] * second[x] for x in range(V)])


def _texts(subject: Subject, seed: int, n: int) -> Longs:
    """How often each text was written, of n."""
    rng, counts = np.random.default_rng(seed), np.zeros(V * V, np.int64)
    for begin in range(0, n, CHUNK):
        counts += _chunk(subject, rng, min(CHUNK, n - begin))
    return counts


def _chunk(subject: Subject, rng: np.random.Generator, size: int) -> Longs:
    seeds = rng.integers(0, 2**64, size, dtype=np.uint64)
    texts = np.full((size, 2), -1)
    _step(subject, rng, seeds, texts, np.arange(size), ())
    for x in range(V):  # those that wrote one token draft again
        behind = np.flatnonzero((texts[:, 0] == x) & (texts[:, 1] < 0))
        if len(behind):
            _step(subject, rng, seeds, texts, behind, (x,))
    return np.bincount(texts[:, 0] * V + texts[:, 1], minlength=V * V)


def _step(
    subject: Subject,
    rng: np.random.Generator,
    seeds: Seeds,
    texts: Longs,
    which: Longs,
    text: Text,
) -> None:
    """Drafts and verifies for these requests, which all have this text, and writes what they get
    into `texts`."""
    drafts = _batch(subject.draft(rng, seeds[which], text))
    rows = Rows.of(drafts)
    logits = TARGET[np.where(rows.token < 0, _row(text), rows.token + 1)]
    asks = _many(Ask(subject.params, 0, PROMPT, text), seeds[which])
    written = subject.rule(drafts, torch.from_numpy(logits), asks).verdicts
    texts[which, len(text)] = written.tokens[written.offsets[:-1]]
    more = np.diff(written.offsets) > 1
    if not text:
        texts[which[more], 1] = written.tokens[written.offsets[:-1][more] + 1]


def _row(text: Text) -> int:
    """Where the tables have the row that follows a text."""
    return text[-1] + 1 if text else 0


def _batch(drafted: Drafted) -> DraftBatch:
    size, n = drafted.tokens.shape
    return DraftBatch(
        drafted.tokens.ravel().astype(np.int32),
        np.tile(drafted.parents, size).astype(np.int32),
        np.arange(0, size * n + 1, n, dtype=np.int32),
        probs=None if drafted.probs is None else drafted.probs.reshape(-1, V).astype(np.float32),
    )


def _many(ask: Ask, seeds: Seeds) -> AskBatch:
    """The same ask with many seeds. Columns are repeated, which is faster than to read them."""
    one, many, n = AskBatch.of([ask]), AskBatch((ask,) * len(seeds)), len(seeds)
    columns = "temperatures top_k top_p min_p repetition presence frequency positions room silent"
    for name in [*columns.split(), "penalised"]:
        setattr(many, name, np.repeat(getattr(one, name), n))
    steps = np.arange(n + 1) * len(one.context)
    many.seeds, many.context, many.context_offsets = seeds, np.tile(one.context, n), steps
    many.outputs_from = steps[:-1] + one.outputs_from[0]
    many.orders = one.orders[0], np.repeat(one.orders[1], n)
    return many


def _softmax(logits: Doubles) -> Doubles:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    result: Doubles = weights / weights.sum(axis=-1, keepdims=True)
    return result


def _draw(rng: np.random.Generator, probs: Doubles) -> Longs:
    result: Longs = (rng.random((len(probs), 1)) > probs.cumsum(axis=1)[:, :-1]).sum(axis=1)
    return result


def _sampled_chain(rng: np.random.Generator, seeds: Seeds, text: Text) -> Drafted:
    q = _softmax(DRAFTER)
    probs = [np.repeat(q[[_row(text)]], len(seeds), axis=0)]
    tokens = [_draw(rng, probs[0])]
    probs.append(q[1 + tokens[0]])
    tokens.append(_draw(rng, probs[1]))
    return Drafted(np.stack(tokens, axis=1), CHAIN, np.stack(probs, axis=1))


def _sampled_tree(replacement: bool) -> Drafting:
    def draft(rng: np.random.Generator, seeds: Seeds, text: Text) -> Drafted:
        q = _softmax(DRAFTER)
        probs = [np.repeat(q[[_row(text)]], len(seeds), axis=0)] * 2
        tokens = [_draw(rng, probs[0])]
        if not replacement:
            probs[1] = probs[1].copy()
            probs[1][np.arange(len(seeds)), tokens[0]] = 0
            probs[1] /= probs[1].sum(axis=1, keepdims=True)
        tokens.append(_draw(rng, probs[1]))
        for parent in (0, 1):
            probs.append(q[1 + tokens[parent]])
            tokens.append(_draw(rng, probs[-1]))
        return Drafted(np.stack(tokens, axis=1), TREE, np.stack(probs, axis=1))

    return draft


def _chosen(parents: Longs) -> Drafting:
    def draft(rng: np.random.Generator, seeds: Seeds, text: Text) -> Drafted:
        best = np.argsort(-DRAFTER, axis=1)
        roots = best[_row(text), : int((parents < 0).sum())]
        tokens = [*roots, *best[1 + roots, 0]]
        return Drafted(np.tile(tokens, (len(seeds), 1)), parents)

    return draft


def _coupled(rng: np.random.Generator, seeds: Seeds, text: Text) -> Drafted:
    """Sampled with the very noise that the target will use."""
    at, ids = len(PROMPT) + len(text), np.arange(V)
    first = (DRAFTER[_row(text)] + gumbel(seeds[:, None], at, ids)).argmax(axis=1)
    second = (DRAFTER[1 + first] + gumbel(seeds[:, None], at + 1, ids)).argmax(axis=1)
    return Drafted(np.stack([first, second], axis=1), CHAIN)


def _other_temperature(rng: np.random.Generator, seeds: Seeds, text: Text) -> Drafted:
    drafted = _sampled_chain(rng, seeds, text)
    assert drafted.probs is not None
    return replace(drafted, probs=_softmax(np.log(drafted.probs) / 0.7))


def _chosen_as_sampled(rng: np.random.Generator, seeds: Seeds, text: Text) -> Drafted:
    drafted = _chosen(CHAIN)(rng, seeds, text)
    q = _softmax(DRAFTER)
    probs = [np.repeat(q[[_row(text)]], len(seeds), axis=0), q[1 + drafted.tokens[:, 0]]]
    return replace(drafted, probs=np.stack(probs, axis=1))


def _forgotten_replacement(rng: np.random.Generator, seeds: Seeds, text: Text) -> Drafted:
    drafted = _sampled_tree(replacement=False)(rng, seeds, text)
    assert drafted.probs is not None
    probs = drafted.probs.copy()
    probs[:, 1] = probs[:, 0]
    return replace(drafted, probs=probs)


def _unlikely_resampled(rng: np.random.Generator, seeds: Seeds, text: Text) -> Drafted:
    """A sampled token of little confidence is dropped and another is sampled in its place."""
    one, other = _sampled_chain(rng, seeds, text), _sampled_chain(rng, seeds, text)
    assert one.probs is not None and other.probs is not None
    sure = one.probs[np.arange(len(seeds)), 0, one.tokens[:, 0]] > 0.2
    return Drafted(
        np.where(sure[:, None], one.tokens, other.tokens),
        CHAIN,
        np.where(sure[:, None, None], one.probs, other.probs),
    )


_COOL = SamplingParams(temperature=0.6, top_p=0.95)
_HOT = SamplingParams(temperature=1.3, top_k=3, min_p=0.05, repetition_penalty=1.2)

SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "match, chosen tree": Subject(match, _chosen(TREE)),
        "match, coupled chain": Subject(match, _coupled),
        "match, coupled chain, T 0.6, top-p": Subject(match, _coupled, _COOL),
        "rejection, sampled chain": Subject(rejection, _sampled_chain),
        "rejection, sampled chain, T 1.3, top-k, min-p, penalty": Subject(
            rejection, _sampled_chain, _HOT
        ),
        "rejection, tree, independent": Subject(rejection, _sampled_tree(replacement=True)),
        "rejection, tree, no replacement": Subject(rejection, _sampled_tree(replacement=False)),
        "rejection, chosen tree, T 0.6, top-p": Subject(rejection, _chosen(TREE), _COOL),
    }
)

WRONG_SUBJECTS: Mapping[str, Subject] = MappingProxyType(
    {
        "q of another temperature": Subject(rejection, _other_temperature),
        "chosen tokens given as sampled": Subject(rejection, _chosen_as_sampled),
        "without replacement, forgotten": Subject(rejection, _forgotten_replacement),
        "unlikely tokens sampled again": Subject(rejection, _unlikely_resampled),
    }
)
