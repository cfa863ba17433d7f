"""What the parts of gpu.py have to reach, as lines of `harness.bar`. A part that was not measured
has no lines; what failed in it is a line that is not met.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness import bar

Part = Mapping[str, Any]

STEP_BARS = {
    ("given", 1, 1024, 8): 1.15,
    ("given", 1, 1024, 16): 1.25,
    ("8B", 8, 16_384, 8): 1.15,
    ("8B", 32, 4096, 4): 1.10,
    ("8B", 128, 2048, 2): 1.18,
    ("8B", 1, 32_768, 16): 1.20,
}
AT_ONCE = {"8 edits": 1.6, "64 edits": 1.25, "256 edits": 1.0}
CHATS = 0.98


def bars(parts: Mapping[str, Part]) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for name, of in OF_PART.items():
        if name in parts:
            lines += of(parts[name])
            if "error" in parts[name]:
                lines.append(true(f"{name}: {parts[name]['error']}"[:120], False))
            if "stopped" in parts[name]:
                lines.append(true(f"{name}: {parts[name]['stopped']}"[:120], False))
    return lines


def true(name: str, holds: bool) -> dict[str, Any]:
    return bar(name, float(holds), 1.0)


def exact(part: Part) -> list[dict[str, Any]]:
    lines = []
    for model, about in part.get("models", {}).items():
        if "error" in about:
            lines.append(true(f"{model}: {about['error']}"[:120], False))
        if about.get("is_batch_invariant") is not None:
            lines.append(true(f"{model}: is_batch_invariant", about["is_batch_invariant"]))
        for key, one in about.items():
            if key.startswith("T "):
                name = f"{model}, {key}: texts that differ, of {one['requests']}"
                lines.append(bar(name, len(one["different"]), 0, at_most=True))
    if "processor" in part:
        found = part["processor"]
        name = f"float32, texts other than the processor's, of {found['prompts']}"
        lines.append(bar(name, len(found["different"]), None))
    return lines


def kernels(part: Part) -> list[dict[str, Any]]:
    lines = []
    accuracy = part.get("accuracy", {})
    if accuracy.get("cases"):
        name = f"tree attention: inaccurate, of {accuracy['cases']} cases"
        lines.append(bar(name, len(accuracy["bad"]), 0, at_most=True))
    elif accuracy:
        lines.append(true("tree attention: no kernel was called", False))
    for one in part.get("attention", ()):
        about = f"tree attention {one['batch']} x {one['context']}"
        if "error" in one:
            lines.append(true(f"{about}: {one['error']}"[:120], False))
        elif "ratio" in one:
            lines.append(bar(f"{about}, SDPA / ours", one["ratio"], 4.0, unit="x"))
            lines.append(bar(f"{about}: relative error", one["far"], 1e-2, at_most=True))
    return lines


def steps(part: Part) -> list[dict[str, Any]]:
    lines = []
    plain: set[tuple[Any, ...]] = set()
    for one in part.get("cases", ()):
        where = (one["model"], one["batch"], one["context"])
        about = f"{one['model']}, {one['batch']} x {one['context']}"
        if "error" in one:
            lines.append(true(f"{about}: {one['error']}"[:120], False))
            continue
        if where not in plain:
            plain.add(where)
            bound = 1.15 if where == ("given", 1, 1024) else None
            lines.append(bar(f"{about}, plain", one["plain_ms"], bound, at_most=True, unit=" ms"))
            share = 0.8 if where == ("8B", 1, 1024) else None
            lines.append(bar(f"{about}, plain: share of the bound", one["share_of_bound"], share))
        bound = STEP_BARS.get((*where, one["nodes"]))
        name = f"{about}, {one['nodes']} nodes / plain"
        lines.append(bar(name, one["ratio"], bound, at_most=True, unit="x"))
    return lines


def answers(part: Part) -> list[dict[str, Any]]:
    lines = [bar("texts with drafts that differ", len(part.get("different", ())), 0, at_most=True)]
    if edit := part.get("edit"):
        speed = edit["drafts_tokens_per_second"]
        lines.append(bar("edits, one at a time", speed, 2500, unit=" tokens/s"))
        lines.append(bar("edits, drafts / plain", edit["ratio"], 2.5, unit="x"))
    if chat := part.get("chat"):
        lines.append(bar("chat, drafts / plain, the least", chat["least_ratio"], CHATS, unit="x"))
    return lines


def batch(part: Part) -> list[dict[str, Any]]:
    lines = [bar("texts at once that differ", len(part.get("different", ())), 0, at_most=True)]
    for one in part.get("cases", ()):
        bound = AT_ONCE.get(one["case"], CHATS if one["case"].endswith("chats") else None)
        lines.append(bar(f"{one['case']}, drafts / plain", one["ratio"], bound, unit="x"))
    return lines


def host(part: Part) -> list[dict[str, Any]]:
    lines = []
    for one in part.get("cases", ()):
        about = f"{one['requests']} requests, {one['side']}"
        if "error" in one:
            lines.append(true(f"{about}: {one['error']}"[:120], False))
        if "outside_ms" in one:
            bounds = {1: (0.2, None), 128: (None, 0.05)}.get(one["requests"], (None, None))
            name = f"{about}: host outside of the device's work"
            lines.append(bar(name, one["outside_ms"], bounds[0], at_most=True, unit=" ms"))
            name = f"{about}: the same, of the step"
            lines.append(bar(name, one["outside_share"], bounds[1], at_most=True))
        if "outside_ms_profiler_off" in one:
            off = one["outside_ms_profiler_off"]
            lines.append(bar(f"{about}: the same, with the profiler off", off, None, unit=" ms"))
    return lines


def deterministic(part: Part) -> list[dict[str, Any]]:
    return [
        bar(
            f"deterministic / not, {one['batch']} x {one['context']}, {one['nodes']} nodes",
            *(one["ratio"], 1.05),
            at_most=True,
            unit="x",
        )
        for one in part.get("cases", ())
    ]


def offload(part: Part) -> list[dict[str, Any]]:
    if "seconds_by_passes" not in part:
        return []
    ratio = part["seconds_by_passes"]
    return [
        true("offloading: identical", part["identical"]),
        bar("offloading: ratio of seconds / ratio of passes", ratio, 0.85),
        bar("offloading: the same, at most", ratio, 1.15, at_most=True),
    ]


def vllm(part: Part) -> list[dict[str, Any]]:
    name = f"{part.get('requests')} requests at once, plain, ours / vLLM's"
    lines = [bar(name, part["ratio"], 1.0, unit="x")] if "ratio" in part else []
    failed = [one for one in part.values() if isinstance(one, dict) and "error" in one]
    return lines + [true(f"vLLM: {one['error']}"[:120], False) for one in failed]


OF_PART: dict[str, Any] = {
    "kernels": kernels,
    "exact": exact,
    "steps": steps,
    "answers": answers,
    "batch": batch,
    "host": host,
    "deterministic": deterministic,
    "offload": offload,
    "vllm": vllm,
}


def tables(parts: Mapping[str, Part]) -> list[tuple[str, Sequence[str], list[list[str]]]]:
    """Name, head and rows of what is shown above the bars."""
    found: list[tuple[str, Sequence[str], list[list[str]]]] = []
    for kind in ("edit", "chat"):
        if one := parts.get("answers", {}).get(kind):
            rows = [
                [str(line[key]) for key in ("prompt", *_SPEEDS, "tokens_per_step", "ratio")]
                for line in one["prompts"]
            ]
            found.append((f"{kind}s, one at a time", _HEAD, rows))
    if cases := parts.get("batch", {}).get("cases"):
        rows = [
            [str(line[key]) for key in ("case", *_SPEEDS, "tokens_per_step", "ratio")]
            for line in cases
        ]
        found.append(("at once", _HEAD, rows))
    return found


_SPEEDS = ("plain_tokens_per_second", "drafts_tokens_per_second")
_HEAD = ("", "plain, tokens/s", "drafts, tokens/s", "tokens per step", "ratio")
