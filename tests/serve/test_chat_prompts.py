"""What goes into a chat template, and the grammars of what comes out: for each format of calls."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Inner
from transformers import PreTrainedTokenizerFast

from foresay.errors import InputError
from foresay.models.tokenizer import Tokenizer
from foresay.sampling.structured_outputs import StructuredOutputs
from foresay.serve.chat.formats import FORMATS, format_of
from foresay.serve.chat.grammar import outputs_of
from foresay.serve.chat.reasoning import REASONING, begin_of, markers_of
from foresay.serve.chat.structure import Structured
from foresay.serve.chat.templates import Templates
from foresay.serve.chat.tools import Tool, ToolUse, tools_of
from foresay.serve.limits import Limits, Refused
from foresay.serve.schema import Chat, ChatMessage
from foresay.structured.grammars import Grammars

_SAID = "{% for m in messages %}{{ m.role }}: {{ m.content }}"
_CALLED = "{% for c in m.tool_calls or [] %}{{ c | tojson }}{% endfor %}\n{% endfor %}"
_TOOLS = "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}"
TEMPLATES = {
    "hermes": f"{_TOOLS}{_SAID}{_CALLED}<tool_call>model: ",
    "llama3": f'{_TOOLS}{_SAID}{_CALLED}{{# "parameters": #}}<|python_tag|>model: ',
    "mistral": f"{_TOOLS}{_SAID}{_CALLED}{{# [TOOL_CALLS] [ #}}model: ",
    "json": f"{_SAID}\n{{% endfor %}}model: ",
}
SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string"}, "n": {"$ref": "#/$defs/N"}},
    "required": ["q"],
    "additionalProperties": False,
    "$defs": {"N": {"type": "integer"}},
}
GET = Tool("get", "Gets it.", SCHEMA, False)
NONE = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [GET, Tool("b", None, NONE, True)]
AN_A = StructuredOutputs(
    json={
        "type": "object",
        "properties": {"a": {"type": "integer"}},
        "required": ["a"],
        "additionalProperties": False,
    }
)
CALLS = {
    "hermes": '<tool_call>\n{"name": "get", "arguments": {"q": "x", "n": 3}}\n</tool_call>\n'
    '<tool_call>\n{"name": "b", "arguments": {}}\n</tool_call>',
    "llama3": '{"name": "get", "parameters": {"q": "x"}}; {"name": "b", "parameters": {}}',
    "mistral": '[TOOL_CALLS] [{"name": "get", "arguments": {"q": "x"}}, '
    '{"name": "b", "arguments": {}}]',
    "json": '{"name": "get", "arguments": {"q": "x"}}\n{"name": "b", "arguments": {}}',
}
MARKS = ("<tool_call>", "</tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "<think>", "</think>")


def saved(folder: Path, template: str, marks: str) -> Path:
    """A tokenizer of bytes. Its markers are `control` tokens, `plain` added ones, or `text`."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    inner = Inner(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    if marks != "text":
        special = marks == "control"
        inner.add_tokens([AddedToken(m, special=special, normalized=False) for m in MARKS])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, eos_token="<|end|>")
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return folder


@pytest.fixture(scope="module", params=["control", "plain", "text"])
def tokenizer(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Tokenizer:
    folder = tmp_path_factory.mktemp("marks")
    return Tokenizer(saved(folder, "", request.param))


@cache
def grammars(tokenizer: Tokenizer) -> Grammars:
    return Grammars(tokenizer, 320)


def fits(tokenizer: Tokenizer, outputs: StructuredOutputs | None, text: str) -> bool:
    """Whether a whole answer has the form."""
    assert outputs is not None
    matcher = grammars(tokenizer).compile(outputs).matcher(tokenizer.ends)
    tokens = tokenizer.encode(text, special=False).tolist()
    return all(map(matcher.advance, tokens)) and matcher.accepts


def control_of(tokenizer: Tokenizer) -> dict[str, int]:
    numbered = grammars(tokenizer).numbered(tokenizer.added.values())
    return {text: token for text, token in tokenizer.added.items() if token in numbered}


@pytest.mark.parametrize("thought", ["", "<think>It is so.</think>\n\n"])
@pytest.mark.parametrize("name", FORMATS)
def test_grammars_of_calls(tokenizer: Tokenizer, name: str, thought: str) -> None:
    """Calls that must be made, may be made, or may be made instead of content of a form; also with
    reasoning before, and with markers that are tokens of their own or are not."""
    form, calls = FORMATS[name], CALLS[name]
    one = form.written([f'{{"name": "get", "{form.key}": {{"q": ""}}}}'])
    markers, begin = (REASONING["think"], "possible") if thought else (None, "none")
    wrong = [calls.replace('"q"', '"z"'), calls.replace('"get"', '"got"'), calls + "x"]
    for must, many, content in (
        (True, True, None),
        (True, False, None),
        (False, True, None),
        (False, True, AN_A),
        (True, True, AN_A),
    ):
        use = ToolUse(TOOLS, TOOLS, must, many)
        made = outputs_of(content, use, form, markers, begin, control_of(tokenizer))  # type: ignore[arg-type]

        def allowed(text: str, made: StructuredOutputs | None = made) -> bool:
            return fits(tokenizer, made, thought + text)

        assert allowed(calls) == many and allowed(one)
        assert not any(map(allowed, wrong))
        free = not must and content is None
        assert allowed("Hello { <") == free
        assert allowed('{"a": 1}') == (not must)
        assert allowed('{"a": true}') == free
        assert allowed(f"Sure. {one}") == free
        assert allowed(f"Sure. {calls.replace('q', 'z')}") == (free and not form.opens)
        assert not allowed(f" {wrong[0]}")
        if name == "llama3":
            tag = form.opening in control_of(tokenizer)
            assert allowed(f"{form.opening}{one}") == tag and not allowed(form.opening + wrong[0])
    only = ToolUse(TOOLS, TOOLS[1:], True, False)
    made = outputs_of(None, only, form, markers, begin, control_of(tokenizer))  # type: ignore[arg-type]
    assert not fits(tokenizer, made, thought + one)
    assert fits(tokenizer, made, thought + form.written([f'{{"name": "b", "{form.key}": {{}}}}']))


def test_an_opening_written_by_letters(tokenizer: Tokenizer) -> None:
    """It opens nothing that the schema does not hold, and is not allowed at all where the opening
    is a token."""
    use = ToolUse(TOOLS, TOOLS, False, True)
    made = outputs_of(None, use, FORMATS["hermes"], None, "none", control_of(tokenizer))
    assert made is not None
    matcher = grammars(tokenizer).compile(made).matcher(tokenizer.ends)
    pieces = (tokenizer.encode(letter).tolist() for letter in '<tool_call>{"name": "got"')
    assert not all(matcher.advance(token) for piece in pieces for token in piece)


CONTENTS = [
    (StructuredOutputs(json=True), "[1, {}]", "[1, }"),
    (StructuredOutputs(json_object=True), '{"x": [1]}', "[1]"),
    (AN_A, '{"a": 1}', '{"b": 1}'),
    (StructuredOutputs(regex="a/b+\n|\\/"), "a/bb\n", "a/"),
    (StructuredOutputs(choice=["yes", 'n"o']), 'n"o', "no"),
]


@pytest.mark.parametrize(("content", "right", "wrong"), CONTENTS)
def test_grammars_behind_reasoning(
    tokenizer: Tokenizer, content: StructuredOutputs, right: str, wrong: str
) -> None:
    think, control = REASONING["think"], control_of(tokenizer)
    assert outputs_of(content, None, FORMATS["json"], think, "none", control) is content
    for begin, before in (("possible", "<think>x\n</think>\n"), ("open", "x </think>\n\n")):
        made = outputs_of(content, None, FORMATS["json"], think, begin, control)  # type: ignore[arg-type]
        assert fits(tokenizer, made, before + right)
        assert not fits(tokenizer, made, before + wrong)
        assert fits(tokenizer, made, right) == (begin == "possible")
    own = StructuredOutputs(grammar='start: "x"')
    made = outputs_of(own, None, FORMATS["json"], think, "possible", control)
    assert made == StructuredOutputs(grammar='start: "x"', after="</think>")
    with pytest.raises(ValueError, match="it is a grammar beside tools; expected one of them"):
        use = ToolUse(TOOLS, TOOLS, False, True)
        outputs_of(own, use, FORMATS["hermes"], None, "none", control)
    with pytest.raises(ValueError, match="nothing matches the schema false"):
        outputs_of(StructuredOutputs(json=False), None, FORMATS["json"], think, "open", control)


def test_a_schema_is_strict_or_as_far_as_it_is_known(tokenizer: Tokenizer) -> None:
    odd = {**SCHEMA, "minProperties": 1, "unevaluatedProperties": False}
    for strict in (False, True):
        use = ToolUse(
            [Tool("get", None, odd, strict)], [Tool("get", None, odd, strict)], True, True
        )
        made = outputs_of(None, use, FORMATS["json"], None, "none", {})
        assert made is not None
        if strict:
            with pytest.raises(InputError, match="unevaluatedProperties"):
                Grammars(tokenizer, 320).compile(made)
        else:
            assert fits(tokenizer, made, '{"name": "get", "arguments": {"q": "x"}}')


@pytest.mark.parametrize("name", FORMATS)
def test_the_template_says_the_format(name: str, tmp_path: Path) -> None:
    template = TEMPLATES[name]
    assert format_of(template).name == name and format_of("", name).name == name
    tokenizer = Tokenizer(saved(tmp_path, template, "control"))
    use = ToolUse([GET], [GET], False, True)
    templates = Templates(tokenizer, Grammars(tokenizer, 320))
    text = templates.render([ChatMessage("user", "Hi")], use)
    assert '"name": "get", "description": "Gets it."' in text
    assert ("system: You can call functions" in text) == (name == "json")
    structure, form = templates.form_of(text, use, None)
    assert structure is not None and structure.name == "tools"
    assert form.format == templates.format and form.names == {"get"} and form.markers is None
    opening = tokenizer.added.get(templates.format.opening)
    assert (opening in form.kept) == (name != "json")
    shown = tokenizer.decode(tokenizer.encode(CALLS[name]).tolist(), keep=form.kept)
    assert shown == CALLS[name]
    assert (
        templates.form_of(templates.render([ChatMessage("user", "Hi")], None), None, None)[0]
        is None
    )


def test_formats_that_are_not_known_are_plain_json() -> None:
    assert format_of("<tool_call>\n<function=").name == "json"
    assert format_of("[TOOL_CALLS]x[ARGS]").name == "json"
    assert format_of("[TOOL_CALLS][").begin == "[" and format_of("[TOOL_CALLS] [").begin == " ["
    with pytest.raises(InputError, match=r"^--tool-format is 'xml'; expected auto, hermes, llama3"):
        format_of("", "xml")


def test_the_template_says_whether_there_is_reasoning() -> None:
    think = REASONING["think"]
    assert markers_of("… split('</think>') …") == think == markers_of("", "think")
    assert markers_of("[THINK] [/THINK]") == REASONING["mistral"]
    assert markers_of("hello") is None is markers_of("</think>", "none")
    assert begin_of("user: a\nmodel: <think>\n", think) == "open"
    assert begin_of("user: a\nmodel: <think>\n\n</think>\n\n", think) == "none"
    assert begin_of("user: <think> a\nmodel: ", think) == "possible"
    assert begin_of("<think>", None) == "none"
    with pytest.raises(InputError, match=r"^--reasoning is 'deep'; expected auto, none, think"):
        markers_of("", "deep")


def chat(**fields: Any) -> Chat:
    body = {"messages": [{"role": "user", "content": "Hi"}], **fields}
    return msgspec.json.decode(json.dumps(body).encode(), type=Chat)


def function(name: str, **fields: Any) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **fields}}


HISTORY: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Both?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [
            {
                "id": "call_1",
                "type": "function",
                "function": {"name": "get", "arguments": '{"q": 1}'},
            },
            {"id": "abcdefghi", "type": "function", "function": {"name": "b", "arguments": {}}},
        ],
    },
    {"role": "tool", "tool_call_id": "call_1", "content": "7"},
    {"role": "tool", "tool_call_id": "abcdefghi", "content": "8"},
]


def rendered(folder: Path, template: str, format: str = "auto") -> str:
    tokenizer = Tokenizer(saved(folder, template, "plain"))
    body = chat(messages=HISTORY, tools=[function("get", parameters=SCHEMA), function("b")])
    templates = Templates(tokenizer, Grammars(tokenizer, 320), format)
    return templates.render(body.messages, tools_of(body, Limits()))


def test_a_history_with_calls(tmp_path: Path) -> None:
    """Arguments are objects, ids as the template wants them, results have names."""
    every = "{{ tools | length }}{% for m in messages %}{{ '\n' }}{{ m | tojson }}{% endfor %}"
    lines = rendered(tmp_path / "a", f"{every}{{# <tool_call> tool_calls #}}").splitlines()
    assert lines[0] == "2"
    system, user, called, first, second = map(json.loads, lines[1:])
    assert system == {"role": "system", "content": "Be brief."} and user["content"] == "Both?"
    assert called["content"] == "" and [c["function"] for c in called["tool_calls"]] == [
        {"name": "get", "arguments": {"q": 1}},
        {"name": "b", "arguments": {}},
    ]
    assert first == {"role": "tool", "content": "7", "name": "get", "tool_call_id": "call_1"}
    lines = rendered(tmp_path / "b", f"{every}{{# [TOOL_CALLS] tool_calls #}}").splitlines()
    called, first, second = map(json.loads, lines[3:])
    ids = [call["id"] for call in called["tool_calls"]]
    assert ids == [first["tool_call_id"], second["tool_call_id"]] and ids[1] == "abcdefghi"
    assert len(ids[0]) == 9 and ids[0].isalnum()


def test_arguments_are_texts_where_the_template_wants_that(tmp_path: Path) -> None:
    template = (
        "{{ tools }}{% for m in messages %}{% for c in m.tool_calls or [] %}"
        "{{ '<tool_call>' + c.function.arguments }}{% endfor %}{% endfor %}"
    )
    assert rendered(tmp_path, template).endswith('<tool_call>{"q": 1}<tool_call>{}')


def test_a_history_for_a_template_that_knows_no_tools(tmp_path: Path) -> None:
    text = rendered(tmp_path / "a", TEMPLATES["json"])
    assert text.startswith("system: Be brief.\n\nYou can call functions.")
    assert text.endswith(
        'assistant: {"name": "get", "arguments": {"q": 1}}\n{"name": "b", "arguments": {}}\n'
        "user: The result of get: 7\nThe result of b: 8\nmodel: "
    )
    text = rendered(tmp_path / "b", TEMPLATES["json"], "hermes")
    assert "answer with nothing but this, with an object in JSON; for several calls" in text
    assert '<tool_call>\n{"name": its name, "arguments": an object that' in text
    assert 'assistant: <tool_call>\n{"name": "get", "arguments": {"q": 1}}\n</tool_call>' in text


def test_which_tools_may_be_called() -> None:
    tools = [function("get", parameters=SCHEMA, strict=True), function("b", description="B.")]
    for choice, callable, must, many in (
        (None, ["get", "b"], False, True),
        ("auto", ["get", "b"], False, True),
        ("required", ["get", "b"], True, True),
        (function("b"), ["b"], True, False),
        (
            {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [function("b")]}},
            ["b"],
            False,
            True,
        ),
    ):
        use = tools_of(chat(tools=tools, tool_choice=choice), Limits())
        assert use is not None and [tool.name for tool in use.tools] == ["get", "b"]
        assert [tool.name for tool in use.callable] == callable
        assert (use.must, use.many) == (must, many)
        assert [tool.strict for tool in use.tools] == [True, False]
    use = tools_of(chat(tools=tools, parallel_tool_calls=False), Limits())
    assert use is not None and not use.many and use.tools[1].schema == NONE
    assert tools_of(chat(tools=tools, tool_choice="none"), Limits()) is None
    assert tools_of(chat(), Limits()) is None is tools_of(chat(tools=[]), Limits())


WRONG: list[tuple[str, dict[str, Any], str]] = [
    ("tools", {"tools": [function(f"f{n}") for n in range(129)]}, "tools has 129 tools; expected"),
    ("tool_choice", {"tool_choice": "required"}, "'required' and there are no tools"),
]


@pytest.mark.parametrize(("param", "fields", "said"), WRONG)
def test_wrong_tools(param: str, fields: dict[str, Any], said: str) -> None:
    with pytest.raises(Refused) as refused:
        tools_of(chat(**fields), Limits())
    assert said in str(refused.value) and refused.value.param == param


def test_wrong_calls_in_a_history(tmp_path: Path) -> None:
    tokenizer = Tokenizer(saved(tmp_path, TEMPLATES["json"], "plain"))
    templates = Templates(tokenizer, Grammars(tokenizer, 320))
    for message, said in (
        (
            {"role": "user", "tool_calls": [function("a")]},
            r"messages\[0\] has tool_calls and the role",
        ),
        ({"role": "assistant", "tool_calls": []}, "has no content"),
        (
            {"role": "assistant", "tool_calls": [{"type": "custom", "function": {"name": "a"}}]},
            "has a call of type 'custom'; expected 'function'",
        ),
    ):
        with pytest.raises(Refused, match=said):
            templates.render(chat(messages=[message]).messages, None)
    broken = {"role": "assistant", "tool_calls": [function("a", arguments='{"x": ')]}
    assert '"arguments": "{\\"x\\": "}' in templates.render(chat(messages=[broken]).messages, None)


def test_a_form_beside_tools_is_named_by_its_field(tmp_path: Path) -> None:
    tokenizer = Tokenizer(saved(tmp_path, TEMPLATES["hermes"], "plain"))
    templates = Templates(tokenizer, Grammars(tokenizer, 320))
    own = Structured("structured_outputs", StructuredOutputs(grammar='start: "x"'))
    with pytest.raises(Refused, match="it is a grammar beside tools") as refused:
        templates.form_of("", ToolUse(TOOLS, TOOLS, False, True), own)
    assert refused.value.param == "structured_outputs"
