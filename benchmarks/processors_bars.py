"""The arithmetic of processors.py: from runs to ratios, and from ratios to bars.

A run is what happened in one turn: {"prompt", "task", "ways": {way: {"seconds", "tokens", …}}}. A
ratio of two ways is that of their speeds in one run. A prompt's ratio is the median over its runs,
a task's the geometric mean over its prompts, that of many tasks the geometric mean over the tasks.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from ratios import geometric

NONE, DEFAULT = "foresay, none", "foresay, default"
LLAMA, TRANSFORMERS = "llama.cpp", "transformers"
COPYING, CHAT = ("summarise", "edit", "extract", "retrieval"), "chat"
ROWS = (1, 2, 4, 8, 16)

# A step of so many rows, against one of 1 row, by kind of processor.
ROW_BARS = {
    "aarch64": {4: 1.4, 8: 2.0, 16: 3.2},
    "amx": {4: 1.1, 8: 1.2, 16: 1.4},
}
ELSEWHERE = {
    "the drafter's step against ArcticInference": "core.py",
    "bfloat16 with AMX is not slower than before": "before.py",
    "the demonstration's time and speed-up": "make demo",
    "damaged files": "make test, make sanitize",
}

Run = Mapping[str, Any]
Line = dict[str, Any]


def speed(one: Mapping[str, Any]) -> float:
    """Tokens per second, prefill included."""
    return float(one["tokens"] / one["seconds"])


def decode_speed(one: Mapping[str, Any]) -> float:
    """Tokens per second after the first token.

    Raises: ValueError for an answer of one token.
    """
    if one["tokens"] < 2:
        raise ValueError(f"an answer has {one['tokens']} token; expected 2 or more to time decode")
    return float((one["tokens"] - 1) / (one["seconds"] - one["first_seconds"]))


def by_prompt(
    runs: Iterable[Run],
    one: str,
    others: Sequence[str],
    of: Callable[[Mapping[str, Any]], float] = speed,
) -> dict[str, float]:
    """How many times as fast `one` is as the best of the others, prompt by prompt."""
    ratios: dict[str, dict[str, list[float]]] = {}
    for run in runs:
        ways = run["ways"]
        for other in others:
            found = ratios.setdefault(run["prompt"], {}).setdefault(other, [])
            found.append(of(ways[one]) / of(ways[other]))
    return {
        prompt: min(statistics.median(values) for values in against.values())
        for prompt, against in ratios.items()
    }


def by_task(runs: Sequence[Run], one: str, others: Sequence[str]) -> dict[str, float]:
    """The same, task by task: the geometric mean of its prompts."""
    tasks = dict.fromkeys(run["task"] for run in runs)
    return {
        task: geometric([*by_prompt([r for r in runs if r["task"] == task], one, others).values()])
        for task in tasks
    }


def growth(runs: Iterable[Run], way: str) -> dict[int, float]:
    """How many times as long a step of n rows takes as one of 1 row: the median over runs of the
    ratio of medians.
    """
    found: dict[int, list[float]] = {}
    for run in runs:
        times = {int(n): statistics.median(took) for n, took in run["ways"][way].items()}
        for rows, took in times.items():
            found.setdefault(rows, []).append(took / times[1])
    return {rows: statistics.median(values) for rows, values in found.items()}


def kind_of(machine: str, level: str) -> str | None:
    """The kind of processor that the bars know, or None."""
    if machine == "aarch64":
        return "aarch64"
    return "amx" if "amx" in level else None


def line(
    name: str, value: float, bar: float | None, *, unit: str = "x", at_most: bool = False
) -> Line:
    """One line of the table."""
    met = None if bar is None else value <= bar if at_most else value >= bar
    return {
        "name": name,
        "value": round(value, 4),
        "unit": unit,
        "bar": bar,
        "at_most": at_most,
        "met": met,
    }


def bars(parts: Mapping[str, Mapping[str, Any]], kind: str | None) -> list[Line]:
    """Every bar that these parts can tell of."""
    makers = {
        "load": _load,
        "prefill": _prefill,
        "decode": _decode,
        "batch": _batch,
        "rows": lambda part: _rows(part, ROW_BARS.get(kind or "", {})),
        "tasks": _tasks,
        "transformers": _transformers,
    }
    return [found for name, make in makers.items() if name in parts for found in make(parts[name])]


def _has(part: Mapping[str, Any], way: str) -> bool:
    return bool(part["runs"]) and all(way in run["ways"] for run in part["runs"])


def _load(part: Mapping[str, Any]) -> list[Line]:
    def middle(way: str, *path: str) -> float:
        values = []
        for run in part["runs"]:
            value = run["ways"][way]
            for key in path:
                value = value[key]
            values.append(value)
        return statistics.median(values)

    def took(way: str, clock: str) -> float:
        return middle(way, "took", "first_token", clock)

    imports = middle(DEFAULT, "took", "imports", "seconds")
    found = [
        line("LLM to the first token", took(DEFAULT, "seconds"), 5, unit=" s", at_most=True),
        line("… of processor time", took(DEFAULT, "cpu_seconds"), 8, unit=" s", at_most=True),
        line("… imports, not counted above", imports, None, unit=" s"),
    ]
    for way in (LLAMA, TRANSFORMERS):
        if _has(part, way):
            found.append(line(f"{way} to the first token", took(way, "seconds"), None, unit=" s"))
    size = part["file_bytes"]
    memory = middle(DEFAULT, "model_bytes") / size
    found.append(line("memory of the model / its file", memory, 1.25, at_most=True))
    for way in (DEFAULT, LLAMA, TRANSFORMERS):
        if _has(part, way):
            grown = middle(way, "grown_bytes") / size
            found.append(line(f"… of the process, more than before: {way}", grown, None))
    return found


def _middle_ratio(runs: Iterable[Run], one: str, other: str) -> float:
    return statistics.median(speed(r["ways"][one]) / speed(r["ways"][other]) for r in runs)


def _prefill(part: Mapping[str, Any]) -> list[Line]:
    if not _has(part, LLAMA):
        return []
    ratio = _middle_ratio(part["runs"], NONE, LLAMA)
    return [line(f"prefill of {part['tokens']} tokens / llama.cpp", ratio, 2.0)]


def _decode(part: Mapping[str, Any]) -> list[Line]:
    if not _has(part, LLAMA):
        return []
    ratios = by_prompt(part["runs"], NONE, [LLAMA], decode_speed)
    return [line("decode, no speculation / llama.cpp", geometric([*ratios.values()]), 1.3)]


def _batch(part: Mapping[str, Any]) -> list[Line]:
    runs, size = part["runs"], part["requests"]
    if not _has(part, LLAMA):
        return []
    return [
        line(f"{size} requests at once / llama.cpp", _middle_ratio(runs, DEFAULT, LLAMA), 3.0),
        line("… without speculation", _middle_ratio(runs, NONE, LLAMA), None),
    ]


def _rows(part: Mapping[str, Any], wanted: Mapping[int, float]) -> list[Line]:
    found = [
        line(f"a step of {rows} rows / of 1 row", times, wanted.get(rows), at_most=True)
        for rows, times in growth(part["runs"], NONE).items()
        if rows > 1
    ]
    if _has(part, LLAMA):
        found += [
            line(f"llama.cpp: {rows} rows / 1 row", times, None)
            for rows, times in growth(part["runs"], LLAMA).items()
            if rows > 1
        ]
    return found


def _tasks(part: Mapping[str, Any]) -> list[Line]:
    runs, found = part["runs"], []
    theirs = [way for way in runs[0]["ways"] if way.startswith(LLAMA)]
    for others, bar, against in (
        (theirs, 2.0, "the better of llama.cpp plain and with lookup"),
        ([NONE], 1.6, "no speculation"),
    ):
        if not others:
            continue
        tasks = by_task(runs, DEFAULT, others)
        copying = [value for task, value in tasks.items() if task in COPYING]
        if copying:
            found.append(line(f"copying tasks / {against}", geometric(copying), bar))
        found += [line(f"… {task}", value, None) for task, value in tasks.items()]
    chat = by_prompt([run for run in runs if run["task"] == CHAT], DEFAULT, [NONE])
    if chat:
        found.append(line("free chat / no speculation, the least prompt", min(chat.values()), 0.98))
    return found


def _transformers(part: Mapping[str, Any]) -> list[Line]:
    if not _has(part, TRANSFORMERS):
        return []
    ratios = {way: by_prompt(part["runs"], way, [TRANSFORMERS]) for way in (NONE, DEFAULT)}
    return [
        line("no speculation / transformers", geometric([*ratios[NONE].values()]), 4.0),
        line("… with speculation", geometric([*ratios[DEFAULT].values()]), None),
    ]
