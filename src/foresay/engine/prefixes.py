"""The prefix cache: prompts with the same prefix share its part of the KV cache.

A running request offers its stored tokens to later ones. When it has finished, its KV cache
stays until the memory is needed. Only texts of one tenant share, so that no tenant can learn from
the speed what another has asked. On the CPU sharing is copying.

Only prefilled tokens of prompts are shared, as prefilled tokens of prompts: decoding the same text
may give other last bits, and an answer must not depend on earlier requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from foresay.arrays import Int32s
from foresay.engine.pages import PAGE, Pages, pages_of

if TYPE_CHECKING:
    from foresay.engine.request import Request
    from foresay.models.target import TextKv

__all__ = ["Prefixes"]

Key = tuple[str | None, bytes]
_KEY = 16  # tokens of the prompt by which texts are found


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """The KV cache of a text that has finished."""

    kv: TextKv
    tokens: Int32s
    key: Key


class Prefixes:
    """The running and the cached texts by their prefix.

    open   makes the KV cache of a new text, empty
    pages  the memory that all texts share; a cached text is a holder of its own
    most   pages that cached texts may hold; the least recently used goes first
    """

    def __init__(self, open: Callable[[], TextKv], pages: Pages, most: int) -> None:
        self._open = open
        self._pages = pages
        self._most = most
        self._running: dict[Key, list[Request]] = {}
        self._cached: OrderedDict[Cached, None] = OrderedDict()
        self.held = 0
        """Pages of cached texts."""
        self._cached_by_key: dict[Key, list[Cached]] = {}

    def begin(self, request: Request) -> None:
        """From now on the request's stored tokens are offered."""
        self._running.setdefault(_key(request), []).append(request)

    def end(self, request: Request) -> None:
        """From now on they are not."""
        key = _key(request)
        others = [r for r in self._running.get(key, ()) if r is not request]
        if others:
            self._running[key] = others
        else:
            self._running.pop(key, None)

    def longest(self, request: Request) -> tuple[int, TextKv | None, int]:
        """The longest shared prefix: its tokens, the KV cache that has it, and how long it
        will be when running prefills are done. The last token is never shared: its logits are
        needed.
        """
        key = _key(request)
        best: tuple[int, TextKv | None] = (0, None)
        soon = 0
        for other in self._running.get(key, ()):
            if other.kv is None:
                continue
            common = _common(request.prompt[:-1], other.prompt[:-1])
            if not other.paused:  # a paused one may never go on
                soon = max(soon, common)
            if min(common, other.kv.length) > best[0]:
                best = min(common, other.kv.length), other.kv
        for cached in self._cached_by_key.get(key, ()):
            common = _common(request.prompt[:-1], cached.tokens)
            if common > best[0]:
                best = common, cached.kv
                self._cached.move_to_end(cached)
        return best[0], best[1], max(soon, best[0])

    def cache(self, request: Request) -> None:
        """Store the KV cache of a request that has finished, if there is memory. The
        request's pages must have been released.
        """
        length = min(request.stored, len(request.prompt) - 1)
        if request.kv is None or length < _KEY:
            return
        key, tokens = _key(request), request.prompt[:length].copy()
        for other in self._cached_by_key.get(key, ()):
            if _common(tokens, other.tokens) == length:
                return  # all of it is there
        if pages_of(length) > self._most:
            return
        # The answer's memory does not stay with it, unless a copy would take as much.
        small = request.kv.capacity <= 2 * pages_of(length) * PAGE
        cached = Cached(request.kv if small else self._open(), tokens, key)
        if not self._pages.hold(cached, length):
            return
        if small:
            cached.kv.cut(length)
        else:
            cached.kv.copy_from(request.kv, length)
        self._cached[cached] = None
        self._cached_by_key.setdefault(key, []).append(cached)
        self.held += pages_of(length)
        while self.held > self._most:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Give up the cached text that was used least recently; False if there is none."""
        if not self._cached:
            return False
        cached, _ = self._cached.popitem(last=False)
        others = [k for k in self._cached_by_key[cached.key] if k is not cached]
        if others:
            self._cached_by_key[cached.key] = others
        else:
            del self._cached_by_key[cached.key]
        self._pages.release(cached)
        self.held -= pages_of(len(cached.tokens))
        return True

    def mend(self, running: Sequence[Request]) -> None:
        """After a method that was interrupted: keep what is cached whole, and offer what these
        requests have.
        """
        whole = [cached for cached in self._cached if self._pages.holds(cached)]
        self._cached = OrderedDict.fromkeys(whole)
        self._cached_by_key, self._running = {}, {}
        for cached in whole:
            self._cached_by_key.setdefault(cached.key, []).append(cached)
        for request in running:
            self.begin(request)
        self.held = sum(pages_of(len(cached.tokens)) for cached in whole)

    def lengths(self) -> dict[Any, int]:
        """The stored length of each cached text, for `Pages.check_integrity`."""
        return {cached: cached.kv.length for cached in self._cached}


def _key(request: Request) -> Key:
    return request.tenant, request.prompt[:_KEY].tobytes()


def _common(a: Int32s, b: Int32s) -> int:
    """How many tokens two texts have in common from their beginnings."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size
