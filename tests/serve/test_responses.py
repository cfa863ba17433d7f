"""/v1/responses as openai's package uses it, and as the compliance tests of Open Responses want it:
shapes, events in their order, conversations that go on; every text is that of the plain loop."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pydantic
import pytest
from openai.types.responses import Response, ResponseItemList, ResponseStreamEvent

from foresay.engine.llm import LLM
from foresay.sampling.params import SamplingParams
from foresay.serve.keys import Keys
from foresay.serve.limits import Limits
from serve.running import Running, bearer, raw_request, served, wait_for

PATH = "/v1/responses"
ONE, TWO = "the-key-of-one", "the-key-of-two"
EVENT: pydantic.TypeAdapter[Any] = pydantic.TypeAdapter(ResponseStreamEvent)
GREEDY: dict[str, Any] = {"temperature": 0, "max_output_tokens": 24}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 5, "top_p": 0.9, "max_output_tokens": 24}
REQUIRED = {  # of Open Responses' schema, besides those that may be null
    *("id", "object", "created_at", "completed_at", "status", "incomplete_details", "model"),
    *("previous_response_id", "instructions", "output", "error", "tools", "tool_choice"),
    *("truncation", "parallel_tool_calls", "text", "top_p", "presence_penalty", "store"),
    *("frequency_penalty", "top_logprobs", "temperature", "reasoning", "usage", "background"),
    *("max_output_tokens", "max_tool_calls", "service_tier", "metadata", "safety_identifier"),
    *("prompt_cache_key", "user"),
}


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as found:
        yield found


def text_of(response: dict[str, Any]) -> str:
    """The text of a response, whose shape is checked by the way."""
    Response.model_validate(response)
    assert response.keys() >= REQUIRED
    parts = [part for item in response["output"] for part in item.get("content", ())]
    return "".join(part["text"] for part in parts)


def events_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream: each fits openai's type, is numbered, and named by its type."""
    with server.opened(PATH, **body) as answer:
        lines = [line for line in answer.iter_lines() if line and not line.startswith(":")]
    assert lines.pop() == "data: [DONE]"
    found = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [line.removeprefix("event: ") for line in lines[::2]] == [e["type"] for e in found]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    for event in found:
        EVENT.validate_python(event)
    return found


def messages(*texts: str) -> list[dict[str, str]]:
    """A conversation of the user and the assistant in turns."""
    roles = ("user", "assistant")
    return [{"role": roles[at % 2], "content": text} for at, text in enumerate(texts)]


def expected(plain: LLM, said: Any, params: dict[str, Any]) -> Any:
    values = {**params, "max_tokens": params["max_output_tokens"]}
    del values["max_output_tokens"]
    (found,) = plain.generate([said], SamplingParams(**values), chat=True)
    return found


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_text_is_that_of_the_plain_loop(
    server: Running, plain: LLM, params: dict[str, Any]
) -> None:
    wanted = expected(plain, "Hello, hello", params)
    whole = server.good(PATH, input="Hello, hello", **params)
    assert text_of(whole) == wanted.text
    assert whole["usage"]["output_tokens"] == len(wanted.token_ids)
    assert whole["usage"]["input_tokens"] == len(wanted.prompt_token_ids)
    told = events_of(server, input="Hello, hello", **params)
    deltas = [e["delta"] for e in told if e["type"] == "response.output_text.delta"]
    assert "".join(deltas) == wanted.text and len(deltas) > 1
    assert text_of(told[-1]["response"]) == wanted.text
    chat = server.good(
        "/v1/chat/completions",
        messages=messages("Hello, hello"),
        **{**params, "max_output_tokens": None, "max_tokens": params["max_output_tokens"]},
    )
    assert chat["choices"][0]["message"]["content"] == wanted.text


def test_the_events_of_a_text_in_their_order(server: Running) -> None:
    told = events_of(server, input="Hi", **GREEDY)
    kinds = [event["type"].removeprefix("response.") for event in told]
    begin = ["created", "in_progress", "output_item.added", "content_part.added"]
    end = ["output_text.done", "content_part.done", "output_item.done", "incomplete"]
    assert kinds[:4] == begin and kinds[-4:] == end
    assert set(kinds[4:-4]) == {"output_text.delta"}
    first, last = told[0]["response"], told[-1]["response"]
    assert first["status"] == "in_progress" and first["output"] == [] and first["usage"] is None
    assert last["status"] == "incomplete" and last["id"] == first["id"]
    assert last["incomplete_details"] == {"reason": "max_output_tokens"}
    (item,) = last["output"]
    assert told[-2]["item"] == item and item["status"] == "incomplete"
    assert told[2]["item"] == {**item, "content": [], "status": "in_progress"}
    for event in told[3:-2]:
        assert (event["item_id"], event["output_index"], event["content_index"]) == (
            item["id"],
            0,
            0,
        )
    assert told[-3]["part"] == item["content"][0] and told[-4]["text"] == text_of(last)


def test_an_answer_that_comes_to_its_end_is_completed(server: Running, plain: LLM) -> None:
    """An answer without a limit ends by itself; with the limit of its length it is the same."""
    params = {"temperature": 1.0, "seed": 11, "max_output_tokens": 3000}
    wanted = expected(plain, "Hi", params)
    assert wanted.finish_reason == "stop"
    whole = server.good(PATH, input="Hi", temperature=1.0, seed=11)
    assert text_of(whole) == wanted.text
    assert whole["status"] == whole["output"][0]["status"] == "completed"
    assert whole["completed_at"] >= whole["created_at"] and whole["incomplete_details"] is None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("Hi", messages("Hi")),
        ([{"type": "message", "role": "user", "content": "Hi"}], messages("Hi")),
        ([{"role": "user", "content": "Hi"}], messages("Hi")),
        (
            [{"role": "system", "content": "Be a pirate."}, {"role": "user", "content": "Hi"}],
            [{"role": "system", "content": "Be a pirate."}, *messages("Hi")],
        ),
        (
            [{"role": "developer", "content": [{"type": "input_text", "text": "Be kind."}]}],
            [{"role": "system", "content": "Be kind."}],
        ),
        (
            [
                {"type": "message", "role": "user", "content": "My name is Alice."},
                {
                    "type": "message",
                    "role": "assistant",
                    "content": [
                        {"type": "output_text", "text": "Hello ", "annotations": []},
                        {"type": "refusal", "refusal": "Alice!"},
                    ],
                    "status": "completed",
                    "phase": "final_answer",
                },
                {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "xyz"},
                {"type": "message", "role": "user", "content": "What is my name?"},
            ],
            messages("My name is Alice.", "Hello Alice!", "What is my name?"),
        ),
    ],
)
def test_inputs_of_all_kinds(server: Running, plain: LLM, given: Any, said: Any) -> None:
    wanted = expected(plain, said, GREEDY)
    found = server.good(PATH, input=given, **GREEDY)
    assert text_of(found) == wanted.text
    assert found["usage"]["input_tokens"] == len(wanted.prompt_token_ids)


def test_instructions_are_a_system_message(server: Running, plain: LLM) -> None:
    said = [{"role": "system", "content": "Be brief."}, *messages("Hi")]
    found = server.good(PATH, input="Hi", instructions="Be brief.", **GREEDY)
    assert text_of(found) == expected(plain, said, GREEDY).text
    assert found["instructions"] == "Be brief."


def test_a_conversation_goes_on(server: Running, plain: LLM) -> None:
    """As if all of it were sent again; instructions are those of the last request alone."""
    first = server.good(PATH, input="One?", instructions="Be brief.", **GREEDY)
    second = server.good(PATH, input="Two?", previous_response_id=first["id"], **GREEDY)
    third = events_of(server, input="Three?", previous_response_id=second["id"], **GREEDY)
    answers = [text_of(first), text_of(second)]
    said = messages("One?", answers[0], "Two?", answers[1], "Three?")
    assert answers[1] == expected(plain, said[:3], GREEDY).text
    assert text_of(third[-1]["response"]) == expected(plain, said, GREEDY).text
    assert third[-1]["response"]["previous_response_id"] == second["id"]
    # Two conversations may begin with the same response.
    other = server.good(PATH, input="Else?", previous_response_id=first["id"], **GREEDY)
    assert text_of(other) == expected(plain, messages("One?", answers[0], "Else?"), GREEDY).text
    # What came out may be sent again as it came.
    again = [{"role": "user", "content": "One?"}, *first["output"]]
    echoed = server.good(PATH, input=[*again, *messages("Two?")], **GREEDY)
    assert text_of(echoed) == answers[1]


def test_openai_responses(client: openai.OpenAI, plain: LLM) -> None:
    wanted = expected(plain, "Hello", GREEDY)
    made = client.responses.create(model="tiny", input="Hello", metadata={"a": "b"}, **GREEDY)
    assert made.output_text == wanted.text and made.metadata == {"a": "b"}
    assert made.usage is not None and made.usage.output_tokens_details.reasoning_tokens == 0
    sampled: Any = {"temperature": 1.0, "extra_body": {"seed": 11}}
    ended = client.responses.create(model="tiny", input="Hi", **sampled)
    with client.responses.stream(model="tiny", input="Hi", **sampled) as stream:
        texts = [event.delta for event in stream if event.type == "response.output_text.delta"]
        last = stream.get_final_response()
    assert "".join(texts) == last.output_text == ended.output_text
    assert client.responses.retrieve(made.id).output_text == wanted.text
    (item,) = client.responses.input_items.list(made.id)
    assert item.type == "message" and item.content[0].type == "input_text"
    assert item.content[0].text == "Hello"
    with pytest.raises(openai.BadRequestError, match="expected one in the background"):
        client.responses.cancel(made.id)
    client.responses.delete(made.id)
    for gone in (client.responses.retrieve, client.responses.delete, client.responses.cancel):
        with pytest.raises(openai.NotFoundError, match="is not kept"):
            gone(made.id)
    with pytest.raises(openai.NotFoundError, match="is not kept"):
        client.responses.create(model="tiny", input="a", previous_response_id=made.id)


def test_log_probabilities(server: Running, plain: LLM) -> None:
    wanted = expected(plain, "Hello", {**GREEDY, "logprobs": 2})
    asked = {"include": ["message.output_text.logprobs"], "top_logprobs": 2, **GREEDY}
    whole = server.good(PATH, input="Hello", **asked)
    (part,) = whole["output"][0]["content"]
    assert [p["logprob"] for p in part["logprobs"]] == pytest.approx(
        [p.logprob for p in wanted.logprobs]
    )
    assert all(len(p["top_logprobs"]) == 2 for p in part["logprobs"]) and whole["top_logprobs"] == 2
    told = events_of(server, input="Hello", **asked)
    listed = [p for e in told if "delta" in e for p in e["logprobs"]]
    assert told[-1]["response"]["output"][0]["content"][0]["logprobs"] == part["logprobs"]
    assert listed == part["logprobs"][: len(listed)]
    plainly = server.good(PATH, input="Hello", **GREEDY)
    assert plainly["output"][0]["content"][0]["logprobs"] == []


def test_what_is_echoed(server: Running) -> None:
    asked = {
        "metadata": {"k": "v"},
        "safety_identifier": "s",
        "prompt_cache_key": "p",
        "user": "u",
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"format": {"type": "text"}, "verbosity": "low"},
        "parallel_tool_calls": False,
        "presence_penalty": 0.5,
        "max_tool_calls": 3,
        "truncation": "disabled",
    }
    found = server.good(PATH, input="Hi", **asked, **GREEDY)
    assert {name: found[name] for name in asked} == asked
    assert found["service_tier"] == "default" and found["background"] is False


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
        ({"input": 3}, "input", "input is not valid"),
        ({"input": [[]]}, "input", "input[0] is not valid"),
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
        ({"input": "a", "tool_choice": {"type": "mcp"}}, "tool_choice", "of type 'mcp'; expected"),
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


def test_after_all_this_nothing_is_held(server: Running) -> None:
    server.idle()
