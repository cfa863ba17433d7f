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

from foresay.arrays import Int32s
from foresay.engine.pages import PAGE, Pages, pages_of
from foresay.engine.prefix_tree import BLOCK, PrefixTree

if TYPE_CHECKING:
    from foresay.engine.request import Request
    from foresay.models.target import TextKv

__all__ = ["Prefixes"]


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """The KV cache of a text that has finished."""

    kv: TextKv
    tokens: Int32s
    tenant: str | None


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
        self._running: PrefixTree[Request] = PrefixTree()
        self._cached: OrderedDict[Cached, None] = OrderedDict()
        self._cached_tree: PrefixTree[Cached] = PrefixTree()
        self.held = 0
        """Pages of cached texts."""

    def begin(self, request: Request) -> None:
        """From now on the request's stored tokens are offered."""
        self._running.add(request.tenant, _shareable(request), request)

    def end(self, request: Request) -> None:
        """From now on they are not."""
        self._running.remove(request.tenant, _shareable(request), request)

    def longest(self, request: Request) -> tuple[int, TextKv | None, int]:
        """The longest shared prefix: its tokens, the KV cache that has it, and how long it
        will be when running prefills are done. The last token is never shared: its logits are
        needed.
        """
        tenant, tokens = request.tenant, _shareable(request)
        best: tuple[int, TextKv | None] = (0, None)
        soon = 0
        for common, other in self._running.sharing(tenant, tokens):
            if common <= best[0]:
                break
            if other.kv is None:
                continue
            if not other.paused:  # a paused one may never go on
                soon = max(soon, common)
            if min(common, other.kv.length) > best[0]:
                best = min(common, other.kv.length), other.kv
        for common, cached in self._cached_tree.sharing(tenant, tokens):
            if common > best[0]:
                best = common, cached.kv
                self._cached.move_to_end(cached)
            break
        return best[0], best[1], max(soon, best[0])

    def cache(self, request: Request) -> None:
        """Store the KV cache of a request that has finished, if there is memory. The
        request's pages must have been released.
        """
        length = min(request.stored, len(request.prompt) - 1)
        if request.kv is None or length < BLOCK:
            return
        tenant, tokens = request.tenant, request.prompt[:length].copy()
        if next(self._cached_tree.sharing(tenant, tokens), (0,))[0] == length:
            return  # all of it is there
        if pages_of(length) > self._most:
            return
        # The answer's memory does not stay with it, unless a copy would take as much.
        small = request.kv.capacity <= 2 * pages_of(length) * PAGE
        cached = Cached(request.kv if small else self._open(), tokens, tenant)
        if not self._pages.hold(cached, length):
            return
        if small:
            cached.kv.cut(length)
        else:
            cached.kv.copy_from(request.kv, length)
        self._cached[cached] = None
        self._cached_tree.add(tenant, tokens, cached)
        self.held += pages_of(length)
        while self.held > self._most:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Give up the cached text that was used least recently; False if there is none."""
        if not self._cached:
            return False
        cached, _ = self._cached.popitem(last=False)
        self._cached_tree.remove(cached.tenant, cached.tokens, cached)
        self._pages.release(cached)
        self.held -= pages_of(len(cached.tokens))
        return True

    def mend(self, running: Sequence[Request]) -> None:
        """After a method that was interrupted: keep what is cached whole, and offer what these
        requests have.
        """
        whole = [cached for cached in self._cached if self._pages.holds(cached)]
        self._cached = OrderedDict.fromkeys(whole)
        self._cached_tree, self._running = PrefixTree(), PrefixTree()
        for cached in whole:
            self._cached_tree.add(cached.tenant, cached.tokens, cached)
        for request in running:
            self.begin(request)
        self.held = sum(pages_of(len(cached.tokens)) for cached in whole)

    def lengths(self) -> dict[Any, int]:
        """The stored length of each cached text, for `Pages.check_integrity`."""
        return {cached: cached.kv.length for cached in self._cached}


def _shareable(request: Request) -> Int32s:
    """What others may share of its prompt, and it of others."""
    return request.prompt[:-1]
