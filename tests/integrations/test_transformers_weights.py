"""The model that generates stays its owner's: as it was, free to go, and free to change."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest
import torch
from torch import Tensor

from foresay.integrations.transformers import generate, twin
from foresay.models.cpu.target import CpuTarget
from integrations.generating import config, make, padded
from pairs import pairs


def test_the_model_stays_as_it_was() -> None:
    model: Any = make("llama").train()
    model.config.attention_dropout = 0.0
    inputs: dict[str, Any] = {**padded(20, 9), "do_sample": False, "max_new_tokens": 20}

    def look() -> list[Any]:
        modules = [(path, type(m), m.training) for path, m in model.named_modules()]
        weights = [(p.data_ptr(), p.requires_grad, p._version) for p in model.parameters()]
        return [modules, weights, model.config.to_dict(), model.config._attn_implementation]

    before, text = look(), model.generate(**inputs)
    assert torch.equal(model.generate(**inputs, custom_generate=generate), text)
    assert look() == before
    assert torch.equal(model.generate(**inputs), text)
    model(**padded(9), labels=padded(9)["input_ids"]).loss.backward()
    assert all(p.grad is not None for p in model.parameters())


def test_nothing_keeps_a_model_alive() -> None:
    model: Any = make("llama")
    model.generate(**padded(9), max_new_tokens=4, custom_generate=generate)
    gone = weakref.ref(model)
    assert model in twin._HELD
    del model
    gc.collect()
    assert gone() is None


def _train(model: Any, inputs: dict[str, Tensor]) -> None:
    step = torch.optim.AdamW(model.parameters(), lr=0.05)
    model(**inputs, labels=inputs["input_ids"]).loss.backward()
    step.step()
    step.zero_grad()


def _by_data(model: Any, inputs: dict[str, Tensor]) -> None:
    for weight in model.parameters():
        weight.data.mul_(0.8 + 0.4 * torch.rand(weight.shape))


def _other_storage(model: Any, inputs: dict[str, Tensor]) -> None:
    for weight in model.parameters():
        weight.data = weight.data * (0.8 + 0.4 * torch.rand(weight.shape)).to(weight.dtype)


def afresh(model: Any) -> Any:
    """A model with the same weights, which nobody has seen."""
    other = make(model.config.model_type, dtype=model.dtype)
    other.load_state_dict(model.state_dict())
    return other


@pytest.mark.parametrize(
    ("change", "name", "dtype"),
    pairs([_train, _by_data, _other_storage], ["llama", "gpt2"], [torch.float32, torch.bfloat16]),
)
def test_changed_weights_are_used(
    change: Any, name: str, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same prompts, long enough that their beginnings are kept: those are stale as well."""
    torch.manual_seed(0)
    model: Any = make(name, dtype=dtype)
    inputs, given = padded(30, 24), config(max_length=60, eos_token_id=2, pad_token_id=0)
    asked: dict[str, Any] = {"generation_config": given, "custom_generate": generate}
    first = model.generate(**inputs, **asked)
    held = twin.held_for(model, 1 << 24)
    change(model, inputs)
    second = model.generate(**inputs, **asked)
    assert twin.held_for(model, 1 << 24) is held  # not all was made again
    assert torch.equal(second, afresh(model).generate(**inputs, **asked))
    if dtype == torch.float32:
        assert torch.equal(second, model.generate(**inputs, generation_config=given))
    assert first.shape != second.shape or not torch.equal(first, second)
    # If nobody looked, it would be found here.
    change(model, inputs)
    wanted = afresh(model).generate(**inputs, **asked)
    monkeypatch.setattr(CpuTarget, "replace_weights", lambda *_, **__: None)
    stale = model.generate(**inputs, **asked)
    assert stale.shape != wanted.shape or not torch.equal(stale, wanted)


def test_kept_beginnings_are_of_the_weights_of_now(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = make("llama")
    inputs, given = padded(60), config(max_length=80)
    asked: dict[str, Any] = {"generation_config": given, "custom_generate": generate}
    for _ in range(2):
        model.generate(**inputs, **asked)
        _by_data(model, inputs)
    assert torch.equal(model.generate(**inputs, **asked), model.generate(**inputs, max_length=80))
    monkeypatch.setattr("foresay.engine.prefixes.Prefixes.drop_oldest", lambda _: False)
    _by_data(model, inputs)
    wrong = model.generate(**inputs, **asked)
    assert not torch.equal(wrong, model.generate(**inputs, max_length=80))
