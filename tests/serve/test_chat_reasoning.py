"""Reasoning is not content, and forms begin behind it; usage counts it, and drafted tokens."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from foresay.serve.shield import Shield
from serve.running import Running, served
from serve.scripted import save_agent
from serve.test_chat_server import (
    ASKED,
    CHAT,
    COLOUR,
    COMPLETIONS,
    PAINT,
    check_call,
    save_marked,
    streamed,
)


def test_usage_tells_of_drafts_unless_the_server_hides_them(server: Running, folder: Path) -> None:
    asked = {"prompt": "ab" * 30, "temperature": 0, "max_tokens": 60}
    server.good(COMPLETIONS, **asked)
    for path, body in ((COMPLETIONS, asked), (COMPLETIONS, {**asked, "stream": True})):
        if "stream" in body:
            options = {"include_usage": True}
            *_, last = server.events(path, **asked, spec_details=True, stream_options=options)
            usage = last["usage"]
        else:
            whole = server.good(path, **asked, spec_details=True)
            usage = whole["usage"]
            said = whole["choices"][0]["foresay"]
            rejected = said["drafted"] - said["accepted"]
            assert usage["completion_tokens_details"]["rejected_prediction_tokens"] == rejected
        details = usage["completion_tokens_details"]
        assert set(details) == {
            *("reasoning_tokens", "accepted_prediction_tokens", "rejected_prediction_tokens")
        }
        assert details["accepted_prediction_tokens"] > 0 == details["reasoning_tokens"]
    with served(folder, shield=replace(Shield(), hide=True)) as hidden:
        found = hidden.good(COMPLETIONS, **asked)["usage"]
        assert found["completion_tokens_details"] == {"reasoning_tokens": 0}


THINKS = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}model: "
TALKS = {
    "open": f"{THINKS}<think>\n",
    "possible": f"{THINKS}{{# </think> #}}",
}


@pytest.mark.parametrize("begin", TALKS)
def test_reasoning_is_not_content(begin: str, tmp_path: Path) -> None:
    """The model thinks until the end of its thoughts is biased to come. A form begins behind."""
    folder = save_marked(tmp_path, TALKS[begin])
    added = AutoTokenizer.from_pretrained(folder).get_added_vocab()
    first = str(added["<think>"]) if begin == "possible" else ""
    with served(folder) as server:
        form = {"structured_outputs": {"json": COLOUR}}
        asked = {**ASKED, "return_token_ids": True}
        ends = {str(added["</think>"]): 12.0, first or str(added["<think>"]): 12.0 if first else 0}
        for seed in range(4):
            body = {**asked, "seed": seed, "logit_bias": ends, **form}
            whole = server.good(CHAT, **body)
            choice = whole["choices"][0]
            message, usage = choice["message"], whole["usage"]["completion_tokens_details"]
            if added["</think>"] in choice["token_ids"]:
                check_call("paint", message["content"])
                at = choice["token_ids"].index(added["</think>"])
                assert usage["reasoning_tokens"] == at + 1
            elif begin == "possible" and "reasoning_content" not in message:
                check_call("paint", message["content"])
            else:
                assert message["content"] == "" and usage["reasoning_tokens"] == 300
            assert "think>" not in message["content"] + message.get("reasoning_content", "")
            again = streamed(server, **{k: v for k, v in body.items() if k != "return_token_ids"})
            assert again["content"] == message["content"]
            assert again["reasoning_content"] == message.get("reasoning_content", "")
        called = server.good(
            CHAT,
            **{**asked, "logit_bias": ends},
            tools=[PAINT],
            tool_choice="required",
            parallel_tool_calls=False,
        )["choices"][0]
        assert called["finish_reason"] == "tool_calls"
        check_call(**called["message"]["tool_calls"][0]["function"])
    with served(folder, reasoning="none") as server:
        body = {**ASKED, "logit_bias": ends}
        assert "reasoning_content" not in server.good(CHAT, **body)["choices"][0]["message"]


def test_reasoning_has_the_names_that_clients_know(tmp_path: Path) -> None:
    """`reasoning_content`, and `reasoning`, as OpenAI's test of servers wants it."""
    folder = save_agent(tmp_path, {"Why": ["<think>", "Why ", "not?", "</think>", "So."]})
    asked = {"messages": [{"role": "user", "content": "Why?"}]}
    with served(folder) as server:
        message = server.good(CHAT, **asked)["choices"][0]["message"]
        deltas = [chunk["choices"][0]["delta"] for chunk in server.events(CHAT, **asked)]
    assert message == {
        "role": "assistant",
        "content": "So.",
        "reasoning_content": "Why not?",
        "reasoning": "Why not?",
    }
    for name in ("reasoning", "reasoning_content"):
        assert "".join(delta.get(name, "") for delta in deltas) == "Why not?"
