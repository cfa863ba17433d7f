"""The batched rules put to a statistical test: real code, real noise, a known distribution.

The drafts of the exact proof, right ones and wrong ones, are enumerated in one small world; many
requests draw theirs from them, `acceptance.match` or `acceptance.rejection` verifies all in one
batch, and the texts are counted against their exact distribution. Wrong drafts under the real rule
must be found, or the test proves nothing.

Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held but for torch's own work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray

from foresay.arrays import Floats, offsets_of
from foresay.draft import DraftBatch
from foresay.lossless.chance import outcomes
from foresay.lossless.drafts import Drafting, Tree
from foresay.lossless.gtest import Outcome, confirmed
from foresay.lossless.schemes import RIGHT, step_of
from foresay.lossless.schemes import rejection as right_rejection
from foresay.lossless.worlds import Probs, Text, world_of
from foresay.lossless.wrong import WRONG
from foresay.sampling.acceptance.match import match
from foresay.sampling.acceptance.rejection import rejection
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.noise import gumbel
from foresay.sampling.params import SamplingParams
from foresay.sampling.processors import probabilities, scores
from foresay.sampling.verification import VerificationBatch, VerificationInput

Longs: TypeAlias = NDArray[np.int64]
Seeds: TypeAlias = NDArray[np.uint64]
Rule: TypeAlias = Callable[[DraftBatch, torch.Tensor, VerificationBatch], Verified]

WORLD = world_of(0, 2371)
"""Three tokens, texts of three. Every wrong draft changes 4 % of its texts, or more, and so do
coins that are used twice."""
PROMPT = (1, 2)
CHUNK = 20_000


@dataclass(frozen=True)
class Subject:
    """A rule with drafts of one kind, and the parameters of sampling. Without `draft`: chains that
    are sampled with the very noise that the target will use."""

    rule: Rule
    draft: Drafting | None
    params: SamplingParams = SamplingParams()  # noqa: RUF009 (it is frozen)


def test(
    subject: Subject, total_variation: float = 0.005, seed: int = 0, family: int = 1
) -> Outcome:
    """Whether the texts have the target's distribution: a bias of this total variation would be
    found with 99.9 %, and a false alarm in the whole family has a chance below 1e-10."""
    return confirmed(
        partial(_counts, subject),
        _distribution(subject.params),
        total_variation=total_variation,
        family=family,
        seed=seed,
    )


def _distribution(params: SamplingParams) -> list[float]:
    """The chance of each text, in the order of their tokens."""
    after = {}
    for text, probs in WORLD.p.items():
        row = scores(_logits(probs), VerificationInput(params, 0, PROMPT, text))
        after[text] = probabilities(row, params.greedy)
    texts = product(range(WORLD.vocabulary), repeat=WORLD.length)
    return [
        float(np.prod([after[text[:at]][token] for at, token in enumerate(text)])) for text in texts
    ]


def _counts(subject: Subject, seed: int, n: int) -> Longs:
    """How often each text was written, of n."""
    rng, size = np.random.default_rng(seed), WORLD.vocabulary**WORLD.length
    counts = np.zeros(size, np.int64)
    for begin in range(0, n, CHUNK):
        texts = _texts(subject, rng, min(CHUNK, n - begin))
        places = texts @ WORLD.vocabulary ** np.arange(WORLD.length)[::-1]
        counts += np.bincount(places, minlength=size)
    return counts


def _texts(subject: Subject, rng: np.random.Generator, n: int) -> Longs:
    """[n, length]: what each request wrote; a request has one seed in all of its steps."""
    seeds = rng.integers(0, 2**64, n, dtype=np.uint64)
    texts, lengths = np.full((n, WORLD.length), -1), np.zeros(n, np.int64)
    for text in WORLD.p:  # shorter ones first: steps make them longer
        begin = len(text)
        which = np.flatnonzero((lengths == begin) & (texts[:, :begin] == text).all(axis=1))
        if not len(which):
            continue
        trees, tree_of_each = _drafts(subject, rng, seeds[which], text)
        which = which[np.argsort(tree_of_each, kind="stable")]
        drafts, logits = _batch(trees, np.bincount(tree_of_each, minlength=len(trees)), text)
        inputs = _inputs(VerificationInput(subject.params, 0, PROMPT, text), seeds[which])
        verdicts = subject.rule(drafts, torch.from_numpy(logits), inputs).verdicts
        sizes = np.diff(verdicts.offsets)
        for at in range(sizes.max()):
            longer = sizes > at
            tokens = verdicts.tokens[verdicts.offsets[:-1][longer] + at]
            texts[which[longer], begin + at] = tokens
        lengths[which] += sizes
    return texts


def _drafts(
    subject: Subject, rng: np.random.Generator, seeds: Seeds, text: Text
) -> tuple[list[Tree], Longs]:
    """The drafts that occur after this text, and which of them each request has."""
    if subject.draft is not None:
        ways = list(_ways(subject.draft, text))
        chances = [chance for _, chance in ways]
        return [tree for tree, _ in ways], rng.choice(len(ways), len(seeds), p=chances)
    chains: list[Text] = [()]
    each = np.zeros(len(seeds), np.int64)
    for at in range(len(text), WORLD.length - 1):
        q = np.stack([_logits(WORLD.q[0][text + chain]) for chain in chains]).astype(np.float64)
        added = gumbel(seeds[:, None], len(PROMPT) + at, np.arange(WORLD.vocabulary))
        each = each * WORLD.vocabulary + (q[each] + added).argmax(axis=1)
        chains = [(*chain, token) for chain in chains for token in range(WORLD.vocabulary)]
    shape = tuple(range(-1, len(chains[0]) - 1))
    return [Tree(chain, shape, (None,) * len(chain)) for chain in chains], each


@cache
def _ways(draft: Drafting, text: Text) -> list[tuple[Tree, float]]:
    return [(tree, float(chance)) for tree, chance in outcomes(partial(draft, WORLD, text))]


def _batch(trees: list[Tree], counts: Longs, text: Text) -> tuple[DraftBatch, Floats]:
    """Each tree as often as it is drafted, and the logits of all rows."""
    columns = [_columns(tree, text) for tree in trees]
    tokens, parents, probs, logits = (
        np.concatenate(
            [np.tile(a, (n, *[1] * (a.ndim - 1))) for a, n in zip(some, counts, strict=True)]
        )
        for some in zip(*columns, strict=True)
    )
    offsets = offsets_of(np.repeat([len(tree.tokens) for tree in trees], counts).tolist())
    sampled = any(q is not None for tree in trees for q in tree.q)
    return DraftBatch(tokens, parents, offsets, probs=probs if sampled else None), logits


@cache
def _columns(tree: Tree, text: Text) -> tuple[NDArray[Any], ...]:
    """Tokens, parents, probs (of a chosen token: all on it) and logits, as a batch has them."""
    one_hot = np.eye(WORLD.vocabulary)
    probs = [
        one_hot[token] if q is None else q for token, q in zip(tree.tokens, tree.q, strict=True)
    ]
    return (
        np.array(tree.tokens, np.int32),
        np.array(tree.parents, np.int32),
        np.array(probs, np.float32).reshape(-1, WORLD.vocabulary),
        np.stack([_logits(row) for row in step_of(WORLD, text, tree).p]),
    )


def _logits(probs: Probs) -> Floats:
    with np.errstate(divide="ignore"):
        return np.log(np.array(probs, np.float64)).astype(np.float32)


def _inputs(one: VerificationInput, seeds: Seeds) -> VerificationBatch:
    """The same input with many seeds. Columns are repeated, which is faster than to read them."""
    first, many, n = VerificationBatch.of([one]), VerificationBatch((one,) * len(seeds)), len(seeds)
    columns = "temperatures top_k top_p min_p repetition presence frequency positions room silent"
    for name in [*columns.split(), "penalised"]:
        setattr(many, name, np.repeat(getattr(first, name), n))
    steps = np.arange(n + 1) * len(first.context)
    many.seeds, many.context, many.context_offsets = seeds, np.tile(first.context, n), steps
    many.outputs_from = steps[:-1] + first.outputs_from[0]
    many.orders = first.orders[0], np.repeat(first.orders[1], n)
    return many


_COOL = SamplingParams(temperature=0.6, top_p=0.95)
_HOT = SamplingParams(temperature=1.3, top_k=2, min_p=0.05, repetition_penalty=1.2)

_CHAIN = RIGHT["chain-sampled"].draft
SUBJECTS = {
    "match, chosen tree": Subject(match, RIGHT["match-tree-chosen"].draft),
    "match, coupled chain": Subject(match, None),
    "match, coupled chain, T 0.6, top-p": Subject(match, None, _COOL),
    "rejection, sampled chain": Subject(rejection, _CHAIN),
    "rejection, sampled chain, T 1.3, top-k, min-p, penalty": Subject(rejection, _CHAIN, _HOT),
    "rejection, tree, independent": Subject(rejection, RIGHT["tree-merged"].draft),
    "rejection, tree, no replacement": Subject(rejection, RIGHT["tree-distinct"].draft),
    "rejection, chosen tree, T 0.6, top-p": Subject(rejection, RIGHT["tree-likely"].draft, _COOL),
}

WRONG_SUBJECTS = {
    f"batched, {name}": Subject(rejection, scheme.draft)
    for name, scheme in WRONG.items()
    if scheme.verify is right_rejection
}
"""All that are wrong by their drafts alone."""
