"""Which choices of `foresay.models.gpu.tuning` make a step fast on this GPU?

    python benchmarks/gpu_tune.py [--into FILE.json] [--seconds 230]
    python benchmarks/gpu_tune.py --smoke [--into FILE.json]    tiny, in Triton's interpreter

Kernels are compiled first, by several processes. Then each choice is compared with the defaults,
whose logits it must have to the bit where it says so, and timed in turns with them over steps of
random weights. What was best of its kind is tried together at the end, for each model by itself.
A choice that fails is recorded with its error; one that leaves the device unusable is left out and
the model begun again. The file is written after every case.
"""

from __future__ import annotations

import gc
import json
import os
import statistics
import subprocess
import sys
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
if "--smoke" in sys.argv:  # before torch and triton are imported
    os.environ |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}

import torch
from torch import Tensor

import harness
from foresay.models.gpu.load import random_target
from foresay.models.gpu.target import GpuTarget
from foresay.models.gpu.tuning import Tuning
from gpu_bench import filled, one_by_one, said, step_of
from gpu_choices import (
    CASES,
    MODELS,
    OTHER_BITS,
    STANDARD,
    TINY,
    Case,
    candidates,
    for_case,
    together,
)

FAR = 0.05  # how far logits of other bits may be, by norms


class Unusable(Exception):
    """After this choice the device fails at everything."""


def made(model: str, cases: Sequence[Case], smoke: bool, layers: int | None = None) -> GpuTarget:
    """A target with memory for each of these cases; of so many layers."""
    shapes = MODELS[model] | ({} if layers is None else {"num_hidden_layers": layers})
    each = shapes["num_hidden_layers"] * shapes["num_key_value_heads"] * shapes["head_dim"]
    tokens = max(case.batch * (case.context + 256) for case in cases)
    if smoke:
        return random_target(shapes, "cpu", memory=8 * each * tokens, dtype=torch.float32)
    return random_target(shapes, "cuda", memory=4 * each * tokens)


def tried(
    target: GpuTarget, step: Callable[[], Tensor], choices: Mapping[str, Tuning], device: str
) -> dict[str, dict[str, Any]]:
    """For each choice whether its logits are those of the defaults, or its error. The first one is
    the defaults."""
    found: dict[str, dict[str, Any]] = {}
    wanted: Tensor | None = None
    for name, tuning in choices.items():
        target.decoder.tuning = tuning
        try:
            given = step().double()
            wanted = given if wanted is None else wanted
            far = float((given - wanted).norm() / wanted.norm())
            exact = all(getattr(tuning, it) == getattr(STANDARD, it) for it in OTHER_BITS)
            good = torch.equal(given, wanted) if exact else far < FAR
            found[name] = {"good": bool(good), "far": far}
        except Exception as error:
            found[name] = {"error": said(error)}
            if device == "cuda":
                try:
                    torch.cuda.synchronize()
                except Exception:
                    raise Unusable(name) from error
    return found


def timed(
    target: GpuTarget, step: Callable[[], Tensor], choices: Mapping[str, Tuning], count: int,
    rounds: int, device: str,
) -> dict[str, float]:  # fmt: skip
    """Median milliseconds of a step, in blocks that take turns; the order changes."""
    times: dict[str, list[float]] = {name: [] for name in choices}
    names = list(choices)
    for turn in range(rounds):
        at = turn * len(names) // rounds
        for name in names[at:] + names[:at]:
            target.decoder.tuning = choices[name]
            times[name] += one_by_one(step, count if device == "cuda" else 1, device)
    return {name: statistics.median(ms) for name, ms in times.items()}


def measured(
    target: GpuTarget, kvs: Sequence[Any], case: Case, choices: Mapping[str, Tuning], smoke: bool
) -> dict[str, dict[str, Any]]:
    """Of each choice: good, ms, and its ratio to the defaults; or its error."""
    device, step = "cpu" if smoke else "cuda", step_of(target, kvs, case.nodes)
    some = for_case(case, choices)
    found = tried(target, step, some, device)
    ready = {name: some[name] for name, one in found.items() if "error" not in one}
    count = 12 if case.batch * case.context < 10_000 else 5
    took = timed(target, step, ready, count, 1 if smoke else 3, device)
    for name, ms in took.items():
        found[name] |= {"ms": round(ms, 4), "ratio": round(ms / took["defaults"], 4)}
    return found


def run_model(model: str, options: Namespace, until: float) -> None:
    """All cases of a model that the file does not have yet, then the best together."""
    cases = [case for case in (TINY if options.smoke else CASES) if case.model == model]
    target, device = made(model, cases, options.smoke), "cpu" if options.smoke else "cuda"
    choices = candidates(options.smoke, options.without)
    for last in (False, True):
        kept = read(options.into)
        here = kept.setdefault("together" if last else "cases", {})
        if last:
            single = {k: v for k, v in kept["cases"].items() if k.startswith(f"{model} ")}
            choices = together(single)
            kept.setdefault("best", {})[model] = {k: asdict(v) for k, v in choices.items()}
        for place in dict.fromkeys((case.batch, case.context) for case in cases):
            kvs: list[Any] = []
            for case in (case for case in cases if (case.batch, case.context) == place):
                if case.name in here or time.time() > until:
                    continue
                if not kvs:
                    kvs = filled(target, *place)
                    pool: Any = target
                    pool._numbers.normal_()
                harness.say(f"{until - time.time():5.0f} s left  {case.name}, {len(choices)}")
                try:
                    here[case.name] = measured(target, kvs, case, choices, options.smoke)
                except Unusable as error:
                    kept.setdefault("unusable", []).append(str(error))
                    write(options.into, kept)
                    sys.exit(3)
                write(options.into, kept)
            del kvs
            gc.collect()
            if device == "cuda":
                torch.cuda.empty_cache()


def compile_case(number: int) -> None:
    """Compile what a case needs, over one layer: its choices from another one on in each process,
    so that each finds what the others have compiled."""
    case = CASES[number]
    choices = for_case(case, candidates(False))
    target = made(case.model, [case], False, layers=1)
    step = step_of(target, filled(target, case.batch, case.context), case.nodes)
    names = list(choices)
    at = number * len(names) // len(CASES)
    for name in ("defaults", *names[at:], *names[:at]):
        target.decoder.tuning = choices[name]
        with suppress(Exception):
            step()


def read(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}  # type: ignore[no-any-return]


def write(path: Path, figures: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(figures, indent=1) + "\n")


def show(figures: Mapping[str, Any]) -> None:
    """A line for each choice, a column for each case: times the defaults; ! where it is wrong."""
    for title in ("cases", "together"):
        cases = figures.get(title, {})
        print(title)
        for at, (name, case) in enumerate(cases.items()):
            print(f"  {at}: {name}, defaults {case['defaults'].get('ms')} ms")
        print(" " * 26 + "".join(f"{at:>8}" for at in range(len(cases))))
        for name in dict.fromkeys(name for case in cases.values() for name in case):
            lines = (case.get(name) for case in cases.values())
            print(f"{name:<26}" + "".join(f"{_short(line):>8}" for line in lines))
    for model, best in figures.get("best", {}).items():
        for name, tuning in best.items():
            changed = {k: v for k, v in tuning.items() if v != getattr(STANDARD, k)}
            print(f"{model}, {name}: {changed}")


def _short(line: Mapping[str, Any] | None) -> str:
    if line is None or "error" in line:
        return "-" if line is None else "failed"
    return f"{line['ratio']:.3f}" + "!" * (not line["good"])


def main() -> None:
    parser = ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--into", type=Path, default=Path("gpu_tune.json"), help="the file")
    parser.add_argument("--seconds", type=float, default=230.0, help="of the whole run")
    parser.add_argument("--smoke", action="store_true", help="tiny shapes, without CUDA")
    parser.add_argument("--compile", type=int, help="only this case's kernels; for main")
    parser.add_argument("--model", choices=[*MODELS], help="only this model; for main")
    parser.add_argument("--without", action="append", default=[], help="a choice to leave out")
    options = parser.parse_args()
    until = time.time() + options.seconds
    if options.compile is not None:
        return compile_case(options.compile)
    if options.model is not None:
        return run_model(options.model, options, until)
    gpu = "none" if options.smoke else torch.cuda.get_device_name()
    write(options.into, {"commit": harness.commit(), "gpu": gpu})
    if options.smoke:
        run_model("tiny", options, until)
        return show(read(options.into))
    own = [sys.executable, __file__]
    workers = [subprocess.Popen([*own, "--compile", str(at)]) for at in range(len(CASES))]
    for worker in workers:
        with suppress(subprocess.TimeoutExpired):
            worker.wait(max(1.0, until - time.time() - options.seconds / 2))
        worker.kill()
    harness.say(f"{until - time.time():5.0f} s left  compiled")
    for model in ("1.5B", "8B"):
        for _ in range(3):  # what leaves the device unusable is left out the next time
            left = ["--seconds", str(until - time.time()), "--into", str(options.into)]
            out = [
                x for name in read(options.into).get("unusable", []) for x in ("--without", name)
            ]
            if subprocess.run([*own, "--model", model, *left, *out], check=False).returncode != 3:
                break
    show(read(options.into))


if __name__ == "__main__":
    main()
