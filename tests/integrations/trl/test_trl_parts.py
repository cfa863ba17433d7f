"""Groups, seeds, and what is refused."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from foresay.errors import InputError, UnsupportedModel
from foresay.integrations.trl import ForesayGRPOTrainer, Settings, foresay_rollouts
from foresay.integrations.trl.model import model_of, target_for
from foresay.integrations.trl.sampler import runs_of, seed_of
from foresay.models.invariance import is_batch_invariant
from integrations.trl.training import SUFFIX, make, model


def sizes(prompts: str, most: int) -> list[int]:
    """Each letter is a prompt."""
    runs = runs_of([[ord(letter)] for letter in prompts], most)
    assert [run.first for run in runs] == [sum(r.size for r in runs[:i]) for i in range(len(runs))]
    return [run.size for run in runs]


def test_groups_are_runs_of_equal_prompts() -> None:
    assert sizes("aaaabbbb", 4) == [4, 4]
    assert sizes("aaaaaaaabbbb", 4) == [4, 4, 4]  # neighbours that are equal
    assert sizes("aabbbbcc", 4) == [2, 4, 2]  # a process' share begins inside a group
    assert sizes("abcc", 2) == [1, 1, 2]
    assert sizes("aab", 1) == [2, 1]  # still worth sharing
    assert sizes("abab", 2) == [1, 1, 1, 1]
    assert sizes("", 4) == []


def test_seeds() -> None:
    assert seed_of(7, 0, 1) == seed_of(7, 0, 1) < 1 << 64
    parts = [(7, 0, 1), (7, 1, 0), (70, 1), (8, 0, 1), (7, 0, 1, "eval")]
    assert len({seed_of(*each) for each in parts}) == len(parts)


def test_unequal_groups(tmp_path: Path) -> None:
    """Each row gets the answer of its own prompt: greedily, so that it is known."""
    trainer = make(tmp_path, "mixin", generation_kwargs={"do_sample": False})
    rows = [[5], [6, 7], [6, 7], [8], [8], [8], [5], [9, 9]]
    mixed, _ = trainer._generate_single_turn(rows, None, {}, 4)
    alone = [trainer._generate_single_turn([row], None, {}, 4)[0][0] for row in rows]
    assert mixed == alone and len({tuple(text) for text in mixed}) == 4


def test_the_model_is_left_as_it_is(tmp_path: Path) -> None:
    """TRL's own `forward` stays with the trainer's model, and the copy does without it."""
    trainer = make(tmp_path, "mixin")
    whole, before = model_of(trainer), {k: v.clone() for k, v in model().state_dict().items()}
    forward = vars(whole)["forward"]
    target: Any = target_for(whole, SUFFIX)
    assert "forward" not in vars(target.model) and vars(whole)["forward"] is forward
    assert all(torch.equal(v, before[k]) for k, v in whole.state_dict().items())
    assert all(p.requires_grad for p in whole.parameters()) and whole.training
    assert target.exact is None  # the first step does not wait for the trial …
    assert is_batch_invariant(target) and not target.model.training  # … which would succeed


def test_the_dtype_is_the_trainers(tmp_path: Path) -> None:
    trainer = make(tmp_path, "mixin", trained=model(torch.bfloat16), max_steps=1)
    trainer.train()
    assert trainer.sampler.rollouts.engine.target.dtype == torch.bfloat16


def test_gradient_checkpointing(tmp_path: Path) -> None:
    trainer = make(tmp_path, "function", gradient_checkpointing=True, max_steps=1)
    trainer.train()
    (row,) = [row for row in trainer.state.log_history if "loss" in row]
    assert row["sampling/sampling_logp_difference/max"] < 1e-5


def test_a_batch_that_is_masked_as_a_whole(tmp_path: Path) -> None:
    """Its process must not be missing where the others gather."""
    trainer = make(
        tmp_path, "mixin", mask_truncated_completions=True, max_completion_length=1, max_steps=1
    )
    trainer.train()
    (row,) = [row for row in trainer.state.log_history if "loss" in row]
    assert row["completions/clipped_ratio"] == 1
    assert row["sampling/sampling_logp_difference/max"] == 0


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "num_beams is 2; expected 1 with foresay's rollouts"),
    "stop strings": ({"stop_strings": ["w1"]}, "stop_strings are .'w1'.; expected None"),
    "several": ({"num_return_sequences": 2}, "num_return_sequences is 2; expected 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refused_parameters(name: str, tmp_path: Path) -> None:
    kwargs, said = REFUSED[name]
    trainer = make(tmp_path, "mixin", generation_kwargs=kwargs)
    with pytest.raises(InputError, match=said):
        trainer._generate_single_turn([[5]], None, {}, 1)
    assert trainer.sampler.rollouts is None


def test_refused_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(tmp_path, "mixin")
    state = trainer.accelerator.state

    def ask() -> None:
        trainer._generate_single_turn([[5]], None, {}, 1)

    with monkeypatch.context() as patch:
        patch.setattr(type(state), "fsdp_plugin", object(), raising=False)
        with pytest.raises(UnsupportedModel, match=r"shards its model \(FSDP\); expected"):
            ask()
    with monkeypatch.context() as patch:
        plugin = SimpleNamespace(zero_stage=3)
        patch.setattr(type(state), "deepspeed_plugin", plugin)
        with pytest.raises(UnsupportedModel, match="ZeRO stage 3"):
            ask()
    with monkeypatch.context() as patch:
        patch.setattr(trainer.model, "peft_config", {}, raising=False)
        with pytest.raises(UnsupportedModel, match="adapters; expected a model that is trained"):
            ask()
    hook = trainer.model.model.register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedModel, match="'model' has a forward hook"):
        ask()
    hook.remove()
    with monkeypatch.context() as patch:
        patch.setattr(trainer, "use_vllm", True)
        with pytest.raises(InputError, match="use_vllm is True; expected False"):
            ask()
    trainer.model.half()
    with pytest.raises(UnsupportedModel, match=r"torch\.float16; expected float32 or bfloat16"):
        ask()


def test_refused_prompts_and_tools(tmp_path: Path) -> None:
    trainer = make(tmp_path, "mixin")
    with pytest.raises(InputError, match="hold images; expected text only"):
        trainer._generate_single_turn([[5]], [object()], {}, 1)
    with pytest.raises(InputError, match="rollout_func is given; expected None"):
        ForesayGRPOTrainer(rollout_func=foresay_rollouts())
    with pytest.raises(InputError, match="has tools; expected none, or ForesayGRPOTrainer"):
        foresay_rollouts()([], SimpleNamespace(tools=[print]))
    with pytest.raises(InputError, match="compare"):
        foresay_rollouts(compare=3)  # type: ignore[arg-type]
    wrong = make(tmp_path, "mixin", Settings(drafter="crystal ball"))
    with pytest.raises(InputError, match="no drafter 'crystal ball'"):
        wrong._generate_single_turn([[5]], None, {}, 1)
