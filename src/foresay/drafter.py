"""The contract between a drafter and whoever verifies its guesses.

A request's life, from the drafter's side:

    begin (propose* observe)* finish

The *request* owns its state; the *drafter* owns what requests share (groups, history, corpora,
weights); the *engine* owns randomness, logits processing, stopping, budgets and KV. A drafter never
sees a logits processor, an end-of-text id, a mask or a position. To sit out a step or to be
preempted is not an event: nothing is called and nothing is lost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, TypeVar, runtime_checkable

from foresay.arrays import Int32s, IntsLike, as_tokens
from foresay.draft import Draft, Verdict, Wants
from foresay.errors import InputError, StateError

__all__ = ["Drafter", "as_budgets", "as_prompt", "check_alive", "check_lengths"]

State = TypeVar("State")


@runtime_checkable
class Drafter(Protocol[State]):
    """Guesses the next tokens of many requests at once.

    Some methods are optional, and callers look for them by name: `drop_group(group)` forgets a
    group at once, `bytes_used()` and `tokens_held()` say what the drafter keeps in memory, and
    `text(state)` returns prompt + observed tokens, for tests and debugging.
    """

    wants: Wants
    """What the drafter asks to see in each verdict."""

    def begin(
        self, prompt: Int32s, /, *, group: str | None = None, tenant: str | None = None
    ) -> State:
        """Start a request whose text so far is `prompt`, at the cost of O(prompt).

        Requests of one `group` (samples of one prompt) see each other's tokens as soon as they are
        observed; requests of different tenants never see anything of each other.

        Mutates: the drafter's shared store, if the request has a group.
        Valid until: `finish` of the returned state.
        Raises: TokenTypeError for a prompt that is not int32, InputError for an empty prompt or a
        token out of range; nothing has changed then.
        GIL: released during long work where the drafter is native.
        """
        ...

    def propose(self, states: Sequence[State], budgets: Sequence[int], /) -> Sequence[Draft]:
        """Guess what follows each state's text: draft i has at most `budgets[i]` nodes.

        Called any number of times between two commits, also never. A draft may be empty: nothing
        to say is no error, and a budget of 0 is a valid one. The result is a `DraftBatch` or any
        sequence of drafts, in the order of the states.

        Mutates: nothing the caller can see; twice the same call gives twice the same drafts.
        Valid until: the drafts for ever, since they are values.
        Raises: StateError for a finished state, InputError for a negative budget or a length that
        differs; nothing has changed then.
        GIL: released during long work where the drafter is native.
        """
        ...

    def observe(self, states: Sequence[State], verdicts: Sequence[Verdict], /) -> None:
        """Learn what was committed: exactly once per commit, the first token after the prompt too.

        After each call `prompt + all observed tokens == committed text`. A verdict's path refers to
        the state's last proposal, and is empty if there was none.

        Mutates: the states, and the shared store.
        Valid until: the effect lasts until `finish`, and beyond it in the shared store.
        Raises: StateError for a finished state, InputError for lengths that differ; nothing has
        changed then.
        GIL: released during long work where the drafter is native.
        """
        ...

    def finish(self, state: State, /) -> None:
        """End a request, exactly once, also when it was aborted.

        Mutates: the state, which is dead afterwards; the text may enter a shared history.
        Valid until: the effect is final.
        Raises: StateError if the state was finished before.
        GIL: released during long work where the drafter is native.
        """
        ...


def as_prompt(prompt: IntsLike) -> Int32s:
    """`prompt` as checked tokens, at least one.

    Mutates: nothing. Valid until: as long as the caller's array, which is not copied.
    Raises: TokenTypeError, InputError. GIL: held.
    """
    tokens = as_tokens(prompt, "prompt")
    if not len(tokens):
        raise InputError("the prompt is empty; a request needs at least 1 token to draft from")
    return tokens


def as_budgets(budgets: Sequence[int], num_states: int) -> list[int]:
    """One budget per state, each at least 0, as a list of ints.

    Mutates: nothing. Valid until: for ever. Raises: InputError. GIL: held.
    """
    check_lengths(num_states, len(budgets), "budgets")
    checked = [int(budget) for budget in budgets]
    for at, budget in enumerate(checked):
        if budget < 0:
            raise InputError(f"budgets[{at}] is {budget}; a budget is 0 or more nodes")
    return checked


def check_lengths(num_states: int, num_items: int, name: str) -> None:
    """Refuse a batch whose parts differ in length.

    Mutates: nothing. Valid until: for ever. Raises: InputError. GIL: held.
    """
    if num_states != num_items:
        raise InputError(
            f"there are {num_states} states but {num_items} {name}; each state needs one"
        )


def check_alive(finished: Sequence[bool]) -> None:
    """Refuse states that were finished.

    Mutates: nothing. Valid until: for ever. Raises: StateError. GIL: held.
    """
    if any(finished):
        at = list(finished).index(True)
        raise StateError(f"state {at} was finished before; begin a new request for more text")
