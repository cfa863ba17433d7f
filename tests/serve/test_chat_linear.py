"""The readers of answers take time in proportion to the text, wherever it is cut."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from foresay.serve.chat.calls import CallReader
from foresay.serve.chat.deltas import Delta
from foresay.serve.chat.formats import FORMATS
from foresay.serve.chat.reasoning import REASONING, Begin, ReasoningReader

Reader = CallReader | ReasoningReader
LETTERS = 12_000


def calls(form: str) -> Callable[[], Reader]:
    return lambda: CallReader(FORMATS[form], frozenset({"b"}))


def thoughts(begin: Begin) -> Callable[[], Reader]:
    return lambda: ReasoningReader(REASONING["think"], begin)


TEXTS: list[tuple[str, Callable[[], Reader], str, str]] = [
    # name, reader, what the text begins with, what is repeated
    ("spaces before calls", calls("json"), "", " "),
    ("spaces before an opening", calls("hermes"), "", "\n"),
    ("spaces before reasoning", thoughts("possible"), "", " "),
    ("spaces between calls", calls("json"), '{"name": "b"}', " "),
    ("spaces in an object", calls("json"), '{"name": "b", "arguments": {', " "),
    ("<", calls("hermes"), "", "<"),
    ("< in reasoning", thoughts("open"), "", "<"),
    ("{", calls("json"), "", "{"),
    ("{ in arguments", calls("json"), '{"name": "b", "arguments": {"a": "', "{"),
    ("openings", calls("llama3"), "", "<|python_tag|>"),
    ("openings of no call", calls("llama3"), "", "<|python_tag|>{x"),
    ("openings cut off", calls("hermes"), "", "<tool_cal"),
    ("closings cut off", thoughts("open"), "", "</thin"),
    ("calls", calls("json"), "", '{"name": "b"}\n'),
    ("\\ in arguments", calls("json"), '{"name": "b", "arguments": {"', "\\\\"),
    ("\\ in a key behind them", calls("json"), '{"name": "b", "arguments": {}, "', "\\\\"),
    ("digits", calls("json"), '{"name": "b", "arguments": {"a": ', "1"),
]


def seconds(reader: Reader, text: str, size: int) -> float:
    found: list[Delta] = []
    begun = time.process_time()
    for at in range(0, len(text), size):
        found += reader.read(text[at : at + size])
    found += reader.read("", ended=True)
    return time.process_time() - begun


@pytest.mark.parametrize("size", [1, 1 << 20], ids=["letters", "whole"])
@pytest.mark.parametrize(
    ("make", "begin", "part"), [t[1:] for t in TEXTS], ids=[t[0] for t in TEXTS]
)
def test_eight_times_the_text_takes_eight_times_as_long(
    make: Callable[[], Reader], begin: str, part: str, size: int
) -> None:
    short, long = (begin + part * (many // len(part)) for many in (LETTERS, 8 * LETTERS))
    least = max(min(seconds(make(), short, size) for _ in range(3)), 1e-3)
    for _ in range(3):  # other processes may disturb one of them
        took = seconds(make(), long, size)
        if took < 32 * least:  # 64 times, if each letter had to look at all before it
            return
    pytest.fail(f"{LETTERS} letters take {least:.3f} s, and 8 times as many {took:.3f} s")
