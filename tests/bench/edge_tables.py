"""Tables of `foresay bench edge` as if measured."""

from __future__ import annotations

from collections import Counter

from foresay.bench.edge import EdgeAnswer, EdgeRow
from foresay.bench.edge_table import EdgeTable
from foresay.edge.statistics import StreamStatistics


def answer(question: str, seconds: float, tokens: list[int] | None = None) -> EdgeAnswer:
    told = StreamStatistics(
        ttft=0.1,
        seconds=seconds,
        drafts=2,
        rounds=2,
        sent=8,
        accepted=3,
        examined=[2, 2, 1],
        accepted_at=[2, 1, 0],
        bytes_up=60,
        bytes_down=40,
    )
    return EdgeAnswer(
        question,
        [1, 2, 3, 4] if tokens is None else tokens,
        told,
        lengths=Counter({1: 1, 2: 1}),
        cloud_steps=2,
        log=[{"round": 1, "k": 4}, {"round": 2, "k": 4}],
    )


def table(seconds: dict[str, list[float]], rtt: float = 0.02) -> EdgeTable:
    return EdgeTable(
        [
            EdgeRow(way, rtt, [answer(f"q{n}", one) for n, one in enumerate(times)])
            for way, times in seconds.items()
        ],
        {"model": "tiny", "edge_drafter": "suffix"},
    )
