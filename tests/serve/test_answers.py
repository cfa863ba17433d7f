"""What clients get: the texts of `LLM.generate`, in OpenAI's shapes."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from foresay.engine.llm import LLM
from foresay.engine.plain import logits_of
from foresay.sampling.params import SamplingParams
from serve.running import Running, served
from tiny import CONTEXT

PROMPT = "one two three one two three one"
SAMPLED: dict[str, Any] = {"temperature": 0.9, "seed": 5, "max_tokens": 24}


def expected(plain: LLM, prompt: Any, chat: bool = False, **params: Any) -> list[Any]:
    given = {"temperature": 1.0, **params}
    return plain.generate(prompt, SamplingParams(**given), chat=chat)


@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 0, "max_tokens": 24},
        SAMPLED,
        {**SAMPLED, "n": 3},
        {**SAMPLED, "top_k": 20, "top_p": 0.9, "min_p": 0.01, "stop": ["e", "zz"], "n": 2},
        {**SAMPLED, "top_p": 0.7, "processor_order": ["top_p", "temperature", "min_p", "top_k"]},
        {**SAMPLED, "presence_penalty": 0.5, "frequency_penalty": 0.5, "repetition_penalty": 1.2},
        {**SAMPLED, "min_tokens": 10, "ignore_eos": True},
        {**SAMPLED, "min_tokens": 10, "stop": list("aeio ,.tns")},
    ],
)
def test_the_texts_are_those_of_generate(
    server: Running, plain: LLM, params: dict[str, Any]
) -> None:
    results = expected(plain, PROMPT, **params)
    wanted = [r.text for r in results]
    whole = server.good("/v1/completions", prompt=PROMPT, **params)
    assert [c["text"] for c in whole["choices"]] == wanted
    assert [c["index"] for c in whole["choices"]] == list(range(len(wanted)))
    assert [c["finish_reason"] for c in whole["choices"]] == [r.finish_reason for r in results]
    for granularity in ("commit", "token"):
        told = server.events(
            "/v1/completions", prompt=PROMPT, stream_granularity=granularity, **params
        )
        texts, ends = [""] * len(wanted), [None] * len(wanted)
        for chunk in told:
            (choice,) = chunk["choices"]
            texts[choice["index"]] += choice["text"]
            assert ends[choice["index"]] is None
            ends[choice["index"]] = choice["finish_reason"]
        assert texts == wanted and ends == [r.finish_reason for r in results]
        if granularity == "token":
            assert len(told) == sum(len(r.token_ids) for r in results)
    other = server.good("/v1/completions", prompt=PROMPT, **{**params, "seed": 6})
    if params["temperature"]:  # or this test could not fail
        assert [c["text"] for c in other["choices"]] != wanted


def test_a_chat(server: Running, plain: LLM) -> None:
    messages = [{"role": "user", "content": "Hello, hello"}]
    (wanted,) = expected(plain, "Hello, hello", chat=True, **SAMPLED)
    parts = [{"type": "text", "text": "Hello, "}, {"type": "text", "text": "hello"}]
    for said in (messages, [{"role": "user", "content": parts}]):
        whole = server.good("/v1/chat/completions", messages=said, **SAMPLED)
        message = whole["choices"][0]["message"]
        assert message == {"role": "assistant", "content": wanted.text}
    told = server.events("/v1/chat/completions", messages=messages, **SAMPLED)
    deltas = [chunk["choices"][0]["delta"] for chunk in told]
    assert "".join(d["content"] for d in deltas) == wanted.text
    assert [d.get("role") for d in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert whole["object"] == "chat.completion" and told[0]["object"] == "chat.completion.chunk"


def test_a_chat_without_a_limit_has_all_the_room(folder: Path, plain: LLM) -> None:
    asked: Any = {"messages": [{"role": "user", "content": "Hello, hello"}], "temperature": 0}
    letters = [*"aeiou stn"]
    with served(folder, options={"memory": 1 << 17}) as small:
        stopped = small.good("/v1/chat/completions", stop=letters, **asked)
        full = small.good("/v1/chat/completions", ignore_eos=True, **asked)
        (model,) = small.http.get("/v1/models").json()["data"]
    (whole,) = expected(plain, "Hello, hello", chat=True, temperature=0, max_tokens=200)
    (choice,) = stopped["choices"]
    text = choice["message"]["content"]
    assert choice["finish_reason"] == "stop" and len(text) < len(whole.text)
    assert whole.text.startswith(text) and whole.text[len(text)] in letters
    assert not {*text} & {*letters}
    assert full["choices"][0]["finish_reason"] == "length"
    assert full["usage"]["total_tokens"] == model["max_model_len"] < CONTEXT


def test_prompts_of_all_kinds(server: Running, plain: LLM) -> None:
    ids = plain.encode(PROMPT).tolist()
    wanted = expected(plain, [PROMPT, "a"], **SAMPLED)
    for prompt in ([PROMPT, "a"], [ids, plain.encode("a").tolist()]):
        found = server.good("/v1/completions", prompt=prompt, n=1, **SAMPLED)
        assert [c["text"] for c in found["choices"]] == [r.text for r in wanted]
        assert found["usage"]["prompt_tokens"] == len(ids) + 1
    found = server.good("/v1/completions", prompt=ids, return_token_ids=True, **SAMPLED)
    assert found["choices"][0]["token_ids"] == wanted[0].token_ids
    assert found["choices"][0]["prompt_token_ids"] == ids
    usage = found["usage"]
    assert usage["completion_tokens"] == len(wanted[0].token_ids)
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > 0  # the same prompt came before


def test_logprobs_of_completions(server: Running, plain: LLM) -> None:
    params: Any = {**SAMPLED, "logprobs": 2}
    (wanted,) = expected(plain, PROMPT, **params)
    for stream in (False, True):
        if stream:
            chunks = server.events("/v1/completions", prompt=PROMPT, **params)
            parts = [c["choices"][0]["logprobs"] for c in chunks]
            found = {key: [v for part in parts for v in part[key]] for key in parts[0]}
        else:
            whole = server.good("/v1/completions", prompt=PROMPT, **params)
            found = whole["choices"][0]["logprobs"]
        assert found["token_logprobs"] == pytest.approx([p.logprob for p in wanted.logprobs])
        for top, p in zip(found["top_logprobs"], wanted.logprobs, strict=True):
            assert max(top.values()) == pytest.approx(max(p.top.values()))
            assert 1 <= len(top) <= 3
        assert found["text_offset"][0] == 0
        assert found["text_offset"][1] == len(found["tokens"][0])


def test_logprobs_of_chats(server: Running, plain: LLM) -> None:
    params: Any = {"temperature": 0, "max_tokens": 12}
    (wanted,) = expected(plain, "Hello", chat=True, logprobs=2, **params)
    asked = {**params, "messages": [{"role": "user", "content": "Hello"}]}
    found = server.good("/v1/chat/completions", logprobs=True, top_logprobs=2, **asked)
    content = found["choices"][0]["logprobs"]["content"]
    assert [p["logprob"] for p in content] == pytest.approx([p.logprob for p in wanted.logprobs])
    assert all(len(p["top_logprobs"]) == 2 for p in content)
    assert all(bytes(p["bytes"]).decode(errors="replace") == p["token"] for p in content)
    bare = server.good("/v1/chat/completions", logprobs=True, **asked)
    assert bare["choices"][0]["logprobs"]["content"][0]["top_logprobs"] == []


def test_echo_with_the_prompts_own_logprobs(server: Running, plain: LLM) -> None:
    """As lm-eval asks for likelihoods."""
    ids = plain.encode(PROMPT).tolist()
    asked = {"prompt": [ids], "echo": True, "logprobs": 1, "temperature": 0}
    found = server.good("/v1/completions", max_tokens=1, **asked)["choices"][0]
    logprobs = found["logprobs"]
    assert found["text"].startswith(PROMPT) and len(logprobs["tokens"]) == len(ids) + 1
    assert "".join(logprobs["tokens"][: len(ids)]) == PROMPT
    assert logprobs["token_logprobs"][0] is None and logprobs["top_logprobs"][0] is None
    logits = logits_of(plain.target)
    for at in range(1, len(ids)):
        row = torch.log_softmax(torch.as_tensor(logits(ids[:at], at)).double(), -1)
        assert logprobs["token_logprobs"][at] == pytest.approx(float(row[ids[at]]), abs=1e-4)
        assert max(logprobs["top_logprobs"][at].values()) == pytest.approx(
            float(row.max()), abs=1e-4
        )
    only = server.good("/v1/completions", max_tokens=0, **asked)
    assert only["choices"][0]["text"] == PROMPT
    assert only["choices"][0]["logprobs"]["token_logprobs"] == logprobs["token_logprobs"][:-1]
    assert only["usage"]["completion_tokens"] == 0
    told = server.events("/v1/completions", max_tokens=4, **asked)
    first = told[0]["choices"][0]
    assert first["text"].startswith(PROMPT)
    assert sum(len(c["choices"][0]["logprobs"]["tokens"]) for c in told) == len(ids) + 4
    assert sum(c["choices"][0]["text"].count(PROMPT) for c in told) == 1


def test_usage_in_streams(server: Running) -> None:
    asked = {"prompt": PROMPT, "temperature": 0, "max_tokens": 9, "ignore_eos": True}
    assert all("usage" not in chunk for chunk in server.events("/v1/completions", **asked))
    told = server.events("/v1/completions", stream_options={"include_usage": True}, **asked)
    assert all(chunk["usage"] is None for chunk in told[:-1])
    assert told[-1]["choices"] == [] and told[-1]["usage"]["completion_tokens"] == 9
    always = {"include_usage": True, "continuous_usage_stats": True}
    told = server.events("/v1/completions", stream_options=always, **asked)
    counts = [chunk["usage"]["completion_tokens"] for chunk in told]
    assert counts == sorted(counts) and counts[0] >= 1 and counts[-1] == 9


def test_where_tokens_came_from(server: Running) -> None:
    asked = {"prompt": "ab" * 30, "temperature": 0, "max_tokens": 60, "spec_details": True}
    server.good("/v1/completions", **asked)  # so that there is a history
    told = server.events("/v1/completions", return_token_ids=True, **asked)
    tokens = accepted = 0
    for chunk in told:
        details, choice = chunk["foresay"], chunk["choices"][0]
        assert len(details["sources"]) == len(details["words"]) == len(choice["token_ids"])
        assert "".join(details["words"]) == choice["text"]
        assert details["accepted"] <= details["drafted"] and details["step_seconds"] > 0
        assert sum(source != "" for source in details["sources"]) <= details["accepted"]
        tokens += len(choice["token_ids"])
        accepted += details["accepted"]
    assert accepted > 0 and len(told) + accepted == tokens  # several tokens in one chunk
    whole = server.good("/v1/completions", **asked)["choices"][0]["foresay"]
    assert len(whole["sources"]) == tokens and whole["accepted"] > 0
    plainly = server.events("/v1/completions", **{**asked, "spec_details": False})
    assert all("foresay" not in chunk for chunk in plainly)


def test_drafts_can_be_switched_off_for_a_request(server: Running) -> None:
    """At the same time as the same request with drafts."""
    asked = {"messages": [{"role": "user", "content": "ab" * 30}], "max_tokens": 60, "seed": 5}
    asked |= {"temperature": 0.7, "spec_details": True}
    server.good("/v1/chat/completions", **asked)  # so that there is a history
    with ThreadPoolExecutor(2) as pool:
        both = pool.map(
            lambda how: server.good("/v1/chat/completions", **asked, speculative=how), (True, False)
        )
        drafting, plainly = (found["choices"][0] for found in both)
    assert drafting["message"] == plainly["message"]
    assert drafting["foresay"]["accepted"] > 0 == plainly["foresay"]["drafted"]
    assert set(plainly["foresay"]["sources"]) == {""}
    refused = server.refused("/v1/chat/completions", 400, **asked, speculative="off")
    assert refused["param"] == "speculative"


def test_a_seed_may_be_negative(server: Running) -> None:
    asked = {"prompt": PROMPT, "max_tokens": 8}
    texts = [
        server.good("/v1/completions", seed=seed, **asked)["choices"][0]["text"]
        for seed in (-1, 2**64 - 1, 1)
    ]
    assert texts[0] == texts[1] != texts[2]


def test_after_all_this_nothing_is_held(server: Running) -> None:
    server.idle()
