"""One line of a proof.

Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """What was checked, and whether it came out as it should."""

    layer: str
    name: str
    ok: bool
    result: str
    seconds: float = 0.0
    kind: Literal["proof", "test"] = "proof"
    """A test draws samples and has a stated power; a proof needs none."""
