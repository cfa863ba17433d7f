"""What a `WorkerDrafter` is given, checked and ready to be sent; and what it gets, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from os import PathLike
from typing import Any

import numpy as np

from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.drafter import SeededParams
from foresay.drafters.decoding.shapes import as_shape
from foresay.drafters.worker.frames import Frame
from foresay.errors import InputError, WorkerError

__all__ = [
    "MODEL_SETTINGS",
    "as_environ",
    "as_seconds",
    "as_settings",
    "drafts_of",
    "plain_sampling",
]

MODEL_SETTINGS = ("shape", "choice", "memory", "device")
"""Settings that only ModelDrafter has."""
_SETTINGS = ("share", "corpus", "tokenizer_hash", "verify", "chain", "room", *MODEL_SETTINGS)


def as_seconds(value: Any, name: str) -> float:
    """A time as it is. Raises: InputError."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= 86400:
        raise InputError(f"{name} is {value!r}; expected seconds, above 0 and at most 86400")
    return float(value)


def as_environ(value: Mapping[str, str] | None) -> dict[str, str]:
    """Changes of an environment. Raises: InputError."""
    items = [] if value is None else list(value.items()) if isinstance(value, Mapping) else None
    if items is None or not all(isinstance(part, str) for item in items for part in item):
        raise InputError(f"environ is {value!r}; expected names of variables and their values")
    if any("\0" in name + text or "=" in name for name, text in items):
        raise InputError(f"environ is {value!r}; expected no NUL, and no = in a name")
    return dict(items)


def as_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `make_drafter` and of ModelDrafter, as they are. Raises: InputError."""
    for name, value in settings.items():
        if name not in _SETTINGS:
            raise InputError(f"there is no setting {name!r}; expected {', '.join(_SETTINGS)}")
        if name == "shape":
            as_shape(value)
        plain = isinstance(value, (str, bytes, bool, dict, PathLike, type(None)))
        more = name in MODEL_SETTINGS and isinstance(value, (int, Sequence))
        made = is_dataclass(value) and not isinstance(value, type)
        if not (plain or more or made):
            raise InputError(f"{name} is {value!r}; expected a value as for make_drafter")
    return dict(settings)


def plain_sampling(sampling: SeededParams | None) -> dict[str, Any] | None:
    """Sampling parameters and seed, for JSON, whose keys are no numbers."""
    if sampling is None:
        return None
    plain = asdict(sampling)
    plain["params"]["logit_bias"] = list(plain["params"]["logit_bias"].items())
    return plain


def drafts_of(frame: Frame, step: int, budgets: Sequence[int], width: int | None) -> list[Draft]:
    """The drafts of an answer to step `step`; `width`: of the vocabulary, if that is known.

    Raises: WorkerError, InputError for what is no such answer.
    """
    if frame.kind != "drafts" or frame.whole("step") != step:
        raise WorkerError(
            f"the answer is {frame.kind!r} of step {frame.values.get('step')!r}; expected 'drafts' "
            f"of step {step}"
        )
    arrays = frame.expect(4 * len(budgets))
    drafts = []
    for at, budget in enumerate(budgets):
        tokens, parents, scores, probs = arrays[4 * at : 4 * at + 4]
        drafted = Draft(tokens, parents, *(x if len(x) else None for x in (scores, probs)))
        if len(tokens) > budget:
            raise WorkerError(f"a draft has {len(tokens)} nodes; expected at most {budget}")
        if drafted.probs is not None:
            _check_probs(probs, tokens, probs.shape[1] if width is None else width)
        drafts.append(drafted)
    return drafts


def _check_probs(probs: Any, tokens: Int32s, width: int) -> None:
    if probs.shape[1] != width or tokens.max(initial=0) >= width:
        raise WorkerError(f"probs have {probs.shape[1]} columns; expected {width}, and its tokens")
    sums = probs.sum(axis=1, dtype=np.float64)
    own = probs[np.arange(len(tokens)), tokens]
    if not ((probs >= 0).all() and np.isfinite(sums).all() and (own > 0).all()):
        raise WorkerError("probs have an invalid row; expected chances, its token's above 0")
