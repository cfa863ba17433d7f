"""What this process may use of its machine."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

__all__ = ["seconds_kept_waiting", "usable_processors"]


def usable_processors() -> int:
    """How many processors this process may use; where the system does not say it (macOS), how many
    there are.
    """
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def seconds_kept_waiting() -> float:
    """How long the threads that this process has now were ready but had no processor, since each of
    them began; 0 where the system does not say it. Another process's work is the usual reason.
    """
    waited = 0
    for thread in Path("/proc/self/task").glob("*/schedstat"):
        with suppress(OSError, ValueError, IndexError):  # it has ended, or says something else
            waited += int(thread.read_text().split()[1])
    return waited * 1e-9
