"""Make a server from its settings."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from foresay.drafter import Drafter
from foresay.drafters.lineup import Room
from foresay.drafters.suffix import SuffixDrafter
from foresay.engine.llm import LLM
from foresay.serve.address import LOCAL, Address, check_origin, is_loopback
from foresay.serve.admission import AdmissionMiddleware
from foresay.serve.app import Routes
from foresay.serve.keys import OPERATOR, Keys
from foresay.serve.limits import Limits
from foresay.serve.server import Server
from foresay.serve.shield import Shield

__all__ = ["ServeSettings", "make_server", "serve", "tenant_drafter", "tenant_room"]

_log = logging.getLogger("foresay.serve")


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of a server.

    name     the model's name for clients
    reread   reads the keys again, at SIGHUP; None: the keys never change
    stale    whether SIGHUP came before its handler: then the keys are read again at once
    origins  of web pages that may send requests (CORS), '*' for any; empty: the server's own page

    Raises: InputError for an origin that is not valid.
    """

    name: str
    address: Address = field(default_factory=Address)
    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    shield: Shield = field(default_factory=Shield)
    reread: Callable[[], Keys] | None = None
    stale: Callable[[], bool] = lambda: False
    origins: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for origin in self.origins:
            check_origin(origin)


def tenant_room(tenants: int, tenant_bytes: int) -> Room:
    """Memory for so many tenants, each with a history of so many bytes. No tenant can evict
    another's history: there is room for all.
    """
    tenants = max(tenants, 1)
    return Room(
        history_bytes=tenant_bytes,
        # Texts of running requests are extra; twice leaves room for arrays that grow by doubling.
        tenant_bytes=min(2 * tenants * tenant_bytes, 1 << 50),
        max_tenants=max(tenants, 256),
    )


def tenant_drafter(tenants: int, tenant_bytes: int, corpus: Any = None) -> SuffixDrafter:
    """The default drafter, with memory for so many tenants.

    Raises: InputError, CorpusError.
    """
    return SuffixDrafter(**asdict(tenant_room(tenants, tenant_bytes)), corpus=corpus)


def make_server(
    llm: LLM,
    drafter: Drafter[Any] | None,
    settings: ServeSettings,
    ready: Callable[[str], None] = lambda url: None,
) -> Server:
    """The server, listening but not yet answering. To be called in the event loop that runs it.

    Raises: InputError for an address that is not free.
    """
    keys = settings.keys
    limits = _shared(settings.limits, keys, llm)
    routes = Routes(llm, drafter, keys, limits, settings.shield, settings.name)
    local = not keys and is_loopback(settings.address.host)
    admission = AdmissionMiddleware(
        routes.app(),
        keys,
        limits,
        hosts=LOCAL | {settings.address.host} if local else None,
        refused=routes.metrics.refuse,
    )
    app: ASGIApp = admission
    if settings.origins:
        app = CORSMiddleware(
            admission,
            allow_origins=settings.origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),  # clients of OpenAI's have many
            allow_private_network=True,
            expose_headers=("x-request-id", "retry-after"),
        )

    def reload(reread: Callable[[], Keys]) -> Keys:
        found = reread()
        admission.rekey(found)
        routes.rekey(found)
        routes.driver.limits = _shared(settings.limits, found, llm)
        if len(found.tenants) > max(len(keys.tenants), 1):
            _log.warning(
                "there are %d tenants, and memory for the histories of the %d tenants at the "
                "start: they share it until a restart",
                len(found.tenants),
                len(keys.tenants),
            )
        return found

    again = None if settings.reread is None else partial(reload, settings.reread)
    return Server(routes, app, limits, settings.address, ready, again, settings.stale)


def _shared(limits: Limits, keys: Keys, llm: LLM) -> Limits:
    """The limits for these tenants: with several, none can fill the queue alone. The operator
    does not count: its key is for the metrics."""
    if limits.tenant_answers is not None or len({*keys.tenants} - {OPERATOR}) < 2:
        return limits
    whole = llm.engine.scheduler.max_running + limits.queue
    return replace(limits, tenant_answers=max(whole // 2, 1))


def serve(
    llm: LLM,
    drafter: Drafter[Any] | None,
    settings: ServeSettings,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until a signal ends it. It is faster with an LLM that was made in a thread that has
    ended: see `foresay.cli.serve`.

    Raises: InputError.
    """

    async def run() -> None:
        await make_server(llm, drafter, settings, ready).run_until_stopped()

    asyncio.run(run())
