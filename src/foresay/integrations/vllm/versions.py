"""New weights inside a running vLLM: versions of the policy, in reinforcement learning.

A trainer gives a running vLLM new weights between two steps. All of them do it in the processes of
the workers, where the drafters are, and most by the model's own `load_weights`: once per tensor,
or once per bucket of tensors. So what is counted here are changes, and a drafter that finds any
since its last step begins one new version.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from foresay.integrations.vllm.meter import log

__all__ = ["changes", "run_hooks", "watch", "weights_changed", "when_vllm_starts"]

_changes = 0
_hooks: list[Callable[[], None]] = []


def weights_changed() -> None:
    """Say that the weights of this process' model have changed: each drafter of ours in this
    process begins a new version at its next step.
    """
    global _changes
    _changes += 1


def changes() -> int:
    """How often the weights of this process were said to have changed."""
    return _changes


def watch(owner: Any, name: str = "load_weights") -> bool:
    """Replace a method of a model or of a class, once, by one that counts. False if there is none.

    Mutates: the owner.
    """
    theirs = getattr(owner, name, None)
    if theirs is None or hasattr(theirs, "_foresay"):
        return theirs is not None

    @functools.wraps(theirs)
    def counted(*args: Any, **kwargs: Any) -> Any:
        try:
            return theirs(*args, **kwargs)
        finally:  # what failed may have changed some of them
            weights_changed()

    counted._foresay = True  # type: ignore[attr-defined]
    setattr(owner, name, counted)
    return True


def when_vllm_starts(hook: Callable[[], None]) -> None:
    """Call `hook` when vLLM loads its plugins in this process, and when a drafter of ours is made.

    It may be called several times, and long before what it looks for has been imported.
    """
    _hooks.append(hook)


def run_hooks() -> None:
    """Call the hooks. One that fails is logged, and the others are called all the same."""
    for hook in _hooks:
        try:
            hook()
        except Exception as error:
            log.warning("foresay: %s failed (%s: %s)", hook, type(error).__name__, error)
