"""The settings inside vLLM: by environment variables, or in one file for all processes.

A setting `name` is the variable FORESAY_VLLM_NAME, or the key `name` in the object "vllm" of the
JSON file that FORESAY_CONFIG names. The variable wins. `describe` lists them all.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import Field, dataclass, field, fields
from pathlib import Path
from typing import Any

from foresay.errors import InputError

__all__ = ["VllmSettings", "describe", "read_settings"]

PREFIX = "FORESAY_VLLM_"
CONFIG = "FORESAY_CONFIG"
_SWITCH = {"1": True, "true": True, "on": True, "0": False, "false": False, "off": False}


def _setting(default: Any, says: str, least: float = 0, most: float = 0) -> Any:
    return field(default=default, metadata={"says": says, "least": least, "most": most})


@dataclass(frozen=True, slots=True, kw_only=True)
class VllmSettings:
    """All settings, with their defaults.

    Raises: InputError when constructed.
    """

    history: bool = _setting(True, "whether finished answers are drafted from")
    history_bytes: int = _setting(256 << 20, "memory for finished answers", 0, 1 << 50)
    groups: bool = _setting(
        True, "whether requests with the same prompt draft from each other's answers"
    )
    group_bytes: int = _setting(1 << 30, "memory for the texts of such groups", 0, 1 << 50)
    corpus: str = _setting("", "a corpus file to draft from as well; none if empty")
    threads: int = _setting(
        0,
        "of the core; 0: half as many as each tensor-parallel rank has processors, at most 4",
        0,
        256,
    )
    max_requests: int = _setting(0, "no drafts while more requests run; 0: no bound", 0, 1 << 20)
    many_requests: int = _setting(
        64,
        "from this many requests on, a draft is at most twice the tokens of the last step",
        1,
        1 << 20,
    )
    least_chance: float = _setting(
        0.1, "a token is drafted if its probability to be accepted is at least this", 0, 1
    )
    measure: bool = _setting(
        True, "whether measured times may shorten drafts; never with tensor parallelism"
    )
    grace: int = _setting(
        64,
        "steps after which an absent request counts as finished",
        0,
        4096,
    )
    versions: int = _setting(
        2,
        "where a trainer changes the weights: for how many changes a text is drafted from",
        0,
        1 << 20,
    )
    versions_file: str = _setting(
        "", "a file that gets one JSON line per change of the weights; none if empty"
    )
    log_seconds: float = _setting(10.0, "time between two lines in the log; 0: none", 0, 86400)
    steps_file: str = _setting("", "a file that gets one JSON line per step; none if empty")

    def __post_init__(self) -> None:
        for item in fields(self):
            _refuse_wrong(item.name, getattr(self, item.name), item)


def _refuse_wrong(called: str, value: Any, item: Field[Any]) -> None:
    """Check a value, under the name by which it was given."""
    kind, least, most = type(item.default), item.metadata["least"], item.metadata["most"]
    if kind in (int, float):
        number = type(value) is int or (kind is float and type(value) is float)
        if not number or not least <= value <= most:
            word = "whole number" if kind is int else "number"
            raise InputError(f"{called} is {value!r}; expected a {word} from {least} to {most}")
    elif type(value) is not kind:
        word = "true or false" if kind is bool else "a string"
        raise InputError(f"{called} is {value!r}; expected {word}")


def read_settings(environ: Mapping[str, str] | None = None) -> VllmSettings:
    """The settings of this process, from the variables and the file that they name.

    Raises: InputError for a name that does not exist, a value out of range, or a file that is
    not valid.
    """
    given = os.environ if environ is None else environ
    values: dict[str, Any] = _from_file(given[CONFIG]) if given.get(CONFIG) else {}
    known = {item.name: item for item in fields(VllmSettings)}
    for name, value in values.items():
        if name not in known:
            raise InputError(
                f'the object "vllm" in {given[CONFIG]} has {name!r}; expected {", ".join(known)}'
            )
        _refuse_wrong(f"{name} in {given[CONFIG]}, which {CONFIG} names,", value, known[name])
    for variable, word in given.items():
        if not variable.startswith(PREFIX):
            continue
        name = variable[len(PREFIX) :].lower()
        if name not in known:
            valid = ", ".join(PREFIX + n.upper() for n in known)
            raise InputError(f"the variable {variable} is set; expected one of {valid}")
        values[name] = _parsed(variable, word, type(known[name].default))
        _refuse_wrong(variable, values[name], known[name])
    return VllmSettings(**values)


def describe() -> str:
    """One line per setting: its variable, its default, and what it means."""
    return "\n".join(
        f"{PREFIX}{item.name.upper()}={json.dumps(item.default)}  {item.metadata['says']}"
        for item in fields(VllmSettings)
    )


def _from_file(path: str) -> dict[str, Any]:
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(
            f"{CONFIG} names {path}, which cannot be read as JSON ({error})"
        ) from error
    section = content.get("vllm", {}) if isinstance(content, dict) else None
    if not isinstance(section, dict):
        raise InputError(f'{CONFIG} names {path}; expected a JSON object with an object "vllm"')
    return section


def _parsed(variable: str, word: str, kind: type) -> Any:
    if kind is str:
        return word
    if kind is bool:
        if word.lower() not in _SWITCH:
            raise InputError(f"{variable} is {word!r}; expected one of {', '.join(_SWITCH)}")
        return _SWITCH[word.lower()]
    try:
        return kind(word)
    except ValueError:
        name = "whole number" if kind is int else "number"
        raise InputError(f"{variable} is {word!r}; expected a {name}") from None
