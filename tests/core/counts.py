"""How often something is tried: less under the sanitizers, which make all of it ten times as slow;
more with FORESAY_EXPLORE=1."""

from __future__ import annotations

import os

SANITIZED = bool(os.environ.get("FORESAY_SANITIZE"))
_EXPLORES = bool(os.environ.get("FORESAY_EXPLORE"))


def tries(usual: int, *, sanitized: int | None = None) -> int:
    """How many of `usual`; under the sanitizers a fifth, or as many as are given."""
    if SANITIZED:
        return -(-usual // 5) if sanitized is None else sanitized
    return 5 * usual if _EXPLORES else usual
