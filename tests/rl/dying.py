"""What the processes of test_killed do, and where they die: each function is the whole of one."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foresay import SamplingParams
from foresay.engine.engine import Engine
from foresay.models.load_transformers import target_of
from foresay.models.target import Target
from foresay.rl import Rollouts, write_steps
from foresay.rl.training import RlSettings
from lives import die, die_writing
from models import zoo
from rl.dying_writers import draw, tail  # noqa: F401 - what comes after these

sys.path.insert(0, str(Path(__file__).parents[2] / "examples"))
EXAMPLE: Any = import_module("rl_countdown")
Task, WarmStart = EXAMPLE.Task, EXAMPLE.WarmStart
PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
PARAMS = SamplingParams(max_tokens=24, temperature=0.8)


class Deadly(Mapping[str, Tensor]):
    """Weights; whoever asks for the third of them dies."""

    def __init__(self, weights: Mapping[str, Tensor]) -> None:
        self._weights, self._asked = weights, 0

    def __getitem__(self, name: str) -> Tensor:
        self._asked += 1
        if self._asked == 3:
            die()
        return self._weights[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._weights)

    def __len__(self) -> int:
        return len(self._weights)


def changed(target: Target) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(1)
    return {
        name: torch.randn(shape, generator=random) * 0.2
        for name, shape in sorted(target.weight_shapes().items())
        if name.endswith("proj.weight")
    }


def die_in_step(number: int) -> None:
    """In this step of the engine, after it has computed and before anybody knows."""
    theirs, steps = Engine.step, iter(range(1, 1 << 30))

    def step(self: Engine) -> Any:
        got = theirs(self)
        if next(steps) == number:
            die()
        return got

    Engine.step = step  # type: ignore[method-assign]


def roll(
    folder: str, step: int = 0, weights: bool = False, size: int = 0, drafter: str = "suffix"
) -> None:
    """Two rollouts, with other weights for the second; a line of tokens for each, and its steps.

    It dies in a step of the engine, while weights are replaced, or where a file gets too long.
    """
    if step:
        die_in_step(step)
    if size:
        die_writing(size)
    torch.set_num_threads(1)
    target = target_of(zoo.make("llama"))
    rollouts = Rollouts(target, drafter, "fixed" if drafter != "none" else "none")
    with (Path(folder) / "tokens.jsonl").open("w") as lines:
        for version in range(2):
            found = rollouts.sample(PROMPTS, PARAMS, samples=3, seed=7)
            write_steps(rollouts.steps, Path(folder) / "steps.jsonl")
            line = {
                "version": version,
                "tokens": [[sample.token_ids for sample in group] for group in found],
                "logprobs": [[sample.logprobs.tolist() for sample in group] for group in found],
            }
            print(json.dumps(line), file=lines, flush=True)
            new = changed(target)
            rollouts.replace_weights(Deadly(new) if weights else new)


def train(folder: str, step: int = 0, update: int = 0, size: int = 0) -> None:
    """The long form of the example in small, with its record and the file of its warm start."""
    if step:
        die_in_step(step)
    if update:
        theirs, updates = torch.optim.AdamW.step, iter(range(1, 1 << 30))

        def dying(self: Any, *given: Any, **more: Any) -> Any:
            done = theirs(self, *given, **more)
            if next(updates) == update:
                die()
            return done

        torch.optim.AdamW.step = dying  # type: ignore[method-assign]
    if size:
        die_writing(size)
    EXAMPLE.LONG = EXAMPLE.Form(
        Task(numbers=3, largest=4, most=16, noise=0.5, cap=24),
        1,
        WarmStart(updates=2, tokens=256),
        RlSettings(prompts=4, samples=4, groups=4, rounds=1, cap=16, buffer=4, learning_rate=1e-3),
        steps=3,
        pool=8,
        max_running=8,
    )
    EXAMPLE.reward = lambda puzzle, answer: float(answer[0] % 2)
    run = ["--long", "--out", folder, "--seed", "1", "--drafts", "on", "--threads", "1"]
    sys.argv = ["rl_countdown.py", *run, "--policy", "fixed"]
    sys.exit(EXAMPLE.main())
