"""Reads the files that FORESAY_VLLM_VERSIONS_FILE names: one line per change of the weights."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from os import PathLike
from pathlib import Path

from foresay.errors import InputError
from foresay.integrations.vllm.meter import ProposerStats, VersionLine

__all__ = ["VersionLine", "read_versions", "summary"]


def read_versions(path: str | PathLike[str]) -> list[VersionLine]:
    """The lines of a file, in their order. A line that was not written to its end, since its
    process was killed or still writes it, is left out.

    Raises: InputError for a file that cannot be read, or a line that is not one of these.
    """
    names = [item.name for item in fields(VersionLine)]
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise InputError(f"{path} cannot be read ({error})") from error
    found = []
    for number, line in enumerate(lines, 1):
        if not line or (line.startswith("{") and not line.endswith("}")):
            continue
        try:
            found.append(VersionLine(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise InputError(
                f"line {number} of {path} is {line[:80]!r}; expected an object with "
                f"{', '.join(names)}"
            ) from error
    return found


def summary(lines: Iterable[VersionLine]) -> dict[int, dict[str, float]]:
    """By version, over all drafters: metrics under names for the trainer's own logger.

    The ranks of a tensor-parallel group all draft the same, so their sums are multiples, and these
    ratios are right.
    """
    sums: dict[int, ProposerStats] = {}
    for line in lines:
        total = sums.setdefault(line.version, ProposerStats())
        for name in ("steps", "rows", "tokens", "drafted", "accepted", "seconds"):
            setattr(total, name, getattr(total, name) + getattr(line, name))
    return {
        version: {
            "foresay/tokens_per_step": total.tokens_per_step,
            "foresay/accept_rate": total.acceptance,
            "foresay/drafting_ms_per_step": 1e3 * total.seconds / max(total.steps, 1),
        }
        for version, total in sorted(sums.items())
    }
