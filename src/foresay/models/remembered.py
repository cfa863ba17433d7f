"""What a start has found out about a model on this machine, remembered for the next start: how long
steps take, and whether it is batch-invariant.

It belongs to a machine, to what it runs and to this build of foresay: any other is another file.
After a month it is found out again, since a host may change in ways that its name does not say. A
file that is not exactly as it was written is ignored.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import time
from pathlib import Path
from typing import Any

from foresay import __version__, _core
from foresay.files import whole_file
from foresay.machine import usable_processors
from foresay.models.weights.cache import cache_folder

__all__ = ["Memory", "is_remembering"]

_SECONDS = 30 * 24 * 3600.0  # how long it is believed
_BYTES = 1 << 16  # of a file; a hundred timed steps take 5 KB
_FILES = 256  # in the folder: some models in some ways, and each new build begins anew
# What /proc/cpuinfo says of a processor that does not change while it runs.
_CPU = (
    *("vendor_id", "cpu family", "model", "model name", "stepping"),
    *("CPU implementer", "CPU architecture", "CPU variant", "CPU part", "CPU revision"),
)


def is_remembering() -> bool:
    """Whether such files are used and kept: unless FORESAY_REMEMBER is 0."""
    return os.environ.get("FORESAY_REMEMBER") != "0"


class Memory:
    """What is remembered of one way to run one model on this machine.

    what      is remembered, in a word
    identity  of the target: its shapes and types, and all that its steps depend on
    threads   that it uses; 0: unknown
    folder    where files are kept; None: in the cache
    """

    def __init__(
        self, what: str, identity: str, threads: int = 0, folder: Path | None = None
    ) -> None:
        self._key = {
            "what": what,
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

    def read(self) -> Any:
        """The value as JSON gives it; None if there is none, or it is old or damaged. Who reads it
        checks it: a byte of it may be another one.
        """
        try:
            # Nothing else is opened: a pipe would be waited for, a device has no end.
            if not self.path.is_file() or self.path.stat().st_size > _BYTES:
                return None
            found = json.loads(self.path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError):
            return None
        if not isinstance(found, dict) or found.keys() != {"key", "time", "value"}:
            return None
        if found["key"] != self._key or not _is_recent(found["time"]):
            return None
        return found["value"]

    def write(self, value: Any) -> None:
        """Keep a value in the file, all of it or none, and remove the oldest files where there are
        too many. A cache that cannot be written is no error: the next start finds it out again.
        What a process that was killed here has left is removed; where it is another's that still
        writes, that one keeps nothing.
        """
        text = json.dumps({"key": self._key, "time": time.time(), "value": value})
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            for left in self.path.parent.glob(f".{self.path.name}.*.part"):
                left.unlink(missing_ok=True)
            with whole_file(self.path) as part:
                part.write_text(text + "\n", encoding="utf-8")
            files = [(path.stat().st_mtime_ns, path) for path in self.path.parent.glob("*.json")]
            for _, path in sorted(files)[:-_FILES]:
                path.unlink(missing_ok=True)
        except OSError:
            pass


def _is_recent(written: object) -> bool:
    return type(written) is float and 0 <= time.time() - written < _SECONDS


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
