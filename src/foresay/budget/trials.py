"""What trials may cost: the way in which controllers try and learn (`least_chance`, for hosts
that choose before anything is drafted, has trials of its own).

A controller that only does what seems to pay never learns that something else has begun to. So now
and then it makes a *trial*: it does more than seems to pay. All that trials lose is a small share
of the time, kept in an account:

    account = TrialAccount()
    account.earn(seconds)                # after every step: a share of its time is paid in
    if account.covers(loss): ...         # before a trial that is expected to lose `loss`
    account.settle(lost)                 # after it: what it lost, below 0 what it won

What a trial wins is paid in, too: where trials begin to succeed, they follow each other at once.
Seconds may be of any unit, such as steps without drafts.
"""

from __future__ import annotations

__all__ = ["HOLDS", "MOST_LOSS", "QUICK", "SHARE", "TrialAccount"]

SHARE = 0.004
"""Of the time, which trials may lose: small beside what drafts win, and a step's time is saved up
in 250 steps, so that a text which begins to repeat is noticed within one answer."""
QUICK = 0.01
"""Of a step's time: drafting that takes less is not weighed. Weighing it takes as long, and a text
can begin to be copied at any time."""
HOLDS = 8
"""Steps for which a plan is used: making one takes as long as a lookup."""
MOST_LOSS = 0.25
"""Of a step's time, that one trial may lose: one that fails must not be felt."""
_HELD = 0.5  # steps' time an account holds or owes at most: the next text must not wait for long


class TrialAccount:
    """What one controller's trials may lose.

    share  of the time; controllers that work side by side divide it
    """

    __slots__ = ("_largest", "balance", "share")

    def __init__(self, share: float = SHARE) -> None:
        self.share = share
        self.balance = 0.0
        self._largest = 0.0  # loss that was asked about since the last trial

    def earn(self, seconds: float, step: float | None = None) -> None:
        """A step took so long, or what its tokens are worth.

        step  the time of a usual step, None: this one's. The balance is kept within half of it, or
              within the loss of the trial that is waited for, where that is more
        """
        limit = max(_HELD * (seconds if step is None else step), self._largest)
        self.balance = min(max(self.balance + self.share * seconds, -limit), limit)

    def covers(self, loss: float) -> bool:
        """Whether a trial that is expected to lose `loss` may be made now."""
        self._largest = max(self._largest, loss)
        return 0 < self.balance >= loss

    def settle(self, lost: float) -> None:
        """A trial has lost `lost`, or won where that is below 0. The next `earn` bounds what is
        owed."""
        self.balance -= lost
        self._largest = 0.0
