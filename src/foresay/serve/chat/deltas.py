"""What the text of an answer consists of, in order. Every API of the server is made of these."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

__all__ = ["Arguments", "Call", "Content", "Delta", "Reasoning"]


@dataclass(frozen=True, slots=True)
class Reasoning:
    """More of what the model wrote before its answer."""

    text: str


@dataclass(frozen=True, slots=True)
class Content:
    """More of the answer's text."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call of a tool begins; its arguments follow.

    index  which call of the answer it is, from 0
    id     by which a message with the tool's result names it
    """

    index: int
    id: str
    name: str


@dataclass(frozen=True, slots=True)
class Arguments:
    """More of the arguments of a call: together they are the text of a JSON object, unless the
    answer ended in the middle."""

    index: int
    text: str


Delta: TypeAlias = Reasoning | Content | Call | Arguments
