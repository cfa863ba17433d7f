"""What `replace_weights` refuses, keeps and counts, beyond what every target must do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from foresay.errors import InputError
from foresay.models.cpu.linears import PackedLinear, RowRange
from foresay.models.load_transformers import plain_target_of, target_of
from foresay.models.target import SequenceInput
from models import zoo
from models.targets import cpu_target

UP = "model.layers.0.mlp.up_proj"


@pytest.mark.parametrize("make", [target_of, plain_target_of])
def test_a_bias_comes_with_its_weight(make: Any) -> None:
    model = zoo.make("qwen2")
    given = dict(model.state_dict())
    bias = next(name for name in given if name.endswith(".bias"))
    target = make(zoo.make("qwen2"))
    with pytest.raises(InputError, match=r"is given without .*\.weight; expected both"):
        target.replace_weights({bias: given[bias] + 1})
    assert target.version == 0
    weight = bias.replace(".bias", ".weight")
    target.replace_weights({bias: given[bias] + 1, weight: given[weight]})
    assert target.version == 1


def test_row_counts_that_were_found_stay() -> None:
    target = cpu_target(zoo.make("llama"))
    layer: Any = target.model.get_submodule(UP)
    assert isinstance(layer, PackedLinear)
    layer.decode, layer.prefill = RowRange(2, 4, 2), RowRange(16, 32, 16)
    target.replace_weights({f"{UP}.weight": torch.ones(48, 32)})
    replaced: Any = target.model.get_submodule(UP)
    assert replaced is not layer
    assert (replaced.decode, replaced.prefill) == (layer.decode, layer.prefill)


def test_an_interrupt_counts_the_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Some of the weights are others then: what the old ones computed must not be used."""
    target = target_of(zoo.make("llama"))
    text = zoo.tokens(np.random.default_rng(0), 9)
    before = target.forward([SequenceInput.of(target, target.open(), text)]).logits

    def interrupted(self: Any, path: str, module: Any) -> None:
        set_submodule(self, path, module)
        raise KeyboardInterrupt

    set_submodule = torch.nn.Module.set_submodule
    with monkeypatch.context() as patch:
        patch.setattr(torch.nn.Module, "set_submodule", interrupted)
        with pytest.raises(KeyboardInterrupt):
            target.replace_weights({f"{UP}.weight": torch.ones(48, 32)})
    assert target.version == 1
    after = target.forward([SequenceInput.of(target, target.open(), text)]).logits
    assert not torch.equal(before, after)


def test_strided_weights_are_taken_as_they_read() -> None:
    """Also without a copy, where a layer of the core reads them in one piece."""
    for dtype in (torch.float32, torch.bfloat16):
        norm = torch.linspace(0.5, 2.0, 64, dtype=dtype)[::2]
        models: list[Any] = [zoo.make("llama") for _ in range(2)]
        targets = [target_of(model.to(dtype)) for model in models]
        text, rows = zoo.tokens(np.random.default_rng(1), 9), []
        for target, given in zip(targets, (norm, norm.contiguous()), strict=True):
            target.replace_weights({"model.norm.weight": given}, copy=False)
            rows.append(target.forward([SequenceInput.of(target, target.open(), text)]).logits)
        assert torch.equal(*rows)
