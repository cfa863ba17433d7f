"""Masks along a draft tree: the grammar advances along each path, and rolls back.

A node costs one advance, however many lie below it. The matcher is where it was afterwards.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from foresay.draft import Draft
from foresay.structured.matcher import GrammarMatcher, Words

__all__ = ["legal_nodes", "tree_masks"]


def legal_nodes(matcher: GrammarMatcher, draft: Draft) -> NDArray[np.bool_]:
    """Which nodes the grammar allows, with all above them.

    Mutates: the matcher, and back. Raises: as the matcher, which is of no use then.
    """
    tokens, legal = draft.tokens.tolist(), np.zeros(len(draft), bool)

    def enter(node: int) -> bool:
        legal[node] = matcher.allows(tokens[node])
        return bool(legal[node]) and not _ends(matcher, tokens[node])

    _walk(matcher, draft, enter, lambda node: None)
    return legal


def tree_masks(matcher: GrammarMatcher, draft: Draft) -> Words:
    """The masks of one verification, int32[n + 1, words]: what may come after the text, and after
    each node. Behind a node that is forbidden or that ends the answer everything may: nothing of it
    is committed.

    Mutates: the matcher, and back. Raises: as the matcher, which is of no use then.
    """
    masks = np.full((len(draft) + 1, matcher.grammar.words), -1, np.int32)
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    matcher.fill_mask(masks[0])

    def enter(node: int) -> bool:
        token, above = tokens[node], masks[parents[node] + 1]
        within = token < 32 * len(above) and above[token // 32] >> token % 32 & 1
        return bool(within) and not _ends(matcher, token)

    def fill(node: int) -> None:
        matcher.fill_mask(masks[node + 1])

    _walk(matcher, draft, enter, fill)
    return masks


def _ends(matcher: GrammarMatcher, token: int) -> bool:
    """Whether the answer ends with this token, so that the grammar is not told of it."""
    return token in matcher.stops


def _walk(
    matcher: GrammarMatcher,
    draft: Draft,
    enter: Callable[[int], bool],
    visit: Callable[[int], None],
) -> None:
    """Depth first. `enter(node)` says before each node whether it is gone to, `visit(node)` is
    called behind it, where the answer goes on."""
    children: list[list[int]] = [[] for _ in range(len(draft) + 1)]
    for node, parent in enumerate(draft.parents.tolist()):
        children[parent + 1].append(node)
    begin, tokens = len(matcher), draft.tokens.tolist()
    waiting = [(node, 0) for node in reversed(children[0])]
    while waiting:
        node, depth = waiting.pop()
        matcher.rollback(len(matcher) - begin - depth)
        if enter(node) and matcher.advance(tokens[node]) and not matcher.complete:
            visit(node)
            waiting += [(child, depth + 1) for child in reversed(children[node + 1])]
    matcher.rollback(len(matcher) - begin)
