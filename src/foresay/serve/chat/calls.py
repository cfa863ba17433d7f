"""Calls of tools, read from a text that comes in pieces, which may be cut anywhere.

A call is told as soon as its name is known and its arguments begin, and the arguments as they come.
What is no call after all is content: nothing that a model writes raises an error. Where the answer
has to be calls, there is no content: all that can be left is the beginning of a call that was cut
off, and a client could not tell it from a text.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Literal

from foresay.serve.chat.deltas import Arguments, Call, Content, Delta
from foresay.serve.chat.formats import ToolFormat
from foresay.serve.chat.json_text import JsonText
from foresay.serve.chat.reasoning import overlap

__all__ = ["CallReader"]

_KEYS = ("arguments", "parameters")  # models mix them up
_MOST_UNTOLD = 1 << 16  # characters of an object whose name or arguments do not come


class CallReader:
    """Tells the calls in the text of one answer from its content.

    names  of the tools that there are: an object with another name is content
    must   whether the answer has to be calls
    """

    def __init__(self, form: ToolFormat, names: Collection[str], *, must: bool = False) -> None:
        self._form = form
        self._names = names
        self._must = must
        self._markers = tuple(filter(None, (form.opening, form.end.strip())))
        self._unread, self._at = "", 0  # what came, and how much of it was read
        self._unsure: list[str] = []  # was read, and is content if no call follows
        self._bare = True  # there is nothing but spaces in it
        self._object: _CallObject | None = None
        self._place: Literal["content", "calls"] = "content" if form.opens else "calls"
        self._since: Literal["begin", "call", "content"] = "begin"  # what came last
        self.calls = 0
        """Calls that have begun."""

    def read(self, text: str, *, ended: bool = False) -> list[Delta]:
        """What more of the text is; with `ended` all that was kept, too."""
        self._unread, self._at = self._unread[self._at :] + text, 0
        found: list[Delta] = []
        goes_on = True
        while self._at < len(self._unread) and goes_on:
            if self._object is not None:
                goes_on = self._read_object(self._object, found)
            elif self._place == "calls":
                goes_on = self._read_around(ended)
            else:
                goes_on = self._read_content(found, ended)
        if ended:
            if self._object is not None and not self._object.told:
                self._keep(self._object.raw)
            if text := self._kept():
                found.append(Content(text))
        return [one for one in found if not (self._must and isinstance(one, Content))]

    @property
    def within(self) -> bool:
        """Whether the text is in the middle of a call that was told."""
        return self._object is not None and self._object.told

    def _keep(self, text: str) -> None:
        self._unsure.append(text)
        self._bare = self._bare and not text.strip()

    def _kept(self) -> str:
        text = "".join(self._unsure)
        self._unsure, self._bare = [], True
        return text

    # Each of these reads a part of the text, or changes what is read next; if not, it needs more.

    def _read_content(self, found: list[Delta], ended: bool) -> bool:
        """Content up to the opening of a call."""
        opening, begin = self._form.opening, self._at
        at = self._unread.find(opening, begin) if opening else -1
        if at >= 0:
            self._place = "calls"
            self._at = at + len(opening)
        else:
            at = self._at = len(self._unread) - (0 if ended else overlap(self._unread, opening))
        text = self._unread[begin:at]
        if self._since == "call" and self._bare:
            text = text.lstrip()
        self._keep(text)
        nothing = self._since == "begin" and self._bare  # yet, if a call follows
        if not nothing and (text := self._kept()):
            found.append(Content(text))
            self._since = "content"
        if self._place == "calls":
            self._keep(opening)
        return self._place == "calls"

    def _read_around(self, ended: bool) -> bool:
        """What stands around the objects of calls: it is left out, if there is one."""
        text, at = self._unread, self._at
        size = 1 if text[at] in self._form.around else 0
        for marker in self._markers:
            if text.startswith(marker, at):
                size = len(marker)
                self._place = "calls" if marker == self._form.opening else "content"
            elif not ended and len(text) - at < len(marker) and marker.startswith(text[at:]):
                return False  # the rest of it may follow
        if not size and text[at] == "{":
            self._object = _CallObject(self._names)
        elif not size:
            self._place = "content"
        if self._since != "call":
            self._keep(text[at : at + size])
        self._at += size
        return True

    def _read_object(self, call: _CallObject, found: list[Delta]) -> bool:
        """An object, up to its end or to where it turns out to be no call."""
        fits = True
        while fits and not call.ended and self._at < len(self._unread):
            fits = call.take(self._unread[self._at])
            self._at += 1
            if not call.told and call.name is not None and (call.begun or call.ended):
                self._tell(call, found)
        if call.told and (text := call.taken()):
            found.append(Arguments(self.calls - 1, text))
        if not fits or call.ended:
            self._object = None
        if not fits or (call.ended and not call.told):
            self._place = "content"
            if call.told:
                self._at -= 1  # what does not fit is not part of it
            else:
                self._keep(call.raw)
        return True

    def _tell(self, call: _CallObject, found: list[Delta]) -> None:
        assert call.name is not None
        call.told = True
        found.append(Call(self.calls, self._form.new_id(), call.name))
        self.calls += 1
        self._kept()
        self._since = "call"


class _CallObject:
    """The object of one call: its name, and the text of its arguments."""

    def __init__(self, names: Collection[str]) -> None:
        self._names = names
        self._json = JsonText()
        self._key = ""
        self._text: list[str] = []  # of a key, or of the name
        self._valued = False  # whether a value of the object is read
        self._arguments: list[str] = []
        self._raw: list[str] = []
        self.name: str | None = None
        self.begun = False
        """Whether the arguments have begun."""
        self.told = False

    @property
    def ended(self) -> bool:
        return self._json.ended

    @property
    def raw(self) -> str:
        """All of it, until it is told."""
        return "".join(self._raw)

    def taken(self) -> str:
        """The arguments that came since the last call."""
        text, self._arguments = "".join(self._arguments), []
        return text if self.begun or not self.ended else "{}"

    def take(self, letter: str) -> bool:
        """Read a character; whether this is a call as far as it goes."""
        if not self.told:
            self._raw.append(letter)
        before, depth = self._json.state, self._json.depth
        if not self._json.take(letter) or len(self._raw) > _MOST_UNTOLD:
            return False
        now = self._json.state
        if self._valued:
            return self._more_of_value(letter, before, depth)
        if depth == 1 and before == "value" and now != "value":
            self._valued = True
            return self._begin_value(letter)
        if depth == 1 and "key text" in (before.removeprefix("escape in "), now):
            self._text.append(letter)
            if now == "colon":
                self._key, self._text = json.loads("".join(self._text)), []
        return True

    def _begin_value(self, letter: str) -> bool:
        if self._key == "name":
            if letter != '"':
                return False
            self._text = [letter]
        elif self._key in _KEYS:
            if self.begun or letter != "{":
                return False
            self.begun, self._arguments = True, [letter]
        return True

    def _more_of_value(self, letter: str, before: str, depth: int) -> bool:
        now = self._json.state
        scalar = before == "scalar" and now != "scalar" and depth == 1  # it ended before this one
        if not scalar and self._key == "name":
            self._text.append(letter)
        elif not scalar and self._key in _KEYS:
            self._arguments.append(letter)
        self._valued = not scalar and (now != "after" or self._json.depth > 1)
        if self._valued or self._key != "name":
            return True
        named, self._text = json.loads("".join(self._text)), []
        known = isinstance(named, str) and named in self._names and self.name is None
        self.name = named if known else self.name
        return known
