"""A model's embeddings and what of its configuration says to which other weights they fit."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights.folder import config_of, tensors_of
from foresay.models.weights.gguf_values import decoded
from foresay.models.weights.hashes import readable
from foresay.models.weights.settings import Settings
from foresay.models.weights.stored import StoredModel

__all__ = ["ModelFacts", "Tables", "facts_of", "tables_of"]

_EMBEDDING, _OUTPUT = "model.embed_tokens.weight", "lm_head.weight"


@dataclass(frozen=True, slots=True)
class ModelFacts:
    """The sizes of a model, and the sha256 of its tokenizer.json if it has one."""

    hidden: int
    vocabulary: int
    layers: int
    tokenizer: str | None


@dataclass(frozen=True, slots=True, eq=False)
class Tables:
    """embedding and output [vocabulary, width]: what tokens go in as and come out by. The same
    tensor if they are tied."""

    embedding: Tensor
    output: Tensor


def facts_of(model: StoredModel) -> ModelFacts:
    """Of a model on this machine, from its config.json and tokenizer.json.

    Raises: ModelError.
    """
    config = config_of(model.folder)
    inner = config.get("text_config")
    settings = Settings(
        inner if isinstance(inner, dict) else config,
        f"'{model.folder}'",
        "'{}' of config.json",
    )
    hidden, vocabulary, layers = (
        settings.whole(key) for key in ("hidden_size", "vocab_size", "num_hidden_layers")
    )
    tokenizer = model.folder / "tokenizer.json"
    with readable(tokenizer):
        mark = hashlib.sha256(tokenizer.read_bytes()).hexdigest() if tokenizer.is_file() else None
    return ModelFacts(hidden, vocabulary, layers, mark)


def tables_of(model: StoredModel) -> Tables:
    """The embeddings of a model on this machine: float32 where they are stored so, else bfloat16.

    Raises: ModelError naming the tensor that is missing or damaged, UnsupportedModel for one of
    another type.
    """
    if model.gguf is not None:
        embedding = _of_gguf(model, _EMBEDDING)
        tied = _OUTPUT not in model.tensors
        return Tables(embedding, embedding if tied else _of_gguf(model, _OUTPUT))
    found = tensors_of(model.folder)
    if _EMBEDDING not in found:
        raise UnsupportedModel(f"'{model.folder}' has no tensor '{_EMBEDDING}'; expected one")

    def read(name: str) -> Tensor:
        stored = found[name]
        values = torch.from_numpy(stored.rows(0, stored.shape[0]))
        return values if stored.kind == "F32" else values.bfloat16()

    embedding = read(_EMBEDDING)
    return Tables(embedding, read(_OUTPUT) if _OUTPUT in found else embedding)


def _of_gguf(model: StoredModel, name: str) -> Tensor:
    tensor = model.tensors[name].tensor
    values = decoded(str(model.gguf), tensor, model.bytes_of(name))
    if not np.isfinite(values).all():
        raise ModelError(f"'{model.gguf}': the tensor '{tensor.name}' holds what is no number")
    return torch.from_numpy(values.reshape(tensor.shape)).bfloat16()
