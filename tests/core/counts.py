"""How often something is tried: less under the sanitizers, which make all of it ten times as slow;
ten times as often with FORESAY_EXPLORE=1."""

from __future__ import annotations

import os

from explore import TIMES

SANITIZED = bool(os.environ.get("FORESAY_SANITIZE"))


def tries(usual: int, *, sanitized: int | None = None) -> int:
    """How many of `usual`; under the sanitizers a fifth, or as many as are given."""
    if SANITIZED:
        return -(-usual // 5) if sanitized is None else sanitized
    return TIMES * usual
