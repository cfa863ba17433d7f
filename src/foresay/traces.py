"""Trace files: recorded prompts and outputs of models, as token ids.

JSON lines, optionally gzipped, one request per line:

    {"id": str, "group": str, "prompt": [int, …], "output": [int, …]}

`group` names the requests that are samples of one prompt (or belong together in another way).
Other fields are ignored. `read_texts` (for a corpus) also takes lines without id and group, and
lines {"tokens": [int, …]}. This module knows the format and nothing of drafters.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from foresay.arrays import Int32s, as_tokens
from foresay.errors import InputError, TraceError

__all__ = [
    "Field",
    "Trace",
    "TraceOrder",
    "read_records",
    "read_texts",
    "read_traces",
    "staggered",
]

Field: TypeAlias = Literal["both", "output"]
"""The text of a request: prompt and output together, or the output alone."""

TraceOrder: TypeAlias = Literal["file", "stagger"]
"""In which order recorded requests begin: that of the file, or one of every group before the second
of any. For samples that are yet to be made: `foresay.rl.rollouts.Order`."""

_REQUEST = "expected id, group, prompt and output"
_TEXT = "expected prompt and output, or tokens"


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One recorded request."""

    id: str
    group: str
    prompt: Int32s  # at least one token
    output: Int32s


def read_traces(path: str | Path) -> list[Trace]:
    """All requests of a trace file, in its order.

    Raises: TraceError naming the file and the line.
    """
    traces = [_trace(where, record) for where, record in read_records(Path(path))]
    if not traces:
        raise TraceError(f"{path} holds no request; expected one JSON object per line")
    return traces


def read_texts(path: str | Path, field: Field = "both") -> Iterator[Int32s]:
    """The text of each line, read as the iterator advances: one line in memory at a time.

    A line with "tokens" gives these tokens, for either field.

    Raises: InputError for another field; TraceError, while iterating, naming the file and the line.
    """
    if field not in ("both", "output"):
        raise InputError(f"field is {field!r}; expected 'both' or 'output'")
    return (_text(where, record, field) for where, record in read_records(Path(path)))


def staggered(traces: Sequence[Trace]) -> list[Trace]:
    """One sibling of every group before the second of any; otherwise in the given order."""
    seen: dict[str, int] = {}
    rounds = []
    for trace in traces:
        rounds.append(seen.get(trace.group, 0))
        seen[trace.group] = rounds[-1] + 1
    order = sorted(range(len(traces)), key=rounds.__getitem__)  # stable
    return [traces[i] for i in order]


def _trace(where: str, record: dict[str, Any]) -> Trace:
    name = _value(where, record, "id", str, _REQUEST)
    group = _value(where, record, "group", str, _REQUEST)
    prompt = _tokens(where, record, "prompt", _REQUEST)
    output = _tokens(where, record, "output", _REQUEST)
    if not len(prompt):
        raise TraceError(f"{where}: the prompt is empty; expected at least 1 token")
    return Trace(name, group, prompt, output)


def _text(where: str, record: dict[str, Any], field: Field) -> Int32s:
    if "tokens" in record:
        return _tokens(where, record, "tokens", _TEXT)
    output = _tokens(where, record, "output", _TEXT)
    if field == "output":
        return output
    return np.concatenate([_tokens(where, record, "prompt", _TEXT), output])


def _tokens(where: str, record: dict[str, Any], field: str, needs: str) -> Int32s:
    values = _value(where, record, field, list, needs)
    try:
        return as_tokens(values, field)
    except InputError as error:
        raise TraceError(f"{where}: {error}") from error


def _value(where: str, record: dict[str, Any], field: str, kind: type, needs: str) -> Any:
    if field not in record:
        raise TraceError(f"{where} has no {field!r}; {needs}")
    if not isinstance(record[field], kind):
        found = type(record[field]).__name__
        raise TraceError(f"{where}: {field!r} is a {found}; expected a {kind.__name__}")
    return record[field]


def read_records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The place and the object of each line that is not blank.

    Raises: TraceError, while iterating, naming the file and the line.
    """
    for number, line in _lines(path):
        where = f"{path}, line {number}"
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise TraceError(f"{where} is not JSON: {error}") from error
        if not isinstance(record, dict):
            raise TraceError(f"{where} is a {type(record).__name__}; expected a JSON object")
        yield where, record


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    number = 0
    try:
        with path.open("rb") as probe:
            gzipped = probe.read(2) == b"\x1f\x8b"
        with (
            gzip.open(path, "rt", encoding="utf-8")
            if gzipped
            else path.open(encoding="utf-8") as file
        ):
            for line in file:
                number += 1
                yield number, line
    except OSError as error:
        raise TraceError(f"{path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise TraceError(f"{path} is not UTF-8 after line {number}; expected UTF-8") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(f"{path} is damaged after line {number}: {error}") from error
