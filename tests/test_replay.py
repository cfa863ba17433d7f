"""The replay lab on traces that can be followed by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles import Scripted, tokens
from foresay import Draft
from foresay.bench import curve
from foresay.bench.replay import chain_nodes, replay, walk
from foresay.drafters import MergeDrafter, NgramDrafter, SuffixDrafter
from foresay.errors import InputError, TraceError
from foresay.traces import Trace, read_traces, staggered


def trace(prompt: list[int], output: list[int], group: str = "g", name: str = "0") -> Trace:
    return Trace(name, group, tokens(*prompt), tokens(*output))


def test_walk_takes_the_longest_agreeing_path() -> None:
    draft = Draft([1, 2, 1, 3, 4], [-1, -1, 1, 2, 0])
    assert walk(draft, [1, 4, 9]) == [0, 4]
    assert walk(draft, [2, 1, 3, 8]) == [1, 2, 3]
    assert walk(draft, [2, 1]) == [1, 2]
    assert walk(Draft([1, 2, 1], [-1, 0, -1]), [1, 2]) == [0, 1]  # a shorter one comes later
    assert walk(draft, [7]) == walk(draft, []) == walk(Draft.empty(), [1]) == []
    assert walk(draft, [2, 1, 3], allowed={1, 2}) == [1, 2]
    # A token drafted twice under one parent: the branch that goes on counts.
    assert walk(Draft([1, 1, 2], [-1, -1, 1]), [1, 2]) == [1, 2]


def test_chain_nodes_follow_the_best_child() -> None:
    assert chain_nodes(Draft([1, 2, 3, 4], [-1, -1, 1, 0], [0.3, 0.6, 0.2, 0.3])) == [1, 2]
    assert chain_nodes(Draft([1, 2, 3], [-1, -1, 0])) == [0, 2]
    assert chain_nodes(Draft.empty()) == []


def test_one_trace_by_hand() -> None:
    # observed 0: draft 10 11 99 -> 10 11 kept, own token 12;  observed 3: no draft -> 13;
    # observed 4: draft 14 15, but the output ends with 15: one node kept, 15 is the own token.
    script = {0: Draft.chain([10, 11, 99]), 4: Draft.chain([14, 15])}
    drafter = Scripted(script)
    result = replay([trace([1], [10, 11, 12, 13, 14, 15])], drafter, budget=4)
    assert drafter.events == [
        "begin [1]",
        "propose 1",
        "observe [[10, 11, 12]]",
        "propose 1",
        "observe [[13]]",
        "propose 1",
        "observe [[14, 15]]",
        "finish [1, 10, 11, 12, 13, 14, 15]",
    ]
    assert [v.path.tolist() for v in drafter.verdicts] == [[0, 1], [], [0]]
    assert (result.requests, result.steps, result.tokens) == (1, 3, 6)
    assert (result.drafted, result.accepted) == (5, 3)
    assert result.tokens_per_step == 2.0
    assert result.acceptance_by_depth == [2 / 3, 1 / 3]
    assert result.acceptance_rate == 3 / 5
    assert result.bytes_per_token is None
    assert list(result.as_dict()) == [
        "tokens_per_step",
        "drafted_per_step",
        "steps",
        "tokens",
        "requests",
        "propose_us_per_request",
        "observe_us_per_token",
        "acceptance_by_depth",
        "bytes_per_token",
    ]


def test_lockstep_refills_and_groups_end_with_their_last_member() -> None:
    drafter = Scripted()
    traces = [
        trace([1], [5], "a"),
        trace([2], [6, 6], "b"),
        trace([3], [7], "a"),
    ]
    result = replay(traces, drafter, budget=1, share="group", lockstep=2)
    assert drafter.events == [
        "begin [1]",
        "begin [2]",
        "propose 2",
        "observe [[5], [6]]",
        "finish [1, 5]",
        "begin [3]",
        "propose 2",
        "observe [[6], [7]]",
        "finish [2, 6, 6]",
        "drop b",
        "finish [3, 7]",
        "drop a",
    ]
    assert drafter.groups == ["a", "b", "a"]
    assert result.steps == 4


def test_share_none_begins_without_a_group() -> None:
    drafter = Scripted()
    replay([trace([1], [2])], drafter, budget=1)
    assert drafter.groups == [None]
    assert not any(event.startswith("drop") for event in drafter.events)


def test_an_output_without_tokens_has_no_step() -> None:
    drafter = Scripted()
    result = replay([trace([1], []), trace([2], [3])], drafter, budget=1)
    assert (result.requests, result.steps, result.tokens) == (2, 1, 1)
    assert "finish [1]" in drafter.events


def test_stagger() -> None:
    traces = [trace([1], [1], group, str(i)) for i, group in enumerate("aababc")]
    assert [t.id for t in staggered(traces)] == ["0", "2", "5", "1", "4", "3"]


def test_chain_counts_only_the_chain() -> None:
    script = {0: Draft([10, 20, 21], [-1, -1, 1], [0.2, 0.7, 0.6])}
    result = replay([trace([1], [10, 11])], Scripted(script), budget=3, chain=True)
    assert (result.drafted, result.accepted, result.steps) == (2, 0, 2)


texts = st.lists(st.integers(0, 2), min_size=1, max_size=40)


@given(
    st.lists(st.tuples(texts, texts, st.sampled_from("ab")), min_size=1, max_size=5),
    st.integers(1, 9),
    st.integers(1, 4),
    st.booleans(),
    st.sampled_from(["file", "stagger"]),
)
def test_identities(requests: Any, budget: int, lockstep: int, chain: bool, order: Any) -> None:
    traces = [trace(prompt, output, group) for prompt, output, group in requests]
    drafter = MergeDrafter(NgramDrafter(), NgramDrafter(1, 1, "first"))
    result = replay(
        traces, drafter, budget=budget, chain=chain, lockstep=lockstep, order=order, share="all"
    )
    assert result.tokens == sum(len(t.output) for t in traces)
    assert result.tokens == result.steps + result.accepted
    assert result.tokens_per_step == pytest.approx(1 + sum(result.acceptance_by_depth))
    assert result.tokens_per_step == pytest.approx(
        1 + result.acceptance_rate * result.drafted_per_step
    )
    assert result.accepted_at == sorted(result.accepted_at, reverse=True)
    assert sum(steps for steps, _ in result.curve.values()) == result.steps
    assert sum(count for _, count in result.curve.values()) == result.tokens
    assert result.drafted <= budget * result.steps
    again = replay(
        traces,
        MergeDrafter(NgramDrafter(), NgramDrafter(1, 1, "first")),
        budget=budget, chain=chain, lockstep=lockstep, order=order, share="all",
    )  # fmt: skip
    assert (again.steps, again.accepted_at) == (result.steps, result.accepted_at)


def test_more_budget_accepts_more_of_repetitive_text() -> None:
    text = [i * i % 13 for i in range(400)]
    rates = [
        replay([trace(text[:50], text[50:])], NgramDrafter(), budget=k).tokens_per_step
        for k in (1, 2, 4, 8, 16)
    ]
    assert rates == sorted(rates)


def test_curve_rises_on_repetitive_text(tmp_path: Path) -> None:
    # No repetition at first, then a text with period 997.
    text = [(i * 7919) % 4001 for i in range(1100)] + [(i * 31) % 997 for i in range(3000)]
    result = replay([trace(text[:10], text[10:])], NgramDrafter(), budget=4)
    rows = curve.rows(result)
    assert [row[0] for row in rows] == [0, 1000, 2000, 3000, 4000]
    rates = [row[4] for row in rows]
    assert rates[0] == 1.0 and rates[:4] == sorted(rates[:4])  # the output ends in the fifth
    curve.write_csv(result, tmp_path / "curve.csv")
    lines = (tmp_path / "curve.csv").read_text().splitlines()
    assert lines[0] == "position_from,position_to,steps,tokens,tokens_per_step"
    assert lines[1] == f"0,1000,{rows[0][2]},{rows[0][3]},1.000000"
    curve.write_svg(result, tmp_path / "curve.svg", "a < b")
    svg = (tmp_path / "curve.svg").read_text()
    assert svg.startswith("<svg") and svg.count("<circle") == 5 and "a &lt; b" in svg


@pytest.mark.parametrize(("option", "value"), [("budget", 0), ("budget", 4097), ("lockstep", 0)])
def test_bad_options(option: str, value: int) -> None:
    options: dict[str, Any] = {"budget": 4, option: value}
    with pytest.raises(InputError, match=f"{option} is {value}.*; expected 1 (or more|to 4096)"):
        replay([trace([1], [2])], Scripted(), **options)


@pytest.mark.parametrize(("option", "valid"), [("share", "none, group"), ("order", "file, sta")])
def test_bad_choices(option: str, valid: str) -> None:
    options: dict[str, Any] = {"budget": 4, option: "x"}
    with pytest.raises(InputError, match=f"{option} is 'x'; expected one of {valid}"):
        replay([trace([1], [2])], Scripted(), **options)


GOOD = {"id": "a", "group": "g", "prompt": [1], "output": [2, 3]}


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.anything"])
def test_reading(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    data = (json.dumps(GOOD) + "\n\n" + json.dumps(GOOD | {"id": "b", "more": 1}) + "\n").encode()
    path.write_bytes(gzip.compress(data) if "gz" in name else data)
    traces = read_traces(path)
    assert [t.id for t in traces] == ["a", "b"]
    assert traces[0].output.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "line 2 is not JSON"),
        ("[1]", "line 2 is a list"),
        (json.dumps({"id": "a"}), "line 2 has no 'group'"),
        (json.dumps(GOOD | {"id": 7}), "'id' is a int"),
        (json.dumps(GOOD | {"prompt": "abc"}), "'prompt' is a str"),
        (json.dumps(GOOD | {"prompt": []}), "prompt is empty"),
        (json.dumps(GOOD | {"output": [1.5]}), r"output\[0\] is 1.5"),
        (json.dumps(GOOD | {"output": [3, -1]}), r"output\[1\] is -1.*0 to"),
        (json.dumps(GOOD | {"output": [2**40]}), "1099511627776"),
        (json.dumps(GOOD | {"output": [[1]]}), r"output\[0\]"),
    ],
)
def test_bad_lines_name_file_and_line(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text(json.dumps(GOOD) + "\n" + line + "\n")
    with pytest.raises(TraceError, match=sentence) as caught:
        read_traces(path)
    assert "bad.jsonl" in str(caught.value) and "line 2" in str(caught.value)


def test_bad_files(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match="No such file"):
        read_traces(tmp_path / "missing.jsonl")
    with pytest.raises(TraceError, match="cannot be read"):
        read_traces(tmp_path)
    empty = tmp_path / "empty.jsonl"
    empty.write_text("\n")
    with pytest.raises(TraceError, match="no request"):
        read_traces(empty)
    binary = tmp_path / "binary"
    binary.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(TraceError, match="not UTF-8"):
        read_traces(binary)
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress(json.dumps(GOOD).encode() * 50)[:-9])
    with pytest.raises(TraceError, match=r"damaged|cannot be read"):
        read_traces(cut)


def test_longer_chains_bring_less_and_less() -> None:
    """Tokens per step by draft length is concave: each more token is right less often. So there is
    one best length, and the cost model finds it."""
    traces = read_traces(Path(__file__).parent / "recorded.jsonl.gz")[:8]
    lengths = range(1, 17)
    rates = [
        replay(traces, SuffixDrafter(chain=True, history=False), budget=k, chain=True)
        for k in lengths
    ]
    by_length = [1.0, *(result.tokens_per_step for result in rates)]
    gains = np.diff(by_length)
    # A longer draft moves the places where steps begin, so a gain may be above the last by chance.
    assert (np.diff(gains) <= 0.02 * gains[0]).all() and gains[-1] < 0.2 * gains[0]

    cost = 1 + 0.06 * np.arange(17)  # of k drafted tokens
    best = max(by_length[k] / cost[k] for k in lengths)
    longest = rates[-1]
    reached = [longest.steps, *longest.accepted_at[:-1]]
    chance = [a / r for a, r in zip(longest.accepted_at, reached, strict=True)]
    expected = np.cumsum(np.cumprod([1.0, *chance]))  # tokens per step, by the longest chains alone
    chosen = int(np.argmax(expected / cost[: len(expected)]))
    assert by_length[chosen] / cost[chosen] >= 0.98 * best
