"""A real small run of reinforcement learning, with and without drafts.

A model of under a million parameters is made from nothing, learns from recorded searches of the
task countdown-trace, and is then trained by DAPO on its own answers. Drafts change how long the
rollouts take and nothing else: tokens, losses and parameters are compared bit by bit.

    python examples/rl_countdown.py                     3 minutes on two slow cores
    python examples/rl_countdown.py --json
    python examples/rl_countdown.py --long --out DIR    three seeds, on and off, one after the other
    python examples/rl_countdown.py --long --out DIR --seed 1 --only-warm-start
    python examples/rl_countdown.py --long --out DIR --seed 1 --drafts on --minutes 8
    python examples/rl_countdown.py --draw DIR          curves of the records in a folder

One process for each seed and way may run side by side, after the warm starts have ended.
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.random import Generator
from safetensors.torch import load_file, save
from transformers import LlamaConfig, LlamaForCausalLM

from countdown import EOS, VOCABULARY, Puzzle, Task, draw_puzzle, search_trace, solved
from foresay.models.load_transformers import target_of
from foresay.rl.padding import Example
from foresay.rl.rollouts import Rollouts
from foresay.rl.training import Problem, RlSettings, TrainingStep, train
from rl_curves import SAME, draw_curves
from warm_start import WarmStart, warm_start


@dataclass(frozen=True)
class Form:
    """A size of the run.

    layers       of the model, each 128 wide
    pool         puzzles that are trained with: all of them are seen again and again
    max_running  answers that grow at once; the others wait
    """

    task: Task
    layers: int
    warm: WarmStart
    rl: RlSettings
    steps: int
    pool: int
    max_running: int


SHORT = Form(
    Task(numbers=3, largest=6, most=40, noise=0.5, cap=320),
    2,
    WarmStart(updates=450, tokens=1024, learning_rate=4e-3),
    RlSettings(cap=320, buffer=64, groups=8, rounds=2),
    steps=3,
    pool=16,
    max_running=64,
)
LONG = Form(
    Task(numbers=4, largest=30, noise=1.0, cap=512),
    4,
    WarmStart(updates=3000, tokens=8192, learning_rate=3e-3),
    RlSettings(cap=512, buffer=96, groups=6, rounds=2, learning_rate=2e-4),
    steps=40,
    pool=64,
    max_running=64,
)


def new_model(form: Form, seed: int) -> LlamaForCausalLM:
    """With random weights."""
    torch.manual_seed(seed)
    shape = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=128,
        intermediate_size=336,
        num_hidden_layers=form.layers,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=2048,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=EOS,
        initializer_range=0.08,  # 1 / sqrt(128): a small model learns faster so
    )
    return LlamaForCausalLM(shape)


def warmed(form: Form, seed: int, device: str, file: Path | None) -> LlamaForCausalLM:
    """A model after its warm start; from the file, if it exists, which is written otherwise."""
    model = new_model(form, seed)
    if file is not None and file.exists():
        model.load_state_dict(load_file(file))
        return model

    def recorded(rng: Generator) -> Example:
        puzzle = draw_puzzle(form.task, rng)
        return Example(puzzle.prompt, search_trace(puzzle, form.task, rng))

    begin = perf_counter()

    def report(update: int, loss: float) -> None:
        if update % max(form.warm.updates // 10, 1) == 0:
            spent = perf_counter() - begin
            say(f"warm start: {update} of {form.warm.updates}, loss {loss:.3f}, {spent:.0f} s")

    torch.use_deterministic_algorithms(device == "cpu")  # a GPU's result is shared as a file
    warm_start(model, recorded, form.warm, seed=seed, device=device, progress=report)
    torch.use_deterministic_algorithms(True)
    model.cpu()
    if file is not None:
        remove_parts(file)
        part = file.with_suffix(f".{os.getpid()}.part")
        part.write_bytes(save({name: t.contiguous() for name, t in model.state_dict().items()}))
        os.replace(part, file)
    return model


def remove_parts(file: Path) -> None:
    """What processes that were killed have left of this file."""
    for part in file.parent.glob(f"{file.stem}.*.part"):
        try:
            os.kill(int(part.suffixes[-2][1:]), 0)
        except ProcessLookupError:
            part.unlink(missing_ok=True)
        except (PermissionError, ValueError):
            pass  # it still runs, as somebody else; or the file is not ours


def reward(puzzle: Puzzle, answer: Any) -> float:
    return float(solved(puzzle, answer))


def steps_of(
    form: Form, start: LlamaForCausalLM, seed: int, *, drafts: bool, policy: str
) -> Iterator[TrainingStep]:
    """The records of one run from a warm start, which is not changed."""
    rng = np.random.default_rng([seed, 1])
    puzzles = [draw_puzzle(form.task, rng) for _ in range(form.pool)]
    problems = [Problem(puzzle.prompt, partial(reward, puzzle)) for puzzle in puzzles]
    model = copy.deepcopy(start)
    rollouts = Rollouts(
        target_of(copy.deepcopy(start)),
        "suffix" if drafts else None,
        policy if drafts else "none",
        max_running=form.max_running,
    )
    if not rollouts.engine.target.exact:
        raise SystemExit(
            "the target is not batch-invariant here; the runs could differ by rounding"
        )
    yield from train(model, rollouts, problems, form.rl, steps=form.steps, seed=seed, stops=[EOS])


def run_short(options: argparse.Namespace) -> int:
    begin = perf_counter()
    form = sized(SHORT, options)
    start = warmed(form, options.seed or 1, options.warm_start_device, options.warm_start_file)
    warm_seconds = perf_counter() - begin
    runs: dict[str, list[TrainingStep]] = {}
    for way in ("off", "on"):
        runs[way] = []
        each = steps_of(form, start, options.seed or 1, drafts=way == "on", policy=options.policy)
        for record in each:
            runs[way].append(record)
            say(f"drafts {way}, step {record.step}: {record.passes} passes")
    off, on = runs["off"], runs["on"]
    same = {
        name: all(getattr(a, name) == getattr(b, name) for a, b in zip(off, on, strict=True))
        for name in SAME
    }
    trained = sum(record.kept for record in on)
    result = {
        "off": total(off),
        "on": total(on),
        "fewer_passes": total(off)["passes"] / total(on)["passes"],
        "less_time": total(off)["rollout_seconds"] / total(on)["rollout_seconds"],
        "same": same,
        "trained_groups": trained,
        "seconds": {"warm_start": warm_seconds, "all": perf_counter() - begin},
        "steps": {way: [record.as_dict() for record in runs[way]] for way in runs},
    }
    wrong = [f"{name} differ" for name, equal in same.items() if not equal]
    if not trained:
        wrong.append("no group had different rewards, so nothing was trained")
    if result["fewer_passes"] < options.least_passes:
        wrong.append(f"{result['fewer_passes']:.2f}x fewer passes; expected {options.least_passes}")
    if result["less_time"] < options.least_time:
        wrong.append(f"{result['less_time']:.2f}x less time; expected {options.least_time}")
    result["wrong"] = wrong
    print(json.dumps(result) if options.json else as_table(result))
    return 1 if wrong else 0


def total(records: list[TrainingStep]) -> dict[str, float]:
    """Of a whole run."""
    tokens = sum(r.tokens for r in records)
    seconds = sum(r.seconds["rollout"] for r in records)
    return {
        "passes": sum(r.passes for r in records),
        "rollout_seconds": seconds,
        "train_seconds": sum(r.seconds["train"] for r in records),
        "tokens": tokens,
        "tokens_per_step": tokens / max(sum(r.tokens / r.tokens_per_step for r in records), 1e-9),
        "acceptance": sum(r.accepted for r in records) / max(sum(r.drafted for r in records), 1),
        "tail": sum(r.tail * r.seconds["rollout"] for r in records) / seconds,
        "reward": float(np.mean([r.reward for r in records])),
        "mean_length": float(np.mean([r.mean_length for r in records])),
        "max_length": max(r.max_length for r in records),
    }


def as_table(result: dict[str, Any]) -> str:
    off, on = result["off"], result["on"]
    rows = [
        ("target passes", "passes", "{:.0f}", f"{result['fewer_passes']:.2f}x fewer"),
        ("rollout seconds", "rollout_seconds", "{:.2f}", f"{result['less_time']:.2f}x less"),
        ("training seconds", "train_seconds", "{:.2f}", ""),
        ("tokens per step", "tokens_per_step", "{:.2f}", ""),
        ("accepted of drafted", "acceptance", "{:.0%}", ""),
        ("time in the tail", "tail", "{:.0%}", ""),
        ("tokens", "tokens", "{:.0f}", ""),
        ("mean length", "mean_length", "{:.1f}", ""),
        ("longest", "max_length", "{:.0f}", ""),
        ("reward", "reward", "{:.3f}", ""),
    ]
    lines = [f"{'':20}{'drafts off':>12}{'drafts on':>12}"]
    for name, key, shape, note in rows:
        lines.append(f"{name:20}{shape.format(off[key]):>12}{shape.format(on[key]):>12}  {note}")
    step = result["steps"]["on"][-1]
    lines += [
        f"groups trained with: {result['trained_groups']}; log probabilities, rollout against "
        f"trainer: mean {step['logprob']['mean']:.1e}, max {step['logprob']['max']:.1e}",
        "identical: " + ", ".join(f"{k} {'yes' if v else 'NO'}" for k, v in result["same"].items()),
        f"{result['seconds']['all']:.0f} s, {result['seconds']['warm_start']:.0f} s of them for "
        "the warm start",
        *(f"wrong: {line}" for line in result["wrong"]),
    ]
    return "\n".join(lines)


def run_long(options: argparse.Namespace) -> int:
    form = sized(LONG, options)
    out: Path = options.out
    out.mkdir(parents=True, exist_ok=True)
    end = perf_counter() + 60 * options.minutes
    seeds = [options.seed] if options.seed else range(1, options.seeds + 1)
    for seed in seeds:
        file = options.warm_start_file or out / f"warm-start-{seed}.safetensors"
        alone = options.drafts != "both" and not options.only_warm_start
        if alone and options.warm_start_device != "cpu" and not file.exists():
            say(f"{file} is missing, and a GPU would not make it twice alike: --only-warm-start")
            return 2
        start = warmed(form, seed, options.warm_start_device, file)
        if options.only_warm_start:
            continue
        for way in ("off", "on") if options.drafts == "both" else (options.drafts,):
            with (out / f"seed-{seed}-{way}.jsonl").open("w") as lines:
                each = steps_of(form, start, seed, drafts=way == "on", policy=options.policy)
                longest = 0.0
                for record in each:
                    longest = max(longest, sum(record.seconds.values()))
                    line = {"seed": seed, "drafts": way, **record.as_dict()}
                    print(json.dumps(line), file=lines, flush=True)
                    say(
                        f"seed {seed}, drafts {way}, step {record.step}: reward "
                        f"{record.reward:.3f}, length {record.mean_length:.0f}, {record.passes} "
                        f"passes, {sum(record.seconds.values()):.1f} s"
                    )
                    if perf_counter() + 1.1 * longest > end:
                        say(f"the time is over after {record.step + 1} steps")
                        break
    whole = not (options.seed or options.only_warm_start or options.drafts != "both")
    return draw_curves(out, as_json=options.json) if whole else 0


def sized(form: Form, options: argparse.Namespace) -> Form:
    """With what the command line says."""
    if options.steps:
        form = replace(form, steps=options.steps)
    if options.warm_updates:
        form = replace(form, warm=replace(form.warm, updates=options.warm_updates))
    return form


def say(text: str) -> None:
    print(f"rl_countdown: {text}", file=sys.stderr, flush=True)


def main() -> int:
    parse = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    form = parse.add_mutually_exclusive_group()
    form.add_argument("--short", action="store_true", help="the default")
    form.add_argument("--long", action="store_true", help="more steps, of a harder task")
    form.add_argument("--draw", type=Path, metavar="DIR", help="draw the records of the long form")
    parse.add_argument("--json", action="store_true")
    parse.add_argument("--out", type=Path, default=Path("rl-countdown"), help="of the long form")
    parse.add_argument("--seeds", type=int, default=3, help="how many, from 1")
    parse.add_argument("--seed", type=int, default=0, help="one seed only; 0: all of them")
    parse.add_argument("--drafts", choices=("on", "off", "both"), default="both")
    parse.add_argument("--policy", default="adaptive", help="how many drafted tokens are verified")
    parse.add_argument("--steps", type=int, default=0, help="0: as the form has it")
    parse.add_argument("--minutes", type=float, default=1e9, help="stop before; long form only")
    parse.add_argument("--threads", type=int, default=2)
    parse.add_argument("--warm-updates", type=int, default=0, help="0: as the form has it")
    parse.add_argument("--warm-start-file", type=Path, help="used if it exists, else written")
    parse.add_argument("--warm-start-device", default="", help="default: cuda for --long, if any")
    parse.add_argument("--only-warm-start", action="store_true", help="of the long form")
    parse.add_argument("--least-passes", type=float, default=1.5, help="fails below; short form")
    parse.add_argument("--least-time", type=float, default=0.0, help="fails below; short form")
    options = parse.parse_args()
    if options.draw:
        return draw_curves(options.draw, as_json=options.json)
    torch.set_num_threads(options.threads)
    torch.use_deterministic_algorithms(True)
    if not options.warm_start_device:
        gpu = options.long and torch.cuda.is_available()
        options.warm_start_device = "cuda" if gpu else "cpu"
    return run_long(options) if options.long else run_short(options)


if __name__ == "__main__":
    sys.exit(main())
