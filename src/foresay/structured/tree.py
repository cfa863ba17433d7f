"""Masks along a draft tree: the grammar advances along each path, and rolls back.

A node costs one advance, however many lie below it. The matcher is where it was afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from foresay.draft import Draft
from foresay.errors import InputError
from foresay.structured.matcher import GrammarMatcher, Words

__all__ = ["Completed", "completed", "legal_nodes", "tree_masks"]


class Completed(NamedTuple):
    """The legal nodes of a draft, and the text that is forced between and behind them.

    tokens, parents  its nodes, parents before children
    own     the node of the draft that each of them is; -1 for one that the draft has not
    forced  whether it is of a text that the grammar forces
    """

    tokens: list[int]
    parents: list[int]
    own: list[int]
    forced: list[bool]


def legal_nodes(matcher: GrammarMatcher, draft: Draft) -> NDArray[np.bool_]:
    """Which nodes the grammar allows, with all above them; not those that take it too much work.

    Raises: as the matcher, if that cannot go back.
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
    is committed. Where the grammar takes too much work behind a node nothing may: the answer fails
    if it goes there.

    Raises: as the matcher, where that is so behind the text.
    """
    masks = np.full((len(draft) + 1, matcher.grammar.words), -1, np.int32)
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    matcher.fill_mask(masks[0])

    def enter(node: int) -> bool:
        token, above = tokens[node], masks[parents[node] + 1]
        within = token < 32 * len(above) and above[token // 32] >> token % 32 & 1
        return bool(within) and not _ends(matcher, token)

    def fill(node: int) -> None:
        masks[node + 1] = 0
        matcher.fill_mask(masks[node + 1])

    _walk(matcher, draft, enter, fill)
    return masks


def completed(matcher: GrammarMatcher, draft: Draft, most: int) -> Completed:
    """A draft without what the grammar forbids, and with the texts that it forces: where it leaves
    one text to write, that text; each at most `most` nodes long.

    Raises: as the matcher, which is of no use then.
    """
    children, begin = _children(draft), len(matcher)
    tokens, found = draft.tokens.tolist(), Completed([], [], [], [])

    def add(token: int, parent: int, own: int, forced: bool) -> int:
        for column, value in zip(found, (token, parent, own, forced), strict=True):
            column.append(value)  # type: ignore[attr-defined]
        return len(found.tokens) - 1

    waiting: list[tuple[int, int, int]] = []  # a node of the draft, the place above it, its depth

    def reach(node: int, own: int | None, depth: int) -> None:
        """The matcher is at a place, where the draft has the node `own`, or none."""
        while forced := matcher.forced()[: max(most - depth, 0)]:
            for token in forced:
                below = [] if own is None else children[own + 1]
                own = next((child for child in below if tokens[child] == token), None)
                node = add(token, node, -1 if own is None else own, True)
                matcher.advance(token)
            depth += len(forced)
        if own is not None:
            waiting.extend((child, node, depth) for child in reversed(children[own + 1]))

    reach(-1, -1, 0)
    while waiting:
        child, node, depth = waiting.pop()
        matcher.rollback(len(matcher) - begin - depth)
        if matcher.advance(tokens[child]):
            reach(add(tokens[child], node, child, False), child, depth + 1)
    matcher.rollback(len(matcher) - begin)
    return found


def _children(draft: Draft) -> list[list[int]]:
    """The nodes below the text, and below each node."""
    children: list[list[int]] = [[] for _ in range(len(draft) + 1)]
    for node, parent in enumerate(draft.parents.tolist()):
        children[parent + 1].append(node)
    return children


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
    called behind it, where the answer goes on. Where one of them or the matcher raises InputError
    it goes no further: the answer itself may never come there."""
    children, begin, tokens = _children(draft), len(matcher), draft.tokens.tolist()
    waiting = [(node, 0) for node in reversed(children[0])]
    while waiting:
        node, depth = waiting.pop()
        matcher.rollback(len(matcher) - begin - depth)
        with suppress(InputError):
            if enter(node) and matcher.advance(tokens[node]) and not matcher.complete:
                visit(node)
                waiting += [(child, depth + 1) for child in reversed(children[node + 1])]
    matcher.rollback(len(matcher) - begin)
