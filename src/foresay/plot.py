"""Line charts, each one self-contained SVG file: no library, no network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from math import floor, log10

__all__ = ["COLOURS", "document", "line_chart", "ticks"]

COLOURS = ("#2563eb", "#d97706", "#059669", "#dc2626", "#7c3aed", "#0891b2", "#4b5563")
_WIDTH, _HEIGHT, _LEFT, _RIGHT, _TOP, _BOTTOM = 640, 360, 64, 16, 56, 48

Points = Sequence[tuple[float, float]]


def line_chart(
    series: Mapping[str, Points],
    *,
    title: str,
    x: str,
    y: str,
    dashed: Sequence[str] = (),
    marks: bool = False,
) -> str:
    """The series by name as an SVG document; both axes begin at 0 or below.

    x, y    what the axes show
    dashed  series that are drawn dashed, so that one that is equal to another is seen below it
    marks   mark each point
    """
    points = [point for line in series.values() for point in line]
    right = max((at for at, _ in points), default=0.0) or 1.0
    top = max((value for _, value in points), default=0.0)
    bottom = min(0.0, min((value for _, value in points), default=0.0))
    top = top if top > bottom else bottom + 1.0

    def across(at: float) -> float:
        return _LEFT + (_WIDTH - _LEFT - _RIGHT) * at / right

    def up(value: float) -> float:
        return _HEIGHT - _BOTTOM - (_HEIGHT - _BOTTOM - _TOP) * (value - bottom) / (top - bottom)

    parts = []
    for tick in ticks(bottom, top):
        parts.append(
            f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{up(tick):.1f}" y2="{up(tick):.1f}" '
            f'stroke="#ddd"/><text x="{_LEFT - 8}" y="{up(tick) + 4:.1f}" text-anchor="end">'
            f"{tick:g}</text>"
        )
    for tick in ticks(0.0, right):
        parts.append(
            f'<text x="{across(tick):.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">'
            f"{tick:g}</text>"
        )
    middle = (_TOP + _HEIGHT - _BOTTOM) / 2
    parts.append(
        f'<text x="{(_LEFT + _WIDTH - _RIGHT) / 2}" y="{_HEIGHT - 10}" text-anchor="middle">'
        f'{escape(x)}</text><text x="14" y="{middle}" text-anchor="middle" '
        f'transform="rotate(-90 14 {middle})">{escape(y)}</text>'
    )
    for number, (name, line) in enumerate(series.items()):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{across(at):.1f},{up(value):.1f}" for at, value in line)
        dash = ' stroke-dasharray="6 4"' if name in dashed else ""
        parts.append(
            f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="2"{dash}/>'
        )
        if marks:
            parts += [
                f'<circle cx="{across(at):.1f}" cy="{up(value):.1f}" r="3.5" fill="{colour}">'
                f"<title>{escape(name)}: {value:.4g} at {at:.4g}</title></circle>"
                for at, value in line
            ]
        left = _LEFT + number % 4 * 140
        height = 38 + number // 4 * 14
        parts.append(
            f'<line x1="{left}" x2="{left + 18}" y1="{height - 4}" y2="{height - 4}" '
            f'stroke="{colour}" stroke-width="2"{dash}/>'
            f'<text x="{left + 24}" y="{height}">{escape(name)}</text>'
        )
    return document(_WIDTH, _HEIGHT, title, _LEFT, parts)


def document(width: float, height: float, title: str, left: float, parts: Sequence[str]) -> str:
    """An SVG document of these parts, with its title `left` from the border."""
    head = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" '
        'font-family="sans-serif" font-size="12" fill="#333">',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
        f'<text x="{left}" y="22" font-size="15">{escape(title)}</text>',
    ]
    return "\n".join([*head, *parts, "</svg>\n"])


def ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers from `low` to `high`."""
    rough = max((high - low) / 5, 1e-300)
    unit = 10.0 ** floor(log10(rough))
    step = next(size * unit for size in (1, 2, 2.5, 5, 10) if size * unit >= rough * 0.999)
    first = -floor(-low / step)
    count = floor((high - first * step) / step + 1e-9)
    return [round((first + n) * step, 12) for n in range(count + 1)]
