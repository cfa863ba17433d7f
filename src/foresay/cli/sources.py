"""Where an answer's tokens were drafted from: in colours, or in brackets without colours."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.text import Text

from foresay.cli.show import harmless
from foresay.drafter import SOURCE_NAMES, Source
from foresay.engine.text import IncrementalDetokenizer

__all__ = [
    "MARKS",
    "Mark",
    "Span",
    "in_colour",
    "legend_line",
    "marked",
    "print_legend",
    "print_marked",
    "spans",
]


@dataclass(frozen=True, slots=True)
class Mark:
    """How tokens of one source are shown; `foresay.drafter.SOURCE_NAMES` says what they are."""

    left: str
    right: str
    style: str
    """No two look the same without colour: bold, italic, underlined and reverse differ."""


MARKS = {
    Source.OWN: Mark("«", "»", "green underline"),
    Source.GROUP: Mark("⟦", "⟧", "cyan bold"),
    Source.HISTORY: Mark("⟨", "⟩", "magenta italic"),
    Source.CORPUS: Mark("⌊", "⌋", "yellow bold underline"),
    Source.USUAL: Mark("¦", "¦", "blue italic underline"),
    Source.RECYCLED: Mark("⦅", "⦆", "cyan bold italic underline"),
    Source.DRAFT_MODEL: Mark("⌈", "⌉", "green reverse"),
    Source.HEAD: Mark("⦃", "⦄", "magenta reverse bold"),
    Source.GRAMMAR: Mark("⟅", "⟆", "blue reverse underline"),
    Source.EDGE: Mark("⟮", "⟯", "yellow reverse italic"),
    Source.OTHER: Mark("⟪", "⟫", "red bold italic"),
    Source.MODEL: Mark(" ", " ", ""),
}


@dataclass(frozen=True, slots=True)
class Span:
    """A piece of an answer whose tokens have one source."""

    text: str
    source: Source


def spans(
    tokens: Sequence[int],
    sources: Sequence[Source],
    decode: Callable[[Sequence[int]], str],
    stops: Sequence[str] = (),
    least: int = 0,
) -> list[Span]:
    """An answer's text in pieces; neighbouring tokens of one source are one piece.

    A character that needs several tokens belongs to the one that completes it. Tokens without
    a source are the model's own.
    """
    answer = IncrementalDetokenizer(decode, stops, least)
    pieces: list[Span] = []
    known = [*sources, *[Source.MODEL] * (len(tokens) - len(sources))]
    for token, source in zip(tokens, known, strict=False):
        ended = answer.add(token)
        _append(pieces, answer.take(), source)
        if ended:
            break
    answer.finish()
    _append(pieces, answer.take(ended=True), known[len(tokens) - 1] if tokens else Source.MODEL)
    return pieces


def _append(pieces: list[Span], text: str, source: Source) -> None:
    if not text:
        return
    if pieces and pieces[-1].source == source:
        pieces[-1] = Span(pieces[-1].text + text, source)
    else:
        pieces.append(Span(text, source))


def in_colour(console: Console) -> bool:
    """Whether colours can be seen: on a terminal that has them, and NO_COLOR is not set."""
    return console.is_terminal and console.color_system is not None and not console.no_color


def marked(pieces: Sequence[Span]) -> str:
    """The text with brackets, whose shape tells the source."""
    out = []
    for before, text, after, source in _bare(pieces):
        mark, drafted = MARKS[source], source != Source.MODEL
        out += [before, mark.left + text + mark.right if drafted and text else text, after]
    return "".join(out)


def print_marked(pieces: Sequence[Span]) -> None:
    """Print the text, in colours if they can be seen, otherwise in brackets."""
    console = Console(highlight=False)
    if not in_colour(console):
        print(harmless(marked(pieces)))
        return
    shown = Text()
    for before, text, after, source in _bare([Span(harmless(p.text), p.source) for p in pieces]):
        shown.append(before).append(text, MARKS[source].style).append(after)
    console.print(shown, soft_wrap=True)


def print_legend(tokens: Mapping[Source, int]) -> None:
    """What the colours or brackets mean that were seen, and how many tokens have each source."""
    console = Console(highlight=False)
    colours = in_colour(console)
    all_tokens = max(sum(tokens.values()), 1)
    for source, (name, about) in SOURCE_NAMES.items():
        count, mark = tokens.get(source, 0), MARKS[source]
        if not count:
            continue
        sample = Text(f"{mark.left}text{mark.right}")
        if colours:
            sample = Text("text", mark.style)
        sample.pad_right(8 - len(sample))
        said = f"{f'{name}: {about}':<46}{count:>6} tokens {count / all_tokens:>5.0%}"
        console.print(sample + Text(said), soft_wrap=True)


def legend_line(sources: Sequence[Source]) -> Text | None:
    """What the colours of drafted tokens mean, in one line; None: no token was drafted."""
    seen = set(sources) - {Source.MODEL}
    if not seen:
        return None
    names = [Text(SOURCE_NAMES[s].name, MARKS[s].style) for s in SOURCE_NAMES if s in seen]
    return Text("drafted from: ") + Text(", ").join(names)


def _bare(pieces: Sequence[Span]) -> Iterator[tuple[str, str, str, Source]]:
    """White space before, the text, white space after, the source: white space gets no mark."""
    for piece in pieces:
        text = piece.text.strip()
        before = piece.text[: len(piece.text) - len(piece.text.lstrip())]
        after = piece.text[len(before) + len(text) :]
        yield before, text, after, piece.source
