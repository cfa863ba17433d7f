"""A model's embeddings and what of its configuration says to which other weights they fit."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights.folder import config_of, tensors_of
from foresay.models.weights.stored import StoredModel, not_installed

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
    config = _text_config(config_of(model.folder))
    sizes = []
    for key in ("hidden_size", "vocab_size", "num_hidden_layers"):
        value = config.get(key)
        if type(value) is not int or value < 1:
            raise ModelError(
                f"'{model.folder}': '{key}' of config.json is {value!r:.60}; expected a whole "
                "number from 1"
            )
        sizes.append(value)
    tokenizer = model.folder / "tokenizer.json"
    try:
        mark = hashlib.sha256(tokenizer.read_bytes()).hexdigest() if tokenizer.is_file() else None
    except OSError as error:
        raise ModelError(f"'{tokenizer}' cannot be read: {error.strerror or error}") from error
    hidden, vocabulary, layers = sizes
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
    try:
        from gguf import GGMLQuantizationType
        from gguf.quants import dequantize
    except ImportError as error:
        raise not_installed(error) from error
    raw, tensor = model.bytes_of(name), model.tensors[name].tensor
    try:
        with np.errstate(all="ignore"):
            values: NDArray[np.float32] = dequantize(
                np.asarray(raw).reshape(tensor.shape[0], -1), GGMLQuantizationType(tensor.kind)
            )
    except NotImplementedError as error:
        raise UnsupportedModel(
            f"'{model.gguf}': the tensor '{tensor.name}' is of type {tensor.kind.name}, which "
            "cannot be decoded"
        ) from error
    if not np.isfinite(values).all():
        raise ModelError(f"'{model.gguf}': the tensor '{tensor.name}' holds what is no number")
    return torch.from_numpy(values.reshape(tensor.shape)).bfloat16()


def _text_config(config: Mapping[str, Any]) -> Mapping[str, Any]:
    inner = config.get("text_config")
    return inner if isinstance(inner, dict) else config
