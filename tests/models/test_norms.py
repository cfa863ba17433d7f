"""The core's norm against transformers' own, and that a row's bits are its own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers.models.gemma2.modeling_gemma2 import Gemma2RMSNorm
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from foresay import _core
from foresay.errors import InputError
from foresay.models.cpu.norms import CoreNorm, fuse_norms
from models import zoo


def norm(width: int) -> LlamaRMSNorm:
    layer = LlamaRMSNorm(width, 1e-5)
    torch.nn.init.normal_(layer.weight, generator=torch.Generator().manual_seed(width))
    return layer.to(torch.bfloat16)


@pytest.mark.parametrize("width", [1, 7, 16, 33, 576])
@pytest.mark.parametrize("scale", [1e-3, 1.0, 1e4])
def test_the_same_as_transformers(width: int, scale: float) -> None:
    layer = norm(width)
    x = (torch.randn(2, 9, width) * scale).to(torch.bfloat16)
    with torch.inference_mode():
        given, wanted = CoreNorm(layer.weight, 1e-5)(x), layer(x)
    torch.testing.assert_close(given, wanted, rtol=2**-6, atol=0)
    assert (given != wanted).float().mean() < 0.02  # a rounding may fall to the other side


def test_rows_do_not_see_each_other() -> None:
    layer = CoreNorm(norm(100).weight, 1e-5)
    x = torch.randn(40, 100).to(torch.bfloat16)
    whole = layer(x)
    for rows in (1, 3, 17):
        assert torch.equal(layer(x[:rows]), whole[:rows])
    spoiled = x.clone()
    spoiled[5] = torch.nan
    assert layer(spoiled)[5].isnan().all()
    assert torch.equal(layer(spoiled)[6:], whole[6:])
    assert torch.equal(
        layer(x.reshape(4, 10, 100).transpose(0, 1)).transpose(0, 1).reshape(40, 100), whole
    )


def test_only_what_computes_the_same_is_replaced() -> None:
    llama = zoo.make("llama", dtype=torch.bfloat16)
    assert fuse_norms(llama) == 2 * llama.config.num_hidden_layers + 1
    assert fuse_norms(zoo.make("gemma2", dtype=torch.bfloat16)) == 0
    assert fuse_norms(zoo.make("llama")) == 0  # float32
    assert isinstance(zoo.make("gemma2").model.norm, Gemma2RMSNorm)


def test_wrong_arrays_are_refused() -> None:
    ones, rows = np.ones(8, np.uint16), np.ones((3, 8), np.uint16)
    for x, weight, out in (
        (rows, ones[:7], rows.copy()),
        (rows, ones, np.ones((2, 8), np.uint16)),
        (rows.astype(np.float32), ones, rows.copy()),
        (rows, np.ones((8, 1), np.uint16), rows.copy()),
        (rows, ones, rows),
        (rows, ones, np.ones((3, 16), np.uint16)[:, ::2]),
    ):
        with pytest.raises(InputError):
            _core.rms_norm(x, weight, 1e-5, out)
    with pytest.raises(TypeError):
        _core.rms_norm([1, 2], ones, 1e-5, rows)
