"""What layers see: the rule that is found is the model's, and a wrong one does not pass."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from foresay.errors import UnsupportedModel
from foresay.models import attention, checks
from foresay.models.target import SequenceInput
from foresay.models.visibility import Visible, narrow, narrowed
from models import zoo
from models.targets import cpu_target

WINDOWED = ["mistral", "gemma2", "gemma3_text", "gpt_oss", "llama4_text", "cohere2"]


def others(right: Visible, size: int) -> Iterator[Visible]:
    """What a layer might be taken to see instead."""
    wrong = [Visible(), Visible(size), Visible(size - 1), Visible(2 * size), Visible(0, size)]
    yield from (rule for rule in [*wrong, Visible(0, size + 1)] if rule != right)


@pytest.mark.parametrize("size", [zoo.WINDOW, 4096])
@pytest.mark.parametrize("name", WINDOWED)
def test_a_wrong_window_of_any_layer_is_found(name: str, size: int) -> None:
    sizes: dict[str, Any] = {"sliding_window": size, "max_position_embeddings": 3 * size}
    if name == "llama4_text":
        sizes = {**sizes, "sliding_window": None, "attention_chunk_size": size}
    model = zoo.make(name, **sizes)
    target = cpu_target(model, deterministic=False)
    checks.check_logits(target)
    right = target.layers
    assert {max(layer.window, layer.chunk) for layer in right} <= {0, size}
    for at, layer in enumerate(right):
        for wrong in others(layer, size):
            target.layers = [*right[:at], wrong, *right[at + 1 :]]
            with pytest.raises(UnsupportedModel, match=name):
                checks.check_logits(target)
    target.layers = right[:-1]
    with pytest.raises(UnsupportedModel, match=name):
        checks.check_logits(target)


@pytest.mark.parametrize("name", WINDOWED)
def test_the_logits_alone_tell_a_wrong_window(name: str) -> None:
    """Where the rule that was asked is right, and the attention does another thing."""
    target = cpu_target(zoo.make(name), deterministic=False)
    texts, trees = checks._texts_and_trees(target)
    with narrowed(target.model, target.layers) as layers:
        target.model.set_attn_implementation("eager")
        pairs = zip(texts, trees, strict=True)
        plain = torch.cat([checks._plainly(target, text, tree) for text, tree in pairs])
        target.model.set_attn_implementation(attention.NAME)
        for at, layer in enumerate(layers):
            for wrong in (Visible(), Visible(3), Visible(0, 4)):
                if wrong == layer:
                    continue
                with checks._seeing(target, [*layers[:at], wrong, *layers[at + 1 :]]):
                    given = checks._in_one_step(target, texts, trees)
                assert checks._difference(given, plain) > 10 * checks._CLOSE[target.dtype]


def test_the_configuration_is_as_it_was() -> None:
    model = zoo.make("gemma3_text")
    before, plain = model.config.to_dict(), zoo.plain_logits(model, range(3, 60))
    target = cpu_target(model)
    assert model.config.to_dict() == before
    text = np.arange(3, 60, dtype=np.int32)
    given = target.forward([SequenceInput.of(target, target.open(), text)]).logits
    torch.testing.assert_close(given, plain[-1:], rtol=0, atol=1e-4)
    with pytest.raises(ZeroDivisionError), narrowed(model, target.layers):
        assert model.config.sliding_window < zoo.WINDOW
        raise ZeroDivisionError
    assert model.config.to_dict() == before


def test_a_window_that_was_not_seen_is_refused() -> None:
    model = zoo.make("mistral")
    full = [Visible() for _ in range(model.config.num_hidden_layers)]
    said = r"the layers \[0, 1\] of mistral have another attention mask"
    with pytest.raises(UnsupportedModel, match=said), narrowed(model, full):
        pass


def test_narrow_layers_keep_their_kind() -> None:
    layers = [Visible(), Visible(4096), Visible(0, 8192), Visible(2), Visible(0, 3)]
    for wide, small in zip(layers, narrow(layers), strict=True):
        assert (wide.window > 0, wide.chunk > 0) == (small.window > 0, small.chunk > 0)
        assert small.window <= wide.window and small.chunk <= wide.chunk
        assert max(small.window, small.chunk) < 9  # the check's texts are longer
    assert narrow(layers[3:]) == layers[3:]
