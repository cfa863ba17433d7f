"""Responses that are kept, within their bounds and for their tenant alone; requests
that are refused, fail, or whose client leaves."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import ResponseItemList

from foresay.serve.keys import Keys
from foresay.serve.limits import Limits
from serve.response_client import GREEDY, PATH, events_of
from serve.running import Running, bearer, raw_request, served, wait_for

ONE, TWO = "the-key-of-one", "the-key-of-two"


def test_nothing_is_kept_that_shall_not_be(server: Running) -> None:
    kept = server.server._routes._responses.kept
    before = kept.bytes_of(None)
    made = server.good(PATH, input="secret", store=False, **GREEDY)
    assert made["store"] is False and kept.bytes_of(None) == before
    assert server.http.get(f"{PATH}/{made['id']}").status_code == 404
    error = server.refused(PATH, 404, input="a", previous_response_id=made["id"])
    assert error["code"] == "previous_response_not_found"
    stream = events_of(server, input="secret", store=False, **GREEDY)[-1]["response"]
    assert server.http.get(f"{PATH}/{stream['id']}").status_code == 404
    assert kept.bytes_of(None) == before


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_leaves_nothing_behind(
    server: Running, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    step = server.llm.engine.step

    def slow() -> Any:
        time.sleep(0.02)
        return step()

    monkeypatch.setattr(server.llm.engine, "step", slow)
    kept, scheduler = server.server._routes._responses.kept, server.llm.engine.scheduler
    before = kept.bytes_of(None)
    body = {"input": "abc", "temperature": 1.0, "seed": 3, "stream": stream}
    with raw_request(server, body, path=PATH) as client:
        wait_for(lambda: any(r.stats.tokens > 5 for r in list(scheduler.running)))
        if stream:
            assert b"200 OK" in client.recv(100)
    server.idle()
    assert kept.bytes_of(None) == before


def test_a_failing_step_fails_the_response(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward, calls = server.llm.target.forward, []

    def broken(parts: Any, *more: Any, **named: Any) -> Any:
        calls.append(len(parts))
        if len(calls) == 3:
            raise RuntimeError("the machine is on fire")
        return forward(parts, *more, **named)

    monkeypatch.setattr(server.llm.target, "forward", broken)
    told = events_of(server, input="a b", **GREEDY)
    kinds = [event["type"].removeprefix("response.") for event in told]
    assert kinds[-4:] == ["output_text.done", "content_part.done", "output_item.done", "failed"]
    response = told[-1]["response"]
    assert response["status"] == "failed" and response["error"]["code"] == "server_error"
    assert "see the server's log" in response["error"]["message"]
    assert "on fire" not in json.dumps(told)
    assert response["output"][0]["status"] == "incomplete"
    assert server.http.get(f"{PATH}/{response['id']}").status_code == 404
    calls[:] = [0, 0]
    assert server.refused(PATH, 500, input="a b", **GREEDY)["code"] == "engine_error"
    server.idle()
    server.good(PATH, input="a b", **GREEDY)


def test_one_tenants_responses_are_not_anothers(folder: Path) -> None:
    keys = Keys.of([(ONE, "one"), (TWO, "two")])
    with served(folder, 2, ONE, keys=keys) as found:
        made = found.good(PATH, input="secret", **GREEDY)["id"]
        other = bearer(TWO)
        for path in (f"{PATH}/{made}", f"{PATH}/{made}/input_items"):
            assert found.http.get(path).status_code == 200
            answer = found.http.get(path, headers=other)
            assert answer.status_code == 404 and "secret" not in answer.text
        body = {"input": "a", "previous_response_id": made, **GREEDY}
        unknown = found.post(PATH, {**body, "previous_response_id": "resp_" + "0" * 48}, **other)
        answer = found.post(PATH, body, **other)
        # Nothing tells an id that another tenant has from one that nobody has.
        assert answer.status_code == unknown.status_code == 404
        assert answer.text.replace(made, "x") == unknown.text.replace("resp_" + "0" * 48, "x")
        assert found.http.delete(f"{PATH}/{made}", headers=other).status_code == 404
        assert found.post(f"{PATH}/{made}/cancel", {}, **other).status_code == 404
        found.good(PATH, **body)
        assert found.http.delete(f"{PATH}/{made}").json() == {
            "object": "response",
            "id": made,
            "deleted": True,
        }
        assert found.http.get(f"{PATH}/{made}").status_code == 404


def test_what_is_kept_is_bounded(folder: Path) -> None:
    limits = Limits(responses=3, response_bytes=16 << 10)
    with served(folder, limits=limits) as found:
        kept = found.server._routes._responses.kept

        def gone(name: str) -> bool:
            return bool(found.http.get(f"{PATH}/{name}").status_code == 404)

        names = [found.good(PATH, input="a", **GREEDY)["id"] for _ in range(4)]
        assert [gone(name) for name in names] == [True, False, False, False]
        assert not gone(names[1])  # it was used: now the other is the oldest
        names.append(found.good(PATH, input="a", **GREEDY)["id"])
        assert [gone(name) for name in names] == [True, False, True, False, False]
        large = found.good(PATH, input="a" * 3000, **GREEDY)["id"]
        assert not gone(large) and kept.bytes_of(None) <= limits.response_bytes
        larger = found.good(PATH, input="a", metadata={"k": "v"}, instructions="b" * 3000, **GREEDY)
        assert not gone(larger["id"]) and kept.bytes_of(None) <= limits.response_bytes
        # A conversation whose beginning is forgotten cannot go on, and says so.
        first = found.good(PATH, input="a", **GREEDY)["id"]
        second = found.good(PATH, input="b", previous_response_id=first, **GREEDY)["id"]
        assert found.http.delete(f"{PATH}/{first}").status_code == 200
        error = found.refused(PATH, 404, input="c", previous_response_id=second)
        assert first in error["message"] and "is not kept" in error["message"]


def test_input_items_are_listed_page_by_page(server: Running) -> None:
    given = [{"role": "user", "content": str(number)} for number in range(5)]
    made = server.good(PATH, input=given, **GREEDY)["id"]

    def listed(**query: Any) -> dict[str, Any]:
        answer = server.http.get(f"{PATH}/{made}/input_items", params=query)
        assert answer.status_code == 200
        found: dict[str, Any] = answer.json()
        ResponseItemList.model_validate(found)
        return found

    def texts(found: dict[str, Any]) -> list[str]:
        return [item["content"][0]["text"] for item in found["data"]]

    assert texts(listed()) == [*"43210"] and texts(listed(order="asc")) == [*"01234"]
    first = listed(order="asc", limit=2)
    assert texts(first) == ["0", "1"] and first["has_more"]
    rest = listed(order="asc", after=first["last_id"])
    assert texts(rest) == ["2", "3", "4"] and not rest["has_more"]
    for query, said in [
        ({"limit": "0"}, "limit is '0'; expected 1 to 100"),
        ({"limit": "x"}, "limit is 'x'"),
        ({"order": "up"}, "order is 'up'; expected asc or desc"),
        ({"after": "msg_1"}, "expected the id of an item"),
    ]:
        answer = server.http.get(f"{PATH}/{made}/input_items", params=query)
        assert answer.status_code == 400 and said in answer.json()["error"]["message"]
    answer = server.http.get(f"{PATH}/{made}", params={"stream": "true"})
    assert answer.status_code == 400 and "stream is true" in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("body", "param", "said"),
    [
        ({}, "input", "input is empty; expected a text or items"),
        ({"input": []}, "input", "input is empty"),
        ({"input": 3}, "input", "input is 3; expected a text or a list"),
        ({"input": [[]]}, "input", "input[0] is []; expected an object"),
        ({"input": [{"type": "computer_call"}]}, "input", "'computer_call'; expected message,"),
        (
            {"input": [{"role": "critic", "content": "a"}]},
            "input",
            "input[0] has the role 'critic'",
        ),
        ({"input": [{"role": "user"}]}, "input", "input[0] has no content"),
        (
            {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
            "input",
            "content of type 'input_image'; expected a text",
        ),
        ({"input": [{"type": "function_call", "name": "f"}]}, "input", "no arguments"),
        (
            {"input": [{"type": "function_call_output", "call_id": "c", "output": {"a": 1}}]},
            "input",
            "input[0] has no output; expected a text",
        ),
        ({"input": [{"id": "x" * 65, "role": "user", "content": "a"}]}, "input", "1 to 64"),
        ({"input": "a" * 5000}, "input", "the prompt has"),
        ({"input": [{"role": "user", "content": "a"}] * 1025}, "input", "input has 1025 messages;"),
        ({"input": "a", "max_output_tokens": 5000}, "max_output_tokens", "max_output_tokens is"),
        ({"input": "a", "max_output_tokens": 0}, "max_output_tokens", "max_output_tokens is 0"),
        ({"input": "a", "temperature": -1}, "temperature", "is -1"),
        ({"input": "a", "top_logprobs": 21}, "top_logprobs", "top_logprobs is 21"),
        ({"input": "a", "background": True}, "background", "expected false"),
        ({"input": "a", "truncation": "auto"}, "truncation", "expected 'disabled'"),
        ({"input": "a", "include": ["all"]}, "include", "include has 'all'"),
        ({"input": "a", "metadata": {str(n): "" for n in range(17)}}, "metadata", "17 pairs"),
        ({"input": "a", "metadata": {"k": "v" * 513}}, "metadata", "a value of 513"),
        ({"input": "a", "conversation": "conv_1"}, "conversation", "does not support it"),
        ({"input": "a", "prompt": {"id": "p"}}, "prompt", "leave it out"),
        ({"input": "a", "max_tokens": 5}, "max_tokens", "use max_output_tokens"),
        (
            {"input": "a", "tool_choice": {"type": "mcp"}},
            "tool_choice",
            "tool_choice.type is 'mcp'; expected",
        ),
        ({"input": "a", "tool_choice": "required"}, "tool_choice", "there are no tools"),
        ({"input": "a", "tools": [{"type": "function"}]}, "tools", "tools[0] has no name"),
    ],
)
def test_refused(server: Running, body: dict[str, Any], param: str, said: str) -> None:
    error = server.refused(PATH, 400, **body)
    assert said in error["message"] and error["param"] == param
    stream = server.refused(PATH, 400, **{**body, "stream": True})
    assert stream == error


def test_deep_and_large_bodies_are_refused(server: Running) -> None:
    for depth in (100, 900, 5000, 100_000):
        deep = b"[" * depth + b"]" * depth
        function = b'{"type":"function","name":"f","parameters":{"a":%s}}' % deep
        called = b'{"type":"function_call_output","call_id":"c","output":%s}' % deep
        for body in (
            b'{"input":"a","max_output_tokens":1,"tools":[%s]}' % function,
            b'{"input":[%s]}' % called,
        ):
            answer = server.post(PATH, body)
            assert answer.status_code in (200, 400), (depth, answer.text)
            assert answer.status_code == 200 or answer.json()["error"]["message"]
    assert server.post(PATH, b'{"input":"' + b"a" * (5 << 20) + b'"}').status_code == 413
    server.good(PATH, input="a", **GREEDY)


def test_after_all_this_nothing_is_held(server: Running) -> None:
    server.idle()
