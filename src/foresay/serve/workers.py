"""Threads for work that the event loop has no time for, shared by tenants."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

__all__ = ["Workers"]

T = TypeVar("T")


class Workers:
    """Threads for one kind of work, so that no other kind waits for it. To be used in an event
    loop."""

    def __init__(self, name: str, threads: int = 2) -> None:
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix=f"foresay-{name}")
        self._turns: dict[str | None, asyncio.Semaphore] = {}

    def rekey(self, tenants: Collection[str | None], most: int | None = None) -> None:
        """The tenants that there are now, and how many threads each may use; None: all.

        Work that has begun goes on.
        """
        self._turns = {
            tenant: asyncio.Semaphore(most or self._threads)
            for tenant in (None, *self._turns, *tenants)
        }

    async def run(self, tenant: str | None, work: Callable[..., T], *values: Any) -> T:
        """What the work returns, when a thread has done it.

        Raises: what it raises.
        """
        async with self._turns[tenant]:
            return await asyncio.get_running_loop().run_in_executor(self._pool, work, *values)

    def stop(self) -> None:
        """Begin nothing more."""
        self._pool.shutdown(wait=False)
