"""Steps that take the same time on every machine, when the adaptive policy measures its target.

Importing this replaces the clock: measuring a tiny model takes longer than most tests, and what it
finds differs from run to run. Everything else of measuring is done. Tests of measuring itself take
the real clock back (`with real_clock(): …`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from foresay.engine import measure
from foresay.models.target import Target, TextKv

__all__ = ["real_clock"]

_timed = measure._timed
_STEP, _ROW = 1e-3, 2e-5  # seconds; as of a tiny model on one core


def _steady(target: Target, kind: measure._Kind, kvs: Sequence[TextKv]) -> float:
    return _STEP + _ROW * kind.rows * kind.requests + _ROW * kind.requests * kind.context / 64


measure._timed = _steady
vars(measure)["seconds_kept_waiting"] = lambda: 0.0  # nor do other processes matter


@contextmanager
def real_clock() -> Iterator[None]:
    """Steps are timed while the body runs. Whether other processes ran is not looked at."""
    measure._timed = _timed
    try:
        yield
    finally:
        measure._timed = _steady
