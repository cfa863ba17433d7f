"""`foresay simulate`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from foresay.cli.model import Device, Dtype, DtypeName, device_for, load, require_engine
from foresay.cli.root import AsJson, app
from foresay.cli.show import check_out, print_table, progress
from foresay.cli.waiting import waiting
from foresay.errors import InputError
from foresay.rl.steplog import FEW

if TYPE_CHECKING:
    from foresay.bench.compare import Input, Interval, PlanResult
    from foresay.bench.plans import Setup
    from foresay.traces import Trace


@app.command()
def simulate(
    file: Annotated[
        Path | None, typer.Argument(help="Trace file: JSON lines, optionally gzipped.")
    ] = None,
    costs: Annotated[
        str, typer.Option(help="Step costs: h200-8b, h200-32b, or a file.")
    ] = "h200-8b",
    plan: Annotated[
        list[str] | None,
        typer.Option(
            help="POLICY[:SHARE[:ORDER]]; none, threshold, fixed, dynamic-k, adaptive or oracle; "
            "share none, group or all; order file or stagger. Can be repeated; without it, nine."
        ),
    ] = None,
    k: Annotated[
        int | None, typer.Option(help="Nodes of threshold (3 if not given) and fixed (8).")
    ] = None,
    batch: Annotated[int, typer.Option(help="Most requests with which threshold drafts.")] = 8,
    few: Annotated[
        int, typer.Option(help="The tail is when at most this number of requests are left.")
    ] = FEW,
    replicas: Annotated[int, typer.Option(help="Engines, each with whole groups.")] = 1,
    spread: Annotated[
        Literal["round", "length"],
        typer.Option(help="Groups to replicas: one after the other, or by (known) length."),
    ] = "round",
    running: Annotated[int, typer.Option(help="Requests in one step of an engine.")] = 128,
    kv_tokens: Annotated[
        int | None, typer.Option(help="Tokens that a replica's KV cache holds; else enough.")
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Limit of answers; else the longest recorded one.")
    ] = None,
    draft_us: Annotated[
        float | None,
        typer.Option(help="Drafting, µs per request and step; else as measured, or 20."),
    ] = None,
    stretch: Annotated[
        float, typer.Option(help="Tokens of context that a recorded token stands for (assumed).")
    ] = 1.0,
    history: Annotated[
        Path | None, typer.Option(help="Trace file of earlier answers, for plans that share all.")
    ] = None,
    resamples: Annotated[
        int, typer.Option(help="Rollouts of redrawn groups, for intervals; 0: none.")
    ] = 8,
    seed: Annotated[int, typer.Option(help="Of the redrawing.")] = 0,
    timeline: Annotated[
        Path | None,
        typer.Option(help="Write a bar per request, before and after, as SVG or (.json) JSON."),
    ] = None,
    measure: Annotated[
        str | None, typer.Option(help="Measure the step costs of this model here, into --out.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="File for the measured step costs.")] = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    as_json: AsJson = False,
) -> None:
    """Simulate one rollout step: recorded answers and step costs in, times out.

    The engine's own scheduler, drafters and policies run on a clock that advances by a table of
    step costs; no model is needed. All requests are waited for. What is assumed is said beside
    the result: a simulated time is not a measured one.

    \b
    Examples:
      foresay simulate traces.jsonl.gz
      foresay simulate traces.jsonl --costs h200-32b --replicas 4 --running 64 --json
      foresay simulate traces.jsonl --plan threshold --plan adaptive:all:stagger --timeline t.svg
      foresay simulate --measure smollm2-135m --out costs.json
      foresay simulate traces.jsonl --costs costs.json
    """
    require_engine("simulate")
    if measure is not None:
        _measure(measure, out, dtype, device, as_json)
        if file is None:
            return
        costs = str(out)
    elif out is not None:
        raise InputError("--out is given without --measure; expected the model to measure")
    if file is None:
        raise InputError("there is no trace file; expected TRACE, or --measure MODEL --out FILE")
    check_out(timeline, file)
    if timeline is not None and timeline.suffix not in (".svg", ".json"):
        raise InputError(f"'{timeline}' ends with '{timeline.suffix}'; expected .svg or .json")

    from foresay.bench.compare import compare, inputs_of
    from foresay.bench.plans import PLANS, Plan, Setup
    from foresay.bench.step_costs import read_table
    from foresay.bench.timeline import timeline_json, timeline_svg
    from foresay.traces import read_traces

    plans = [Plan.parse(text, k=k, batch=batch) for text in plan or [p.name for p in PLANS]]
    table = read_table(costs).stretched(stretch)
    drafting = "measured" if table.draft_seconds is not None else "assumed"
    draft_seconds = 2e-5 if table.draft_seconds is None else table.draft_seconds
    if draft_us is not None:
        drafting, draft_seconds = "given", 1e-6 * draft_us
    setup = Setup(
        table,
        replicas=replicas,
        spread=spread,
        running=running,
        kv_tokens=kv_tokens,
        max_tokens=max_tokens,
        draft_seconds=draft_seconds,
    )
    recorded = read_traces(file)
    traces = [trace for trace in recorded if len(trace.output)]
    if not traces:
        raise InputError(f"no request of {file} has an output; expected at least 1")
    earlier = [] if history is None else read_traces(history)
    rollouts = (1 + max(resamples, 0)) * (1 + sum(p.policy != "none" for p in plans))
    with progress("simulating", rollouts * sum(len(t.output) for t in traces)) as advance:
        results = compare(
            traces,
            plans,
            setup,
            few=few,
            resamples=resamples,
            seed=seed,
            history=earlier,
            progress=advance,
        )
    inputs = inputs_of(
        traces,
        setup,
        stretch=stretch,
        drafting=drafting,
        left_out=len(recorded) - len(traces),
    )
    if timeline is not None:
        runs = [results[0].simulation, results[-1].simulation]
        title = f"{file.name}, {costs}: simulated"
        text = json.dumps(timeline_json(runs)) if timeline.suffix == ".json" else None
        timeline.write_text(text or timeline_svg(runs, title), encoding="utf-8")
    if as_json:
        print(json.dumps(_as_dict(results, inputs, setup, few, resamples, traces)))
    else:
        _print(results, inputs, few)


def _measure(model: str, out: Path | None, dtype: DtypeName, device: str, as_json: bool) -> None:
    if out is None:
        raise InputError("--measure is given without --out; expected the file to write")
    check_out(out, Path(model))
    device = device_for(device, dtype)
    with waiting(as_json=as_json) as wait:
        llm = load(model, dtype, wait, device=device, drafter=None)
        from foresay.bench.measure_costs import measure_table

        about = f"{model}, {llm.target.dtype}, on {llm.device} of this machine"
        table = measure_table(llm.target, out.stem, about, progress=wait)
    out.write_text(json.dumps(table.as_dict(), indent=1) + "\n", encoding="utf-8")


def _as_dict(
    results: list[PlanResult],
    inputs: list[Input],
    setup: Setup,
    few: int,
    resamples: int,
    traces: list[Trace],
) -> dict[str, object]:
    return {
        "simulated": True,
        "costs": setup.table.name,
        "replicas": setup.replicas,
        "running": setup.running,
        "kv_tokens": setup.kv_tokens,
        "few": few,
        "resamples": resamples,
        "requests": len(traces),
        "inputs": [found._asdict() for found in inputs],
        "plans": [result.as_dict() for result in results],
    }


def _print(results: list[PlanResult], inputs: list[Input], few: int) -> None:
    head = ["plan", "seconds", "speed-up", "95 %", f"time with <= {few}", "seconds", "speed-up"]
    body = []
    for result in results:
        run = result.simulation
        tail = "" if result.tail_speedup is None else f"{result.tail_speedup:.2f}"
        body.append(
            [
                run.plan.name,
                f"{run.seconds:.4g}",
                f"{result.speedup:.2f}",
                _ends(result.speedup_interval),
                f"{result.tail_share:.0%}",
                f"{result.tail_seconds:.4g}",
                tail,
                _ends(result.tail_interval),
                f"{run.tokens_per_step:.2f}",
                f"{run.drafted_per_step:.2f}",
            ]
        )
    print_table([*head, "95 %", "tokens per step", "drafted per step"], body)
    print()
    print_table(["what it rests on", "", ""], [[i.what, i.kind, i.about] for i in inputs])


def _ends(found: Interval | None) -> str:
    return "" if found is None else f"{found.low:.2f}-{found.high:.2f}"
