"""Forms of answers, tools and reasoning through the whole server, with a tiny model: what it writes
is nonsense, and has the form all the same."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from tokenizers import AddedToken
from transformers import AutoTokenizer

from foresay.engine.llm import LLM
from foresay.sampling.params import SamplingParams
from foresay.sampling.structured_outputs import StructuredOutputs
from serve.running import Running, served, wait_for
from serve.test_chat_prompts import MARKS, TEMPLATES
from tiny import llama, randomise, save_model

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
SAID = [{"role": "user", "content": "a"}]
COLOUR = {
    "type": "object",
    "properties": {
        "colour": {"enum": ["red", "green"]},
        "size": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["colour", "size"],
    "additionalProperties": False,
}
PAINT = {"type": "function", "function": {"name": "paint", "parameters": COLOUR}}
STOP = {"type": "function", "function": {"name": "stop"}}
ASKED: dict[str, Any] = {"messages": SAID, "max_tokens": 300, "seed": 3, "temperature": 0.8}


def save_marked(folder: Path, template: str) -> Path:
    """The tiny model with the markers of all formats as tokens, and this template."""
    save_model(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    marks = [AddedToken(m, special=m[1] != "/" and "think" not in m) for m in MARKS]
    tokenizer.add_tokens(marks)
    tokenizer.chat_template = template
    tokenizer.save_pretrained(folder)
    model = llama(len(tokenizer), tokenizer.eos_token_id, 48, 4096)
    randomise(model, seed=1, size=0.3)
    model.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=sorted(TEMPLATES))
def marked(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_marked(tmp_path_factory.mktemp("marked"), TEMPLATES[request.param])


@pytest.fixture(scope="module")
def caller(marked: Path) -> Iterator[Running]:
    with served(marked) as found:
        yield found


def streamed(server: Running, **asked: Any) -> dict[str, Any]:
    """The message that the deltas of a stream make, checked on the way; and its end."""
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    for number, chunk in enumerate(server.events(CHAT, **asked)):
        (choice,) = chunk["choices"]
        delta = choice["delta"]
        assert (delta.pop("role", None) == "assistant") == (number == 0)
        assert message.get("finish_reason") is None and len(delta) == 1
        for call in delta.pop("tool_calls", []):
            if "id" in call:
                assert call["index"] == len(message["tool_calls"]) and call["type"] == "function"
                assert call["function"]["arguments"] == ""
                message["tool_calls"].append({"id": call["id"], **call["function"]})
            else:
                assert call["index"] == len(message["tool_calls"]) - 1
                assert set(call) == {"index", "function"} and set(call["function"]) == {"arguments"}
                message["tool_calls"][-1]["arguments"] += call["function"]["arguments"]
        for key, text in delta.items():
            message[key] += text
        message["finish_reason"] = choice["finish_reason"]
    return message


def check_call(name: str, arguments: str) -> None:
    read = json.loads(arguments)
    if name == "stop":
        assert read == {}
    else:
        assert name == "paint" and read["colour"] in ("red", "green") and 0 <= read["size"] <= 9


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_a_tool_that_must_be_called(caller: Running, temperature: float) -> None:
    asked = {**ASKED, "temperature": temperature, "tools": [PAINT, STOP]}
    for choice, names in (("required", {"paint", "stop"}), (PAINT, {"paint"}), (STOP, {"stop"})):
        whole = caller.good(CHAT, **asked, tool_choice=choice, parallel_tool_calls=False)
        (found,) = whole["choices"]
        message = found["message"]
        assert found["finish_reason"] == "tool_calls" and message["content"] is None
        (call,) = message["tool_calls"]
        assert call["type"] == "function" and call["function"]["name"] in names
        check_call(**call["function"])
        again = streamed(caller, **asked, tool_choice=choice, parallel_tool_calls=False)
        assert again["content"] == "" and again["finish_reason"] == "tool_calls"
        (told,) = again["tool_calls"]
        assert {key: told[key] for key in ("name", "arguments")} == call["function"]
    tokens = caller.events(CHAT, **asked, tool_choice=PAINT, stream_granularity="token")
    texts = [
        call["function"]["arguments"]
        for chunk in tokens
        for call in chunk["choices"][0]["delta"].get("tool_calls", [])
    ]
    check_call("paint", "".join(texts))
    assert len(texts) > 10
    caller.idle()


def test_a_call_that_max_tokens_ends(caller: Running) -> None:
    asked = {**ASKED, "max_tokens": 45, "tools": [PAINT], "tool_choice": PAINT}
    for found in (caller.good(CHAT, **asked)["choices"][0], streamed(caller, **asked)):
        message = found.get("message", found)
        assert found["finish_reason"] == "length"
        (call,) = message["tool_calls"]
        arguments = call.get("function", call)["arguments"]
        assert arguments.startswith("{") and not arguments.endswith("}")


def test_a_call_that_max_tokens_ends_before_its_name(caller: Running) -> None:
    """No content, no call, and `finish_reason` says why: clients know what to do then."""
    for choice in ("required", PAINT):
        asked = {**ASKED, "max_tokens": 8, "tools": [PAINT], "tool_choice": choice}
        (found,) = caller.good(CHAT, **asked)["choices"]
        assert found["finish_reason"] == "length"
        assert found["message"] == {"role": "assistant", "content": ""}
        again = streamed(caller, **asked)
        assert (again["content"], again["tool_calls"]) == ("", [])
        assert again["finish_reason"] == "length"


def test_a_stop_string_within_a_call(caller: Running) -> None:
    asked = {**ASKED, "tools": [PAINT], "tool_choice": PAINT, "stop": ["colour"]}
    for found in (caller.good(CHAT, **asked)["choices"][0], streamed(caller, **asked)):
        assert found["finish_reason"] == "stop"
        (call,) = found.get("message", found)["tool_calls"]
        assert call.get("function", call)["arguments"] == '{"'


def test_tools_that_may_be_called(caller: Running, marked: Path) -> None:
    """Free text stays what it is; the opening of a call, biased to come, makes one."""
    asked = {**ASKED, "tools": [PAINT, STOP], "max_tokens": 200}
    whole = caller.good(CHAT, **asked)
    message = whole["choices"][0]["message"]
    again = streamed(caller, **asked)
    assert again["content"] == (message["content"] or "")
    opening = caller.server._routes._validator._templates.format.opening
    if opening:
        token = AutoTokenizer.from_pretrained(marked).convert_tokens_to_ids(opening)
        whole = caller.good(CHAT, **asked, logit_bias={str(token): 100})
        calls = whole["choices"][0]["message"]["tool_calls"]
        for call in calls[:-1] if whole["choices"][0]["finish_reason"] == "length" else calls:
            check_call(**call["function"])
    none = caller.good(CHAT, **{**asked, "tool_choice": "none"})["choices"][0]["message"]
    plain = caller.good(CHAT, **{key: v for key, v in asked.items() if key != "tools"})
    assert none == plain["choices"][0]["message"] and "tool_calls" not in none
    caller.idle()


FORMS: list[tuple[dict[str, Any], StructuredOutputs]] = [
    ({"response_format": {"type": "json_object"}}, StructuredOutputs(json_object=True)),
    (
        {
            "response_format": {
                "type": "json_schema",
                "json_schema": {"name": "c", "schema": COLOUR},
            }
        },
        StructuredOutputs(json=COLOUR),
    ),
    ({"structured_outputs": {"json": COLOUR}}, StructuredOutputs(json=COLOUR)),
    (
        {"structured_outputs": {"regex": "[ab]{3}-[0-9]+"}},
        StructuredOutputs(regex="[ab]{3}-[0-9]+"),
    ),
    ({"structured_outputs": {"choice": ["one", "two"]}}, StructuredOutputs(choice=["one", "two"])),
    (
        {"structured_outputs": {"grammar": 'start: "x" /[0-9]{2}/ "y"'}},
        StructuredOutputs(grammar='start: "x" /[0-9]{2}/ "y"'),
    ),
]


@pytest.mark.parametrize(("fields", "outputs"), FORMS)
@pytest.mark.parametrize("temperature", [0, 0.8])
def test_forms_are_those_of_the_engine(
    server: Running,
    plain: LLM,
    fields: dict[str, Any],
    outputs: StructuredOutputs,
    temperature: float,
) -> None:
    """On both routes, streamed and whole: the text of a plain loop without drafts."""
    params = SamplingParams(
        max_tokens=40, temperature=temperature, seed=5, structured_outputs=outputs
    )
    asked = {"max_tokens": 40, "temperature": temperature, "seed": 5, **fields}
    (wanted,) = plain.generate("ab ab ab", params)
    found = server.good(COMPLETIONS, prompt="ab ab ab", **asked)["choices"][0]
    assert (found["text"], found["finish_reason"]) == (wanted.text, wanted.finish_reason)
    told = server.events(COMPLETIONS, prompt="ab ab ab", **asked)
    assert "".join(chunk["choices"][0]["text"] for chunk in told) == wanted.text
    (wanted,) = plain.generate("a", params, chat=True)
    found = server.good(CHAT, messages=SAID, **asked)["choices"][0]
    assert found["message"] == {"role": "assistant", "content": wanted.text}
    assert streamed(server, messages=SAID, **asked)["content"] == wanted.text
    if found["finish_reason"] == "stop" and "json" in str(fields):
        json.loads(wanted.text)


def test_several_answers_have_each_their_form(server: Running) -> None:
    asked = {**ASKED, "n": 3, "structured_outputs": {"json": COLOUR}}
    for choice in server.good(CHAT, **asked)["choices"]:
        check_call("paint", choice["message"]["content"])


def schema_of(schema: Any) -> dict[str, Any]:
    return {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("response_format", {"response_format": {"type": "xml"}}, "has type 'xml'; expected 'text'"),
    ("response_format", {"response_format": {"type": "json_schema"}}, "has no json_schema.schema"),
    ("response_format", {"response_format": {}}, "response_format has no type; expected a text"),
    (
        "response_format",
        {"response_format": "json"},
        "response_format is 'json'; expected an object",
    ),
    ("response_format", schema_of({"type": "objekt"}), "response_format is refused: "),
    ("response_format", schema_of({"$ref": "#/$defs/none"}), "response_format is refused: "),
    ("response_format", schema_of(False), "response_format is refused: nothing matches"),
    ("structured_outputs", {"structured_outputs": {}}, "structured_outputs has nothing; expected"),
    (
        "structured_outputs",
        {"structured_outputs": {"regex": "a", "choice": ["a"]}},
        "structured_outputs has regex, choice; expected exactly one of",
    ),
    ("structured_outputs", {"structured_outputs": {"regex": "(a"}}, "is refused: "),
    ("structured_outputs", {"structured_outputs": {"grammar": "start: b"}}, "is refused: "),
    ("structured_outputs", {"structured_outputs": {"choice": []}}, "expected a list of texts"),
    ("structured_outputs", {"structured_outputs": {"json": "{"}}, "is not JSON"),
    (
        "structured_outputs",
        {"structured_outputs": {"structural_tag": "x"}},
        "has the unknown field 'structural_tag'; expected json, json_object, regex,",
    ),
    (
        "structured_outputs",
        {"structured_outputs": {"regex": "a"}, "response_format": {"type": "json_object"}},
        "are both given; expected one of them",
    ),
]


@pytest.mark.parametrize(("param", "fields", "said"), REFUSED)
def test_forms_that_are_refused(
    server: Running, param: str, fields: dict[str, Any], said: str
) -> None:
    for path, body in ((CHAT, {"messages": SAID}), (COMPLETIONS, {"prompt": "a"})):
        begun = time.monotonic()
        error = server.refused(path, 400, **body, **fields)
        assert time.monotonic() - begun < 1
        assert said in error["message"] and error["param"] == param


def test_a_tool_that_cannot_be_compiled_is_refused(server: Running) -> None:
    wrong = {"type": "object", "properties": {"a": {"type": "objekt"}}}
    tools = [PAINT, {"type": "function", "function": {"name": "x", "parameters": wrong}}]
    error = server.refused(CHAT, 400, messages=SAID, tools=tools)
    assert error["param"] == "tools" and error["message"].startswith("tools is refused: ")
    on_the_other = server.refused(COMPLETIONS, 400, prompt="a", tools=[PAINT])
    assert "fields of /v1/chat/completions" in on_the_other["message"]


def test_a_bad_form_disturbs_no_other_request(server: Running, plain: LLM) -> None:
    """While an answer is written, others with bad and with large forms are refused beside it."""
    (wanted,) = plain.generate("ab", SamplingParams(max_tokens=600, temperature=0, ignore_eos=True))
    deep = '{"type": "array", "items": ' * 3000 + "{}" + "}" * 3000
    loop = {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}
    bombs = [
        json.dumps({"structured_outputs": {"regex": "(((a{1,999}){1,999}){1,999}){1,999}"}}),
        json.dumps({"structured_outputs": {"grammar": 'start: start start | "a" start'}}),
        f'{{"structured_outputs": {{"json": {deep}}}}}',
        json.dumps({"structured_outputs": {"json": loop}}),
    ]
    statuses: list[int] = []

    def disturb(bomb: str) -> None:
        for _ in range(5):
            begun = time.monotonic()
            body = f'{{"prompt": "a", "max_tokens": 4, {bomb[1:]}'
            statuses.append(server.post(COMPLETIONS, body.encode()).status_code)
            assert time.monotonic() - begun < 5

    threads = [threading.Thread(target=disturb, args=(bomb,)) for bomb in bombs]
    asked = {"prompt": "ab", "max_tokens": 600, "temperature": 0, "ignore_eos": True}
    with server.opened(COMPLETIONS, **asked) as response:
        for thread in threads:
            thread.start()
        events = [json.loads(x[6:]) for x in response.iter_lines() if x.startswith("data: {")]
    for thread in threads:
        thread.join()
    assert "".join(event["choices"][0]["text"] for event in events) == wanted.text
    assert len(statuses) == 20 and set(statuses) <= {200, 400} and 400 in statuses
    server.idle()


def test_a_client_that_leaves_in_the_middle_of_a_call(caller: Running) -> None:
    endless = {"type": "object", "properties": {"s": {"type": "string", "minLength": 3000}}}
    tool = {"type": "function", "function": {"name": "say", "parameters": endless}}
    endless["required"] = ["s"]
    asked = {**ASKED, "max_tokens": 3000, "tools": [tool], "tool_choice": "required"}
    with caller.opened(CHAT, **asked) as response:
        lines = response.iter_lines()
        while "arguments" not in next(lines):
            pass
    caller.idle()
    check_call("stop", call_of(caller, "stop"))


def call_of(server: Running, name: str) -> str:
    """The arguments of a call of this tool."""
    choice = {"type": "function", "function": {"name": name}}
    whole = server.good(CHAT, **ASKED, tools=[PAINT, STOP], tool_choice=choice)
    (call,) = whole["choices"][0]["message"]["tool_calls"]
    return str(call["function"]["arguments"])


def test_openai_s_own_client(caller: Running) -> None:
    with openai.OpenAI(base_url=caller.url + "/v1", api_key="unused", max_retries=0) as client:
        asked: Any = {"model": "tiny", **ASKED, "tools": [PAINT, STOP], "tool_choice": "required"}
        asked["parallel_tool_calls"] = False
        whole = client.chat.completions.create(**asked)
        (call,) = whole.choices[0].message.tool_calls or []
        assert call.type == "function"
        check_call(call.function.name, call.function.arguments)
        asked["messages"] = [
            *asked["messages"],
            whole.choices[0].message.model_dump(exclude_none=True),
            {"role": "tool", "tool_call_id": call.id, "content": "done"},
        ]
        with client.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            final = stream.get_final_completion()
        (told,) = final.choices[0].message.tool_calls or []
        check_call(told.function.name, told.function.arguments)
        assert final.choices[0].finish_reason == "tool_calls"


def test_after_all_this_nothing_is_held(caller: Running, server: Running) -> None:
    caller.idle()
    server.idle()
    wait_for(lambda: caller.server._routes.driver.under_way == 0)
