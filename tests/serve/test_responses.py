"""/v1/responses as openai's package uses it, and as the compliance tests of Open Responses want it:
shapes, events in their order, conversations that go on; every text is that of the plain loop."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest

from foresay.engine.llm import LLM
from serve.response_client import GREEDY, PATH, events_of, expected, messages, text_of
from serve.running import Running

SAMPLED: dict[str, Any] = {"temperature": 1.0, "seed": 5, "top_p": 0.9, "max_output_tokens": 24}


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as found:
        yield found


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


def test_after_all_this_nothing_is_held(server: Running) -> None:
    server.idle()
