"""Every drafter that the server can have keeps what tenants are promised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foresay import Verdict
from foresay.cli.serve import _drafter
from foresay.drafters.lineup import make_drafter
from foresay.drafters.merge import MergeDrafter
from foresay.drafters.ngram import NgramDrafter
from foresay.engine.llm import LLM
from foresay.serve.start import tenant_room
from serve.running import MEMORY, running
from tiny import one_thread

BYTES = 1 << 20


def write(drafter: Any, tenant: str, answers: int) -> None:
    dice = np.random.default_rng(len(tenant))
    for _ in range(answers):
        state = drafter.begin(np.arange(8, dtype=np.int32), tenant=tenant)
        drafter.observe([state], [Verdict([], dice.integers(0, 1000, 200).tolist())])
        drafter.finish(state)


@pytest.mark.parametrize("name", ["suffix", "sam", "merge"])
def test_nobody_pushes_anothers_history_out(name: str) -> None:
    drafter = _drafter(name, None, 3, BYTES)
    write(drafter, "quiet", 2)
    kept = drafter.bytes_of("quiet")
    for tenant in ("loud", "louder"):
        write(drafter, tenant, 400)
        assert kept < drafter.bytes_of(tenant) < 2 * BYTES
    assert drafter.bytes_of("quiet") == kept > 0
    assert 2 * kept < drafter.bytes_used() < 2 * 3 * BYTES
    # Without the bounds there is no end to it.
    free: Any = make_drafter(name, share="all")
    write(free, "loud", 400)
    assert free.bytes_of("loud") > 4 * BYTES
    # With too little room for all, the quiet one loses.
    narrow: Any = make_drafter(name, share="all", room=tenant_room(1, BYTES))
    for tenant in ("quiet", "loud", "louder"):
        write(narrow, tenant, 2 if tenant == "quiet" else 400)
    assert narrow.bytes_of("quiet") == 0


def test_a_merge_tells_what_its_drafters_hold() -> None:
    merge: Any = make_drafter("merge", share="all")
    state = merge.begin(np.arange(100, dtype=np.int32), tenant="one")
    parts: Any = merge.drafters
    assert [part.bytes_used() > 0 for part in parts] == [True, True]
    assert merge.bytes_used() == sum(part.bytes_used() for part in parts)
    assert merge.bytes_of("one") == parts[0].bytes_of("one") > merge.bytes_of("two") == 0
    merge.finish(state)
    silent: Any = NgramDrafter()
    methods = dict.fromkeys(("begin", "propose", "observe", "finish"), lambda *_, **__: None)
    quiet = type("Quiet", (), {"wants": silent.wants, **methods})()
    both = MergeDrafter(silent, quiet)
    both.begin(np.arange(100, dtype=np.int32))
    assert both.bytes_used() == silent.bytes_used() > both.bytes_of(None) == 0
    assert both.tokens_held() == 100


def test_a_served_merge_tells_its_bytes(folder: Path) -> None:
    drafter = _drafter("merge", None, 1, BYTES)
    llm = LLM(folder, drafter, dtype="float32", memory=MEMORY, policy="fixed", with_sources=True)
    with one_thread(), running(llm, drafter) as server:
        server.good("/v1/completions", prompt="ab" * 30, temperature=0, max_tokens=20)
        lines = server.http.get("/metrics").text.splitlines()
        (line,) = [one for one in lines if one.startswith("foresay_suffix_cache_bytes{")]
        assert float(line.rpartition(" ")[2]) > 0
        assert server.http.get("/v1/spec/stats").json()["drafter_bytes"] > 0
