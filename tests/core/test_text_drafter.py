"""What requests share and what they never do: groups, histories, tenants, memory, threads."""

from __future__ import annotations

import gc
import random
import threading
from collections.abc import Sequence

import numpy as np
import pytest

from core.brute import int32s
from core.counts import tries
from foresay import Verdict, VerdictBatch
from foresay._core import Request
from foresay.drafters import SuffixDrafter
from foresay.errors import InputError, UnknownGroup


def observe(drafter: SuffixDrafter, state: Request, *tokens: int) -> None:
    drafter.observe([state], [Verdict([], list(tokens))])


def tokens_of(drafter: SuffixDrafter, state: Request, budget: int = 64) -> set[int]:
    return set(drafter.propose([state], [budget])[0].tokens.tolist())


def first_drafted(drafter: SuffixDrafter, state: Request) -> int:
    return int(drafter.propose([state], [1])[0].tokens[0])


def run(
    drafter: SuffixDrafter, prompt: Sequence[int], output: Sequence[int], tenant: str | None = None
) -> None:
    """A whole request."""
    state = drafter.begin(int32s(prompt), tenant=tenant)
    observe(drafter, state, *output)
    drafter.finish(state)


def text_bytes(drafter: SuffixDrafter) -> int:
    """Bytes held without the tables that one tenant learns into, whatever it writes."""
    empty = SuffixDrafter()
    empty.finish(empty.begin(int32s([1])))
    return drafter.bytes_used() - empty.bytes_used()


# ---- groups --------------------------------------------------------------------------------------


def test_a_siblings_token_is_drafted_as_soon_as_it_is_observed() -> None:
    drafter = SuffixDrafter(history=False)
    one, two = (drafter.begin(int32s([1, 2, 3]), group="g") for _ in range(2))
    assert 50 not in tokens_of(drafter, two)
    for token in range(50, 60):
        observe(drafter, one, token)
        assert first_drafted(drafter, two) == token
        assert drafter.sources(two) == [("group",)]
        observe(drafter, two, token)
    observe(drafter, two, 70)
    late = drafter.begin(int32s([1, 2, 3]), group="g")  # one that comes later sees it all
    assert drafter.propose([late], [8])[0].tokens.tolist()[:4] == [50, 51, 52, 53]
    assert 60 not in tokens_of(drafter, one) and 70 in tokens_of(drafter, one)


def test_a_group_outlives_its_members() -> None:
    drafter = SuffixDrafter(history=False)
    state = drafter.begin(int32s([1, 2]), group="g")
    observe(drafter, state, 9)
    drafter.finish(state)
    assert first_drafted(drafter, drafter.begin(int32s([1, 2]), group="g")) == 9


@pytest.mark.parametrize(
    "others",
    [("h", None), (None, None), ("g", "tenant"), (None, "tenant"), ("h", "tenant")],
)
def test_groups_are_isolated(others: tuple[str | None, str | None]) -> None:
    drafter = SuffixDrafter(history=False)
    one = drafter.begin(int32s([1, 2, 3]), group="g")
    observe(drafter, one, 50, 51)
    other = drafter.begin(int32s([1, 2, 3]), group=others[0], tenant=others[1])
    assert tokens_of(drafter, other) <= {1, 2, 3}
    observe(drafter, one, 52)
    observe(drafter, other, 50)
    assert tokens_of(drafter, other) <= {1, 2, 3, 50}


def test_the_same_group_name_in_two_tenants() -> None:
    drafter = SuffixDrafter(history=False)
    states = {t: drafter.begin(int32s([1, 2]), group="g", tenant=t) for t in ("a", "b")}
    observe(drafter, states["a"], 10)
    observe(drafter, states["b"], 20)
    for tenant, own in (("a", 10), ("b", 20)):
        sibling = drafter.begin(int32s([1, 2]), group="g", tenant=tenant)
        assert first_drafted(drafter, sibling) == own
        assert tokens_of(drafter, sibling) == {1, 2, own}
    drafter.drop_group("g", "a")
    with pytest.raises(UnknownGroup, match=r"'g'.*'a'"):
        drafter.drop_group("g", "a")
    assert first_drafted(drafter, drafter.begin(int32s([1, 2]), group="g", tenant="b")) == 20


def test_a_dropped_group_is_gone_at_once_and_its_members_go_on() -> None:
    drafter = SuffixDrafter(history=False)
    one, two = (drafter.begin(int32s([1, 2, 3]), group="g") for _ in range(2))
    observe(drafter, one, *range(100, 1100))
    without = drafter.bytes_used()
    drafter.drop_group("g")
    assert drafter.bytes_used() < without - 8 * 1000
    assert tokens_of(drafter, two) <= {1, 2, 3}
    observe(drafter, two, 5, 1, 2, 3)
    assert first_drafted(drafter, two) == 5
    fresh = drafter.begin(int32s([1, 2, 3]), group="g")  # starts the group afresh
    assert tokens_of(drafter, fresh) <= {1, 2, 3}
    observe(drafter, two, 6)  # of the old group: not shown to the new one
    assert tokens_of(drafter, fresh) <= {1, 2, 3}
    drafter.check_integrity()
    for state in (one, two, fresh):
        drafter.finish(state)


@pytest.mark.parametrize("name", ["nobody", "", "naïve ☃", "x" * 5000])
def test_unknown_groups_are_named(name: str) -> None:
    drafter = SuffixDrafter()
    drafter.begin(int32s([1]), group="somebody")
    with pytest.raises(UnknownGroup) as caught:
        drafter.drop_group(name)
    assert f"'{name}'" in str(caught.value)
    with pytest.raises(UnknownGroup, match=r"'somebody'.*'tenant'"):
        drafter.drop_group("somebody", "tenant")


def test_idle_groups_are_evicted_oldest_first() -> None:
    bound = 200_000
    drafter = SuffixDrafter(history=False, group_bytes=bound)
    for i in range(60):
        state = drafter.begin(int32s([1, 2, 3]), group=f"g{i}")
        observe(drafter, state, *range(1000 * (i + 1), 1000 * (i + 1) + 500))
        drafter.finish(state)
        assert text_bytes(drafter) <= bound
    with pytest.raises(UnknownGroup):
        drafter.drop_group("g0")
    newest = drafter.begin(int32s([1, 2, 3]), group="g59")
    assert first_drafted(drafter, newest) == 60_000
    drafter.check_integrity()


def test_running_groups_are_not_evicted() -> None:
    drafter = SuffixDrafter(history=False, group_bytes=0)
    one, two = (drafter.begin(int32s([1, 2, 3]), group="g") for _ in range(2))
    observe(drafter, one, 50)
    drafter.begin(int32s([1]), group="other")
    drafter.finish(one)
    assert first_drafted(drafter, two) == 50
    drafter.finish(two)
    with pytest.raises(UnknownGroup):
        drafter.drop_group("g")


# ---- history -------------------------------------------------------------------------------------


def test_finished_requests_feed_the_history_of_their_tenant() -> None:
    drafter = SuffixDrafter()
    run(drafter, [1, 2, 3], [50, 51, 52], tenant="a")
    mine = drafter.begin(int32s([1, 2, 3]), tenant="a")
    draft = drafter.propose([mine], [2])[0]
    assert draft.tokens.tolist() == [50, 51] and draft.parents.tolist() == [-1, 0]
    assert drafter.sources(mine) == [("history",)] * 2
    for tenant in (None, "b"):
        assert tokens_of(drafter, drafter.begin(int32s([1, 2, 3]), tenant=tenant)) <= {1, 2, 3}


def test_a_running_request_sees_what_finishes_meanwhile() -> None:
    drafter = SuffixDrafter()
    state = drafter.begin(int32s([1, 2, 3]))
    drafter.propose([state], [4])
    run(drafter, [7, 8], [1, 2, 60, 61])
    observe(drafter, state, 1)
    observe(drafter, state, 2)
    assert 60 in tokens_of(drafter, state)


def test_without_history_nothing_is_kept() -> None:
    drafter = SuffixDrafter(history=False)
    run(drafter, [1, 2, 3], [50, 51])
    assert text_bytes(drafter) == drafter.tokens_held() == 0
    assert tokens_of(drafter, drafter.begin(int32s([1, 2, 3]))) <= {1, 2, 3}


def test_an_unfinished_request_publishes_nothing() -> None:
    drafter = SuffixDrafter()
    state = drafter.begin(int32s([1, 2, 3]))
    observe(drafter, state, 50)
    assert tokens_of(drafter, drafter.begin(int32s([1, 2, 3]))) <= {1, 2, 3}
    del state
    gc.collect()
    assert tokens_of(drafter, drafter.begin(int32s([1, 2, 3]))) <= {1, 2, 3}


def test_the_history_is_bounded_and_keeps_the_newest() -> None:
    bound = 100_000
    drafter = SuffixDrafter(history_bytes=bound)
    held = []
    for i in range(300):
        start = 10 + 200 * i
        run(drafter, [1, 2, start], range(start + 1, start + 150))
        held.append(text_bytes(drafter))
        assert held[-1] <= bound
        state = drafter.begin(int32s([5, 1, 2, start]))
        assert drafter.propose([state], [2])[0].tokens.tolist() == [start + 1, start + 2]
        drafter.finish(state)
    assert min(held[50:]) > bound / 4, "an eviction leaves most of the quota in use"
    oldest = drafter.begin(int32s([1, 2, 10]))
    assert 11 not in tokens_of(drafter, oldest)
    drafter.check_integrity()


def test_a_text_larger_than_the_quota_is_not_kept() -> None:
    drafter = SuffixDrafter(history_bytes=50_000)
    run(drafter, [1], [2, 3, 4])
    run(drafter, [1], range(10, 10_000))
    assert text_bytes(drafter) <= 50_000
    run(drafter, [1], [7, 8, 9])  # and the next one is
    state = drafter.begin(int32s([1]))
    assert first_drafted(drafter, state) == 7


def test_a_cursor_survives_the_eviction_of_its_segment() -> None:
    drafter = SuffixDrafter(history_bytes=60_000)
    run(drafter, [1, 2], [3, 4] * 20)
    state = drafter.begin(int32s([1, 2]))
    for i in range(200):
        drafter.propose([state], [8])
        run(drafter, [1, 2], range(10 + 40 * i, 50 + 40 * i))
        observe(drafter, state, 3 + i % 2)
    drafter.check_integrity()


def test_idle_tenants_beyond_the_bound_lose_their_history() -> None:
    drafter = SuffixDrafter(max_tenants=3)
    for i in range(6):
        run(drafter, [1, 2], [100 + i], tenant=str(i))
    seen = {i for i in (5, 4, 3, 2, 1, 0) if drafter_knows(drafter, str(i), 100 + i)}
    assert 5 in seen and len(seen) <= 3


def drafter_knows(drafter: SuffixDrafter, tenant: str, token: int) -> bool:
    return token in tokens_of(drafter, drafter.begin(int32s([1, 2]), tenant=tenant))


def test_a_dropped_tenant_is_forgotten() -> None:
    drafter = SuffixDrafter()
    for tenant in ("a", "b"):
        run(drafter, [1, 2], [50], tenant=tenant)
    member = drafter.begin(int32s([1, 2]), group="g", tenant="a")
    observe(drafter, member, 60)
    drafter.drop_tenant("a")
    assert tokens_of(drafter, member) <= {1, 2, 60}
    with pytest.raises(UnknownGroup):
        drafter.drop_group("g", "a")
    assert not drafter_knows(drafter, "a", 50) and drafter_knows(drafter, "b", 50)
    drafter.drop_tenant("never seen")
    observe(drafter, member, 61)
    drafter.finish(member)  # its tenant was dropped: what it wrote is not kept
    assert not drafter_knows(drafter, "a", 61)


# ---- isolation, by search ------------------------------------------------------------------------


def test_no_foreign_token_in_many_drafts() -> None:
    """Every tenant writes with a vocabulary of its own: 60,000 drafts, and no foreign token."""
    rng, random_ = random.Random(11), np.random.default_rng(11)
    drafter = SuffixDrafter(history_bytes=40_000, group_bytes=300_000, max_tenants=5)
    tenants, size, batch, steps = 8, 1000, 128, tries(500, sanitized=100)
    bounds = np.arange(batch + 1, dtype=np.int32)
    seats: list[tuple[Request, int]] = []
    nodes = 0
    for step in range(steps):
        while len(seats) < batch:
            t = rng.randrange(tenants)
            group = rng.choice([None, "g", f"g{rng.randrange(4)}"])
            prompt = [t * size + rng.randrange(12) for _ in range(rng.randrange(1, 40))]
            seats.append((drafter.begin(int32s(prompt), group=group, tenant=str(t)), t))
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


# ---- memory, states, threads ---------------------------------------------------------------------


def test_states_dropped_without_finish_leak_nothing() -> None:
    drafter = SuffixDrafter()
    run(drafter, [1, 2], [3, 4])
    base = drafter.bytes_used(), drafter.tokens_held()
    states = [drafter.begin(int32s(range(5 + i))) for i in range(50)]
    drafter.observe(states, [Verdict([], [7, 8])] * 50)
    assert drafter.bytes_used() > base[0]
    del states
    gc.collect()
    assert (drafter.bytes_used(), drafter.tokens_held()) == base


def test_a_state_keeps_its_drafter() -> None:
    state = SuffixDrafter().begin(int32s([1, 2]), group="g")
    gc.collect()
    assert state.prompt_length == 2 and not state.finished
    del state
    gc.collect()


@pytest.mark.parametrize("times", [2, 8, 20])
def test_one_state_twice_in_a_batch(times: int) -> None:
    """A state that stands twice in a call is refused, and nothing has changed."""
    drafter = SuffixDrafter()
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
def test_threads_share_a_drafter(rule: str) -> None:
    drafter = SuffixDrafter(rule="sam" if rule == "sam" else "blend", history_bytes=100_000)
    failures: list[BaseException] = []
    rounds = tries(150, sanitized=20)

    def work(seed: int) -> None:
        try:
            rng = random.Random(seed)
            for _ in range(rounds // 10):
                prompt = [rng.randrange(5) for _ in range(200)]
                states = [drafter.begin(int32s(prompt), group=f"g{seed % 2}") for _ in range(4)]
                committed = list(prompt)
                for _ in range(10):
                    drafter.propose(states, [16] * 4)
                    token = rng.randrange(5)
                    drafter.observe(states, [Verdict([], [token])] * 4)
                    committed.append(token)
                    drafter.bytes_used()
                for state in states:
                    assert drafter.text(state).tolist() == committed
                    if rng.random() < 0.7:
                        drafter.finish(state)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures, failures
    drafter.check_integrity()


def test_two_threads_propose_on_the_same_states() -> None:
    drafter = SuffixDrafter()
    states = [drafter.begin(int32s([i, 2, 3] * 100)) for i in range(16)]
    expected = drafter.propose(states, [32] * 16)
    results: list[bool] = []

    def work() -> None:
        for _ in range(50):
            results.append(drafter.propose(states, [32] * 16) == expected)

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 100
