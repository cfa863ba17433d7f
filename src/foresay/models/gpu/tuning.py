"""Choices to be measured on the device: `benchmarks/gpu_tune.py` tries them against each other."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Tuning"]


@dataclass(frozen=True, slots=True)
class Tuning:
    """How the kernels of a step are run. The defaults are what was measured; `chunk` and `lean`
    change the bits of all steps alike, the others change the time only.

    Bytes of weights that a kernel brings into the L2 cache for the ones behind it:

    rotate      of the output's, at once
    attend      of the gate's, when the keys are written
    combine     of up, when the chunks are done
    first_norm  of up behind that, at once
    last_norm   of the next layer's queries, at once

    And attention:

    keys    blocks that an item brings there of its keys and values, before it waits
    chunk   blocks of a chunk up to position 1,024
    groups  tiles of a text that read keys together, at most
    stages  blocks of keys that are under way
    known   the pages of a chunk are read at once, so that keys are under way two blocks before
    flat    the blocks of all paths are one loop, for the same
    lean    whole blocks are not masked, and scores are scaled by the sum that precedes exp2
    early   `combine` starts to read the first chunks before it knows which score is the highest
    """

    rotate: int = 0
    attend: int = 0
    combine: int = 0
    first_norm: int = 0
    last_norm: int = 0
    keys: int = 0
    chunk: int = 2
    groups: int = 1
    stages: int = 3
    known: bool = False
    flat: bool = False
    lean: bool = False
    early: bool = False
