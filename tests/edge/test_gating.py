"""The gate: hard tokens, the block rule, decisions that never drop a token; the area under the ROC
curve of a signal."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay.edge.gating import (
    OFF,
    Auc,
    Decision,
    Gate,
    Thresholds,
    auc,
    auc_by_signal,
    nll_threshold,
)
from foresay.edge.text_rules import Rules
from foresay.errors import InputError
from foresay.sampling.signals import Signals

H, E = True, False


def test_the_defaults_are_those_of_the_seed() -> None:
    assert Thresholds() == Thresholds(
        nll=None, entropy_bits=2.5, margin=0.2, variance=None, hard_ratio=0.3
    )


@pytest.mark.parametrize(
    ("hard", "most", "ratio", "blocked"),
    [
        ([E] * 10, 0.3, 0.0, False),
        ([H] * 2 + [E] * 8, 0.3, 0.2, False),  # below
        ([H] * 3 + [E] * 7, 0.3, 0.3, False),  # equal is not above
        ([E] * 6 + [H] * 4, 0.3, 0.4, True),  # above
        ([H], 0.3, 1.0, True),
        ([H, H], 1.0, 1.0, False),
        ([H, E], 0.0, 0.5, True),
        ([E, E], 0.0, 0.0, False),
    ],
)
def test_the_block_rule(hard: list[bool], most: float, ratio: float, blocked: bool) -> None:
    gate = Gate(Thresholds(hard_ratio=most))
    found = gate.decide(hard, sent=0, k=len(hard), window=100)
    assert (found.hard_ratio, found.blocked) == (ratio, blocked)


@pytest.mark.parametrize(
    ("name", "values", "limits", "hard"),
    [
        ("nll", [0.9, 1.0, 1.1], Thresholds(nll=1.0), [E, E, H]),
        ("nll", [0.9, 1.0, np.inf], Thresholds(), [E, E, E]),  # no threshold, not used
        ("entropy_bits", [2.4, 2.5, 2.6], Thresholds(), [E, E, H]),
        ("entropy_bits", [1.7, 1.74, 2.4], Thresholds(), [E, E, E]),  # bits: 1.74 nats would be
        ("margin", [0.1, 0.2, 0.3], Thresholds(), [H, E, E]),
        ("variance", [0.0, 0.01, 0.02], Thresholds(variance=0.01), [E, E, H]),
        ("entropy_bits", [9.0, 9.0, 9.0], OFF, [E, E, E]),
    ],
)
def test_each_signal_and_its_threshold(
    name: str, values: list[float], limits: Thresholds, hard: list[bool]
) -> None:
    given_signals: dict[str, Any] = {name: np.array(values)}
    assert Gate(limits).hard(Signals(**given_signals)).tolist() == hard


def test_a_token_is_hard_by_a_signal_or_by_a_rule() -> None:
    pieces = ["It", " costs", " $", "5", " now"]
    text = "".join(pieces)
    signals = Signals(margin=np.array([0.9, 0.1, 0.9, 0.9, 0.9]))
    offsets = [[0, 2], [2, 8], [8, 10], [10, 11], [11, 15]]
    gate = Gate(rules=Rules())
    assert gate.hard(signals, text=text, offsets=offsets).tolist() == [E, H, H, H, E]
    assert gate.hard(text=text, offsets=offsets).tolist() == [E, E, H, H, E]
    assert gate.hard(signals).tolist() == [E, H, E, E, E]
    assert Gate().hard(signals, text=text, offsets=offsets).tolist() == [E, H, E, E, E]


# -- decisions ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("hard", "sent", "found"),
    [
        ([], 0, Decision(0, 20, 0.0, False)),
        ([E, E], 0, Decision(0, 18, 0.0, False)),  # the block is not full
        ([E] * 10, 0, Decision(10, 10, 0.0, False)),  # full: sent, and drafted on
        ([E] * 12, 10, Decision(0, 8, 0.0, False)),
        ([E, E, H], 0, Decision(3, 7, 0.1, False)),  # up to the hard one, then half the window
        ([E, H, E], 0, Decision(2, 7, 0.1, False)),
        ([E, H, E], 2, Decision(0, 7, 0.1, False)),  # sent already
        ([H, E, H, E], 0, Decision(3, 6, 0.2, False)),  # both micro-batches at once
        ([H, H, H, E], 0, Decision(3, 6, 0.3, False)),  # equal: not the whole block
        ([H, H, H, E, H, E], 0, Decision(6, 0, 0.4, True)),  # the whole block, and wait
        ([H, H, H, E, H, E], 3, Decision(3, 0, 0.4, True)),
        ([H] + [E] * 9, 1, Decision(9, 0, 0.1, False)),  # half the window is full
        ([E] * 20, 20, Decision(0, 0, 0.0, False)),
    ],
)
def test_decisions_with_k_10_and_a_window_of_20(
    hard: list[bool], sent: int, found: Decision
) -> None:
    assert Gate().decide(hard, sent=sent, k=10, window=20) == found


def test_a_drafter_that_has_no_more_sends_what_it_has() -> None:
    assert Gate().decide([E, E], sent=1, k=6, window=20, done=True) == Decision(1, 0, 0.0, False)


@given(
    st.lists(st.booleans(), max_size=40),
    st.integers(0, 40),
    st.integers(1, 16),
    st.integers(1, 40),
    st.booleans(),
)
def test_no_decision_can_stall_or_overflow(
    hard: list[bool], sent: int, k: int, window: int, done: bool
) -> None:
    sent = min(sent, len(hard))
    unsent = len(hard) - sent
    found = Gate().decide(hard, sent=sent, k=k, window=window, done=done)
    assert 0 <= found.send <= unsent
    assert found.ahead == 0 or len(hard) + found.ahead <= window
    if found.ahead == 0:  # it waits: then for something
        assert found.send == unsent
        assert hard or done
    if not any(hard):
        assert not found.blocked
    if any(hard[sent:]):
        assert hard[sent + found.send :].count(True) == 0  # no hard token is held back
    if found.blocked:
        assert (found.send, found.ahead) == (unsent, 0)


@given(st.lists(st.booleans(), max_size=60), st.integers(1, 8), st.integers(1, 20))
def test_all_tokens_are_sent_in_order_whatever_is_hard(
    hard: list[bool], k: int, window: int
) -> None:
    """A stream in which every token is accepted: each is sent once, in its order."""
    gate, sent, drafted = Gate(), 0, 0
    pending: list[int] = []
    out: list[int] = []
    for _ in range(10 * len(hard) + 10):
        marks = [hard[at] for at in pending]
        decision = gate.decide(marks, sent=sent, k=k, window=window, done=drafted == len(hard))
        out += pending[sent : sent + decision.send]
        sent += decision.send
        if decision.ahead:
            pending.append(drafted)
            drafted += 1
        else:  # the verdict on all that was sent
            pending, sent = pending[sent:], 0
    assert out == list(range(len(hard)))


def test_the_threshold_of_nll_is_a_quantile() -> None:
    values = [0.1 * n for n in range(1, 11)]
    assert nll_threshold(values) == values[7]  # 8 of 10 are at or below
    marked = Gate(Thresholds(nll=nll_threshold(values))).hard(Signals(nll=np.array(values)))
    assert marked.sum() == 2
    assert nll_threshold([1.0] * 9 + [np.inf]) == 1.0


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: decide([E, E], sent=3), "sent is 3; expected a whole number from 0 to 2"),
        (lambda: decide([E], k=0), "k is 0"),
        (lambda: decide([E], window=0), "window is 0"),
        (lambda: decide(np.array([1, 0])), "expected True or False per token"),
        (lambda: Gate().hard(), "neither signals nor a text"),
        (lambda: Gate().hard(text="a"), "without offsets"),
        (
            lambda: Gate().hard(Signals(nll=np.zeros(2)), text="a", offsets=[[0, 1]]),
            "signals of 2 tokens and offsets of 1",
        ),
        (lambda: Thresholds(hard_ratio=1.5), r"hard_ratio is 1.5; .* 0 to 1"),
        (lambda: Thresholds(hard_ratio=None), "hard_ratio is None"),  # type: ignore[arg-type]
        (lambda: Thresholds(entropy_bits=math.nan), "entropy_bits is nan"),
        (lambda: nll_threshold([]), "none of them nan"),
        (lambda: nll_threshold([1.0], 2.0), "quantile is 2.0"),
        (lambda: nll_threshold([np.inf]), "expected a finite number"),
        (lambda: auc([math.nan], [True]), r"\[0\] is nan"),
        (lambda: auc([1.0, 2.0], [True]), "2 signals and 1 outcomes"),
        (lambda: auc([1.0], [2]), "expected True or False"),  # type: ignore[list-item]
    ],
)
def test_input_that_is_not_valid(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


def decide(hard: Any, *, sent: int = 0, k: int = 6, window: int = 12) -> Decision:
    return Gate().decide(hard, sent=sent, k=k, window=window)


# -- the area under the ROC curve --------------------------------------------------------------


@pytest.mark.parametrize(
    ("signal", "rejected", "area"),
    [
        ([1, 2, 3, 4], [E, E, H, H], Auc(1.0, 2, 2)),
        ([4, 3, 2, 1], [E, E, H, H], Auc(0.0, 2, 2)),
        ([1, 1], [E, H], Auc(0.5, 1, 1)),
        ([1, 2, 2, 3], [E, H, E, H], Auc(3.5 / 4, 2, 2)),
        ([0.0, math.inf, math.inf], [E, H, E], Auc(0.75, 1, 2)),
        ([1.0, 2.0], [H, H], Auc(None, 2, 0)),
        ([1.0], [E], Auc(None, 0, 1)),
        ([], [], Auc(None, 0, 0)),
    ],
)
def test_auc_by_hand(signal: list[float], rejected: list[bool], area: Auc) -> None:
    assert auc(signal, rejected) == area


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), max_size=30))
def test_auc_against_all_pairs(tokens: list[tuple[int, bool]]) -> None:
    bad = [value for value, rejected in tokens if rejected]
    good = [value for value, rejected in tokens if not rejected]
    wins = sum(Fraction((b > g) * 2 + (b == g), 2) for b in bad for g in good)
    found = auc([value for value, _ in tokens], [rejected for _, rejected in tokens])
    area = float(wins / (len(bad) * len(good))) if bad and good else None
    assert found == Auc(area, len(bad), len(good))


def test_auc_of_each_signal_turns_the_margin_round() -> None:
    uncertain = [True, False]
    signals = Signals(nll=np.array([2.0, 0.1]), margin=np.array([0.1, 0.9]))
    assert auc_by_signal(signals, uncertain) == {"nll": Auc(1.0, 1, 1), "margin": Auc(1.0, 1, 1)}
