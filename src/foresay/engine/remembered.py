"""Timed steps that are remembered, so that the next start need not time them again.

They belong to a machine, to what it runs and to this build of foresay: any other is another file.
After a month they are timed again, since a host may change in ways that its name does not say. A
file that is not exactly as it was written is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
import time
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from typing import Any

from foresay import __version__, _core
from foresay.budget.cost import Sample
from foresay.machine import usable_processors
from foresay.models.weights.cache import cache_folder

__all__ = ["Memory"]

_SECONDS = 30 * 24 * 3600.0  # how long they are believed
_MOST = 200  # samples: some 60 are written
_BYTES = 1 << 16  # of a file
_LEAST = 1e-7  # seconds of a step
# What /proc/cpuinfo says of a processor that does not change while it runs.
_CPU = (
    *("vendor_id", "cpu family", "model", "model name", "stepping"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
)


class Memory:
    """The remembered samples of one way to run one model on this machine.

    identity  of the target: its weights, and all that its steps' times depend on
    threads   that it uses; 0: unknown
    folder    where files are kept; None: in the cache
    """

    def __init__(self, identity: str, threads: int = 0, folder: Path | None = None) -> None:
        self._key = {
            "target": identity,
            "threads": threads,
            "processor": _processor(),
            "processors": usable_processors(),
            "level": _core.cpu_level(),
            "foresay": __version__,
            "core": _build(),
        }
        digest = hashlib.sha256(json.dumps(self._key, sort_keys=True).encode()).hexdigest()
        self.path = (folder or cache_folder() / "measured") / f"{digest[:32]}.json"

    def read(self) -> list[Sample] | None:
        """The samples; None if there are none, or they are old or damaged."""
        try:
            # Nothing else is opened: a pipe would be waited for, a device has no end.
            if not self.path.is_file() or self.path.stat().st_size > _BYTES:
                return None
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.keys() != {"key", "time", "samples"}:
            return None
        if found["key"] != self._key or not _is_recent(found["time"]):
            return None
        listed = found["samples"]
        if not isinstance(listed, list) or not 0 < len(listed) <= _MOST:
            return None
        samples = [_sample(one) for one in listed]
        return None if None in samples else [one for one in samples if one is not None]

    def write(self, samples: Sequence[Sample]) -> None:
        """Keep the samples in the file, all of them or none. A cache that cannot be written is no
        error: they are timed again. What a process that was killed here has left is removed; where
        it is another's that still writes, that one keeps nothing.
        """
        text = json.dumps({"key": self._key, "time": time.time(), "samples": samples})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for left in self.path.parent.glob(f"{self.path.stem}*.tmp"):
                left.unlink(missing_ok=True)
            descriptor, temporary = tempfile.mkstemp(".tmp", self.path.stem, self.path.parent)
            try:
                with open(descriptor, "w", encoding="utf-8") as file:
                    file.write(text + "\n")
                os.replace(temporary, self.path)
            except BaseException:
                os.unlink(temporary)
                raise
        except OSError:
            pass


def _is_recent(written: object) -> bool:
    return type(written) is float and 0 <= time.time() - written < _SECONDS


def _sample(given: Any) -> Sample | None:
    """A sample as it was written; None for anything else."""
    if not isinstance(given, list) or len(given) != len(Sample._fields):
        return None
    sample = Sample(*given)
    counts = (sample.rows, sample.reads, sample.keys, sample.requests)
    if not all(type(count) is int and 0 <= count < 1 << 40 for count in counts):
        return None
    if type(sample.seconds) is not float or not isfinite(sample.seconds):
        return None
    return sample if sample.rows and sample.requests and _LEAST < sample.seconds < 1e4 else None


def _processor() -> str:
    """The name of the processor, or what else the system tells of it."""
    found: dict[str, None] = {}
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        name, _, value = line.partition(":")
        if name.strip() in _CPU:
            found[f"{name.strip()} {value.strip()}"] = None
    return ", ".join([platform.machine(), *found])


def _build() -> str:
    """This build of the core: its file's size and time."""
    try:
        stat = os.stat(_core.__file__)
    except OSError:
        return ""
    return f"{stat.st_size} {stat.st_mtime_ns}"
