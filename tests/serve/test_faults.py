"""Slow and failing steps, many clients, idle connections: they harm nobody else, and nothing is
left behind. (`test_log` has clients that leave, or do not read.)"""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest

from foresay.engine.llm import LLM
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams
from foresay.serve import server as server_module
from foresay.serve.limits import Limits
from foresay.serve.request_state import RequestState
from foresay.serve.shield import Shield
from serve.running import Running, raw_request, running, served, tiny_llm, wait_for
from tiny import one_thread

LONG: dict[str, Any] = {"prompt": "ab", "max_tokens": 4000, "ignore_eos": True, "temperature": 1.0}


@pytest.fixture(scope="module")
def frail(folder: Path) -> Iterator[Running]:
    with served(folder, limits=Limits(ping_seconds=0.05)) as found:
        yield found


def slow_down(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    step = llm.engine.step

    def slow() -> Any:
        time.sleep(0.3)
        return step()

    monkeypatch.setattr(llm.engine, "step", slow)


def test_silence_is_filled_with_pings(frail: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    slow_down(frail.llm, monkeypatch)
    with frail.opened(prompt="a", max_tokens=2) as answer:
        lines = list(answer.iter_lines())
    assert lines.count(": ping") >= 2 and lines[-2] == "data: [DONE]"


@pytest.mark.parametrize("stream", [True, False])
def test_a_failing_step_ends_only_what_it_held(
    frail: Running,
    plain: LLM,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    stream: bool,
) -> None:
    forward, calls = frail.llm.target.forward, []

    def broken(parts: Any, *more: Any, **named: Any) -> Any:
        calls.append(len(parts))
        if len(calls) == 3:
            raise RuntimeError("the machine is on fire")
        return forward(parts, *more, **named)

    monkeypatch.setattr(frail.llm.target, "forward", broken)
    body = {"prompt": "a b", "max_tokens": 30, "temperature": 0}
    if stream:
        error = frail.events("/v1/completions", **body)[-1]["error"]
    else:
        error = frail.refused("/v1/completions", 500, **body)
    assert error["code"] == "engine_error" and "see the server's log" in error["message"]
    assert "on fire" not in json.dumps(error) and "on fire" in caplog.text
    frail.idle()
    (wanted,) = plain.generate("a b", SamplingParams(max_tokens=30, temperature=0))
    assert frail.good("/v1/completions", **body)["choices"][0]["text"] == wanted.text


def test_an_answer_whose_piece_fails_ends_alone(
    frail: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    piece = RequestState.chunk

    def broken(self: RequestState, seconds: float) -> Any:
        if self.answer.index == 1:
            raise RuntimeError("no words")
        return piece(self, seconds)

    monkeypatch.setattr(RequestState, "chunk", broken)
    body = {"prompt": "a", "max_tokens": 9, "n": 2, "ignore_eos": True}
    told = frail.events("/v1/completions", **body)
    assert sum("the next piece of the answer failed" in json.dumps(event) for event in told) == 1
    assert "no words" not in json.dumps(told) and "no words" in caplog.text
    ends = [e["choices"][0]["finish_reason"] for e in told if "choices" in e]
    assert ends.count("length") == 1
    frail.idle()


def test_a_request_that_the_engine_refuses_is_not_counted(
    frail: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = frail.llm.engine
    add, calls = engine.add, []

    def broken(*values: Any, **names: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise InputError("not this one")
        return add(*values, **names)

    monkeypatch.setattr(engine, "add", broken)
    error = frail.refused("/v1/completions", 400, prompt=["a", "b", "c"])
    assert error["message"] == "not this one"
    frail.idle()
    calls[:] = [1]
    monkeypatch.setattr(engine, "add", lambda *a, **k: 1 / 0)
    assert frail.post("/v1/completions", {"prompt": "a"}).status_code == 500
    frail.idle()


def test_many_at_once_are_as_if_alone(frail: Running, plain: LLM) -> None:
    """Some leave in the middle; those that stay get the text they would have got alone."""

    def ask(number: int) -> tuple[int, str | None]:
        body = {
            "prompt": f"{number % 7} and",
            "seed": number,
            "max_tokens": 30,
            "stream": number % 2 == 0,
        }
        content, headers = json.dumps(body).encode(), {"content-type": "application/json"}
        with (
            httpx.Client(base_url=frail.url, timeout=60, verify=False) as client,
            client.stream("POST", "/v1/completions", content=content, headers=headers) as answer,
        ):
            assert answer.status_code == 200
            if number % 5 == 0:
                return number, None
            lines = [line for line in answer.iter_lines() if line]
        if number % 2:
            return number, json.loads(lines[0])["choices"][0]["text"]
        told = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
        return number, "".join(chunk["choices"][0]["text"] for chunk in told)

    with ThreadPoolExecutor(16) as pool:
        found = dict(pool.map(ask, range(30)))
    stayed = {number: text for number, text in found.items() if text is not None}
    wanted = plain.generate(
        [f"{number % 7} and" for number in stayed],
        [SamplingParams(seed=number, max_tokens=30) for number in stayed],
    )
    assert list(stayed.values()) == [result.text for result in wanted]
    frail.idle()


@pytest.mark.parametrize(
    "shield", [Shield(), Shield(pad=512), Shield(pad=1024, every=0.05), Shield(coalesce=8)]
)
def test_a_shield_changes_the_packets_and_not_the_text(
    folder: Path, plain: LLM, shield: Shield
) -> None:
    body = {"prompt": "ab" * 20, "max_tokens": 40, "temperature": 0, "stream": True}
    (wanted,) = plain.generate("ab" * 20, SamplingParams(max_tokens=40, temperature=0))
    with served(folder, shield=shield) as server:
        told = server.events("/v1/completions", **{**body, "return_token_ids": True})
        client = raw_request(server, body)
        received = b""
        while b"0\r\n\r\n" not in received[-5:]:
            received += client.recv(1 << 16)
        client.close()
    texts = [c["choices"][0]["text"] for c in told]
    assert "".join(texts) == wanted.text
    sizes = _chunk_sizes(received.partition(b"\r\n\r\n")[2])
    # Without padding they tell how many tokens came.
    assert len(sizes) > 1 and all(size % (shield.pad or 512) == 0 for size in sizes) == bool(
        shield.pad
    )
    if shield.coalesce:
        counts = [len(c["choices"][0]["token_ids"]) for c in told]
        assert all(count >= 8 for count in counts[:-1])


def _chunk_sizes(body: bytes) -> list[int]:
    """The sizes of the chunks of a body, as anybody on the way sees them."""
    sizes = []
    while body:
        size = int(body.partition(b"\r\n")[0], 16)
        body = body.partition(b"\r\n")[2][size + 2 :]
        sizes.append(size)
    return [size for size in sizes if size]


def test_what_is_hidden(folder: Path) -> None:
    with served(folder, shield=Shield(hide=True)) as server:
        error = server.refused("/v1/completions", 403, prompt="a", spec_details=True)
        assert "spec_details" in error["message"]
        assert server.http.get("/v1/spec/stats").status_code == 403


def test_who_takes_too_long_to_finish_is_cancelled(folder: Path) -> None:
    with served(folder, limits=Limits(drain_seconds=0.2)) as server:
        with server.opened(**LONG) as answer:
            lines = answer.iter_lines()
            next(lines)
            loop = server.server._routes.driver._loop
            assert loop is not None
            loop.call_soon_threadsafe(server.server.drain)
            rest = [line for line in lines if line.startswith("data: ")]
        assert "was cancelled before its end" in rest[-2] and rest[-1] == "data: [DONE]"
        wait_for(lambda: server.server.should_exit)


def lives(client: socket.socket, pause: float = 0.0) -> bool:
    """Whether a whole answer comes to a whole request, which may pause in the middle."""
    client.sendall(b"GET /live HTTP/1.1\r\n")
    time.sleep(pause)
    client.sendall(b"Host: localhost\r\n\r\n")
    received = b""
    while not received.endswith(b'{"status":"ok"}'):
        part = client.recv(1000)
        if not part:
            return False
        received += part
    return True


@pytest.mark.parametrize("rest", [b"G", b"GET /live HTTP/1.1\r\nHost: local"])
def test_connections_that_ask_once_and_then_half_are_closed(folder: Path, rest: bytes) -> None:
    limits = Limits(head_seconds=0.2)
    with served(folder, limits=limits) as server, server.connected() as client:
        assert lives(client)
        time.sleep(0.5)  # between two requests it may be idle
        assert lives(client, 0.1)
        client.sendall(rest)
        assert client.recv(10) == b""


def test_a_request_that_runs_is_not_idle(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a head may have as little time as in these tests."""
    monkeypatch.setattr(server_module, "_SWEEP", 0.02)
    llm, drafter = tiny_llm(folder)
    slow_down(llm, monkeypatch)
    with one_thread(), running(llm, drafter, limits=Limits(head_seconds=0.1)) as server:
        server.good("/v1/completions", prompt="a", max_tokens=3, ignore_eos=True)


def test_strangers_cannot_use_the_connections_up(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """More than twice as many as may be open: the idle ones go, and nobody is sent away."""
    monkeypatch.setattr(server_module, "_SWEEP", 0.05)
    with served(folder, limits=Limits(connections=2)) as server, ExitStack() as open_ones:
        first = open_ones.enter_context(server.connected())
        assert lives(first)
        time.sleep(0.3)  # until it was seen: who has been idle for the longest goes first
        for _ in range(8):
            with suppress(OSError):
                lives(open_ones.enter_context(server.connected()))
        assert first.recv(10) == b""
        wait_for(lambda: len(server.server.server_state.connections) <= 4, 2)
        server.good("/v1/completions", prompt="a", max_tokens=1)


def test_an_engine_that_hangs_is_seen(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm, drafter = tiny_llm(folder)
    step, go = llm.engine.step, threading.Event()
    hangs: list[bool] = []

    def hang() -> Any:
        if hangs:
            go.wait(20)
        return step()

    monkeypatch.setattr(llm.engine, "step", hang)
    with one_thread(), running(llm, drafter, limits=Limits(stuck_seconds=0.3)) as server:

        def since() -> float:
            return server.number("foresay_seconds_since_step")

        server.good("/v1/completions", prompt="a", max_tokens=1)
        assert since() == 0 and server.http.get("/health").status_code == 200
        hangs.append(True)
        time.sleep(0.6)  # of which nobody has waited
        try:
            client = raw_request(server, {"prompt": "a", "max_tokens": 1})
            driver = server.server._routes.driver
            wait_for(lambda: driver.waited > 0)
            assert driver.waited < 0.5
            wait_for(lambda: since() > 0.3, 5)
            health = server.http.get("/health", timeout=3)
            assert health.status_code == 503 and health.json()["error"]["code"] == "stuck"
            assert "expected one within 0.3 s" in health.json()["error"]["message"]
            assert server.http.get("/live", timeout=3).status_code == 200
        finally:
            go.set()
        assert b"200 OK" in client.recv(100)
        client.close()
        server.idle()
        assert since() == 0 and server.http.get("/health").status_code == 200
