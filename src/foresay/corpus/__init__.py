"""Frozen corpus files: build, open, inspect, verify. Knows nothing of models or drafters."""

from .build import Fields, array_documents, build, trace_documents
from .read import CorpusSummary, inspect, open_corpus, verify

__all__ = [
    "CorpusSummary",
    "Fields",
    "array_documents",
    "build",
    "inspect",
    "open_corpus",
    "trace_documents",
    "verify",
]
