"""Drafts from outside: what of them may still come true is kept, and proposed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explore import examples
from foresay import Draft, Verdict
from foresay.drafter import ExternalDraft, Source
from foresay.drafters import MergeDrafter, NgramDrafter, SuffixDrafter
from foresay.drafters.external import MAX_EXTERNAL, ExternalDrafter, ExternalState, hash_after
from foresay.engine.drafting import CheckedDrafter
from foresay.errors import StateError

Node = tuple[int, ...]


def kept(state: ExternalState) -> int:
    return sum(map(len, state.children.values()))


@examples(40)
@given(st.data())
def test_the_tree_of_what_may_still_come(data: st.DataObject) -> None:
    """Against a set of whole texts."""
    tokens = st.integers(0, 2)
    text = tuple(data.draw(st.lists(tokens, min_size=1, max_size=3)))
    drafter, nodes = ExternalDrafter(), set[Node]()
    state = drafter.begin(list(text))
    for _ in range(data.draw(st.integers(1, 8))):
        if data.draw(st.booleans()):
            size = data.draw(st.integers(0, 8))
            parents = [data.draw(st.integers(-1, at - 1)) for at in range(size)]
            drafted = [data.draw(tokens) for _ in range(size)]
            cut = data.draw(st.integers(0, len(text)))
            base = (
                text[:cut]
                if data.draw(st.booleans())
                else (*text, *data.draw(st.lists(tokens, max_size=3)))
            )
            paths = list[Node]()
            for token, parent in zip(drafted, parents, strict=True):
                above = base if parent < 0 else paths[parent]
                paths.append((*above, token))
                if len(above) > len(text) or above == text:
                    nodes.add(paths[-1])
            before = state.size
            draft = ExternalDraft(len(base), hash_after(list(base)), Draft(drafted, parents))
            assert drafter.add_external_draft(state, list(text), draft) == state.size - before
        else:
            new = data.draw(st.lists(tokens, min_size=1, max_size=3))
            drafter.observe([state], [Verdict([], new)])
            text = (*text, *new)
        wanted, level = set[Node](), {text}
        while level:
            level = {node for node in nodes if node[:-1] in level}
            wanted |= level
        (whole,) = drafter.propose([state], [1000])
        found = list[Node]()
        for token, parent in zip(whole.tokens.tolist(), whole.parents.tolist(), strict=True):
            found.append((*(text if parent < 0 else found[parent]), token))
        assert set(found) == wanted and len(found) == len(wanted)
        assert drafter.has_external_draft(state) == bool(wanted)
        assert drafter.sources(state) == [(Source.EDGE,)] * len(found)
        assert state.size == kept(state)
        for most in (0, 1, 2, 5):
            (part,) = drafter.propose([state], [most])
            assert part.tokens.tolist() == whole.tokens[:most].tolist()


def test_no_more_nodes_than_a_bound() -> None:
    draw, drafter = np.random.default_rng(1), ExternalDrafter()
    state = drafter.begin([1, 2])
    for _ in range(50):
        drafted = draw.integers(0, 1000, 255).tolist()
        for draft in (
            ExternalDraft(2, hash_after([1, 2]), Draft(drafted, [-1] * 255)),
            ExternalDraft(9, int(draw.integers(2**32)), Draft.chain(drafted)),
        ):
            drafter.add_external_draft(state, [1, 2], draft)
    assert state.size == kept(state) == MAX_EXTERNAL
    drafter.observe([state], [Verdict([], [5] * 300)])
    assert state.size == 0 and not state.children


def test_wrong_drafts_do_not_take_the_room_of_later_ones() -> None:
    """64 tokens after each commit, none of them right: the next draft still has all its nodes."""
    text, drafter = [1, 2], ExternalDrafter()
    state = drafter.begin(text)

    def add(token: int) -> int:
        draft = ExternalDraft(len(text), hash_after(text), Draft.chain([token] * 64))
        return drafter.add_external_draft(state, text, draft)

    for step in range(60):
        assert add(step + 10) == 64
        drafter.observe([state], [Verdict([], [3])])
        text.append(3)
        assert state.size == 0


def test_a_finished_request_takes_no_draft() -> None:
    drafter = ExternalDrafter()
    state = drafter.begin([1])
    drafter.finish(state)
    for call in (drafter.has_external_draft, drafter.sources, drafter.finish):
        with pytest.raises(StateError, match="finished before"):
            call(state)


def test_a_merge_takes_external_drafts_where_a_member_does() -> None:
    without = MergeDrafter(SuffixDrafter(), NgramDrafter())
    within = MergeDrafter(MergeDrafter(SuffixDrafter(), ExternalDrafter()), NgramDrafter())
    assert (without.external_drafts, within.external_drafts) == ("none", "also")
    target: Any = SimpleNamespace(depth=1, vocabulary=10, version=0)
    assert not CheckedDrafter(without, target).takes_external_drafts
    assert CheckedDrafter(within, target).takes_external_drafts
