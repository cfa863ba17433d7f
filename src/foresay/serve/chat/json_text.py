"""JSON, read one character at a time: whether it can still become a value, and where it ends; and
what is whole of a value that was cut off."""

from __future__ import annotations

__all__ = ["JsonText", "whole_of"]

_SPACE = " \t\n\r"
_DIGITS = "0123456789"
_MOST_DEPTH = 128
_STEPS = (  # through a scalar: a place, the characters that may follow there, the place behind them
    *(("", "-", "-"), ("", "0", "0"), ("", "123456789", "1")),
    *(("-", "0", "0"), ("-", "123456789", "1")),
    *(("0", ".", "."), ("0", "eE", "e")),
    *(("1", _DIGITS, "1"), ("1", ".", "."), ("1", "eE", "e")),
    *((".", _DIGITS, ".0"), (".0", _DIGITS, ".0"), (".0", "eE", "e")),
    *(("e", "+-", "e+"), ("e", _DIGITS, "e0"), ("e+", _DIGITS, "e0"), ("e0", _DIGITS, "e0")),
    *(
        (word[:at], letter, word[: at + 1])
        for word in ("true", "false", "null")
        for at, letter in enumerate(word)
    ),
)
_BEHIND = {(place, letter): behind for place, letters, behind in _STEPS for letter in letters}
_ENDS = frozenset(("true", "false", "null", "0", "1", ".0", "e0"))


class JsonText:
    """One JSON value that comes in pieces."""

    def __init__(self) -> None:
        self._open: list[str] = []  # '{' and '[' that are not closed
        self._state = "value"
        self._place = ""  # of a scalar
        self._digits = 0  # hexadecimal ones that \u still needs

    @property
    def depth(self) -> int:
        """Objects and arrays that are open."""
        return len(self._open)

    @property
    def closing(self) -> str:
        """The brackets that close what is open."""
        return "".join("}" if one == "{" else "]" for one in reversed(self._open))

    @property
    def state(self) -> str:
        """What may stand next: a value, the first item, the first key, a key, a colon; more of a
        key, a string or a scalar; or what comes after a value."""
        return self._state

    @property
    def ended(self) -> bool:
        """Whether the value is complete. A number alone never is: another digit may follow."""
        return self._state == "after" and not self._open

    def take(self, letter: str) -> bool:
        """Read one character; whether it may stand there. If not, nothing has changed."""
        state = self._state
        if state in ("string", "key text"):
            return self._in_text(letter, state)
        if state.startswith("escape"):
            return self._escaped(letter, state)
        if state == "scalar":
            if behind := _BEHIND.get((self._place, letter)):
                self._place = behind
                return True
            if self._place not in _ENDS:
                return False
            state = "after"
        if letter in _SPACE:
            self._state = state
            return not self.ended
        return self._structure(letter, state)

    def _in_text(self, letter: str, state: str) -> bool:
        if letter == "\\":
            self._state = f"escape in {state}"
        elif letter == '"':
            self._state = "after" if state == "string" else "colon"
        return letter >= " "

    def _escaped(self, letter: str, state: str) -> bool:
        if self._digits:
            if letter not in "0123456789abcdefABCDEF":
                return False
            self._digits -= 1
        elif letter == "u":
            self._digits = 4
        elif letter not in '"\\/bfnrt':
            return False
        if not self._digits:
            self._state = state.removeprefix("escape in ")
        return True

    def _structure(self, letter: str, state: str) -> bool:
        if state in ("value", "first item") and self._begun(letter):
            return True
        if letter == '"' and state in ("first key", "key"):
            self._state = "key text"
        elif letter == ":" and state == "colon":
            self._state = "value"
        elif letter == "," and state == "after" and self._open:
            self._state = "key" if self._open[-1] == "{" else "value"
        elif self._open and (
            (letter == "}" and self._open[-1] == "{" and state in ("first key", "after"))
            or (letter == "]" and self._open[-1] == "[" and state in ("first item", "after"))
        ):
            self._open.pop()
            self._state = "after"
        else:
            return False
        return True

    def _begun(self, letter: str) -> bool:
        """Begin a value, if one begins with this character."""
        if letter in "{[":
            if len(self._open) == _MOST_DEPTH:
                return False
            self._open.append(letter)
            self._state = "first key" if letter == "{" else "first item"
        elif letter == '"':
            self._state = "string"
        elif behind := _BEHIND.get(("", letter)):
            self._state, self._place = "scalar", behind
        else:
            return False
        return True


def whole_of(text: str) -> str:
    """An object, or as much of it as is whole where its text was cut off: a string and a number
    that might have gone on are left out, with their keys, and what is open is closed."""
    reader, end = JsonText(), 0
    for at, letter in enumerate(text):
        if not reader.take(letter):
            break
        if reader.state in ("after", "first key", "first item"):
            end = at + 1
        elif letter == "," and reader.state in ("key", "value"):
            end = at
    reader = JsonText()
    for letter in text[:end]:
        reader.take(letter)
    return f"{text[:end]}{reader.closing}" or "{}"
