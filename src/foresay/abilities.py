"""What a drafter can do beyond its four methods: one small protocol for each purpose.

A drafter implements those it needs. `abilities_of` looks for them once, when the drafter is given
to its engine; nothing else asks a drafter for a name. A drafter that wraps others has those that
it can pass on, and does nothing where none of them has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, get_args, get_type_hints

from foresay.arrays import Int32s, IntsLike
from foresay.draft import DraftBatch
from foresay.drafter import Drafter, ExternalDraft, Source
from foresay.errors import InputError
from foresay.sampling.signals import Signals
from foresay.verdict import Wants

if TYPE_CHECKING:
    from foresay.models.target import Target

__all__ = [
    "Abilities",
    "AdoptsDrafts",
    "ChoosesWants",
    "DraftsAsync",
    "FitsTarget",
    "KeepsText",
    "LooksUp",
    "ReportsKVLength",
    "ReportsMemory",
    "ReportsSignals",
    "ReportsSources",
    "SharesKVCache",
    "SupportsGroups",
    "SupportsTenants",
    "SupportsVersions",
    "TakesExternalDrafts",
    "WeighsTime",
    "abilities_of",
    "check_drafter",
]


class SupportsGroups(Protocol):
    """Requests of one group draft from each other's answers."""

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        """Forget a group at once.

        Valid until: the next `begin` with this group. Raises: UnknownGroup.
        """
        ...

    def add_to_group(
        self, group: str, prompt: IntsLike, answer: IntsLike, *, tenant: str | None = None
    ) -> None:
        """Let a group draft from an earlier answer. Raises: TokenTypeError, InputError."""
        ...


class SupportsTenants(Protocol):
    """Keeps something of each tenant."""

    def drop_tenant(self, tenant: str) -> None:
        """Forget all of a tenant. Raises: InputError."""
        ...

    def bytes_of(self, tenant: str | None) -> int:
        """Bytes in memory for one tenant; 0 for one that is not known."""
        ...


class SupportsVersions(Protocol):
    """Forgets what outdated weights of the target wrote."""

    def new_version(self, keep: int, *, tenant: str | None = None) -> None:
        """The weights were replaced: of a history the texts of the last `keep` versions before
        stay. Raises: InputError."""
        ...


class ReportsMemory(Protocol):
    """Says what it keeps in memory."""

    def bytes_used(self) -> int:
        """Bytes of all that is kept; weights are not counted."""
        ...

    def tokens_held(self) -> int:
        """Tokens of all texts that are kept."""
        ...


class ReportsSources(Protocol):
    """Says where drafted tokens came from."""

    def sources(self, state: Any, /) -> Sequence[tuple[Source, ...]]:
        """The sources of each node of the state's last draft, one or more, the best first.

        Valid until: the draft is observed. Raises: StateError.
        """
        ...


class FitsTarget(Protocol):
    """Depends on the target."""

    @property
    def needs_target(self) -> bool:
        """Whether it cannot draft before `fit`."""
        ...

    def fit(self, target: Target, tokenizer_hash: bytes | None = None) -> None:
        """The target it will draft for, before any request.

        Raises: InputError, TokenizerMismatch if it cannot draft for that one.
        """
        ...


class AdoptsDrafts(Protocol):
    """Learns from every verified node, not from its own alone."""

    def adopt(self, states: Sequence[Any], drafts: DraftBatch, /) -> None:
        """These drafts will be verified, to which others contributed: the next verdicts are on
        them. Raises: StateError, InputError."""
        ...


class DraftsAsync(Protocol):
    """Drafts while others do."""

    def start(self, states: Sequence[Any], budgets: Sequence[int], /) -> None:
        """What `propose` will be called with next, which then collects: returns at once.

        Valid until: the next `start` or `propose`. Raises: as `propose`.
        """
        ...


class LooksUp(Protocol):
    """Finds its drafts in texts, by the host's processors."""

    @property
    def looks_up(self) -> bool:
        """Whether it does: then it can be asked while a device computes, and is not waited for."""
        ...


class WeighsTime(Protocol):
    """Leaves out work that does not pay."""

    def price(self, token: float, node: float, step: float) -> None:
        """Before `propose`: the seconds that a committed token is worth, that verifying a node
        takes, and that the step would take without drafts."""
        ...

    def weighed_seconds(self) -> float:
        """Seconds of the last `propose` that were weighed so, and need not be weighed again."""
        ...


class SharesKVCache(Protocol):
    """Runs the target's own layers, on what the target has stored."""

    def share_kv_cache(self, target: Target, states: Sequence[Any], kvs: Sequence[Any], /) -> None:
        """Before `propose`: the target's KV cache of each state's text. It may store drafted tokens
        behind the text, which the caller cuts.

        Mutates: `kvs`, in `propose`. Valid until: the next call; one without states ends it.
        Raises: StateError, InputError.
        """
        ...


class ChoosesWants(Protocol):
    """Wants to see what it `wants` only in steps where that is worth its time."""

    def wants_now(self) -> Wants:
        """After `propose`: which part of `wants` this step's verdicts are to have."""
        ...

    def shown(self, seconds: float) -> None:
        """Before `observe`: how long finding it took."""
        ...


class TakesExternalDrafts(Protocol):
    """Proposes drafts that come from outside."""

    @property
    def external_drafts(self) -> Literal["only", "also", "none"]:
        """Whether it proposes nothing else, its own drafts too, or, a merge, none from outside."""
        ...

    def add_external_draft(self, state: Any, text: Int32s, draft: ExternalDraft, /) -> int:
        """Keep a draft for this text so far, or for a later one. Returns how many nodes are new.

        Valid until: the text takes another path. Raises: StateError, InputError.
        """
        ...

    def has_external_draft(self, state: Any, /) -> bool:
        """Whether a node from outside continues the text. Raises: StateError."""
        ...


class KeepsText(Protocol):
    """Can show the text that it holds, for tests and debugging."""

    def text(self, state: Any, /) -> Int32s:
        """Prompt and observed tokens: a copy. Raises: StateError."""
        ...


class ReportsSignals(Protocol):
    """Runs a model and says how uncertain it is."""

    def keep_signals(self, dropout: Any = None) -> None:
        """From the next proposal on, keep how uncertain the model is of each drafted token; with
        `dropout` also the variance."""
        ...

    def signals(self, state: Any, /) -> Signals | None:
        """Of each node of the state's last draft; None where they are not kept.

        Valid until: the draft is observed. Raises: StateError.
        """
        ...


class ReportsKVLength(Protocol):
    """Runs a model with a KV cache of its own."""

    def kv_length(self, state: Any, /) -> int:
        """Tokens of prompt and observed text that are stored. Raises: StateError."""
        ...


@dataclass(frozen=True, slots=True)
class Abilities:
    """One drafter, as each protocol that it implements; None for the others."""

    groups: SupportsGroups | None = None
    tenants: SupportsTenants | None = None
    versions: SupportsVersions | None = None
    memory: ReportsMemory | None = None
    sources: ReportsSources | None = None
    fits: FitsTarget | None = None
    adopts: AdoptsDrafts | None = None
    starts: DraftsAsync | None = None
    looks_up: LooksUp | None = None
    weighs: WeighsTime | None = None
    shares_kv: SharesKVCache | None = None
    chooses_wants: ChoosesWants | None = None
    external: TakesExternalDrafts | None = None
    text: KeepsText | None = None
    signals: ReportsSignals | None = None
    kv_length: ReportsKVLength | None = None


_PROTOCOLS = {name: get_args(kind)[0] for name, kind in get_type_hints(Abilities).items()}


def abilities_of(drafter: Drafter[Any] | None) -> Abilities:
    """What a drafter can do beyond its four methods; nothing without a drafter.

    Raises: InputError for what is no drafter, or one that implements a protocol in part.
    """
    if drafter is None:
        return Abilities()
    check_drafter(drafter)
    able: dict[str, Any] = {}
    for field, protocol in _PROTOCOLS.items():
        names = [name for name in vars(protocol) if not name.startswith("_")]
        missing = [name for name in names if getattr(drafter, name, None) is None]
        if not missing:
            able[field] = drafter
        elif len(missing) < len(names):
            has = next(name for name in names if name not in missing)
            raise InputError(
                f"the drafter {type(drafter).__name__} has {has}, but no {' and no '.join(missing)}"
                f"; expected all of {protocol.__name__}, or nothing"
            )
    return Abilities(**able)


def check_drafter(drafter: object) -> None:
    """Refuse an object without a drafter's methods.

    Raises: InputError.
    """
    if isinstance(drafter, type):
        raise InputError(f"the drafter is the class {drafter.__name__}; expected an instance of it")
    methods = ("begin", "propose", "observe", "finish")
    missing = [name for name in methods if not callable(getattr(drafter, name, None))]
    if missing or not isinstance(getattr(drafter, "wants", None), Wants):
        raise InputError(
            f"the drafter is {drafter!r}, which has no {', '.join(missing) or 'wants'}; expected a "
            "Drafter, or for LLM a name"
        )
