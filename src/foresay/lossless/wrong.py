"""The negative controls: ways to speculate that are wrong in one way each, most of them seen in
papers, documents or code. A proof that finds none of them proves nothing.

Most follow the right rule with one line changed: `_walk` is `follow_rejection` with two lines left
open, the chance of acceptance and what a rejection leaves. Others change what the right rule is
given. Not here: a step without the target's own token after a draft that was accepted whole. It
emits less, and nothing wrong.

Mutates: nothing. Valid until: for ever. Raises: nothing of its own. GIL: held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import partial
from typing import NamedTuple, TypeAlias

from foresay.lossless import drafts
from foresay.lossless.chance import Chance
from foresay.lossless.drafts import Drafting, Place, Token, Tree, chain_of, ordered, tree_of
from foresay.lossless.schemes import Scheme, SchemeStep, Verify, match, rejection
from foresay.lossless.worlds import Probs, Text, World, sharper
from foresay.sampling.reference import residual, without

ZERO, ONE, HALF = Fraction(0), Fraction(1), Fraction(1, 2)


class _Try(NamedTuple):
    """One drafted token under test."""

    token: int
    p: Sequence[Fraction]
    """What earlier siblings left of the target's probs."""
    original: Probs
    """The target's probs themselves."""
    q: Probs
    """The probs the token was sampled from; all on the token itself if it was chosen."""


_Chance: TypeAlias = Callable[[_Try], Fraction]
_Rest: TypeAlias = Callable[[_Try], Sequence[Fraction]]


def _ratio(t: _Try) -> Fraction:
    return t.p[t.token] / t.q[t.token]


def _walk(
    chance_of: _Chance = _ratio, rest_of: _Rest = lambda t: residual(t.p, t.q)
) -> Callable[[SchemeStep, Chance], list[int]]:
    """With its two defaults, rule rejection."""

    def verify(step: SchemeStep, chance: Chance) -> list[int]:
        tokens, parents, draft_probs = step.tree
        node, emitted = -1, list[int]()
        while True:
            p: Sequence[Fraction] = step.p[node + 1]
            accepted = None
            for child in [c for c, parent in enumerate(parents) if parent == node]:
                q = draft_probs[child] or tuple(Fraction(v == tokens[child]) for v in range(len(p)))
                tried = _Try(tokens[child], p, step.p[node + 1], q)
                if chance.accept(chance_of(tried)):
                    accepted = child
                    break
                p = rest_of(tried)
            if accepted is None:
                return [*emitted, chance.draw(p)]
            node = accepted
            emitted.append(tokens[node])

    return verify


def _scalar(t: _Try) -> Sequence[Fraction]:
    return residual(t.p, [q if v == t.token else ZERO for v, q in enumerate(t.q)])


def _retried(t: _Try) -> Sequence[Fraction]:
    """What is accepted at last if q is sampled from and tested again and again."""
    common = [min(a, b) for a, b in zip(t.p, t.q, strict=True)]
    return common if any(common) else t.p


# What the right rule is given.


def _leaves(step: SchemeStep) -> list[int]:
    return [node for node in range(len(step.tree.tokens)) if node not in step.tree.parents]


def _bonus(row: Callable[[SchemeStep, int], Probs]) -> Verify:
    """Takes the probs after a leaf from another row."""

    def verify(step: SchemeStep, chance: Chance) -> list[int]:
        p = list(step.p)
        for leaf in _leaves(step):
            p[leaf + 1] = row(step, leaf)
        return rejection(replace(step, p=tuple(p)), chance)

    return verify


def _timeout(step: SchemeStep, chance: Chance) -> list[int]:
    if step.tree.tokens and chance.accept(Fraction(1, 8)):
        return [step.tree.tokens[0]]
    return rejection(step, chance)


def _masked_late(step: SchemeStep, chance: Chance) -> list[int]:
    """Verifies without the mask. A token that the mask forbids becomes the likeliest it allows."""
    emitted, node = rejection(replace(step, p=step.unmasked), chance), -1
    tokens, parents, _ = step.tree
    for at, token in enumerate(emitted):
        allowed, p = step.allowed[node + 1], step.p[node + 1]
        if token not in allowed:
            return [*emitted[:at], max(allowed, key=lambda v: (p[v], -v))]
        below = [n for n, parent in enumerate(parents) if parent == node and tokens[n] == token]
        node = below[0] if below else node
    return emitted


def _injected(step: SchemeStep, chance: Chance) -> list[int]:
    """Where the mask forbids anything, the first drafted token that it allows is not verified: so
    is a text injected that a grammar forces, though other tokens could write it, too."""
    tokens, allowed = step.tree.tokens, step.allowed[0]
    if tokens and tokens[0] in allowed and len(allowed) < len(step.p[0]):
        return [tokens[0]]
    return rejection(step, chance)


def _rows(step: SchemeStep, chance: Chance) -> list[int]:
    """Each path of the tree samples its own tokens of the target; the longest that agrees wins."""
    tokens, parents, _ = step.tree
    best = [-1]
    for leaf in _leaves(step):
        path = [leaf]
        while parents[path[0]] >= 0:
            path.insert(0, parents[path[0]])
        agreed = [-1]
        for node in path:
            if chance.draw(step.p[agreed[-1] + 1]) != tokens[node]:
                break
            agreed.append(node)
        best = max(best, agreed, key=len)
    return [*(tokens[node] for node in best[1:]), chance.draw(step.p[best[-1] + 1])]


# How the draft came about.


def _as_sampled(at: Place, chance: Chance) -> Token | None:
    found = drafts.likely(at, chance)
    return (found[0], at.q) if found and at.q[found[0]] else None


def _forgetful(at: Place, chance: Chance) -> Token | None:
    found = drafts.distinct(at, chance)
    return found and (found[0], at.q)


def _other_q(at: Place, chance: Chance) -> Token | None:
    token, q = drafts.sampled(at, chance)
    return token, sharper(q)


def _again(at: Place, chance: Chance) -> Token | None:
    token, q = drafts.sampled(at, chance)
    return (token, q) if q[token] >= HALF else drafts.sampled(at, chance)


def _dropped(at: Place, chance: Chance) -> Token | None:
    token, q = drafts.sampled(at, chance)
    return (token, q) if q[token] >= HALF else None


def _once(at: Place, chance: Chance) -> Token | None:
    token, q = drafts.merged(at, chance)
    return None if token in at.siblings else (token, q)


def _ranked(world: World, text: Text, chance: Chance) -> Tree:
    tree = tree_of(drafts.sampled)(world, text, chance)
    chances = [q[token] if q else ONE for token, q in zip(tree.tokens, tree.q, strict=True)]
    return ordered(tree, lambda node: -chances[node])


_SAMPLED, _SAMPLED_TREE = chain_of(drafts.sampled), tree_of(drafts.sampled)
_CHOSEN, _LIKELY = chain_of(drafts.chosen), chain_of(drafts.likely)

_REJECTION: dict[str, tuple[str, Drafting, Verify]] = {
    "resampled-target": (
        "After a rejection, samples from the target's whole distribution.",
        _SAMPLED,
        _walk(rest_of=lambda t: t.original),
    ),
    "resampled-lookup": (
        "Where a sample is not the token looked up, takes another sample.",
        _CHOSEN,
        _walk(rest_of=lambda t: t.original),
    ),
    "scalar-residual": (
        "Of q subtracts the drafted token's chance only.",
        _SAMPLED,
        _walk(rest_of=_scalar),
    ),
    "no-coin": (
        "Accepts where p >= q and never otherwise.",
        _SAMPLED,
        _walk(lambda t: ONE if t.p[t.token] >= t.q[t.token] else ZERO),
    ),
    "retried": (
        "After a rejection samples from q again, until it accepts.",
        _SAMPLED,
        _walk(rest_of=_retried),
    ),
    "lenient": ("Accepts with chance p / (q / 2).", _SAMPLED, _walk(lambda t: _ratio(t) / HALF)),
    "typical": (
        "Accepts what the target finds likely enough.",
        _LIKELY,
        _walk(lambda t: ONE if 4 * t.p[t.token] > 1 else ZERO, lambda t: without(t.p, t.token)),
    ),
    "original-probs": (
        "Tests later siblings against p, not what is left of it.",
        _SAMPLED_TREE,
        _walk(lambda t: t.original[t.token] / t.q[t.token]),
    ),
    "rows": (
        "Paths sample the target's tokens each for itself, the longest wins.",
        tree_of(drafts.chosen),
        _rows,
    ),
    "timeout": (
        "Commits the first drafted token where no answer comes in time.",
        _SAMPLED,
        _timeout,
    ),
    "mask-after-the-choice": (
        "Verifies without the mask, and replaces what it forbids.",
        _CHOSEN,
        _masked_late,
    ),
    "forced-injected": (
        "Commits a forced token as the tokenizer writes it, without verifying it.",
        _CHOSEN,
        _injected,
    ),
    "bonus-row": (
        "After a draft accepted whole, samples from the row before.",
        _SAMPLED,
        _bonus(lambda step, leaf: step.p[step.tree.parents[leaf] + 1]),
    ),
    "bonus-raw": (
        "After a draft accepted whole, samples from unprocessed logits.",
        _SAMPLED,
        _bonus(lambda step, leaf: step.raw[leaf + 1]),
    ),
    "other-q": ("Verifies with a q of another temperature.", chain_of(_other_q), rejection),
    "likely-as-sampled": (
        "Tests the most likely tokens as if sampled.",
        tree_of(_as_sampled),
        rejection,
    ),
    "replacement-forgotten": (
        "Samples siblings without replacement, tests all with the first one's probs.",
        tree_of(_forgetful),
        rejection,
    ),
    "dropped": (
        "Drops a sampled token because its own chance is low.",
        chain_of(_dropped),
        rejection,
    ),
    "sampled-again": (
        "Samples another token in the place of one whose own chance is low.",
        chain_of(_again),
        rejection,
    ),
    "collapsed": (
        "Makes equal tokens of two small models one node with one row of probs.",
        tree_of(_once),
        rejection,
    ),
    "ranked": ("Tries sampled siblings by their chance in q.", _ranked, rejection),
}
_MATCH: dict[str, tuple[str, Drafting, Verify]] = {
    "noise-reused": (
        "Uses the noise of a step's first position for all.",
        _CHOSEN,
        partial(match, key=lambda step, depth: step.position),
    ),
    "noise-shifted": (
        "Uses, in a step with a draft, the noise of one position further on.",
        _CHOSEN,
        partial(match, key=lambda step, depth: step.position + depth + bool(step.tree.tokens)),
    ),
    "noise-used-up": (
        "Takes noise from a stream: the distribution is right, the text is not.",
        _CHOSEN,
        partial(match, key=lambda step, depth: 8 * (step.position + 1) + depth),
    ),
}

WRONG = {
    **{name: Scheme(name, "rejection", *parts) for name, parts in _REJECTION.items()},
    **{name: Scheme(name, "match", *parts) for name, parts in _MATCH.items()},
}
"""By name. Every one of them must be found to differ."""
