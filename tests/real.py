"""The real default model, loaded once in a process of tests."""

from __future__ import annotations

from functools import cache

from foresay.engine.llm import LLM

__all__ = ["default_llm"]


@cache
def default_llm() -> LLM:
    """In float32, which is exact on every machine, and without drafts; others with an engine of
    their own are `default_llm().beside(drafter, policy)`."""
    return LLM(drafter=None, dtype="float32", memory=1 << 30)
