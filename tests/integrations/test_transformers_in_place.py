"""model.generate where the weights are used in place, as on a GPU: here on the CPU, by the plain
target."""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch

from foresay.errors import UnsupportedModel
from foresay.integrations.transformers import generate, twin
from foresay.models import load_transformers
from foresay.models.options import LoadOptions
from integrations.generating import config, make, padded
from integrations.test_transformers_weights import _by_data, _other_storage, _train, afresh

MEMORY = 1 << 24


class Made:
    """The targets that were made, as a GPU's `make_target` would."""

    def __init__(self) -> None:
        self.targets: list[Any] = []
        self.options: list[LoadOptions] = []

    def make_target(self, model: Any, options: LoadOptions, *, try_exact: bool = True) -> Any:
        target = load_transformers.plain_target_of(model)
        target.memory = options.memory
        self.targets.append(weakref.proxy(target))
        self.options.append(options)
        return target


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    found = Made()
    module: Any = ModuleType("in_place")
    module.make_target = found.make_target
    monkeypatch.setitem(sys.modules, "in_place", module)
    monkeypatch.setitem(load_transformers._DEVICES, "cpu", "in_place")
    monkeypatch.setattr(twin, "_is_on_gpu", lambda model: True)
    yield found


def asked(**more: Any) -> dict[str, Any]:
    return {**padded(60, 40), "do_sample": False, "max_new_tokens": 12, "memory": MEMORY, **more}


def with_drafts(model: Any, **more: Any) -> Any:
    return model.generate(**asked(**more), custom_generate=generate)


@pytest.mark.parametrize("change", [_train, _by_data, _other_storage])
def test_changed_weights_are_used(change: Any, made: Made) -> None:
    """Prompts are long enough that their beginnings would be kept."""
    torch.manual_seed(0)
    model: Any = make("llama")
    with_drafts(model)
    for _ in range(2):
        change(model, padded(60, 40))
        plain = asked()
        del plain["memory"]
        assert torch.equal(with_drafts(model), afresh(model).generate(**plain))
    # Made anew only where the tensors are others.
    assert len(made.targets) == (3 if change is _other_storage else 1)
    assert made.options[0].memory == MEMORY and made.options[0].device == "cpu"


def test_nothing_of_the_call_before_is_used(made: Made) -> None:
    model: Any = make("llama")
    with_drafts(model)
    target, (_, engine) = made.targets[0], next(iter(twin._HELD[model].engines.values()))
    assert target.version == 1 and not engine.scheduler.prefixes.held
    with_drafts(model)
    assert len(made.targets) == 1 and target.version == 2 and not engine.scheduler.prefixes.held
    with_drafts(model, memory=2 * MEMORY)
    assert made.options[1].memory == 2 * MEMORY


def test_the_weights_are_the_callers_and_the_model_stays_as_it_was(made: Made) -> None:
    model: Any = make("llama").train()
    before = model.config._attn_implementation
    with_drafts(model)
    own = made.targets[0].model
    for mine, theirs in zip(own.parameters(), model.parameters(), strict=True):
        assert mine.data_ptr() == theirs.data_ptr()
        assert not mine.requires_grad and theirs.requires_grad
    for mine, theirs in zip(own.buffers(), model.buffers(), strict=True):
        assert mine is theirs
    assert model.training and model.config._attn_implementation == before
    model(**padded(9), labels=padded(9)["input_ids"]).loss.backward()


def test_nothing_keeps_a_model_alive(made: Made) -> None:
    model: Any = make("llama")
    with_drafts(model)
    gone, target = weakref.ref(model), made.targets[0]
    del model
    gc.collect()
    assert gone() is None
    with pytest.raises(ReferenceError):
        _ = target.version


def test_float16_is_taken_and_several_devices_are_refused(made: Made) -> None:
    half: Any = make("llama", dtype=torch.float16)
    assert with_drafts(half).shape == (2, 72)
    whole: Any = make("llama", dtype=torch.float64)
    with pytest.raises(UnsupportedModel, match=r"float64; expected float32, bfloat16 or float16$"):
        with_drafts(whole)


def test_several_devices_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model: Any = make("llama")

    class There:
        device = torch.device("cuda:1")

    monkeypatch.setattr(twin, "tensors_of", lambda of: {"a": next(of.parameters()), "b": There()})
    with pytest.raises(UnsupportedModel, match="llama are on cpu and cuda:1; expected one device"):
        generate(model, padded(9)["input_ids"], [], [], config(max_length=12))
