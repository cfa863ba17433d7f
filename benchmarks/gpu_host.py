"""Part `host` of gpu.py: where the time of a step goes, on the host and on the device.

A window of steps in which all requests decode is timed, then one of the same engine is traced. Busy
is when a kernel or a copy ran, as torch's profiler has it, so what the host does outside of the
device's work is the time of a step less that. Without the profiler it is the span between events
before and behind the computation, which has the gaps between kernels in it.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from foresay import LLM
from foresay.engine.engine import Engine
from foresay.engine.request import PHASES, Request
from gpu_answers import engines
from gpu_bench import Bench, OutOfTime, greedy, said


def host(bench: Bench, found: dict[str, Any]) -> None:
    """Both sides, at each number of requests."""
    lines = found.setdefault("cases", [])
    for size in bench.scale.host_batches:
        for side, llm in engines(bench).items():
            bench.check_time(f"{size} requests, {side}")
            about = {"requests": size, "side": side}
            try:
                lines.append(about | _window(bench, llm, size))
            except OutOfTime:
                raise
            except Exception as error:
                lines.append(about | {"error": said(error)})
            bench.say(f"{lines[-1]}")


def _window(bench: Bench, llm: LLM, size: int) -> dict[str, Any]:
    engine, count = llm.engine, bench.scale.host_steps
    prompts, longest = bench.prompts["edit"], min(6000, llm.target.context)
    requests = []
    for at in range(size):
        tokens = prompts[at % len(prompts)].tokens
        params = greedy(max(1, longest - len(tokens)), ignore_eos=True)
        requests.append(engine.add(tokens, params))
    try:
        _until_all_decode(engine, requests)
        _steps(bench, engine, requests, count // 2)  # warms up
        timed = _steps(bench, engine, requests, count)
        events = _with_events(bench, engine, requests, count // 2)
        traced = _traced(bench, engine, requests, max(2, count // 4))
    finally:
        engine.cancel(*requests)
    busy = traced.get("busy_ms", events.get("events_ms"))
    found = {**timed, **events, **traced}
    if busy is not None:
        outside = timed["step_ms"] - busy
        found["outside_ms"] = round(outside, 4)
        found["outside_share"] = round(outside / timed["step_ms"], 4)
    return found | {"time_line": line_of(timed["phases_ms"], traced)}


def _until_all_decode(engine: Engine, requests: Sequence[Request]) -> None:
    while engine.busy and not all(request.stats.tokens for request in requests):
        engine.step()


def _steps(bench: Bench, engine: Engine, requests: Sequence[Request], count: int) -> dict[str, Any]:
    """Milliseconds of a step by its phases, which are of the host: in `forward` it launches, in
    `verify` it waits for the device."""
    before = {phase: sum(one.stats.seconds[phase] for one in requests) for phase in PHASES}
    tokens, each = sum(one.stats.tokens for one in requests), []
    bench.wait()
    begin = time.perf_counter()
    for _ in range(count):
        at = time.perf_counter()
        engine.step()
        each.append(time.perf_counter() - at)
        if any(one.finished for one in requests):
            raise RuntimeError(f"an answer ended after {len(each)} of {count} timed steps")
    bench.wait()
    took = time.perf_counter() - begin
    spent = {phase: sum(one.stats.seconds[phase] for one in requests) for phase in PHASES}
    tokens = sum(one.stats.tokens for one in requests) - tokens
    phases = {phase: round(1e3 * (spent[phase] - before[phase]) / count, 4) for phase in PHASES}
    return {
        "steps": count,
        "step_ms": round(1e3 * took / count, 4),
        "median_ms": round(1e3 * statistics.median(each), 4),
        "tokens_per_step": round(tokens / len(requests) / count, 4),
        "phases_ms": phases,
    }


def _with_events(
    bench: Bench, engine: Engine, requests: Sequence[Request], count: int
) -> dict[str, Any]:
    """The span on the device from before the computation of a step to behind it."""
    inner = getattr(engine, "_compute", None)
    if bench.smoke or inner is None:
        return {}
    pairs: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def compute(*given: Any) -> Any:
        pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        pair[0].record()
        outcome = inner(*given)
        pair[1].record()
        pairs.append(pair)
        return outcome

    try:
        engine._compute = compute
        _steps(bench, engine, requests, count)
    finally:
        engine._compute = inner
    torch.cuda.synchronize()
    spans = [one.elapsed_time(other) for one, other in pairs]
    return {"events_ms": round(statistics.median(spans), 4)} if spans else {}


def _traced(
    bench: Bench, engine: Engine, requests: Sequence[Request], count: int
) -> dict[str, Any]:
    """Milliseconds of a step in which the device worked: kernels, and copies to and from it."""
    if bench.smoke:
        return {}
    try:
        kinds = [torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds, acc_events=True) as trace:
            _steps(bench, engine, requests, count)
        spans = []
        for event in trace.profiler.kineto_results.events():
            if event.device_type() == torch.autograd.DeviceType.CUDA:  # type: ignore[attr-defined]
                spans.append((event.start_ns(), event.end_ns(), event.name()))
        if not spans:
            return {"trace_error": "the profiler saw no kernels"}
        copies = [(a, b) for a, b, name in spans if name.startswith(("Memcpy", "Memset"))]
        kernels = [(a, b) for a, b, name in spans if not name.startswith(("Memcpy", "Memset"))]
        return {
            "busy_ms": round(1e-6 * union([(a, b) for a, b, _ in spans]) / count, 4),
            "kernels_ms": round(1e-6 * union(kernels) / count, 4),
            "copies_ms": round(1e-6 * union(copies) / count, 4),
            "launches": round(len(kernels) / count, 1),
            "traced_steps": count,
        }
    except Exception as error:  # of a profiler that does not work on this machine
        return {"trace_error": said(error)}


def union(spans: Iterable[tuple[int, int]]) -> int:
    """How long at least one of them lasted."""
    total, end = 0, 0
    for a, b in sorted(spans):
        total += max(0, b - max(a, end))
        end = max(end, b)
    return total


def line_of(phases: dict[str, float], traced: dict[str, Any]) -> str:
    """A step as one line, a sign for each fortieth of it: the host's phases above what the device
    did in as much time."""
    whole = sum(phases.values()) or 1.0
    host_line = "".join(
        name[0] * round(40 * phases[name] / whole)
        for name in ("schedule", "draft", "forward", "verify", "commit")
    )
    parts = ", ".join(f"{name} {phases[name]:.3f}" for name in phases)
    busy = traced.get("busy_ms")
    if busy is None:
        return f"host [{host_line}] {parts} ms"
    copies = min(40, round(40 * traced["copies_ms"] / whole))
    kernels = min(40 - copies, round(40 * traced["kernels_ms"] / whole))
    device_line = ("#" * kernels + ">" * copies).ljust(40, ".")
    return (
        f"host [{host_line}] {parts} ms; device [{device_line}] kernels {traced['kernels_ms']:.3f},"
        f" copies {traced['copies_ms']:.3f} ms"
    )
