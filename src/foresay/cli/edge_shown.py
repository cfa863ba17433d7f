"""An answer of an edge stream as it comes, and what its link cost."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from foresay.cli.show import harmless
from foresay.cli.sources import MARKS, in_colour, legend_line
from foresay.drafter import Source

if TYPE_CHECKING:
    from foresay.edge.statistics import StreamStatistics
    from foresay.models.tokenizer import Tokenizer
    from foresay.sampling.params import SamplingParams

__all__ = ["Shown", "cost_line"]


class Shown:
    """One answer as it comes."""

    def __init__(self, tokenizer: Tokenizer, params: SamplingParams, *, quiet: bool) -> None:
        from foresay.engine.text import IncrementalDetokenizer

        self._answer = IncrementalDetokenizer(
            tokenizer.decode, params.stop_texts, params.min_tokens
        )
        self._console = Console(highlight=False)
        self._colours = in_colour(self._console)
        self._quiet = quiet
        self._tokens: list[int] = []
        self._sources: list[Source] = []
        self._texts: list[str] = []
        self._alone = 0
        self._finish = ""
        self._begun = False  # a line that has not ended
        self._stats: StreamStatistics | None = None

    def add(self, piece: Any) -> None:
        from foresay.edge.drafting import EDGE_ONLY

        if piece.edge_only and not self._alone and piece.tokens:
            self.end_line()
            print(f"foresay: {EDGE_ONLY}", file=sys.stderr, flush=True)
        for token, source in zip(piece.tokens, piece.sources, strict=True):
            self._tokens.append(token)
            self._sources.append(source)
            self._alone += piece.edge_only
            if not self._answer.add(token):
                self._print(self._answer.take(), source)
        if piece.statistics is not None:
            self._answer.finish()
            self._print(self._answer.take(ended=True), Source.MODEL)
            self._finish, self._stats = piece.finish, piece.statistics
            if not self._quiet:
                self._begun = True  # an empty answer is a line, too
                self.end_line()
                if self._colours and (line := legend_line(self._sources)) is not None:
                    self._console.print(line, soft_wrap=True)
                print(cost_line(piece.statistics), file=sys.stderr)

    def end_line(self) -> None:
        """End the line that was begun, if there is one: what follows is no part of the answer."""
        if self._begun:
            self._begun = False
            print(flush=True)

    def _print(self, text: str, source: Any) -> None:
        self._texts.append(text)
        if self._quiet or not text:
            return
        self._begun = True
        if self._colours:
            shown = Text(harmless(text), MARKS[source].style)
            self._console.print(shown, end="", soft_wrap=True)
        else:
            print(harmless(text), end="", flush=True)

    def as_dict(self) -> dict[str, Any]:
        assert self._stats is not None
        return {
            "text": "".join(self._texts),
            "token_ids": self._tokens,
            "sources": [str(source) for source in self._sources],
            "finish_reason": self._finish,
            "edge_only": self._alone,
            "stats": self._stats.as_dict(),
        }


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def cost_line(stats: StreamStatistics) -> str:
    """What the link cost, in one line."""
    rtt = "?" if stats.rtt is None else f"{1000 * stats.rtt:.1f}"
    parts = [
        f"{_count(stats.tokens, 'token')} in {stats.seconds:.2f} s",
        f"{stats.accepted} of {_count(stats.sent, 'drafted token')} accepted in "
        f"{_count(stats.rounds, 'round')}",
        f"{stats.wire_up} bytes up, {stats.wire_down} down",
        f"round trip {rtt} ms",
    ]
    if stats.resumes or stats.reopens:
        parts.append(f"{_count(stats.resumes, 'resume')}, {_count(stats.reopens, 'new start')}")
    if stats.edge_only:
        parts.append(f"{_count(stats.edge_only, 'token')} edge-only: not the target model's")
    if stats.drafter_error is not None:
        parts.append(f"no more drafts after {stats.drafter_error}")
    return "[" + "; ".join(parts) + "]"
