"""The proposer, given what vLLM gives it: rows that join, leave, move, sit out and come back.

vLLM itself is in tests/vllm. Here a recorded answer takes the model's place: of a draft, as many
tokens are kept as the recording has, and one more.
"""

from __future__ import annotations

import json
import logging
import random
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foresay.integrations.vllm import SuffixProposer

LENGTH = 256


def config(most: int = 6, ranks: int = 1, length: int = LENGTH) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=most),
        model_config=SimpleNamespace(max_model_len=length),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
    )


@pytest.fixture(autouse=True)
def no_times(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_MEASURE", "0")


class World:
    """vLLM's side: the batch's rows, and what the model would write."""

    def __init__(self, proposer: SuffixProposer, rows: int = 16, length: int = LENGTH) -> None:
        self.proposer = proposer
        self.token_ids = np.zeros((rows, length), np.int32)
        self.num_tokens = np.zeros(rows, np.int32)
        self.running: list[tuple[str, list[int], int]] = []  # name, whole text, tokens so far
        self.drafts: dict[str, list[int]] = {}
        self.steps = self.made = 0

    def add(self, name: str, prompt: list[int], answer: list[int]) -> None:
        self.running.append((name, prompt + answer, len(prompt)))

    def step(self, reading: int = 0) -> None:
        """One step; the last `reading` rows are still being read and get no token."""
        sampled: list[list[int]] = []
        for at, (name, text, known) in enumerate(self.running):
            new: list[int] = []
            if at < len(self.running) - reading:
                for drafted in [*self.drafts.pop(name, []), None]:
                    new.append(text[known + len(new)])
                    if new[-1] != drafted or known + len(new) == len(text):
                        break
            sampled.append(new)
            known += len(new)
            self.token_ids[at, :known] = text[:known]
            self.num_tokens[at] = known
            self.running[at] = (name, text, known)
            self.made += len(new)
        self.num_tokens[len(self.running) :] = 0
        self.steps += 1
        drafts = self.proposer.propose(sampled, self.num_tokens, self.token_ids, slot_mappings={})
        assert len(drafts) == len(sampled)
        for (name, _, known), new, draft in zip(self.running, sampled, drafts, strict=True):
            assert type(draft) is list and all(type(token) is int for token in draft)
            assert new or not draft
            assert known + len(draft) + 1 <= self.token_ids.shape[1] or not draft
            self.drafts[name] = draft
        self.running = [row for row in self.running if row[2] < len(row[1])]


def answer_of(seed: int, length: int = 60) -> list[int]:
    """Something that repeats itself now and then."""
    chance = random.Random(seed)
    text: list[int] = []
    while len(text) < length:
        if len(text) > 10 and chance.random() < 0.5:
            start = chance.randrange(len(text) - 8)
            text += text[start : start + 8]
        else:
            text += [chance.randrange(1000) for _ in range(3)]
    return text[:length]


def prompt_of(seed: int) -> list[int]:
    return [random.Random(f"prompt {seed}").randrange(1000) for _ in range(20)]


def run_through_everything(proposer: SuffixProposer) -> World:
    """12 requests: they join one by one, rows are swapped, one sits out, one is preempted."""
    world = World(proposer)
    out: list[Any] = []
    chance = random.Random(1)
    for step in range(400):
        if step % 3 == 0 and step < 36:
            world.add(str(step), prompt_of(step), answer_of(step))
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
    proposer = SuffixProposer(config())
    world = run_through_everything(proposer)
    stats = proposer.stats()
    assert stats.errors == 0
    assert stats.begun == 12  # each once, whatever happened to its row
    assert stats.returned > 3
    assert stats.tokens == world.made == 12 * 60
    assert stats.accepted == stats.tokens - stats.rows > 100
    assert stats.tokens_per_step > 1.3


def test_without_recognition_texts_would_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_GRACE", "0")
    proposer = SuffixProposer(config())
    run_through_everything(proposer)
    assert proposer.stats().errors == 0
    assert proposer.stats().begun > 12


def test_what_the_drafter_holds_is_the_text() -> None:
    proposer = SuffixProposer(config())
    world = World(proposer)
    for seed in range(5):
        world.add(str(seed), prompt_of(seed), answer_of(seed))
    for step in range(12):
        if step % 2:
            world.running.reverse()
        world.step()
    held = {tuple(proposer._drafter.text(text).tolist()) for text in proposer._prompts}
    assert {tuple(text[:known]) for _, text, known in world.running} <= held
    assert len(held) == 5
    proposer._drafter.check_integrity()


def test_rows_that_are_still_read_get_no_draft() -> None:
    proposer = SuffixProposer(config())
    world = World(proposer)
    world.add("a", prompt_of(1), answer_of(1))
    world.add("b", prompt_of(2), answer_of(2))
    for _ in range(5):
        world.step(reading=1)
    assert proposer.stats().begun == 1
    for _ in range(5):
        world.step(reading=2)
    world.step()
    assert proposer.stats().begun == 2 and proposer.stats().errors == 0


def test_micro_batches_of_a_pipeline_take_turns() -> None:
    proposer = SuffixProposer(config())
    world = World(proposer)
    for seed in range(8):
        world.add(str(seed), prompt_of(seed), answer_of(seed))
    other, steps = world.running[4:], 0
    world.running = world.running[:4]
    while world.running or other:
        if world.running:
            world.step()
        world.running, other = other, world.running
        steps += 1
    assert proposer.stats().begun == 8 and proposer.stats().errors == 0
    assert proposer.stats().returned > steps
    assert proposer.stats().tokens_per_step > 1.3


def test_equal_texts_share_and_are_told_apart_by_number() -> None:
    proposer = SuffixProposer(config())
    world = World(proposer)
    for sample in range(4):
        world.add(str(sample), prompt_of(1), answer_of(7))
    while world.running:
        world.running.reverse()
        world.step()
    stats = proposer.stats()
    assert stats.begun == 4 and stats.errors == 0


@pytest.mark.parametrize("shared", [True, False])
def test_siblings_draft_from_each_other(shared: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_GROUPS", str(int(shared)))
    proposer = SuffixProposer(config())
    world = World(proposer)
    answer = random.Random(3).sample(range(1000), 60)  # nothing repeats: siblings alone help
    world.add("first", prompt_of(1), answer)
    for _ in range(40):
        world.step()
    world.add("second", prompt_of(1), answer)  # the first joins a group that did not exist
    before = proposer.stats().accepted
    for _ in range(12):
        world.step()
    gained = proposer.stats().accepted - before
    assert proposer.stats().errors == 0
    assert gained > 20 if shared else gained < 3


def test_finished_answers_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_GRACE", "2")
    answer = random.Random(3).sample(range(1000), 60)
    steps = []
    for history in ("1", "0"):
        monkeypatch.setenv("FORESAY_VLLM_HISTORY", history)
        proposer = SuffixProposer(config())
        world = World(proposer)
        for again in range(3):
            world.add(str(again), prompt_of(again), answer)
            while world.running:
                world.step()
            world.add("between", prompt_of(90 + again), list(range(2000, 2008)))
            while world.running:
                world.step()
        steps.append(world.steps)
        assert proposer.stats().finished >= 4
    assert steps[0] < steps[1] - 40


def test_drafts_end_before_the_models_length() -> None:
    proposer = SuffixProposer(config(length=64))
    world = World(proposer, length=64)
    world.add("a", [1, 2, 3, 4], [1, 2, 3, 4] * 15)  # up to the last place; `step` checks each
    while world.running:
        world.step()
    assert proposer.stats().accepted > 30


@pytest.mark.parametrize("most", [1, 3])
def test_drafts_are_as_long_as_asked(most: int) -> None:
    proposer = SuffixProposer(config(most=most))
    world = World(proposer)
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

    run_through_everything(Both())  # type: ignore[arg-type]
    assert one.stats().drafted == two.stats().drafted > 100
    assert one.stats().closed == 0


def test_many_requests_end_drafting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORESAY_VLLM_MAX_REQUESTS", "2")
    proposer = SuffixProposer(config())
    world = World(proposer)
    for seed in range(3):
        world.add(str(seed), [1, 2, 3, 4], [1, 2, 3, 4] * (6 if seed == 0 else 20))
    while len(world.running) == 3:
        world.step()
    assert proposer.stats().drafted == 0 and proposer.stats().closed == world.steps
    world.step()
    assert proposer.stats().drafted > 0  # from all that was learned while it was closed


def test_a_failure_costs_drafts_and_nothing_else(caplog: pytest.LogCaptureFixture) -> None:
    proposer = SuffixProposer(config())
    world = World(proposer)
    world.add("a", [1, 2, 3, 4], [1, 2, 3, 4] * 15)
    for _ in range(4):
        world.step()
    assert world.drafts["a"]
    lengths, ids = np.zeros(2, np.int32), np.zeros((2, 8), np.int32)
    with caplog.at_level(logging.INFO, "vllm.foresay"):
        for _ in range(3):
            assert proposer.propose([[5], [6]], lengths, ids) == [[], []]  # shorter than its tokens
        assert proposer.propose([[-1]], lengths + 4, ids - 1) == [[]]  # no token is negative
        assert proposer.propose([[1]], lengths + 99, ids) == [[]]  # longer than its row
        assert proposer.propose([[1]], None, None) == [[]]  # type: ignore[arg-type]
    assert len(caplog.records) == 1
    assert proposer.stats().errors == 6
    world.step()
    world.step()
    assert world.drafts["a"]  # it began anew


def test_steps_file_and_log(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "steps.jsonl"
    monkeypatch.setenv("FORESAY_VLLM_STEPS_FILE", str(path))
    monkeypatch.setenv("FORESAY_VLLM_LOG_SECONDS", "1e-6")
    proposer = SuffixProposer(config())
    with caplog.at_level(logging.INFO, "vllm.foresay"):
        world = run_through_everything(proposer)
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert len(lines) == world.steps
    assert sum(line["tokens"] for line in lines) == world.made
    assert sum(line["drafted"] for line in lines) == proposer.stats().drafted
    assert "Draft acceptance rate" in caplog.text
