"""The curves of `rl_countdown.py --long`: records in, SVG files and a summary out."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from foresay.plot import line_chart

__all__ = ["SAME", "draw_curves"]

Runs = Mapping[tuple[int, str], list[dict[str, Any]]]
"""The steps of each seed, with drafts "on" and "off"."""

SAME = ("tokens_digest", "loss", "parameters", "reward", "tokens", "logprob")
"""What drafts must not change, of a step's record."""


def draw_curves(folder: Path, *, as_json: bool = False) -> int:
    """Write the curves and `summary.json` into the folder of the records; 1 if a run with drafts
    differs from the one without."""
    runs: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for file in sorted(folder.glob("seed-*-o*.jsonl")):
        try:
            lines = records(file)
        except ValueError as error:
            print(error, file=sys.stderr)
            return 2
        if lines:
            runs[lines[0]["seed"], lines[0]["drafts"]] = lines
    if not runs:
        print(f"{folder} has no records; expected seed-N-on.jsonl", file=sys.stderr)
        return 2
    for name, chart in charts(runs).items():
        (folder / f"{name}.svg").write_text(chart)
    found = summary(runs)
    (folder / "summary.json").write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found) if as_json else as_text(found))
    return 0 if found["same"] else 1


def records(file: Path) -> list[dict[str, Any]]:
    """The lines of one run. The last is left out, and said to be, where it was not written to its
    end: the run was killed, or still writes it.

    Raises: ValueError for any other line that is no JSON.
    """
    *lines, rest = file.read_text().split("\n")
    if rest:
        said = f"line {len(lines) + 1} of {file} is cut off; it is left out"
        print(said, file=sys.stderr)
    found = []
    for number, line in enumerate(lines, 1):
        try:
            found.append(json.loads(line))
        except ValueError as error:
            said = f"line {number} of {file} is {line[:80]!r}; expected a record of one step"
            raise ValueError(said) from error
    return found


def charts(runs: Runs) -> dict[str, str]:
    """The SVG documents by name."""

    def of(*parts: tuple[str, Callable[[dict[str, Any]], float]]) -> dict[str, list[Any]]:
        ways = [way for way in ("on", "off") if any(w == way for _, w in runs)]
        return {
            f"{name}drafts {way}": mean_curve(runs, way, value)
            for name, value in parts
            for way in ways
        }

    def chart(series: dict[str, list[Any]], title: str, y: str) -> str:
        off = [name for name in series if name.endswith("off")]
        return line_chart(series, title=title, x="training step", y=y, dashed=off)

    seeds = len({seed for seed, _ in runs})
    mean = f"mean of {seeds} seeds" if seeds > 1 else "one seed"
    step_seconds = lambda r: sum(r["seconds"].values())  # noqa: E731
    return {
        "reward": chart(of(("", lambda r: r["reward"])), f"Reward, {mean}", "solved"),
        "length": chart(
            of(("mean, ", lambda r: r["mean_length"]), ("max, ", lambda r: r["max_length"])),
            f"Length of answers, {mean}",
            "tokens",
        ),
        "entropy": chart(of(("", lambda r: r["entropy"])), f"Entropy, {mean}", "nats per token"),
        "tokens_per_step": chart(
            of(("", lambda r: r["tokens_per_step"])),
            f"Tokens per target pass of a request, {mean}",
            "tokens per step",
        ),
        "acceptance": chart(
            {k: v for k, v in of(("", lambda r: r["acceptance"])).items() if k.endswith("on")},
            f"Accepted of drafted tokens, {mean}",
            "share",
        ),
        "passes": chart(
            of(("", lambda r: r["passes"] / r["rounds"])),
            f"Target passes of a rollout, {mean}",
            "passes",
        ),
        "time": chart(
            of(("rollout, ", lambda r: r["seconds"]["rollout"]), ("step, ", step_seconds)),
            f"Seconds of a training step, {mean}",
            "seconds",
        ),
        "tail": chart(
            of(("", lambda r: r["tail"] * r["seconds"]["rollout"])),
            f"Seconds with at most an eighth of the answers left, {mean}",
            "seconds",
        ),
    }


def mean_curve(
    runs: Runs, way: str, value: Callable[[dict[str, Any]], float]
) -> list[tuple[float, float]]:
    """Over the seeds, as far as all of them came."""
    each = [lines for (_, w), lines in sorted(runs.items()) if w == way]
    steps = min(len(lines) for lines in each)
    return [(at + 1.0, float(np.mean([value(lines[at]) for lines in each]))) for at in range(steps)]


def summary(runs: Runs) -> dict[str, Any]:
    """For each seed that ran both ways, over the steps that both have: whether they are the same,
    and how they compare."""
    seeds = []
    for seed in sorted({seed for seed, _ in runs}):
        if (seed, "on") not in runs or (seed, "off") not in runs:
            continue
        pairs = list(zip(runs[seed, "off"], runs[seed, "on"], strict=False))
        off, on = (list(lines) for lines in zip(*pairs, strict=True))
        seconds = [sum(r["seconds"]["rollout"] for r in lines) for lines in (off, on)]
        steps = [sum(sum(r["seconds"].values()) for r in lines) for lines in (off, on)]
        tails = [sum(r["tail"] * r["seconds"]["rollout"] for r in lines) for lines in (off, on)]
        fifth = max(len(on) // 5, 1)
        seeds.append(
            {
                "seed": seed,
                "steps": len(pairs),
                "same": all(a[name] == b[name] for a, b in pairs for name in SAME),
                "reward_first": float(np.mean([r["reward"] for r in on[:fifth]])),
                "reward_last": float(np.mean([r["reward"] for r in on[-fifth:]])),
                "fewer_passes": sum(r["passes"] for r in off) / sum(r["passes"] for r in on),
                "less_rollout_time": seconds[0] / seconds[1],
                "less_step_time": steps[0] / steps[1],
                "less_tail_time": tails[0] / max(tails[1], 1e-9),
                "tail_share_off": tails[0] / seconds[0],
                "rollout_share_off": seconds[0] / steps[0],
                "acceptance": sum(r["accepted"] for r in on)
                / max(sum(r["drafted"] for r in on), 1),
                "logprob_max": max((r["logprob"].get("max", 0.0) for r in on), default=0.0),
            }
        )
    return {"same": all(seed["same"] for seed in seeds), "seeds": seeds}


def as_text(found: dict[str, Any]) -> str:
    """A table."""
    names = [name for name in (found["seeds"] or [{}])[0] if name != "seed"]
    lines = [" " * 20 + "".join(f"{'seed ' + str(s['seed']):>10}" for s in found["seeds"])]
    for name in names:
        values = [s[name] for s in found["seeds"]]
        shown = [f"{v:.3g}" if isinstance(v, float) else str(v) for v in values]
        lines.append(f"{name:20}" + "".join(f"{v:>10}" for v in shown))
    return "\n".join(lines)
