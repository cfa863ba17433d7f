"""Tokens per step against the position in the text, as CSV and as a plot.

A longer text repeats itself more, so drafts from it get better as it grows; this curve shows by how
much. The plot is one self-contained SVG file.
"""

from __future__ import annotations

from pathlib import Path

from foresay.bench.replay import BUCKET, ReplayResult
from foresay.counts import tokens_per_step

__all__ = ["rows", "write_csv", "write_svg"]

WIDTH, HEIGHT, LEFT, BOTTOM = 640, 360, 56, 48


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
    points = rows(result)
    right = max((end for _, end, *_ in points), default=BUCKET)
    top = max((rate for *_, rate in points), default=1.0) * 1.1

    def x(position: float) -> float:
        return LEFT + (WIDTH - LEFT - 16) * position / right

    def y(rate: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - BOTTOM - 40) * rate / top

    line = " ".join(f"{x((a + b) / 2):.1f},{y(rate):.1f}" for a, b, _, _, rate in points)
    marks = "".join(
        f'<circle cx="{x((a + b) / 2):.1f}" cy="{y(rate):.1f}" r="3.5">'
        f"<title>{a}-{b}: {rate:.3f} tokens per step, {steps} steps</title></circle>"
        for a, b, steps, _, rate in points
    )
    grid = "".join(
        f'<line x1="{LEFT}" x2="{WIDTH - 16}" y1="{y(t):.1f}" y2="{y(t):.1f}"/>'
        f'<text stroke="none" x="{LEFT - 8}" y="{y(t) + 4:.1f}" text-anchor="end">{t:.1f}</text>'
        for t in (top * k / 4 for k in range(5))
    )
    ticks = "".join(
        f'<text x="{x(p):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{p}</text>'
        for p in range(0, right + 1, max(BUCKET, right // 8 // BUCKET * BUCKET))
    )
    path.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" '
        'font-family="sans-serif" font-size="12" fill="#333">'
        f'<rect width="{WIDTH}" height="{HEIGHT}" fill="#fff"/>'
        f'<text x="{LEFT}" y="24" font-size="15">{_escaped(title)}</text>'
        f'<g stroke="#ddd">{grid}</g>{ticks}'
        f'<text x="{WIDTH / 2}" y="{HEIGHT - 8}" text-anchor="middle">position in the text</text>'
        f'<polyline points="{line}" fill="none" stroke="#2563eb" stroke-width="2"/>'
        f'<g fill="#2563eb">{marks}</g></svg>\n',
        encoding="utf-8",
    )


def _escaped(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
