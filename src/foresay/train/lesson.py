"""A target and its recorded answers: what a drafter is trained on."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from foresay.arrays import user_path
from foresay.errors import InputError
from foresay.models import weights
from foresay.models.progress import Progress
from foresay.models.tables import ModelFacts, facts_of
from foresay.models.teacher import Teacher, check_device
from foresay.models.weights.folder import config_of
from foresay.models.weights.stored import in_folder
from foresay.traces import Trace
from foresay.train.texts import read_answers, split

__all__ = ["CorpusFiles", "Lesson", "open_lesson", "out_folder"]

CorpusFiles: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One trace file of a target's answers, or several."""


@dataclass(frozen=True, slots=True, eq=False)
class Lesson:
    """target    its name, as it was given
    facts     its sizes and its tokenizer's hash
    teacher   the target itself
    learned   answers to learn from
    measured  answers of other groups, which only measure
    """

    target: str
    facts: ModelFacts
    teacher: Teacher
    learned: list[Trace]
    measured: list[Trace]

    @property
    def traces(self) -> list[Trace]:
        """All answers."""
        return self.learned + self.measured


def out_folder(out: str | os.PathLike[str], kind: str) -> Path:
    """The folder to write weights to, which may have to be made.

    kind  the architecture that will be written: a folder with another one is not overwritten

    Raises: InputError, ModelError for a damaged config.json.
    """
    folder = user_path(out, "out")
    if folder.exists() and not folder.is_dir():
        raise InputError(f"out is '{folder}', which is a file; expected a folder")
    if (folder / "config.json").exists():
        found = config_of(folder).get("architectures")
        if found != [kind]:
            raise InputError(
                f"out is '{folder}', which holds {found}; expected a new folder, or one of an "
                f"earlier {kind}"
            )
    return folder


def open_lesson(
    target: str | os.PathLike[str],
    corpus: CorpusFiles,
    settings: Mapping[str, Any],
    *,
    device: str,
    progress: Progress,
) -> Lesson:
    """Load the target and read its answers.

    target    a model, by any name that `foresay generate --model` takes
    settings  `held_out`, the share of the answers that only measure; `longest`, longer texts are
              left out; `seed`

    Raises: InputError, ModelError, TraceError.
    """
    check_device(device)
    files = [corpus] if isinstance(corpus, (str, os.PathLike)) else list(corpus)
    paths = [user_path(file, "the corpus") for file in files]
    progress("find", 0, None)
    model = in_folder(weights.find(target, progress=progress))
    facts = facts_of(model)
    progress("read", 0, None)
    teacher = Teacher(model.folder, device=device)
    limit = min(settings["longest"], teacher.context)
    traces = read_answers(paths, vocabulary=facts.vocabulary, longest=limit)
    return Lesson(
        str(target), facts, teacher, *split(traces, settings["held_out"], settings["seed"])
    )
