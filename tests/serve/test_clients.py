"""Real clients: openai's package, curl, and a process that is told to stop."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

import forks
from foresay.engine.llm import LLM
from foresay.sampling.params import SamplingParams
from foresay.serve.start import tenant_drafter
from real import default_llm
from serve.running import Running, running, wait_for

PROMPT = "one two three one two three one"


@pytest.fixture
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=server.url + "/v1", api_key="unused", max_retries=0) as found:
        yield found


def test_openai_completions(client: openai.OpenAI, plain: LLM) -> None:
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    asked: Any = {"model": "tiny", "prompt": PROMPT, "max_tokens": 20, "seed": 7, "n": 2}
    wanted = plain.generate(PROMPT, SamplingParams(max_tokens=20, seed=7, n=2, stop="zz"))
    whole = client.completions.create(**asked, stop=["zz"], logprobs=2, echo=True)
    assert [c.text for c in whole.choices] == [PROMPT + r.text for r in wanted]
    assert whole.usage is not None and whole.usage.prompt_tokens == len(PROMPT)
    logprobs = whole.choices[0].logprobs
    assert logprobs is not None and logprobs.token_logprobs is not None
    assert logprobs.token_logprobs[0] is None
    assert len(logprobs.token_logprobs) == len(PROMPT) + len(wanted[0].token_ids)
    texts = ["", ""]
    for chunk in client.completions.create(**asked, stop=["zz"], stream=True):
        texts[chunk.choices[0].index] += chunk.choices[0].text
    assert texts == [r.text for r in wanted]


def test_openai_chats(client: openai.OpenAI, plain: LLM) -> None:
    (wanted,) = plain.generate("Hi", SamplingParams(max_tokens=20, temperature=0), chat=True)
    asked: Any = {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Hi"}],
        "temperature": 0,
        "max_completion_tokens": 20,
    }
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=3)
    choice = whole.choices[0]
    assert choice.message.content == wanted.text and choice.finish_reason == wanted.finish_reason
    assert choice.logprobs is not None and choice.logprobs.content is not None
    assert len(choice.logprobs.content[0].top_logprobs) == 3
    text, usage = "", None
    for chunk in client.chat.completions.create(
        **asked, stream=True, stream_options={"include_usage": True}
    ):
        text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
        usage = chunk.usage
    assert text == wanted.text
    assert usage is not None and usage.completion_tokens == len(wanted.token_ids)


def test_openai_errors(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="at most 8"):
        client.completions.create(model="tiny", prompt="a", n=9)
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-7", prompt="a")


def test_curl(server: Running) -> None:
    def curl(*arguments: str) -> str:
        command = ["curl", "-sS", "-N", *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    header = ("-H", "Content-Type: application/json")
    body = '{"prompt": "Hello", "max_tokens": 4, "temperature": 0}'
    whole = json.loads(curl(server.url + "/v1/completions", *header, "-d", body))
    streamed = curl(server.url + "/v1/completions", *header, "-d", body[:-1] + ', "stream": true}')
    assert streamed.endswith("data: [DONE]\n\n")
    told = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    text = "".join(c["choices"][0]["text"] for c in told)
    assert text == whole["choices"][0]["text"]
    assert "application/json" in curl(server.url + "/v1/completions", "-d", body)


@contextmanager
def started(folder: Path, *options: str) -> Iterator[forks.Process]:
    """`foresay serve` as a user starts it; it loads yet."""
    command = ["-m", "foresay", "serve", str(folder), "--port", "0", *options]
    command += ["--dtype", "float32", "--policy", "fixed"]  # which need not be measured first
    with forks.start(*command) as child:
        yield child


def address_of(child: forks.Process) -> str:
    """Where it listens, when it does."""
    assert child.stdout is not None
    line = child.stdout.readline()
    found = re.search(r"http://127\.0\.0\.1:\d+", line)
    assert found is not None, (line, child.stderr and child.stderr.read())
    return found.group()


@contextmanager
def process(folder: Path, *options: str) -> Iterator[tuple[forks.Process, str]]:
    """`foresay serve` as a user starts it, and where it listens."""
    with started(folder, *options) as child:
        yield child, address_of(child)


def test_sigterm_finishes_what_has_begun(folder: Path) -> None:
    body = {"prompt": "a", "max_tokens": 400, "ignore_eos": True, "stream": True, "seed": 1}
    with process(folder, "--json") as (child, url):
        headers = {"content-type": "application/json"}
        content = json.dumps({**body, "stream_options": {"include_usage": True}}).encode()
        with (
            httpx.Client(base_url=url, timeout=30, verify=False) as client,
            client.stream("POST", "/v1/completions", content=content, headers=headers) as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines).startswith("data: ")
            child.send_signal(signal.SIGTERM)
            time.sleep(0.1)
            late = httpx.post(url + "/v1/completions", json={"prompt": "b"})
            health = httpx.get(url + "/health")
            rest = [line for line in lines if line.startswith("data: ")]
        assert late.status_code == health.status_code == 503
        assert "the server is stopping" in late.json()["error"]["message"]
        assert rest[-1] == "data: [DONE]"
        assert json.loads(rest[-2][6:])["usage"]["completion_tokens"] == 400
        out, err = child.communicate(timeout=20)
        assert child.returncode == 0 and out == ""
        logged = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        assert any("stopping: 1 answers" in line["message"] for line in logged)
        assert any(line.get("path") == "/v1/completions" for line in logged)


def test_a_second_signal_ends_at_once(folder: Path) -> None:
    body = {"prompt": "a", "max_tokens": 4000, "ignore_eos": True, "stream": True, "n": 8}
    with (
        process(folder, "--served-model-name", "mine") as (child, url),
        httpx.Client(base_url=url, timeout=30, verify=False) as client,
        client.stream("POST", "/v1/completions", json=body) as answer,
    ):
        lines = answer.iter_lines()
        next(lines)
        child.send_signal(signal.SIGTERM)
        time.sleep(0.2)
        child.send_signal(signal.SIGTERM)
        rest = [line for line in lines if line.startswith("data: ")]
        assert any("was cancelled before its end" in line for line in rest[-9:])
        assert child.wait(timeout=20) == 0


def test_sighup_reads_the_keys_again(folder: Path, tmp_path: Path) -> None:
    """Which would end the process if nobody heard it; and pages of named origins may ask."""
    keys, page = tmp_path / "keys", "https://chat.example.org"
    keys.write_text("one the-key-of-one\n")
    keys.chmod(0o644)
    with process(folder, "--keys", str(keys), "--cors-origin", page) as (child, url):

        def asked(key: str) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}", "origin": page}
            return httpx.get(url + "/v1/models", headers=headers)

        assert asked("the-key-of-one").status_code == 200
        keys.write_text("two the-key-of-two\n")
        child.send_signal(signal.SIGHUP)
        wait_for(lambda: asked("the-key-of-two").status_code == 200)
        late = asked("the-key-of-one")
        assert late.status_code == 401 and late.headers["access-control-allow-origin"] == page
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=20)
        assert child.returncode == 0 and "the keys were read again: 1, of 1 tenants" in err
        assert f"can read or change the file of keys '{keys}': its mode is 0644" in err


def test_sighup_while_the_model_loads(folder: Path, tmp_path: Path) -> None:
    """As `systemctl reload` sends it: the keys are read again when the server is ready."""
    keys = tmp_path / "keys"
    keys.write_text("one the-key-of-one\n")
    keys.chmod(0o600)
    with started(folder, "--keys", str(keys)) as child:
        assert child.stderr is not None
        assert "loading the libraries" in child.stderr.readline()
        keys.write_text("two the-key-of-two\n")
        child.send_signal(signal.SIGHUP)
        url = address_of(child)
        for key, status in (("the-key-of-one", 401), ("the-key-of-two", 200)):
            headers = {"authorization": f"Bearer {key}"}
            assert httpx.get(url + "/v1/models", headers=headers).status_code == status
        child.send_signal(signal.SIGTERM)
        _, err = child.communicate(timeout=20)
        assert child.returncode == 0
        assert err.count("the keys were read again: 1, of 1 tenants") == 1


@pytest.mark.parametrize("options", [(), ("--api-key", "the-key-of-one")])
def test_without_a_file_of_keys_sighup_ends_it(folder: Path, options: tuple[str, ...]) -> None:
    """As when its terminal is closed."""
    with process(folder, *options) as (child, url):
        assert httpx.get(url + "/live").status_code == 200
        child.send_signal(signal.SIGHUP)
        assert child.wait(timeout=20) == -signal.SIGHUP


@pytest.mark.slow
@pytest.mark.model
def test_the_default_model_says_over_http_what_it_says() -> None:
    question = "Repeat these words three times: the quick brown fox jumps over the lazy dog."
    drafter = tenant_drafter(1, 1 << 20)
    params = SamplingParams(temperature=0, max_tokens=24)
    (wanted,) = default_llm().generate(question, params, chat=True)
    with running(default_llm().beside(drafter, "fixed", with_sources=True), drafter) as server:
        asked = {"messages": [{"role": "user", "content": question}], "temperature": 0}
        told = server.events("/v1/chat/completions", max_tokens=24, spec_details=True, **asked)
    assert "".join(c["choices"][0]["delta"]["content"] for c in told) == wanted.text
    assert sum(c["foresay"]["accepted"] for c in told) > 0
