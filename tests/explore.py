"""How many cases of a property are tried."""

from __future__ import annotations

import os

from hypothesis import settings

__all__ = ["EXPLORES", "TIMES", "examples", "tries"]

EXPLORES = bool(os.environ.get("FORESAY_EXPLORE"))
TIMES = 10 if EXPLORES else 1


def examples(count: int) -> settings:
    """So many, the same in every run; ten times as many, and new ones, with FORESAY_EXPLORE=1. For
    properties of which one case takes so long that the usual hundred would take seconds."""
    return settings(max_examples=count * TIMES)


def tries(usual: int, *, sanitized: int | None = None) -> int:
    """How many of `usual`, likewise. Under the sanitizers, which make it ten times as slow, a
    fifth, or as many as are given."""
    if os.environ.get("FORESAY_SANITIZE"):
        return -(-usual // 5) if sanitized is None else sanitized
    return TIMES * usual
