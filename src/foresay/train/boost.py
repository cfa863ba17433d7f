"""Boost tuning: copies of a draft model that learn what the ones before them miss.

Several small models draft together, and a token is covered if one of them has it. So each copy is
tuned on the same answers, but a token that an earlier model already has counts little. What the
union covers grows with every model; what a model covers alone may fall.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from torch import Tensor

from foresay.arrays import user_path
from foresay.files import whole_file
from foresay.models.progress import Progress, silent
from foresay.models.small import SmallModel, read_small
from foresay.models.weights.folder import check
from foresay.models.weights.hashes import sha256_of
from foresay.traces import Trace
from foresay.train.distil import loss_of, measure, save_model
from foresay.train.lesson import Lesson, batches_of, mark_of, open_lesson, padded
from foresay.train.loop import update_all
from foresay.train.settings import CorpusFiles, check_settings

__all__ = ["Boosted", "boost"]


@dataclass(frozen=True, slots=True)
class Boosted:
    """A tuning that is done.

    out        the folders of the tuned models, in their order
    sha256     of their weights
    agreement  of the first model and each tuned one: how often its likeliest token is the target's
               in answers that were not trained on
    coverage   how often one of them agrees: of the first alone, with one tuned model, and so on
    control    the same as `coverage`, if the tuned models had learned from all tokens alike; empty
               if that was not asked for
    """

    out: list[str]
    target: str
    sha256: list[str]
    agreement: list[float]
    coverage: list[float]
    control: list[float]
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def boost(
    model: str | os.PathLike[str],
    target: str | os.PathLike[str],
    corpus: CorpusFiles,
    out: str | os.PathLike[str],
    *,
    count: int = 2,
    device: str = "cpu",
    epochs: int = 4,
    tokens: int = 16_384,
    learning_rate: float = 1e-3,
    covered: float = 0.1,
    control: bool = False,
    held_out: float = 0.05,
    longest: int = 1024,
    seed: int = 0,
    progress: Progress = silent,
) -> Boosted:
    """Tune copies of a draft model one after the other, and write each to a folder of its own.

    model     the folder of a small Llama of the target's vocabulary, as `foresay train model`
              writes it
    out       a folder; the tuned models are in 1, 2, … of it. One that is complete is not tuned
              again, so that the same call goes on after an interrupt
    count     how many copies are tuned
    covered   how much a token counts that an earlier model has, against 1 for others
    control   also tune copies that learn from all tokens alike, to compare with
    For the others see `foresay.train.model.train`.

    Raises: InputError, ModelError, TraceError, OSError.
    """
    began = perf_counter()
    settings = check_settings(
        count=count,
        epochs=epochs,
        tokens=tokens,
        longest=longest,
        learning_rate=learning_rate,
        covered=covered,
        held_out=held_out,
        seed=seed,
    )
    settings |= {"target": str(target), "model": str(model)}
    first, folder = user_path(model, "model"), user_path(out, "out")
    check(first)
    # Another model in the same folder is another training.
    settings["first"] = [sha256_of(file) for file in sorted(first.glob("*.safetensors"))]
    lesson = open_lesson(target, corpus, settings, device=device, progress=progress)
    measured = [
        padded(batch, device)
        for batch in batches_of(lesson.measured, tokens, np.random.default_rng(0))
    ]

    def read(folder: Path = first) -> SmallModel:
        return read_small(folder, lesson.facts.vocabulary, device)

    def tuned(folder: Path, covered: float) -> tuple[list[SmallModel], list[str]]:
        """The first model and the tuned ones, and the hashes of these."""
        models, hashes = [read()], list[str]()
        for number in range(1, count + 1):
            own = folder / str(number)
            # Other copies see the texts in another order.
            its = settings | {"covered": covered, "number": number, "seed": seed + number}
            noted = its | {"corpus": mark_of(lesson.learned), "earlier": [*hashes]}
            sha256 = _complete(own, noted)
            if sha256 is None:
                # All alike: the earlier ones need not be asked.
                earlier = models if covered < 1 else ()
                sha256 = _tune(read(), earlier, lesson, its, own, device, progress)
                with whole_file(own / "boost.json") as part:
                    part.write_text(json.dumps(noted | {"sha256": sha256}, indent=1) + "\n")
                (own / "training.safetensors").unlink(missing_ok=True)
            # What is measured and learned from is what was written, in bfloat16.
            models.append(read(own))
            hashes.append(sha256)
        return models, hashes

    models, hashes = tuned(folder, covered)
    found = measure(models, lesson.teacher, measured)
    alike = []
    if control:
        alike = measure(tuned(folder / "control", 1.0)[0], lesson.teacher, measured).coverage
    return Boosted(
        [str(folder / str(number)) for number in range(1, count + 1)],
        lesson.target,
        hashes,
        found.agreement,
        found.coverage,
        alike,
        perf_counter() - began,
    )


def _tune(
    copy: SmallModel,
    earlier: Sequence[SmallModel],
    lesson: Lesson,
    settings: dict[str, Any],
    folder: Path,
    device: str,
    progress: Progress,
) -> str:
    """Tune one copy and write it; the sha256 of its weights."""

    def loss(batch: Sequence[Trace]) -> Tensor:
        texts = padded(batch, device)
        return loss_of(copy, lesson.teacher, texts, earlier, settings["covered"])

    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "training.safetensors"
    update_all(copy, lesson.learned, loss, settings, unfinished, progress)
    return save_model(copy, folder, lesson.target, lesson.facts)[0]


def _complete(folder: Path, noted: dict[str, Any]) -> str | None:
    """The sha256 of a model that was tuned so before, and is as it was; else None."""
    try:
        found = json.loads((folder / "boost.json").read_text())
        sha256 = sha256_of(folder / "model.safetensors")
    except (OSError, ValueError):
        return None
    return sha256 if found == noted | {"sha256": sha256} else None
