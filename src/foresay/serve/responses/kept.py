"""Responses that clients may name again, in memory: each tenant has its own, within bounds."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass

__all__ = ["Kept", "KeptResponses"]

_EACH = 512  # bytes that an entry takes besides its texts


@dataclass(frozen=True, slots=True)
class Kept:
    """A response and its input, both as JSON.

    previous  the id of the response that it follows
    """

    name: str
    previous: str | None
    answer: bytes
    input: bytes

    @property
    def size(self) -> int:
        """Bytes in memory."""
        return len(self.answer) + len(self.input) + _EACH


class KeptResponses:
    """The responses of every tenant. Threads may share it.

    most        responses of one tenant
    most_bytes  of one tenant; what was not used for the longest goes first
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most, self._most_bytes = most, most_bytes
        self._lock = threading.Lock()
        self._of: dict[str | None, OrderedDict[str, Kept]] = {}
        self._bytes: dict[str | None, int] = {}

    def put(self, tenant: str | None, kept: Kept) -> None:
        """Keep a response, unless it alone is too large."""
        if kept.size > self._most_bytes:
            return
        with self._lock:
            own = self._of.setdefault(tenant, OrderedDict())
            own[kept.name] = kept
            self._bytes[tenant] = self._bytes.get(tenant, 0) + kept.size
            while len(own) > self._most or self._bytes[tenant] > self._most_bytes:
                self._bytes[tenant] -= own.popitem(last=False)[1].size

    def get(self, tenant: str | None, name: str) -> Kept | None:
        """A tenant's response; None if it is not kept, or another tenant's."""
        with self._lock:
            return self._get(tenant, name)

    def conversation(self, tenant: str | None, name: str) -> list[Kept] | str:
        """A response and all that it follows, the first one first; or the name of the one among
        them that is not kept."""
        found: list[Kept] = []
        with self._lock:
            at: str | None = name
            while at is not None:
                kept = self._get(tenant, at)
                if kept is None:
                    return at
                found.append(kept)
                at = kept.previous
        return found[::-1]

    def drop(self, tenant: str | None, name: str) -> bool:
        """Forget a response; whether there was one."""
        with self._lock:
            gone = self._of.get(tenant, OrderedDict[str, Kept]()).pop(name, None)
            if gone is not None:
                self._bytes[tenant] -= gone.size
            return gone is not None

    def only(self, tenants: Collection[str | None]) -> None:
        """Forget the responses of all other tenants."""
        with self._lock:
            for gone in self._of.keys() - set(tenants):
                del self._of[gone], self._bytes[gone]

    def bytes_of(self, tenant: str | None) -> int:
        """Bytes that are kept for a tenant."""
        with self._lock:
            return self._bytes.get(tenant, 0)

    def _get(self, tenant: str | None, name: str) -> Kept | None:
        own = self._of.get(tenant)
        if own is None or name not in own:
            return None
        own.move_to_end(name)
        return own[name]
