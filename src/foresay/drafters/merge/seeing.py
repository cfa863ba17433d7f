"""Is it worth showing a drafter what it wants to see?

The target's likeliest tokens and its hidden states take time to find, to copy and to learn from,
also in steps in which their drafter is not asked. A drafter that wants them has to win more than
all of that takes. One that does not is left out of the steps: it is neither shown them nor asked.
After a rest it is tried again, and each trial that fails doubles the rest, since a drafter that
learns may pay later.
"""

from __future__ import annotations

__all__ = ["Seeing"]

_FIRST = 64  # steps of the first trial: a drafter that has seen nothing drafts nothing
_TRIAL = 24  # steps of a later one
_REST = 192  # steps of the first rest
_LONGEST = 3072  # of a rest
_MEMORY = 128  # steps by which a drafter that pays is judged


class Seeing:
    """Whether one drafter is shown what it wants."""

    __slots__ = ("_left", "_net", "_rest", "_steps", "awake")

    def __init__(self) -> None:
        self.awake = True
        self._left = _FIRST  # steps until the trial or the rest ends
        self._rest = _REST
        self._net = 0.0  # of a step, on average
        self._steps = 0

    def observe(self, net: float) -> None:
        """One more step. While it is awake: the time that it won in this step, less what it
        took."""
        self._left -= 1
        if not self.awake:
            if self._left <= 0:
                self.awake, self._left = True, _TRIAL
                self._net, self._steps = 0.0, 0
            return
        self._steps += 1
        self._net += (net - self._net) / min(self._steps, _MEMORY)
        if self._left > 0:
            return
        if self._net > 0:
            self._rest = _REST
        else:
            self.awake, self._left = False, self._rest
            self._rest = min(2 * self._rest, _LONGEST)
