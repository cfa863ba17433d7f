"""Fields under the names that clients gave them, honoured or refused by that name; limits,
each refused with a sentence that names it; and that nothing is harmed by it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foresay.errors import InputError
from foresay.serve.admission import OPEN
from foresay.serve.answer import Shape
from foresay.serve.chat.messages import messages_of
from foresay.serve.limits import Limits
from foresay.serve.schema import ChatMessage
from foresay.serve.words import Words
from serve.running import Running, served, wait_for
from tiny import CONTEXT, save_model

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
SAID = [{"role": "user", "content": "a"}]
PICTURE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}
HEAD = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
BODIES: dict[str, dict[str, Any]] = {COMPLETIONS: {"prompt": "a"}, CHAT: {"messages": SAID}}
TOO_MANY = f"max_completion_tokens is {CONTEXT}; expected at most {CONTEXT}"
NEGATIVE = "max_completion_tokens is -1; expected a whole number from"
REFUSED: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    COMPLETIONS: [
        ("n", {"n": 9}, "n is 9; expected at most 8"),
        ("n", {"n": 0}, "n is 0"),
        ("stop", {"stop": ["x"] * 17}, "stop has 17 entries; expected at most 16"),
        ("stop", {"stop": "x" * 257}, "257 bytes in one of its texts; … at most 256"),
        ("stop", {"stop": ""}, "a stop string is empty"),
        ("logprobs", {"logprobs": 21}, "logprobs is 21; expected at most 20"),
        ("logprobs", {"logprobs": -1}, "logprobs is -1"),
        ("prompt", {"prompt": ["a"] * 257}, "257 prompts; expected at most 256"),
        ("prompt", {"prompt": "x" * CONTEXT}, f"expected at most {CONTEXT - 1}, the context"),
        ("max_tokens", {"max_tokens": CONTEXT}, f"max_tokens is {CONTEXT}; … {CONTEXT} together"),
        ("max_tokens", {"max_tokens": -1}, "max_tokens is -1"),
        ("max_tokens", {"max_tokens": 2**70}, "max_tokens is 11805"),
        ("prompt", {"prompt": ""}, "the prompt is empty"),
        ("prompt", {"prompt": []}, "empty list"),
        ("prompt", {"prompt": [[]]}, "the prompt is empty"),
        ("prompt", {"prompt": [1, "a"]}, "token ids beside prompts"),
        ("prompt", {"prompt": [[99999]]}, "prompt has token 99999; expected 0 to"),
        ("prompt", {"prompt": [-1]}, "-1"),
        ("prompt", {"prompt": [2**80]}, "prompt[0] is 120892 … ; expected a token id from 0 to"),
        ("prompt", {"prompt": {"a": 1}}, 'prompt is {"a": 1}; expected a text or a list'),
        ("temperature", {"temperature": -1}, "is -1.0; expected 0 (greedy) or a number from 0.001"),
        ("temperature", {"temperature": 1e-9}, "expected 0 (greedy) or a number from 0.001"),
        ("top_p", {"top_p": 2}, "top_p is 2"),
        ("top_k", {"top_k": -5}, "top_k is -5"),
        ("seed", {"seed": 2**64}, "seed is 18446744073709551616"),
        ("seed", {"seed": 1.5}, "seed is 1.5; expected a whole number"),
        ("min_tokens", {"min_tokens": 17}, "min_tokens is 17"),
        ("logit_bias", {"logit_bias": {"x": 1}}, "names token 'x'; expected '0' to"),
        ("logit_bias", {"logit_bias": {"1": 101}}, "expected a number from -100 to 100"),
        ("logit_bias", {"logit_bias": {str(i): 1 for i in range(1025)}}, "1025 entries"),
        ("best_of", {"best_of": 4}, "best_of is 4"),
        ("suffix", {"suffix": "end"}, 'suffix is "end"; … leave it out'),
        ("cache_salt", {"cache_salt": "s"}, "cache_salt"),
        ("stream_options", {"stream_options": {}}, "expected stream: true"),
        (
            "stream_granularity",
            {"stream_granularity": "word"},
            "stream_granularity is 'word'; expected 'token' or 'commit'",
        ),
        ("logprobs", {"logprobs": True}, "logprobs is true; expected a whole number"),
        ("max_completion_tokens", {"max_completion_tokens": CONTEXT}, TOO_MANY),
        ("max_completion_tokens", {"max_completion_tokens": -1}, NEGATIVE),
        ("stop_token_ids", {"stop_token_ids": [-1]}, "stop_token_ids is -1"),
        ("stop_token_ids", {"stop_token_ids": [5] * 17}, "stop_token_ids has 17"),
        (
            "min_tokens",
            {"max_completion_tokens": 4, "min_tokens": 5},
            "min_tokens is 5; expected a whole number from 0 to max_completion_tokens, 4",
        ),
        # Two that are wrong: the sentence and the name belong together.
        ("temperature", {"top_p": 2, "temperature": -1}, "temperature is -1"),
        ("top_p", {"top_p": 0}, "top_p is 0"),
        (
            "processor_order",
            {"processor_order": ["top_p"]},
            "processor_order is ['top_p']; expected temperature, top_k, top_p and min_p, each once",
        ),
        ("min_p", {"min_p": 2, "min_tokens": 300, "max_tokens": 400}, "min_p is 2"),
    ],
    CHAT: [
        ("messages", {"messages": []}, "messages is empty"),
        ("messages", {"messages": [{"content": "a"}]}, "messages[0] has no role; expected a text"),
        ("messages", {"messages": [{"role": "user"}]}, "has no content"),
        ("messages", {"messages": SAID * 1025}, "1025 messages"),
        (
            "messages",
            {"messages": [*SAID, {"role": "wizard", "content": "a"}]},
            "messages[1] has the role 'wizard'; expected system, developer, user, assistant, tool",
        ),
        ("messages", {"messages": [{"role": "", "content": "a"}]}, "has the role ''; expected"),
        ("messages", {"messages": [{"role": "User", "content": "a"}]}, "the role 'User'; expected"),
        ("top_logprobs", {"top_logprobs": 2}, "expected logprobs: true"),
        ("top_logprobs", {"logprobs": True, "top_logprobs": 21}, "at most 20"),
        ("tools", {"tools": [{"type": "function"}]}, "tools[0] has no function; expected"),
        ("messages", {"messages": [PICTURE]}, "'image_url'; expected 'text'"),
        ("max_completion_tokens", {"max_completion_tokens": CONTEXT}, TOO_MANY),
        ("max_completion_tokens", {"max_completion_tokens": -1}, NEGATIVE),
        ("max_tokens", {"max_tokens": 0}, "max_tokens is 0; expected a whole number from 1"),
        ("max_tokens", {"max_tokens": -3, "max_completion_tokens": 5}, "max_tokens is -3"),
        (
            "top_logprobs",
            {"logprobs": True, "top_logprobs": -1},
            "top_logprobs is -1; expected a whole number from 0",
        ),
    ],
}


@pytest.mark.parametrize(
    ("path", "param", "body", "said"),
    [(path, *row) for path, rows in REFUSED.items() for row in rows],
)
def test_errors_name_what_was_sent(
    server: Running, path: str, param: str, body: dict[str, Any], said: str
) -> None:
    error = server.refused(path, 400, **{**BODIES[path], **body})
    assert error["param"] == param and error["type"] == "invalid_request_error", error
    assert all(part in error["message"] for part in said.split(" … ")), error


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


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[]", b"null", b'{"prompt": "\xff"}', b'{"prompt": "\\ud800"}', b"[" * 99999),
        b'{"prompt": ' + b"[" * 99999,
        b'{"prompt":"a","x":' + b"[" * 99999 + b"]" * 99999 + b"}",
        b'{"prompt": "a", "temperature": NaN}',
        b'{"prompt": 1e999}',
    ],
)
def test_bodies_that_are_none(server: Running, body: bytes) -> None:
    assert server.post(COMPLETIONS, body).status_code == 400
    assert server.post("/tokenize", body).status_code == 400
    server.good(COMPLETIONS, prompt="a", max_tokens=1)


def test_the_content_type(server: Running) -> None:
    answer = server.http.post(COMPLETIONS, content=b'{"prompt":"a"}')
    assert answer.status_code == 415 and "application/json" in answer.text


@pytest.fixture(scope="module")
def small(folder: Path) -> Iterator[Running]:
    """A server with little room, whose model takes its time."""
    limits = Limits(queue=3, connections=6, body_seconds=0.3, drain_seconds=5, stream_pieces=20)
    with served(folder, options={"max_running": 2}, limits=limits) as found:
        yield found


def test_a_full_queue(small: Running) -> None:
    """Two run, three wait; the next is sent away and told when to come again."""
    asked: dict[str, Any] = {"prompt": "a", "max_tokens": 3000, "ignore_eos": True}
    error = small.refused(COMPLETIONS, 429, prompt=["a"] * 6, max_tokens=1)
    assert "ask for fewer" in error["message"]
    with small.opened(**asked, n=3), small.opened(**asked, n=2):
        answer = small.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1})
        assert answer.status_code == 429 and answer.headers["retry-after"] == "1"
        error = answer.json()["error"]
        assert error["code"] == "queue_full" and "may have 5 under way" in error["message"]
        with small.connected() as client:
            client.sendall(HEAD + b"Content-Length: 20\r\n\r\n")
            assert b" 429 " in client.recv(100)  # before the body has come, which is not read
    small.idle()
    small.good(COMPLETIONS, prompt="a", max_tokens=1)


def test_too_many_open_requests(small: Running) -> None:
    waiting = [small.connected() for _ in range(6)]
    for client in waiting:
        client.sendall(HEAD + b"Content-Length: 2\r\n\r\n")
    wait_for(lambda: small.server.config.app._open == 6)  # type: ignore[union-attr]
    answer = small.http.get("/v1/models")
    assert answer.status_code == 503 and "6 requests are open" in answer.text
    assert answer.json()["error"]["code"] == "too_many_connections"
    for path in OPEN:  # or the operator's probes would end a server that is only busy
        assert small.http.get(path).status_code == 200
    for client in waiting:
        client.close()
    wait_for(lambda: small.http.get("/v1/models").status_code == 200)


def test_limits_are_checked() -> None:
    for wrong in ({"n": 0}, {"body": 1.5}, {"ping_seconds": 0}, {"queue": -1}):
        with pytest.raises(InputError, match=f"the limit {next(iter(wrong))} is"):
            Limits(**wrong)


def test_log_probabilities_of_prompts_are_bounded(folder: Path) -> None:
    with served(folder, limits=Limits(prompt_logprobs=60)) as server:
        asked = {"echo": True, "max_tokens": 1}
        twenty = [[5] * 5, [6] * 5]
        server.good(COMPLETIONS, prompt=twenty, logprobs=5, **asked)  # 10 tokens, 6 of each
        server.good(COMPLETIONS, prompt=twenty, logprobs=20, max_tokens=1)  # not of the prompts
        for body in (
            {"prompt": twenty, "logprobs": 6},
            {"prompt": [[5] * 61], "logprobs": 0},
            {"prompt": [[5] * 5], "logprobs": 5, "n": 3},
        ):
            error = server.refused(COMPLETIONS, 400, **asked, **body)
            assert "at most 60 in one request" in error["message"]
            assert error["param"] == "logprobs"
    assert 20 * 8192 < Limits().prompt_logprobs < 20 * 100_000


def test_long_work_leaves_the_event_loop_alone(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """While it writes a long answer's log probabilities, nobody else may wait."""
    threads: list[str] = []

    def watched(kind: Any, name: str) -> None:
        work = getattr(kind, name)

        def noted(*values: Any) -> Any:
            threads.append(threading.current_thread().name)
            return work(*values)

        monkeypatch.setattr(kind, name, noted)

    watched(Shape, "whole")
    watched(Shape, "events")
    loop = server.server._routes.driver._loop
    assert loop is not None
    names: list[str] = []
    loop.call_soon_threadsafe(lambda: names.append(threading.current_thread().name))
    body = {"prompt": "ab" * 200, "max_tokens": 1, "echo": True, "logprobs": 1}
    server.good(COMPLETIONS, **body)
    server.events(COMPLETIONS, **body)
    assert len(threads) == 2 and names[0] not in threads
    server.good(COMPLETIONS, prompt="a", max_tokens=1, logprobs=1)
    assert threads[2] == names[0]  # what is short is done at once
    threads.clear()
    watched(Words, "of")
    server.good("/tokenize", prompt="abc", return_token_strs=True)
    assert threads and all(name.startswith("foresay-read") for name in threads)
