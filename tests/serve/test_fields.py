"""Fields under the names that clients gave them: honoured, or refused by that name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from foresay.serve.schema import ChatMessage
from foresay.serve.validate import messages_of
from serve.running import Running, served
from tiny import save_model

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SAID = [{"role": "user", "content": "a"}]
BODIES: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "a"}, CHAT: {"messages": SAID}}


@pytest.mark.parametrize("path", list(BODIES))
def test_both_names_of_the_most_tokens(server: Running, path: str) -> None:
    asked = {**BODIES[path], "ignore_eos": True}
    for given, wanted in (
        ({"max_completion_tokens": 21}, 21),
        ({"max_tokens": 5, "max_completion_tokens": 21}, 5),
        ({"max_tokens": 21, "max_completion_tokens": 5}, 5),
        ({"max_tokens": 21, "max_completion_tokens": None}, 21),
    ):
        assert server.good(path, **asked, **given)["usage"]["completion_tokens"] == wanted


@pytest.mark.parametrize(
    ("path", "param", "value", "said"),
    [
        (COMPLETIONS, "top_logprobs", 2, "use logprobs, which is their number here"),
        (COMPLETIONS, "messages", SAID, "they are a field of /v1/chat/completions"),
        (COMPLETIONS, "add_special_tokens", False, "leave it out"),
        (COMPLETIONS, "prompt_logprobs", 0, "with echo: true and logprobs"),
        (COMPLETIONS, "prompt_logprobs", 1, "with echo: true and logprobs"),
        (CHAT, "echo", True, "leave it out"),
        (CHAT, "best_of", 2, "leave it out"),
        (CHAT, "prompt", "a", "it is a field of /v1/completions"),
        (CHAT, "add_special_tokens", True, "leave it out"),
        (CHAT, "suffix", "a", "leave it out"),
        (CHAT, "reasoning_effort", "high", "leave it out"),
    ],
)
def test_what_another_route_has_is_refused(
    server: Running, path: str, param: str, value: object, said: str
) -> None:
    error = server.refused(path, 400, **BODIES[path], **{param: value})
    assert error["param"] == param and error["code"] == "unsupported_parameter"
    assert error["message"].startswith(
        f"{param} is {json.dumps(value)}"[:40].replace(": ", ":")[:9]
    )
    assert said in error["message"], error


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (COMPLETIONS, {"top_logprobs": None, "messages": None, "add_special_tokens": True}),
        (COMPLETIONS, {"top_logprobs": 0, "best_of": 1, "prompt_logprobs": None}),
        (CHAT, {"echo": False, "best_of": 1, "prompt": None, "suffix": None}),
        (CHAT, {"echo": None, "best_of": None, "add_special_tokens": False}),
        (CHAT, {"tools": None, "tool_choice": "none", "response_format": {"type": "text"}}),
        (CHAT, {"stop": None, "logprobs": None, "logit_bias": None, "user": "u", "top_k": -1}),
        (CHAT, {"parallel_tool_calls": True, "metadata": {"a": "b"}, "some_new_field": [1, 2]}),
    ],
)
def test_what_asks_for_nothing_is_taken(server: Running, path: str, body: dict[str, Any]) -> None:
    server.good(path, **BODIES[path], max_tokens=1, **body)


@pytest.fixture(scope="module")
def knowing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A server whose model's template knows two more roles."""
    folder = save_model(tmp_path_factory.mktemp("knowing"))
    (template,) = folder.glob("chat_template.jinja")
    known = "{% if messages[0]['role'] == 'developer' %}!{% endif %}"
    known += """{% if messages[0]["role"] == "context" %}!{% endif %}"""
    template.write_text(known + template.read_text())
    with served(folder) as found:
        yield found


def test_a_role_that_the_template_asks_for(server: Running, knowing: Running) -> None:
    messages = [{"role": "context", "content": "x"}, *SAID]
    for path in (CHAT, "/tokenize"):
        knowing.good(path, messages=messages)
        error = knowing.refused(path, 400, messages=[{"role": "wizard", "content": "x"}])
        assert error["message"].endswith("user, assistant, tool, context")
        assert "'context'; expected" in server.refused(path, 400, messages=messages)["message"]


def test_the_developers_messages(server: Running, knowing: Running) -> None:
    messages = [{"role": "developer", "content": "x"}, *SAID]
    for one, wanted in ((server, "system: x\nuser: a"), (knowing, "!developer: x\nuser: a")):
        asked = {"messages": messages, "max_tokens": 1, "return_token_ids": True}
        found = one.good(CHAT, **asked)["prompt_token_ids"]
        assert one.good("/detokenize", tokens=found)["prompt"] == wanted + "\nmodel: "
    assert messages_of([ChatMessage("developer", "x")])[0]["role"] == "system"
    assert messages_of([ChatMessage("tool", "x")])[0]["role"] == "tool"
