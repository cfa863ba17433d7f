"""A target and its recorded answers: what a drafter is trained on."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foresay.models import weights
from foresay.models.progress import Progress
from foresay.models.tables import ModelFacts, facts_of
from foresay.models.teacher import Teacher, check_device
from foresay.models.weights.stored import in_folder
from foresay.traces import Trace
from foresay.train.settings import CorpusFiles, check_corpus
from foresay.train.texts import read_answers, split

__all__ = ["Lesson", "open_lesson"]


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
    paths = check_corpus(corpus)
    model = in_folder(weights.find(target, convert=True, progress=progress))
    facts = facts_of(model)
    progress("read", 0, None)
    teacher = Teacher(model.folder, device=device)
    limit = min(settings["longest"], teacher.context)
    traces = read_answers(paths, vocabulary=facts.vocabulary, longest=limit)
    return Lesson(
        str(target), facts, teacher, *split(traces, settings["held_out"], settings["seed"])
    )
