"""One profile for all property tests: the same cases in every run, and no deadlines, because a busy
machine is not a bug. Set FORESAY_EXPLORE=1 to look for new cases.

Measured steps take the same time everywhere (`steady`).

Threads wait without spinning: on a busy machine they would wait for each other for ever. And
signals that whoever started the tests ignores (`nohup`, a background job) are not ignored by the
processes that the tests start."""

from __future__ import annotations

import os
import signal
from importlib import import_module

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported, after this

for number, usual in (
    (signal.SIGINT, signal.default_int_handler),
    (signal.SIGHUP, signal.SIG_DFL),
):
    if signal.getsignal(number) == signal.SIG_IGN:
        signal.signal(number, usual)

settings.register_profile(
    "foresay",
    deadline=None,
    derandomize=not os.environ.get("FORESAY_EXPLORE"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("foresay")

if not os.environ.get("FORESAY_SANITIZE"):  # where only the core is tested, without torch
    import_module("steady")
