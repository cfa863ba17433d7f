"""Ways to speculate that are right: a drafter, and one of the two rules that check its drafts.

All verifiers here are `follow_rejection` and `follow_match`, the functions under proof. What varies
is the draft, which must not matter. `user_scheme` puts a verifier of yours in their place.

Mutates: nothing. Valid until: for ever. Raises: what a drafter or a verifier raises; InputError if
a user's verifier returns no token ids. GIL: held.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from foresay.errors import InputError
from foresay.lossless import drafts
from foresay.lossless.chance import Chance
from foresay.lossless.drafts import Drafting, Tree, chain_of, tree_of
from foresay.lossless.worlds import Probs, Text, World
from foresay.sampling.reference import follow_match, follow_rejection


@dataclass(frozen=True)
class SchemeStep:
    """The input of a verifier."""

    position: int
    """Of the next token: the length of the text so far."""
    tree: Tree
    p: tuple[Probs, ...]
    """The target's probs: after the text so far, and after each node."""
    raw: tuple[Probs, ...]
    """The same before the processors. No right verifier looks at them, nor at the next two."""
    unmasked: tuple[Probs, ...]
    """What `p` would be without the mask."""
    allowed: tuple[tuple[int, ...], ...]
    """The tokens that the mask leaves in each of these places."""


Verify: TypeAlias = Callable[[SchemeStep, Chance], Sequence[int]]
"""Returns the tokens that the step emits."""
UserVerify: TypeAlias = Callable[..., object]
"""`verify(p, q, tokens, parents, coins)`: see `user_scheme`."""


@dataclass(frozen=True)
class Scheme:
    """One way to speculate."""

    name: str
    rule: Literal["rejection", "match"]
    """What it claims. rejection: the distribution of the text is the target's. match: for every
    noise the text is the one of plain decoding, and its distribution is the target's."""
    says: str
    draft: Drafting
    verify: Verify


def step_of(world: World, text: Text, tree: Tree) -> SchemeStep:
    """The step that checks this draft after this text."""
    texts = [text]
    for token, parent in zip(tree.tokens, tree.parents, strict=True):
        texts.append((*texts[parent + 1], token))
    p, raw, unmasked = (
        tuple(table[t] for t in texts) for table in (world.p, world.raw, world.unmasked)
    )
    return SchemeStep(len(text), tree, p, raw, unmasked, tuple(world.allowed[t] for t in texts))


def rejection(step: SchemeStep, chance: Chance) -> list[int]:
    """Rule rejection."""
    tokens, parents, q = step.tree
    return follow_rejection(
        tokens, parents, lambda node: step.p[node + 1], q.__getitem__, chance, step.position
    )[1]


def match(
    step: SchemeStep,
    chance: Chance,
    key: Callable[[SchemeStep, int], int] = lambda s, d: s.position + d,
) -> list[int]:
    """Rule match. `key` says which position's noise follows a path of that depth."""
    depths = [*step.tree.depths, 0]  # the last is the text's, where node -1 points

    def choose(node: int) -> int:
        return chance.choose(step.p[node + 1], key(step, depths[node]))

    return follow_match(step.tree.tokens, step.tree.parents, choose)[1]


def user_scheme(verify: UserVerify, trees: bool = False, chosen: bool = True) -> Scheme:
    """Your own verifier, to be proved or refuted like ours: `exact.run(user_scheme(verify), 100)`.

    `verify(p, q, tokens, parents, coins)` returns the tokens that the step emits. `p` has n + 1
    rows of probs, after the text and after each node; `q` the probs each of the n nodes was sampled
    from, None for a chosen one. Probs are tuples of Fractions. `trees`: whether it is given trees,
    or chains only, where node i follows node i - 1. `chosen`: whether some nodes are chosen. On
    chains this is right:

        def verify(p, q, tokens, parents, coins):
            for i, token in enumerate(tokens):
                draft_probs = q[i] or [int(v == token) for v in range(len(p[i]))]
                if not coins.accept(p[i][token] / draft_probs[token]):
                    rest = [max(a - b, 0) for a, b in zip(p[i], draft_probs)]
                    return [*tokens[:i], coins.draw(rest)]
            return [*tokens, coins.draw(p[-1])]
    """

    def called(step: SchemeStep, chance: Chance) -> Sequence[int]:
        tokens, parents, q = step.tree
        returned = verify(list(step.p), list(q), list(tokens), list(parents), chance)
        return _token_ids(returned, len(step.p[0]))

    draft = (tree_of if trees else chain_of)(drafts.mixed if chosen else drafts.merged)
    return Scheme("user", "rejection", "A function of the user's.", draft, called)


def _token_ids(returned: object, vocabulary: int) -> list[int]:
    """What a user's function returned, if that is token ids of the vocabulary, at least one."""
    needed = "a list of token ids"
    if isinstance(returned, list | tuple) or (isinstance(returned, np.ndarray) and returned.ndim):
        tokens = list(returned)
        if any(isinstance(t, bool) or not isinstance(t, int | np.integer) for t in tokens):
            needed = "a list of token ids, which are whole numbers"
        elif not tokens:
            needed = "at least one token id"
        elif not all(0 <= token < vocabulary for token in tokens):
            needed = f"token ids from 0 to {vocabulary - 1}"
        else:
            return [int(token) for token in tokens]
    short = " ".join(reprlib.repr(returned).split())
    raise InputError(f"the function returned {short}; expected {needed}")


_REJECTION: dict[str, tuple[str, Drafting]] = {
    "chain-sampled": ("Sampled from a small model.", chain_of(drafts.sampled)),
    "chain-chosen": ("Found by lookup.", chain_of(drafts.chosen)),
    "chain-before": ("As long as the small model is sure.", chain_of(drafts.confident)),
    "chain-after": ("Up to and with the first unlikely token.", chain_of(drafts.stopping)),
    "tree-sampled": ("Siblings sampled independently.", tree_of(drafts.sampled)),
    "tree-distinct": ("Siblings sampled without replacement.", tree_of(drafts.distinct)),
    "tree-likely": ("A small model's most likely tokens.", tree_of(drafts.likely, whole=True)),
    "tree-merged": ("Two small models, equal tokens kept apart.", tree_of(drafts.merged)),
    "tree-collapsed": ("Two small models, equal tokens once.", tree_of(drafts.collapsed)),
    "tree-mixed": ("Some siblings chosen, some sampled.", tree_of(drafts.mixed)),
    "tree-stopping": ("No sibling after a likely one.", tree_of(drafts.stopping)),
    "tree-shuffled": ("Two small models, siblings in random order.", drafts.shuffled),
}
_MATCH: dict[str, tuple[str, Drafting]] = {
    "match-chain-coupled": ("A small model under the same noise.", chain_of(drafts.coupled)),
    "match-chain-chosen": ("Found by lookup.", chain_of(drafts.chosen)),
    "match-tree-coupled": ("Two small models under the same noise.", tree_of(drafts.coupled)),
    "match-tree-chosen": ("Lookup, with equal siblings.", tree_of(drafts.chosen, whole=True)),
}

RIGHT = {
    **{name: Scheme(name, "rejection", *s, rejection) for name, s in _REJECTION.items()},
    **{name: Scheme(name, "match", *s, match) for name, s in _MATCH.items()},
}
"""By name. None of them may ever differ from plain decoding."""
