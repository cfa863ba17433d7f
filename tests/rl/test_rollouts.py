"""Rollouts: the same samples with every drafter, order and limit; nothing held after any end."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from foresay import SamplingParams
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.errors import InputError, StateError
from foresay.models.target import Target
from foresay.rl import Rollouts
from foresay.rl.rollouts import Rollout
from foresay.sampling.noise import seed_of_sample

PROMPTS = [[1, 2, 3], [4, 5, 6, 7, 8], [9]]
PARAMS = SamplingParams(max_tokens=24, temperature=0.8)


def ids(found: list[list[Rollout]]) -> list[list[list[int]]]:
    return [[sample.token_ids for sample in group] for group in found]


def undrafted(target: Target, samples: int = 2) -> list[list[list[int]]]:
    """The samples of seed 1."""
    return ids(Rollouts(target, None).sample(PROMPTS, PARAMS, samples=samples, seed=1))


def changed(target: Target, seed: int) -> dict[str, torch.Tensor]:
    """Other weights: small random ones, drawn by name."""
    draw = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=draw) * 0.2
        for name, shape in sorted(target.weight_shapes().items())
        if name.endswith("proj.weight")
    }


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_running": 2},
        {"max_running": 2, "order": "prompt"},
        {"policy": "fixed"},
        {"policy": "threshold", "max_rows": 4},
        {"drafter": "ngram", "policy": "dynamic-k"},
        {"memory": 1 << 16},
    ],
    ids=str,
)
def test_samples_are_those_without_drafts(target: Target, options: dict[str, Any]) -> None:
    plain = Rollouts(target, None).sample(PROMPTS, PARAMS, samples=4, seed=7, stops=[3])
    rollouts = Rollouts(target, **options)
    for _ in range(2):  # the second time with answers to draft from
        found = rollouts.sample(PROMPTS, PARAMS, samples=4, seed=7, stops=[3])
        assert ids(found) == ids(plain)
        for group, expected in zip(found, plain, strict=True):
            for one, other in zip(group, expected, strict=True):
                assert np.array_equal(one.logprobs, other.logprobs)
                assert np.array_equal(one.raw_logprobs, other.raw_logprobs)
                assert one.finish_reason == other.finish_reason
    rollouts.engine.check_integrity()


def test_a_sample_is_what_the_engine_answers_alone(target: Target) -> None:
    found = Rollouts(target).sample(PROMPTS, PARAMS, samples=2, seed=5)
    engine = Engine(target)
    request = engine.add(PROMPTS[1], PARAMS, seed=seed_of_sample(5, 1 + 1 * 2 + 1))
    engine.run()
    assert found[1][1].token_ids == request.token_ids
    assert (found[1][1].prompt, found[1][1].sample) == (1, 1)


def test_samples_of_a_prompt_differ_and_seeds_matter(target: Target) -> None:
    rollouts = Rollouts(target)
    one, other = (rollouts.sample(PROMPTS, PARAMS, samples=3, seed=seed) for seed in (1, 2))
    texts = [tuple(sample.token_ids) for found in (one, other) for g in found for sample in g]
    assert len(set(texts)) == len(texts)


def test_logprobs_are_those_of_the_distribution_that_was_sampled(target: Target) -> None:
    params = SamplingParams(max_tokens=8, temperature=0.7, top_k=5)
    sample = Rollouts(target).sample([[1, 2, 3]], params, samples=1, seed=3)[0][0]
    engine = Engine(target)
    told = engine.add([1, 2, 3, *sample.token_ids, 0], SamplingParams(max_tokens=1),
                      prompt_logprobs=target.vocabulary)  # fmt: skip
    engine.run()
    assert told.prompt_logprobs is not None
    for at, token in enumerate(sample.token_ids):
        noted = told.prompt_logprobs[3 + at]
        assert noted is not None
        raw = np.array([noted.top[v] for v in range(target.vocabulary)])
        assert abs(raw[token] - sample.raw_logprobs[at]) < 1e-5
        best = np.argsort(-raw)[:5]
        law = raw[best] / 0.7
        expected = raw[token] / 0.7 - np.log(np.exp(law).sum())
        assert token in best and abs(expected - sample.logprobs[at]) < 1e-5


def test_a_second_rollout_drafts_from_the_first(target: Target) -> None:
    rollouts = Rollouts(target, policy="fixed")
    passes = []
    for _ in range(2):
        rollouts.sample(PROMPTS, PARAMS, samples=2, seed=11)
        assert rollouts.stats is not None
        passes.append(rollouts.stats.passes)
    assert passes[1] < 0.6 * passes[0]


def test_old_versions_are_forgotten_and_the_rest_stays_bounded(target: Target) -> None:
    rollouts = Rollouts(target, versions=1, history_bytes=1 << 20)
    held = []
    for version in range(4):
        rollouts.sample(PROMPTS, PARAMS, samples=2, seed=11)
        held.append(rollouts.bytes_used)
        rollouts.replace_weights(changed(target, version))
        assert rollouts.version == version + 1
    assert held[3] < 1.5 * held[1]
    rollouts.replace_weights(changed(target, 9))
    rollouts.replace_weights(changed(target, 10))
    assert rollouts._answers.bytes_used == 0


def test_replaced_weights_are_used_and_change_nothing_else(target: Target) -> None:
    rollouts = Rollouts(target)
    before = ids(rollouts.sample(PROMPTS, PARAMS, samples=2, seed=1))
    rollouts.replace_weights(changed(target, 1))
    after = rollouts.sample(PROMPTS, PARAMS, samples=2, seed=1)
    assert before != ids(after) == undrafted(target)
    assert {sample.version for group in after for sample in group} == {1}


def test_weights_replaced_while_samples_run_are_refused(target: Target) -> None:
    rollouts = Rollouts(target)

    def refused(_: int) -> None:
        with pytest.raises(StateError, match="samples are running"):
            rollouts.replace_weights(changed(target, 1))
        with pytest.raises(StateError, match="one rollout at a time"):
            rollouts.sample(PROMPTS, PARAMS, samples=1, seed=1)

    found = rollouts.sample(PROMPTS, PARAMS, samples=2, seed=1, progress=refused)
    assert ids(found) == undrafted(target)


def test_weights_replaced_behind_its_back_discard_the_samples(target: Target) -> None:
    rollouts = Rollouts(target)
    with pytest.raises(StateError, match="replaced while samples ran"):
        rollouts.sample(
            PROMPTS, PARAMS, samples=2, seed=1,
            progress=lambda _: target.replace_weights(changed(target, 1)),
        )  # fmt: skip
    assert not rollouts.engine.busy and rollouts._answers.bytes_used == 0


class Stop(Exception):
    pass


@pytest.mark.parametrize("after", [0, 1, 7, 40])
def test_a_rollout_that_is_cancelled_leaves_nothing(target: Target, after: int) -> None:
    drafter = SuffixDrafter()
    rollouts = Rollouts(target, drafter, max_running=4)
    empty = drafter.bytes_used()
    left = after

    def stop(_: int) -> None:
        nonlocal left
        left -= 1
        if left < 0:
            raise Stop

    with pytest.raises(Stop):
        rollouts.sample(PROMPTS, PARAMS, samples=4, seed=1, progress=stop)
    assert not rollouts.engine.busy and len(rollouts.engine.groups) == 0
    rollouts.engine.check_integrity()
    drafter.check_integrity()
    assert drafter._core.groups == 0 and rollouts._answers.bytes_used == 0
    assert drafter.bytes_used() < empty + (2 << 20)  # finished samples may be in the history
    found = rollouts.sample(PROMPTS, PARAMS, samples=4, seed=1)
    assert ids(found) == undrafted(target, samples=4)


def fail(*given: Any, **named: Any) -> Any:
    raise RuntimeError("broken")


@pytest.mark.parametrize(
    "method",
    [
        *("begin", "propose", "observe", "finish"),
        *("add_to_group", "new_version", "drop_group", "bytes_used"),
    ],
)
@pytest.mark.filterwarnings("ignore:the drafter failed")
def test_a_drafter_that_fails_costs_speed_only(target: Target, method: str) -> None:
    plain = undrafted(target)
    drafter = SuffixDrafter()
    setattr(drafter, method, fail)
    rollouts = Rollouts(target, drafter, policy="fixed")
    for _ in range(2):
        assert ids(rollouts.sample(PROMPTS, PARAMS, samples=2, seed=1)) == plain
    rollouts.replace_weights({})
    assert rollouts.version == 1
    assert ids(rollouts.sample(PROMPTS, PARAMS, samples=2, seed=1)) == plain


class Telling(SuffixDrafter):
    """Notes what it is told beside the requests."""

    def __init__(self) -> None:
        super().__init__()
        self.added: list[tuple[str, list[int], list[int]]] = []
        self.kept: list[int] = []

    def add_to_group(
        self, group: str, prompt: Any, answer: Any, *, tenant: str | None = None
    ) -> None:
        self.added.append((group, list(prompt), list(answer)))
        super().add_to_group(group, prompt, answer, tenant=tenant)

    def new_version(self, keep: int, *, tenant: str | None = None) -> None:
        self.kept.append(keep)
        super().new_version(keep, tenant=tenant)


def test_groups_are_told_the_answers_to_their_own_prompt(target: Target) -> None:
    drafter = Telling()
    rollouts = Rollouts(target, drafter, versions=1)
    first = ids(rollouts.sample(PROMPTS, PARAMS, samples=2, seed=1))
    assert drafter.added == []
    rollouts.sample(PROMPTS[::-1], PARAMS, samples=1, seed=2)
    told: dict[str, tuple[list[int], list[list[int]]]] = {}
    for group, prompt, answer in drafter.added:
        told.setdefault(group, (prompt, []))[1].append(answer)
    found = {tuple(prompt): answers for prompt, answers in told.values()}
    assert found == {tuple(prompt): answers for prompt, answers in zip(PROMPTS, first, strict=True)}
    assert drafter._core.groups == 0  # dropped with the rollout


def test_what_groups_are_told_is_bounded(target: Target) -> None:
    drafter = Telling()
    rollouts = Rollouts(target, drafter, history_bytes=100 * 3 * 24)  # an answer for each of three
    for seed in range(3):
        drafter.added = []
        rollouts.sample(PROMPTS, PARAMS, samples=2, seed=seed)
    assert 0 < len(drafter.added) <= 3


def test_weights_replaced_through_the_target_begin_a_version_too(target: Target) -> None:
    drafter = Telling()
    rollouts = Rollouts(target, drafter, versions=1)
    rollouts.sample(PROMPTS, PARAMS, samples=1, seed=1)
    for seed in (1, 2):
        target.replace_weights(changed(target, seed))
    rollouts.sample(PROMPTS, PARAMS, samples=1, seed=1)
    assert drafter.kept == [1, 1] and drafter.added == []


def test_a_sample_that_fails_or_is_cancelled_is_no_result(target: Target) -> None:
    rollouts = Rollouts(target)
    with pytest.raises(StateError, match="was cancelled"):
        rollouts.sample(
            PROMPTS, PARAMS, samples=2, seed=1,
            progress=lambda _: rollouts.engine.cancel(*rollouts.engine.scheduler.running),
        )  # fmt: skip
    assert rollouts._answers.bytes_used == 0
    broken = {name: torch.full(shape, torch.nan) for name, shape in target.weight_shapes().items()}
    rollouts.replace_weights({"model.norm.weight": broken["model.norm.weight"]})
    with pytest.raises(InputError, match="sample 0 of prompt 0 failed"):
        rollouts.sample(PROMPTS, PARAMS, samples=2, seed=1)
    assert not rollouts.engine.busy and rollouts._answers.bytes_used == 0


def test_steps_and_statistics_add_up(target: Target) -> None:
    rollouts = Rollouts(target, policy="fixed", max_running=4)
    found = rollouts.sample(PROMPTS, PARAMS, samples=3, seed=2)
    steps, stats = rollouts.steps, rollouts.stats
    assert stats is not None
    total = sum(len(sample.token_ids) for group in found for sample in group)
    assert stats.tokens == total == sum(step.committed for step in steps)
    assert stats.drafted == sum(step.drafted for step in steps)
    assert stats.accepted == sum(step.accepted for step in steps)
    assert stats.passes == len(steps) and stats.requests == 9
    assert max(step.running for step in steps) == 4
    assert all(a.time <= b.time for a, b in pairwise(steps))
    assert stats.as_dict()["tokens_per_step"] == stats.tokens / stats.request_steps


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"prompts": [[]]}, "prompt is empty"),
        ({"prompts": [[1], [10**6]]}, "1000000"),
        ({"prompts": 5}, "prompts"),
        ({"samples": 0}, "samples is 0"),
        ({"seed": -1}, "seed"),
        ({"params": None}, "params are None"),
        ({"params": SamplingParams(rule="rejection")}, "rule is 'rejection'"),
        ({"progress": 3}, "progress"),
    ],
)
def test_bad_values_are_refused_before_anything_begins(
    target: Target, change: dict[str, Any], match: str
) -> None:
    rollouts = Rollouts(target)
    given: dict[str, Any] = {"prompts": PROMPTS, "params": PARAMS, "samples": 2, "seed": 1} | change
    prompts, params = given.pop("prompts"), given.pop("params")
    with pytest.raises(InputError, match=match):
        rollouts.sample(prompts, params, **given)
    assert not rollouts.engine.busy and len(rollouts.engine.groups) == 0
    with pytest.raises(InputError, match="order is 'x'"):
        Rollouts(target, order="x")  # type: ignore[arg-type]
