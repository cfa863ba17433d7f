"""The drafters, a file or folder each; none imports another, but for lineup
and the worker process, which make them by name. Importing this package imports none.

SuffixDrafter   the text so far, its group, the history of finished requests, a corpus
CorpusDrafter   a frozen corpus alone
NgramDrafter    prompt lookup, the known baseline
RecycleDrafter  what the target itself found likely before: Token Recycling
MergeDrafter    several drafters' drafts in one tree
GrammarDrafter  no drafts: for the text alone that the form of an answer forces
ExternalDrafter what comes from outside, such as from edge clients; a member of a MergeDrafter
WorkerDrafter   any of these that draft from the text alone, in a process of its own
ModelDrafter    a smaller model
SelfDrafter     some of the target's own layers
EagleDrafter    a small head over the target's features; needs torch
MtpDrafter      the multi-token-prediction head of models that ship one; needs torch
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from foresay.drafters.eagle import EagleDrafter as EagleDrafter
    from foresay.drafters.external import ExternalDrafter
    from foresay.drafters.grammar import GrammarDrafter
    from foresay.drafters.merge import MergeDrafter
    from foresay.drafters.model import ModelDrafter
    from foresay.drafters.mtp import MtpDrafter as MtpDrafter
    from foresay.drafters.ngram import NgramDrafter
    from foresay.drafters.recycle import RecycleDrafter
    from foresay.drafters.self_draft import SelfDrafter
    from foresay.drafters.suffix import CorpusDrafter, SuffixDrafter
    from foresay.drafters.worker import WorkerDrafter

__all__ = [
    "CorpusDrafter",
    "ExternalDrafter",
    "GrammarDrafter",
    "MergeDrafter",
    "ModelDrafter",
    "NgramDrafter",
    "RecycleDrafter",
    "SelfDrafter",
    "SuffixDrafter",
    "WorkerDrafter",
]

_HOMES = {
    "CorpusDrafter": "suffix",
    "EagleDrafter": "eagle",  # not in __all__: `import *` must not need torch
    "ExternalDrafter": "external",
    "GrammarDrafter": "grammar",
    "MergeDrafter": "merge",
    "ModelDrafter": "model",
    "MtpDrafter": "mtp",  # likewise
    "NgramDrafter": "ngram",
    "RecycleDrafter": "recycle",
    "SelfDrafter": "self_draft",
    "SuffixDrafter": "suffix",
    "WorkerDrafter": "worker",
}


def __getattr__(name: str) -> object:
    # Lazily, so that a drafter that needs torch does not make the others need it.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(_HOMES)
