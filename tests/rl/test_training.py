"""A short run of reinforcement learning: drafts change its speed, and not one bit of the model."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from numpy.random import Generator
from transformers import LlamaForCausalLM

from countdown import (
    EOS,
    VOCABULARY,
    Puzzle,
    Task,
    draw_puzzle,
    final_chain,
    search_trace,
)
from foresay.errors import InputError
from foresay.models.load_transformers import target_of
from foresay.rl import training
from foresay.rl.padding import Example, padded
from foresay.rl.rollouts import Rollouts
from foresay.rl.training import Problem, RlSettings, TrainingStep, fingerprint, train
from tiny import llama, one_thread
from warm_start import WarmStart, warm_start

TASK = Task(numbers=3, largest=4, most=16, noise=0.5, cap=64)
SETTINGS = RlSettings(
    prompts=4, samples=4, groups=4, rounds=2, cap=64, buffer=8, learning_rate=1e-3
)
SAME = ("tokens_digest", "loss", "norm", "reward", "parameters", "logprob", "entropy")


@pytest.fixture(autouse=True, scope="module")
def _deterministic() -> Iterator[None]:
    torch.use_deterministic_algorithms(True)
    with one_thread():
        yield
    torch.use_deterministic_algorithms(False)


@pytest.fixture(scope="module")
def start() -> LlamaForCausalLM:
    """A model that writes searches, if not always right ones."""
    torch.manual_seed(1)
    model = llama(VOCABULARY, EOS, 64, 256)

    def draw(rng: Generator) -> Example:
        puzzle = draw_puzzle(TASK, rng)
        return Example(puzzle.prompt, search_trace(puzzle, TASK, rng))

    settings = WarmStart(updates=150, tokens=512, learning_rate=1e-2)
    losses = warm_start(model, draw, settings, seed=1)
    assert np.mean(losses[-10:]) < 0.2 * losses[0]
    return model


def reward(puzzle: Puzzle, answer: list[int]) -> float:
    """For any search that says that it found the target: a small model learns that in seconds."""
    return float(final_chain(answer) is not None)


def run(
    start: LlamaForCausalLM, drafter: str | None, *, steps: int = 2, problems: int = 8
) -> tuple[list[TrainingStep], LlamaForCausalLM]:
    rng = np.random.default_rng(1)
    puzzles = [draw_puzzle(TASK, rng) for _ in range(problems)]
    model = copy.deepcopy(start)
    rollouts = Rollouts(target_of(copy.deepcopy(start)), drafter, "fixed" if drafter else "none")
    each = train(
        model,
        rollouts,
        [Problem(puzzle.prompt, partial(reward, puzzle)) for puzzle in puzzles],
        SETTINGS,
        steps=steps,
        seed=1,
        stops=[EOS],
    )
    records = list(each)
    assert rollouts.version == sum(record.kept > 0 for record in records)
    return records, model


def same(one: list[TrainingStep], other: list[TrainingStep]) -> bool:
    pairs = list(zip(one, other, strict=True))
    return all(getattr(a, name) == getattr(b, name) for a, b in pairs for name in SAME)


def test_with_and_without_drafts(start: LlamaForCausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    off, plain = run(start, None)
    on, drafted = run(start, "suffix")
    assert same(off, on)
    assert fingerprint(plain) == fingerprint(drafted) == on[-1].parameters != fingerprint(start)
    pairs = zip(plain.parameters(), drafted.parameters(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)
    assert all(record.kept and len(record.loss) == 2 for record in on)
    assert sum(r.passes for r in on) * 1.3 < sum(r.passes for r in off)
    for record in [*off, *on]:
        assert 0 < record.reward < 1 and 1 < record.mean_length < record.max_length <= 64
        assert record.logprob["max"] < 1e-4 and 0 < record.entropy < 2
        assert record.passes >= record.tail_passes and record.drawn == 4 * record.rounds
    assert all(r.drafted == 0 and r.tokens_per_step == 1 for r in off)
    assert all(r.accepted > 0 and r.tokens_per_step > 1.2 for r in on)

    # What a wrong variant would look like: noise that depends on the drafter, and log
    # probabilities that do.
    other = training._seed
    monkeypatch.setattr(training, "_seed", lambda *of: other(*of) + 1)
    assert not same(off, run(start, "suffix")[0])
    monkeypatch.undo()
    judged = training._judged

    def shifted(*of: object) -> object:
        group = judged(*of)  # type: ignore[arg-type]
        group.rollouts[0].logprobs[0] += 1e-3
        return group

    monkeypatch.setattr(training, "_judged", shifted)
    wrong = run(start, "suffix")[0]
    assert wrong[0].loss != on[0].loss and wrong[0].parameters != on[0].parameters
    assert wrong[0].logprob["max"] == pytest.approx(1e-3, rel=0.1)


def test_a_reward_that_raises_leaves_the_step_before(start: LlamaForCausalLM) -> None:
    model = copy.deepcopy(start)
    rollouts = Rollouts(target_of(copy.deepcopy(start)), "suffix", "fixed")

    def broken(answer: object) -> float:
        raise OSError("no judge")

    problem = Problem([1, 2, 3], broken)
    each = train(model, rollouts, [problem], SETTINGS, steps=1, seed=1, stops=[EOS])
    with pytest.raises(OSError, match="no judge"):
        next(each)
    assert fingerprint(model) == fingerprint(start) and rollouts.version == 0
    assert not rollouts.engine.busy
    rollouts.engine.check_integrity()


def test_the_policy_learns_what_is_rewarded(start: LlamaForCausalLM) -> None:
    """Towards the reward, not away from it."""
    torch.manual_seed(2)
    fresh = LlamaForCausalLM(start.config)
    settings = RlSettings(
        prompts=2, samples=16, groups=2, rounds=1, cap=1, buffer=0, updates=1, learning_rate=5e-2
    )
    problem = Problem([1, 2, 3], lambda answer: float(answer[0] % 2))
    rollouts = Rollouts(target_of(copy.deepcopy(fresh)), None)
    each = list(train(fresh, rollouts, [problem], settings, steps=10, seed=1, stops=[EOS]))
    rewards = [record.reward for record in each]
    assert np.mean(rewards[:2]) < 0.8 and np.mean(rewards[-2:]) > 0.9
    assert len({record.tokens_digest for record in each}) == len(each)  # other noise in each step


@pytest.mark.parametrize(
    "wrong",
    [{"samples": 0}, {"updates": 0}, {"buffer": 400}, {"buffer": 192}, {"temperature": 0.0}],
    ids=str,
)
def test_settings_out_of_range_are_refused(wrong: dict[str, float]) -> None:
    (name, value), given = next(iter(wrong.items())), cast(Any, wrong)
    with pytest.raises(InputError, match=f"{name} is {value}"):
        RlSettings(**given)


def test_without_problems_nothing_is_trained(start: LlamaForCausalLM) -> None:
    rollouts = Rollouts(target_of(copy.deepcopy(start)), None)
    with pytest.raises(InputError, match="no problems"):
        next(train(start, rollouts, [], SETTINGS, steps=1, seed=1, stops=[EOS]))


def test_nothing_to_learn_changes_nothing(start: LlamaForCausalLM) -> None:
    model = copy.deepcopy(start)
    rollouts = Rollouts(target_of(copy.deepcopy(start)), None)
    problem = Problem([1, 2, 3], lambda answer: 1.0)
    record = next(train(model, rollouts, [problem], SETTINGS, steps=1, seed=1, stops=[EOS]))
    assert record.kept == 0 and record.rounds == 2 and record.loss == []
    assert record.parameters == fingerprint(start) and rollouts.version == 0


def test_tables() -> None:
    table = padded([Example([1, 2], [3, 4, 5]), Example([6], [7])])
    assert table.inputs.tolist() == [[1, 2, 3, 4], [6, 7, 0, 0]]
    assert table.attention.tolist() == [[1, 1, 1, 1], [1, 1, 0, 0]]
    assert table.answers[table.mask].tolist() == [3, 4, 5, 7]


@pytest.mark.slow
def test_the_example(tmp_path: Path) -> None:
    """Minutes: the short form as CI runs it."""
    example = Path(__file__).parents[2] / "examples" / "rl_countdown.py"
    command = [sys.executable, str(example), "--short", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    result = json.loads(done.stdout)
    assert result["wrong"] == [] and all(result["same"].values())
    assert result["fewer_passes"] >= 1.5 and result["trained_groups"] > 0
