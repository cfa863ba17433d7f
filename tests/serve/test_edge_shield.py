"""A server's shield also covers edge streams; the text stays the same."""

from __future__ import annotations

import asyncio
from pathlib import Path
from time import monotonic

import pytest

from edge.asking import answered
from foresay.edge.ids import unpack
from foresay.edge.messages import MAX_PAD, Commit, Message
from foresay.engine.llm import LLM
from foresay.serve.edge.connection import _Line
from foresay.serve.limits import Limits
from foresay.serve.shield import Shield
from serve.edge_client import (
    Text,
    agreed,
    begun,
    cloud,
    edge_server,
    follow,
    nothing_left,
    opened,
    opening,
    right,
    wanted,
)

LIMITS = Limits(draft_seconds=0.02, edge_seconds=0.5)


@pytest.mark.parametrize("as_json", [False, True])
async def test_pad_every_and_hide(folder: Path, plain: LLM, as_json: bool) -> None:
    shield = Shield(pad=512, every=0.2, hide=True)
    with edge_server(folder, shield=shield, limits=LIMITS) as server:
        asked = opening(server, "ab ab ab", max_tokens=30, temperature=0.0, ignore_eos=True)
        answer = wanted(plain, asked)
        times: list[float] = []
        async with cloud(server, as_json=as_json) as line:
            text = await opened(line, asked)
            for one in right(answer)(text):
                await line.send(one)
            while not text.finish:
                message = await line.receive()
                assert isinstance(message, Commit)
                times.append(monotonic())
                text.take(message)
                for one in right(answer)(text):
                    await line.send(one)
        assert text.ids == answer
        assert all(size % 512 == 0 for size in line.sizes)
        assert all(commit.accepted == commit.server_us == 0 for commit in text.commits)
        assert any(commit.seq for commit in text.commits)
        assert len(times) <= 2 + (times[-1] - times[0]) / 0.2
        nothing_left(server)


def test_commits_come_also_without_new_tokens(folder: Path) -> None:
    limits = Limits(draft_seconds=5.0, edge_seconds=0.5)
    with edge_server(folder, shield=Shield(every=0.05), limits=limits) as server:

        async def run() -> Text:
            async with cloud(server) as line:
                asked = opening(server, "abc", max_tokens=30, wait="block", ignore_eos=True)
                text = await opened(line, asked)
                while len(text.commits) < 8:
                    message = await line.receive()
                    assert isinstance(message, Commit)
                    text.take(message)
                return text

        commits = asyncio.run(run()).commits
        assert sum(not commit.tokens for commit in commits) >= 4
        nothing_left(server)


def test_the_larger_pad_counts(folder: Path, plain: LLM) -> None:
    for own, pad, expected in ((64, 512, 512), (1024, 512, 1024), (0, 1 << 16, MAX_PAD)):
        with edge_server(folder, shield=Shield(pad=pad), limits=LIMITS) as server:
            asked = opening(server, "abc", seed=2, max_tokens=8, pad=own)
            _, line = asyncio.run(agreed(server, plain, asked))
            assert all(size % expected == 0 for size in line.sizes)

            async def refused() -> list[int]:
                async with cloud(server) as line:
                    await line.socket.send(b"rubbish")
                    await line.error()
                    return line.sizes

            assert asyncio.run(refused())[0] % min(pad, MAX_PAD) == 0


def test_coalesced_commits(folder: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also of tokens that come while a commit is sent."""
    send = _Line.send

    async def slowly(line: _Line, message: Message) -> None:
        await send(line, message)
        await asyncio.sleep(0.02)

    monkeypatch.setattr(_Line, "send", slowly)
    with edge_server(folder, shield=Shield(coalesce=8), limits=LIMITS) as server:
        asked = opening(server, "abc", seed=2, max_tokens=30, ignore_eos=True)
        text, _ = asyncio.run(agreed(server, plain, asked, lambda answer: right(answer, 2)))
        counts = [len(unpack(one.tokens, text.vocabulary)) for one in text.commits]
        assert len(counts) >= 2 and all(count >= 8 for count in counts[:-1])


async def test_a_resumed_stream_is_answered_at_once(folder: Path, plain: LLM) -> None:
    with edge_server(folder, shield=Shield(every=1.0), limits=LIMITS) as server:
        asked = opening(server, "abc", seed=2, max_tokens=30, ignore_eos=True)
        text = await begun(server, asked, until=1)
        async with cloud(server) as line:
            await line.send(text.resume())
            start = monotonic()
            message = await line.receive()
            took = monotonic() - start
            assert isinstance(message, Commit)
            text.take(message)
            if not text.finish:
                await follow(line, text)
        assert text.ids == wanted(plain, asked) and took < 0.9


def test_the_client_copes(folder: Path, plain: LLM) -> None:
    shield = Shield(pad=512, every=0.05, hide=True)
    with edge_server(folder, shield=shield, limits=LIMITS) as server:
        asked = opening(server, "ab ab ab ab", seed=2, max_tokens=40, temperature=0.0)
        prompt = unpack(asked.prompt, asked.vocabulary)
        found = asyncio.run(answered(server.url, asked.vocabulary, prompt, asked.params()))
        assert list(found.tokens) == wanted(plain, asked)
        assert found.statistics.drafter_error is None
        nothing_left(server)
