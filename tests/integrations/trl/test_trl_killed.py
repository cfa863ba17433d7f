"""GRPO in two processes, one of which is killed in a rollout: the other ends too, soon and with an
error; and the run can be begun again."""

from __future__ import annotations

import json
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lives import Nursery, survivors

pytestmark = pytest.mark.slow

RANKS = 2
SECONDS = 60.0  # until the other has ended; without an end torch would wait for half an hour


@pytest.fixture(scope="module")
def nursery() -> Iterator[Nursery]:
    with Nursery("integrations.trl.dying", TRL_EXPERIMENTAL_SILENCE="1") as made:
        yield made


def trained(nursery: Nursery, folder: Path, **given: Any) -> list[int | None]:
    """How the two ended. `killed` is the one that dies, in its 20th step of the engine."""
    folder.mkdir()
    killed = given.pop("killed", None)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    lives = []
    for rank in range(RANKS):
        environ = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(RANKS),
            "LOCAL_WORLD_SIZE": str(RANKS),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        step = 20 if rank == killed else 0
        log = folder / f"rank-{rank}.log"
        shared = {"folder": str(folder), "step": step, **given}
        lives.append(nursery.begin("rank", log, environ=environ, **shared))
    ends = [nursery.end(life, SECONDS) for life in lives]
    assert not any(survivors(life) for life in lives)
    return ends


def outcome(folder: Path) -> list[Any]:
    return [json.loads((folder / f"rank-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.parametrize("how", ["function", "mixin"])
def test_one_of_two_is_killed(nursery: Nursery, tmp_path: Path, how: str) -> None:
    plain = tmp_path / "plain"
    assert trained(nursery, plain, how=how, drafts=False) == [0, 0], said(plain)
    expected = outcome(plain)
    texts = [rank["texts"] for rank in expected]
    assert texts[0] != texts[1] and expected[0]["weights"] == expected[1]["weights"]
    assert len(expected[0]["losses"]) == 2

    for killed in range(RANKS):  # the first is also the one by which they find each other
        folder, other = tmp_path / f"killed {killed}", 1 - killed
        began = time.monotonic()
        ends = trained(nursery, folder, how=how, killed=killed)
        assert ends[killed] == -signal.SIGKILL and ends[other] == 1, (ends, said(folder))
        assert time.monotonic() - began < SECONDS
        assert "by peer" in (folder / f"rank-{other}.log").read_text()
        assert not list(folder.glob("*.json"))

    again = tmp_path / "again"
    assert trained(nursery, again, how=how) == [0, 0], said(again)
    assert outcome(again) == expected


def said(folder: Path) -> str:
    return "\n".join(log.read_text()[-3000:] for log in sorted(folder.glob("*.log")))
