"""Whole layers in the core: what they compute is what the model's own layers do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foresay import _core
from foresay.errors import InputError
from foresay.models import checks
from foresay.models.cpu.decoder_layers import CoreDecoderLayer
from foresay.models.cpu.target import CpuTarget
from foresay.models.load_transformers import target_of
from foresay.models.target import SequenceInput
from models import zoo
from models.targets import cpu_target, zoo_target

FUSED = ("llama", "mistral", "qwen2", "qwen3")


def blocks(model: CpuTarget) -> list[CoreDecoderLayer]:
    return [module for module in model.model.modules() if isinstance(module, CoreDecoderLayer)]


def logits(model: CpuTarget) -> Tensor:
    """Of prompts longer than windows, then of trees, then of single rows."""
    random = np.random.default_rng(5)
    kvs, rows = [model.open() for _ in range(3)], []
    for sizes, nodes in (((40, 3, 70), 0), ((1, 5, 1), 9), ((1, 1, 1), 0)):
        parts = [
            SequenceInput.of(model, kv, zoo.tokens(random, size), zoo.tree(random, nodes))
            for kv, size in zip(kvs, sizes, strict=True)
        ]
        rows.append(model.forward(parts).logits.float())
        for part in parts:
            part.keep()
    return torch.cat(rows)


@pytest.mark.parametrize("name", zoo.SUPPORTED)
def test_the_layers_that_are_known_are_fused(name: str) -> None:
    made = zoo_target(name, torch.bfloat16)
    assert len(blocks(made)) == (2 if name in FUSED else 0)
    assert not blocks(zoo_target(name))  # float32
    assert made.exact


@pytest.mark.parametrize("name", FUSED)
def test_the_same_as_the_models_own_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fused = zoo_target(name, torch.bfloat16)
    monkeypatch.setattr("foresay.models.cpu.modules.fuse_layers", lambda model: {})
    plain = cpu_target(zoo.make(name, dtype=torch.bfloat16), try_exact=False)
    assert blocks(fused) and not blocks(plain)
    given, wanted = logits(fused), logits(plain)
    assert checks.alike(given, wanted)
    assert (given != wanted).float().mean() < 0.5  # but for an activation, the same roundings


def test_many_rows_on_several_threads_have_the_same_bits() -> None:
    alone = target_of(zoo.make("qwen3", dtype=torch.bfloat16), threads=1)
    several = target_of(zoo.make("qwen3", dtype=torch.bfloat16), threads=3)
    text = zoo.tokens(np.random.default_rng(1), 200)
    given = [
        model.forward([SequenceInput.of(model, model.open(), text)]).logits
        for model in (alone, several)
    ]
    assert torch.equal(*given)


def other_scale(layer: CoreDecoderLayer) -> None:
    layer.scaling *= 1.5


def swapped(layer: Any) -> None:
    layer.mlp.gate_proj, layer.mlp.up_proj = layer.mlp.up_proj, layer.mlp.gate_proj


def unturned(layer: Any) -> None:
    layer.self_attn.q_proj, layer.self_attn.o_proj = layer.self_attn.o_proj, layer.self_attn.q_proj


@pytest.mark.parametrize("wrong", [other_scale, swapped, unturned])
def test_a_wrong_block_is_not_used(
    wrong: Callable[[Any], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    def made(self: CoreDecoderLayer, layer: Any) -> None:
        if wrong is not other_scale:
            wrong(layer)
        build(self, layer)
        if wrong is other_scale:
            wrong(self)
        else:
            wrong(layer)  # back

    build = CoreDecoderLayer.__init__
    square = {"hidden_size": 64}  # then queries and outputs have the same shape
    wanted = logits(cpu_target(zoo.make("llama", dtype=torch.bfloat16, **square)))
    monkeypatch.setattr(CoreDecoderLayer, "__init__", made)
    model = cpu_target(zoo.make("llama", dtype=torch.bfloat16, **square))
    assert not blocks(model)
    assert checks.alike(logits(model), wanted)


def test_wrong_parts_and_arrays_are_refused() -> None:
    def linear(outs: int, ins: int) -> _core.Linear:
        return _core.Linear(np.zeros((outs, ins), np.uint16))

    wide, norm = np.ones(32, np.uint16), (np.ones(32, np.uint16), 1e-5)
    square, up, down = linear(32, 32), linear(48, 32), linear(32, 48)
    _core.DecoderLayer(square, square, square, square, up, up, down, norm, norm, 16)
    for parts, said in (
        ((square, square, square, square, up, up, down, norm, norm, 15), "even"),
        ((square, square, square, square, up, up, down, norm, norm, 0), "even"),
        ((square, square, square, square, up, square, down, norm, norm, 16), "up has the width"),
        ((square, square, square, square, up, up, up, norm, norm, 16), "down has the width"),
        ((square, up, square, square, up, up, down, norm, norm, 16), "value has the width"),
        ((square, square, square, square, up, up, down, (wide[:31], 1.0), norm, 16), "attention"),
        ((square, square, square, square, up, up, down, norm, norm, 16, norm), "norm of a head"),
    ):
        with pytest.raises(InputError, match=said):
            _core.DecoderLayer(*parts)
    with pytest.raises(TypeError):
        _core.DecoderLayer(None, square, square, square, up, up, down, norm, norm, 16)  # type: ignore

    block = _core.DecoderLayer(square, square, square, square, up, up, down, norm, norm, 16)
    kv = _core.Kv([(2, 16, 16)], "bfloat16")
    step = _core.AttentionStep([kv], np.array([0, 3], np.int32), np.array([-1, 0, 1], np.int32))
    x, turns = np.zeros((3, 32), np.uint16), np.zeros((3, 16), np.uint16)
    block.forward(step, 0, x, turns, turns, 0.25)
    for given, said in (
        ((0, x[:, :31], turns, turns, 0.25), "x has the shape"),
        ((0, x, turns[:2], turns, 0.25), "cos has 2 rows"),
        ((0, x, turns, turns[:, :8], 0.25), "sin has the shape"),
        ((0, x.repeat(2, 1)[:, ::2], turns, turns, 0.25), "x has rows"),
        ((0, x.repeat(2, 0)[::2], turns, turns, 0.25), "x is not contiguous"),
        ((0, x.astype(np.float32), turns, turns, 0.25), "another dtype"),
        ((1, x, turns, turns, 0.25), "layer 1 does not exist"),
        ((0, x[:2].copy(), turns[:2], turns[:2], 0.25), "query has 2 rows"),
        ((0, x, turns, turns, np.nan), "scaling"),
        ((0, x, turns, turns, 0.25, 0, 0, 0), "threads"),
    ):
        with pytest.raises(InputError, match=said):
            block.forward(step, *given)
    small = _core.AttentionStep(
        [_core.Kv([(2, 16, 16)], "float32")],
        np.array([0, 3], np.int32),
        np.arange(-1, 2, dtype=np.int32),
    )
    with pytest.raises(InputError, match="float32"):
        block.forward(small, 0, x, turns, turns, 0.25)
