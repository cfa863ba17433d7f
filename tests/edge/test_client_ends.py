"""Streams that the cloud ends before their answer does."""

from __future__ import annotations

import asyncio
import re

import pytest

from edge.test_client import COUNT, PROMPT, SEED, answer, client, params
from edge.toy_cloud import plain, toy_cloud
from foresay.edge.wire import Close, Open
from foresay.errors import StreamError


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("cancels", [[20], [1, 40], [40, 10]])
def test_a_cancelled_stream_is_opened_again(cancels: list[int], temperature: float) -> None:
    """Also when the next one is cancelled before it is where the first one was."""

    async def run() -> None:
        async with toy_cloud(cancels=list(cancels)) as cloud:
            found = await answer(cloud, temperature)
        assert found.statistics.reopens == len(cancels)
        assert [m.seed for m in cloud.heard if isinstance(m, Open)] == [SEED] * (1 + len(cancels))
        assert isinstance(cloud.heard[-1], Close) and not cloud.kept

    asyncio.run(run())


def test_a_stream_that_is_always_cancelled_is_an_error() -> None:
    """The text that is known comes again each time: that is no progress."""

    async def run() -> None:
        seen: list[int] = []
        async with toy_cloud(cancels=[10] * 100) as cloud:
            asked = client(cloud, retry_seconds=0.5, drafter=None)
            with pytest.raises(StreamError, match="cancelled the answer") as caught:
                async for piece in asked.stream(PROMPT, params(), seed=SEED):
                    assert not piece.finish
                    seen += piece.tokens
            asked.close()
        assert caught.value.code == "cancelled"
        assert f"no progress for 0.5 s. {len(seen)} tokens are committed" in str(caught.value)
        assert f"seed {SEED} for the same text" in str(caught.value)
        assert seen == plain(PROMPT, len(seen), 0.0, SEED) and 10 <= len(seen) < COUNT

    asyncio.run(run())


def test_a_cloud_that_forgets_every_stream_is_an_error() -> None:
    """Each time it gives the text that is known again, and then closes the connection."""

    async def run() -> None:
        async with toy_cloud(drops=[10] * 1000, forgets=1000) as cloud:
            asked = client(cloud, retry_seconds=0.5, drafter=None)
            with pytest.raises(StreamError, match="has forgotten the stream") as caught:
                await asked.answer(PROMPT, params(), seed=SEED)
            asked.close()
        assert caught.value.code == "unknown_stream"
        # As many as were heard before the time was over, which on a busy machine may be one less.
        said = rf"no progress for 0\.5 s\. (9|10) tokens are committed: ask again with seed {SEED}"
        assert re.search(said, str(caught.value))

    asyncio.run(run())


def test_an_answer_that_fails_in_the_cloud_is_an_error() -> None:
    async def run() -> None:
        async with toy_cloud(fails=5) as cloud:
            asked = client(cloud, drafter=None)
            with pytest.raises(StreamError) as caught:
                await asked.answer(PROMPT, params(), seed=SEED)
            asked.close()
        assert caught.value.code == "internal"
        assert str(caught.value) == (
            "the cloud failed while it answered; its log says why. 5 tokens are committed: ask "
            f"again with seed {SEED} for the same text"
        )

    asyncio.run(run())
