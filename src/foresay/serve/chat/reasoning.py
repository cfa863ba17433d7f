"""Where the reasoning of an answer ends and the answer itself begins."""

from __future__ import annotations

from typing import Literal, NamedTuple

from foresay.errors import InputError
from foresay.serve.chat.deltas import Content, Delta, Reasoning

__all__ = ["REASONING", "Markers", "ReasoningReader", "begin_of", "markers_of"]

Begin = Literal["open", "possible", "none"]


class Markers(NamedTuple):
    """What stands around the reasoning."""

    opening: str
    closing: str


REASONING = {"think": Markers("<think>", "</think>"), "mistral": Markers("[THINK]", "[/THINK]")}
"""The markers by name: of DeepSeek R1, Qwen3 and most others; of Magistral."""


def markers_of(template: str, name: str = "auto") -> Markers | None:
    """The markers of that name; "none": there are none; "auto": those that a chat template names.

    Raises: InputError for an unknown name.
    """
    if name not in ("auto", "none", *REASONING):
        raise InputError(f"--reasoning is {name!r}; expected auto, none, {', '.join(REASONING)}")
    if name != "auto":
        return REASONING.get(name)
    return next((m for m in REASONING.values() if any(text in template for text in m)), None)


def begin_of(prompt: str, markers: Markers | None) -> Begin:
    """How an answer to this prompt, a rendered template, begins: inside of reasoning that the
    template has opened; perhaps with some; or without, because the template has closed it."""
    if markers is None:
        return "none"
    end = prompt.rstrip()
    if end.endswith(markers.opening):
        return "open"
    return "none" if end.endswith(markers.closing) else "possible"


class ReasoningReader:
    """Tells reasoning from content, in a text that comes in pieces."""

    def __init__(self, markers: Markers | None, begin: Begin) -> None:
        self._markers = markers
        self._state = begin
        self._held = ""
        self._spaces: list[str] = []  # before what is held: content, if no reasoning begins
        self._bare = begin == "open"  # no text of this part has come: spaces are left out

    @property
    def reasoning(self) -> bool:
        """Whether the text is inside of reasoning now."""
        return self._state == "open"

    @property
    def undecided(self) -> bool:
        """Whether it may still turn out to begin with reasoning."""
        return self._state == "possible"

    def read(self, text: str, *, ended: bool = False) -> list[Delta]:
        """What more of the text is; with `ended` all that was kept, too."""
        self._held += text
        found: list[Delta] = []
        if self._state == "possible":
            self._decide(ended)
        if self._state == "open":
            assert self._markers is not None
            inside, closing, behind = self._held.partition(self._markers.closing)
            if not closing and not ended:
                kept = overlap(inside, self._markers.closing)
                inside, behind = inside[: len(inside) - kept], inside[len(inside) - kept :]
            if shown := self._shown(inside):
                found.append(Reasoning(shown))
            self._held = behind
            if closing:
                self._state, self._bare = "none", True
        if self._state == "none":
            if shown := self._shown(self._held):
                found.append(Content(shown))
            self._held = ""
        return found

    def _decide(self, ended: bool) -> None:
        """Whether the text begins with reasoning, once that is certain."""
        assert self._markers is not None
        opening, text = self._markers.opening, self._held.lstrip()
        self._spaces.append(self._held[: len(self._held) - len(text)])
        self._held = text
        if text.startswith(opening):
            self._state, self._bare, self._held = "open", True, text[len(opening) :]
        elif ended or not opening.startswith(text):
            self._state, self._held = "none", "".join([*self._spaces, text])

    def _shown(self, text: str) -> str:
        """The text without the spaces behind a marker."""
        if self._bare:
            text = text.lstrip()
            self._bare = not text
        return text


def overlap(text: str, marker: str) -> int:
    """How many characters at the end of the text may be the begin of the marker."""
    for size in range(min(len(text), len(marker) - 1), 0, -1):
        if marker.startswith(text[-size:]):
            return size
    return 0
