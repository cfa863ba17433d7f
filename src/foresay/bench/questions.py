"""What drafters are compared on: Spec-Bench's questions, HumanEval's prompts, or the demo's.

A file has JSON lines, optionally gzipped: {"category": str, "turns": [str, …]} as in Spec-Bench, or
{"prompt": str} as in HumanEval, also with a category. Other fields are ignored.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from foresay.errors import InputError, TraceError
from foresay.sampling.params import SamplingParams
from foresay.traces import read_records

__all__ = [
    "CATEGORIES",
    "Question",
    "built_in_questions",
    "in_order",
    "read_questions",
    "some_of_each",
]

CATEGORIES = (
    *("mt_bench", "translation", "summarization", "qa", "math_reasoning", "rag"),
    "humaneval",
)
"""Spec-Bench's six categories, and HumanEval."""

_MT_BENCH = (
    *("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
)
_EXPECTED = 'expected {"category": …, "turns": [texts]} or {"prompt": text}'


@dataclass(frozen=True, slots=True)
class Question:
    """A conversation: what the user says, turn by turn, and how it is to be answered.

    where  names it in messages: file and line, or the name of a built-in prompt
    """

    where: str
    category: str
    turns: tuple[str, ...]
    params: SamplingParams


def read_questions(paths: Sequence[Path], params: SamplingParams) -> list[Question]:
    """The questions of all files, in their order; MT-Bench's eight kinds are one category.

    Raises: TraceError naming the file and the line.
    """
    questions = []
    for path in paths:
        found = [_question(where, fields, params) for where, fields in read_records(path)]
        if not found:
            raise TraceError(f"{path} holds no question; {_EXPECTED}, one per line")
        questions += found
    return questions


def built_in_questions(max_tokens: int) -> list[Question]:
    """Those that come with the package, each a category of its own; greedy where they say nothing
    else.

    Raises: InputError for max_tokens below 1.
    """
    file = resources.files("foresay") / "data" / "prompts.jsonl"
    questions = []
    for line in file.read_text(encoding="utf-8").splitlines():
        fields = {"temperature": 0.0, **json.loads(line)}
        name, text = fields.pop("name"), fields.pop("prompt")
        params = SamplingParams(max_tokens=max_tokens, **fields)
        questions.append(Question(f"'{name}'", name, (text,), params))
    return questions


def some_of_each(questions: Sequence[Question], count: int) -> list[Question]:
    """The first `count` questions of every category.

    Raises: InputError for a count below 1.
    """
    if count < 1:
        raise InputError(f"the questions per category are {count}; expected 1 or more")
    taken: dict[str, int] = {}
    some = []
    for question in questions:
        taken[question.category] = taken.get(question.category, 0) + 1
        if taken[question.category] <= count:
            some.append(question)
    return some


def in_order(categories: Iterable[str]) -> list[str]:
    """Each category once: Spec-Bench's first, then the others as they come."""
    found = list(dict.fromkeys(categories))
    known = [name for name in CATEGORIES if name in found]
    return known + [name for name in found if name not in CATEGORIES]


def _question(where: str, fields: dict[str, Any], params: SamplingParams) -> Question:
    turns = fields.get("turns", [fields["prompt"]] if "prompt" in fields else None)
    if turns is None:
        raise TraceError(f"{where} has neither 'turns' nor 'prompt'; {_EXPECTED}")
    texts = isinstance(turns, list) and all(isinstance(turn, str) and turn for turn in turns)
    if not texts or not turns:
        name = "turns" if "turns" in fields else "prompt"
        raise TraceError(f"{where}: {name!r} is {_short(fields[name])}; {_EXPECTED}")
    category = fields.get("category", _usual_category(fields))
    if not isinstance(category, str) or not category:
        raise TraceError(f"{where}: 'category' is {_short(category)}; expected a name")
    return Question(where, "mt_bench" if category in _MT_BENCH else category, tuple(turns), params)


def _usual_category(fields: dict[str, Any]) -> str:
    """Of a line that names none."""
    return "humaneval" if str(fields.get("task_id")).startswith("HumanEval") else "other"


def _short(value: object) -> str:
    shown = repr(value)
    return shown if len(shown) <= 60 else f"{shown[:59]}…"
