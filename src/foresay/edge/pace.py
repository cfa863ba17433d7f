"""Where a drafter works: in the event loop if it is quick, else in a thread."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from time import perf_counter
from typing import TypeVar

from foresay.errors import StateError

__all__ = ["Pace"]

T = TypeVar("T")
_QUICK = 0.002
"""Seconds: below this a call delays nobody."""


class Pace:
    """Runs a drafter's calls, one at a time, where they do not delay the event loop.

    By what calls took so far, and in the thread before anything is known. Streams that share a
    drafter share its pace: no two calls are under way at once. All methods mutate it.
    """

    def __init__(self) -> None:
        self._thread: ThreadPoolExecutor | None = None
        self._busy = threading.Lock()
        self._closed = False
        self.seconds: float | None = None
        """A moving average of what a call takes, which falls slowly and rises at once."""

    @property
    def quick(self) -> bool:
        return self.seconds is not None and self.seconds < _QUICK

    async def call(self, work: Callable[[], T]) -> T:
        """The work's result. If the caller is cancelled, the work in the thread still ends, and
        the next one begins behind it. Raises: what the work raises.
        """
        if self._closed:
            raise StateError("the client was closed; expected no more drafts")
        if self.quick and self._busy.acquire(blocking=False):
            try:
                return self._timed(work)
            finally:
                self._busy.release()
        return await asyncio.get_running_loop().run_in_executor(self._executor(), self._alone, work)

    def later(self, work: Callable[[], object]) -> None:
        """Do it after all calls before, at once if there are none, without waiting for them."""
        if self._busy.acquire(blocking=self._closed):
            try:
                work()
            finally:
                self._busy.release()
        else:
            self._executor().submit(self._alone, work)

    def _executor(self) -> ThreadPoolExecutor:
        if self._thread is None:
            self._thread = ThreadPoolExecutor(1, thread_name_prefix="edge-drafter")
        return self._thread

    def _alone(self, work: Callable[[], T]) -> T:
        with self._busy:
            return self._timed(work)

    def _timed(self, work: Callable[[], T]) -> T:
        began = perf_counter()
        try:
            return work()
        finally:
            took = perf_counter() - began
            old = took if self.seconds is None else self.seconds
            self.seconds = max(took, old + (took - old) / 4)

    def close(self) -> None:
        """No more calls: `call` raises StateError. What is under way ends by itself."""
        self._closed = True
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None
