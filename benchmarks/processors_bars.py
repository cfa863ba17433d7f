"""The arithmetic of processors.py: from runs to ratios, and from ratios to bars.

A run is what happened in one turn: {"prompt", "task", "sides": {side: {"seconds", "tokens", …}}}. A
ratio of two sides is that of their speeds in one run. A prompt's ratio is the median over its runs,
a task's the geometric mean over its prompts, that of many tasks the geometric mean over the tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import geometric_mean, median
from typing import Any

from harness import bar

NONE, DEFAULT = "foresay, none", "foresay, default"
LLAMA, TRANSFORMERS = "llama.cpp", "transformers"
CONTINUOUS, GENERATE_LOOKUP = "transformers, continuous", "transformers, prompt lookup"
COPYING, CHAT = ("summarise", "edit", "extract", "retrieval"), "chat"
ROWS = (1, 2, 4, 8, 16)

# A step of so many rows, against one of 1 row, by kind of processor.
ROW_BARS: dict[str | None, dict[int, float]] = {
    "aarch64": {4: 1.4, 8: 2.0, 16: 3.2},
    "amx": {4: 1.1, 8: 1.2, 16: 1.4},
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
        sides = run["sides"]
        for other in others:
            found = ratios.setdefault(run["prompt"], {}).setdefault(other, [])
            found.append(of(sides[one]) / of(sides[other]))
    return {
        prompt: min(median(values) for values in against.values())
        for prompt, against in ratios.items()
    }


def by_task(runs: Sequence[Run], one: str, others: Sequence[str]) -> dict[str, float]:
    """The same, task by task: the geometric mean of its prompts."""
    tasks = dict.fromkeys(run["task"] for run in runs)
    return {
        task: geometric_mean(
            by_prompt([r for r in runs if r["task"] == task], one, others).values()
        )
        for task in tasks
    }


def growth(runs: Iterable[Run], side: str) -> dict[int, float]:
    """How many times as long a step of n rows takes as one of 1 row: the median over runs of the
    ratio of medians.
    """
    found: dict[int, list[float]] = {}
    for run in runs:
        times = {int(n): median(took) for n, took in run["sides"][side].items()}
        for rows, took in times.items():
            found.setdefault(rows, []).append(took / times[1])
    return {rows: median(values) for rows, values in found.items()}


def kind_of(machine: str, level: str) -> str | None:
    """The kind of processor that the bars know, or None."""
    if machine == "aarch64":
        return "aarch64"
    return "amx" if "amx" in level else None


def bars(parts: Mapping[str, Mapping[str, Any]], kind: str | None) -> list[Line]:
    """Every bar that these parts can tell of."""
    makers: dict[str, Callable[[Any], list[Line]]] = {
        "load": _load,
        "prefill": _prefill,
        "decode": _decode,
        "batch": _batch,
        "rows": lambda part: _rows(part, ROW_BARS.get(kind, {})),
        "tasks": _tasks,
        "transformers": _transformers,
    }
    return [found for name, make in makers.items() if name in parts for found in make(parts[name])]


def _has(part: Mapping[str, Any], side: str) -> bool:
    return bool(part["runs"]) and all(side in run["sides"] for run in part["runs"])


def _load(part: Mapping[str, Any]) -> list[Line]:
    def middle(side: str, of: Callable[[Any], float]) -> float:
        return median(of(run["sides"][side]) for run in part["runs"])

    def first(side: str, clock: str = "seconds") -> float:
        return middle(side, lambda one: one["took"]["first_token"][clock])

    size, imports = part["file_bytes"], middle(DEFAULT, lambda o: o["took"]["imports"]["seconds"])
    peers = [side for side in (LLAMA, TRANSFORMERS) if _has(part, side)]
    model = middle(DEFAULT, lambda one: one["model_bytes"]) / size
    return [
        bar("LLM to the first token", first(DEFAULT), 5, at_most=True, unit=" s"),
        bar("… of processor time", first(DEFAULT, "cpu_seconds"), 8, at_most=True, unit=" s"),
        bar("… imports, not counted above", imports, None, unit=" s"),
        *(bar(f"{side} to the first token", first(side), None, unit=" s") for side in peers),
        bar("memory of the model / its file", model, 1.25, at_most=True, unit="x"),
        *(
            bar(
                f"… of the process, more than before: {side}",
                middle(side, lambda one: one["grown_bytes"]) / size,
                None,
                unit="x",
            )
            for side in (DEFAULT, *peers)
        ),
    ]


def _middle_ratio(runs: Iterable[Run], one: str, other: str) -> float:
    return median(speed(r["sides"][one]) / speed(r["sides"][other]) for r in runs)


def _prefill(part: Mapping[str, Any]) -> list[Line]:
    if not _has(part, LLAMA):
        return []
    ratio = _middle_ratio(part["runs"], NONE, LLAMA)
    return [bar(f"prefill of {part['tokens']} tokens / llama.cpp", ratio, 2.0, unit="x")]


def _decode(part: Mapping[str, Any]) -> list[Line]:
    if not _has(part, LLAMA):
        return []
    value = geometric_mean(by_prompt(part["runs"], NONE, [LLAMA], decode_speed).values())
    return [bar("decode, no speculation / llama.cpp", value, 1.3, unit="x")]


def _batch(part: Mapping[str, Any]) -> list[Line]:
    runs, size, found = part["runs"], part["requests"], []
    for peer, bound in ((LLAMA, 3.0), (CONTINUOUS, 1.0)):
        if _has(part, peer):
            default, none = (_middle_ratio(runs, side, peer) for side in (DEFAULT, NONE))
            found += [
                bar(f"{size} requests at once / {peer}", default, bound, unit="x"),
                bar("… without speculation", none, None, unit="x"),
            ]
    own = _middle_ratio(runs, DEFAULT, NONE)
    return [*found, bar(f"{size} requests at once / no speculation", own, 0.97, unit="x")]


def _rows(part: Mapping[str, Any], wanted: Mapping[int, float]) -> list[Line]:
    found = [
        bar(f"a step of {rows} rows / of 1 row", times, wanted.get(rows), at_most=True, unit="x")
        for rows, times in growth(part["runs"], NONE).items()
    ]
    if _has(part, LLAMA):
        found += [
            bar(f"llama.cpp: {rows} rows / 1 row", times, None, unit="x")
            for rows, times in growth(part["runs"], LLAMA).items()
        ]
    return [line for line in found if " 1 rows" not in line["name"]]


def _tasks(part: Mapping[str, Any]) -> list[Line]:
    runs, found = part["runs"], []
    theirs = [side for side in runs[0]["sides"] if side.startswith(LLAMA)]
    for others, bound, against in (
        (theirs, 2.0, "the better of llama.cpp plain and with lookup"),
        ([NONE], 1.6, "no speculation"),
    ):
        tasks = by_task(runs, DEFAULT, others) if others else {}
        copying = [value for task, value in tasks.items() if task in COPYING]
        if copying:
            found.append(
                bar(f"copying tasks / {against}", geometric_mean(copying), bound, unit="x")
            )
        found += [bar(f"… {task}", value, None, unit="x") for task, value in tasks.items()]
    chat = by_prompt([run for run in runs if run["task"] == CHAT], DEFAULT, [NONE])
    if chat:
        name = "free chat / no speculation, the least prompt"
        found.append(bar(name, min(chat.values()), 0.98, unit="x"))
    return found


def _transformers(part: Mapping[str, Any]) -> list[Line]:
    found = []
    for side, peer, bound in (
        (NONE, TRANSFORMERS, 4.0),
        (DEFAULT, TRANSFORMERS, None),
        (DEFAULT, GENERATE_LOOKUP, 1.4),
    ):
        if _has(part, peer):
            value = geometric_mean(by_prompt(part["runs"], side, [peer]).values())
            found.append(bar(f"{side} / {peer}", value, bound, unit="x"))
    return found
