"""The client against a small cloud: whatever happens, the text is that of the plain loop."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from doubles import Scripted
from edge.asking import answered
from edge.toy_cloud import VOCABULARY, ToyCloud, plain, toy_cloud
from foresay.drafter import Source
from foresay.edge.client import Answer, EdgeClient
from foresay.edge.gating import Gate, Thresholds
from foresay.edge.link import AcceptanceRule, Round
from foresay.edge.messages import Close, DraftMessage, Message, Open, Resume
from foresay.edge.stream import Stream
from foresay.edge.text_rules import Rules
from foresay.errors import StreamError
from foresay.sampling.params import SamplingParams
from pairs import pairs

PROMPT = [1, 2, 3, 1, 2, 3, 1, 2]
COUNT = 60
SEED = 5


def params(temperature: float = 0.0, **other: Any) -> SamplingParams:
    return SamplingParams(max_tokens=COUNT, temperature=temperature, **other)


def client(cloud: ToyCloud, **options: Any) -> EdgeClient:
    return EdgeClient(cloud.url, vocabulary=VOCABULARY, **options)


async def answer(cloud: ToyCloud, temperature: float = 0.0, **options: Any) -> Answer:
    found = await answered(
        cloud.url, VOCABULARY, PROMPT, params(temperature), seed=SEED, seconds=20, **options
    )
    assert list(found.tokens) == plain(PROMPT, COUNT, temperature, SEED)
    assert found.finish == "length"
    assert len(found.sources) == found.statistics.tokens == COUNT
    assert found.statistics.drafter_error is None
    return found


WAYS: dict[str, dict[str, Any]] = {
    "ahead": {},
    "blocking": {"ahead": False},
    "tree": {"tree": True},
    "padded": {"pad": 128},
    "acceptance rule": {"rule": AcceptanceRule()},
    "gate": {"gate": Gate(Thresholds(nll=0.5))},
    "no drafter": {"drafter": None},
    "ngram": {"drafter": "ngram"},
    "two": {"drafter": "suffix+ngram"},
}


@pytest.mark.parametrize(
    ("way", "temperature", "wait"), pairs(WAYS, (0.0, 0.8), ("block", "free-run"))
)
async def test_the_text_is_that_of_the_plain_loop(way: str, temperature: float, wait: str) -> None:
    async with toy_cloud(wait=wait) as cloud:
        found = await answer(cloud, temperature, **WAYS[way])
    counted = found.statistics
    assert counted.accepted + counted.wasted == counted.sent
    if way == "no drafter":
        assert counted.sent == 0
    elif not temperature and wait == "block":
        assert counted.accepted > 10
        assert sum(source != Source.MODEL for source in found.sources) == counted.accepted
    assert cloud.ignored == 0
    assert isinstance(cloud.heard[-1], Close) and not cloud.kept


FAULTS: dict[str, dict[str, Any]] = {
    "dropped": {"drops": [10, 30, 50]},
    "dropped before the first token": {"drops": [1]},
    "dropped at the end": {"drops": [60]},
    "restarted": {"drops": [20, 40], "forgets": 2},
    "restarted once, dropped again": {"drops": [40, 10, 50], "forgets": 1},
    "duplicates and late commits": {"twice": True},
    "garbage": {"garbage": [b"\xc1", b"", "{}", b"\x91\x04"]},
    "a gap": {"gap": 3},
    "busy": {"busy": 2},
    "all": {"drops": [15, 35], "forgets": 1, "twice": True, "garbage": [b"x"], "busy": 1},
}


@pytest.mark.parametrize(
    ("fault", "temperature", "ahead"), pairs(FAULTS, (0.0, 0.8), (True, False))
)
async def test_faults_do_not_change_the_text(fault: str, temperature: float, ahead: bool) -> None:
    given = FAULTS[fault]
    copied: dict[str, Any] = {k: list(v) if isinstance(v, list) else v for k, v in given.items()}
    async with toy_cloud(**copied) as cloud:
        found = await answer(cloud, temperature, ahead=ahead, retry_seconds=5)
    counted = found.statistics
    assert counted.reopens == given.get("forgets", 0) == cloud.forgotten
    if "garbage" in given:  # the cloud may notice late that it is not heard any more
        assert counted.resumes + counted.reopens >= 1
    else:
        lost = len(given.get("drops", ())) + ("gap" in given)
        assert counted.resumes == lost - given.get("forgets", 0)
        assert counted.connects == 1 + lost + given.get("busy", 0) + given.get("forgets", 0)
    opens = [m for m in cloud.heard if isinstance(m, Open)]
    assert {m.seed for m in opens} == {SEED}


async def test_the_seed_that_the_cloud_drew_is_used_again() -> None:
    async with toy_cloud(drops=[20], forgets=1) as cloud:
        found = await client(cloud).answer(PROMPT, params(0.8))
    assert list(found.tokens) == plain(PROMPT, COUNT, 0.8, 77)
    assert [m.seed for m in cloud.heard if isinstance(m, Open)] == [None, 77]
    assert found.statistics.seed == 77 and found.statistics.reopens == 1


async def test_another_text_after_a_restart_is_an_error() -> None:
    async with toy_cloud(drops=[20], forgets=1, lies=True) as cloud:
        asked = client(cloud)
        seen: list[int] = []
        with pytest.raises(StreamError, match="had committed") as caught:
            async for piece in asked.stream(PROMPT, params(0.8), seed=SEED):
                seen += piece.tokens
    assert caught.value.code == "contradiction"
    assert seen == plain(PROMPT, len(seen), 0.8, SEED)


async def test_known_text_is_drafted_after_a_restart() -> None:
    """So the cloud catches up in few steps, without a drafter's luck."""
    async with toy_cloud(drops=[50], forgets=1) as cloud:
        await answer(cloud, 0.8)
    (kept,) = [m for m in cloud.heard if isinstance(m, Resume)]
    at = cloud.heard.index(kept)
    drafts = [m for m in cloud.heard[at:] if isinstance(m, DraftMessage)]
    assert drafts[0].seq == 1 and drafts[0].base == len(PROMPT)
    early = [m for m in drafts if m.base < len(PROMPT) + 40]
    assert 0 < len(early) <= 40


async def test_refused_at_first_is_told_at_once() -> None:
    async with toy_cloud() as cloud:
        url = cloud.url
    began = asyncio.get_running_loop().time()
    with pytest.raises(StreamError, match="connection refused; expected a server") as caught:
        await answered(url, VOCABULARY, PROMPT, params())
    assert caught.value.code == "unreachable"
    assert asyncio.get_running_loop().time() - began < 2


async def test_gone_for_too_long_is_an_error_that_says_what_to_do() -> None:
    seen: list[int] = []
    async with toy_cloud(step=0.005) as cloud:
        asked = client(cloud, retry_seconds=0.5, drafter=None)
        pieces = asked.stream(PROMPT, params(), seed=SEED)
        seen += (await anext(pieces)).tokens
    with pytest.raises(StreamError, match=rf"no progress for 0\.5 s.*with seed {SEED} "):
        async for piece in pieces:
            seen += piece.tokens
    assert seen == plain(PROMPT, len(seen), 0.0, SEED) and len(seen) < COUNT


async def test_a_server_that_comes_back() -> None:
    """At the same address, with nothing remembered: the answer is completed there."""
    async with toy_cloud(step=0.005) as cloud:
        asked = client(cloud, retry_seconds=10)
        pieces = asked.stream(PROMPT, params(0.8), seed=SEED)
        seen = list((await anext(pieces)).tokens)
    await asyncio.sleep(0.2)
    async with toy_cloud(port=int(cloud.url.rpartition(":")[2])):
        async for piece in pieces:
            seen += piece.tokens
            counted = piece.statistics
    assert seen == plain(PROMPT, COUNT, 0.8, SEED)
    assert counted is not None and counted.reopens == 1 and counted.retries > 0


def test_who_stops_early_closes_the_stream() -> None:
    async def run() -> None:
        async with toy_cloud(step=0.005) as cloud:
            pieces = client(cloud).stream(PROMPT, params(), seed=SEED)
            await anext(pieces)
            await pieces.aclose()
            for _ in range(500):
                if isinstance(cloud.heard[-1], Close):
                    return
                await asyncio.sleep(0.01)
        raise AssertionError(f"the last message is {cloud.heard[-1]!r}, not CLOSE")

    asyncio.run(run())


async def test_a_slow_cloud_is_lost_and_found() -> None:
    async with toy_cloud(step=0.0) as cloud:
        cloud.step, few = 0.12, SamplingParams(max_tokens=6, temperature=0.0)
        waits = {"silent_seconds": 0.05, "retry_seconds": 5}
        found = await answered(cloud.url, VOCABULARY, PROMPT, few, seed=SEED, **waits)
    assert list(found.tokens) == plain(PROMPT, 6, 0.0, SEED)
    assert found.statistics.resumes > 0


def test_statistics_and_rounds() -> None:
    rounds: list[Round] = []

    async def run() -> Answer:
        async with toy_cloud() as cloud:
            found = await answer(cloud, on_round=rounds.append, api_key="k")
            assert cloud.keys == ["Bearer k"]
            return found

    counted = asyncio.run(run()).statistics
    assert counted.rounds == len(rounds) > 0
    assert sum(done.accepted for done in rounds) <= counted.accepted
    assert counted.rtt is not None and 0 <= counted.rtt < 1
    assert counted.ttft is not None and 0 < counted.ttft < counted.seconds
    assert counted.wire_up > counted.bytes_up > 0 and counted.wire_down > counted.bytes_down > 0
    assert counted.examined[0] == counted.rounds
    assert "rtts" not in counted.as_dict() and counted.as_dict()["rtt"] == counted.rtt


@pytest.mark.parametrize("faults", [{}, {"drops": [10, 20, 30, 40, 50]}])
@pytest.mark.parametrize("drafter", [Scripted({}), "suffix"])
async def test_drafts_that_are_over_are_forgotten(
    monkeypatch: pytest.MonkeyPatch, drafter: Any, faults: dict[str, Any]
) -> None:
    """Empty ones, lost ones and decided ones."""
    remembered: list[int] = []

    class Watched(Stream):
        def _heard(self, message: Message, size: int) -> str:
            found = super()._heard(message, size)
            remembered.append(len({*self._sent_at, *(one.seq for one in self.text._flights)}))
            return found

    monkeypatch.setattr("foresay.edge.client.Stream", Watched)
    async with toy_cloud(**faults) as cloud:
        await answer(cloud, drafter=drafter, ahead=False, retry_seconds=5)
        sent = [message for message in cloud.heard if isinstance(message, DraftMessage)]
    assert len(sent) > COUNT / 8  # a busy machine drafts too late for some
    assert drafter == "suffix" or not any(message.tokens for message in sent)
    assert max(remembered) <= 4


async def test_the_gate_reads_text() -> None:
    async with toy_cloud() as cloud:
        gate, rounds = Gate(Thresholds(hard_ratio=1.0), Rules()), list[Round]()
        found = await answer(
            cloud,
            gate=gate,
            decode=lambda ids: "".join(f"{i} " for i in ids),
            on_round=rounds.append,
        )
    assert found.statistics.hard_ratio == 1.0  # every token is a number
    assert rounds and all(done.hard == done.sent for done in rounds)


# -- streams that the cloud ends before their answer does --------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("cancels", [[20], [1, 40], [40, 10]])
async def test_a_cancelled_stream_is_opened_again(cancels: list[int], temperature: float) -> None:
    """Also when the next one is cancelled before it is where the first one was."""
    async with toy_cloud(cancels=list(cancels)) as cloud:
        found = await answer(cloud, temperature)
    assert found.statistics.reopens == len(cancels)
    assert [m.seed for m in cloud.heard if isinstance(m, Open)] == [SEED] * (1 + len(cancels))
    assert isinstance(cloud.heard[-1], Close) and not cloud.kept


async def test_a_stream_that_is_always_cancelled_is_an_error() -> None:
    """The text that is known comes again each time: that is no progress."""
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


async def test_a_cloud_that_forgets_every_stream_is_an_error() -> None:
    """Each time it gives the text that is known again, and then closes the connection."""
    async with toy_cloud(drops=[10] * 1000, forgets=1000) as cloud:
        with pytest.raises(StreamError, match="has forgotten the stream") as caught:
            await answer(cloud, retry_seconds=0.5, drafter=None)
    assert caught.value.code == "unknown_stream"
    assert "no progress for 0.5 s" in str(caught.value)
    assert f"tokens are committed: ask again with seed {SEED}" in str(caught.value)


async def test_an_answer_that_fails_in_the_cloud_is_an_error() -> None:
    async with toy_cloud(fails=5) as cloud:
        with pytest.raises(StreamError) as caught:
            await answer(cloud, drafter=None)
    assert caught.value.code == "internal"
    assert str(caught.value) == (
        "the cloud failed while it answered; its log says why. 5 tokens are committed: ask "
        f"again with seed {SEED} for the same text"
    )
