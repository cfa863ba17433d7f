"""How models write calls of tools: one table of formats, and which of them a chat template has."""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence
from dataclasses import dataclass, replace

from foresay.errors import InputError

__all__ = ["FORMATS", "ToolFormat", "format_of"]

_LETTERS = string.ascii_letters + string.digits


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is an object {"name": …, key: {…}}; the rest stands around it.

    key       the name of the arguments in that object
    opening   what opens the first call: a text or a control token
    opens     whether a call needs it; otherwise an object at the begin of an answer is a call, too
    begin     between the opening and the first call
    between   two calls
    end       behind the last one
    around    characters that are nothing but punctuation outside of the objects
    id_size   letters and digits of a call's id, where templates insist; 0: any id
    """

    name: str
    key: str = "arguments"
    opening: str = ""
    opens: bool = False
    begin: str = ""
    between: str = "\n"
    end: str = ""
    around: str = " \t\r\n"
    id_size: int = 0

    def written(self, calls: Sequence[str]) -> str:
        """The text of these calls, each an object."""
        opening = self.opening if self.opens else ""
        return f"{opening}{self.begin}{self.between.join(calls)}{self.end}"

    def new_id(self) -> str:
        """The id of a new call."""
        if self.id_size:
            return "".join(secrets.choice(_LETTERS) for _ in range(self.id_size))
        return f"call_{secrets.token_hex(12)}"


FORMATS = {
    one.name: one
    for one in (
        ToolFormat(
            "hermes",
            opening="<tool_call>",
            opens=True,
            begin="\n",
            between="\n</tool_call>\n<tool_call>\n",
            end="\n</tool_call>",
        ),
        ToolFormat(
            "llama3",
            key="parameters",
            opening="<|python_tag|>",
            between="; ",
            around="; \t\r\n",
        ),
        ToolFormat(
            "mistral",
            opening="[TOOL_CALLS]",
            opens=True,
            begin=" [",
            between=", ",
            end="]",
            around="[,] \t\r\n",
            id_size=9,
        ),
        ToolFormat("json"),
    )
}
"""The formats by name: of Hermes and Qwen; of Llama 3; of Mistral; and, for models whose template
knows no tools, objects alone, one a line."""


def format_of(template: str, name: str = "auto") -> ToolFormat:
    """The format of that name, or "auto": the one that a chat template has.

    Raises: InputError for an unknown name.
    """
    if name not in ("auto", *FORMATS):
        raise InputError(f"--tool-format is {name!r}; expected auto, {', '.join(FORMATS)}")
    found = _named_in(template) if name == "auto" else name
    if found == "mistral" and "[TOOL_CALLS][" in template:
        return replace(FORMATS[found], begin="[")
    if found != "mistral" and "[TOOL_CALLS]" in template:  # it insists on the ids all the same
        return replace(FORMATS[found], id_size=FORMATS["mistral"].id_size)
    return FORMATS[found]


def _named_in(template: str) -> str:
    # Calls that are no such objects: Qwen3-Coder's tags, Mistral's names before `[ARGS]`.
    if "<function=" in template or "[ARGS]" in template:
        return "json"
    if "<tool_call>" in template:
        return "hermes"
    if "[TOOL_CALLS]" in template:
        return "mistral"
    if "<|python_tag|>" in template or '"parameters": ' in template:
        return "llama3"
    return "json"
