"""Three real steps of GRPO on a CPU: drafts change no token, no loss and no parameter."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from foresay.integrations.trl import sampler as sampler_file
from foresay.sampling.acceptance.verify import verify
from integrations.trl.training import NONE, SUFFIX, Trained, make, model, sampler_of, train

HOW = ["function", "mixin"]
TIMES = ("foresay/", "step_time", "train_")
APART = "sampling/sampling_logp_difference"


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Trained]:
    """Trained with both hooks, with drafts and without."""
    return {
        (how, name): train(tmp_path_factory.mktemp(how), how, settings)
        for how in HOW
        for name, settings in {"none": NONE, "suffix": SUFFIX}.items()
    }


def outcome(of: Trained) -> list[dict[str, Any]]:
    """What was logged, but for what takes time and tells of drafts."""
    return [{k: v for k, v in row.items() if not k.startswith(TIMES)} for row in of.logged]


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in {*one, *other})


@pytest.mark.parametrize("how", HOW)
def test_drafts_change_nothing_but_the_number_of_passes(
    runs: dict[tuple[str, str], Trained], how: str
) -> None:
    plain, drafted = runs[how, "none"], runs[how, "suffix"]
    assert len(plain.texts) == 3 and drafted.texts == plain.texts
    assert [row["loss"] for row in drafted.steps] == [row["loss"] for row in plain.steps]
    assert outcome(drafted) == outcome(plain)
    assert same(drafted.weights, plain.weights)
    assert drafted.passes * 1.2 < plain.passes
    assert not same(plain.weights, model().state_dict())


def test_both_hooks_train_alike(runs: dict[tuple[str, str], Trained]) -> None:
    assert runs["function", "suffix"].texts == runs["mixin", "suffix"].texts
    assert same(runs["function", "suffix"].weights, runs["mixin", "suffix"].weights)


@pytest.mark.parametrize("how", HOW)
def test_log_probabilities_are_the_trainers(runs: dict[tuple[str, str], Trained], how: str) -> None:
    steps = runs[how, "suffix"].steps
    assert len(steps) == 3
    for row in steps:
        assert 0 < row[f"{APART}/mean"] <= row[f"{APART}/max"] < 1e-5
        ratio = [row[f"sampling/importance_sampling_ratio/{which}"] for which in ("min", "max")]
        assert 1 - 1e-5 < ratio[0] <= ratio[1] < 1 + 1e-5


@pytest.mark.parametrize("how", HOW)
def test_what_is_logged_of_the_rollouts(runs: dict[tuple[str, str], Trained], how: str) -> None:
    for row in runs[how, "suffix"].steps:
        assert row["foresay/tokens_per_step"] > 1 and 0 < row["foresay/acceptance"] < 1
        assert row["foresay/target_passes"] < 32 and row["foresay/seconds"] > 0
        assert "foresay/sync_seconds" in row
    for row in runs[how, "none"].steps:
        assert row["foresay/tokens_per_step"] == 1 and "foresay/acceptance" not in row
        assert row["foresay/target_passes"] == 32
    assert runs[how, "suffix"].rollouts.version == 2  # the first step needs no new weights


@pytest.mark.parametrize("how", HOW)
def test_a_lenient_acceptance_is_noticed(
    runs: dict[tuple[str, str], Trained],
    how: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Drafted tokens are preferred a little: another law, other texts and other parameters. The
    log probabilities are still the trainer's, so their difference alone would not tell."""

    def lenient(drafts: Any, logits: Tensor, *rest: Any) -> Any:
        logits, row = logits.clone(), 0
        for draft in drafts:
            for token, parent in zip(draft.tokens.tolist(), draft.parents.tolist(), strict=True):
                logits[row + parent + 1, token] += 2
            row += 1 + len(draft.tokens)
        return verify(drafts, logits, *rest)

    monkeypatch.setattr("foresay.engine.compute.verify", lenient)
    wrong = train(tmp_path, how)
    plain = runs[how, "none"]
    assert wrong.texts[0] != plain.texts[0] and not same(wrong.weights, plain.weights)
    assert wrong.steps[0][f"{APART}/max"] < 1e-5


def test_another_seed_is_noticed(
    runs: dict[tuple[str, str], Trained], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = sampler_file.seed_of
    monkeypatch.setattr(sampler_file, "seed_of", lambda *parts: right(*parts) ^ 1)
    wrong = train(tmp_path, "mixin", max_steps=1)
    assert wrong.texts[0] != runs["mixin", "none"].texts[0]


def test_old_weights_are_noticed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("foresay.rl.Rollouts.replace_weights", lambda *_: None)
    stale = train(tmp_path, "function", max_steps=2)
    assert stale.steps[0][f"{APART}/max"] < 1e-5 < 0.01 < stale.steps[1][f"{APART}/max"]


def test_rollouts_of_one_step_have_noise_of_their_own(tmp_path: Path) -> None:
    """Two rollouts before one step of the optimiser, and all prompts equal."""
    more: dict[str, Any] = {"gradient_accumulation_steps": 2, "steps_per_generation": 1}
    done = train(tmp_path, "mixin", prompts=["w1 1"] * 4, max_steps=1, **more)
    assert [len(texts) for texts in done.texts] == [8, 8]
    assert len({tuple(text) for texts in done.texts for text in texts}) == 16
    assert done.rollouts.version == 0


@pytest.mark.parametrize("how", HOW)
def test_evaluation_with_another_number_of_samples(how: str, tmp_path: Path) -> None:
    trainer = make(tmp_path, how, num_generations_eval=2)
    logged = trainer.evaluate()
    assert logged[f"eval_{APART}/max"] < 1e-5 and logged["eval_foresay/target_passes"] <= 32
    rollouts = sampler_of(trainer).rollouts
    with torch.no_grad():  # as a checkpoint does that is loaded: no step, and other weights
        next(trainer.model.parameters()).mul_(1.1)
    again = trainer.evaluate()
    assert rollouts.version == 1 and again[f"eval_{APART}/max"] < 1e-5


@pytest.mark.parametrize("how", HOW)
def test_a_reward_that_raises_leaves_nothing_behind(how: str, tmp_path: Path) -> None:
    calls: list[int] = []

    def failing(completions: list[Any], **_: Any) -> list[float]:
        calls.append(len(completions))
        if len(calls) == 2:
            raise RuntimeError("no reward today")
        return [float(at) for at in range(len(completions))]

    trainer = make(tmp_path, how, reward=failing)
    with pytest.raises(RuntimeError, match="no reward today"):
        trainer.train()
    engine = sampler_of(trainer).rollouts.engine
    assert not engine.busy and not engine.scheduler.running
    engine.check_integrity()
    trainer.train()  # from the beginning, with the weights as they are
    assert len(calls) == 5 and trainer.state.global_step == 3
    assert trainer.state.log_history[0][f"{APART}/max"] < 1e-5


def test_chats_are_tokenised_by_trl(tmp_path: Path) -> None:
    prompts = [[{"role": "user", "content": text}] for text in ("w1 w2", "3 4 5")]
    done = [train(tmp_path, how, prompts=prompts, max_steps=1) for how in HOW]
    assert done[0].texts == done[1].texts


def test_the_trainers_sampling_parameters(tmp_path: Path) -> None:
    """With top_k 1 all samples of a prompt are one, and each token has probability 1."""
    done = train(tmp_path, "function", max_steps=1, top_k=1, max_completion_length=5)
    (texts,) = done.texts
    assert texts[0] == texts[1] == texts[2] == texts[3] != texts[4] and len(texts[0]) <= 5
    assert done.steps[0]["sampling/importance_sampling_ratio/max"] < 0.9  # what was cut off
