"""Prometheus metrics: under vLLM's names, so that its tools and dashboards work, and our own.

vLLM's are those of its version 0.32 that mean the same here, with its labels and buckets. They are
changed in the event loop only.
"""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)
from prometheus_client.metrics_core import Metric

from foresay.abilities import abilities_of
from foresay.drafter import Drafter
from foresay.engine.engine import Engine
from foresay.engine.request import PHASES
from foresay.serve.steps import Ended, Share, StepReport

__all__ = ["Metrics", "measured", "memory_of"]

_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_MICROS = (10, 30, 100, 300, 1000, 3000, 10000, 30000, 100000, 300000, 1000000, 3000000)
_LENGTHS = (1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 24, 32, 64)
_POSITIONS = 64  # of a draft: deeper ones are not counted
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


def _between(begin: float | None, end: float | None) -> float | None:
    return None if begin is None or end is None else end - begin


def _per_token(answer: Ended, end: float | None) -> float | None:
    spent = _between(answer.first, end)
    return None if spent is None or answer.tokens < 2 else spent / (answer.tokens - 1)


def _up_to(most: int) -> tuple[float, ...]:
    """1, 2, 5, 10, 20, 50 and so on."""
    return tuple(m * 10**e for e in range(len(str(most))) for m in (1, 2, 5) if m * 10**e <= most)


_HISTOGRAMS: dict[str, tuple[str, Sequence[float] | None, Callable[[Ended], float | None]]] = {
    "vllm:time_to_first_token_seconds": ("Until the first token.", _FIRST, lambda a: a.first),
    "vllm:request_time_per_output_token_seconds": (
        *("For each further token.", _EACH),
        lambda a: _per_token(a, a.last),
    ),
    "vllm:e2e_request_latency_seconds": ("Until the end.", _WHOLE, lambda a: a.total),
    "vllm:request_queue_time_seconds": ("Until the first step.", _WHOLE, lambda a: a.began),
    "vllm:request_prefill_time_seconds": (
        *("From the first step to the first token.", _WHOLE),
        lambda a: _between(a.began, a.first),
    ),
    "vllm:request_decode_time_seconds": (
        *("From the first token to the last.", _WHOLE),
        lambda a: _between(a.first, a.last),
    ),
    "vllm:request_inference_time_seconds": (
        *("From the first step to the last token.", _WHOLE),
        lambda a: _between(a.began, a.last),
    ),
    "vllm:request_prompt_tokens": ("Of the prompt.", None, lambda a: a.prompt_tokens),
    "vllm:request_generation_tokens": ("Of the answer.", None, lambda a: a.tokens),
    "vllm:request_max_num_generation_tokens": (
        *("Of the longest answer to a prompt.", None),
        lambda a: a.longest,
    ),
    "vllm:request_params_n": ("Answers asked for.", (1, 2, 5, 10, 20), lambda a: a.n),
    "vllm:request_params_max_tokens": ("Tokens asked for.", None, lambda a: a.max_tokens),
    "foresay_ttft_seconds": ("Until the first token.", _SECONDS, lambda a: a.first),
    "foresay_tpot_seconds": (
        *("For each further token.", _SECONDS),
        lambda a: _per_token(a, a.total),
    ),
    "foresay_e2e_seconds": ("Until the end.", _SECONDS, lambda a: a.total),
}
"""Histograms over answers: help text, buckets (None: by the context), and the value of an answer,
None if it has none.
"""
_OF_STEPS: dict[str, tuple[str, Callable[[Share], int]]] = {
    "vllm:spec_decode_num_drafts": ("Drafts that were verified.", lambda s: s.drafts),
    "vllm:spec_decode_num_draft_tokens": ("Tokens of drafts, verified.", lambda s: s.drafted),
    "vllm:spec_decode_num_accepted_tokens": ("Tokens of drafts, accepted.", lambda s: s.accepted),
    "vllm:generation_tokens": ("Of answers.", lambda s: s.tokens),
}
_OF_ANSWERS: dict[str, tuple[str, Callable[[Ended], int]]] = {
    "vllm:prompt_tokens": ("Of prompts.", lambda a: a.prompt_tokens),
    "vllm:prompt_tokens_cached": ("Of prompts, from the prefix cache.", lambda a: a.shared),
    "vllm:prefix_cache_queries": ("Of prompts, looked for.", lambda a: a.prompt_tokens),
    "vllm:prefix_cache_hits": ("Of prompts, from the prefix cache.", lambda a: a.shared),
}
_GAUGES = {
    "running": "vllm:num_requests_running",
    "waiting": "vllm:num_requests_waiting",
    "kv_used": "vllm:kv_cache_usage_perc",
}
"""vLLM's gauges, by ours."""


class Metrics:
    """All metrics of one server. It lives in the event loop."""

    def __init__(self, model: str, context: int = 1 << 15) -> None:
        self.registry = _Registry()
        self.edge: Counts[str] = Counts()
        """What edge streams did, by name."""
        self._model = model
        self._gauges: dict[str, Gauge] = {}
        self._of_steps = [
            (self._metric(Counter, name, about), of) for name, (about, of) in _OF_STEPS.items()
        ]
        self._of_answers = [
            (self._metric(Counter, name, about), of) for name, (about, of) in _OF_ANSWERS.items()
        ]
        self._histograms = [
            (self._metric(Histogram, name, about, buckets=bounds or _up_to(context)), of)
            for name, (about, bounds, of) in _HISTOGRAMS.items()
        ]
        self._preemptions = self._metric(
            Counter, "vllm:num_preemptions", "Preemptions of requests."
        )
        name = "vllm:spec_decode_num_accepted_tokens_per_pos"
        self._position = self._metric(Counter, name, "By depth.", "position")
        for at in range(8):
            self._position(at)
        # The name says success; vLLM counts aborted and failed requests there, too.
        about = "Answers that ended, error and abort among them, as vLLM counts."
        self._success = self._metric(Counter, "vllm:request_success", about, "finished_reason")
        for reason in (*_REASONS.values(), "repetition"):
            self._success(reason)
        about = "Between two steps that gave tokens."
        name = "vllm:inter_token_latency_seconds"
        self._gaps = self._metric(Histogram, name, about, buckets=_EACH)
        self._steps = self._metric(Counter, "foresay_steps", "Steps of the engine.")
        self._ended = self._metric(Counter, "foresay_answers", "Answers that ended.", "reason")
        self._refused = self._metric(Counter, "foresay_refused", "Requests refused.", "status")
        self._edge = self._metric(Counter, "foresay_edge", "What edge streams did.", "what")
        about = "Tokens per step and answer, the target's own included."
        self._accept = self._metric(Histogram, "foresay_accept_length", about, buckets=_LENGTHS)
        self._phases = {
            phase: self._metric(
                Histogram,
                f"foresay_{phase}_us",
                f"Microseconds of a step in {phase}.",
                buckets=_MICROS,
            )
            for phase in PHASES
        }
        ProcessCollector(registry=self.registry)

    def _metric(self, kind: Any, name: str, about: str, *more: str, **options: Any) -> Any:
        """A metric of the model; with `more` labels, a function that gives it for their values."""
        labels = {"model_name": self._model}
        if name.startswith("vllm:"):
            labels["engine"] = "0"  # vLLM's label; here there is one engine
        metric = kind(name, about, (*labels, *more), registry=self.registry, **options)
        return partial(metric.labels, *labels.values()) if more else metric.labels(**labels)

    def note(self, step: StepReport | None, ended: Sequence[Ended]) -> None:
        """Count a step, and answers that have ended."""
        if step is not None:
            self._note_step(step)
        for answer in ended:
            self._ended(answer.reason).inc()
            self._success(_REASONS[answer.reason]).inc()
            self._preemptions.inc(answer.preemptions)
            for counter, of in self._of_answers:
                counter.inc(of(answer))
            for histogram, value_of in self._histograms:
                if (value := value_of(answer)) is not None:
                    histogram.observe(value)

    def _note_step(self, step: StepReport) -> None:
        self._steps.inc()
        self._preemptions.inc(step.preemptions)
        for share in step.shares.values():
            for counter, of in self._of_steps:
                counter.inc(of(share))
            for accepted, times in share.lengths.items():
                for _ in range(times):
                    self._accept.observe(accepted + 1)  # the target's own token, too, as in vLLM
                for position in range(min(accepted, _POSITIONS)):
                    self._position(position).inc(times)
        for phase, seconds in step.seconds.items():
            self._phases[phase].observe(seconds * 1e6)
        for gap in step.gaps:
            self._gaps.observe(gap)

    def refuse(self, status: int) -> None:
        """Count a refused request."""
        self._refused(status).inc()

    def text(self, gauges: Mapping[str, float]) -> bytes:
        """All metrics in Prometheus' text format, with the gauges as `foresay_{name}`.

        Valid until: the next step.
        """
        for ours, value in gauges.items():
            for name in (f"foresay_{ours}", _GAUGES.get(ours)):
                if name is not None and name not in self._gauges:
                    self._gauges[name] = self._metric(Gauge, name, "Now.")
                if name is not None:
                    self._gauges[name].set(value)
        for what, count in self.edge.items():
            self._edge(what).reset()
            self._edge(what).inc(count)
        return generate_latest(self.registry)


class _Registry(CollectorRegistry):
    """Without the times at which the metrics were made, which vLLM leaves out, too."""

    def collect(self) -> Iterable[Metric]:
        for family in super().collect():
            family.samples = [s for s in family.samples if not s.name.endswith("_created")]
            yield family


def memory_of(drafter: Drafter[Any] | None) -> Callable[[], int] | None:
    """What tells the bytes that a drafter holds; None if it cannot tell."""
    if drafter is None:
        return int
    memory = abilities_of(drafter).memory
    return None if memory is None else memory.bytes_used


def measured(engine: Engine, memory: Callable[[], int] | None) -> dict[str, float]:
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
    if memory is not None:
        found["suffix_cache_bytes"] = memory()
    return found
