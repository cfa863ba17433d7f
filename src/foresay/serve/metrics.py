"""Numbers for Prometheus: vLLM's names, so that its tools and dashboards work, and ours.

The numbers are plain ones, changed in the event loop and read when somebody asks.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from foresay.drafter import Drafter
from foresay.engine.engine import Engine
from foresay.engine.request import PHASES
from foresay.serve.steps import Ended, Share, Step

__all__ = ["Metrics", "measured"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_MICROS = (10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000, 300000, 1000000, 3000000)
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
_POSITIONS = 64  # of a draft: deeper ones count for the last


class _Histogram:
    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def note(self, value: float, times: int = 1) -> None:
        self.counts[bisect_left(self.bounds, value)] += times
        self.sum += value * times

    def buckets(self) -> list[tuple[str, float]]:
        found, total = [], 0
        for bound, count in zip((*self.bounds, float("inf")), self.counts, strict=True):
            total += count
            found.append(("+Inf" if bound == float("inf") else f"{bound:g}", float(total)))
        return found


class Metrics:
    """All numbers of one server. It lives in the event loop.

    Mutates: through `note` and `refuse`. Valid until: for ever. Raises: nothing. GIL: held.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self.total = Share()
        self._positions = [0] * _POSITIONS
        self._ended: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self._prompt_tokens = 0
        self._accept = _Histogram(_LENGTHS)
        self._phases = {phase: _Histogram(_MICROS) for phase in PHASES}
        self._first, self._each = _Histogram(_SECONDS), _Histogram(_SECONDS)
        self._whole = _Histogram(_SECONDS)

    def note(self, step: Step | None, ended: Sequence[Ended]) -> None:
        """Count a step, and answers that have ended.

        Mutates: the numbers. Valid until: for ever. Raises: nothing. GIL: held.
        """
        for share in () if step is None else step.shares.values():
            self.total.merge(share)
            for accepted, times in share.lengths.items():
                # With the model's own token, as vLLM counts it.
                self._accept.note(accepted + 1, times)
                for position in range(min(accepted, _POSITIONS)):
                    self._positions[position] += times
        for phase, seconds in ({} if step is None else step.seconds).items():
            self._phases[phase].note(seconds * 1e6)
        for answer in ended:
            self._ended[answer.reason] += 1
            self._prompt_tokens += answer.prompt_tokens
            self._whole.note(answer.total)
            if answer.first is not None:
                self._first.note(answer.first)
                if answer.tokens > 1:
                    self._each.note((answer.total - answer.first) / (answer.tokens - 1))

    def refuse(self, status: int) -> None:
        """Count a request that was not answered.

        Mutates: the numbers. Valid until: for ever. Raises: nothing. GIL: held.
        """
        self._refused[str(status)] += 1

    def text(self, gauges: Mapping[str, float]) -> bytes:
        """All numbers in Prometheus' text format, with what is so now: `foresay_{name}`.

        Mutates: nothing. Valid until: the next step. Raises: nothing. GIL: held.
        """
        return generate_latest(_Scrape(self, gauges))

    def per_position(self) -> list[int]:
        """How many guesses were accepted at each depth.

        Mutates: nothing. Valid until: the next step. Raises: nothing. GIL: held.
        """
        return list(self._positions)

    def collect(self, gauges: Mapping[str, float]) -> Iterator[Metric]:
        """The numbers one by one, with what is so now.

        Mutates: nothing. Valid until: the next step. Raises: nothing. GIL: held.
        """
        total = self.total
        for name, about, value in (
            ("num_drafts", "Drafts that were verified.", total.drafts),
            ("num_draft_tokens", "Tokens of drafts that were verified.", total.drafted),
            ("num_accepted_tokens", "Tokens of drafts that were accepted.", total.accepted),
        ):
            yield self._counter(f"vllm:spec_decode_{name}", about, {(): float(value)})
        depths: dict[tuple[str, ...], float] = {
            (str(at),): float(n) for at, n in enumerate(self._positions) if n or at < 8
        }
        yield self._counter(
            "vllm:spec_decode_num_accepted_tokens_per_pos", "By depth.", depths, ("position",)
        )
        yield self._counter("vllm:generation_tokens", "Of answers.", {(): float(total.tokens)})
        yield self._counter("vllm:prompt_tokens", "Of prompts.", {(): float(self._prompt_tokens)})
        yield self._counter("foresay_steps", "Passes of the model.", {(): float(self._steps())})
        yield self._labelled("foresay_answers", "Answers that ended.", self._ended, "reason")
        yield self._labelled("foresay_refused", "Requests refused.", self._refused, "status")
        yield self._histogram(
            "foresay_accept_length",
            "Tokens of a step and answer, the model's included.",
            self._accept,
        )
        for phase, times in self._phases.items():
            about = f"Microseconds of a step in {phase}."
            yield self._histogram(f"foresay_{phase}_us", about, times)
        yield self._histogram("foresay_ttft_seconds", "Until the first token.", self._first)
        yield self._histogram("foresay_tpot_seconds", "For each further token.", self._each)
        yield self._histogram("foresay_e2e_seconds", "Until the end.", self._whole)
        for name, now in gauges.items():
            gauge = GaugeMetricFamily(f"foresay_{name}", "Now.", labels=("model_name",))
            gauge.add_metric((self._model,), now)
            yield gauge

    def _steps(self) -> int:
        return sum(self._phases["forward"].counts)

    def _labelled(self, name: str, about: str, counts: Counter[str], label: str) -> Metric:
        values: dict[tuple[str, ...], float] = {
            (key,): float(n) for key, n in sorted(counts.items())
        }
        return self._counter(name, about, values, (label,))

    def _counter(
        self,
        name: str,
        about: str,
        values: Mapping[tuple[str, ...], float],
        labels: tuple[str, ...] = (),
    ) -> Metric:
        family = CounterMetricFamily(name, about, labels=("model_name", *labels))
        for key, value in values.items():
            family.add_metric((self._model, *key), value)
        return family

    def _histogram(self, name: str, about: str, found: _Histogram) -> Metric:
        family = HistogramMetricFamily(name, about, labels=("model_name",))
        family.add_metric((self._model,), buckets=found.buckets(), sum_value=found.sum)
        return family


def measured(engine: Engine, drafter: Drafter[Any] | None) -> dict[str, float]:
    """What is so in an engine now, without what its drafter cannot tell. Between two steps only.

    Mutates: nothing. Valid until: the next step. Raises: nothing. GIL: held.
    """
    pages = engine.scheduler.pages
    found: dict[str, float] = {
        "running": len(engine.scheduler.running),
        "waiting": len(engine.scheduler.waiting),
        "kv_used": 1 - pages.free / pages.total,
    }
    used = int if drafter is None else getattr(drafter, "bytes_used", None)
    if used is not None:
        found["suffix_cache_bytes"] = used()
    return found


class _Scrape(Collector):
    """The numbers of one moment, in the shape that Prometheus' library writes."""

    def __init__(self, metrics: Metrics, gauges: Mapping[str, float]) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        return self._metrics.collect(self._gauges)
