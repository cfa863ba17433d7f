"""What a training is asked for, checked without torch, whose import takes seconds."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TypeAlias

from foresay.arrays import check_positive, user_path
from foresay.errors import InputError, TraceError
from foresay.models.weights.folder import config_of
from foresay.traces import read_records

__all__ = ["CorpusFiles", "check_corpus", "check_settings", "check_writing", "out_folder"]

CorpusFiles: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""One trace file of a target's answers, or several."""

_SHARES = ("learning_rate", "decay", "held_out", "covered")  # the other numbers are whole
_MOST = {
    "epochs": 10_000,
    "held_out": 0.5,
    "steps": 64,
    "layers": 4096,  # as a KV cache may have
    "intermediate": 1 << 20,
}
_FIELDS = ("prompt", "question", "turns")


def check_settings(**settings: Any) -> dict[str, Any]:
    """The settings, if they are whole numbers from 1 on, shares above 0, and a seed.

    Raises: InputError.
    """
    for name, value in settings.items():
        if name == "seed":
            if type(value) is not int or not 0 <= value < 1 << 63:
                raise InputError(
                    f"seed is {value!r}; expected a whole number from 0 on, below 2^63"
                )
        elif name not in _SHARES:
            check_positive(value, name)
        elif isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= 1:
            raise InputError(f"{name} is {value!r}; expected a number above 0, at most 1")
        if name in _MOST and value > _MOST[name]:
            raise InputError(f"{name} is {value}; expected at most {_MOST[name]}")
    return settings


def check_corpus(corpus: CorpusFiles) -> list[Path]:
    """The trace files, if each can be read and its first line is a JSON object.

    Raises: InputError, TraceError.
    """
    files = [corpus] if isinstance(corpus, (str, os.PathLike)) else list(corpus)
    paths = [user_path(file, "the corpus") for file in files]
    for path in paths:
        next(iter(read_records(path)), None)
    return paths


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


def check_writing(
    out: str | os.PathLike[str],
    invented: int,
    prompts: Sequence[str | os.PathLike[str]],
    temperatures: Sequence[float],
) -> tuple[Path, list[str]]:
    """The file to write, and the prompts that are given.

    Raises: InputError, TraceError naming the file and the line without a prompt.
    """
    if type(invented) is not int or invented < 0:
        raise InputError(f"invented is {invented!r}; expected a whole number from 0 on")
    if not temperatures or any(not 0 <= value <= 10 for value in temperatures):
        raise InputError(f"temperatures are {[*temperatures]}; expected numbers from 0 to 10")
    path = user_path(out, "out")
    if not path.name.endswith(".jsonl.gz"):
        raise InputError(f"out is '{path}'; expected a file name that ends with .jsonl.gz")
    if path.is_dir() or (path.parent.exists() and not path.parent.is_dir()):
        raise InputError(f"out is '{path}', which cannot be a file; expected one in a folder")
    given = [said for file in prompts for said in _first_turns(user_path(file, "prompts"))]
    if invented + len(given) < 1:
        raise InputError(
            "there are no prompts; expected a file of them (`prompts`), or some to invent "
            "(`invented`)"
        )
    return path, given


def _first_turns(file: Path) -> list[str]:
    """What the user says first, line by line."""
    found = []
    for where, record in read_records(file):
        value = next((record[field] for field in _FIELDS if field in record), None)
        said = value[0] if isinstance(value, list) and value else value
        if not isinstance(said, str) or not said.strip():
            raise TraceError(f"{where} has no prompt; expected one of {', '.join(_FIELDS)}")
        found.append(said)
    return found
