"""How the ways of `foresay bench edge` are run: servers, links, clients and turns, with fakes."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import foresay.bench.cloud as clouds
import foresay.bench.edge_runs as runs
from foresay.bench.edge import BASELINES, CLOUD, WAYS
from foresay.bench.edge_runs import EdgeSetup, run_edge
from foresay.bench.edge_table import EdgeTable
from foresay.bench.proxy import EmulatedLink, link_of
from foresay.bench.questions import Question
from foresay.edge.client import Answer
from foresay.edge.link import Round
from foresay.edge.statistics import StreamStatistics
from foresay.models.tokenizer import Tokenizer
from foresay.sampling.params import SamplingParams
from tiny import save_model

LINKS = (EmulatedLink(), EmulatedLink(0.02, 0.001, 0.01, 1e6, 5))
EDGE = [way for way in WAYS if way not in (*BASELINES, "edge-only")]
QUESTIONS = [Question(f"q{n}", "any", ("text",), SamplingParams(max_tokens=4)) for n in range(7)]


@dataclass
class World:
    """What was started and asked, in order; a key is TENANT@SERVER."""

    options: list[tuple[str, ...]] = field(default_factory=list)
    tenants: list[list[str]] = field(default_factory=list)
    links: list[tuple[int, EmulatedLink]] = field(default_factory=list)
    clients: list[dict[str, Any]] = field(default_factory=list)
    asked: list[dict[str, Any]] = field(default_factory=list)
    closed: int = 0
    during: Any = None

    def counted(self, way: str) -> list[dict[str, Any]]:
        """The settings of a way's clients at each round-trip time, without those that warm up."""
        return [one for one in self.clients if one["api_key"].rpartition("-")[0] == way]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """Servers 0 and 1 at the ports 0 and 1; a link to a port has it in its address."""
    seen = World()

    @contextmanager
    def cloud(model: str, tenants: list[str], *options: str, memory_mb: int) -> Iterator[Any]:
        number = len(seen.options)
        seen.options.append(options)
        seen.tenants.append(tenants)

        @contextmanager
        def watching_memory() -> Iterator[dict[str, float]]:
            yield {"kv_share": 0.5}

        yield SimpleNamespace(
            port=number,
            pid=None,
            vocabulary=256,
            keys={tenant: f"{tenant}@{number}" for tenant in tenants},
            encode=lambda text: [1, 2, 3],
            metrics=dict,
            watching_memory=watching_memory,
        )

    @contextmanager
    def link_process(port: int, link: EmulatedLink) -> Iterator[Any]:
        seen.links.append((port, link))
        yield SimpleNamespace(url=f"http://{port}", counts=lambda: (0, 0))

    class Client:
        def __init__(self, url: str, **given: Any) -> None:
            self._given = {"url": url, **given}
            seen.clients.append(self._given)

        async def stream(self) -> AsyncIterator[None]:
            if seen.during is not None:
                asyncio.get_running_loop().call_soon(seen.during)
                await asyncio.Event().wait()
            yield

        async def answer(self, prompt: object, params: object) -> Answer:
            seen.asked.append(self._given)
            async for _ in self.stream():
                pass
            return Answer((1, 2), (), "length", StreamStatistics(ttft=0.1, seconds=1.0))

        def close(self) -> None:
            seen.closed += 1

    for name, fake in (("cloud", cloud), ("link_process", link_process), ("EdgeClient", Client)):
        monkeypatch.setattr(runs, name, fake)
    monkeypatch.setattr(runs, "check_setup", lambda *_: None)
    return seen


def setup(ways: list[str] | None = None, **more: Any) -> EdgeSetup:
    usual = {"corpus": Path("a.idx"), "cloud_drafter": "ngram", "drafter": "sam"}
    return EdgeSetup(ways or [CLOUD, "cloud-drafts", *EDGE], LINKS, "tiny", **{**usual, **more})


def whole(given: EdgeSetup) -> EdgeTable:
    *_, table = run_edge(given, QUESTIONS)
    return table


def test_only_cloud_runs_without_drafts(world: World) -> None:
    whole(setup())
    assert world.options == [
        ("--device", "auto", "--drafter", "none"),
        ("--device", "auto", "--drafter", "ngram", "--policy", "adaptive"),
    ]
    for way in (CLOUD, "cloud-drafts", *EDGE):
        server = 0 if way == CLOUD else 1
        assert len(world.counted(way)) == len(LINKS)
        for client in world.counted(way):
            assert client["api_key"].endswith(f"@{server}") and client["url"] == f"http://{server}"


def test_cloud_alone_needs_one_server(world: World) -> None:
    whole(setup([CLOUD]))
    assert world.options == [("--device", "auto", "--drafter", "none")]


def test_what_each_way_is(world: World) -> None:
    whole(setup())
    found = {
        way: [(c["wait"], c["ahead"], c["drafter"], c["corpus"]) for c in world.counted(way)]
        for way in EDGE
    }
    file = Path("a.idx")
    assert found == {
        "blocking": [("block", False, "sam", file)] * 2,
        "ahead": [("adaptive", True, "sam", file)] * 2,
        "ahead-block": [("block", True, "sam", file)] * 2,
        "free-run": [("free-run", True, "sam", file)] * 2,
    }
    for client in (c for way in BASELINES for c in world.counted(way)):
        assert client["drafter"] is None and client["corpus"] is None


def test_a_gate_is_of_the_edge_alone(world: World, tmp_path: Path) -> None:
    whole(setup())
    assert not any("gate" in client for client in world.clients)
    world.clients.clear()
    folder = save_model(tmp_path)
    decode = Tokenizer(folder).decode
    whole(replace(setup(corpus=None, gate=True), model=str(folder)))
    for way in EDGE:
        for client in world.counted(way):
            assert client["gate"].rules is not None and client["decode"]([72]) == decode([72])
    assert not any("gate" in client for way in BASELINES for client in world.counted(way))


def test_a_line_of_the_log_has_every_value_of_a_round() -> None:
    """By hand: 4 tokens of which 1 was accepted, so 2 were examined; then 2 of 2."""
    first = Round(4, 1, rtt=0.02, draft=0.001, verify=0.01, bytes_up=40, bytes_down=20, hard=3)
    lines = list(runs._lines([first, Round(2, 2)]))
    assert lines[0] == {
        "round": 1,
        "k": 4,
        "accepted_len": 1,
        "la_over_k": 0.25,
        "alpha_mean": 0.5,
        "A_cum": 0.25,
        "edge_time_ms": 1.0,
        "cloud_ms": 10.0,
        "rtt_ms": 20.0,
        "bytes_up": 40,
        "bytes_down": 20,
        "hard_ratio": 0.75,
    }
    assert (lines[1]["alpha_mean"], lines[1]["A_cum"], lines[1]["hard_ratio"]) == (1.0, 0.5, None)


def test_every_way_at_every_round_trip_time_is_a_tenant_of_its_own(world: World) -> None:
    whole(setup())
    keys = {client["api_key"] for client in world.asked}
    counted = [key for key in keys if not key.startswith("warm@")]
    assert len(counted) == 6 * len(LINKS)
    assert all(len(set(tenants)) == len(tenants) == 13 for tenants in world.tenants)


def test_every_server_has_a_link_for_every_round_trip_time(world: World) -> None:
    whole(setup())
    counted = world.links[-4:]  # before them the ways warm up
    assert sorted(counted, key=repr) == sorted(((p, k) for p in (0, 1) for k in LINKS), key=repr)
    assert all(link == EmulatedLink() for _, link in world.links[:-4])


def test_who_begins_changes(world: World) -> None:
    table = whole(setup())
    names = [client["api_key"].rpartition("-")[0] for client in world.asked[6:]]
    turns = [names[at : at + 6] for at in range(0, len(names), 6)]
    assert all(sorted(turn) == sorted(turns[0]) for turn in turns)
    first = [turn[0] for turn in turns]
    ways = [CLOUD, "cloud-drafts", *EDGE]
    assert first == 2 * [*ways, CLOUD]  # seven questions, two round-trip times
    assert [row.way for row in table.rows] == 2 * ways
    assert all(len(row.answers) == len(QUESTIONS) for row in table.rows)
    assert world.closed == len(world.clients)


def test_a_link_reaches_its_process_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[tuple[str, ...]] = []

    @contextmanager
    def child(*command: str) -> Iterator[Any]:
        started.append(command)
        yield SimpleNamespace(ready={"port": 1})

    monkeypatch.setattr(clouds, "child", child)
    for link in LINKS:
        with clouds.link_process(77, link):
            pass
        assert started[-1][:2] == ("-m", "foresay.bench.proxy")
        assert link_of(started[-1][2:]) == (77, link)


def test_an_interrupt_while_a_stream_runs_says_nothing(
    world: World, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    running = run_edge(setup(), QUESTIONS)
    first = next(running)
    world.during = lambda: signal.raise_signal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt):
        next(running)
    assert [len(row.answers) for row in first.rows] == [1] * 6
    assert world.closed == len(world.clients)
    assert not caplog.records and not capfd.readouterr().err
