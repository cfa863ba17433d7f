"""Merging: the union of paths, the scores, the budget, and verdicts in everyone's own indices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles import Scripted, in_order, paths, tokens
from foresay import Draft, SamplingParams, TopK, Verdict, Wants
from foresay.drafter import SeededParams, Source
from foresay.drafters import MergeDrafter, NgramDrafter, SuffixDrafter
from foresay.errors import InputError, StateError, UnknownGroup
from foresay.sampling.noise import gumbel


@st.composite
def trees(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 7))
    nodes: list[tuple[int, int]] = []
    for i in range(n):
        node = (draw(st.integers(-1, i - 1)), draw(st.integers(0, 2)))
        if node not in nodes and node[0] < len(nodes):
            nodes.append(node)
    parents = [p for p, _ in nodes]
    scores: list[float] = []
    for parent in parents:
        scores.append(draw(st.floats(0, scores[parent] if parent >= 0 else 1, width=32)))
    with_scores = draw(st.booleans())
    return Draft([t for _, t in nodes], parents, scores if with_scores else None)


def merged(drafts: list[Draft], budget: int = 99) -> Draft:
    drafter = MergeDrafter(*(Scripted({0: draft}) for draft in drafts))
    return drafter.propose([drafter.begin(tokens(1))], [budget])[0]


def scored_paths(draft: Draft) -> dict[tuple[int, ...], float]:
    if draft.scores is None:
        assert not len(draft)
        return {}
    return dict(zip(in_order(draft), draft.scores.tolist(), strict=True))


@given(st.lists(trees(), min_size=1, max_size=4))
def test_union_of_paths(drafts: list[Draft]) -> None:
    union = merged(drafts)
    assert paths(union) == set().union(*(paths(d) for d in drafts))
    assert len(paths(union)) == len(union)  # each path once
    assert Draft(union.tokens, union.parents, union.scores) == union  # a valid draft


@given(st.lists(trees(), min_size=1, max_size=4), st.integers(0, 12), st.randoms())
def test_order_of_drafters_does_not_matter(drafts: list[Draft], budget: int, random: Any) -> None:
    shuffled = list(drafts)
    random.shuffle(shuffled)
    assert merged(drafts, budget) == merged(shuffled, budget)


@given(trees())
def test_repeating_a_drafter_adds_no_path(draft: Draft) -> None:
    assert paths(merged([draft, draft])) == paths(merged([draft])) == paths(draft)


@given(st.lists(trees(), min_size=1, max_size=3), st.integers(0, 8))
def test_the_budget_keeps_the_best(drafts: list[Draft], budget: int) -> None:
    # Each drafter is asked for so many nodes: compare with the union of trees of that size.
    asked = 2 * budget + 4 if budget else 0
    cut = [
        Draft(d.tokens[:asked], d.parents[:asked], None if d.scores is None else d.scores[:asked])
        for d in drafts
    ]
    whole = scored_paths(merged(cut))
    kept = scored_paths(merged(drafts, budget))
    assert len(kept) == min(budget, len(whole))
    lost = [score for path, score in whole.items() if path not in kept]
    assert not lost or not kept or min(kept.values()) >= max(lost)


def test_scores_combine_as_independent_chances() -> None:
    a = Draft.chain([1, 2], [0.5, 0.25])
    b = Draft([1, 3], [-1, 0], [0.5, 0.5])
    union = merged([a, b])
    # Given (1,), the first says 0.5 for 2 and the second 1 for 3: together not more than certain.
    said = {(1,): 0.75, (1, 2): 0.25, (1, 3): 0.5}
    assert scored_paths(union) == pytest.approx(said, abs=1e-3)
    assert union.tokens.tolist() == [1, 3, 2]  # best first
    # Without scores: 0.5 to the power of the depth.
    alone = scored_paths(merged([Draft.chain([4, 5])]))
    assert alone == pytest.approx({(4,): 0.5, (4, 5): 0.25})


def test_a_child_is_never_likelier_than_its_parent() -> None:
    # Three factors of the same chances round differently for parent and child.
    chances = [0.1, 0.2, 0.3, 0.7]
    union = merged([Draft.chain([1, 2], [c, c]) for c in chances])
    assert union.scores is not None
    assert union.scores[1] <= union.scores[0]


def test_sources_and_verdicts_in_own_indices() -> None:
    # merged:  1 (both) - 2 (first) - 4 (first)
    #                   - 3 (second)
    first = Scripted({0: Draft([9, 1, 2, 4], [-1, -1, 1, 2], [0.1, 0.8, 0.7, 0.6])})
    second = Scripted({0: Draft([1, 3], [-1, 0], [0.8, 0.3])})
    drafter = MergeDrafter(first, second)
    state = drafter.begin(tokens(5, 5))
    draft = drafter.propose([state], [4])[0]
    assert draft.tokens.tolist() == [1, 2, 4, 3]
    assert drafter.sources(state) == [(Source.OTHER,)] * 4  # neither says
    drafter.observe([state], [Verdict([0, 1, 2], [1, 2, 4, 7])])
    assert first.verdicts[0] == Verdict([1, 2, 3], [1, 2, 4, 7])
    assert second.verdicts[0] == Verdict([0], [1, 2, 4, 7])  # all tokens, only its own node
    # Without a new proposal the next path can only be empty.
    drafter.observe([state], [Verdict([], [6])])
    with pytest.raises(InputError, match=r"node 0.*0 nodes"):
        drafter.observe([state], [Verdict([0], [6, 7])])
    assert len(first.verdicts) == 2
    drafter.finish(state)
    assert first.events[-1] == second.events[-1] == "finish [5, 5, 1, 2, 4, 7, 6]"


def test_sources_are_those_of_the_drafters_that_proposed_a_node() -> None:
    class Telling(Scripted):
        """Has each node from where the table says."""

        def __init__(self, draft: Draft, table: dict[int, Source]) -> None:
            super().__init__({0: draft})
            self.table = table

        def sources(self, state: list[int], /) -> list[tuple[Source, ...]]:
            return [(self.table[token],) for token in self.script[0].tokens.tolist()]

    first = Telling(
        Draft([9, 1, 2], [-1, -1, 1], [0.1, 0.8, 0.7]),
        {9: Source.HISTORY, 1: Source.USUAL, 2: Source.CORPUS},
    )
    second = Telling(Draft([1, 3], [-1, 0], [0.8, 0.3]), {1: Source.OWN, 3: Source.GROUP})
    silent = Scripted({0: Draft([1, 3], [-1, 0], [0.8, 0.3])})
    for drafters in ([first, second], [second, first]):  # the best source comes first
        drafter = MergeDrafter(*drafters)
        state = drafter.begin(tokens(5, 5))
        assert drafter.propose([state], [3])[0].tokens.tolist() == [1, 2, 3]
        expected = [(Source.OWN, Source.USUAL), (Source.CORPUS,), (Source.GROUP,)]
        assert drafter.sources(state) == expected
    drafter = MergeDrafter(drafter, silent)
    state = drafter.begin(tokens(5, 5))
    assert drafter.propose([state], [3])[0].tokens.tolist() == [1, 2, 3]
    other = Source.OTHER
    expected = [(Source.OWN, Source.USUAL, other), (Source.CORPUS,), (Source.GROUP, other)]
    assert drafter.sources(state) == expected
    drafter.observe([state], [Verdict([0], [1, 7])])
    assert drafter.sources(state) == []


class Sampling(Scripted):
    """Samples its drafts, and gives what from."""

    def __init__(self, draft: Draft, seed: int) -> None:
        super().__init__({0: draft})
        rows = np.random.default_rng(seed).random((len(draft), 3)) + 0.1
        self.probs = (rows / rows.sum(axis=1, keepdims=True)).astype(np.float32)

    def propose(self, states: Any, budgets: Any, /) -> list[Draft]:
        return [
            Draft(draft.tokens, draft.parents, draft.scores, self.probs[: len(draft)])
            for draft in super().propose(states, budgets)
        ]


@given(st.lists(trees(), min_size=1, max_size=4), st.integers(0, 12), st.randoms())
def test_each_node_keeps_who_proposed_it_and_from_what(
    drafts: list[Draft], budget: int, random: Any
) -> None:
    """Those that have its root path, each with the distribution that it sampled the token from:
    neither their order nor a repetition changes who they are."""
    made: list[Any] = [Sampling(draft, seed) for seed, draft in enumerate(drafts)]
    made[0] = Scripted({0: drafts[0]})  # chooses
    order = list(range(len(drafts)))
    random.shuffle(order)
    asked = 2 * budget + 4 if budget else 0
    own = [in_order(draft)[:asked] for draft in drafts]
    for places in (range(len(drafts)), order, [*order, *order]):
        drafter = MergeDrafter(*(made[place] for place in places))
        state = drafter.begin(tokens(1))
        assert not drafter.provenance(state) and not drafter.proposers(state)
        (union,) = drafter.propose([state], [budget])
        expected = [
            [
                (k, None if place == 0 else made[place].probs[own[place].index(path)].tolist())
                for k, place in enumerate(places)
                if path in own[place]
            ]
            for path in in_order(union)
        ]
        told = [
            [(k, None if q is None else q.tolist()) for k, q in each]
            for each in drafter.provenance(state)
        ]
        assert told == expected
        assert drafter.proposers(state) == [tuple(k for k, _ in each) for each in expected]
        drafter.observe([state], [Verdict([], [7])])
        assert not drafter.provenance(state) and not drafter.proposers(state)
    drafter.finish(state)
    with pytest.raises(StateError, match="finished"):
        drafter.proposers(state)


def test_all_are_asked_before_one_must_answer() -> None:
    class Asked(Scripted):
        def __init__(self, log: list[str], name: str) -> None:
            super().__init__({0: Draft.chain([1], [0.5])})
            self.log, self.name = log, name

        def start(self, states: Any, budgets: Any, /) -> None:
            self.log.append(f"start {self.name} for {budgets}")

        def propose(self, states: Any, budgets: Any, /) -> list[Draft]:
            self.log.append(f"propose {self.name} {budgets}")
            return super().propose(states, budgets)

    log: list[str] = []
    drafter = MergeDrafter(Asked(log, "a"), Scripted(), Asked(log, "b"))
    drafter.propose([drafter.begin(tokens(1))], [2])
    assert log == ["start a for [8]", "start b for [8]", "propose a [8]", "propose b [8]"]


def test_topk_rows_follow_their_nodes() -> None:
    first = Scripted({0: Draft.chain([1, 2], [0.9, 0.1])}, Wants(topk=1))
    second = Scripted({0: Draft.chain([3], [0.5])}, Wants(hidden=True))
    third = Scripted({0: Draft.chain([3], [0.5])}, Wants(topk=2))
    drafter = MergeDrafter(first, second, third)
    assert drafter.wants == Wants(topk=2, hidden=True)
    state = drafter.begin(tokens(5))
    assert drafter.propose([state], [2])[0].tokens.tolist() == [1, 3]  # 2 is cut
    found = TopK(np.array([[10, 0], [11, 1], [13, 2]], np.int32), np.zeros((3, 2), np.float32))
    hidden = np.array([[1, 2], [3, 4]], np.float32)
    drafter.observe([state], [Verdict([0], [1, 8], found, hidden)])
    told, other, last = (drafter.verdicts[0] for drafter in (first, second, third))
    assert told.topk is not None and told.topk.tokens.tolist() == [[10], [11], [-1]]
    assert told.topk.logprobs.tolist() == [[0], [0], [-np.inf]] and told.hidden is None
    assert other.topk is None and other.hidden is not None  # what was not wanted is not told
    assert other.hidden.tolist() == hidden.tolist()
    assert last.topk is not None and last.topk.tokens.tolist() == [[10, 0], [13, 2]]


def test_a_failing_begin_leaves_nothing_behind() -> None:
    class Failing(Scripted):
        def begin(self, *args: Any, **kwargs: Any) -> list[int]:
            raise InputError("no")

    first = Scripted()
    with pytest.raises(InputError, match="no"):
        MergeDrafter(first, Failing()).begin(tokens(1))
    assert first.events == ["begin [1]", "finish [1]"]


def test_bad_settings() -> None:
    with pytest.raises(InputError, match="no drafter"):
        MergeDrafter()
    with pytest.raises(InputError, match=r"prior is 1.5.*0 to 1"):
        MergeDrafter(Scripted(), prior=1.5)


def test_dropping_a_group_reaches_every_drafter_that_knows_it() -> None:
    stranger, first, second = Scripted(), Scripted(), Scripted()
    for drafter in (first, second):
        drafter.begin(tokens(1), group="g")
    merge = MergeDrafter(stranger, first, NgramDrafter(), second)
    merge.drop_group("g", "t")
    assert stranger.events == []
    assert first.events[-1] == second.events[-1] == "drop g of t"
    with pytest.raises(UnknownGroup, match="'other'"):
        merge.drop_group("other")
    MergeDrafter(NgramDrafter()).drop_group("g")  # nobody keeps groups: nothing to forget


def test_groups_of_tenants_are_dropped_apart() -> None:
    merge = MergeDrafter(NgramDrafter(), SuffixDrafter())
    merge.begin(tokens(1), group="g", tenant="t")
    with pytest.raises(UnknownGroup, match="'g'"):
        merge.drop_group("g")
    merge.drop_group("g", "t")
    with pytest.raises(UnknownGroup, match="'g'"):
        merge.drop_group("g", "t")


def test_what_can_be_refused_is_refused_before_any_drafter_hears_of_it() -> None:
    first, second = Scripted({0: Draft.chain([1, 2])}), Scripted()
    drafter = MergeDrafter(first, second)
    a, b, dead = (drafter.begin(tokens(5)) for _ in range(3))
    drafter.finish(dead)
    drafter.propose([a, b], [2, 2])
    good = Verdict([], [7])
    rows = TopK(np.zeros((2, 1), np.int32), np.zeros((2, 1), np.float32))
    calls: list[tuple[list[Any], list[Verdict], type[Exception], str]] = [
        ([a, b], [good], InputError, "2 states but 1 verdicts"),
        ([a, dead], [good, good], StateError, "state 1 was finished"),
        ([a, a], [good, good], InputError, "state 1 is in the batch twice"),
        ([a, b], [good, Verdict([2], [1, 2])], InputError, r"verdict 1 .*node 2.*2 nodes"),
        ([a, b], [good, Verdict([], [7], rows)], InputError, "1 of 2 items have topk"),
        ([a], [Verdict([], [7], rows)], InputError, r"2 rows.*2 nodes and needs 3"),
    ]
    for states, verdicts, error, sentence in calls:
        with pytest.raises(error, match=sentence):
            drafter.observe(states, verdicts)
    assert first.verdicts == second.verdicts == []


def test_drafters_that_came_apart_are_noticed() -> None:
    """What only one drafter can refuse: the ones before it have learned the commit."""
    drafter = MergeDrafter(NgramDrafter(), SuffixDrafter(max_tokens=3))
    state = drafter.begin(tokens(1, 2))
    drafter.observe([state], [Verdict([], [3])])
    assert drafter.text(state).tolist() == [1, 2, 3]
    with pytest.raises(InputError, match="3 tokens"):
        drafter.observe([state], [Verdict([], [4])])
    with pytest.raises(StateError, match="4, 3 tokens"):
        drafter.text(state)
    drafter.finish(state)


def test_text_of_drafters_that_cannot_say() -> None:
    class Silent(Scripted):
        text = None  # type: ignore[assignment]

    drafter = MergeDrafter(Silent(), Scripted())
    assert drafter.text(drafter.begin(tokens(4, 5))).tolist() == [4, 5]
    silent = MergeDrafter(Silent())
    with pytest.raises(InputError, match=r"none of the 1 drafters has text"):
        silent.text(silent.begin(tokens(4)))


def test_the_first_that_has_a_draft() -> None:
    """SAM-Decoding's rule: the suffix drafter where its match is long, else the auxiliary."""
    auxiliary = Scripted({0: Draft.chain([70, 71], [0.9, 0.9])})
    drafter = MergeDrafter(SuffixDrafter(rule="sam"), auxiliary, rule="first")
    long, short = drafter.begin(tokens(*range(1, 9), 50, *range(1, 9))), drafter.begin(tokens(1, 2))
    drafts = drafter.propose([long, short], [3, 3])
    assert drafts[0].tokens.tolist() == [50, 1, 2]
    assert drafts[1].tokens.tolist() == [70, 71]
    drafter.observe([long, short], [Verdict([0], [50, 1]), Verdict([0, 1], [70, 71, 5])])
    assert [verdict.path.tolist() for verdict in auxiliary.verdicts] == [[], [0, 1]]
    assert auxiliary.verdicts[0].tokens.tolist() == [50, 1]  # it hears what others drafted
    with pytest.raises(InputError, match="rule is 'best'; expected 'union' or 'first'"):
        MergeDrafter(NgramDrafter(), rule="best")  # type: ignore[arg-type]


def test_who_promises_too_much_counts_less() -> None:
    """Two drafters, one node each. The boaster says 0.9 and is right in a tenth, the other says
    0.5 and is right in nine tenths: after some steps its node comes first."""
    random = np.random.default_rng(0)
    boaster = Draft.chain([1], [0.9])
    modest = Draft.chain([2], [0.5])
    drafter = MergeDrafter(
        Scripted(dict.fromkeys(range(301), boaster)), Scripted(dict.fromkeys(range(301), modest))
    )
    state = drafter.begin(tokens(1))
    assert drafter.propose([state], [1])[0].tokens.tolist() == [1]
    for _ in range(150):
        drafter.propose([state], [2])
        drafter.observe([state], [Verdict([], [2 if random.random() < 0.9 else 1])])
    draft = drafter.propose([state], [2])[0]
    assert draft.tokens.tolist() == [2, 1]
    assert draft.scores is not None
    assert draft.scores.tolist() == pytest.approx([0.9, 0.1], abs=0.1)


def test_the_noise_of_a_token_counts_at_its_own_place() -> None:
    """Of two children that are as likely, the one that the request's noise prefers at that place
    comes true: after some steps it comes first."""
    fork = Draft([1, 2, 3], [-1, 0, 0], [0.9, 0.4, 0.4])
    drafter = MergeDrafter(Scripted(dict.fromkeys(range(2000), fork)))
    sampling = SeededParams(SamplingParams(temperature=0.8), 11)
    state = drafter.begin(tokens(1), sampling=sampling)
    first = []
    for _ in range(300):
        draft = drafter.propose([state], [3])[0]
        drawn = 2 + int(gumbel(11, state.length + 1, np.array([2, 3])).argmax())
        first.append(draft.tokens.tolist()[1] == drawn)
        drafter.observe([state], [Verdict([], [1, drawn])])
    assert sum(first[-100:]) > 90
