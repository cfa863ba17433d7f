"""Edge streams beside the cloud alone, over emulated networks: the ways, and what is measured.

A *way* is how an answer is written:

    edge-only    the edge's own small model alone: another model, so another text
    cloud        the cloud streams, without drafts anywhere
    cloud-drafts the cloud streams, with drafts of its own
    blocking     the edge drafts, sends, waits for the verdict
    ahead        the edge drafts on while the verdict is on its way; the cloud waits where it pays
    ahead-block  the same, and the cloud always waits
    free-run     the same, and the cloud never waits

All ways but edge-only have to give the text of `cloud`, token by token. Speed-ups are of the time
after the first token: until then every way reads the prompt, which takes longer than the answer.

The metrics that edge-cloud papers and logs name, and what they are called here:

    k                     k: drafted tokens sent per round, mean
    accepted_len          accept_length: accepted tokens of a round, mean and histogram
    la/k, A_cum           la_over_k: accepted / sent tokens, over all rounds; `--log` has each round
    alpha_mean            alpha_mean: accepted / examined tokens (all before them were accepted);
                          `acceptance` has it by position
    edge_time_ms          edge_ms: of drafting, per round
    cloud_prefill_ms      cloud_ms: of the cloud's forward pass, per step
    rtt_ms                rtt_ms: of the network alone, as the edge measured it, median
    bytes_up/down         bytes_up, bytes_down: of messages; wire_up, wire_down: of TCP's payload,
                          with WebSocket's headers and the HTTP head
    hard_ratio, triggered hard_ratio of sent tokens, where a gate is on; else None
    TTFT, Total p50/p95   ttft_p50, ttft_p95, total_p50, total_p95, seconds
    OTPS                  tokens_per_second; ms_per_token: after the first, median over answers
    CPU Peak RSS          edge_rss_mb, cloud_rss_mb
    GPU Peak              none: no way uses a GPU here
    KV peak and share     kv_peak_mb, kv_share of the cache's memory
    speed-up              speedup_cloud, speedup_cloud_drafts, against each baseline
    cloud-call ratio      calls_per_token: drafts sent per token; steps_per_token has the cloud's
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from statistics import median
from typing import Any, TypeVar

import numpy as np

from foresay.edge.statistics import StreamStatistics
from foresay.errors import InputError

__all__ = [
    "BASELINES",
    "CLOUD",
    "CLOUD_DRAFTS",
    "EDGE_ONLY",
    "WAYS",
    "EdgeAnswer",
    "EdgeRow",
    "edge_ways",
]

T = TypeVar("T")
EDGE_ONLY, CLOUD, CLOUD_DRAFTS = "edge-only", "cloud", "cloud-drafts"
BASELINES = (CLOUD, CLOUD_DRAFTS)
WAYS = (EDGE_ONLY, CLOUD, CLOUD_DRAFTS, "blocking", "ahead", "ahead-block", "free-run")


def edge_ways(names: str) -> list[str]:
    """Names with commas between, each once, in the order above; `cloud` is always among them.

    Raises: InputError.
    """
    given = [name.strip() for name in names.split(",")]
    for name in given:
        if name not in WAYS:
            raise InputError(f"the way is {name!r}; expected one of {', '.join(WAYS)}")
    return [name for name in WAYS if name in given or name == CLOUD]


@dataclass(slots=True)
class EdgeAnswer:
    """One answer as measured. What a way does not have stays at its default.

    tokens       of the answer
    statistics   of its stream
    lengths      how many rounds had n accepted tokens
    wire_up …    bytes of TCP's payload; `statistics` has them without the HTTP head
    cloud_steps  of the engine, and the seconds that their forward passes took
    log          one object per round, for `--log`
    """

    question: str
    tokens: list[int] = field(default_factory=list)
    statistics: StreamStatistics = field(default_factory=StreamStatistics)
    lengths: Counter[int] = field(default_factory=Counter)
    wire_up: int = 0
    wire_down: int = 0
    cloud_steps: int = 0
    cloud_seconds: float = 0.0
    log: list[dict[str, Any]] = field(default_factory=list)

    @property
    def ttft(self) -> float:
        """Seconds until the first token; 0 if there was none."""
        return self.statistics.ttft or 0.0

    @property
    def seconds(self) -> float:
        """Of the whole answer."""
        return self.statistics.seconds

    @property
    def decoding(self) -> float:
        """Seconds after the first token."""
        return max(self.seconds - self.ttft, 1e-6)

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first; None if there is no other."""
        return self.decoding / (len(self.tokens) - 1) if len(self.tokens) > 1 else None


def _sum(of: Iterable[T], value: Callable[[T], float]) -> float:
    return float(sum(value(one) for one in of))


def _by_position(lists: Iterable[Sequence[int]]) -> list[int]:
    return [sum(each) for each in zip_longest(*lists, fillvalue=0)]


@dataclass(slots=True)
class EdgeRow:
    """One way at one round-trip time.

    sides  of the whole run: edge_rss_mb, cloud_rss_mb, kv_peak_mb, kv_share; where known
    """

    way: str
    rtt: float
    answers: list[EdgeAnswer]
    sides: dict[str, float] = field(default_factory=dict)

    @property
    def tokens_per_second(self) -> float:
        return _sum(self.answers, lambda a: len(a.tokens)) / _sum(self.answers, lambda a: a.seconds)

    @property
    def lengths(self) -> Counter[int]:
        """By the number of accepted tokens, how many rounds had it."""
        return sum((answer.lengths for answer in self.answers), Counter())

    @property
    def acceptance(self) -> list[float]:
        """By position of a draft: accepted / examined."""
        examined = _by_position(a.statistics.examined for a in self.answers)
        accepted = _by_position(a.statistics.accepted_at for a in self.answers)
        return [good / all_ if all_ else 0.0 for good, all_ in zip(accepted, examined, strict=True)]

    def speedups(self, other: EdgeRow, *, whole: bool = False) -> list[float]:
        """Seconds of the other way by those of this one, after the first token, question by
        question; answers of one token say nothing. `whole`: of the whole answer."""
        pairs = zip(other.answers, self.answers, strict=True)
        if whole:
            return [theirs.seconds / own.seconds for theirs, own in pairs]
        several = [pair for pair in pairs if min(len(one.tokens) for one in pair) > 1]
        return [theirs.decoding / own.decoding for theirs, own in several]

    def as_dict(self) -> dict[str, Any]:
        """As plain values, without speed-ups, which need other rows."""
        answers, told = self.answers, [a.statistics for a in self.answers]
        tokens = max(_sum(answers, lambda a: len(a.tokens)), 1)
        rounds, steps = _sum(told, lambda s: s.rounds), _sum(answers, lambda a: a.cloud_steps)
        sent, accepted = _sum(told, lambda s: s.sent), _sum(told, lambda s: s.accepted)
        drafts, examined = _sum(told, lambda s: s.drafts), _sum(told, lambda s: sum(s.examined))
        rtts = [1e3 * s.rtt for s in told if s.rtt is not None]
        each = [1e3 * a.per_token for a in answers if a.per_token is not None]
        hard = [s.hard_ratio for s in told if s.hard_ratio is not None]

        def per(count: float, of: float) -> float | None:
            return round(count / of, 4) if of else None

        def percentile(values: list[float], share: float) -> float:
            return round(float(np.quantile(values, share)), 5)

        ttfts, totals = [a.ttft for a in answers], [a.seconds for a in answers]
        return {
            "way": self.way,
            "rtt_emulated_ms": round(1e3 * self.rtt, 3),
            "target_text": self.way != EDGE_ONLY,
            "ttft_p50": percentile(ttfts, 0.5),
            "ttft_p95": percentile(ttfts, 0.95),
            "total_p50": percentile(totals, 0.5),
            "total_p95": percentile(totals, 0.95),
            "tokens": int(tokens),
            "tokens_per_second": round(self.tokens_per_second, 3),
            "decode_p50": percentile([a.decoding for a in answers], 0.5),
            "ms_per_token": round(median(each), 4) if each else None,
            "k": per(sent, drafts),
            "rounds": int(rounds),
            "accept_length": per(accepted, rounds),
            "accept_histogram": {str(n): count for n, count in sorted(self.lengths.items())},
            "la_over_k": per(accepted, sent),
            "alpha_mean": per(_sum(told, lambda s: sum(s.accepted_at)), examined),
            "acceptance": [round(rate, 4) for rate in self.acceptance],
            "edge_ms": per(1e3 * _sum(told, lambda s: s.draft_seconds), drafts),
            "cloud_ms": per(1e3 * _sum(answers, lambda a: a.cloud_seconds), steps),
            "rtt_ms": round(median(rtts), 3) if rtts else None,
            "hard_ratio": round(sum(hard) / len(hard), 4) if hard else None,
            "bytes_up": per(_sum(told, lambda s: s.bytes_up), tokens),
            "bytes_down": per(_sum(told, lambda s: s.bytes_down), tokens),
            "wire_up": per(_sum(answers, lambda a: a.wire_up), tokens),
            "wire_down": per(_sum(answers, lambda a: a.wire_down), tokens),
            "steps_per_token": per(steps, tokens),
            "calls_per_token": per(drafts, tokens),
            "wasted": int(_sum(told, lambda s: s.wasted)),
            "rolled_back": int(_sum(told, lambda s: s.rolled_back)),
            "stale": int(_sum(told, lambda s: s.stale)),
            "resumes": int(_sum(told, lambda s: s.resumes)),
            **{name: round(value, 4) for name, value in self.sides.items()},
        }
