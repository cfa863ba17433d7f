"""A target and its recorded answers, which drafters are trained on, in batches."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.errors import InputError
from foresay.models import weights
from foresay.models.progress import Progress
from foresay.models.tables import ModelFacts, facts_of
from foresay.models.teacher import Teacher, check_device
from foresay.models.weights.stored import in_folder
from foresay.traces import Trace, read_traces
from foresay.train.settings import CorpusFiles, check_corpus

__all__ = ["Lesson", "Padded", "batches_of", "frequent", "mark_of", "open_lesson", "padded"]


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
    traces = _read_answers(paths, vocabulary=facts.vocabulary, longest=limit)
    return Lesson(
        str(target), facts, teacher, *_split(traces, settings["held_out"], settings["seed"])
    )


class Padded(NamedTuple):
    """Texts as one table, padded on the right.

    tokens   int64[B, T]
    is_text  int64[B, T]: 1 for tokens of a text
    before   int64[B, N]: the place of the token before each token of the answers
    valid    bool[B, N]: whether the answer has such a token
    """

    tokens: Tensor
    is_text: Tensor
    before: Tensor
    valid: Tensor


def _read_answers(files: Sequence[Path], *, vocabulary: int, longest: int) -> list[Trace]:
    """The requests of trace files that have an answer, and with it at most `longest` tokens.

    Raises: TraceError; InputError for tokens outside the vocabulary, or if nothing is left.
    """
    found = []
    for file in files:
        for trace in read_traces(file):
            if not len(trace.output) or len(trace.prompt) + len(trace.output) > longest:
                continue
            highest = max(int(trace.prompt.max()), int(trace.output.max()))
            if highest >= vocabulary:
                raise InputError(
                    f"{file}: the request {trace.id!r} holds token {highest}; expected 0 to "
                    f"{vocabulary - 1}, the target's vocabulary"
                )
            found.append(trace)
    if len(found) < 2:
        raise InputError(
            f"the corpus has {len(found)} answers of at most {longest} tokens with their prompts; "
            "expected at least 2"
        )
    return found


def _split(traces: Sequence[Trace], held_out: float, seed: int) -> tuple[list[Trace], list[Trace]]:
    """Answers to learn from and answers to measure with, of different groups where there are
    some."""
    groups = sorted({trace.group for trace in traces})
    by_group = len(groups) > 20
    names = groups if by_group else [str(at) for at in range(len(traces))]
    order = np.random.default_rng(seed).permutation(len(names)).tolist()
    kept = {names[at] for at in order[: max(1, round(held_out * len(names)))]}
    own = [trace.group if by_group else str(at) for at, trace in enumerate(traces)]
    learned = [trace for trace, name in zip(traces, own, strict=True) if name not in kept]
    return learned, [trace for trace, name in zip(traces, own, strict=True) if name in kept]


def mark_of(traces: Sequence[Trace]) -> str:
    """What tells one corpus from another."""
    mark = hashlib.sha256()
    for trace in traces:
        for tokens in (trace.prompt, trace.output):
            mark.update(len(tokens).to_bytes(4, "little") + tokens.tobytes())
    return mark.hexdigest()[:32]


def frequent(traces: Sequence[Trace], vocabulary: int, count: int) -> tuple[Tensor, float]:
    """The `count` most frequent tokens of the answers, by id, and which share of these they are."""
    counts: NDArray[np.int64] = np.zeros(vocabulary, np.int64)
    for trace in traces:
        counts += np.bincount(trace.output, minlength=vocabulary)
    chosen = np.sort(np.argsort(-counts, kind="stable")[:count])
    return torch.from_numpy(chosen), float(counts[chosen].sum() / counts.sum())


def batches_of(
    traces: Sequence[Trace], tokens: int, random: np.random.Generator
) -> list[list[Trace]]:
    """All texts in batches of about `tokens` with padding, in random order. Texts of about one
    length are together."""
    jitter = random.uniform(0.9, 1.1, len(traces))  # so that the batches differ from time to time
    sizes = np.array([len(trace.prompt) + len(trace.output) for trace in traces])
    batches: list[list[Trace]] = [[]]
    widest = 0
    for at in np.argsort(sizes * jitter, kind="stable").tolist():
        widest = max(widest, int(sizes[at]))
        if batches[-1] and widest * (len(batches[-1]) + 1) > tokens:
            batches.append([])
            widest = int(sizes[at])
        batches[-1].append(traces[at])
    return [batches[at] for at in random.permutation(len(batches)).tolist()]


def padded(traces: Sequence[Trace], device: str) -> Padded:
    """Texts as one table."""
    width = max(len(trace.prompt) + len(trace.output) for trace in traces)
    answer = max(len(trace.output) for trace in traces)
    tokens, is_text = np.zeros((2, len(traces), width), np.int64)
    before = np.zeros((len(traces), answer), np.int64)
    valid = np.zeros((len(traces), answer), bool)
    for row, trace in enumerate(traces):
        begin, size = len(trace.prompt), len(trace.output)
        tokens[row, :begin], tokens[row, begin : begin + size] = trace.prompt, trace.output
        is_text[row, : begin + size] = 1
        before[row, :size] = np.arange(begin - 1, begin - 1 + size)
        valid[row, :size] = True
    return Padded(*(torch.from_numpy(part).to(device) for part in (tokens, is_text, before, valid)))
