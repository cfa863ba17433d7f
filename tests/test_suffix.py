"""SuffixDrafter from the outside: bad input, all or nothing, calibration, determinism."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doubles import tokens
from foresay import DraftBatch, Verdict
from foresay.drafters import CorpusDrafter, NgramDrafter, SuffixDrafter
from foresay.errors import CorpusError, InputError, StateError

MAX_TOKEN = 2**31 - 2
TEXT = [1, 2, 3, 1, 2, 4, 1, 2]


def started(*prompts: list[int], **settings: Any) -> tuple[SuffixDrafter, list[Any]]:
    drafter = SuffixDrafter(**settings)
    return drafter, [drafter.begin(tokens(*prompt), group="g") for prompt in prompts]


# ---- all or nothing ------------------------------------------------------------------------------


def snapshot(drafter: SuffixDrafter, states: list[Any]) -> Any:
    held = drafter.bytes_used(), drafter.tokens_held()
    return held, [drafter.text(s).tolist() for s in states], drafter.propose(states, [16, 16])


def other_drafters_state() -> Any:
    return SuffixDrafter().begin(tokens(1, 2))


def finished_state() -> Any:
    drafter = SuffixDrafter()
    state = drafter.begin(tokens(1, 2))
    drafter.finish(state)
    return state


@pytest.mark.parametrize("rule", ["blend", "sam"])
@pytest.mark.parametrize("at", [0, 1, 2])
@pytest.mark.parametrize(
    "make",
    [other_drafters_state, finished_state, lambda: None, lambda: "state", lambda: 7, object,
     lambda: NgramDrafter().begin(tokens(1))],
    ids=["other drafter", "finished", "None", "str", "int", "object", "ngram"],
)  # fmt: skip
def test_one_bad_state_changes_nothing(rule: Any, at: int, make: Callable[[], Any]) -> None:
    drafter, states = started(TEXT, [*TEXT, 3, 1], rule=rule)
    before = snapshot(drafter, states)
    batch = [*states[:at], make(), *states[at:]]
    with pytest.raises(StateError):
        drafter.observe(batch, [Verdict([], [3, 1])] * 3)
    with pytest.raises(StateError):
        drafter.propose(batch, [4, 4, 4])
    assert snapshot(drafter, states) == before


@pytest.mark.parametrize(
    ("batch", "offsets"),
    [
        ([5, -1], [0, 1, 2]),
        ([5, 2**31 - 1], [0, 1, 2]),
        ([5, 6], [0, 2]),
        ([5, 6], [0, 1, 2, 2]),
        ([5, 6], [0, 1, 1]),
        ([5, 6], [1, 1, 2]),
        ([5, 6], [0, 3, 2]),
        ([5, 6], []),
        ([5, 6], [-1, 1, 2]),
    ],
)
def test_one_bad_token_or_offset_changes_nothing(batch: list[int], offsets: list[int]) -> None:
    """At the core itself: the values of foresay.draft would refuse these before it sees them."""
    drafter, states = started(TEXT, [*TEXT, 3, 1])
    before = snapshot(drafter, states)
    with pytest.raises(InputError):
        drafter._core.observe(states, tokens(*batch), tokens(*offsets))
    assert snapshot(drafter, states) == before


@pytest.mark.parametrize("value", [-1, 2**31 - 1, 2**40, 1.5, "a"])
def test_verdicts_with_bad_tokens(value: Any) -> None:
    drafter, states = started(TEXT, TEXT)
    before = snapshot(drafter, states)
    with pytest.raises(InputError):
        drafter.observe(states, [Verdict([], [3]), Verdict([], [3, value])])
    assert snapshot(drafter, states) == before


# ---- sizes ---------------------------------------------------------------------------------------


def test_more_tokens_than_a_request_may_have() -> None:
    drafter = SuffixDrafter(max_tokens=10)
    for prompt, sentence in (([1] * 11, r"11 tokens.*1 to 10"), ([], "empty")):
        with pytest.raises(InputError, match=sentence):
            drafter.begin(tokens(*prompt))
    state = drafter.begin(tokens(*range(8)))
    drafter.observe([state], [Verdict([], [1])])
    with pytest.raises(InputError, match="10 tokens"):
        drafter.observe([state], [Verdict([], [2, 3])])
    assert drafter.text(state).tolist() == [*range(8), 1]
    drafter.observe([state], [Verdict([], [2])])


@pytest.mark.skipif(bool(os.environ.get("FORESAY_SANITIZE")), reason="too large for sanitizers")
def test_a_prompt_of_ten_million_tokens() -> None:
    drafter = SuffixDrafter()
    prompt = np.tile(np.arange(1_000, dtype=np.int32), 10_000)
    state = drafter.begin(prompt)
    assert drafter.tokens_held() == 10_000_000
    assert drafter.propose([state], [3])[0].tokens.tolist() == [0, 1, 2]
    drafter.observe([state], [Verdict([], [0, 1])])
    assert drafter.propose([state], [1])[0].tokens.tolist() == [2]
    drafter.finish(state)
    with pytest.raises(InputError, match=r"10000000 tokens.*1 to 1000000 tokens"):
        SuffixDrafter(max_tokens=1_000_000).begin(prompt)


def test_ends_of_the_range() -> None:
    drafter, [state] = started([0, MAX_TOKEN, 0])
    assert drafter.propose([state], [1])[0].tokens.tolist() == [MAX_TOKEN]
    drafter.observe([state], [Verdict([0], [MAX_TOKEN, 0])])
    assert drafter.text(state).tolist() == [0, MAX_TOKEN, 0, MAX_TOKEN, 0]


def test_steps_of_every_kind() -> None:
    """Steps without propose, two proposes, more tokens than the path and one, an empty verdict."""
    drafter, [state] = started(TEXT)
    expected = list(TEXT)
    steps: Any = ([], [3], 0), ([], [1, 2, 4, 1, 2, 3, 9], 1), ([0], [1, 2, 7, 7], 2)
    for path, committed, proposes in steps:
        for _ in range(proposes):
            drafter.propose([state], [8])
        drafter.observe([state], [Verdict(path, committed)])
        expected += committed
        assert drafter.text(state).tolist() == expected
    drafter._core.observe([state], tokens(), tokens(0, 0))
    assert drafter.text(state).tolist() == expected
    drafter.check_integrity()


def test_a_place_in_the_history_stays_good_while_the_history_grows() -> None:
    drafter = SuffixDrafter()

    def run(prompt: int, output: list[int]) -> None:
        state = drafter.begin(tokens(prompt))
        drafter.observe([state], [Verdict([], output)])
        drafter.finish(state)

    run(9, [1, 2, 50])
    state = drafter.begin(tokens(7, 1, 2))
    assert drafter.propose([state], [1])[0].tokens.tolist() == [50]
    for prompt in (8, 6, 5):  # what occurred once is now a context of its own
        run(prompt, [1, 2, 60])
        late = drafter.begin(tokens(7, 1, 2))  # one that comes later stands at the same place
        early, fresh = drafter.propose([state, late], [8, 8])
        assert early == fresh


# ---- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"history_bytes": -1}, "history_bytes is -1; expected a whole number from 0"),
        ({"group_bytes": 1 << 60}, "group_bytes is 1152921504606846976"),
        ({"max_tenants": 0}, "max_tenants is 0; expected a whole number from 1"),
        ({"max_tokens": 0}, "max_tokens is 0; expected a whole number from 1"),
        ({"max_tokens": 1 << 31}, "max_tokens is 2147483648"),
        ({"rule": "best"}, "rule is 'best'"),
        ({"rule": None}, "rule is None"),
    ],
)
def test_bad_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        SuffixDrafter(**settings)


def test_missing_corpora(tmp_path: Path) -> None:
    for make in (lambda p: SuffixDrafter(corpus=p), CorpusDrafter):
        with pytest.raises(CorpusError, match=r"none\.foresay"):
            make(tmp_path / "none.foresay")
    with pytest.raises(InputError, match="at least 1"):
        CorpusDrafter()


# ---- determinism and learning --------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["blend", "sam"])
def test_the_same_calls_give_the_same_drafts(rule: Any) -> None:
    def life() -> list[DraftBatch]:
        rng = random.Random(4)
        drafter = SuffixDrafter(rule=rule, history_bytes=60_000)
        drafts = []
        for _ in range(6):
            states = [
                drafter.begin([rng.randrange(6) for _ in range(60)], group=rng.choice("ab"))
                for _ in range(10)
            ]
            for _ in range(15):
                drafts.append(drafter.propose(states, [12] * 10))
                verdicts = [Verdict([], [rng.randrange(6) for _ in range(2)]) for _ in states]
                drafter.observe(states, verdicts)
            for state in states:
                drafter.finish(state)
        return drafts

    assert life() == life()


def lesson(drafter: SuffixDrafter, i: int, comes: bool) -> float:
    """One draft of the same kind each time, about tokens never used before; its score."""
    a, b, c, d = range(10 + 4 * i, 14 + 4 * i)
    state = drafter.begin(tokens(a, b, c, 1, a, b))
    draft = drafter.propose([state], [4])[0]
    assert draft.tokens[0] == c and draft.scores is not None
    drafter.observe([state], [Verdict([], [c if comes else d])])
    return float(draft.scores[0])


def test_calibration_follows_what_happens() -> None:
    drafter = SuffixDrafter(history=False)
    before = lesson(drafter, 0, False)
    scores = [lesson(drafter, i, False) for i in range(1, 8)]
    assert scores[0] < before and scores == sorted(scores, reverse=True)
    assert scores[-1] < 0.6 * before
    kind = SuffixDrafter(history=False)
    risen = [lesson(kind, i, True) for i in range(200)]
    assert risen[-1] > risen[0] and risen[-1] > 0.9
    assert all(0 <= score <= 1 for score in scores + risen)


def test_calibration_tells_kinds_of_evidence_apart() -> None:
    """What was learned of a long match says nothing of a short one."""
    drafter = SuffixDrafter(history=False)
    short = drafter.begin(tokens(5, 6, 7, 5))
    before = drafter.propose([short], [1])[0]
    for i in range(50):
        start = 1000 + 100 * i
        text = [*range(start, start + 20), start + 50, *range(start, start + 20)]
        state = drafter.begin(tokens(*text))
        assert drafter.propose([state], [1])[0].tokens.tolist() == [start + 50]
        drafter.observe([state], [Verdict([], [start + 60])])
    after = drafter.propose([short], [1])[0]
    assert after.tokens.tolist() == before.tokens.tolist() == [6]
    assert before.scores is not None and after.scores is not None
    assert after.scores[0] == pytest.approx(before.scores[0], rel=0.05)


@pytest.mark.parametrize("chain", [True, False])
def test_no_draft_below_the_least_chance(chain: bool) -> None:
    random = np.random.default_rng(3)
    text = np.concatenate([random.permutation(12)[random.zipf(1.5, 40) % 12] for _ in range(9)])
    for least in (0.02, 0.2, 0.6):
        drafter = SuffixDrafter(chain=chain)
        states = [drafter.begin(text[: 40 + 30 * i].astype(np.int32)) for i in range(8)]
        whole = drafter.propose(states, [12] * 8)
        some = drafter.propose(states, [12] * 8, least=least)
        assert whole.scores is not None and some.scores is not None
        assert (some.scores >= least).all()
        good = int((whole.scores >= least).sum())
        assert 0.9 * good <= len(some.tokens) < len(whole.tokens)
        for short, long in zip(some, whole, strict=True) if chain else ():
            assert short.tokens.tolist() == long.tokens[: len(short)].tolist()
    with pytest.raises(InputError, match="a chance is from 0 to 1"):
        drafter.propose(states, [1] * 8, least=1.5)


def test_what_is_held_for_a_tenant() -> None:
    drafter = SuffixDrafter()
    assert drafter.bytes_of("a") == drafter.bytes_of(None) == 0
    one = drafter.begin(tokens(*range(500)), group="g", tenant="a")
    running, other = drafter.bytes_of("a"), drafter.begin(tokens(*range(20)), tenant="b")
    assert running > 2000 and drafter.bytes_of("a") == running
    assert drafter.bytes_of("a") + drafter.bytes_of("b") == drafter.bytes_used()
    drafter.observe([one], [Verdict([], [1, 2, 3])])
    drafter.finish(one)
    drafter.drop_group("g", "a")
    assert 0 < drafter.bytes_of("a") < running  # its history
    drafter.drop_tenant("a")
    drafter.finish(other)
    with pytest.raises(InputError, match="tenant is 3"):
        drafter.bytes_of(3)  # type: ignore[arg-type]
