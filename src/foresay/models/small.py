"""Small models that are trained to draft: Llamas of a few narrow layers.

A new one has the vocabulary of its target. Its embedding, which is its output embedding as well,
begins with the principal components of the target's.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models.load_transformers import read_model
from foresay.models.options import check_sizes
from foresay.models.weights.folder import tensors_of

__all__ = ["ModelShape", "SmallModel", "new_model", "read_small"]

SmallModel: TypeAlias = LlamaForCausalLM


@dataclass(frozen=True, slots=True)
class ModelShape:
    """hidden        width of the residual stream, a multiple of 32 for each head
    layers        of attention and MLP
    heads         of attention
    intermediate  width of the MLP
    """

    hidden: int
    layers: int
    heads: int
    intermediate: int


def new_model(embedding: Tensor, context: int, shape: ModelShape, seed: int) -> SmallModel:
    """A model that has learned nothing but the embedding, of a target with this one.

    Raises: InputError for sizes that do not fit each other.
    """
    check_sizes(shape.hidden, shape.heads)
    table = embedding.detach().float()
    if shape.hidden > table.shape[1]:
        raise InputError(
            f"hidden is {shape.hidden}; expected at most {table.shape[1]}, the target's"
        )
    config = LlamaConfig(
        vocab_size=len(table),
        hidden_size=shape.hidden,
        intermediate_size=shape.intermediate,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.heads,
        num_key_value_heads=shape.heads,
        max_position_embeddings=context,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=None,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: SmallModel = LlamaForCausalLM(config)
    directions = torch.linalg.eigh(table.T @ table)[1][:, -shape.hidden :]
    components = table @ directions
    scale = 0.02 / components.square().mean().sqrt()
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(components * scale)
    model.to(table.device)  # type: ignore[arg-type]
    return model


def read_small(folder: Path, vocabulary: int, device: str) -> SmallModel:
    """A draft model in float32.

    Raises: ModelError, UnsupportedModel for another architecture, InputError for another
    vocabulary.
    """
    model = read_model(folder, torch.float32)
    if not isinstance(model, LlamaForCausalLM):
        raise UnsupportedModel(
            f"'{folder}' is a {model.config.model_type}; expected a llama, as `foresay train model`"
            " writes it"
        )
    missing = model.state_dict().keys() - tensors_of(folder).keys() - {"lm_head.weight"}
    if missing:
        raise ModelError(
            f"'{folder}' has no tensor '{min(missing)}', so it is no whole model; expected one as "
            "`foresay train model` writes it"
        )
    own = int(model.config.vocab_size)
    if own != vocabulary:
        raise InputError(
            f"the draft model's vocabulary has {own} tokens and the target's has {vocabulary}; "
            "expected the same"
        )
    model.to(device)  # type: ignore[arg-type]
    return model
