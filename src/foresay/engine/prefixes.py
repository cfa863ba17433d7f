"""The prefix cache: prompts with the same prefix share its keys and values.

A running request offers its stored tokens to later ones. When it has finished, its keys and values
stay until the memory is needed. Only texts of one tenant share, so that no tenant can learn from
the speed what another has asked. On the CPU sharing is copying.

Only prefilled tokens of prompts are shared, as prefilled tokens of prompts: decoding the same text
may give other last bits, and an answer must not depend on earlier requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
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


class Kept:
    """The keys and values of a text that has finished."""

    __slots__ = ("key", "kv", "tokens")

    def __init__(self, kv: TextKv, tokens: Int32s, key: Key) -> None:
        self.kv = kv
        self.tokens = tokens
        self.key = key


class Prefixes:
    """The running and the kept texts by their prefix.

    open   makes the keys and values of a new text, empty
    pages  the memory that all texts share; a kept text is a holder of its own
    most   pages that kept texts may hold; the least recently used goes first
    """

    def __init__(self, open: Callable[[], TextKv], pages: Pages, most: int) -> None:
        self._open = open
        self._pages = pages
        self._most = most
        self._running: dict[Key, list[Request]] = {}
        self._kept: OrderedDict[Kept, None] = OrderedDict()
        self.held = 0
        """Pages of kept texts."""
        self._kept_by_key: dict[Key, list[Kept]] = {}

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
        """The longest shared prefix: its tokens, the keys and values that have it, and how long it
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
            soon = max(soon, common)
            if min(common, other.kv.length) > best[0]:
                best = min(common, other.kv.length), other.kv
        for kept in self._kept_by_key.get(key, ()):
            common = _common(request.prompt[:-1], kept.tokens)
            if common > best[0]:
                best = common, kept.kv
                self._kept.move_to_end(kept)
        return best[0], best[1], max(soon, best[0])

    def keep(self, request: Request) -> None:
        """Keep the keys and values of a request that has finished, if there is memory. The
        request's pages must have been released.
        """
        length = min(request.stored, len(request.prompt) - 1)
        if request.kv is None or length < _KEY:
            return
        key, tokens = _key(request), request.prompt[:length].copy()
        for other in self._kept_by_key.get(key, ()):
            if _common(tokens, other.tokens) == length:
                return  # all of it is there
        if pages_of(length) > self._most:
            return
        # The answer's memory is not kept with it, unless a copy would take as much.
        small = request.kv.capacity <= 2 * pages_of(length) * PAGE
        kept = Kept(request.kv if small else self._open(), tokens, key)
        if not self._pages.hold(kept, length):
            return
        if small:
            kept.kv.cut(length)
        else:
            kept.kv.copy_from(request.kv, length)
        self._kept[kept] = None
        self._kept_by_key.setdefault(key, []).append(kept)
        self.held += pages_of(length)
        while self.held > self._most:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Give up the kept text that was used least recently; False if there is none."""
        if not self._kept:
            return False
        kept, _ = self._kept.popitem(last=False)
        others = [k for k in self._kept_by_key[kept.key] if k is not kept]
        if others:
            self._kept_by_key[kept.key] = others
        else:
            del self._kept_by_key[kept.key]
        self._pages.release(kept)
        self.held -= pages_of(len(kept.tokens))
        return True

    def mend(self, running: Sequence[Request]) -> None:
        """After a method that was interrupted: keep what is kept whole, and offer what these
        requests have.
        """
        whole = [kept for kept in self._kept if self._pages.holds(kept)]
        self._kept = OrderedDict.fromkeys(whole)
        self._kept_by_key, self._running = {}, {}
        for kept in whole:
            self._kept_by_key.setdefault(kept.key, []).append(kept)
        for request in running:
            self.begin(request)
        self.held = sum(pages_of(len(kept.tokens)) for kept in whole)

    def lengths(self) -> dict[Any, int]:
        """The stored length of each kept text, for `Pages.check_integrity`."""
        return {kept: kept.kv.length for kept in self._kept}


def _key(request: Request) -> Key:
    return request.tenant, request.prompt[:_KEY].tobytes()


def _common(a: Int32s, b: Int32s) -> int:
    """How many tokens two texts have in common from their beginnings."""
    size = min(len(a), len(b))
    differs = np.flatnonzero(a[:size] != b[:size])
    return int(differs[0]) if len(differs) else size
