"""The demonstration until an engine exists: one small trace through every drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from foresay.bench.replay import ReplayResult, replay
from foresay.drafters.lineup import Share, make_drafter
from foresay.traces import read_traces

__all__ = ["DemoLine", "run_demo"]

_LINES: list[tuple[str, str, str, Share]] = [
    ("ngram", "ngram", "own text, last 3 tokens (prompt lookup)", "none"),
    ("sam", "sam", "own text, longest match (SAM-Decoding)", "none"),
    ("suffix", "suffix", "own text", "none"),
    ("suffix, group", "suffix", "own text and samples of the same prompt", "group"),
    ("suffix, all", "suffix", "that, and all earlier answers", "all"),
    ("merge, all", "merge", "suffix and ngram in one tree", "all"),
]


@dataclass(frozen=True, slots=True)
class DemoLine:
    """One line of the table. Mutates: nothing. Valid until: for ever. Raises: nothing."""

    name: str
    about: str
    result: ReplayResult


def run_demo(
    path: Path, progress: Callable[[int], None] | None = None, budget: int = 16
) -> list[DemoLine]:
    """Replay the trace at `path` through the line-up.

    Mutates: nothing. Valid until: for ever. Raises: TraceError. GIL: as the drafters.
    """
    traces = read_traces(path)
    return [
        DemoLine(
            name,
            about,
            replay(
                traces,
                make_drafter(drafter, share=share),
                budget=budget,
                share=share,
                progress=progress,
            ),
        )
        for name, drafter, about, share in _LINES
    ]
