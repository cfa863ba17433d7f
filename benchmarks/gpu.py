"""The GPU backend on one card: is it right, and how fast is it?

    python benchmarks/gpu.py --model FILE.gguf [--vllm-site FOLDER --vllm-model FOLDER]
    python benchmarks/gpu.py --only vllm --into RECORD.json …    the other parts stay as they are
    python benchmarks/gpu.py --cpu-smoke --model FOLDER    all parts, tiny, without CUDA

    kernels        tree attention against float64 on random trees, then against torch with a mask
    exact          texts with and without drafts, 200 requests in random batches; against the CPU
    steps          milliseconds of a step, plain and with nodes: the given model, 8B shapes
    deterministic  what deterministic=True costs
    answers        tokens per second, one at a time: edits of code, chat, the ratio of each prompt
    batch          8, 64 and 256 at once; asked before; samples
    vllm           64 requests at once, plain, beside vLLM
    offload        8B shapes with memory for half of the weights: seconds against passes
    host           where a step's time goes: its phases, and what the device does meanwhile

A part that fails is recorded with its error, and the others go on; each has a share of the time,
and what it measured by its end stays. The record is written after every part. `gpu_bars.py` has
what must be reached. Where the tree was copied without its repository, FORESAY_COMMIT names the
commit; a record that is added to must have the same. Without --model only what needs no given model
is measured; vLLM is a process of its own.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import traceback
from argparse import Namespace
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
SMOKE = "--cpu-smoke" in sys.argv
if SMOKE:  # before torch and triton are imported
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch  # noqa: E402

import gpu_answers  # noqa: E402
import gpu_bars  # noqa: E402
import gpu_exact  # noqa: E402
import gpu_host  # noqa: E402
import gpu_kernels  # noqa: E402
import gpu_steps  # noqa: E402
import gpu_vllm  # noqa: E402
import harness  # noqa: E402
from foresay.models.weights import DEFAULT_MODEL  # noqa: E402
from gpu_bench import SMOKE as SMOKE_SCALE  # noqa: E402
from gpu_bench import Bench, OutOfTime, Scale, said  # noqa: E402
from gpu_prompts import prompts_of  # noqa: E402

PARTS: dict[str, tuple[Callable[[Bench, dict[str, Any]], None], float]] = {
    "kernels": (gpu_kernels.kernels, 45),
    "exact": (gpu_exact.exact, 80),
    "steps": (gpu_steps.steps, 15),
    "deterministic": (gpu_steps.deterministic, 8),
    "answers": (gpu_answers.answers, 62),
    "batch": (gpu_answers.batch, 65),
    "vllm": (gpu_vllm.vllm, 130),
    "offload": (gpu_steps.offload, 40),
    "host": (gpu_host.host, 30),
}
"""Each part, which fills a table, and the seconds that it takes, with some to spare, on an H200
where nothing is compiled yet. A part may have all that the parts behind it do not need.
`host` comes last, since torch's profiler may leave something behind."""
OF_MODEL = ("deterministic", "answers", "batch", "vllm", "host")


def about_machine(smoke: bool) -> dict[str, Any]:
    """The GPU and its driver."""
    if smoke:
        return {"gpu": "none"}
    found: dict[str, Any] = {
        "gpu": torch.cuda.get_device_name(),
        "cuda": torch.version.cuda,
        "memory_gib": round(torch.cuda.get_device_properties(0).total_memory / 2**30, 1),
    }
    try:
        query = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        done = subprocess.run(query, capture_output=True, text=True, check=True, timeout=20)
        found["driver"] = done.stdout.split()[0]
    except (OSError, subprocess.SubprocessError, IndexError) as error:
        found["driver"] = said(error)
    return found


def main() -> None:
    parser = harness.parser(__doc__, parts=tuple(PARTS))
    parser.add_argument("--model", help="a .gguf file or a folder: what `answers` to `vllm` run")
    parser.add_argument("--default-model", default=DEFAULT_MODEL, help="of `exact`")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seconds", type=harness.count, default=480, help="of all parts")
    parser.add_argument("--vllm-site", type=Path, metavar="FOLDER", help="vLLM and its packages")
    parser.add_argument("--vllm-model", type=Path, metavar="FOLDER", help="the model in bfloat16")
    parser.add_argument("--vllm-ways", default="plain", help=f"of {','.join(gpu_vllm.WAYS)}")
    parser.add_argument("--into", type=Path, metavar="FILE", help="a record that is added to")
    parser.add_argument("--cpu-smoke", action="store_true", help="tiny shapes, without CUDA")
    options = harness.parse(parser)
    if unknown := set(options.vllm_ways.split(",")) - set(gpu_vllm.WAYS):
        parser.error(f"vLLM has no way {unknown.pop()!r}; choose from {', '.join(gpu_vllm.WAYS)}")
    if not SMOKE and not torch.cuda.is_available():
        parser.error("there is no CUDA device; expected one, or --cpu-smoke")
    if options.model is None and (needed := [p for p in options.chosen if p in OF_MODEL]):
        parser.error(f"--model is missing; expected a model for {', '.join(needed)}")
    options.quick = SMOKE  # its record is not the day's
    if (found := earlier(options)) and found["commit"] != harness.commit():
        parser.error(
            f"{options.into.name} is of commit {found['commit']}; expected {harness.commit()}, "
            "which is measured now"
        )
    bench = Bench(options, SMOKE_SCALE if SMOKE else Scale(), SMOKE)
    figures = measure(bench, options)
    failed = harness.not_met(figures["bars"]) if not SMOKE else ""
    harness.finish("gpu", figures, options, show, failed)


def earlier(options: Namespace) -> dict[str, Any]:
    """The record that is added to; empty if there is none yet."""
    if options.into is None or not options.into.exists():
        return {}
    found: dict[str, Any] = json.loads(options.into.read_text())
    return found


def measure(bench: Bench, options: Namespace) -> dict[str, Any]:
    """The chosen parts in their order, beside those that the record has. What the prompts need is
    loaded for the first that asks."""
    before = earlier(options)
    run: dict[str, Any] = {"command": harness.command(), "seconds": 0.0, "parts": []}
    scale = {key: value for key, value in asdict(bench.scale).items() if key != "shapes"}
    figures: dict[str, Any] = {
        **about_machine(bench.smoke),
        "model": None if options.model is None else Path(options.model).name,
        "scale": {**scale, "shapes": dict(bench.scale.shapes)},
        "runs": [*before.get("runs", []), run],
        "bars": [],
        "parts": before.get("parts", {}),
    }
    chosen = [name for name in PARTS if name in options.chosen]
    shares = {name: PARTS[name][1] for name in chosen}
    for name in chosen:
        bench.say(f"-- {name}")
        begin, left = bench.seconds, options.seconds - bench.seconds
        rest = sum(share for other, share in shares.items() if other != name)
        # At least its share of what is left; all that the parts behind it do not need.
        bench.until = begin + max(left - rest, left * shares[name] / (shares[name] + rest))
        del shares[name]
        part: dict[str, Any] = {}
        try:
            if name in OF_MODEL and not bench.prompts:
                _read_prompts(bench)
            PARTS[name][0](bench, part)
        except OutOfTime as error:
            part["stopped"] = str(error)
        except Exception as error:
            traceback.print_exc()
            part["error"] = said(error)
        part["took_seconds"] = round(bench.seconds - begin, 1)
        figures["parts"][name] = part
        figures["bars"] = gpu_bars.bars(figures["parts"])
        run["parts"].append(name)
        run["seconds"] = round(bench.seconds, 1)
        harness.write(harness.record_path("gpu", options), figures)
        bench.say(f"-- {name} took {part['took_seconds']} s")
        gc.collect()
        if not bench.smoke:
            torch.cuda.empty_cache()
    return figures


def _read_prompts(bench: Bench) -> None:
    llm, scale = bench.llm(), bench.scale
    count = max(*scale.batches, scale.edits, scale.chats, scale.vllm_requests)
    most = max(8, min(1200, llm.target.context - 3 * scale.tokens))
    bench.prompts = prompts_of(partial(llm.encode, chat=True), count, most)


def show(figures: dict[str, Any]) -> None:
    print(f"{figures['gpu']}: {sum(run['seconds'] for run in figures['runs']):.0f} s")
    for title, head, rows in gpu_bars.tables(figures["parts"]):
        print(title)
        harness.print_table(head, rows)
    for one in figures["parts"].get("host", {}).get("cases", ()):
        if "time_line" in one:
            print(f"{one['requests']} requests, {one['side']}: {one['time_line']}")
    harness.print_bars(figures["bars"])


if __name__ == "__main__":
    main()
