"""What a `WorkerDrafter` sends, as plain values; and what it gets, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from numbers import Integral
from os import PathLike, fspath
from typing import Any

import numpy as np

from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.drafter import SeededParams, check_lengths
from foresay.drafters.decoding.shapes import as_shape
from foresay.drafters.worker.frames import Frame
from foresay.errors import InputError, WorkerError

__all__ = [
    "MODEL_SETTINGS",
    "as_environ",
    "as_name",
    "as_seconds",
    "drafts_of",
    "plain_sampling",
    "plain_settings",
]

MODEL_SETTINGS = ("shape", "choice", "memory")
"""Settings that only ModelDrafter has."""
_SETTINGS = ("share", "corpus", "tokenizer_hash", "verify", "chain", "room", *MODEL_SETTINGS)
_FLAGS = ([False, False], [True, False], [False, True], [True, True])


def as_seconds(value: object, name: str) -> float:
    """A time as it is. Raises: InputError."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not number or not 0 < value <= 86400:  # type: ignore[operator]
        raise InputError(f"{name} is {value!r}; expected seconds, above 0 and at most 86400")
    return float(value)  # type: ignore[arg-type]


def as_name(value: str | None, name: str) -> str | None:
    """A group or tenant as it is. Raises: InputError."""
    if value is not None and not isinstance(value, str):
        raise InputError(f"{name} is {value!r}; expected a str, or None")
    return value


def as_environ(value: Mapping[str, str] | None) -> dict[str, str]:
    """Changes of an environment. Raises: InputError."""
    items = [] if value is None else list(value.items()) if isinstance(value, Mapping) else None
    if items is None or not all(isinstance(part, str) for item in items for part in item):
        raise InputError(f"environ is {value!r}; expected names of variables and their values")
    if any(
        "\0" in part or (at == 0 and "=" in part) for item in items for at, part in enumerate(item)
    ):
        raise InputError(f"environ is {value!r}; expected no NUL, and no = in a name")
    return dict(items)


def plain_settings(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings of `make_drafter` and of ModelDrafter, for JSON. Raises: InputError."""
    plain: dict[str, Any] = {}
    for name, value in settings.items():
        if name not in _SETTINGS:
            raise InputError(f"there is no setting {name!r}; expected {', '.join(_SETTINGS)}")
        kinds: tuple[type, ...] = (str, bool, dict)
        if name in MODEL_SETTINGS:
            kinds += (int, list)
        if name == "shape":
            as_shape(value)
            value = list(value) if isinstance(value, Sequence) else value
        if isinstance(value, PathLike):
            value = fspath(value)
        elif isinstance(value, bytes):
            value = value.hex()
        elif is_dataclass(value) and not isinstance(value, type):
            value = asdict(value)
        if value is not None and not isinstance(value, kinds):
            raise InputError(f"{name} is {value!r}; expected a value as for make_drafter")
        plain[name] = value
    return plain


def plain_sampling(sampling: SeededParams | None) -> dict[str, Any]:
    """Sampling parameters and seed, for JSON."""
    if sampling is None:
        return {"params": None, "seed": 0}
    params = {
        each.name: _plain(getattr(sampling.params, each.name)) for each in fields(sampling.params)
    }
    return {"params": params, "seed": int(sampling.seed)}


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return [[int(key), float(item)] for key, item in value.items()]
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(item) for item in value]
    if value is None or isinstance(value, (str, bool)):
        return value
    return int(value) if isinstance(value, Integral) else float(value)


def drafts_of(frame: Frame, step: int, budgets: Sequence[int], width: int | None) -> list[Draft]:
    """The drafts of an answer to step `step`; `width`: of the vocabulary, if that is known.

    Raises: WorkerError, InputError for what is no such answer.
    """
    if frame.kind != "drafts" or frame.whole("step") != step:
        raise WorkerError(
            f"the answer is {frame.kind!r} of step {frame.values.get('step')!r}; expected 'drafts' "
            f"of step {step}"
        )
    parts, arrays = frame.values.get("parts"), iter(frame.arrays)
    if not isinstance(parts, list) or any(part not in _FLAGS for part in parts):
        raise WorkerError(f"parts of the answer are {str(parts)[:80]}; expected pairs of flags")
    check_lengths(len(budgets), len(parts), "drafts")
    frame.expect(sum(2 + sum(part) for part in parts))
    drafts = []
    for part, budget in zip(parts, budgets, strict=True):
        tokens, parents = next(arrays), next(arrays)
        scores, probs = (next(arrays) if given else None for given in part)
        drafts.append(Draft(tokens, parents, scores, probs))
        if len(tokens) > budget:
            raise WorkerError(f"a draft has {len(tokens)} nodes; expected at most {budget}")
        if probs is not None:
            _check_probs(probs, tokens, probs.shape[1] if width is None else width)
    return drafts


def _check_probs(probs: Any, tokens: Int32s, width: int) -> None:
    if probs.shape[1] != width or tokens.max(initial=0) >= width:
        raise WorkerError(f"probs have {probs.shape[1]} columns; expected {width}, and its tokens")
    sums = probs.sum(axis=1, dtype=np.float64)
    own = probs[np.arange(len(tokens)), tokens]
    if not ((probs >= 0).all() and np.isfinite(sums).all() and (own > 0).all()):
        raise WorkerError("probs have an invalid row; expected chances, its token's above 0")
