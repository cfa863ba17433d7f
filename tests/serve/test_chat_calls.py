"""Calls and reasoning in texts that are cut anywhere: one table of cases for all formats."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from explore import examples
from foresay.engine.answers import Chunk
from foresay.serve.chat.answers import ChatAnswers, ChatForm, gathered
from foresay.serve.chat.calls import CallReader
from foresay.serve.chat.deltas import Arguments, Call, Delta
from foresay.serve.chat.formats import FORMATS
from foresay.serve.chat.json_text import JsonText
from foresay.serve.chat.reasoning import REASONING, Begin, ReasoningReader

NAMES = frozenset({"get", "b"})
CASES: list[tuple[str, str, str, list[tuple[str, str]]]] = [
    # format, text, content, calls
    (
        "hermes",
        'Hi! <tool_call>\n{"name": "get", "arguments": {"a": "x}<\\"é", "b": [1, 2.5e3]}}\n'
        '</tool_call>\n<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>',
        "Hi! ",
        [("get", '{"a": "x}<\\"é", "b": [1, 2.5e3]}'), ("b", "{}")],
    ),
    (
        "hermes",
        '\n\n<tool_call>{"arguments": {"q": {"r": null}}, "name": "get"}</tool_call>\n tail',
        "tail",
        [("get", '{"q": {"r": null}}')],
    ),
    (
        "llama3",
        '<|python_tag|>{"name": "get", "parameters": {"q": 1}}; {"name": "b", "parameters": {}}',
        "",
        [("get", '{"q": 1}'), ("b", "{}")],
    ),
    (
        "llama3",
        ' {"type": "function", "name": "get", "parameters": {"q": -0.5}}',
        "",
        [("get", '{"q": -0.5}')],
    ),
    (
        "mistral",
        'So: [TOOL_CALLS] [{"name": "get", "arguments": {"q": 1}, "id": "abcdefghi"}, '
        '{"name": "b", "arguments": {}}]',
        "So: ",
        [("get", '{"q": 1}'), ("b", "{}")],
    ),
    ("llama3", 'Hm <|python_tag|>{"name": "b", "parameters": {}}', "Hm ", [("b", "{}")]),
    ("mistral", '[TOOL_CALLS][{"name":"b","arguments":{"[":"]"}}]', "", [("b", '{"[":"]"}')]),
    (
        "json",
        '{"name": "get", "arguments": {"q": 1}}\n{"name": "b", "arguments": {"z": {}}}\n',
        "",
        [("get", '{"q": 1}'), ("b", '{"z": {}}')],
    ),
    # A function without arguments.
    ("json", '{"name": "b"}', "", [("b", "{}")]),
    # An answer that max_tokens has ended.
    ("json", '{"name": "get", "arguments": {"q": "unf', "", [("get", '{"q": "unf')]),
    ("hermes", 'x <tool_call>\n{"name": "ge', 'x <tool_call>\n{"name": "ge', []),
    ("hermes", "x <tool_c", "x <tool_c", []),
    # What is no call.
    ("hermes", "1 < 2 </tool_call>", "1 < 2 </tool_call>", []),
    ("hermes", ' {"name": "b"}', ' {"name": "b"}', []),
    ("llama3", 'Say {"name": "b", "parameters": {}}', 'Say {"name": "b", "parameters": {}}', []),
    ("json", '{"a": 1} x', '{"a": 1} x', []),
    ("json", '{"name": 7, "arguments": {}}', '{"name": 7, "arguments": {}}', []),
    # More digits than Python reads as a number.
    ("json", f'{{"name": {"7" * 5000}}}', f'{{"name": {"7" * 5000}}}', []),
    ("json", '{"name": "b", "arguments": 7}', '{"name": "b", "arguments": 7}', []),
    ("json", '{"name": "b", "name": "get"}', '{"name": "b", "name": "get"}', []),
    ("json", " \n ", " \n ", []),
    ("json", "", "", []),
    (
        "hermes",
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call> <tool_call>{"name": "b"}',
        '<tool_call>{"name": "nobody", "arguments": {}}</tool_call> ',
        [("b", "{}")],
    ),
    ("json", '{"name": "b"}\n{"a": 1} x', '{"a": 1} x', [("b", "{}")]),
    # Damage in the middle of arguments.
    ("json", '{"name": "b", "arguments": {"a": tru!e}}', "!e}}", [("b", '{"a": tru')]),
    ("json", '{"name": "b", "arguments": {"a": 1.e5}}', "e5}}", [("b", '{"a": 1.')]),
    ("mistral", "[TOOL_CALLS] nothing", "[TOOL_CALLS] nothing", []),
]


def told(form: str, pieces: Iterable[str], must: bool = False) -> tuple[str, list[tuple[str, str]]]:
    reader, found = CallReader(FORMATS[form], NAMES, must=must), list[Delta]()
    for piece in pieces:
        found += reader.read(piece)
    found += reader.read("", ended=True)
    check_order(found)
    said = gathered(found)
    assert said.reasoning == "" and len({call.id for call, _ in said.calls}) == reader.calls
    return said.content, [(call.name, arguments) for call, arguments in said.calls]


def check_order(deltas: list[Delta]) -> None:
    """A call comes before its arguments, and nothing is empty."""
    begun = 0
    for delta in deltas:
        if isinstance(delta, Call):
            assert delta.index == begun and delta.name in NAMES
            begun += 1
        else:
            assert delta.text
            assert not isinstance(delta, Arguments) or delta.index == begun - 1


def cut(text: str, dice: random.Random) -> list[str]:
    places = sorted(dice.sample(range(len(text) + 1), dice.randint(0, min(8, len(text) + 1))))
    return [text[a:b] for a, b in zip([0, *places], [*places, len(text)], strict=True)]


@pytest.mark.parametrize(("form", "text", "content", "calls"), CASES)
def test_calls(form: str, text: str, content: str, calls: list[tuple[str, str]]) -> None:
    wanted = (content, calls)
    assert told(form, [text]) == wanted
    assert told(form, text) == wanted, "letter by letter"
    dice = random.Random(1)
    for _ in range(100):
        pieces = cut(text, dice)
        assert told(form, pieces) == wanted, pieces


@pytest.mark.parametrize("form", sorted(FORMATS))
def test_where_calls_must_be_made_what_is_cut_off_is_no_content(form: str) -> None:
    """Wherever the answer ends, also before the name of its first call, or of the next one."""
    one = FORMATS[form]
    text = one.written([f'{{"name": "{name}", "{one.key}": {{"q": 1}}}}' for name in ("get", "b")])
    seen = set()
    for end in range(len(text) + 1):
        content, calls = told(form, [text[:end]], must=True)
        assert content == "" and told(form, text[:end], must=True) == ("", calls)
        assert all('{"q": 1}'.startswith(arguments) for _, arguments in calls)
        seen.add(len(calls))
    assert seen == {0, 1, 2}


def test_arguments_are_streamed_as_they_come() -> None:
    reader = CallReader(FORMATS["hermes"], NAMES)
    assert reader.read('<tool_call>{"name": "get", "arguments": ') == []
    begun, first = reader.read('{"a": ')
    assert isinstance(begun, Call) and begun.name == "get"
    assert first == Arguments(0, '{"a": ')
    assert reader.read('"x') == [Arguments(0, '"x')]
    assert reader.read('"}}') == [Arguments(0, '"}')]


def test_ids_are_as_templates_want_them() -> None:
    assert len(FORMATS["mistral"].new_id()) == 9 and FORMATS["mistral"].new_id().isalnum()
    assert FORMATS["json"].new_id().startswith("call_")


PARTS = [
    *(
        "<tool_call>",
        "</tool_call>",
        "[TOOL_CALLS]",
        "<|python_tag|>",
        "\n",
        " ",
        ";",
        ",",
        "[",
        "]",
    ),
    *('{"name": "get", "arguments": {"a": 1}}', '{"name": "b", "parameters": {}}', '{"name": "'),
    *('get"', '"arguments": ', "{", "}", '"', "\\", "é😀", "text", "<tool", "1e5", "null", ": "),
]


@examples(150)
@given(
    st.sampled_from(sorted(FORMATS)), st.lists(st.sampled_from(PARTS), max_size=12), st.randoms()
)
def test_any_text_can_be_read(form: str, parts: list[str], dice: random.Random) -> None:
    """Nothing raises, the places of the cuts change nothing, and arguments are JSON as far as
    they go."""
    text = "".join(parts)
    content, calls = told(form, [text])
    assert told(form, text) == (content, calls) == told(form, cut(text, dice))
    for _, arguments in calls:
        assert can_begin_json(arguments)
    if not calls:
        assert content == text


def can_begin_json(text: str) -> bool:
    reader = JsonText()
    return all(reader.take(letter) for letter in text)


def loads(text: str) -> bool:
    def no_constant(name: str) -> None:
        raise ValueError(name)

    try:
        json.loads(text, parse_constant=no_constant)
    except ValueError:
        return False
    return True


LETTERS = '[]{}",:0123.-eE+\\u truefalsn\n\t\x01é'


@examples(300)
@given(st.text(st.sampled_from(LETTERS), max_size=14))
def test_json_by_letters_is_json(text: str) -> None:
    whole = f"[{text}]"
    reader = JsonText()
    fits = all(reader.take(letter) for letter in whole)
    assert (fits and reader.ended) == loads(whole)


@examples(60)
@given(
    st.recursive(
        st.none()
        | st.booleans()
        | st.floats(allow_nan=False, allow_infinity=False)
        | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=6,
    )
)
def test_json_of_any_value_is_read(value: object) -> None:
    text = json.dumps([value], indent=1)
    reader = JsonText()
    for at, letter in enumerate(text):
        assert not reader.ended
        assert reader.take(letter), (text, at)
    assert reader.ended and reader.depth == 0
    assert not reader.take(",") and reader.ended


def test_json_has_a_depth() -> None:
    reader = JsonText()
    assert sum(reader.take("[") for _ in range(1000)) == 128


THOUGHTS: list[tuple[Begin, str, str, str]] = [
    ("open", "so it is\n</think>\n\nYes.", "so it is\n", "Yes."),
    ("open", "never ends </thin", "never ends </thin", ""),
    ("possible", "\n<think>\nhm</think>Yes.", "hm", "Yes."),
    ("possible", "<thi", "", "<thi"),
    ("possible", " Yes. <think>no</think>", "", " Yes. <think>no</think>"),
    ("none", "</think>x", "", "</think>x"),
    ("possible", "<think></think>", "", ""),
]


@pytest.mark.parametrize(("begin", "text", "reasoning", "content"), THOUGHTS)
def test_reasoning(begin: Begin, text: str, reasoning: str, content: str) -> None:
    def read(pieces: Iterable[str]) -> tuple[str, str]:
        reader, found = ReasoningReader(REASONING["think"], begin), list[Delta]()
        for piece in pieces:
            found += reader.read(piece)
        said = gathered([*found, *reader.read("", ended=True)])
        return said.reasoning, said.content

    dice = random.Random(2)
    assert read([text]) == (reasoning, content) == read(text)
    assert all(read(cut(text, dice)) == (reasoning, content) for _ in range(50))


def test_answers_of_reasoning_and_calls() -> None:
    """Token by token: reasoning, its tokens, calls, why it ended."""
    form = ChatForm(FORMATS["hermes"], NAMES, markers=REASONING["think"], begin="possible")
    words = [
        "<think>",
        "I ",
        "call ",
        "it",
        "</think>",
        "\n\n",
        "Ok ",
        "<tool_call>",
        '{"name": "b"',
    ]
    words += [', "arguments": {"a": ', "1}}", "\n</tool_call>"]
    answers = ChatAnswers(form, 2)
    deltas = answers.read(Chunk(0, "Other", [1], words=["Other"]))
    for at, word in enumerate(words):
        last = at == len(words) - 1
        chunk = Chunk(1, word, [at], words=[word], finish_reason="stop" if last else None)
        deltas = [] if at == 0 else deltas
        deltas += answers.read(chunk)
        assert answers.finish_reason(chunk) == ("tool_calls" if last else None)
    said = gathered(deltas)
    assert (said.reasoning, said.content) == ("I call it", "Ok ")
    assert [(call.name, arguments) for call, arguments in said.calls] == [("b", '{"a": 1}')]
    assert answers.reasoning_tokens == 5
    ended = Chunk(0, "", [], finish_reason="length")
    answers.read(ended)
    assert answers.finish_reason(ended) == "length"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"name": "b"}', "tool_calls"),
        ('{"name": "b", "arguments": {"a', "stop"),
        ('{"name": "b"}\n{"name": "b", "arguments": {', "stop"),
        ('{"name": "b"}\n{"na', "tool_calls"),
        ('{"na', "stop"),
    ],
)
def test_why_an_answer_of_calls_has_ended(text: str, reason: str) -> None:
    """By the model, or a stop string, which may stand within a call; or by `max_tokens`."""
    causes: list[tuple[Literal["stop", "length"], str]] = [("stop", reason), ("length", "length")]
    for cause, wanted in causes:
        answers = ChatAnswers(ChatForm(FORMATS["json"], NAMES), 1)
        ended = Chunk(0, text, [1], finish_reason=cause)
        answers.read(ended)
        assert answers.finish_reason(ended) == wanted
