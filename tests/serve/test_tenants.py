"""Tenants share nothing: not a draft, not a prefix, not a number; with every drafter that the
server can have."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
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
from foresay.engine.request import PHASES
from foresay.serve.keys import Keys
from foresay.serve.limits import Limits
from foresay.serve.start import tenant_drafter, tenant_room
from serve.running import MEMORY, Running, bearer, running, served, wait_for
from tiny import one_thread

ONE, TWO, WATCH = "the-key-of-one", "the-key-of-two", "the-key-of-the-operator"
BYTES = 1 << 20


@pytest.fixture
def server(folder: Path) -> Iterator[Running]:
    keys = Keys.of([(ONE, "one"), (TWO, "two")])
    with served(folder, 2, ONE, keys=keys, limits=Limits(tenant_answers=4)) as found:
        yield found


def ask(server: Running, key: str, seed: int = 1) -> dict[str, Any]:
    body = {
        "prompt": "q" * 64,
        "max_tokens": 60,
        "seed": seed,
        "temperature": 1.0,
        "spec_details": True,
        "return_token_ids": True,
    }
    answer = server.post("/v1/completions", body, **bearer(key))
    assert answer.status_code == 200
    whole: dict[str, Any] = answer.json()
    return whole


def test_what_one_wrote_is_not_drafted_for_two(server: Running) -> None:
    """Two asks exactly what One has asked; the right drafts are all there, in One's history."""
    first = ask(server, ONE)["choices"][0]
    for _ in range(3):
        again = ask(server, ONE)["choices"][0]
    assert again["token_ids"] == first["token_ids"]
    assert "history" in again["foresay"]["sources"]  # so that the wall matters
    other = ask(server, TWO)["choices"][0]
    assert other["token_ids"] == first["token_ids"]  # the text is the same, as always
    assert other["foresay"] | {"step_seconds": 0} == first["foresay"] | {"step_seconds": 0}
    assert "history" not in other["foresay"]["sources"]


def test_what_one_computed_is_not_taken_over_by_two(server: Running) -> None:
    def cached(whole: dict[str, Any]) -> int:
        found: int = whole["usage"]["prompt_tokens_details"]["cached_tokens"]
        return found

    assert cached(ask(server, ONE)) == 0
    assert cached(ask(server, ONE)) > 0
    assert cached(ask(server, TWO)) == 0


def test_what_one_did_is_not_told_to_two(server: Running) -> None:
    ask(server, ONE)
    stats = {
        key: server.http.get("/v1/spec/stats", headers=bearer(key)).json() for key in (ONE, TWO)
    }
    assert stats[ONE]["totals"]["tokens"] > 0 and stats[ONE]["timeline"]
    assert stats[TWO]["totals"]["tokens"] == 0 and stats[TWO]["timeline"] == []
    metrics = server.http.get("/metrics")
    assert metrics.status_code == 403


def test_one_tenant_cannot_fill_the_queue(server: Running) -> None:
    error = server.refused("/v1/completions", 429, prompt=["a"] * 5, max_tokens=1)
    assert "one tenant may have 4 under way" in error["message"]
    server.good("/v1/completions", prompt=["a"] * 4, max_tokens=1)


@pytest.mark.parametrize("others", [[(WATCH, "operator")], [(TWO, "two")]])
def test_by_default_tenants_share_the_places_and_the_operator_takes_none(
    folder: Path, others: list[tuple[str, str]]
) -> None:
    """Four places: a tenant beside the operator has them all, beside another tenant half."""
    keys, limits = Keys.of([(ONE, "one"), *others]), Limits(queue=2)
    options = {"max_running": 2}
    with served(folder, 2, ONE, options, keys=keys, limits=limits) as server:
        asked: Any = {"prompt": ["a"] * 3, "max_tokens": 1}
        if others[0][1] == "operator":
            server.good("/v1/completions", **asked)
            return
        error = server.refused("/v1/completions", 429, **asked)
        assert "one tenant may have 2 under way" in error["message"]


def test_one_tenant_cannot_hold_all_open_requests(folder: Path) -> None:
    keys = Keys.of([(ONE, "one"), (TWO, "two"), (WATCH, "operator")])
    head = (
        b"POST /v1/completions HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
        b"Content-Length: 9\r\nAuthorization: Bearer " + ONE.encode() + b"\r\n\r\n"
    )
    with served(folder, 2, keys=keys, limits=Limits(connections=6)) as server:
        admission: Any = server.server.config.app
        slow = [server.connected() for _ in range(3)]
        for client in slow:
            client.sendall(head)
        wait_for(lambda: admission._open == 3)
        assert server.lets_in(TWO) == server.lets_in(WATCH) == 200
        assert server.lets_in(ONE) == 429
        refused = server.http.get("/v1/models", headers=bearer(ONE))
        assert "3 requests of one tenant are open" in refused.text
        for client in slow:
            client.close()
        wait_for(lambda: server.lets_in(ONE) == 200)
        wait_for(lambda: set(admission._open_of.values()) == {0})


def test_one_tenants_long_texts_leave_a_thread_to_others(
    server: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, go = server.llm.tokenizer.encode, threading.Event()
    begun: list[str] = []

    def slow(text: str, **options: Any) -> Any:
        begun.append(text)
        if text == "long":
            assert go.wait(20)
        return encode(text, **options)

    monkeypatch.setattr(server.llm.tokenizer, "encode", slow)

    def tokenize(key: str, text: str) -> int:
        return server.post("/tokenize", {"prompt": text}, **bearer(key)).status_code

    with ThreadPoolExecutor(4) as pool:
        long = [pool.submit(tokenize, ONE, "long") for _ in range(3)]
        try:
            wait_for(lambda: begun == ["long"])
            assert pool.submit(tokenize, TWO, "short").result(10) == 200
            assert begun == ["long", "short"]
        finally:
            go.set()
        assert [one.result(20) for one in long] == [200] * 3


def test_the_time_of_a_shared_step_is_divided(server: Running) -> None:
    """One's three answers and Two's one: what each is told is its own part of the step."""
    driver, steps = server.server._routes.driver, server.server._routes.steps
    before = len(steps._line)

    def write(key: str, n: int) -> None:
        body = {"prompt": "q", "n": n, "max_tokens": 400, "ignore_eos": True}
        answer = server.post("/v1/completions", body, **bearer(key))
        assert answer.status_code == 200

    with ThreadPoolExecutor(2) as pool:
        for done in [pool.submit(write, ONE, 3), pool.submit(write, TWO, 1)]:
            done.result(60)
    assert not driver.under_way
    shared = [step for step in list(steps._line)[before:] if len(step.shares) == 2]
    full = [s for s in shared if s.shares["one"].answers == 3 and s.shares["two"].answers == 1]
    assert full
    for step in full:
        for phase in PHASES:
            one, two = (step.shares[tenant].seconds[phase] for tenant in ("one", "two"))
            assert one == pytest.approx(3 * two) and one + two == pytest.approx(step.seconds[phase])
    told = {one.start: one.seconds for one in steps.seen_by("two")[1]}
    start, own = full[-1].start, full[-1].shares["two"].seconds
    assert told[round(start, 6)] == {phase: round(spent, 6) for phase, spent in own.items()}


def test_groups_are_forgotten_when_they_have_ended(server: Running) -> None:
    drafter: Any = server.server._routes._by_tenant
    server.good("/v1/completions", prompt="q" * 64, n=4, max_tokens=20)
    server.idle()
    assert drafter._core.groups == 0
    drafter.check_integrity()


def test_a_history_stays_within_its_bytes() -> None:
    drafter = tenant_drafter(2, 1 << 16)
    for number in range(200):
        for tenant in ("one", "two"):
            state = drafter.begin(np.arange(8, dtype=np.int32), tenant=tenant)
            drafter.observe([state], [Verdict([], [(number * k) % 997 for k in range(1, 200)])])
            drafter.finish(state)
    assert drafter.bytes_used() < 2 * 2 * (1 << 16)


def leaks(drafts: int, name: Callable[[int], str | None]) -> tuple[int, int]:
    """How many drafts there were, and how many of them held another tenant's token.

    All tenants' texts have the same words between their own secret ones, so that every draft would
    find another's secrets if it were let in.
    """
    dice, tenants, rows = np.random.default_rng(1), 8, 8
    drafter = tenant_drafter(tenants, 1 << 18)
    words = [dice.integers(0, 40, 6).astype(np.int32) for _ in range(12)]

    def told(tenant: int) -> list[int]:
        secret = 1000 * (tenant + 1) + dice.integers(0, 200, 3)
        return [*secret.tolist(), *words[dice.integers(12)].tolist()]

    seen = found = 0
    while seen < drafts:
        owners = [tenant for tenant in range(tenants) for _ in range(rows)]
        states = [
            drafter.begin(np.array(told(t), np.int32), group=f"g{n % 2}", tenant=name(t))
            for n, t in enumerate(owners)
        ]
        for _ in range(20):
            batch = drafter.propose(states, [16] * len(states))
            sizes = np.diff(batch.offsets)
            owner = np.repeat(owners, sizes)
            wrong = (batch.tokens >= 1000) & (batch.tokens // 1000 != owner + 1)
            found += len(np.unique(np.repeat(np.arange(len(states)), sizes)[wrong]))
            seen += int((sizes > 0).sum())
            drafter.observe(states, [Verdict([], told(t)) for t in owners])
        for state in states:
            drafter.finish(state)
        for group, tenant in {(f"g{n % 2}", name(t)) for n, t in enumerate(owners)}:
            drafter.drop_group(group, tenant)
    return seen, found


def test_no_token_of_one_tenant_is_ever_in_anothers_draft() -> None:
    """FORESAY_DRAFTS=1000000 looks through a million."""
    seen, found = leaks(int(os.environ.get("FORESAY_DRAFTS", "20000")), lambda t: f"tenant {t}")
    assert seen >= 20000 and found == 0
    assert leaks(2000, lambda t: None)[1] > 500  # without walls most drafts hold one


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
        assert server.number("foresay_suffix_cache_bytes") > 0
        assert server.http.get("/v1/spec/stats").json()["drafter_bytes"] > 0
