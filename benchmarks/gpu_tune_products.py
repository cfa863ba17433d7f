"""Which shapes make products fast: candidates on one card, beside cuBLAS and what bytes take.

    python benchmarks/gpu_tune_products.py [--into FILE.json] [--seconds 175]
    python benchmarks/gpu_tune_products.py --smoke --record-dirty    tiny, in Triton's interpreter

For the matrices of Qwen2.5-1.5B and Qwen3-8B and 16 to 512 rows. A candidate must give the bits
that the usual shape gives among the most rows, and is then timed, in turns with the others, in CUDA
graphs over so many copies of the weights that no cache holds them. One that fails or has other bits
is listed. A matrix has the same parts for all numbers of rows: those whose mean is best, with the
time in which the parts are read again. All cores compile the kernels first.
"""

from __future__ import annotations

import gc
import math
import os
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
SMOKE = "--smoke" in sys.argv
if SMOKE:  # before torch and triton are imported
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import harness  # noqa: E402
from gpu_product_shapes import (  # noqa: E402
    KINDS,
    TINY,
    Kernel,
    Kind,
    candidates,
    compile_all,
    kernel_of,
    kernels_of,
    said,
    tell,
)

COPY, FLOPS = 4.28e12, 700e12  # bytes and operations of an H200 in a second, as measured
COLD = 200e6  # bytes of weights that no cache holds
LONG = 500e-6  # seconds of a graph, at least
ROUNDS = 5
DTYPE, DEVICE = (torch.float32, "cpu") if SMOKE else (torch.bfloat16, "cuda")

# Measuring


def measure(kind: Kind, missing: Mapping[Kernel, str], until: float) -> list[dict[str, Any]]:
    """A line for each number of rows and of parts, as far as there is time."""
    size = sum(kind.outputs) * kind.inputs * DTYPE.itemsize
    copies = 2 if SMOKE else min(math.ceil(COLD / size), 48)
    turns = 1 if SMOKE else math.ceil(LONG / max(size / COPY, 4e-6) / copies)
    made = torch.Generator(DEVICE).manual_seed(0)
    drawn = partial(torch.randn, generator=made, device=DEVICE, dtype=DTYPE)
    together = drawn(copies, sum(kind.outputs), kind.inputs).mul_(kind.inputs**-0.5)
    rows, weights = drawn(max(kind.rows), kind.inputs), [kind.weights(one) for one in together]
    parts = kind.parts_of(weights[0])
    right = {part: kind.made(rows, weights[0], part)(None) for part in parts}
    lines: list[dict[str, Any]] = []
    for count in kind.rows:
        for part in parts:
            if time.monotonic() > until:
                return lines
            wanted = right[part][..., :count, :].contiguous()
            out, found, runs = torch.empty_like(wanted), {}, {}
            for shape in candidates(kind, count, part, DTYPE):
                found[tell(shape)] = one = dict[str, Any]()
                try:
                    if why := missing.get(kernel_of(kind, count, shape)):
                        raise RuntimeError(why)
                    launches = [kind.made(rows[:count], each, part, out) for each in weights]
                    out.fill_(torch.nan)
                    if not same(launches[0](shape), wanted):
                        raise ValueError("it has other bits")
                    runs[tell(shape)] = graph_of([partial(each, shape) for each in launches], turns)
                except Exception as error:
                    one["error"] = said(error)
            if part == parts[0]:
                blas = [partial(torch.mm, rows[:count], one.T) for one in together]
                runs["cublas"] = graph_of(blas, turns)
            times = in_turns(runs, copies * turns)
            for name in found.keys() & times.keys():
                found[name]["us"] = times[name]
            lines.append({
                "rows": count, "part": part, "parts": -(-kind.inputs // part),
                "bytes_us": round(1e6 * size / COPY, 2), "cublas_us": times.get("cublas"),
                "flops_us": round(2e6 * count * sum(kind.outputs) * kind.inputs / FLOPS, 2),
                "read_us": 0.0 if kind.gated else round(1e6 * out.nbytes / COPY, 2),
                "candidates": found,
            })  # fmt: skip
    return lines


def same(one: Tensor, other: Tensor) -> bool:
    """In the interpreter the order of numpy's sums depends on shapes."""
    return torch.allclose(one, other, atol=1e-3) if SMOKE else torch.equal(one, other)


def graph_of(launches: Sequence[Callable[[], Tensor]], turns: int) -> Callable[[], object]:
    """All of them so many times, in one call."""
    if SMOKE:
        return lambda: [one() for one in launches]
    launches[0]()
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for one in [*launches] * turns:
            one()
    return lambda: graph.replay()


def in_turns(runs: Mapping[str, Callable[[], object]], count: int) -> dict[str, float]:
    """The median microseconds of a product, of each run of so many."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for turn in range(1 if SMOKE else ROUNDS + 1):
        for name, run in runs.items():
            begin, events = time.perf_counter(), []
            if not SMOKE:
                events = [torch.cuda.Event(enable_timing=True) for _ in range(2)]
                events[0].record()
            run()
            took = time.perf_counter() - begin
            if events:
                events[1].record()
                torch.cuda.synchronize()
                took = 1e-3 * events[0].elapsed_time(events[1])
            if turn or SMOKE:  # the first warms up
                found[name].append(1e6 * took / count)
    return {name: round(statistics.median(times), 2) for name, times in found.items()}


# What was found


def chosen(lines: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The means of each number of inputs of a part, times the least of each number of rows; with
    the best of them, the best shape for each number of rows."""
    fastest: dict[tuple[int, int], tuple[float, str]] = {}
    for line in lines:
        ran = [(one["us"], name) for name, one in line["candidates"].items() if "us" in one]
        if ran:
            fastest[line["rows"], line["part"]] = min(ran)
    cost = {(a["rows"], a["part"]): a["read_us"] for a in lines}
    cost = {key: cost[key] + us for key, (us, _) in fastest.items()}
    parts = list(dict.fromkeys(line["part"] for line in lines))
    counts = list(dict.fromkeys(line["rows"] for line in lines))
    all_of = [rows for rows in counts if all((rows, part) in cost for part in parts)]
    means = {
        part: statistics.geometric_mean(
            cost[rows, part] / min(cost[rows, other] for other in parts) for rows in all_of
        )
        for part in (parts if all_of else ())
    }
    part = min(means, key=lambda each: means[each], default=None)
    best = []
    for line in lines:
        if line["part"] == part and (line["rows"], part) in fastest:
            us, name = fastest[line["rows"], part]
            usual = next(each for each in lines if each["rows"] == line["rows"])  # of usual parts
            now = next(iter(usual["candidates"].values())).get("us")
            times = {"us": us, "now_us": now, "gain": now and round(now / us, 3)}
            limits = {"cublas_us": usual["cublas_us"], "bytes_us": line["bytes_us"]}
            limits["flops_us"] = line["flops_us"]
            best.append({"rows": line["rows"], "shape": name, **times, **limits})
    best.sort(key=lambda one: one["rows"])
    return {"means": {key: round(one, 3) for key, one in means.items()}, "part": part, "best": best}


def together(kinds: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """For each number of rows, the three shapes with the best means over all matrices, and over all
    gates and ups: how many times the best shape of each they take. So one can be the usual one."""
    found: dict[tuple[bool, int], list[dict[str, float]]] = {}
    for kind in kinds:
        for line in kind["lines"]:
            times = {name: one["us"] for name, one in line["candidates"].items() if "us" in one}
            if line["part"] == kind["part"] and times:
                least = min(times.values())
                found.setdefault((kind["gated"], line["rows"]), []).append(
                    {name: us / least for name, us in times.items()}
                )
    lines = []
    for (gated, rows), each in sorted(found.items()):
        means = {}
        for name in {name for times in each for name in times}:
            # Several weights are not copied: then that is the same kernel.
            some = [times.get(name, times.get(name.removesuffix(" copied"))) for times in each]
            if None not in some:
                means[name] = round(statistics.geometric_mean(some), 3)  # type: ignore[arg-type]
        best = sorted(means, key=lambda name: means[name])[:3]
        lines.append({"gated": gated, "rows": rows, "means": {name: means[name] for name in best}})
    return lines


def show(figures: Mapping[str, Any]) -> None:
    names = ("rows", "bytes_us", "flops_us", "cublas_us", "now_us", "us", "gain", "shape")
    body = [
        [kind["name"], *(str(one[name]) for name in names)]
        for kind in figures["kinds"]
        for one in kind["best"]
    ]
    harness.print_table(["", *names], body)
    for one in figures["together"]:
        means = ", ".join(f"{name}: {mean}" for name, mean in one["means"].items())
        print(f"{'gated, ' if one['gated'] else ''}{one['rows']} rows, all together: {means}")
    for kind in figures["kinds"]:
        print(f"{kind['name']}: a part has {kind['part']} inputs; means {kind['means']}")
        if "error" in kind:
            print(f"FAILED: {kind['error']}")
        failed: dict[str, list[int]] = {}
        for line in kind["lines"]:
            for name, one in line["candidates"].items():
                if "error" in one:
                    failed.setdefault(f"{name}: {one['error'][:100]}", []).append(line["rows"])
        for what, rows in failed.items():
            print(f"FAILED with {sorted(set(rows))} rows: {what}")


def tune(options: Namespace, kinds: Sequence[Kind]) -> dict[str, Any]:
    """The record, which is written after each kind."""
    begin, missing = time.monotonic(), dict[Kernel, str]()
    gc.freeze()  # capturing a graph may collect garbage: modules are none
    figures: dict[str, Any] = {"gpu": "none", "seconds": {}, "kinds": [], "together": []}
    if not SMOKE:
        figures["gpu"] = torch.cuda.get_device_name()
        missing = compile_all(kernels_of(kinds), 0.6 * options.seconds)
        figures["seconds"]["compiling"] = round(time.monotonic() - begin, 1)
        harness.say(f"{figures['seconds']['compiling']} s; not compiled: {len(missing)}")
    for kind in kinds:
        found: dict[str, Any] = {"name": kind.name, "gated": kind.gated, "lines": []}
        try:
            found["lines"] = measure(kind, missing, begin + options.seconds)
        except Exception as error:
            found["error"] = said(error)
        figures["kinds"].append({**found, **chosen(found["lines"])})
        figures["together"] = together(figures["kinds"])
        figures["seconds"]["all"] = round(time.monotonic() - begin, 1)
        harness.write(harness.record_path("gpu-tune-products", options), figures)
        harness.say(f"{figures['seconds']['all']} s: {kind.name}, {len(found['lines'])} lines")
    return figures


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--seconds", type=harness.count, default=175, help="of everything")
    parser.add_argument("--into", type=Path, metavar="FILE", help="the record")
    parser.add_argument("--smoke", action="store_true", help="tiny, in Triton's interpreter")
    options = harness.parse(parser)
    options.quick = SMOKE  # its record is not the day's
    harness.finish("gpu-tune-products", tune(options, TINY if SMOKE else KINDS), options, show)


if __name__ == "__main__":
    main()
