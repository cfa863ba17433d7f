"""Language models answer faster without changing a single answer.

foresay drafts the next tokens from text that already exists, lets the model check all drafts in
one pass, and keeps what the model would have written anyway. The drafters are in
`foresay.drafters`, the corpus files in `foresay.corpus`, every error in `foresay.errors`.

Importing this package needs numpy and nothing else; `LLM` needs torch and transformers when it is
asked for.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from foresay.draft import Draft, DraftBatch
from foresay.drafter import Drafter, SeededParams, Source
from foresay.errors import ForesayError
from foresay.sampling.params import SamplingParams
from foresay.verdict import TopK, Verdict, VerdictBatch, Wants

if TYPE_CHECKING:
    from foresay.engine.llm import LLM

__version__ = "0.1.0"

__all__ = [
    "LLM",
    "Draft",
    "DraftBatch",
    "Drafter",
    "ForesayError",
    "SamplingParams",
    "SeededParams",
    "Source",
    "TopK",
    "Verdict",
    "VerdictBatch",
    "Wants",
    "__version__",
]


def __getattr__(name: str) -> object:
    if name != "LLM":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return import_module("foresay.engine.llm").LLM


def __dir__() -> list[str]:
    return sorted(__all__)
