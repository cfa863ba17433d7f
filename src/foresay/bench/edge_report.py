"""What `foresay bench edge` leaves behind: a page and Prometheus' text, each one file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from foresay.bench.edge import EDGE_ONLY
from foresay.bench.edge_table import EdgeTable, bars
from foresay.plot import line_chart

__all__ = ["COLUMNS", "cells", "html_report", "prometheus_text"]

COLUMNS: dict[str, tuple[str, str]] = {
    "ttft_p50": ("TTFT p50", "{:.3f} s"),
    "ttft_p95": ("p95", "{:.3f} s"),
    "total_p50": ("total p50", "{:.3f} s"),
    "total_p95": ("p95", "{:.3f} s"),
    "tokens_per_second": ("tokens/s", "{:.1f}"),
    "speedup_cloud": ("by cloud", "{:.2f} x"),
    "speedup_cloud_drafts": ("by drafts", "{:.2f} x"),
    "steps_per_token": ("steps/token", "{:.2f}"),
    "calls_per_token": ("calls/token", "{:.2f}"),
    "k": ("k", "{:.1f}"),
    "accept_length": ("accepted", "{:.2f}"),
    "bytes_up": ("up B/token", "{:.1f}"),
    "bytes_down": ("down", "{:.1f}"),
    "wasted": ("wasted", "{}"),
    "rolled_back": ("rolled back", "{}"),
    "resumes": ("resumes", "{}"),
    "edge_rss_mb": ("edge MB", "{:.0f}"),
    "cloud_rss_mb": ("cloud MB", "{:.0f}"),
    "kv_share": ("KV", "{:.1%}"),
}
"""The columns of the table: a field of a row, its heading and its form."""

_STYLE = """
body { font: 15px/1.5 sans-serif; color: #222; max-width: 76em; margin: 2em auto; padding: 0 1em }
table { border-collapse: collapse; font-size: 13px; margin: 1em 0 }
table { display: block; overflow-x: auto }
th, td { padding: .25em .6em; border-bottom: 1px solid #ddd }
th, td { text-align: right; white-space: nowrap }
th:first-child, td:first-child, th:nth-child(2), td:nth-child(2) { text-align: left }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(26em, 1fr)); gap: 1em }
svg { width: 100%; height: auto; border: 1px solid #eee }
.no { color: #b91c1c; font-weight: bold }
"""


def cells(row: Mapping[str, Any]) -> list[str]:
    """The values of a row as the columns show them; nothing where there is no value."""
    return [
        "" if row.get(name) is None else form.format(row[name])
        for name, (_, form) in COLUMNS.items()
    ]


def html_report(table: EdgeTable) -> str:
    """A page that needs nothing from anywhere: the bars, charts as inline SVG, and all rows."""
    found = table.as_dict()
    rows = found["rows"]
    charts = [
        _chart(table, rows, "tokens_per_second", "Tokens per second", "tokens/s"),
        _chart(table, rows, "ttft_p50", "Time to the first token, p50", "seconds"),
        _chart(table, rows, "speedup_cloud", "Speed-up by cloud, after the first token", "times"),
        _chart(table, rows, "steps_per_token", "Cloud steps per token", "steps"),
        _positions(table),
        _lengths(table),
    ]
    met = {None: "not measured", True: "met", False: "NOT MET"}
    judged = [
        [bar.name, "" if bar.value is None else f"{bar.value:.3f}", f"{bar.bar:g}", met[bar.met]]
        for bar in bars(table)
    ]
    heads = ["way", "RTT", *(head for head, _ in COLUMNS.values())]
    body = [[_named(row), f"{row['rtt_emulated_ms']:g} ms", *cells(row)] for row in rows]
    about = [[name, str(value)] for name, value in table.about.items()]
    said = (
        "<p>All texts are those of the cloud alone, token by token.</p>"
        if found["identical"]
        else "".join(
            f'<p class="no">{escape(one)}</p>'
            for one in found["differences"] or ["No text was compared."]
        )
    )
    return "\n".join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            "<title>foresay bench edge</title>",
            f"<style>{_STYLE}</style></head><body>",
            "<h1>Edge streams beside the cloud alone</h1>",
            said,
            "<h2>Bars</h2>",
            _html_table(["what", "value", "bar", ""], judged),
            '<div class="charts">',
            *(chart for chart in charts if chart),
            "</div>",
            "<h2>Rows</h2>",
            _html_table(heads, body),
            "<h2>Measured with</h2>",
            _html_table(["", ""], about),
            "</body></html>\n",
        ]
    )


def _named(row: Mapping[str, Any]) -> str:
    return f"{row['way']} (not the target)" if row["way"] == EDGE_ONLY else str(row["way"])


def _chart(
    table: EdgeTable, rows: Sequence[Mapping[str, Any]], name: str, title: str, unit: str
) -> str:
    series = {
        way: [
            (row["rtt_emulated_ms"], row[name])
            for row in rows
            if row["way"] == way and row[name] is not None
        ]
        for way in table.ways
    }
    series = {way: points for way, points in series.items() if points}
    return line_chart(series, title=title, x="RTT in ms", y=unit, marks=True) if series else ""


def _positions(table: EdgeTable) -> str:
    """Acceptance by position, at the largest round-trip time."""
    rows = [row for row in table.rows if row.rtt == max(table.rtts) and row.acceptance]
    series = {row.way: [(at + 1.0, rate) for at, rate in enumerate(row.acceptance)] for row in rows}
    title, unit = "Acceptance by position in a draft", "accepted / examined"
    return line_chart(series, title=title, x="position", y=unit) if series else ""


def _lengths(table: EdgeTable) -> str:
    """The histogram of accepted tokens, at the largest round-trip time."""
    series = {}
    for row in table.rows:
        if row.rtt == max(table.rtts) and (total := sum(row.lengths.values())):
            longest = max(row.lengths)
            series[row.way] = [(float(n), row.lengths[n] / total) for n in range(longest + 1)]
    title = "Accepted tokens of a round"
    return line_chart(series, title=title, x="tokens", y="share of rounds") if series else ""


def _html_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> str:
    def line(kind: str, values: Sequence[str]) -> str:
        inner = "".join(f"<{kind}>{escape(value)}</{kind}>" for value in values)
        return f"<tr>{inner}</tr>"

    return "\n".join(["<table>", line("th", head), *(line("td", row) for row in body), "</table>"])


def prometheus_text(table: EdgeTable) -> str:
    """Every number of every row as a gauge `foresay_bench_edge_{name}`, and the histogram of
    accepted tokens, in Prometheus' text format."""
    found: dict[str, list[str]] = {}
    for row in table.as_dict()["rows"]:
        labels = f'way="{row["way"]}",rtt_ms="{row["rtt_emulated_ms"]:g}"'
        for name, value in row.items():
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                found.setdefault(name, []).append(f"{{{labels}}} {value}")
        for at, rate in enumerate(row["acceptance"]):
            line = f'{{{labels},position="{at + 1}"}} {rate}'
            found.setdefault("acceptance", []).append(line)
        total = 0
        for length, count in row["accept_histogram"].items():
            total += count
            line = f'_bucket{{{labels},le="{length}"}} {total}'
            found.setdefault("accepted", []).append(line)
        if total:
            accepted = sum(int(n) * count for n, count in row["accept_histogram"].items())
            found["accepted"] += [
                f'_bucket{{{labels},le="+Inf"}} {total}',
                f"_sum{{{labels}}} {accepted}",
                f"_count{{{labels}}} {total}",
            ]
    lines: list[str] = []
    for name, values in found.items():
        kind = "histogram" if name == "accepted" else "gauge"
        lines.append(f"# TYPE foresay_bench_edge_{name} {kind}")
        lines += [f"foresay_bench_edge_{name}{value}" for value in values]
    return "\n".join([*lines, ""])
