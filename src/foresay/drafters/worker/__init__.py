"""WorkerDrafter: a drafter in a process of its own.

drafter  WorkerDrafter
life     one such process, from its start to its end
main     what runs there
frames   the messages between both
values   what is sent, as plain values; what is received, checked
"""

from foresay.drafters.worker.drafter import RESTARTS, WITHIN, WorkerDrafter, WorkerState

__all__ = ["RESTARTS", "WITHIN", "WorkerDrafter", "WorkerState"]
