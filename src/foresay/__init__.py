"""Language models answer faster without changing a single answer.

foresay drafts the next tokens from text that already exists, lets the model check all drafts in
one pass, and keeps what the model would have written anyway. The drafters are in
`foresay.drafters`, the corpus files in `foresay.corpus`, every error in `foresay.errors`.

Importing this package imports nothing else yet: each name is imported when it is asked for. `LLM`
then needs torch and transformers, the others numpy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foresay.draft import Draft, DraftBatch
    from foresay.drafter import Drafter, SeededParams, Source
    from foresay.engine.llm import LLM
    from foresay.errors import ForesayError
    from foresay.sampling.params import SamplingParams
    from foresay.sampling.structured_outputs import StructuredOutputs
    from foresay.verdict import TopK, Verdict, VerdictBatch, Wants

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
    "StructuredOutputs",
    "TopK",
    "Verdict",
    "VerdictBatch",
    "Wants",
    "__version__",
]


# The command line sees to Ctrl-C before it imports more, which takes a while.
_MODULES = {
    **dict.fromkeys(("Draft", "DraftBatch"), "draft"),
    **dict.fromkeys(("Drafter", "SeededParams", "Source"), "drafter"),
    **dict.fromkeys(("TopK", "Verdict", "VerdictBatch", "Wants"), "verdict"),
    "ForesayError": "errors",
    "LLM": "engine.llm",
    "SamplingParams": "sampling.params",
    "StructuredOutputs": "sampling.structured_outputs",
}
_SUBMODULES = ("corpus", "draft", "drafter", "drafters", "errors", "sampling", "verdict")


def __getattr__(name: str) -> object:
    if name in _SUBMODULES:
        return import_module(f"foresay.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(import_module(f"foresay.{_MODULES[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted(__all__)
