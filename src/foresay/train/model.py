"""Train a small model for ModelDrafter, from nothing but answers that its target wrote."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from foresay.models.options import check_sizes
from foresay.models.progress import Progress, silent
from foresay.models.small import ModelShape, new_model
from foresay.traces import Trace
from foresay.train.distil import loss_of, measure, save_model
from foresay.train.lesson import batches_of, open_lesson, padded
from foresay.train.loop import last_loss, update_all
from foresay.train.settings import CorpusFiles, check_settings, out_folder

__all__ = ["TrainedModel", "train"]


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A training that is done.

    sha256         of the model's weights, and how many `bytes` they have
    loss           of the last tenth of the updates, per token
    held_out_loss  of answers that were not trained on
    agreement      how often the model's likeliest token is the target's in these answers
    overlap        how often a token sampled from it would be accepted at temperature 1
    """

    out: str
    target: str
    sha256: str
    bytes: int
    parameters: int
    updates: int
    texts: int
    loss: float
    held_out_loss: float
    agreement: float
    overlap: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def train(
    target: str | os.PathLike[str],
    corpus: CorpusFiles,
    out: str | os.PathLike[str],
    *,
    device: str = "cpu",
    epochs: int = 20,
    tokens: int = 16_384,
    learning_rate: float = 2e-3,
    hidden: int = 128,
    layers: int = 4,
    heads: int = 4,
    intermediate: int = 512,
    held_out: float = 0.05,
    longest: int = 1024,
    seed: int = 0,
    progress: Progress = silent,
) -> TrainedModel:
    """Train a model and write it to a folder, as `ModelDrafter` and transformers read it.

    target         a model, by any name that `foresay generate --model` takes
    corpus         trace files of its answers
    out            a folder: config.json and model.safetensors, when it is done. What it goes on
                   from after an interrupt is there, too
    device         where to train, such as "cuda"
    epochs         how often each answer is seen
    tokens         of a batch, with prompts and padding
    learning_rate  the highest; it rises over a twentieth of the updates and falls to a twentieth
    hidden, layers, heads, intermediate
                   the sizes of the model: see `ModelShape`
    held_out       share of the answers that are only used to measure
    longest        longer texts are left out
    progress       called after each update; what it raises ends the training, which the next call
                   with the same arguments goes on with

    Raises: InputError, ModelError, TraceError, OSError.
    """
    began = perf_counter()
    sizes = {"hidden": hidden, "layers": layers, "heads": heads, "intermediate": intermediate}
    settings = check_settings(
        epochs=epochs,
        tokens=tokens,
        longest=longest,
        learning_rate=learning_rate,
        held_out=held_out,
        seed=seed,
        **sizes,
    )
    settings["target"] = str(target)
    check_sizes(hidden, heads)
    folder = out_folder(out, "LlamaForCausalLM")
    lesson = open_lesson(target, corpus, settings, device=device, progress=progress)
    teacher = lesson.teacher
    model = new_model(teacher.embedding, teacher.context, ModelShape(**sizes), seed)

    def loss(batch: Sequence[Trace]) -> Tensor:
        return loss_of(model, teacher, padded(batch, device))

    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "training.safetensors"
    losses = update_all(model, lesson.learned, loss, settings, unfinished, progress)
    measured = batches_of(lesson.measured, tokens, np.random.default_rng(0))
    found = measure([model], teacher, [padded(batch, device) for batch in measured])
    sha256, size = save_model(model, folder, lesson.target, lesson.facts)
    unfinished.unlink(missing_ok=True)
    return TrainedModel(
        str(folder),
        lesson.target,
        sha256,
        size,
        sum(weight.numel() for weight in model.parameters()),
        len(losses),
        len(lesson.learned),
        last_loss(losses),
        found.loss,
        found.agreement[0],
        found.overlap,
        perf_counter() - began,
    )
