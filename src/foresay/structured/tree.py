"""A draft tree under a grammar: which nodes it allows, what it forces, the masks behind the nodes.

The grammar advances along each path and rolls back. The matcher is where it was afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import NamedTuple

import numpy as np

from foresay.draft import Draft
from foresay.errors import InputError
from foresay.structured.matcher import GrammarMatcher, Words

__all__ = ["CompletedDraft", "completed", "tree_masks"]


_WRITTEN = 2_000
"""Tokens of forced text that are written to complete one draft, and little more: for each node the
tokenizer writes all that is still forced. Of 4,000 words that took 33 ms, as a mask there does."""


class CompletedDraft(NamedTuple):
    """The nodes of a draft that the grammar allows, and the text that it forces.

    tokens, parents  its nodes, parents before children
    own     the node of the draft that each of them is; -1: none
    forced  whether it is the only token that may come there
    """

    tokens: list[int]
    parents: list[int]
    own: list[int]
    forced: list[bool]


def completed(matcher: GrammarMatcher, draft: Draft, most: int) -> CompletedDraft:
    """A draft without what the grammar forbids, and what takes it too much work; and with the text
    that it forces, between and behind the draft's nodes, down to a depth of `most`.

    Raises: as the matcher, if that cannot go back.
    """
    children, begin, vocabulary = _children(draft), len(matcher), matcher.grammar.vocabulary
    written = 0
    tokens, found = draft.tokens.tolist(), CompletedDraft([], [], [], [])

    def add(token: int, parent: int, own: int, forced: bool) -> int:
        for column, value in zip(found, (token, parent, own, forced), strict=True):
            column.append(value)  # type: ignore[attr-defined]
        return len(found.tokens) - 1

    waiting: list[tuple[int, int, int]] = []  # a node of the draft, the place above it, its depth

    def reach(place: int, own: int | None, depth: int) -> None:
        """The matcher is at a place, where the draft has the node `own`, or none; -1: the text."""
        nonlocal written
        # One by one: behind a part of the text, the rest of it may be written with other tokens.
        while depth < most and written < _WRITTEN and (forced := matcher.forced()):
            token, written = forced[0], written + len(forced)
            if token >= vocabulary or not matcher.advance(token):
                return
            below = [] if own is None else children[own + 1]
            own = next((child for child in below if tokens[child] == token), None)
            place, depth = add(token, place, -1 if own is None else own, True), depth + 1
            if token in matcher.stops:
                return
        if own is not None and depth < most and not matcher.complete:
            waiting.extend((child, place, depth) for child in reversed(children[own + 1]))

    try:
        with suppress(InputError):
            reach(-1, -1, 0)
        while waiting and not matcher.renewed:
            child, place, depth = waiting.pop()
            matcher.rollback(len(matcher) - begin - depth)
            token = tokens[child]
            if token >= vocabulary:
                continue
            with suppress(InputError):
                if token in matcher.stops:
                    if matcher.accepts or matcher.advance(token):
                        add(token, place, child, False)
                elif matcher.advance(token):
                    reach(add(token, place, child, False), child, depth + 1)
    finally:  # also where the grammar cannot be followed to a place where it was
        matcher.rollback(len(matcher) - begin)
    return found


def tree_masks(matcher: GrammarMatcher, draft: Draft, forced: Sequence[bool]) -> Words:
    """The masks of one verification, int32[n + 1, words]: what may come after the text, and after
    each node. `forced` says of each node whether it is the only one that may come there.

    Behind a node that is forbidden or that ends the answer everything may: nothing of it is
    committed. Where the grammar takes too much work behind a node nothing may: the answer fails if
    it goes there.

    Raises: as the matcher, where that is so behind the text.
    """
    masks = np.full((len(draft) + 1, matcher.grammar.words), -1, np.int32)
    children, tokens, parents = _children(draft), draft.tokens.tolist(), draft.parents.tolist()
    begin, path, waiting = len(matcher), list[int](), [-1]

    def go(node: int) -> bool:
        """Take the matcher behind a node, from behind the last of `path`."""
        above = list[int]()
        while node >= 0:
            above.append(node)
            node = parents[node]
        above.reverse()
        pairs = enumerate(zip(path, above, strict=False))
        shared = next((at for at, (a, b) in pairs if a != b), min(len(path), len(above)))
        beyond = len(path) - shared
        del path[shared:]
        matcher.rollback(beyond)
        if not matcher.follow([tokens[node] for node in above[shared:]]):
            return False
        path[shared:] = above[shared:]
        return True

    def fill(node: int) -> list[int]:
        """The mask behind a node; returns those below that it allows."""
        below, row = children[node + 1], masks[node + 1]
        only = next((child for child in below if forced[child]), None)
        if only is not None:
            row[:] = 0
            row[tokens[only] // 32] = np.int64(1 << tokens[only] % 32).astype(np.int32)
            return [only]
        row[:] = 0  # until the grammar has said what may come
        if node >= 0 and (not go(node) or matcher.complete):
            row[:] = -1
            return []
        matcher.fill_mask(row)
        return [child for child in below if _has(row, tokens[child])]

    try:
        while waiting:
            node = waiting.pop()
            with suppress(*[InputError] if node >= 0 else ()):
                below = fill(node)
                waiting += [one for one in reversed(below) if tokens[one] not in matcher.stops]
    finally:
        matcher.rollback(len(matcher) - begin)
    return masks


def _has(row: Words, token: int) -> bool:
    return token < 32 * len(row) and bool(row[token // 32] >> token % 32 & 1)


def _children(draft: Draft) -> list[list[int]]:
    """The nodes below the text, and below each node."""
    children: list[list[int]] = [[] for _ in range(len(draft) + 1)]
    for node, parent in enumerate(draft.parents.tolist()):
        children[parent + 1].append(node)
    return children
