"""All rows of `foresay bench edge` in one table: which texts differ, the ratios, and the bars."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from statistics import geometric_mean
from typing import Any, NamedTuple

import numpy as np

from foresay.bench.edge import BASELINES, CLOUD, CLOUD_DRAFTS, EDGE_ONLY, EdgeRow
from foresay.counts import first_difference
from foresay.draft import Draft
from foresay.edge.ids import pack
from foresay.edge.messages import Commit, DraftMessage
from foresay.edge.wire import encode

__all__ = ["Bar", "EdgeTable", "bars", "round_bytes"]

BAR_RTT = 0.02
"""The bars are for this round-trip time."""


@dataclass(slots=True)
class EdgeTable:
    """All rows of a comparison: every way at every round-trip time.

    about  what was asked: model, network, prompts; as plain values
    """

    rows: list[EdgeRow]
    about: dict[str, Any] = field(default_factory=dict)

    @property
    def rtts(self) -> list[float]:
        return list(dict.fromkeys(row.rtt for row in self.rows))

    @property
    def ways(self) -> list[str]:
        return list(dict.fromkeys(row.way for row in self.rows))

    def row(self, way: str, rtt: float) -> EdgeRow | None:
        """The row; None if it was not measured."""
        return next((row for row in self.rows if (row.way, row.rtt) == (way, rtt)), None)

    @property
    def compared(self) -> int:
        """Texts that have to be those of `cloud`, its own among them; empty ones say nothing."""
        rows = [row for row in self.rows if row.way != EDGE_ONLY]
        return sum(bool(answer.tokens) for row in rows for answer in row.answers)

    @property
    def failed_drafters(self) -> int:
        """Answers in which the edge's drafter raised: then nothing more was drafted."""
        every = (answer.statistics for row in self.rows for answer in row.answers)
        return sum(told.drafter_error is not None for told in every)

    @property
    def identical(self) -> bool:
        """Whether texts were compared, and none differs."""
        return self.compared > 0 and not self.differences

    @property
    def differences(self) -> list[str]:
        """A sentence for each answer that is not that of `cloud`, over all round-trip times."""
        found, plain = [], dict[str, list[int]]()
        for row in sorted(self.rows, key=lambda row: row.way != CLOUD):
            for answer in row.answers if row.way != EDGE_ONLY else ():
                expected = plain.setdefault(answer.question, answer.tokens)
                at = first_difference(expected, answer.tokens)
                if at is not None:
                    found.append(
                        f"{answer.question}: {row.way} at {1e3 * row.rtt:g} ms differs from "
                        f"{CLOUD} from token {at} on"
                    )
        return found

    def ratio(self, way: str, other: str, rtt: float, *, whole: bool = False) -> float | None:
        """The geometric mean over questions of `other`'s seconds by those of `way`; None if one of
        them was not measured."""
        row, beside = self.row(way, rtt), self.row(other, rtt)
        found = [] if row is None or beside is None else row.speedups(beside, whole=whole)
        return geometric_mean(found) if found else None

    def drafting_ahead_alone(self) -> dict[str, float]:
        """`ahead-block` by `blocking`, by round-trip time in ms: in both the cloud always waits.
        The bar is of `ahead`, whose wait is another one, so it is not of drafting ahead alone."""
        found = {rtt: self.ratio("ahead-block", "blocking", rtt) for rtt in self.rtts}
        return {
            f"{1e3 * rtt:g}": round(ratio, 4) for rtt, ratio in found.items() if ratio is not None
        }

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        rows = []
        for row in self.rows:
            values = row.as_dict()
            for other in BASELINES:
                found = self.ratio(row.way, other, row.rtt)
                name = f"speedup_{other.replace('-', '_')}"
                values[name] = None if found is None else round(found, 4)
            rows.append(values)
        return {
            **self.about,
            "rows": rows,
            "identical": self.identical,
            "differences": self.differences,
            "bars": [bar._asdict() for bar in bars(self)],
            "drafting_ahead_alone": self.drafting_ahead_alone(),
        }

    def log_lines(self) -> Iterable[str]:
        """The rounds of all answers as JSON lines."""
        for row in self.rows:
            for answer in row.answers:
                common = {
                    "way": row.way,
                    "rtt_emulated_ms": 1e3 * row.rtt,
                    "prompt": answer.question.strip("'"),
                }
                for one in answer.log:
                    yield json.dumps({**common, **one})


class Bar(NamedTuple):
    """What has to be reached; `met` is None where it was not measured."""

    name: str
    value: float | None
    bar: float
    met: bool | None


def bars(table: EdgeTable) -> list[Bar]:
    """The bars of edge streams, at 20 ms where they are of time."""
    at = f"at {1e3 * BAR_RTT:g} ms"

    def least(name: str, value: float | None, bar: float) -> Bar:
        shown = None if value is None else round(value, 4)
        return Bar(f"{name}, least", shown, bar, None if value is None else value >= bar)

    def most(name: str, value: float, bar: float) -> Bar:
        return Bar(f"{name}, most", value, bar, value <= bar)

    def ratio(way: str, other: str, *, whole: bool = False) -> float | None:
        return table.ratio(way, other, BAR_RTT, whole=whole)

    up, down = round_bytes()
    return [
        least(f"free-run by {CLOUD_DRAFTS} {at}", ratio("free-run", CLOUD_DRAFTS), 0.98),
        least(f"the same, whole answers {at}", ratio("free-run", CLOUD_DRAFTS, whole=True), 0.98),
        least(f"ahead by blocking {at}", ratio("ahead", "blocking"), 1.2),
        least("texts compared", table.compared, 1),
        Bar("texts that differ", len(table.differences), 0, table.identical),
        most("drafters of the edge that failed", table.failed_drafters, 0),
        most("bytes up of a round of 8 drafted tokens", up, 48),
        most("bytes down of such a round", down, 48),
    ]


def round_bytes(k: int = 8, vocabulary: int = 151_936) -> tuple[int, int]:
    """The bytes of a draft of k tokens and of the commit that accepts it, for a large vocabulary
    and a long stream: position 100,000, draft 10,000, 100 ms. WebSocket adds 6 up and 2 down."""
    ids = np.full(k + 1, vocabulary - 1, np.int32)
    draft = DraftMessage.of(
        Draft.chain(ids[:k]), seq=10_000, base=100_000, prefix=2**32 - 1, vocabulary=vocabulary
    )
    commit = Commit(
        upto=100_000 + k + 1,
        tokens=pack(ids, vocabulary),
        check=2**32 - 1,
        seq=10_000,
        accepted=k,
        examined=k,
        drafted=k,
        pending=1,
        server_us=100_000,
    )
    return len(encode(draft)), len(encode(commit))
