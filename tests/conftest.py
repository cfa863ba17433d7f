"""One profile for all property tests: the same cases in every run, and no deadlines, because a busy
machine is not a bug. Set FORESAY_EXPLORE=1 to look for new cases.

And threads wait without spinning: on a busy machine they would wait for each other for ever."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # read when torch is imported, after this

settings.register_profile(
    "foresay",
    deadline=None,
    derandomize=not os.environ.get("FORESAY_EXPLORE"),
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("foresay")
