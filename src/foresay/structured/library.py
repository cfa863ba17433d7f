"""llguidance as this project uses it: the limits of a grammar, and how one is compiled."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLParserLimits, LLTokenizer

__all__ = ["begin", "limits", "read_tokenizer", "short"]


def limits() -> LLParserLimits:
    """What compiling a grammar, and one mask, may take: some tens of milliseconds and megabytes.

    They are a twelfth to a half of the library's own.
    """
    from llguidance import LLParserLimits

    return LLParserLimits(
        initial_lexer_fuel=100_000,
        step_lexer_fuel=100_000,
        step_max_items=10_000,
        max_items_in_row=1_000,
        max_lexer_states=20_000,
        max_grammar_size=100_000,
        verbose_errors=False,
    )


def read_tokenizer(text: str, ends: Sequence[int]) -> LLTokenizer:
    """A tokenizer.json. Raises: ValueError."""
    from llguidance import LLTokenizer

    return LLTokenizer(text, eos_token=list(ends), slices=LLTokenizer.json_slices())


def begin(tokenizer: LLTokenizer, source: str) -> LLMatcher:
    """The beginning of a grammar, whose first mask has been computed: it takes longer than others.

    Raises: ValueError with the reason, if it is refused.
    """
    from llguidance import LLMatcher

    start = LLMatcher(tokenizer, source, log_level=0, limits=limits())
    start.compute_bitmask()
    if start.is_error():
        raise ValueError(start.get_error())
    return start


# Of a refusal: where in the source it is, lines of the source, marks below them, and notes.
_PLACES = re.compile(r"^\s*(\d+ \|.*|\^+\s*)$|(?:\bat )?\b\d+\(\d+\): ?|<[\w-]+/>", re.MULTILINE)


def short(error: object) -> str:
    """What the library says, as one sentence of at most 500 characters, without the places in a
    source that nobody has written so."""
    said = " ".join(_PLACES.sub("", str(error)).split())
    said = said.replace("NoExtensionBias", "no text matches it")
    said = said.removeprefix("failed to compile JSON schema: ")
    return said if len(said) <= 500 else f"{said[:500]} …"
