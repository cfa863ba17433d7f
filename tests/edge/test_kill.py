"""kill -9 of either side: the text goes on, and nothing of the dead one stays."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import forks
from edge.asking import answered
from edge.chaos import Action, chaos
from foresay.bench.cloud import Cloud, cloud
from foresay.bench.proxy import Proxy
from foresay.edge.client import Answer
from foresay.engine.llm import LLM
from foresay.sampling.params import SamplingParams
from foresay.serve.limits import Limits
from serve.edge_client import edge_server, nothing_left
from serve.running import MEMORY, Running, wait_for
from tiny import one_thread, save_model

PROMPT = "the cat and the cat and"
TOKENS = 200
CLIENT = """
import asyncio, json, sys
from foresay.edge.client import EdgeClient
from foresay.sampling.params import SamplingParams

async def run(url, vocabulary, prompt, tokens):
    client = EdgeClient(url, vocabulary=vocabulary)
    params = SamplingParams(max_tokens=tokens, temperature=0.8, seed=3, ignore_eos=True)
    async for piece in client.stream(prompt, params):
        print(json.dumps(list(piece.tokens)), flush=True)

asyncio.run(run(*json.loads(sys.argv[1])))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(Path(tmp_path_factory.mktemp("killed")))


@pytest.fixture(scope="module")
def plain(folder: Path) -> Iterator[LLM]:
    with one_thread():
        yield LLM(folder, None, dtype="float32", memory=MEMORY)


def params(temperature: float) -> SamplingParams:
    return SamplingParams(max_tokens=TOKENS, temperature=temperature, seed=3, ignore_eos=True)


@pytest.mark.slow
@pytest.mark.parametrize(("temperature", "after"), [(0.0, 2), (0.8, 6), (0.8, 20)])
def test_the_server_dies_and_another_goes_on(
    folder: Path, plain: LLM, temperature: float, after: int
) -> None:
    """Commits pass until it is killed; the client opens the stream again with the same seed."""
    prompt = plain.encode(PROMPT)
    expected = plain.generate(prompt, params(temperature))[0].token_ids
    options = "--dtype", "float32"
    with ExitStack() as stack:
        first = stack.enter_context(cloud(str(folder), ["one"], *options, memory_mb=32))
        keys = first.keys
        second = stack.enter_context(cloud(str(folder), [], *options, memory_mb=32, keys=keys))
        answer = asyncio.run(_through_a_death(first, second, prompt, temperature, after))
        assert list(answer.tokens) == expected
        assert answer.statistics.reopens == 1 and answer.finish == "length"
        wait_for(lambda: second.metrics()["foresay_edge_streams"] == 0)
        assert second.metrics()["foresay_running"] == 0


async def _through_a_death(
    first: Cloud, second: Cloud, prompt: Any, temperature: float, after: int
) -> Answer:
    def kill() -> None:
        os.kill(first.pid, signal.SIGKILL)
        proxy.target = second.port

    carry = chaos([Action("kill", "down", after), Action("drop", "down")], kill=kill)
    proxy = Proxy(first.port, carry)
    async with proxy:
        how: dict[str, Any] = {"api_key": first.keys["one"], "retry_seconds": 20}
        return await answered(proxy.port, first.vocabulary, prompt, params(temperature), **how)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with edge_server(folder, limits=Limits(draft_seconds=0.05, edge_seconds=1.0)) as found:
        yield found


@pytest.mark.parametrize("pieces", [1, 10])
def test_the_client_dies_and_is_forgotten(server: Running, plain: LLM, pieces: int) -> None:
    """What it got is the beginning of the text, which another client gets whole."""
    prompt = plain.encode(PROMPT)
    asked = [server.url, plain.target.vocabulary, prompt.tolist(), 2000]
    got: list[int] = []
    with forks.start("-c", CLIENT, json.dumps(asked)) as process:
        assert process.stdout is not None
        for _ in range(pieces):
            got += json.loads(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        assert process.wait(10) == -signal.SIGKILL
    nothing_left(server, 15)
    scheduler = server.llm.engine.scheduler
    assert scheduler.pages.total - scheduler.pages.free == scheduler.prefixes.held
    expected = plain.generate(prompt, params(0.8))[0].token_ids
    count = min(len(got), TOKENS)
    assert got[:count] == expected[:count] and count > 0
    again = answered(server.url, plain.target.vocabulary, prompt, params(0.8))
    assert list(asyncio.run(again).tokens) == expected
