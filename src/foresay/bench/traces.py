"""Trace files: what models really wrote, as token ids.

JSON lines, optionally gzipped, one request per line:

    {"id": str, "group": str, "prompt": [int, …], "output": [int, …]}

`group` names the requests that are samples of one prompt (or belong together in another way).
Other fields are ignored. This module knows the format and nothing of drafters.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from foresay.arrays import Int32s, as_tokens
from foresay.errors import InputError, TraceError

__all__ = ["Trace", "read_traces", "staggered"]


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """One recorded request. Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held."""

    id: str
    group: str
    prompt: Int32s  # at least one token
    output: Int32s


def read_traces(path: str | Path) -> list[Trace]:
    """All requests of a trace file, in its order.

    Mutates: nothing. Valid until: for ever. Raises: TraceError naming the file and the line.
    GIL: held.
    """
    traces = [_trace(path, number, line) for number, line in _lines(Path(path)) if line.strip()]
    if not traces:
        raise TraceError(f"{path} holds no request; one JSON object per line is needed")
    return traces


def staggered(traces: Sequence[Trace]) -> list[Trace]:
    """One sibling of every group before the second of any; otherwise in the given order.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """
    seen: dict[str, int] = {}
    rounds = []
    for trace in traces:
        rounds.append(seen.get(trace.group, 0))
        seen[trace.group] = rounds[-1] + 1
    order = sorted(range(len(traces)), key=rounds.__getitem__)  # stable
    return [traces[i] for i in order]


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
    except (EOFError, zlib.error, UnicodeDecodeError) as error:
        raise TraceError(f"{path} is damaged after line {number}: {error}") from error


def _trace(path: str | Path, number: int, line: str) -> Trace:
    where = f"{path}, line {number}"
    try:
        record: Any = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise TraceError(f"{where} is not JSON: {error}") from error
    if not isinstance(record, dict):
        raise TraceError(f"{where} is a {type(record).__name__}; a JSON object is needed")
    for field, kind in (("id", str), ("group", str), ("prompt", list), ("output", list)):
        if field not in record:
            raise TraceError(f"{where} has no {field!r}; it needs id, group, prompt and output")
        if not isinstance(record[field], kind):
            found = type(record[field]).__name__
            raise TraceError(f"{where}: {field!r} is a {found}; a {kind.__name__} is needed")
    try:
        prompt = as_tokens(record["prompt"], "prompt")
        output = as_tokens(record["output"], "output")
    except InputError as error:
        raise TraceError(f"{where}: {error}") from error
    if not len(prompt):
        raise TraceError(f"{where}: the prompt is empty; it needs at least 1 token")
    return Trace(record["id"], record["group"], prompt, output)
