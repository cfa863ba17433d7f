"""Reasoning at /v1/responses and /v1/messages: items and blocks of their own, with the plain loop's
text."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai.types.responses import Response

from foresay.engine.llm import LLM
from foresay.sampling.params import SamplingParams
from serve.response_client import streamed, told
from serve.running import Running, served


@pytest.fixture(scope="module")
def thinker(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """A model whose template opens its reasoning, and which never ends it."""
    own = tmp_path_factory.mktemp("thinker")
    shutil.copytree(folder, own, dirs_exist_ok=True)
    path = own / "chat_template.jinja"
    text = path.read_text().replace("model: ", "model: <think>")
    path.write_text(text + "{# </think> #}")
    with served(own) as found:
        yield found


def test_reasoning(thinker: Running, plain: LLM) -> None:
    """It is an item of its own, and a block where it was asked for: the plain loop's text."""
    prompt = "user: Why?\nmodel: <think>"
    params: dict[str, Any] = {"temperature": 0, "max_tokens": 20}
    (wanted,) = plain.generate(prompt, SamplingParams(**params))
    text = wanted.text.lstrip()
    asked = {"input": "Why?", "temperature": 0, "max_output_tokens": 20}
    whole = thinker.good("/v1/responses", **asked)
    Response.model_validate(whole)
    (item,) = whole["output"]
    assert item["type"] == "reasoning" and item["summary"] == []
    assert item["content"] == [{"type": "reasoning_text", "text": text}]
    assert whole["usage"]["output_tokens_details"]["reasoning_tokens"] == 20
    events = streamed(thinker, "/v1/responses", **asked)
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[2:4] == ["output_item.added", "content_part.added"]
    assert set(kinds[4:-4]) == {"reasoning_text.delta"}
    assert kinds[-4:] == [
        *("reasoning_text.done", "content_part.done", "output_item.done", "incomplete")
    ]
    assert "".join(e["delta"] for e in events[4:-4]) == text
    said = [{"role": "user", "content": "Why?"}]
    for thinking, blocks in [
        ({"type": "enabled", "budget_tokens": 1024}, [{"type": "thinking", "thinking": text}]),
        ({"type": "adaptive", "display": "omitted"}, [{"type": "text", "text": ""}]),
        ({"type": "disabled"}, [{"type": "text", "text": ""}]),
        (None, [{"type": "text", "text": ""}]),
    ]:
        body = {"messages": said, "thinking": thinking, **params}
        message = thinker.good("/v1/messages", **body)
        found = [{k: v for k, v in b.items() if k != "signature"} for b in message["content"]]
        assert found == blocks
        assert message["usage"]["output_tokens_details"] == {"thinking_tokens": 20}
        parts = [e["delta"] for e in streamed(thinker, "/v1/messages", **body) if "delta" in e]
        shown = "".join(one.get("thinking", "") for one in parts)
        assert shown == ("" if blocks[0]["type"] == "text" else text)


def test_reasoning_goes_back(thinker: Running) -> None:
    """Reasoning that was given out is the model's own in the next request, if its template has it;
    this one has not, and is not disturbed."""
    first = thinker.good("/v1/responses", input="Why?", temperature=0, max_output_tokens=9)
    more = {"temperature": 0, "max_output_tokens": 9}
    go_on = {"role": "user", "content": "So?"}
    second = thinker.good("/v1/responses", input=[go_on], previous_response_id=first["id"], **more)
    sent = [{"role": "user", "content": "Why?"}, *first["output"], go_on]
    assert told(thinker.good("/v1/responses", input=sent, **more)["output"]) == (
        told(second["output"])
    )
