"""Linear layers of transformers' modules, quantised: for models that the core's decoder has not.

Everything else of such a model stays as it is, in float32.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from foresay._core import BlockLinear
from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models.cpu.linears import linear_layers
from foresay.models.options import Quantise
from foresay.models.weights.gguf_values import BLOCK, quantised

__all__ = ["QuantisedLinear", "quantise_linears"]


class QuantisedLinear(nn.Module):
    """A Linear with quantised weights. Its rows are quantised one by one, so it is batch-invariant.

    Raises: InputError for weights that are no numbers.
    """

    def __init__(self, layer: nn.Linear | Conv1D, format: Quantise) -> None:
        super().__init__()
        weight = layer.weight.t() if isinstance(layer, Conv1D) else layer.weight
        self.out_features, self.in_features = weight.shape
        stored = quantised(_numbers(weight), format).reshape(-1)
        bias = None if layer.bias is None else _numbers(layer.bias)
        self.core = BlockLinear(
            format.upper(), stored, self.out_features, self.in_features, bias=bias
        )

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, self.in_features).contiguous()
        out = x.new_empty(len(rows), self.out_features)
        self.core.multiply(rows.numpy(), out.numpy(), torch.get_num_threads())
        return out.reshape(*x.shape[:-1], self.out_features)


def quantise_linears(model: nn.Module, format: Quantise) -> None:
    """Replace the linear layers of a model of float32.

    Mutates: the model. Raises: UnsupportedModel, before anything is replaced, for a width that is
    no multiple of 32, and for weights that are in no linear layer; ModelError for weights that are
    no numbers.
    """
    for name, weight in model.named_parameters():
        if weight.ndim > 2:
            raise UnsupportedModel(
                f"{type(model).__name__} cannot be quantised: '{name}' is of {weight.ndim} "
                "dimensions; expected the weights of linear layers, of 2"
            )
    layers = list(linear_layers(model))
    for _, _, layer, path in layers:
        ins = layer.weight.shape[0 if isinstance(layer, Conv1D) else 1]
        if ins % BLOCK:
            raise UnsupportedModel(
                f"{type(model).__name__} cannot be quantised: '{path}' has {ins} inputs; expected "
                f"a multiple of {BLOCK}"
            )
    for parent, name, layer, path in layers:
        try:
            setattr(parent, name, QuantisedLinear(layer, format))
        except InputError as error:
            raise ModelError(f"the weight '{path}' cannot be quantised: {error}") from error


def _numbers(weight: Tensor) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.ascontiguousarray(weight.detach().float().numpy())
