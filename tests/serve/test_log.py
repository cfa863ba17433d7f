"""A line for each request: who left before the end, how many tokens, how long; and nothing is left
of who has left."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from foresay.serve.limits import Limits
from serve.raw import to_the_end
from serve.running import Running, raw_request, served, wait_for

LONG = {"prompt": "abc", "max_tokens": 4000, "ignore_eos": True, "temperature": 1.0}


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with served(folder, limits=Limits(stream_pieces=40)) as found:
        yield found


class Lines:
    """What was logged of requests, with their facts."""

    def __init__(self, caplog: pytest.LogCaptureFixture) -> None:
        self._caplog = caplog
        caplog.set_level(logging.INFO, "foresay.serve")

    def of(self, path: str = "/v1/completions") -> list[tuple[str, dict[str, Any]]]:
        found = [(r.getMessage(), getattr(r, "facts", {})) for r in self._caplog.records]
        return [(line, facts) for line, facts in found if facts.get("path") == path]

    def last(self, count: int = 1) -> tuple[str, dict[str, Any]]:
        wait_for(lambda: len(self.of()) >= count)
        return self.of()[-1]


@pytest.mark.parametrize("body", [{"n": 2}, {"prompt": ["a", "bcd"]}, {"echo": True}])
@pytest.mark.parametrize("stream", [True, False])
def test_tokens_and_time(
    server: Running, caplog: pytest.LogCaptureFixture, body: dict[str, Any], stream: bool
) -> None:
    lines = Lines(caplog)
    asked: dict[str, Any] = {"prompt": "abc", "max_tokens": 7, **body}
    if stream:
        options = {"include_usage": True}
        usage = server.events("/v1/completions", **asked, stream_options=options)[-1]["usage"]
    else:
        usage = server.good("/v1/completions", **asked)["usage"]
    line, facts = lines.last()
    assert facts["prompt_tokens"] == usage["prompt_tokens"] > 0
    assert facts["completion_tokens"] == usage["completion_tokens"] > 0
    assert f" {usage['prompt_tokens']} + {usage['completion_tokens']} tokens " in line
    assert facts["status"] == 200 and "lost" not in facts and 0 < facts["seconds"] < 60


def test_no_token_was_asked_for(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines(caplog)
    whole = server.good("/v1/completions", prompt="abc", max_tokens=0, echo=True)
    assert lines.last()[1]["completion_tokens"] == whole["usage"]["completion_tokens"] == 0


@pytest.mark.parametrize("stream", [True, False])
def test_who_leaves_ends_the_answer(
    server: Running, caplog: pytest.LogCaptureFixture, stream: bool
) -> None:
    def gone() -> float:
        return server.number("foresay_refused_total", status="499")

    lines, before, scheduler = Lines(caplog), gone(), server.llm.engine.scheduler
    with raw_request(server, {**LONG, "stream": stream, "n": 2}) as client:
        # More than are asserted: those of the last step may not have been told yet.
        wait_for(lambda: [r.stats.tokens > 29 for r in list(scheduler.running)] == [True] * 2)
        if stream:
            assert b"200 OK" in client.recv(100)
    line, facts = lines.last()
    assert facts["status"] == 499 and facts["lost"] == "client left"
    assert " 499 " in line and " client left " in line
    assert facts["prompt_tokens"] == len("abc")
    assert 18 < facts["completion_tokens"] < 8000
    assert gone() == before + 1
    server.idle(5)
    assert scheduler.pages.total - scheduler.pages.free == scheduler.prefixes.held
    server.good("/v1/completions", prompt="a", max_tokens=1)


def test_who_does_not_read_is_cut_off(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines(caplog)
    wide = {**LONG, "stream": True, "logprobs": 20, "stream_granularity": "token"}
    with raw_request(server, wide, receive=4096) as client:
        wait_for(lambda: len(server.llm.engine.scheduler.running) == 1)
        assert server.server._routes.driver.under_way == 1
        server.idle(60)  # long before 4000 tokens could have been read
        line, facts = lines.last()
        assert facts["status"] == 499 and " client too slow " in line, line
        assert 40 <= facts["completion_tokens"] < 4000, line
        assert 0 < len(to_the_end(client)) < 4 << 20
    wait_for(lambda: not server.server.server_state.tasks)


def test_a_client_that_left_before_its_body_had_come(
    server: Running, caplog: pytest.LogCaptureFixture
) -> None:
    lines = Lines(caplog)
    client = raw_request(server, LONG, least=5)
    client.close()
    line, facts = lines.last()
    assert facts["status"] == 499 and " client left " in line and "tokens" not in line


def test_other_requests_have_no_tokens(server: Running, caplog: pytest.LogCaptureFixture) -> None:
    lines = Lines(caplog)
    server.http.get("/live")
    wait_for(lambda: bool(lines.of("/live")))
    line, facts = lines.of("/live")[0]
    assert "tokens" not in line and "prompt_tokens" not in facts
