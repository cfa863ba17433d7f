"""One rank of a GRPO training run in several processes, as the launchers of torch begin it."""

from __future__ import annotations

import json
import os
import sys
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from foresay.engine.engine import Engine
from lives import die
from real_trl import import_trl

import_trl()
TRAINING: Any = import_module("integrations.trl.training")  # after that


def rank(folder: str, how: str, step: int = 0, drafts: bool = True) -> None:
    """Two steps of training; the texts of this rank go to a file. It dies in a step of the engine
    (0: it does not).
    """
    torch.set_num_threads(1)
    texts: list[list[list[int]]] = []

    def noting(completions: list[Any], completion_ids: list[list[int]], **rest: Any) -> list[float]:
        texts.append([list(ids) for ids in completion_ids])
        return list(TRAINING.digits(completions, **rest))

    if step:
        theirs, steps = Engine.step, iter(range(1, 1 << 30))

        def dying(self: Engine) -> Any:
            if next(steps) == step:
                die()
            return theirs(self)

        Engine.step = dying  # type: ignore[method-assign]
    try:
        _train(Path(folder), how, TRAINING.SUFFIX if drafts else TRAINING.NONE, noting, texts)
    except BaseException:
        traceback.print_exc()
        _leave(1)
    _leave(0)


def _train(out: Path, how: str, settings: Any, noting: Any, texts: list[Any]) -> None:
    more = {"max_steps": 2, "ddp_backend": "gloo"}
    trainer = TRAINING.make(out / "trainer", how, settings, noting, **more)
    trainer.train()
    losses = [row["loss"] for row in trainer.state.log_history if "loss" in row]
    weights = [float(weight.detach().double().sum()) for weight in trainer.model.parameters()]
    done = {"texts": texts, "losses": losses, "weights": weights}
    (out / f"rank-{os.environ['RANK']}.json").write_text(json.dumps(done))


def _leave(status: int) -> None:
    """Without taking torch's process group down: in 2 of some 60 runs in which nobody was killed,
    a process that had done all its steps then waited for a thread of it, once for over a minute.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
