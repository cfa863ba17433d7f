"""Prometheus metrics: under vLLM's names, so that its tools and dashboards work, and our own.

vLLM's are those of its version 0.32 that mean the same here, with its labels and buckets. All are
plain numbers, changed in the event loop and read at a scrape.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from prometheus_client import ProcessCollector, generate_latest
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
from foresay.serve.steps import Ended, Share, StepReport

__all__ = ["Metrics", "measured"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_MICROS = (10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000, 300000, 1000000, 3000000)
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
_POSITIONS = 64  # of a draft: deeper ones count for the last
_ENGINE = "0"  # vLLM's label; here there is one engine
_FIRST = (
    *(0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0, 160.0, 640.0, 2560.0),
)
_EACH = (
    *(0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0),
    *(20.0, 40.0, 80.0),
)
_WHOLE = (
    *(0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0),
    *(240.0, 480.0, 960.0, 1920.0, 7680.0),
)
_REASONS = {"stop": "stop", "length": "length", "cancelled": "abort", "error": "error"}
"""vLLM's finish reasons, by ours."""
_VLLM_REASONS = (*_REASONS.values(), "repetition")


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
            found.append(("+Inf" if bound == float("inf") else str(float(bound)), float(total)))
        return found


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


def _per_token(answer: Ended) -> float | None:
    spent = _between(answer.first, answer.last)
    return None if spent is None or answer.tokens < 2 else spent / (answer.tokens - 1)


def _up_to(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 and so on."""
    return tuple(m * 10**e for e in range(len(str(most))) for m in (1, 2, 5) if m * 10**e <= most)


_OF_ANSWERS: dict[str, tuple[str, Sequence[float] | None, Callable[[Ended], float | None]]] = {
    "time_to_first_token_seconds": ("Until the first token.", _FIRST, lambda a: a.first),
    "request_time_per_output_token_seconds": ("For each further token.", _EACH, _per_token),
    "e2e_request_latency_seconds": ("Until the end.", _WHOLE, lambda a: a.total),
    "request_queue_time_seconds": ("Until the first step.", _WHOLE, lambda a: a.began),
    "request_prefill_time_seconds": (
        "From the first step to the first token.",
        _WHOLE,
        lambda a: _between(a.began, a.first),
    ),
    "request_decode_time_seconds": (
        "From the first token to the last.",
        _WHOLE,
        lambda a: _between(a.first, a.last),
    ),
    "request_inference_time_seconds": (
        "From the first step to the last token.",
        _WHOLE,
        lambda a: _between(a.began, a.last),
    ),
    "request_prompt_tokens": ("Of the prompt.", None, lambda a: a.prompt_tokens),
    "request_generation_tokens": ("Of the answer.", None, lambda a: a.tokens),
    "request_max_num_generation_tokens": (
        "Of the longest answer to a prompt.",
        None,
        lambda a: a.longest,
    ),
    "request_params_n": ("Answers asked for.", (1, 2, 5, 10, 20), lambda a: a.n),
    "request_params_max_tokens": ("Tokens asked for.", None, lambda a: a.max_tokens),
}
"""vLLM's histograms over answers: help text, buckets (None: by the context), and the value of an
answer, None if it has none.
"""


class Metrics:
    """All metrics of one server. It lives in the event loop."""

    def __init__(self, model: str, context: int = 1 << 15) -> None:
        self._model = model
        self.total = Share()
        self._positions = [0] * _POSITIONS
        self._ended: Counter[str] = Counter()
        self._refused: Counter[str] = Counter()
        self.edge: Counter[str] = Counter()
        """What edge streams did, by name."""
        self._prompt_tokens = self._shared = self._preemptions = 0
        self._gaps = _Histogram(_EACH)
        self._of_answers = {
            name: _Histogram(_up_to(context) if bounds is None else bounds)
            for name, (_, bounds, _) in _OF_ANSWERS.items()
        }
        self._process = ProcessCollector(registry=None)
        self._accept = _Histogram(_LENGTHS)
        self._phases = {phase: _Histogram(_MICROS) for phase in PHASES}
        self._first, self._each = _Histogram(_SECONDS), _Histogram(_SECONDS)
        self._whole = _Histogram(_SECONDS)

    def note(self, step: StepReport | None, ended: Sequence[Ended]) -> None:
        """Count a step, and answers that have ended."""
        for share in () if step is None else step.shares.values():
            self.total.merge(share)
            for accepted, times in share.lengths.items():
                # With the target's own token, as vLLM counts it.
                self._accept.note(accepted + 1, times)
                for position in range(min(accepted, _POSITIONS)):
                    self._positions[position] += times
        for phase, seconds in ({} if step is None else step.seconds).items():
            self._phases[phase].note(seconds * 1e6)
        for gap in () if step is None else step.gaps:
            self._gaps.note(gap)
        self._preemptions += 0 if step is None else step.preemptions
        for answer in ended:
            self._ended[answer.reason] += 1
            self._prompt_tokens += answer.prompt_tokens
            self._shared += answer.shared
            self._preemptions += answer.preemptions
            for name, (_, _, of) in _OF_ANSWERS.items():
                value = of(answer)
                if value is not None:
                    self._of_answers[name].note(value)
            self._whole.note(answer.total)
            if answer.first is not None:
                self._first.note(answer.first)
                if answer.tokens > 1:
                    self._each.note((answer.total - answer.first) / (answer.tokens - 1))

    def refuse(self, status: int) -> None:
        """Count a refused request."""
        self._refused[str(status)] += 1

    def text(self, gauges: Mapping[str, float]) -> bytes:
        """All metrics in Prometheus' text format, with the gauges as `foresay_{name}`.

        Valid until: the next step.
        """
        return generate_latest(_Scrape(self, gauges))

    def per_position(self) -> list[int]:
        """How many drafted tokens were accepted at each depth.

        Valid until: the next step.
        """
        return list(self._positions)

    def collect(self, gauges: Mapping[str, float]) -> Iterator[Metric]:
        """The metrics one by one, with the gauges.

        Valid until: the next step.
        """
        yield from self._as_vllm(gauges)
        yield self._counter("foresay_steps", "Steps of the engine.", {(): float(self._steps())})
        yield self._labelled("foresay_answers", "Answers that ended.", self._ended, "reason")
        yield self._labelled("foresay_refused", "Requests refused.", self._refused, "status")
        yield self._labelled("foresay_edge", "What edge streams did.", self.edge, "what")
        yield self._histogram(
            "foresay_accept_length",
            "Tokens per step and answer, the target's own included.",
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
        yield from self._process.collect()

    def _as_vllm(self, gauges: Mapping[str, float]) -> Iterator[Metric]:
        """The metrics under vLLM's names."""
        total = self.total
        for name, about, value in (
            ("spec_decode_num_drafts", "Drafts that were verified.", total.drafts),
            ("spec_decode_num_draft_tokens", "Tokens of drafts, verified.", total.drafted),
            ("spec_decode_num_accepted_tokens", "Tokens of drafts, accepted.", total.accepted),
            ("generation_tokens", "Of answers.", total.tokens),
            ("prompt_tokens", "Of prompts.", self._prompt_tokens),
            ("prompt_tokens_cached", "Of prompts, from the prefix cache.", self._shared),
            ("prefix_cache_queries", "Of prompts, looked for.", self._prompt_tokens),
            ("prefix_cache_hits", "Of prompts, from the prefix cache.", self._shared),
            ("num_preemptions", "Preemptions of requests.", self._preemptions),
        ):
            yield self._vllm(CounterMetricFamily, name, about, {(): value})
        depths = {(str(at),): n for at, n in enumerate(self._positions) if n or at < 8}
        name = "spec_decode_num_accepted_tokens_per_pos"
        yield self._vllm(CounterMetricFamily, name, "By depth.", depths, "position")
        ends = dict.fromkeys(_VLLM_REASONS, 0)
        for reason, count in self._ended.items():
            ends[_REASONS[reason]] += count
        by_reason = {(reason,): count for reason, count in ends.items()}
        # The name says success; vLLM counts aborted and failed requests there, too.
        about = "Answers that ended, error and abort among them, as vLLM counts."
        yield self._vllm(
            CounterMetricFamily, "request_success", about, by_reason, "finished_reason"
        )
        for name, ours in (
            ("num_requests_running", "running"),
            ("num_requests_waiting", "waiting"),
            ("kv_cache_usage_perc", "kv_used"),
        ):
            if ours in gauges:
                yield self._vllm(GaugeMetricFamily, name, "Now.", {(): gauges[ours]})
        about = "Between two steps that gave tokens."
        yield self._histogram("vllm:inter_token_latency_seconds", about, self._gaps)
        for name, found in self._of_answers.items():
            yield self._histogram(f"vllm:{name}", _OF_ANSWERS[name][0], found)

    def _vllm(
        self, kind: Any, name: str, about: str, values: Mapping[Any, float], *labels: str
    ) -> Metric:
        family: Metric = kind(f"vllm:{name}", about, labels=("model_name", "engine", *labels))
        for key, value in values.items():
            family.add_metric((self._model, _ENGINE, *key), float(value))  # type: ignore[attr-defined]
        return family

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
        labels = {"model_name": self._model}
        if name.startswith("vllm:"):
            labels["engine"] = _ENGINE
        family = HistogramMetricFamily(name, about, labels=tuple(labels))
        values = tuple(labels.values())
        family.add_metric(values, buckets=found.buckets(), sum_value=found.sum)
        return family


def measured(engine: Engine, drafter: Drafter[Any] | None) -> dict[str, float]:
    """The gauges of an engine; call it between two steps only. The drafter's memory is left out if
    unknown.

    Valid until: the next step.
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
    """The metrics of one moment, in the form that prometheus_client takes."""

    def __init__(self, metrics: Metrics, gauges: Mapping[str, float]) -> None:
        self._metrics = metrics
        self._gauges = gauges

    def collect(self) -> Iterator[Metric]:
        return self._metrics.collect(self._gauges)
