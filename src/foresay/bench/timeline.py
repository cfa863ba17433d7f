"""Timelines of simulated rollouts: a bar for every request, before and after, on one axis."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from html import escape
from typing import Any

from foresay.bench.simulate import SimulatedRequest, Simulation
from foresay.plot import COLOURS, document, ticks

__all__ = ["timeline_json", "timeline_svg"]

_WIDTH, _LEFT, _RIGHT = 960, 56, 16
_HEIGHT = 280  # of the bars of one panel
_GAP, _TOP = 44, 48


def timeline_json(runs: Sequence[Simulation]) -> dict[str, Any]:
    """Every request and every step of the simulations; a step is a line of `foresay tail`'s log."""
    return {
        "simulations": [
            {
                "plan": run.plan.name,
                "seconds": run.seconds,
                "requests": [asdict(request) for request in run.requests],
                "steps": [asdict(step) for step in run.steps],
            }
            for run in runs
        ]
    }


def timeline_svg(runs: Sequence[Simulation], title: str = "a rollout step") -> str:
    """One panel for each simulation, below each other, on the same axis of time."""
    right = max(run.seconds for run in runs) or 1.0
    colours: dict[str, str] = {}
    for run in runs:
        for request in run.requests:
            colours.setdefault(request.group, COLOURS[len(colours) % len(COLOURS)])

    def across(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / right

    height = _TOP + len(runs) * (_HEIGHT + _GAP) + 20
    parts = []
    for number, run in enumerate(runs):
        top = _TOP + number * (_HEIGHT + _GAP)
        parts.append(
            f'<text x="{_LEFT}" y="{top - 8}">{escape(run.plan.name)}: {run.seconds:.4g} s, '
            f"{len(run.requests)} requests</text>"
        )
        parts += [
            f'<line x1="{across(tick):.1f}" x2="{across(tick):.1f}" y1="{top}" '
            f'y2="{top + _HEIGHT}" stroke="#ddd"/><text x="{across(tick):.1f}" '
            f'y="{top + _HEIGHT + 16}" text-anchor="middle">{tick:g}</text>'
            for tick in ticks(0.0, right)
        ]
        parts += _bars(run, top, across, colours)
        parts.append(
            f'<line x1="{across(run.seconds):.1f}" x2="{across(run.seconds):.1f}" y1="{top}" '
            f'y2="{top + _HEIGHT}" stroke="#333" stroke-dasharray="4 3"/>'
        )
    parts.append(
        f'<text x="{_WIDTH / 2}" y="{height - 8}" text-anchor="middle">'
        "simulated seconds; a bar is a request, a colour its group</text>"
    )
    return document(_WIDTH, height, title, _LEFT, parts)


def _bars(run: Simulation, top: int, across: Any, colours: dict[str, str]) -> list[str]:
    def place(request: SimulatedRequest) -> tuple[int, float, float]:
        return request.replica, request.begin, request.end

    high = _HEIGHT / len(run.requests)
    return [
        f'<rect x="{across(r.begin):.1f}" y="{top + at * high:.2f}" '
        f'width="{max(across(r.end) - across(r.begin), 0.3):.1f}" '
        f'height="{max(high * 0.8, 0.2):.2f}" fill="{colours[r.group]}">'
        f"<title>{escape(r.id)}: {r.begin:.4g} to {r.end:.4g} s, {r.tokens} tokens in {r.steps} "
        "steps</title></rect>"
        for at, r in enumerate(sorted(run.requests, key=place))
    ]
