"""The task "countdown-trace": reach a target from a few numbers, and write the search down.

A prompt is `<bos> 4 7 12 3 : 60 >`. The answer is a depth-first search: every step is
`a o b = v [ numbers left ]`, a dead end is `x`, and it ends with `!` (or `?` where there is no
solution) and `<eos>`. A whole number is one token. Searches that choose well are short and a few
are very long, so the lengths of answers have a long tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TypeAlias

from numpy.random import Generator

from foresay.arrays import check_positive
from foresay.errors import InputError

__all__ = [
    "EOS",
    "SYMBOLS",
    "VOCABULARY",
    "Puzzle",
    "Step",
    "Task",
    "draw_puzzle",
    "final_chain",
    "search_trace",
    "solved",
    "to_text",
]

_LARGEST = 200  # number tokens are 0 to 200
SYMBOLS = ("<bos>", "<eos>", "<pad>", ":", ">", "+", "-", "*", "=", "[", "]", "x", "!", "?")
_ID = {symbol: _LARGEST + 1 + at for at, symbol in enumerate(SYMBOLS)}
VOCABULARY = _LARGEST + 1 + len(SYMBOLS)
EOS = _ID["<eos>"]
_BOS, _COLON, _ASK, _EQUALS, _OPEN, _CLOSE = (_ID[s] for s in ("<bos>", ":", ">", "=", "[", "]"))
_DEAD, _FOUND, _NONE = _ID["x"], _ID["!"], _ID["?"]
_OPERATORS = ("+", "-", "*")
_OPERATOR_OF = {_ID[o]: o for o in _OPERATORS}

State: TypeAlias = tuple[int, ...]
"""The numbers that are left."""


@dataclass(frozen=True, slots=True)
class Task:
    """What puzzles are like, and how they are searched.

    numbers  how many there are in a puzzle
    largest  they are 1 to this
    most     every value on the way, the target too, is 1 to this; at most 200
    noise    how far two searches of one puzzle differ; 0: not at all
    cap      the most tokens of an answer

    Raises: InputError when constructed.
    """

    numbers: int = 4
    largest: int = 30
    most: int = _LARGEST
    noise: float = 1.0
    cap: int = 1024

    def __post_init__(self) -> None:
        for name in ("numbers", "largest", "most", "cap"):
            check_positive(getattr(self, name), name)
        if self.numbers < 2:
            raise InputError(f"numbers is {self.numbers}; expected at least 2")
        if not self.largest <= self.most <= _LARGEST:
            raise InputError(
                f"largest is {self.largest} and most is {self.most}; expected largest to be at "
                f"most that, and that at most {_LARGEST}"
            )
        if not 0 <= self.noise < float("inf"):
            raise InputError(f"noise is {self.noise}; expected 0 or more")


@dataclass(frozen=True, slots=True)
class Step:
    """One line of a search: `a o b = value [ left ]`."""

    a: int
    operator: str
    b: int
    value: int
    left: State

    @property
    def tokens(self) -> list[int]:
        return [self.a, _ID[self.operator], self.b, _EQUALS, self.value, _OPEN, *self.left, _CLOSE]


@dataclass(frozen=True, slots=True)
class Puzzle:
    """The numbers, the target, and one way to it."""

    numbers: State
    target: int
    solution: tuple[Step, ...]

    @property
    def prompt(self) -> list[int]:
        """As token ids."""
        return [_BOS, *self.numbers, _COLON, self.target, _ASK]


def draw_puzzle(task: Task, rng: Generator) -> Puzzle:
    """A puzzle that has a solution: random pairs are combined until one value is left, which is
    the target.
    """
    while True:
        numbers = tuple(int(n) for n in rng.integers(1, task.largest, task.numbers, endpoint=True))
        left, steps = numbers, list[Step]()
        while len(left) > 1 and (choices := _steps_from(left, task.most)):
            steps.append(choices[int(rng.integers(len(choices)))])
            left = steps[-1].left
        if len(left) == 1:
            return Puzzle(numbers, left[0], tuple(steps))


def search_trace(puzzle: Puzzle, task: Task, rng: Generator) -> list[int]:
    """An answer by depth-first search, `<eos>` included; cut where it reaches `task.cap`."""
    tokens: list[int] = []
    found = _search(puzzle.numbers, puzzle.target, task, rng, tokens)
    tokens += [_FOUND if found else _NONE, EOS]
    return tokens[: task.cap]


def final_chain(answer: Sequence[int]) -> list[Step] | None:
    """The steps that were not taken back when an answer ended with `! <eos>`; None for an answer
    that ended otherwise or is not of the form of a search. Values are not checked.
    """
    chain: list[Step] = []
    at = 0
    while at < len(answer):
        token = answer[at]
        if token == _FOUND:
            return chain if list(answer[at + 1 :]) == [EOS] else None
        if token == _DEAD:
            if not chain:
                return None
            chain.pop()
            at += 1
            continue
        step = _parsed(answer, at)
        if step is None:
            return None
        chain.append(step)
        at += len(step.tokens)
    return None


def solved(puzzle: Puzzle, answer: Sequence[int]) -> bool:
    """The reward: whether the final chain is valid, uses every number once and ends at the target.
    What the search took back may be wrong.
    """
    chain = final_chain(answer)
    if chain is None:
        return False
    left = sorted(puzzle.numbers)
    for step in chain:
        for number in (step.a, step.b):
            if number not in left:
                return False
            left.remove(number)
        if step.a < step.b or step.value != _value(step.a, step.operator, step.b):
            return False
        left = sorted([*left, step.value])
        if left != sorted(step.left):
            return False
    return left == [puzzle.target]


def to_text(tokens: Sequence[int]) -> str:
    """Tokens in words."""
    return " ".join(str(t) if t <= _LARGEST else SYMBOLS[t - _LARGEST - 1] for t in tokens)


def _value(a: int, operator: str, b: int) -> int:
    return a + b if operator == "+" else a - b if operator == "-" else a * b


def _steps_from(left: State, most: int) -> list[Step]:
    """All different steps with a value of 1 to `most`, the larger number first."""
    steps: dict[Step, None] = {}
    for i, j in combinations(range(len(left)), 2):
        others = tuple(n for at, n in enumerate(left) if at not in (i, j))
        a, b = max(left[i], left[j]), min(left[i], left[j])
        for operator in _OPERATORS:
            value = _value(a, operator, b)
            if 1 <= value <= most:
                steps[Step(a, operator, b, value, (*others, value))] = None
    return list(steps)


def _search(left: State, target: int, task: Task, rng: Generator, tokens: list[int]) -> bool:
    """Whether the target was found from here.

    Mutates: tokens, to which the search is appended, and rng. Ends early beyond the cap.
    """
    steps = _steps_from(left, task.most)
    noise: list[float] = (task.noise * rng.random(len(steps))).tolist()
    last = len(left) == 2

    def rank(at: int) -> float:
        distance = abs(steps[at].value - target)
        return distance * (1 + noise[at]) if last else noise[at] + distance / target

    for at in sorted(range(len(steps)), key=rank):
        if len(tokens) >= task.cap:
            return False
        step = steps[at]
        tokens += step.tokens
        if step.left == (target,):
            return True
        if not last and _search(step.left, target, task, rng, tokens):
            return True
        tokens.append(_DEAD)
    return False


def _parsed(answer: Sequence[int], at: int) -> Step | None:
    """The step that begins there."""
    head = answer[at : at + 6]
    if len(head) < 6:
        return None
    a, operator, b, equals, value, bracket = head
    end = at + 6
    while end < len(answer) and answer[end] <= _LARGEST:
        end += 1
    numbers = max(a, b, value) <= _LARGEST and end > at + 6
    symbols = operator in _OPERATOR_OF and equals == _EQUALS and bracket == _OPEN
    if not (numbers and symbols) or answer[end : end + 1] != [_CLOSE]:
        return None
    return Step(a, _OPERATOR_OF[operator], b, value, tuple(answer[at + 6 : end]))
