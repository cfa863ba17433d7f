"""A server from its settings: the parts put together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from foresay.drafter import Drafter
from foresay.drafters.lineup import Room
from foresay.drafters.suffix import SuffixDrafter
from foresay.engine.llm import LLM
from foresay.serve.app import Routes
from foresay.serve.gate import LOCAL, Gate
from foresay.serve.keys import OPERATOR, Keys
from foresay.serve.limits import Limits
from foresay.serve.server import Address, Server, is_loopback
from foresay.serve.shield import Shield

__all__ = ["Settings", "make_server", "serve", "tenant_drafter", "tenant_room"]


@dataclass(frozen=True, slots=True)
class Settings:
    """All that a server is told.

    name  by which clients call the model

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """

    name: str
    address: Address = field(default_factory=Address)
    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    shield: Shield = field(default_factory=Shield)


def tenant_room(tenants: int, tenant_bytes: int) -> Room:
    """The room for so many tenants, each with a history of so many bytes. None of them can push
    another's history out: there is room for all.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """
    tenants = max(tenants, 1)
    return Room(
        history_bytes=tenant_bytes,
        # Running requests' texts are not history; twice is room for what grows by doubling.
        tenant_bytes=min(2 * tenants * tenant_bytes, 1 << 50),
        max_tenants=max(tenants, 256),
    )


def tenant_drafter(tenants: int, tenant_bytes: int, corpus: Any = None) -> SuffixDrafter:
    """The default drafter, with a room for so many tenants.

    Mutates: nothing. Valid until: for ever. Raises: InputError, CorpusError. GIL: held.
    """
    return SuffixDrafter(**asdict(tenant_room(tenants, tenant_bytes)), corpus=corpus)


def make_server(
    llm: LLM,
    drafter: Drafter[Any] | None,
    settings: Settings,
    ready: Callable[[str], None] = lambda url: None,
) -> Server:
    """The server, listening but not yet answering. To be called in the event loop that runs it.

    Mutates: nothing. Valid until: it has run. Raises: InputError for an address that cannot be had.
    GIL: held.
    """
    keys, limits = settings.keys, settings.limits
    if limits.tenant_answers is None and len({*keys.tenants} - {OPERATOR}) > 1:
        # So that one tenant cannot fill the queue alone. The operator's key is there to watch.
        whole = llm.engine.scheduler.max_running + limits.queue
        limits = replace(limits, tenant_answers=max(whole // 2, 1))
    routes = Routes(llm, drafter, keys, limits, settings.shield, settings.name)
    local = not keys and is_loopback(settings.address.host)
    gate = Gate(
        routes.app(),
        keys,
        limits,
        hosts=LOCAL | {settings.address.host} if local else None,
        refused=routes.metrics.refuse,
    )
    return Server(routes, gate, limits, settings.address, ready)


def serve(
    llm: LLM,
    drafter: Drafter[Any] | None,
    settings: Settings,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until a signal ends it. An LLM that was made in a thread that has ended is faster here:
    see `foresay.cli.serve`.

    Mutates: the engine. Valid until: it returns. Raises: InputError. GIL: held but while the engine
    works.
    """

    async def run() -> None:
        await make_server(llm, drafter, settings, ready).run_until_stopped()

    asyncio.run(run())
