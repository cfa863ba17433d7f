"""GSM8K: prompts, which number an answer ends with, and how far two accuracies are apart."""

from __future__ import annotations

import gzip
import json
import math
import re
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

STOP = "Question:"  # where the model goes on with a question of its own
_NUMBER = r"-?\$?\d[\d,]*(?:\.\d+)?"
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)
Z95, Z80 = 1.959964, 0.841621  # normal quantiles: an interval of 95 %, a power of 80 %


def read(path: Path) -> list[dict[str, str]]:
    """The rows of a JSON-lines file, gzipped or not."""
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8") as file:
        return [json.loads(line) for line in file if line.strip()]


def prompt(shots: Sequence[dict[str, str]], question: str) -> str:
    """A few questions with their answers, and then the question: as lm-eval asks."""
    shown = "".join(f"Question: {s['question']}\nAnswer: {s['answer']}\n\n" for s in shots)
    return f"{shown}Question: {question}\nAnswer:"


def marked(text: str) -> Decimal | None:
    """The number after the first ####, as the answers of the dataset have it."""
    found = _MARKED.search(text)
    return _value(found[1]) if found else None


def last(text: str) -> Decimal | None:
    """The last number of the text, with or without a mark."""
    found = _ANY.findall(text)
    return _value(found[-1]) if found else None


def score(text: str, answer: str) -> dict[str, bool]:
    """Whether an answer is right, by its marked number and by its last one; and whether it has a
    marked one at all."""
    right = marked(answer)
    if right is None:
        raise ValueError(f"the dataset's answer {answer!r} has no number after ####")
    return {
        "strict": marked(text) == right,
        "flexible": last(text) == right,
        "marked": marked(text) is not None,
    }


def _value(number: str) -> Decimal | None:
    try:
        return Decimal(number.replace(",", "").replace("$", ""))
    except InvalidOperation:
        return None


def compared(one: Sequence[Sequence[bool]], other: Sequence[Sequence[bool]]) -> dict[str, Any]:
    """Two arms of answers, [seeds][questions]: are their shares of right answers apart?

    The test of two proportions takes all answers as independent. Those to one question are not, but
    both arms have the same questions, which makes the true error smaller: the test errs on the safe
    side. `paired` is the interval over questions, each with its difference of means.
    """
    n, m = sum(map(len, one)), sum(map(len, other))
    first, second = sum(map(sum, one)) / n, sum(map(sum, other)) / m
    apart, pooled = second - first, (first * n + second * m) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    alone = math.sqrt(first * (1 - first) / n + second * (1 - second) / m)
    each = [
        sum(b) / len(b) - sum(a) / len(a)
        for a, b in zip(zip(*one, strict=True), zip(*other, strict=True), strict=True)
    ]
    mean = sum(each) / len(each)
    spread = math.sqrt(sum((d - mean) ** 2 for d in each) / max(len(each) - 1, 1) / len(each))
    return {
        "answers": [n, m],
        "shares": [first, second],
        "per_seed": [[sum(s) / len(s) for s in arm] for arm in (one, other)],
        "difference": apart,
        "p_value": math.erfc(abs(apart) / error / math.sqrt(2)) if error else 1.0,
        "interval_95": [apart - Z95 * alone, apart + Z95 * alone],
        "paired_interval_95": [mean - Z95 * spread, mean + Z95 * spread],
        "detectable_with_power_80": (Z95 + Z80) * error,
    }
