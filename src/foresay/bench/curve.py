"""Tokens per step against the position in the text, as CSV and as a plot.

A longer text repeats itself more, so drafts from it get better as it grows; this curve shows by how
much.
"""

from __future__ import annotations

from pathlib import Path

from foresay.bench.replay import BUCKET, ReplayResult
from foresay.counts import tokens_per_step
from foresay.plot import line_chart

__all__ = ["rows", "write_csv", "write_svg"]


def rows(result: ReplayResult) -> list[tuple[int, int, int, int, float]]:
    """(from, to, steps, tokens, tokens per step) of each position bucket that has steps.

    A step belongs to the bucket in which it began; positions count prompt and output.
    """
    return [
        (bucket * BUCKET, (bucket + 1) * BUCKET, steps, tokens, tokens_per_step(tokens, steps))
        for bucket, (steps, tokens) in sorted(result.curve.items())
    ]


def write_csv(result: ReplayResult, path: Path) -> None:
    """Write the curve as CSV. Raises: OSError."""
    lines = ["position_from,position_to,steps,tokens,tokens_per_step"]
    lines += [f"{a},{b},{steps},{tokens},{rate:.6f}" for a, b, steps, tokens, rate in rows(result)]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def write_svg(result: ReplayResult, path: Path, title: str = "tokens per step") -> None:
    """Write the curve as SVG. Raises: OSError."""
    points = [((a + b) / 2, rate) for a, b, _, _, rate in rows(result)]
    axes = {"x": "position in the text", "y": "tokens per step"}
    chart = line_chart({"tokens per step": points}, title=title, marks=True, **axes)
    path.write_text(chart, encoding="utf-8")
