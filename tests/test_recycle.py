"""Token Recycling: what is kept of the target's likeliest tokens, and what is drafted from it."""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doubles import Scripted, tokens
from foresay import Draft, DraftBatch, SamplingParams, TopK, Verdict
from foresay.drafter import SeededParams, Source
from foresay.drafters import MergeDrafter, RecycleDrafter
from foresay.errors import InputError, StateError
from foresay.sampling.noise import gumbel


def top_k(*rows: dict[int, float], k: int = 8) -> TopK:
    """Rows of likeliest tokens with their probabilities; an empty row was not verified."""
    found = np.full((len(rows), k), -1, np.int32)
    logprobs = np.full((len(rows), k), -np.inf, np.float32)
    for i, row in enumerate(rows):
        for j, (token, chance) in enumerate(sorted(row.items(), key=lambda item: -item[1])):
            found[i, j], logprobs[i, j] = token, np.log(chance)
    return TopK(found, logprobs)


def taught(drafter: RecycleDrafter, text: list[int], row: dict[int, float], **about: Any) -> None:
    """The target says `row` after `text`."""
    state = drafter.begin(tokens(*text), **about)
    drafter.observe([state], [Verdict([], [max(row, key=lambda t: row[t])], top_k(row))])
    drafter.finish(state)


def drafted(drafter: RecycleDrafter, text: list[int], budget: int = 4, **about: Any) -> Draft:
    state = drafter.begin(tokens(*text), **about)
    draft = drafter.propose([state], [budget])[0]
    drafter.finish(state)
    return draft


def test_the_last_token_is_enough() -> None:
    drafter = RecycleDrafter(context=1)
    taught(drafter, [1, 2], {5: 0.7, 6: 0.2})
    taught(drafter, [5], {7: 0.9})
    draft = drafted(drafter, [9, 9, 2])
    assert draft.tokens.tolist()[:2] == [5, 7]
    assert draft.parents.tolist()[:2] == [-1, 0]
    assert draft.scores is not None
    assert (np.diff(draft.scores) <= 0).all()
    assert len(drafted(drafter, [9, 9])) == 0


def test_a_longer_context_says_more() -> None:
    for context, first in ((1, 6), (4, 5)):
        drafter = RecycleDrafter(context=context)
        taught(drafter, [1, 2], {5: 0.9, 6: 0.05})
        for _ in range(3):
            taught(drafter, [3, 2], {6: 0.9, 5: 0.05})
        assert drafted(drafter, [8, 1, 2], 1).tokens.tolist() == [first]


def test_nodes_that_were_rejected_teach_too() -> None:
    drafter = RecycleDrafter()
    taught(drafter, [1], {5: 0.5, 6: 0.4})
    state = drafter.begin(tokens(1))
    draft = drafter.propose([state], [2])[0]
    assert sorted(draft.tokens.tolist()) == [5, 6]
    five, six = draft.tokens.tolist().index(5), draft.tokens.tolist().index(6)
    rows: list[dict[int, float]] = [{5: 0.5, 6: 0.4}, {}, {}]
    rows[six + 1] = {77: 0.9}
    rows[five + 1] = {55: 0.9}
    drafter.observe([state], [Verdict([five], [5, 55], top_k(*rows))])
    assert drafted(drafter, [6], 1).tokens.tolist() == [77]  # 6 was never committed


def test_the_drawn_token_comes_first() -> None:
    """With the request's noise, the token with the largest log p / T + g."""
    drafter = RecycleDrafter(context=1)
    row = dict.fromkeys(range(10, 18), 0.12)
    taught(drafter, [1], row)
    seen = set()
    for seed in range(40):
        about = SeededParams(SamplingParams(temperature=0.8), seed)
        draft = drafted(drafter, [3, 4, 1], 1, sampling=about)
        noise = gumbel(seed, 3, np.array(list(row)))
        assert draft.tokens.tolist() == [10 + int(noise.argmax())]
        seen.add(int(draft.tokens[0]))
    assert len(seen) == 8
    greedy = SeededParams(SamplingParams(temperature=0), 7)
    unknown = SeededParams(SamplingParams(temperature=0.8, rule="rejection"), 7)
    assert drafted(drafter, [1], 8, sampling=greedy) == drafted(drafter, [1], 8)
    assert drafted(drafter, [1], 8, sampling=unknown) == drafted(drafter, [1], 8)


def test_scores_become_chances() -> None:
    """What comes true in 3 of 10 cases gets a score near 0.3, whatever the target says."""
    drafter = RecycleDrafter(context=1)
    random = np.random.default_rng(0)
    state = drafter.begin(tokens(1))
    for _ in range(2000):
        draft = drafter.propose([state], [1])[0]
        right = random.random() < 0.3
        path = [0] if right and len(draft) else []
        ahead = [5] if right else [6]
        rows = [{5: 0.8}] + [{}] * len(draft)
        drafter.observe([state], [Verdict(path, [*(ahead if path else []), 1], top_k(*rows))])
    draft = drafter.propose([state], [1])[0]
    assert draft.scores is not None
    assert draft.scores[0] == pytest.approx(0.3, abs=0.05)


def test_size_of_a_vocabulary() -> None:
    drafter = RecycleDrafter(context=1)
    ids = np.arange(49_152)
    drafter._core.add_table(
        None,
        ids.astype(np.uint64),
        np.tile(np.arange(8, dtype=np.int32), len(ids)),
        np.zeros(8 * len(ids), np.uint8),
    )
    assert drafted(drafter, [49_151], 1).tokens.tolist() == [0]
    assert 49_152 * 40 <= drafter.bytes_used() < 2 << 20


def test_long_contexts_are_bounded() -> None:
    """The context that was learned longest ago goes first."""
    limit = 1 << 18
    drafter = RecycleDrafter(context=4, memory=limit)
    random = np.random.default_rng(0)
    state = drafter.begin(tokens(1))
    said = random.integers(0, 500, 6_000).tolist()
    for token in said:
        drafter.observe([state], [Verdict([], [token], top_k({token: 0.9}))])
    drafter.finish(state)
    del state
    assert limit // 4 < drafter.bytes_used() < limit + 1024 * 40 + 64_000
    recent, old = (
        [drafted(drafter, said[at - 4 : at], 1).tokens.tolist() == [said[at]] for at in places]
        for places in (range(5_900, 6_000), range(100, 200))
    )
    assert sum(recent) > 90 > 2 * sum(old)


def test_tenants_share_nothing() -> None:
    drafter = RecycleDrafter()
    taught(drafter, [1, 2], {5: 0.9}, tenant="a")
    assert len(drafted(drafter, [1, 2], tenant="b")) == 0
    assert len(drafted(drafter, [1, 2])) == 0
    assert drafted(drafter, [1, 2], 1, tenant="a").tokens.tolist() == [5]
    assert drafter.bytes_of("a") > drafter.bytes_of("b") > drafter.bytes_of("c") == 0
    drafter.drop_tenant("a")
    assert len(drafted(drafter, [1, 2], tenant="a")) == 0


def test_few_tenants_are_remembered() -> None:
    drafter = RecycleDrafter(max_tenants=2)
    for name in "abc":
        taught(drafter, [1], {5: 0.9}, tenant=name)
    assert [drafter.bytes_of(name) > 0 for name in "abc"] == [False, True, True]


def test_a_new_version() -> None:
    drafter = RecycleDrafter()
    taught(drafter, [1], {5: 0.9})
    drafter.new_version(1)
    assert len(drafted(drafter, [1], 1)) == 1
    drafter.new_version(0)
    assert len(drafted(drafter, [1], 1)) == 0


def test_sources() -> None:
    drafter = RecycleDrafter()
    taught(drafter, [1], {5: 0.5, 6: 0.4})
    state = drafter.begin(tokens(1))
    assert drafter.sources(state) == []
    draft = drafter.propose([state], [2])
    drafter.adopt([state], DraftBatch.of([Draft([5, 6, 7], [-1, -1, -1])]))
    assert drafter.sources(state) == [(Source.RECYCLED,)] * len(draft[0])  # of its own
    drafter.observe([state], [Verdict([], [5])])
    assert drafter.sources(state) == []
    drafter.finish(state)
    with pytest.raises(StateError, match="finished"):
        drafter.sources(state)


@pytest.mark.parametrize("tree", ["grown", "static"])
def test_a_chain(tree: Any) -> None:
    drafter = RecycleDrafter(context=1, tree=tree, chain=True)
    for at in range(1, 6):
        taught(drafter, [at], {at + 1: 0.5, 9: 0.4})
    taught(drafter, [9], {9: 0.9})
    draft = drafted(drafter, [1], 4)
    assert draft.tokens.tolist() == [2, 3, 4, 5]
    assert draft.parents.tolist() == [-1, 0, 1, 2]


@pytest.mark.parametrize(
    ("arrays", "sentence"),
    [
        (([3], [-5] * 8, [0] * 8), "a token is -5; expected a token id"),
        (([3], [0] * 3, [0] * 8), "1 keys, 3 tokens and 8 levels; expected 8 of each"),
        (([1 << 40], [0] * 8, [0] * 8), "a key is 1099511627776; expected a token id below"),
    ],
)
def test_rows_that_no_table_has(arrays: tuple[list[int], ...], sentence: str) -> None:
    keys, of_tokens, levels = arrays
    core = RecycleDrafter()._core
    with pytest.raises(InputError, match=sentence):
        core.add_table(
            None,
            np.array(keys, np.uint64),
            np.array(of_tokens, np.int32),
            np.array(levels, np.uint8),
        )


@pytest.mark.parametrize(
    "settings",
    [
        {"k": 0},
        {"k": 33},
        {"context": 0},
        {"context": 9},
        {"memory": -1},
        {"tree": "oak"},
        {"max_tenants": 0},
    ],
)
def test_settings(settings: dict[str, Any]) -> None:
    name, value = next(iter(settings.items()))
    with pytest.raises(InputError, match=f"{name} is {value!r}; expected"):
        RecycleDrafter(**settings)


def test_verdicts_that_do_not_fit() -> None:
    drafter = RecycleDrafter()
    state = drafter.begin(tokens(1))
    with pytest.raises(InputError, match=r"in 3 rows; its draft has 0 nodes"):
        drafter.observe([state], [Verdict([], [2], top_k({1: 0.5}, {}, {}))])
    with pytest.raises(InputError, match=r"the 4 likeliest tokens; expected 8"):
        drafter.observe([state], [Verdict([], [2], top_k({1: 0.5}, k=4))])
    more = top_k({9: 0.5}, k=16)  # another drafter wanted more
    drafter.observe([state], [Verdict([], [2], more)])
    assert drafted(drafter, [1], 1).tokens.tolist() == [9]
    assert drafter.text(state).tolist() == [1, 2]
    with pytest.raises(StateError):
        RecycleDrafter().propose([state], [1])


def test_adopted_drafts_are_checked() -> None:
    drafter = RecycleDrafter()
    state = drafter.begin(tokens(1))
    wrong = DraftBatch._trusted(tokens(4, 5), tokens(-1, 1), tokens(0, 2))
    with pytest.raises(InputError, match=r"^parents\[1\] is 1; expected -1 to 0 for node 1"):
        drafter.adopt([state], wrong)


def test_merged_it_learns_from_all_nodes() -> None:
    """Also from nodes that only another drafter proposed."""
    recycle = RecycleDrafter(k=2)
    merged = MergeDrafter(Scripted({0: Draft.chain([40, 41], [0.9, 0.8])}), recycle)
    state = merged.begin(tokens(1))
    draft = merged.propose([state], [4])[0]
    assert draft.tokens.tolist() == [40, 41]
    rows = top_k({40: 0.9}, {41: 0.9}, {42: 0.9}, k=2)
    merged.observe([state], [Verdict([0, 1], [40, 41, 42], rows)])
    assert drafted(recycle, [40], 2).tokens.tolist() == [41, 42]


def test_the_drawn_token_deeper_in_the_tree() -> None:
    """Each place of the text has a noise of its own."""
    drafter = RecycleDrafter(context=1)
    row = dict.fromkeys(range(10, 18), 0.12)
    taught(drafter, [1], {2: 0.99})
    taught(drafter, [2], row)
    for seed in range(20):
        about = SeededParams(SamplingParams(temperature=0.8), seed)
        draft = drafted(drafter, [3, 4, 1], 30, sampling=about)
        below = draft.tokens[draft.parents == draft.tokens.tolist().index(2)]
        assert below[0] == 10 + int(gumbel(seed, 4, np.array(list(row))).argmax())


def test_a_file_has_all_of_a_table(tmp_path: Path) -> None:
    cold = RecycleDrafter()
    for i in range(200):
        taught(cold, [i % 7, i % 11, i % 5], {i: 0.6, i + 1: 0.3 - i / 1000})
    cold.save(tmp_path / "recycled.laws")
    tables = []
    for drafter in (cold, RecycleDrafter(warm=tmp_path / "recycled.laws")):
        keys, of_tokens, levels = drafter._core.table(None)
        order = np.argsort(keys)
        tables.append((keys[order], of_tokens.reshape(-1, 8)[order], levels.reshape(-1, 8)[order]))
    assert all(np.array_equal(a, b) for a, b in zip(*tables, strict=True))
    assert len(set(tables[0][2][:, 1].tolist())) > 3  # chances that differ


def test_what_runs_is_not_forgotten_and_what_ends_is_freed() -> None:
    drafter = RecycleDrafter(max_tenants=1)
    running = drafter.begin(tokens(*range(50_000)), tenant="a")
    drafter.observe([running], [Verdict([], [7], top_k({7: 0.9}))])
    taught(drafter, [1], {5: 0.9}, tenant="b")
    assert drafter.propose([running], [1])[0].tokens.tolist() == []  # nothing after 7 yet
    assert drafted(drafter, [49_999], 1, tenant="a").tokens.tolist() == [7]
    before = drafter.bytes_used()
    drafter.finish(running)
    assert drafter.bytes_used() < before - 4 * 50_000 + 1000


def test_a_state_outlives_its_drafter() -> None:
    state = RecycleDrafter().begin(tokens(1))
    gc.collect()
    del state
