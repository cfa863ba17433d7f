"""The task: every puzzle has a solution, and the reward is for valid searches only."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from countdown import (
    EOS,
    SYMBOLS,
    VOCABULARY,
    Puzzle,
    Task,
    draw_puzzle,
    final_chain,
    search_trace,
    solved,
    to_text,
)
from foresay.errors import InputError

ID = {symbol: VOCABULARY - len(SYMBOLS) + at for at, symbol in enumerate(SYMBOLS)}
seeds = st.integers(0, 2**32 - 1)
tasks = st.builds(
    Task,
    numbers=st.integers(2, 4),
    largest=st.integers(1, 30),
    most=st.integers(60, 200),
    noise=st.sampled_from([0.0, 0.3, 1.0, 3.0]),
    cap=st.just(100_000),
)


def of_text(text: str) -> list[int]:
    return [int(word) if word.isdigit() else ID[word] for word in text.split()]


def chain_begins(answer: list[int]) -> int:
    """Where the last step of an answer begins: after the last `x` or `]` before it."""
    end = answer.index(ID["!"])
    last = [at for at in range(end - 1) if answer[at] in (ID["x"], ID["]"])]
    return last[-1] + 1 if last else 0


@given(tasks, seeds)
def test_every_puzzle_has_a_solution(task: Task, seed: int) -> None:
    puzzle = draw_puzzle(task, np.random.default_rng(seed))
    assert len(puzzle.numbers) == task.numbers and len(puzzle.solution) == task.numbers - 1
    assert all(1 <= n <= task.largest for n in puzzle.numbers)
    assert all(1 <= step.value <= task.most for step in puzzle.solution)
    answer = [token for step in puzzle.solution for token in step.tokens]
    assert solved(puzzle, [*answer, ID["!"], EOS])


@given(tasks, seeds)
@settings(max_examples=30)
def test_a_search_finds_a_solution_and_is_rewarded(task: Task, seed: int) -> None:
    rng = np.random.default_rng(seed)
    puzzle = draw_puzzle(task, rng)
    answer = search_trace(puzzle, task, rng)
    assert answer[-2:] == [ID["!"], EOS]
    assert all(0 <= token < VOCABULARY for token in [*puzzle.prompt, *answer])
    assert solved(puzzle, answer)
    chain = final_chain(answer)
    assert chain is not None and len(chain) == task.numbers - 1


@given(tasks, seeds, st.data())
@settings(max_examples=60)
def test_a_mutated_search_is_not_rewarded(task: Task, seed: int, data: st.DataObject) -> None:
    rng = np.random.default_rng(seed)
    puzzle = draw_puzzle(task, rng)
    answer = search_trace(puzzle, task, rng)
    begin, end = chain_begins(answer), len(answer) - 2
    kinds = ["value", "left", "mark", "eos", "cut", "more x", "target", "number"]
    kind = data.draw(st.sampled_from([*kinds, *(["fewer x"] if ID["x"] in answer else [])]))
    other = data.draw(st.integers(0, 200))
    wrong, target = list(answer), puzzle.target
    if kind == "value":
        wrong[begin + 4] = other
    elif kind == "left":
        wrong[end - 2] = other
    elif kind == "mark":
        wrong[end] = data.draw(st.integers(0, VOCABULARY - 1))
    elif kind == "eos":
        wrong.pop()
    elif kind == "cut":
        wrong = wrong[: data.draw(st.integers(0, len(answer) - 1))]
    elif kind == "more x":
        wrong.insert(end, ID["x"])
    elif kind == "fewer x":
        wrong.remove(ID["x"])
    elif kind == "target":
        puzzle = Puzzle(puzzle.numbers, other, puzzle.solution)
    else:  # a number that the search has not used
        puzzle = Puzzle((*puzzle.numbers, 1), puzzle.target, puzzle.solution)
    unchanged = wrong == answer and kind in ("value", "left", "mark", "target")
    assert solved(puzzle, wrong) == (unchanged and (kind != "target" or other == target))


def test_a_search_by_hand() -> None:
    puzzle = Puzzle((4, 7, 3), 25, ())
    assert to_text(puzzle.prompt) == "<bos> 4 7 3 : 25 >"
    good = (
        "7 + 4 = 11 [ 3 11 ] 11 + 3 = 14 [ 14 ] x x 7 * 4 = 28 [ 3 28 ] 28 - 3 = 25 [ 25 ] ! <eos>"
    )
    assert to_text(of_text(good)) == good
    assert solved(puzzle, of_text(good))
    assert solved(puzzle, of_text(good.replace("= 14 [ 14 ]", "= 15 [ 9 9 ]")))  # it was taken back
    assert solved(puzzle, of_text(good.replace("[ 3 28 ]", "[ 28 3 ]")))
    for wrong in (
        good.replace("x x", "x"),
        good.replace("x x", "x x x"),
        good.replace("28 - 3 = 25 [ 25 ]", "25 + 0 = 25 [ 25 ]"),
        good.replace("28 - 3", "3 - 28"),
        good.replace("7 * 4 = 28 [ 3 28 ]", "7 * 4 = 28 [ 28 ]"),
        good.replace("!", "?"),
        good.replace("[ 14 ]", "[ ]"),
        good.replace("[ 14 ]", "[ 14"),
        good + " <eos>",
        "! <eos>",
        "7 + 4",
        "",
    ):
        assert wrong != good and not solved(puzzle, of_text(wrong)), wrong


@pytest.mark.parametrize("noise", [0.0, 1.0])
def test_noise_makes_searches_differ(noise: float) -> None:
    task = Task(noise=noise, cap=10_000)
    puzzle = draw_puzzle(task, np.random.default_rng(3))
    found = {tuple(search_trace(puzzle, task, np.random.default_rng(n))) for n in range(8)}
    assert (len(found) > 1) == bool(noise)
    assert search_trace(puzzle, task, np.random.default_rng(1)) in [list(f) for f in found]


def test_lengths_have_a_long_tail() -> None:
    """As in the notes on the task: mean of 300 to 370, half of them far below, a tenth capped."""
    task, rng = Task(), np.random.default_rng(1)
    lengths = np.array(
        [
            len(search_trace(puzzle, task, rng))
            for puzzle in [draw_puzzle(task, rng) for _ in range(48)]
            for _ in range(4)
        ]
    )
    assert 200 < lengths.mean() < 450 and np.median(lengths) < lengths.mean()
    assert lengths.max() == task.cap and 0.02 < (lengths == task.cap).mean() < 0.3


def test_refused() -> None:
    for wrong in ({"numbers": 1}, {"largest": 300}, {"most": 201}, {"noise": -1.0}, {"cap": 0}):
        with pytest.raises(InputError, match="expected"):
            Task(**wrong)
