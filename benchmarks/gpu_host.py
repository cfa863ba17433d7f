"""Part `host` of gpu.py: where the time of a step goes, on the host and on the device.

The same greedy requests are answered again and again, each time by a fresh engine, so that a window
has the same steps each time: first to capture the sizes of steps that occur, then timed, then timed
under torch's profiler. The device is busy while a kernel or a copy runs, and outside of its work is
the rest of the window. That holds also where a step waits for what an earlier one has launched: a
window begins and ends with an idle device. All windows without the profiler come first, since it
may leave something behind.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Iterable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from foresay.engine.engine import Engine
from foresay.engine.request import PHASES, Request
from gpu_answers import SIDES
from gpu_bench import Bench, OutOfTime, greedy, said
from harness import percentiles

Span = tuple[int, int]
"""From and to, in nanoseconds since 1970."""


@dataclass(frozen=True)
class Window:
    """Steps one behind the other. `marks` are before the first step and behind each, `end` is when
    the device was done; in nanoseconds since 1970, which are the profiler's too."""

    marks: list[int]
    end: int
    tokens: int
    phases: dict[str, float]  # milliseconds of a step

    @property
    def steps(self) -> int:
        return len(self.marks) - 1

    def figures(self, requests: int) -> dict[str, Any]:
        each = [1e-6 * (b - a) for a, b in itertools.pairwise(self.marks)]
        return {
            "steps": self.steps,
            "step_ms": round(1e-6 * (self.end - self.marks[0]) / self.steps, 4),
            "median_ms": round(statistics.median(each), 4),
            "tail_ms": {**percentiles(each, 90), "most": round(max(each), 4)},
            "tokens_per_step": round(self.tokens / requests / self.steps, 4),
            "phases_ms": {phase: round(spent, 4) for phase, spent in self.phases.items()},
        }


def host(bench: Bench, found: dict[str, Any]) -> None:
    """Both sides, at each number of requests: `timed`, and `profiled` with what the device did.

    outside_ms  of a step of the profiled window: in which the device did nothing
    outside_ms_profiler_off  the time of a step that was only timed, less the same device's work
    """
    cases = itertools.product(bench.scale.host_batches, SIDES)
    lines = found["cases"] = [{"requests": size, "side": side} for size, side in cases]
    for measure in (_timed, _profiled):
        for line in lines:
            about = f"{line['requests']} requests, {line['side']}, {measure.__name__[1:]}"
            bench.check_time(about)
            try:
                measure(bench, line)
            except OutOfTime:
                raise
            except Exception as error:
                line["error"] = said(error)
            bench.say(f"{about}: {line}")


def _timed(bench: Bench, line: dict[str, Any]) -> None:
    # The first ones capture; twice, since how much is drafted depends a little on times.
    for _ in range(1 if bench.smoke else 2):
        _window(bench, line["requests"], line["side"], profiled=False)
    window, _ = _window(bench, line["requests"], line["side"], profiled=False)
    line["timed"] = window.figures(line["requests"])


def _profiled(bench: Bench, line: dict[str, Any]) -> None:
    window, events = _window(bench, line["requests"], line["side"], profiled=True)
    device = [event for event in events if event.device_type() == _device_type(bench)]
    spans = [(event.start_ns(), event.end_ns()) for event in device]
    if not spans:
        raise RuntimeError("the profiler saw nothing on the device")
    copied = [event.name().startswith(("Memcpy", "Memset")) for event in device]
    copies = [span for span, copy in zip(spans, copied, strict=True) if copy]
    kernels = [span for span, copy in zip(spans, copied, strict=True) if not copy]
    steps, whole = window.steps, window.end - window.marks[0]
    busy = union(spans)
    called = [event.name() for event in events]
    line["profiled"] = profiled = {
        **window.figures(line["requests"]),
        "busy_ms": round(1e-6 * busy / steps, 4),
        "kernels_ms": round(1e-6 * union(kernels) / steps, 4),
        "copies_ms": round(1e-6 * union(copies) / steps, 4),
        "launches": round(len(kernels) / steps, 1),
        # Of graphs: where none is launched, what the host called was not seen.
        "graphs_launched": round(sum("GraphLaunch" in name for name in called) / steps, 2),
        "graphs_made": sum("GraphInstantiate" in name for name in called),
    }
    line["outside_ms"] = round(1e-6 * (whole - busy) / steps, 4)
    line["outside_share"] = round((whole - busy) / whole, 4)
    if "timed" in line:
        line["outside_ms_profiler_off"] = round(line["timed"]["step_ms"] - 1e-6 * busy / steps, 4)
        line["profiler_ratio"] = round(profiled["step_ms"] / line["timed"]["step_ms"], 4)
    done = busy_until(spans, [*window.marks, window.end])
    if done[-1] - done[0] < 0.98 * busy:  # then a step does not know what ran in it
        line["clock"] = "the profiler's clock is another one; there are no figures by step"
        return
    lengths = np.diff(window.marks)
    outside = lengths - np.diff(done[:-1])
    line["median_outside_ms"] = round(1e-6 * float(np.median(outside)), 4)
    line["median_outside_share"] = round(float(np.median(outside / lengths)), 4)
    middle = int(np.argsort(outside)[steps // 2])
    line["time_line"] = time_line(
        window.phases, (window.marks[middle], window.marks[middle + 1]), kernels, copies
    )


def _window(bench: Bench, size: int, side: str, *, profiled: bool) -> tuple[Window, list[Any]]:
    """A window of steps in which all requests decode, and what the profiler saw in it."""
    gc.collect()  # an engine before this one must be gone: both use the memory of one target
    llm = bench.llm().beside(SIDES[side])
    prompts, longest = bench.prompts["edit"], min(6000, llm.target.context)
    requests = []
    for at in range(size):
        tokens = prompts[at % len(prompts)].tokens
        params = greedy(max(1, longest - len(tokens)), ignore_eos=True)
        requests.append(llm.engine.add(tokens, params))
    try:
        while not all(request.stats.tokens > 2 for request in requests):
            llm.engine.step()
            if any(request.finished for request in requests):
                raise RuntimeError("an answer ended before the timed steps")
        kinds = [getattr(torch.profiler.ProfilerActivity, "CPU" if bench.smoke else "CUDA")]
        trace: Any = nullcontext()
        if profiled:
            trace = torch.profiler.profile(activities=kinds, acc_events=True)
        bench.wait()  # what was launched before is not of the window
        with trace:
            window = _steps(bench, llm.engine, requests, bench.scale.host_steps)
    finally:
        llm.engine.cancel(*requests)
    return window, trace.profiler.kineto_results.events() if profiled else []


def _steps(bench: Bench, engine: Engine, requests: Sequence[Request], count: int) -> Window:
    """The phases are the host's: in `verify` it waits for the device."""
    before, tokens = _spent(requests)
    bench.wait()
    marks = [time.time_ns()]
    for _ in range(count):
        engine.step()
        marks.append(time.time_ns())
    bench.wait()
    end = time.time_ns()
    spent, all_tokens = _spent(requests)
    if any(one.finished for one in requests):
        raise RuntimeError(f"an answer ended within {count} timed steps")
    phases = {phase: 1e3 * (spent[phase] - before[phase]) / count for phase in PHASES}
    return Window(marks, end, all_tokens - tokens, phases)


def _spent(requests: Sequence[Request]) -> tuple[dict[str, float], int]:
    """Seconds by phase and tokens, of all requests."""
    stats = [one.stats for one in requests]
    seconds = {phase: sum(one.seconds[phase] for one in stats) for phase in PHASES}
    return seconds, sum(one.tokens for one in stats)


def _device_type(bench: Bench) -> Any:
    """Without a GPU the processor's operations stand for the device's work."""
    kinds: Any = torch.autograd.DeviceType  # type: ignore[attr-defined]
    return kinds.CPU if bench.smoke else kinds.CUDA


def busy_until(spans: Iterable[Span], times: Sequence[int]) -> NDArray[np.float64]:
    """Before each of these times, for how many nanoseconds at least one of the spans lasted."""
    edges: list[int] = []
    sums = [0]
    for begin, end in sorted(spans):
        begin = max(begin, edges[-1]) if edges else begin
        if end > begin:
            edges += [begin, end]
            sums += [sums[-1], sums[-1] + end - begin]
    if not edges:
        return np.zeros(len(times))
    first = edges[0]  # numbers of this size would be rounded as floats
    at = [time - first for time in times]
    found: NDArray[np.float64] = np.interp(at, [edge - first for edge in edges], sums[1:])
    return found


def union(spans: Sequence[Span]) -> int:
    """For how many nanoseconds at least one of them lasted."""
    return int(busy_until(spans, [max((end for _, end in spans), default=0)])[0])


def time_line(
    phases: dict[str, float], step: Span, kernels: Sequence[Span], copies: Sequence[Span]
) -> str:
    """A step in 40 columns: the phases of the host as they are on average, and below, what the
    device did in this step: # is a kernel for half of the time, > a copy."""
    whole = sum(phases.values()) or 1.0
    above = "".join(name[0] * round(40 * spent / whole) for name, spent in phases.items())
    edges = [step[0] + (step[1] - step[0]) * at // 40 for at in range(41)]
    half = (step[1] - step[0]) / 80
    ran, copied = (np.diff(busy_until(spans, edges)) for spans in (kernels, copies))
    below = "".join(
        "#" if kernel >= half else ">" if copy else "."
        for kernel, copy in zip(ran, copied, strict=True)
    )
    parts = ", ".join(f"{name} {spent:.3f}" for name, spent in phases.items())
    return f"host [{above}] {parts} ms; device [{below}]"
