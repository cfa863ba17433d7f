"""The proposer, given what vLLM gives it: rows that join, leave, move, sit out and come back.

vLLM itself is in tests/vllm.
"""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foresay.integrations.vllm import SuffixProposer
from integrations.vllm_side import World, answer_of, config, prompt_of


@pytest.fixture(autouse=True)
def no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_MEASURE", "0")


def run_through_everything(proposer: Any = None) -> World:
    """12 requests: they join one by one, rows are swapped, one sits out, one is preempted."""
    world = World(proposer)
    out: list[Any] = []
    chance = random.Random(1)
    for step in range(400):
        if step % 3 == 0 and step < 36:
            world.add_seeded(step)
        if not world.running:
            break
        if step % 4 == 1:
            chance.shuffle(world.running)  # condensed and swapped
        if out and step % 7 == 0:
            world.running.append(out.pop())
        elif len(world.running) > 2 and step % 7 == 3:
            out.append(world.running.pop(chance.randrange(len(world.running))))
        world.step()
    assert not world.running and not out
    return world


def test_rows_are_recognised_by_their_text() -> None:
    world = run_through_everything()
    stats = world.stats
    assert stats.errors == 0
    assert stats.begun == 12  # each once, whatever happened to its row
    assert stats.returned > 3
    assert stats.tokens == world.made == 12 * 60
    assert stats.accepted == stats.tokens - stats.rows > 100
    assert stats.tokens_per_step > 1.3


def test_without_recognition_texts_would_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_GRACE", "0")
    world = run_through_everything()
    assert world.stats.errors == 0 and world.stats.begun > 12


def test_what_the_drafter_holds_is_the_text() -> None:
    world = World()
    world.add_seeded(*range(5))
    for step in range(12):
        if step % 2:
            world.running.reverse()
        world.step()
    drafter = world.proposer._drafter
    held = {tuple(drafter.text(text).tolist()) for text in world.proposer._prompts}
    assert {tuple(text[:known]) for _, text, known in world.running} <= held
    assert len(held) == 5
    drafter.check_integrity()


def test_rows_that_are_still_read_get_no_draft() -> None:
    world = World()
    world.add_seeded(1, 2)
    for _ in range(5):
        world.step(reading=1)
    assert world.stats.begun == 1
    for _ in range(5):
        world.step(reading=2)
    world.step()
    assert world.stats.begun == 2 and world.stats.errors == 0


def test_micro_batches_of_a_pipeline_take_turns() -> None:
    world = World()
    world.add_seeded(*range(8))
    other, steps = world.running[4:], 0
    world.running = world.running[:4]
    while world.running or other:
        if world.running:
            world.step()
        world.running, other = other, world.running
        steps += 1
    assert world.stats.begun == 8 and world.stats.errors == 0
    assert world.stats.returned > steps
    assert world.stats.tokens_per_step > 1.3


def test_equal_texts_share_and_are_told_apart_by_number() -> None:
    world = World()
    for sample in range(4):
        world.add(str(sample), prompt_of(1), answer_of(7))
    while world.running:
        world.running.reverse()
        world.step()
    stats = world.stats
    assert stats.begun == 4 and stats.errors == 0


@pytest.mark.parametrize("shared", [True, False])
def test_siblings_draft_from_each_other(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_GROUPS", str(int(shared)))
    world = World()
    answer = random.Random(3).sample(range(1000), 60)  # nothing repeats: siblings alone help
    world.add("first", prompt_of(1), answer)
    for _ in range(40):
        world.step()
    world.add("second", prompt_of(1), answer)  # the first joins a group that did not exist
    before = world.stats.accepted
    for _ in range(12):
        world.step()
    gained = world.stats.accepted - before
    assert world.stats.errors == 0
    assert gained > 20 if shared else gained < 3


def test_finished_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_GRACE", "2")
    answer = random.Random(3).sample(range(1000), 60)
    steps = []
    for history in ("1", "0"):
        monkeypatch.setenv("FORESAY_VLLM_HISTORY", history)
        world = World()
        for again in range(3):
            world.add(str(again), prompt_of(again), answer)
            world.run()
            world.add("between", prompt_of(90 + again), list(range(2000, 2008)))
            world.run()
        steps.append(world.steps)
        assert world.stats.finished >= 4
    assert steps[0] < steps[1] - 40


def test_drafts_end_before_the_models_length() -> None:
    world = World(length=64)
    world.add("a", [1, 2, 3, 4], [1, 2, 3, 4] * 15)  # up to the last place; `step` checks each
    world.run()
    assert world.stats.accepted > 30


@pytest.mark.parametrize("most", [1, 3])
def test_drafts_are_as_long_as_asked(most: int) -> None:
    world = World(SuffixProposer(config(most=most)))
    world.add("a", [1, 2, 3, 4], [1, 2, 3, 4] * 15)
    longest = 0
    while world.running:
        world.step()
        longest = max(longest, *map(len, world.drafts.values()))
    assert longest == most


def test_all_ranks_draft_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_MEASURE", "1")  # which two ranks must not do
    one, two = (SuffixProposer(config(ranks=2)) for _ in range(2))

    class Both:
        def propose(self, *given: Any, **more: Any) -> list[list[int]]:
            first = one.propose(*given, **more)
            busy = sum(i * i for i in range(random.randrange(20000)))  # their clocks differ
            second = two.propose(*given, **more)
            assert first == second and busy >= 0
            return first

    run_through_everything(Both())
    assert one.stats().drafted == two.stats().drafted > 100
    assert one.stats().closed == 0


def test_many_requests_end_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_MAX_REQUESTS", "2")
    world = World()
    for seed in range(3):
        world.add(str(seed), [1, 2, 3, 4], [1, 2, 3, 4] * (6 if seed == 0 else 20))
    while len(world.running) == 3:
        world.step()
    assert world.stats.drafted == 0 and world.stats.closed == world.steps
    world.step()
    assert world.stats.drafted > 0  # from all that was learned while it was closed


def test_a_failure_costs_drafts_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    world = World()
    world.add("a", [1, 2, 3, 4], [1, 2, 3, 4] * 15)
    for _ in range(4):
        world.step()
    assert world.drafts["a"]
    propose = world.proposer.propose
    lengths, ids = np.zeros(2, np.int32), np.zeros((2, 8), np.int32)
    with caplog.at_level(logging.INFO, "vllm.foresay"):
        for _ in range(3):
            assert propose([[5], [6]], lengths, ids) == [[], []]  # shorter than its tokens
        assert propose([[-1]], lengths + 4, ids - 1) == [[]]  # no token is negative
        assert propose([[1]], lengths + 99, ids) == [[]]  # longer than its row
        assert propose([[1]], None, None) == [[]]
    assert len(caplog.records) == 1
    assert world.stats.errors == 6
    world.step()
    world.step()
    assert world.drafts["a"]  # it began anew


def test_steps_file_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv("FORESAY_VLLM_STEPS_FILE", str(path))
    monkeypatch.setenv("FORESAY_VLLM_LOG_SECONDS", "1e-6")
    with caplog.at_level(logging.INFO, "vllm.foresay"):
        world = run_through_everything()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == world.steps
    assert sum(line["tokens"] for line in lines) == world.made
    assert sum(line["drafted"] for line in lines) == world.stats.drafted
    assert "Draft acceptance rate" in caplog.text
