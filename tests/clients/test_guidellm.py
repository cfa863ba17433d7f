"""guidellm as it is: every request succeeds, and it counts the tokens that the server counts."""

from __future__ import annotations

import json
from typing import Any
from urllib.request import Request, urlopen

import pytest

from clients.conftest import Reference
from clients.running import NAME, Served

COUNT = 6
PROMPTS = [f"{at}. Once upon a time there was a fox who" for at in range(8)]
COUNTERS = {
    "prompt_tokens": "vllm:prompt_tokens",
    "output_tokens": "vllm:generation_tokens",
}


def run(server: Served, route: str, *more: str) -> list[dict[str, Any]]:
    """The requests of one run; it must have counted what the server counted meanwhile."""
    name = route.strip("/").replace("/", "-") + str(len(more))
    data, out = server.folder / f"{name}.jsonl", server.folder / f"{name}.json"
    lines = [{"prompt": p, "output_tokens_count": 10 + at} for at, p in enumerate(PROMPTS)]
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    before = {key: server.count(metric) for key, metric in COUNTERS.items()}
    backend = f"kind=openai_http,target={server.url},model={NAME},request_format={route}"
    command = ["run", "--backend", ",".join((backend, *more)), "--disable-progress"]
    command += ["--profile", "kind=concurrent,streams=2"]
    command += ["--constraint", f"kind=max_requests,count={COUNT}"]
    command += ["--data", f"kind=json_file,path={data}", "--output", f"kind=json,path={out}"]
    server.client("guidellm", *command)
    (benchmark,) = json.loads(out.read_text())["benchmarks"]
    requests: dict[str, Any] = benchmark["requests"]
    assert {key: len(requests[key] or ()) for key in ("successful", "errored", "incomplete")} == {
        "successful": COUNT,
        "errored": 0,
        "incomplete": 0,
    }
    done: list[dict[str, Any]] = requests["successful"]
    for key, metric in COUNTERS.items():
        assert sum(request[key] for request in done) == server.count(metric) - before[key]
    return done


def body_of(request: dict[str, Any]) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(request["request_args"])["body"]
    return body


def tokens_of(server: Served, asked: dict[str, Any]) -> int:
    """How many tokens a prompt has, asked on another route."""
    content = json.dumps(asked).encode()
    headers = {"content-type": "application/json"}
    with urlopen(Request(server.url + "/tokenize", content, headers), timeout=60) as response:
        return int(json.load(response)["count"])


@pytest.mark.parametrize("route", ["/v1/completions", "/v1/chat/completions"])
def test_all_succeed_and_all_tokens_are_counted(server: Served, route: str) -> None:
    for request in run(server, route):
        body = body_of(request)
        assert body["stream"] and body["stream_options"]["continuous_usage_stats"]
        wanted = body.get("max_completion_tokens") or body["max_tokens"]
        assert request["output_tokens"] == wanted >= 10  # ignore_eos: never fewer
        asked = {key: value for key, value in body.items() if key in ("prompt", "messages")}
        assert request["prompt_tokens"] == tokens_of(server, asked)
        assert request["output"] and request["time_to_first_token_ms"] > 0
        # Several tokens may come at once, but not all of them.
        assert 1 <= request["output_tokens_per_iteration"] < wanted


def test_it_reads_the_text_that_generate_writes(server: Served, reference: Reference) -> None:
    greedy = 'extras={"body":{"temperature":0}}'
    done = run(server, "/v1/completions", greedy)
    asked = [
        (body["prompt"], {"max_tokens": body["max_tokens"], "ignore_eos": True})
        for body in map(body_of, done)
    ]
    assert [request["output"] for request in done] == reference("generate", asked)
