"""What a server is started with: its settings, and its drafter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from foresay.drafters.lineup import Room
from foresay.drafters.suffix import SuffixDrafter
from foresay.serve.address import Address, check_origin
from foresay.serve.chat.formats import format_of
from foresay.serve.chat.reasoning import markers_of
from foresay.serve.keys import Keys
from foresay.serve.limits import Limits
from foresay.serve.shield import Shield

__all__ = ["ServeSettings", "tenant_drafter", "tenant_room"]


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """The settings of a server.

    name     the model's name for clients
    reread   reads the keys again, at SIGHUP; None: the keys never change
    stale    whether SIGHUP came before its handler: then the keys are read again at once
    origins  of web pages that may send requests (CORS), '*' for any; empty: the server's own page
    tool_format, reasoning   how the model writes calls of tools, and what stands around its
             reasoning, see `foresay.serve.chat.templates`; "auto": as its chat template has it

    Raises: InputError for an origin that is not valid, or an unknown format or reasoning.
    """

    name: str
    address: Address = field(default_factory=Address)
    keys: Keys = field(default_factory=Keys)
    limits: Limits = field(default_factory=Limits)
    shield: Shield = field(default_factory=Shield)
    reread: Callable[[], Keys] | None = None
    stale: Callable[[], bool] = lambda: False
    origins: tuple[str, ...] = ()
    tool_format: str = "auto"
    reasoning: str = "auto"

    def __post_init__(self) -> None:
        for origin in self.origins:
            check_origin(origin)
        format_of("", self.tool_format)
        markers_of("", self.reasoning)


def tenant_room(tenants: int, tenant_bytes: int) -> Room:
    """Memory for `tenants`, each with a history of `tenant_bytes`. No tenant can evict
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
    """The default drafter, with memory for `tenants`.

    Raises: InputError, CorpusError.
    """
    return SuffixDrafter(**asdict(tenant_room(tenants, tenant_bytes)), corpus=corpus)
