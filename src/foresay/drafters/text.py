"""The common part of SuffixDrafter and CorpusDrafter: the core's TextDrafter as a Drafter."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foresay._core import Request
from foresay.arrays import Int32s, IntsLike, as_items, as_tokens
from foresay.draft import DraftBatch
from foresay.drafter import SeededParams, Source, as_prompt
from foresay.errors import InputError, StateError
from foresay.machine import usable_processors
from foresay.verdict import Verdict, VerdictBatch, Wants

if TYPE_CHECKING:
    from foresay._core import TextDrafter as Core

__all__ = ["TextDrafter", "default_threads"]

_BITS = (Source.OWN, Source.GROUP, Source.HISTORY, Source.CORPUS)
"""What the bits of the core's `kinds` mean."""


def default_threads(processes: int = 1) -> int:
    """One thread per processor that this process may use, at most 4; `processes` share them."""
    return min(4, max(1, usable_processors() // processes))


def _as_state(state: object) -> Request:
    if not isinstance(state, Request):
        raise StateError(f"{state!r} is no state; expected one that begin() returned")
    return state


def _as_list(states: Sequence[Request]) -> list[Request]:
    return states if type(states) is list else as_items(states, "states", "a list of states")


def _no_numbers(budgets: object, least: object) -> InputError:
    return InputError(
        f"budgets are {budgets!r} and least is {least!r}; expected a list of whole numbers and a "
        "chance"
    )


def _check_name(name: str, value: object, *, needed: bool = False) -> None:
    if not (isinstance(value, str) or (value is None and not needed)):
        raise InputError(f"{name} is {value!r}; expected a str{'' if needed else ' or None'}")


class TextDrafter:
    """Drafts from existing text. Threads may share one; each call locks it.

    A call that raises has changed nothing. Only a MemoryError in the middle of a shared change
    cannot be undone: after it every further call raises StateError.
    """

    wants = Wants()

    def __init__(self, core: Core, scored: bool) -> None:
        self._core = core
        self._scored = scored

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> Request:
        """Start a request, at 0.1 to 0.3 microseconds per prompt token. Its sampling parameters are
        ignored.

        Mutates: the group's text, which gets a new sequence. Valid until: `finish`. Raises:
        TokenTypeError, InputError for an empty prompt, a token out of range, or more tokens than a
        request may have; nothing has changed then.
        """
        _check_name("group", group)
        _check_name("tenant", tenant)
        return self._core.begin(as_prompt(prompt), group, tenant)

    def propose(
        self, states: Sequence[Request], budgets: Sequence[int], /, *, least: float = 0.0
    ) -> DraftBatch:
        """Draft for all states at once: one call into the core. Nodes with a chance below `least`
        are left out, where there are scores, and cost no time.

        Raises: StateError, InputError for a budget outside 0 … 4096, a chance outside 0 … 1 or
        lengths that differ.
        """
        listed = _as_list(states)
        try:
            tokens, parents, offsets, scores = self._core.propose(listed, budgets, least)
        except TypeError as error:
            raise _no_numbers(budgets, least) from error
        return DraftBatch._trusted(tokens, parents, offsets, scores if self._scored else None)

    def observe(self, states: Sequence[Request], verdicts: Sequence[Verdict], /) -> None:
        """Append the committed tokens to the states and their groups, and calibrate the scores.

        Mutates: the states, their groups, the calibration. Valid until: `finish`, and beyond it in
        groups and calibration. Raises: StateError, InputError for lengths that differ; nothing has
        changed then.
        """
        batch = VerdictBatch.of(verdicts)
        self._core.observe(_as_list(states), batch.tokens, batch.offsets)

    def step(
        self,
        states: Sequence[Request],
        verdicts: Sequence[Verdict],
        budgets: Sequence[int],
        /,
        *,
        least: float = 0.0,
    ) -> DraftBatch:
        """`observe` and then `propose` for the same states: the same drafts, in less time.

        Mutates: the states, their groups, the calibration. Raises: StateError, InputError as both
        of them; nothing has changed then.
        """
        batch, listed = VerdictBatch.of(verdicts), _as_list(states)
        try:
            tokens, parents, offsets, scores = self._core.step(
                listed, batch.tokens, batch.offsets, budgets, least
            )
        except TypeError as error:
            raise _no_numbers(budgets, least) from error
        return DraftBatch._trusted(tokens, parents, offsets, scores if self._scored else None)

    def finish(self, state: Request, /) -> None:
        """End a request; with a history, its output enters the tenant's history.

        Mutates: the state, which is dead afterwards; the history, which may drop its oldest part.
        Raises: StateError if it was finished before.
        """
        self._core.finish(_as_state(state))

    def add_to_group(
        self, group: str, prompt: IntsLike, answer: IntsLike, *, tenant: str | None = None
    ) -> None:
        """Let a group draft from an earlier answer to its prompt, too. A group that is not there is
        made; without members it may be dropped to keep a limit.

        Raises: TokenTypeError, InputError for what is no name, an empty prompt, a token out of
        range or too many tokens; nothing has changed then.
        """
        _check_name("group", group, needed=True)
        _check_name("tenant", tenant)
        tokens = as_prompt(prompt), as_tokens(answer, "answer")
        self._core.add_to_group(group, tenant, *tokens)

    def new_version(self, keep: int, *, tenant: str | None = None) -> None:
        """The model that writes the texts was changed: of a tenant's history the texts of the last
        `keep` versions before the new one stay.

        Raises: InputError.
        """
        _check_name("tenant", tenant)
        if type(keep) is not int or not 0 <= keep < 1 << 31:
            raise InputError(f"keep is {keep!r}; expected a whole number from 0, of versions")
        self._core.new_version(tenant, keep)

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        """Forget a group's text at once; members that still run go on without it.

        Valid until: the next `begin` with this group starts it afresh. Raises: UnknownGroup,
        InputError for what is no name.
        """
        _check_name("group", group, needed=True)
        _check_name("tenant", tenant)
        self._core.drop_group(group, tenant)

    def drop_tenant(self, tenant: str) -> None:
        """Forget all shared text of a tenant at once: its history and its groups.

        Valid until: the tenant's next `begin`. Raises: InputError for what is no name; nothing for
        a tenant that has no text.
        """
        _check_name("tenant", tenant, needed=True)
        self._core.drop_tenant(tenant)

    def sources(self, state: Request, /) -> list[tuple[Source, ...]]:
        """The kinds of text that each node of the state's last draft came from, node by node.

        Raises: StateError.
        """
        return [
            tuple(source for bit, source in enumerate(_BITS) if kinds >> bit & 1) or (Source.USUAL,)
            for kinds in self._core.kinds(_as_state(state))
        ]

    def text(self, state: Request, /) -> Int32s:
        """Prompt and observed tokens, as the drafter holds them.

        A copy. Raises: StateError.
        """
        text: Int32s = self._core.text(_as_state(state))
        return text

    def bytes_used(self) -> int:
        """Bytes of all automata and texts held."""
        return self._core.bytes

    def bytes_of(self, tenant: str | None) -> int:
        """Bytes that are held for one tenant: its history, its groups, its running requests; 0 for
        one that is not known.

        Raises: InputError.
        """
        _check_name("tenant", tenant)
        return self._core.bytes_of(tenant)

    def tokens_held(self) -> int:
        """Tokens held, all copies counted."""
        return self._core.tokens

    def check_integrity(self) -> None:
        """Check every promise of every automaton, in time linear in the text.

        Raises: RuntimeError with the first broken promise.
        """
        self._core.check_integrity()
