"""What requests share and what they never do: groups, histories, tenants, memory, threads."""

from __future__ import annotations

import gc
import random
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import numpy as np
import pytest

from core.brute import int32s
from core.texts import Texts
from explore import tries
from foresay import Verdict, VerdictBatch
from foresay._core import Request
from foresay.drafter import Source
from foresay.errors import InputError, UnknownGroup

# ---- groups --------------------------------------------------------------------------------------


def test_a_siblings_token_is_drafted_as_soon_as_it_is_observed() -> None:
    drafter = Texts(history=False)
    one, two = drafter.pair(1, 2, 3, group="g")
    assert 50 not in drafter.drafted(two)
    for token in range(50, 60):
        drafter.commit(one, token)
        assert drafter.drafted(two, 1) == [token]
        assert drafter.sources(two) == [("group",)]
        drafter.commit(two, token)
    drafter.commit(two, 70)
    late = drafter.start(1, 2, 3, group="g")  # one that comes later sees it all
    assert drafter.drafted(late, 8)[:4] == [50, 51, 52, 53]
    assert 60 not in drafter.drafted(one) and 70 in drafter.drafted(one)


def test_a_group_outlives_its_members() -> None:
    drafter = Texts(history=False)
    drafter.write([1, 2], [9], group="g")
    assert drafter.drafted(drafter.start(1, 2, group="g"), 1) == [9]


@pytest.mark.parametrize(
    "others", [("h", None), (None, None), ("g", "tenant"), (None, "tenant"), ("h", "tenant")]
)
def test_groups_are_isolated(others: tuple[str | None, str | None]) -> None:
    drafter = Texts(history=False)
    one = drafter.start(1, 2, 3, group="g")
    drafter.commit(one, 50, 51)
    other = drafter.start(1, 2, 3, group=others[0], tenant=others[1])
    assert set(drafter.drafted(other)) <= {1, 2, 3}
    drafter.commit(one, 52)
    drafter.commit(other, 50)
    assert set(drafter.drafted(other)) <= {1, 2, 3, 50}


def test_the_same_group_name_in_two_tenants() -> None:
    drafter = Texts(history=False)
    for tenant, own in (("a", 10), ("b", 20)):
        drafter.commit(drafter.start(1, 2, group="g", tenant=tenant), own)
    for tenant, own in (("a", 10), ("b", 20)):
        found = drafter.drafted(drafter.start(1, 2, group="g", tenant=tenant))
        assert found[0] == own and set(found) == {1, 2, own}
    drafter.drop_group("g", "a")
    with pytest.raises(UnknownGroup, match=r"'g'.*'a'"):
        drafter.drop_group("g", "a")
    assert drafter.drafted(drafter.start(1, 2, group="g", tenant="b"), 1) == [20]


def test_a_dropped_group_is_gone_at_once_and_its_members_go_on() -> None:
    drafter = Texts(history=False)
    one, two = drafter.pair(1, 2, 3, group="g")
    drafter.commit(one, *range(100, 1100))
    before = drafter.bytes_used()
    drafter.drop_group("g")
    assert drafter.bytes_used() < before - 8 * 1000
    assert set(drafter.drafted(two)) <= {1, 2, 3}
    drafter.commit(two, 5, 1, 2, 3)
    assert drafter.drafted(two, 1) == [5]
    fresh = drafter.start(1, 2, 3, group="g")  # starts the group afresh
    assert set(drafter.drafted(fresh)) <= {1, 2, 3}
    drafter.commit(two, 6)  # of the old group: not shown to the new one
    assert set(drafter.drafted(fresh)) <= {1, 2, 3}
    drafter.check_integrity()
    for state in (one, two, fresh):
        drafter.finish(state)


@pytest.mark.parametrize("name", ["nobody", "", "naïve ☃", "x" * 5000])
def test_unknown_groups_are_named(name: str) -> None:
    drafter = Texts()
    drafter.start(1, group="somebody")
    with pytest.raises(UnknownGroup) as caught:
        drafter.drop_group(name)
    assert f"'{name}'" in str(caught.value)
    with pytest.raises(UnknownGroup, match=r"'somebody'.*'tenant'"):
        drafter.drop_group("somebody", "tenant")


def test_idle_groups_are_evicted_oldest_first() -> None:
    bound = 200_000
    drafter = Texts(history=False, group_bytes=bound)
    for i in range(60):
        drafter.write([1, 2, 3], range(1000 * (i + 1), 1000 * (i + 1) + 500), group=f"g{i}")
        assert drafter.text_bytes() <= bound
    with pytest.raises(UnknownGroup):
        drafter.drop_group("g0")
    assert drafter.drafted(drafter.start(1, 2, 3, group="g59"), 1) == [60_000]
    drafter.check_integrity()


def test_running_groups_are_not_evicted() -> None:
    """But once the last member has finished, or is no more."""
    drafter = Texts(history=False, group_bytes=0)
    one, two = drafter.pair(1, 2, 3, group="g")
    drafter.commit(one, 50)
    drafter.start(1, group="other")
    drafter.finish(one)
    assert drafter.drafted(two, 1) == [50]
    drafter.finish(two)
    forgotten = drafter.start(1, 2, 3, group="h")
    drafter.commit(forgotten, 4)
    del forgotten
    gc.collect()
    drafter.finish(drafter.start(1))  # eviction takes place here
    for name in "gh":
        with pytest.raises(UnknownGroup, match=f"'{name}' is not known"):
            drafter.drop_group(name)


# ---- history -------------------------------------------------------------------------------------


def test_finished_requests_feed_the_history_of_their_tenant() -> None:
    drafter = Texts()
    drafter.write([1, 2, 3], [50, 51, 52], tenant="a")
    mine = drafter.start(1, 2, 3, tenant="a")
    draft = drafter.propose([mine], [2])[0]
    assert draft.tokens.tolist() == [50, 51] and draft.parents.tolist() == [-1, 0]
    assert drafter.sources(mine) == [("history",)] * 2
    for tenant in (None, "b"):
        assert set(drafter.drafted(drafter.start(1, 2, 3, tenant=tenant))) <= {1, 2, 3}


def test_a_running_request_sees_what_finishes_meanwhile() -> None:
    drafter = Texts()
    state = drafter.start(1, 2, 3)
    drafter.drafted(state, 4)
    drafter.write([7, 8], [1, 2, 60, 61])
    drafter.commit(state, 1)
    drafter.commit(state, 2)
    assert 60 in drafter.drafted(state)


def test_without_history_nothing_is_kept() -> None:
    drafter = Texts(history=False)
    drafter.write([1, 2, 3], [50, 51])
    assert drafter.text_bytes() == drafter.tokens_held() == 0
    assert set(drafter.drafted(drafter.start(1, 2, 3))) <= {1, 2, 3}


def test_an_unfinished_request_publishes_nothing() -> None:
    drafter = Texts()
    state = drafter.start(1, 2, 3)
    drafter.commit(state, 50)
    assert set(drafter.drafted(drafter.start(1, 2, 3))) <= {1, 2, 3}
    del state
    gc.collect()
    assert set(drafter.drafted(drafter.start(1, 2, 3))) <= {1, 2, 3}


def test_the_history_is_bounded_and_keeps_the_newest() -> None:
    bound = 100_000
    drafter = Texts(history_bytes=bound)
    held = []
    for i in range(300):
        start = 10 + 200 * i
        drafter.write([1, 2, start], range(start + 1, start + 150))
        held.append(drafter.text_bytes())
        assert held[-1] <= bound
        state = drafter.start(5, 1, 2, start)
        assert drafter.drafted(state, 2) == [start + 1, start + 2]
        drafter.finish(state)
    assert min(held[50:]) > bound / 4, "an eviction leaves most of the quota in use"
    assert 11 not in drafter.drafted(drafter.start(1, 2, 10))
    drafter.check_integrity()


def test_a_text_larger_than_the_quota_is_not_kept() -> None:
    drafter = Texts(history_bytes=50_000)
    drafter.write([1], [2, 3, 4])
    drafter.write([1], range(10, 10_000))
    assert drafter.text_bytes() <= 50_000
    drafter.write([1], [7, 8, 9])  # and the next one is
    assert drafter.drafted(drafter.start(1), 1) == [7]


def test_a_cursor_survives_the_eviction_of_its_segment() -> None:
    drafter = Texts(history_bytes=60_000)
    drafter.write([1, 2], [3, 4] * 20)
    state = drafter.start(1, 2)
    for i in range(200):
        drafter.drafted(state, 8)
        drafter.write([1, 2], range(10 + 40 * i, 50 + 40 * i))
        drafter.commit(state, 3 + i % 2)
    drafter.check_integrity()


def test_idle_tenants_beyond_the_bound_lose_their_history() -> None:
    drafter = Texts(max_tenants=3)
    for i in range(6):
        drafter.write([1, 2], [100 + i], tenant=str(i))
    seen = {i for i in (5, 4, 3, 2, 1, 0) if drafter.knows(str(i), 100 + i)}
    assert 5 in seen and len(seen) <= 3


def test_a_dropped_tenant_is_forgotten() -> None:
    drafter = Texts()
    for tenant in ("a", "b"):
        drafter.write([1, 2], [50], tenant=tenant)
    member = drafter.start(1, 2, group="g", tenant="a")
    drafter.commit(member, 60)
    drafter.drop_tenant("a")
    assert set(drafter.drafted(member)) <= {1, 2, 60}
    with pytest.raises(UnknownGroup):
        drafter.drop_group("g", "a")
    assert not drafter.knows("a", 50) and drafter.knows("b", 50)
    drafter.drop_tenant("never seen")
    drafter.commit(member, 61)
    drafter.finish(member)  # its tenant was dropped: what it wrote is not kept
    assert not drafter.knows("a", 61)


# ---- isolation, by search ------------------------------------------------------------------------


def test_no_foreign_token_in_many_drafts() -> None:
    """Every tenant writes with a vocabulary of its own: 60,000 drafts, and no foreign token."""
    rng, random_ = random.Random(11), np.random.default_rng(11)
    drafter = Texts(history_bytes=40_000, group_bytes=300_000, max_tenants=5)
    tenants, size, batch, steps = 8, 1000, 128, tries(500, sanitized=100)
    bounds = np.arange(batch + 1, dtype=np.int32)
    seats: list[tuple[Request, int]] = []
    nodes = 0
    for step in range(steps):
        while len(seats) < batch:
            t = rng.randrange(tenants)
            group = rng.choice([None, "g", f"g{rng.randrange(4)}"])
            prompt = [t * size + rng.randrange(12) for _ in range(rng.randrange(1, 40))]
            seats.append((drafter.start(*prompt, group=group, tenant=str(t)), t))
        states, owners = [s for s, _ in seats], int32s(t for _, t in seats)
        drafts = drafter.propose(states, [8] * batch)
        assert (drafts.tokens // size == np.repeat(owners, np.diff(drafts.offsets))).all()
        nodes += len(drafts.tokens)
        committed = owners * size + random_.integers(0, 12, batch, dtype=np.int32)
        accepted = np.flatnonzero((np.diff(drafts.offsets) > 0) & (random_.random(batch) < 0.5))
        committed[accepted] = drafts.tokens[drafts.offsets[accepted]]
        no_paths = np.zeros(batch + 1, np.int32)
        drafter.observe(states, VerdictBatch(committed, bounds, [], no_paths))
        del states
        for i in sorted(rng.sample(range(batch), 5), reverse=True):
            state, t = seats.pop(i)
            if rng.random() < 0.8:
                drafter.finish(state)
        if step % 50 == 0:
            drafter.drop_tenant(str(rng.randrange(tenants)))
    assert nodes > 5 * batch * steps
    drafter.check_integrity()


# ---- the bound on own texts of members of groups -------------------------------------------------


def grown(bound: int, group: str | None) -> tuple[Texts, list[Request]]:
    """Eight requests with 4,800 random tokens each."""
    drafter = Texts(history=False, own_bytes=bound)
    states = [drafter.start(*range(200), group=group) for _ in range(8)]
    random = np.random.default_rng(0)
    for _ in range(48):
        texts = random.integers(1000, 1500, (8, 100), np.int32)
        drafter.observe(states, [Verdict([], text) for text in texts])
    drafter.check_integrity()
    return drafter, states


def test_members_of_groups_keep_the_bound() -> None:
    (free, one), (bounded, two) = grown(1 << 50, "g"), grown(300_000, "g")
    assert len(one) == len(two)  # both are kept: a state that is dropped frees its text
    (alone, states) = grown(1 << 50, None)
    own = alone.bytes_used()
    while states:
        alone.finish(states.pop())
    own -= alone.bytes_used()
    assert own > 1_500_000
    saved = free.bytes_used() - bounded.bytes_used()
    assert 0.75 * own - 300_000 < saved < own


def test_requests_without_a_group_keep_their_text() -> None:
    assert grown(0, None)[0].bytes_used() == grown(1 << 50, None)[0].bytes_used()


def test_who_loses_its_text_is_the_same_each_time() -> None:
    """Also among texts that are equally large: not by their addresses."""
    found = []
    for _ in range(6):
        drafter, states = grown(900_000, "g")
        drafter.propose(states, [4] * 8)
        named = [drafter.sources(state) for state in states]
        found.append([any(Source.OWN in each for each in of) for of in named])
    assert any(found[0]) and not all(found[0])
    assert all(each == found[0] for each in found)


@pytest.mark.parametrize("bound", [0, 1 << 50])
def test_without_own_text_prompt_and_answer_are_drafted_from_the_group(bound: int) -> None:
    drafter, states = grown(bound, "g")
    known = [5, 6, 7, 8, 9, 10]  # of the prompt's beginning
    drafter.observe(states, [Verdict([], known)] * 8)
    for draft in drafter.propose(states, [4] * 8):
        assert draft.tokens[:1].tolist() == [11]
    for state in states:
        drafter.finish(state)
    drafter.drop_group("g")
    assert drafter.bytes_used() < 900_000  # what is left is what was learned, not text


# ---- memory, states, threads ---------------------------------------------------------------------


def test_states_dropped_without_finish_leak_nothing() -> None:
    drafter = Texts()
    drafter.write([1, 2], [3, 4])
    base = drafter.bytes_used(), drafter.tokens_held()
    states = [drafter.start(*range(5 + i)) for i in range(50)]
    drafter.observe(states, [Verdict([], [7, 8])] * 50)
    assert drafter.bytes_used() > base[0]
    del states
    gc.collect()
    assert (drafter.bytes_used(), drafter.tokens_held()) == base


def test_a_state_keeps_its_drafter() -> None:
    state = Texts().start(1, 2, group="g")
    gc.collect()
    assert state.prompt_length == 2 and not state.finished
    del state
    gc.collect()


@pytest.mark.parametrize("times", [2, 8, 20])
def test_one_state_twice_in_a_batch(times: int) -> None:
    """A state that stands twice in a call is refused, and nothing has changed."""
    drafter = Texts()
    prompt = np.random.default_rng(0).integers(0, 50, 3000).astype(np.int32)
    state = drafter.begin(prompt)
    alone = drafter.propose([state], [64])[0]
    with pytest.raises(InputError, match="twice"):
        drafter.propose([state] * times, [64] * times)
    with pytest.raises(InputError, match="twice"):
        drafter.observe([state] * 2, [Verdict([], [7]), Verdict([], [8])])
    assert drafter.propose([state], [64])[0] == alone
    assert drafter.text(state).tolist() == prompt.tolist()


@pytest.mark.parametrize("rule", ["blend", "sam"])
def test_threads_share_a_drafter(rule: Literal["blend", "sam"]) -> None:
    drafter = Texts(rule=rule, history_bytes=100_000)
    rounds = tries(150, sanitized=20)

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(rounds // 10):
            prompt = [rng.randrange(5) for _ in range(200)]
            states = [drafter.start(*prompt, group=f"g{seed % 2}") for _ in range(4)]
            committed = list(prompt)
            for _ in range(10):
                drafter.propose(states, [16] * 4)
                committed.append(rng.randrange(5))
                drafter.observe(states, [Verdict([], committed[-1:])] * 4)
                drafter.bytes_used()
            for state in states:
                assert drafter.text(state).tolist() == committed
                if rng.random() < 0.7:
                    drafter.finish(state)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    drafter.check_integrity()


def test_two_threads_propose_on_the_same_states() -> None:
    drafter = Texts()
    states = [drafter.start(*[i, 2, 3] * 100) for i in range(16)]
    expected = drafter.propose(states, [32] * 16)
    with ThreadPoolExecutor(2) as pool:
        drafts = list(pool.map(lambda _: drafter.propose(states, [32] * 16), range(100)))
    assert drafts == [expected] * 100
