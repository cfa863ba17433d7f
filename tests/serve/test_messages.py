"""/v1/messages as Anthropic's clients use it: shapes, events in their order, errors, stop strings;
every text is that of the plain loop. (The package itself: `tests/clients/test_anthropic.py`.)"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from foresay.engine.llm import LLM
from foresay.sampling.params import SamplingParams
from foresay.serve.limits import Limits
from foresay.structured.grammars import Grammars
from serve.running import Running, raw_request, served, wait_for

PATH = "/v1/messages"
SAID = [{"role": "user", "content": "Hello, hello"}]
GREEDY: dict[str, Any] = {"temperature": 0, "max_tokens": 24}
SAMPLED: dict[str, Any] = {"temperature": 1.0, "top_p": 0.9, "top_k": 40, "seed": 5}
USAGE = {
    *("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"),
    *("output_tokens", "output_tokens_details"),
}


def text_of(message: dict[str, Any]) -> str:
    assert message["type"] == "message" and message["role"] == "assistant"
    assert message["id"].startswith("msg_") and message["model"] == "tiny"
    assert set(message["usage"]) == USAGE
    return "".join(block["text"] for block in message["content"] if block["type"] == "text")


def events_of(server: Running, **body: Any) -> list[dict[str, Any]]:
    """The events of a stream, each named by its type."""
    with server.opened(PATH, **body) as answer:
        lines = [line for line in answer.iter_lines() if line]
    found = [json.loads(line.removeprefix("data: ")) for line in lines[1::2]]
    assert [line.removeprefix("event: ") for line in lines[::2]] == [e["type"] for e in found]
    return [event for event in found if event["type"] != "ping"]


def refused(server: Running, status: int, **body: Any) -> dict[str, str]:
    answer = server.post(PATH, body)
    assert answer.status_code == status, answer.text
    found: dict[str, Any] = answer.json()
    assert found["type"] == "error" and set(found) == {"type", "error"}
    assert set(found["error"]) == {"type", "message"}
    error: dict[str, str] = found["error"]
    return error


def expected(plain: LLM, said: Any, **params: Any) -> Any:
    (found,) = plain.generate([said], SamplingParams(**params), chat=True)
    return found


@pytest.mark.parametrize("params", [GREEDY, {**SAMPLED, "max_tokens": 24}], ids=["0", "1"])
def test_the_text_is_that_of_the_plain_loop(
    server: Running, plain: LLM, params: dict[str, Any]
) -> None:
    wanted = expected(plain, SAID, **params)
    whole = server.good(PATH, messages=SAID, model="tiny", **params)
    assert text_of(whole) == wanted.text
    assert whole["stop_reason"] == "max_tokens" and whole["stop_sequence"] is None
    usage = whole["usage"]
    assert usage["output_tokens"] == len(wanted.token_ids)
    cached = usage["cache_read_input_tokens"]
    assert usage["input_tokens"] + cached == len(wanted.prompt_token_ids)
    told = events_of(server, messages=SAID, **params)
    texts = [e["delta"]["text"] for e in told if e["type"] == "content_block_delta"]
    assert "".join(texts) == wanted.text and len(texts) > 1


def test_the_events_of_a_text_in_their_order(server: Running) -> None:
    told = events_of(server, messages=SAID, **GREEDY)
    kinds = [event["type"] for event in told]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    begun = told[0]["message"]
    assert begun["content"] == [] and begun["stop_reason"] is None
    assert set(begun["usage"]) == USAGE and begun["usage"]["input_tokens"] > 0
    assert told[1]["content_block"] == {"type": "text", "text": ""}
    assert {event["index"] for event in told[1:-2]} == {0}
    assert told[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}
    assert told[-2]["usage"]["output_tokens"] == 24


def test_silence_is_filled_with_pings(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with served(folder, limits=Limits(ping_seconds=0.05)) as found:
        step = found.llm.engine.step

        def slow() -> Any:
            time.sleep(0.2)
            return step()

        monkeypatch.setattr(found.llm.engine, "step", slow)
        with found.opened(PATH, messages=SAID, max_tokens=2) as answer:
            lines = list(answer.iter_lines())
    assert lines[0] == "event: message_start" and "event: ping" in lines
    assert lines[lines.index("event: ping") + 1] == 'data: {"type":"ping"}'


def test_stop_sequences_are_named(server: Running, plain: LLM) -> None:
    """The one that ended the answer, out of several; none where the model has ended it."""
    text = expected(plain, SAID, temperature=0, max_tokens=60).text
    stop = text[20:22]
    before = text[: text.index(stop)]
    asked = {"messages": SAID, "temperature": 0, "max_tokens": 60, "stop_sequences": ["zzz", stop]}
    whole = server.good(PATH, **asked)
    assert text_of(whole) == before
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", stop)
    last = events_of(server, **asked)[-2]
    assert last["delta"] == {"stop_reason": "stop_sequence", "stop_sequence": stop}
    ended = server.good(PATH, messages=SAID, temperature=1.0, seed=11, max_tokens=3000)
    assert (ended["stop_reason"], ended["stop_sequence"]) == ("end_turn", None)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"system": "Be brief."}, [{"role": "system", "content": "Be brief."}, *SAID]),
        (
            {"system": [{"type": "text", "text": "A", "cache_control": {}}] * 2},
            [{"role": "system", "content": "A\nA"}, *SAID],
        ),
        (
            {
                "messages": [
                    {"role": "user", "content": [{"type": "text", "text": "a"}]},
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "redacted_thinking", "data": "x"},
                            {"type": "text", "text": "b"},
                        ],
                    },
                    {"role": "system", "content": "c"},
                    {"role": "user", "content": [{"type": "text", "text": t} for t in "de"]},
                ]
            },
            [
                {"role": "user", "content": "a"},
                {"role": "assistant", "content": "b"},
                {"role": "system", "content": "c"},
                {"role": "user", "content": "d\ne"},
            ],
        ),
    ],
)
def test_messages_of_all_kinds(server: Running, plain: LLM, given: Any, said: Any) -> None:
    wanted = expected(plain, said, **GREEDY)
    asked = {"messages": SAID, **GREEDY, **given}
    assert text_of(server.good(PATH, **asked)) == wanted.text
    del asked["max_tokens"]
    counted = server.good(f"{PATH}/count_tokens", **asked)
    assert counted == {"input_tokens": len(wanted.prompt_token_ids)}


def test_what_is_too_long_to_answer_is_counted(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That is what a client counts for; the form of an answer is not looked at."""
    path = f"{PATH}/count_tokens"
    least = server.good(path, messages=SAID)["input_tokens"]
    long = [{"role": "user", "content": SAID[0]["content"] + "x" * 5000}]
    form = {"format": {"type": "json_schema", "schema": {"type": "object"}}}
    monkeypatch.setattr(Grammars, "compile", lambda *given: pytest.fail("it was compiled"))
    counted = server.good(path, messages=long, output_config=form)
    assert counted == {"input_tokens": least + 5000}
    refused(server, 400, messages=long, max_tokens=1)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"max_tokens": None}, "max_tokens is null; expected a whole number"),
        ({"max_tokens": 0}, "max_tokens is 0; expected a whole number from 1"),
        ({"messages": []}, "messages is empty"),
        ({"messages": 1}, "messages is 1; expected a list"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages[0] has the role 'tool'"),
        ({"messages": [*SAID, {"role": "assistant", "content": "a"}]}, "expected the user's last"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]},
            "messages[0].content[0] is of type 'image'; expected 'text'",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "tool_result"}]}]},
            "messages[0].content[0] has no tool_use_id",
        ),
        (
            {
                "messages": [
                    {"role": "assistant", "content": [{"type": "tool_use", "id": "t"}]},
                    *SAID,
                ]
            },
            "messages[0].content[0] has no id or no name",
        ),
        ({"system": [{"type": "image"}]}, "system[0] is of type 'image'"),
        ({"temperature": -1}, "temperature is -1"),
        ({"top_k": -3}, "top_k is -3"),
        ({"stop_sequences": ["x"] * 17}, "17 entries; expected at most 16"),
        ({"stop_sequences": [""]}, "a stop string is empty"),
        (
            {"thinking": {"type": "maybe"}},
            "thinking.type is 'maybe'; expected 'enabled', 'disabled',",
        ),
        ({"tool_choice": {"type": "any"}}, "there are no tools"),
        ({"tool_choice": {"type": "tool"}}, "has no name"),
        ({"n": 2}, "n is 2"),
        ({"mcp_servers": [{"url": "x"}]}, "this server does not support it"),
    ],
)
def test_refused(server: Running, body: dict[str, Any], said: str) -> None:
    asked = {"messages": SAID, **GREEDY, **body}
    error = refused(server, 400, **asked)
    assert error["type"] == "invalid_request_error" and said in error["message"]
    assert refused(server, 400, **{**asked, "stream": True}) == error


def test_conversations_are_not_kept(server: Running) -> None:
    """Anthropic's package reads this, and sends the whole conversation each time."""
    for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
        answer = server.post(PATH, {"messages": SAID, "thread": thread, **GREEDY})
        error = answer.json()["error"]
        assert answer.status_code == 400 and "thread is" in error["message"]
        assert error["details"] == {
            "error_code": "thread_unsupported_request",
            "unsupported": ["thread"],
        }
    server.good(PATH, messages=SAID, thread=None, **GREEDY)


def test_other_refusals_have_the_same_shape(server: Running) -> None:
    assert refused(server, 404, messages=SAID, model="claude", max_tokens=1)["type"] == (
        "not_found_error"
    )
    assert server.http.get(PATH).json()["error"]["type"] == "invalid_request_error"
    large = server.post(PATH, b'{"messages":"' + b"a" * (5 << 20) + b'"}')
    assert large.status_code == 413 and large.json()["error"]["type"] == "request_too_large"
    for depth in (100, 900, 100_000):
        deep = b"[" * depth + b"]" * depth
        block = b'{"type":"tool_result","tool_use_id":"t","content":%s}' % deep
        body = b'{"max_tokens":1,"messages":[{"role":"user","content":[%s]}]}' % block
        answer = server.post(PATH, body)
        assert answer.status_code == 400 and answer.json()["type"] == "error"
    server.good(PATH, messages=SAID, **GREEDY)


def test_a_failing_step_is_an_event(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, calls = server.llm.target.forward, []

    def broken(parts: Any, *more: Any, **named: Any) -> Any:
        calls.append(len(parts))
        if len(calls) == 3:
            raise RuntimeError("the machine is on fire")
        return forward(parts, *more, **named)

    monkeypatch.setattr(server.llm.target, "forward", broken)
    new = [{"role": "user", "content": "nobody has said this before"}]
    told = events_of(server, messages=new, **GREEDY)
    assert told[-1]["type"] == "error" and told[-1]["error"]["type"] == "api_error"
    assert "see the server's log" in told[-1]["error"]["message"]
    calls[:] = [0, 0]
    assert refused(server, 500, messages=new, **GREEDY)["type"] == "api_error"
    server.idle()
    server.good(PATH, messages=SAID, **GREEDY)


def test_who_leaves_ends_the_answer(server: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    step, scheduler = server.llm.engine.step, server.llm.engine.scheduler

    def slow() -> Any:
        time.sleep(0.02)
        return step()

    monkeypatch.setattr(server.llm.engine, "step", slow)
    body = {"messages": SAID, "max_tokens": 3000, "seed": 3, "stream": True}
    with raw_request(server, body, path=PATH) as client:
        wait_for(lambda: any(r.stats.tokens > 5 for r in list(scheduler.running)))
        assert b"200 OK" in client.recv(100)
    server.idle()
