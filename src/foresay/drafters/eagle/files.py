"""Heads in folders: config.json and safetensors, in the layout of published EAGLE-3 heads.

What a head brings itself and what it takes from its target:

    embed_tokens.weight  where it is missing, the target's embedding is used
    lm_head.weight       rows for the tokens that it can draft (`draft_vocab_size`). Our own heads
                         share the target's rows instead ("shared_output")
    d2t                  int[drafted]: token id minus row; missing if it can draft all tokens
    t2d                  bool[vocabulary]: whether a token can be drafted; may be missing

A head of ours also says in "foresay" for which target it was trained.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.drafters.eagle.head import EagleHead, HeadShape, weights_of
from foresay.errors import ModelError, UnsupportedModel
from foresay.files import whole_file
from foresay.models.tables import ModelFacts, facts_of, tables_of
from foresay.models.weights.folder import ExpectedTensors, check, config_of, tensors_of
from foresay.models.weights.hashes import sha256_of
from foresay.models.weights.safetensors import SafeTensor
from foresay.models.weights.settings import Settings
from foresay.models.weights.stored import StoredModel

__all__ = ["TargetName", "load_head", "save_head", "target_name"]

FORMAT = 1
_KINDS: dict[str, np.dtype[Any]] = {
    "I64": np.dtype("<i8"),
    "I32": np.dtype("<i4"),
    "BOOL": np.dtype("?"),
}


@dataclass(frozen=True, slots=True)
class TargetName:
    """For which target a head was trained: its name, and what must be equal."""

    name: str
    facts: ModelFacts


def target_name(folder: Path) -> str | None:
    """The model that a head of ours was trained for; None for other heads.

    Raises: ModelError.
    """
    own = config_of(check(folder)).get("foresay")
    target = own.get("target") if isinstance(own, dict) else None
    name = target.get("name") if isinstance(target, dict) else None
    return name if isinstance(name, str) else None


def load_head(
    folder: Path, model: StoredModel, *, dtype: torch.dtype = torch.float32, device: str = "cpu"
) -> EagleHead:
    """The head in a folder, with the tables of `model`, whose features it will continue.

    Raises: ModelError naming what is missing, damaged, too much, or does not fit the model;
    UnsupportedModel for a head of another kind.
    """
    config, found = config_of(check(folder)), _named(tensors_of(folder), folder)
    facts = facts_of(model)
    shape = _shape(folder, config, found, facts, model.folder)
    # Sizes are compared with what the file holds before anything is made of them.
    expected = weights_of(shape)
    if shape.own_output:
        expected["lm_head.weight"] = (shape.drafted, shape.hidden)
    if shape.own_embedding:
        expected["embed_tokens.weight"] = (shape.vocabulary, shape.hidden)
    tensors = ExpectedTensors(folder, found, "an EAGLE-3 head")
    for name, size in expected.items():
        tensors.take(name, size)
    tensors.refuse_others(("d2t", "t2d"), ", ".join(sorted(expected)))
    tokens = _drafted_tokens(folder, found, shape)

    head = EagleHead(shape)
    weights = {name: _values(found[name], dtype) for name, _ in head.named_parameters()}
    head.load_state_dict(weights, assign=True)
    head.tokens = tokens
    tables = None if shape.own_output and shape.own_embedding else tables_of(model)
    if tables is None or shape.own_embedding:
        head.embedding = _values(found["embed_tokens.weight"], dtype)
    else:  # large: as it is stored
        head.embedding = _checked_rows(folder, model, tables.embedding, shape)
    if tables is None or shape.own_output:
        head.output = _values(found["lm_head.weight"], dtype)
    else:
        head.output = _checked_rows(folder, model, tables.output, shape)[tokens].to(dtype)
    return head.to(device).requires_grad_(False)


def save_head(head: EagleHead, folder: Path, target: TargetName) -> str:
    """Write a head, its weights in bfloat16, and return their sha256. A file appears under its
    name only when it is complete.

    Raises: OSError.
    """
    from safetensors.torch import save

    shape = head.shape
    tokens = head.tokens.cpu()
    tensors = {name: weight.detach() for name, weight in head.named_parameters()}
    if shape.own_output:
        tensors["lm_head.weight"] = head.output
    if shape.own_embedding:
        tensors["embed_tokens.weight"] = head.embedding
    tensors = {name: value.to("cpu", torch.bfloat16) for name, value in tensors.items()}
    if shape.drafted < shape.vocabulary:
        tensors["d2t"] = tokens - torch.arange(shape.drafted)
        tensors["t2d"] = torch.zeros(shape.vocabulary, dtype=torch.bool).index_fill(0, tokens, True)
    folder.mkdir(parents=True, exist_ok=True)
    with whole_file(folder / "model.safetensors") as part:
        # Not save_file, whose file only its owner can read.
        part.write_bytes(save({name: value.contiguous() for name, value in tensors.items()}))
    with whole_file(folder / "config.json") as part:
        part.write_text(json.dumps(_config(shape, target), indent=1) + "\n")
    return sha256_of(folder / "model.safetensors")


def _config(shape: HeadShape, target: TargetName) -> dict[str, Any]:
    facts = target.facts
    return {
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_size": shape.hidden,
        "target_hidden_size": facts.hidden,
        "intermediate_size": shape.intermediate,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "vocab_size": shape.vocabulary,
        "draft_vocab_size": shape.drafted,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": None if shape.rope_scaling is None else dict(shape.rope_scaling),
        "foresay": {
            "format": FORMAT,
            "layers": list(shape.layers),
            "shared_output": not shape.own_output,
            "target": {
                "name": target.name,
                "hidden_size": facts.hidden,
                "vocab_size": facts.vocabulary,
                "tokenizer_sha256": facts.tokenizer,
            },
        },
    }


def _named(found: Mapping[str, SafeTensor], folder: Path) -> dict[str, SafeTensor]:
    """By the names of the first published heads; others call the layer `layers.0`."""
    named = {}
    for name, tensor in found.items():
        known = "midlayer." + name[9:] if name.startswith("layers.0.") else name
        if known in named:
            raise ModelError(f"'{folder}' has the tensor '{known}' twice, also as '{name}'")
        named[known] = tensor
    return named


def _shape(
    folder: Path,
    config: Mapping[str, Any],
    found: Mapping[str, SafeTensor],
    facts: ModelFacts,
    target: Path,
) -> HeadShape:
    """The sizes that the config states, compared with the target's."""

    settings = Settings(config, f"'{folder}'", "'{}' of config.json")
    whole, real = settings.whole, settings.real
    own = config.get("foresay")
    own = own if isinstance(own, dict) else {}
    known = "format" in own or "Eagle" in str(config.get("architectures"))
    if not known and "fc.weight" not in found:
        raise ModelError(
            f"'{folder}' is no head; expected a folder that `foresay train eagle` has written, or "
            f"for a model that drafts --drafter model:{folder}"
        )
    if own and own.get("format") != FORMAT:
        raise UnsupportedModel(
            f"'{folder}' is a head of format {own.get('format')!r:.60}; expected {FORMAT}"
        )
    if config.get("norm_before_residual"):
        raise UnsupportedModel(f"'{folder}' has norm_before_residual; expected a head without it")
    hidden, heads = whole("hidden_size"), whole("num_attention_heads")
    width, vocabulary = whole("target_hidden_size", hidden), whole("vocab_size")
    _same(folder, target, "a target's hidden size", width, facts.hidden)
    _same(folder, target, "a vocabulary", vocabulary, facts.vocabulary)
    trained = own.get("target") if own else None
    mark = trained.get("tokenizer_sha256") if isinstance(trained, dict) else None
    if mark is not None and facts.tokenizer is not None and mark != facts.tokenizer:
        raise ModelError(
            f"the head in '{folder}' was trained with the tokenizer {str(mark)[:12]}…, but "
            f"'{target}' has {facts.tokenizer[:12]}…; expected the same"
        )
    fc = found.get("fc.weight")
    if fc is None or len(fc.shape) != 2:
        raise ModelError(f"'{folder}' lacks the tensor 'fc.weight' of an EAGLE-3 head")
    drafted = whole("draft_vocab_size", vocabulary)
    if drafted > vocabulary:
        raise ModelError(
            f"the head in '{folder}' drafts {drafted} tokens of a vocabulary of {vocabulary}; "
            "expected at most all"
        )
    scaling = config.get("rope_scaling")
    shape = HeadShape(
        features=fc.shape[1],
        hidden=hidden,
        intermediate=whole("intermediate_size"),
        heads=heads,
        kv_heads=whole("num_key_value_heads", heads),
        head_dim=whole("head_dim", max(hidden // heads, 1)),
        vocabulary=vocabulary,
        drafted=drafted,
        eps=real("rms_norm_eps", 1e-5),
        rope_theta=real("rope_theta", 10_000.0),
        rope_scaling=scaling if isinstance(scaling, dict) else None,
        layers=_layers(folder, config, own, fc.shape[1], width, facts.layers),
        own_output=not own.get("shared_output", False),
        own_embedding="embed_tokens.weight" in found,
    )
    if shape.heads % shape.kv_heads or shape.head_dim % 2:
        raise ModelError(
            f"the head in '{folder}' has {shape.heads} heads of width {shape.head_dim} for "
            f"{shape.kv_heads} heads of keys; expected a multiple of these, and an even width"
        )
    if hidden != facts.hidden and not (shape.own_output and shape.own_embedding):
        raise ModelError(
            f"the head in '{folder}' is {hidden} wide and brings no embeddings, but those of "
            f"'{target}' are {facts.hidden} wide; expected the same, or embed_tokens.weight"
        )
    return shape


def _layers(
    folder: Path,
    config: Mapping[str, Any],
    own: Mapping[str, Any],
    features: int,
    width: int,
    depth: int,
) -> tuple[int, ...]:
    """The target's layers whose inputs are the features; () for its last hidden state.

    SGLang's "eagle_config" counts layers by their output, vLLM's entry at the top by their input.
    """
    nested = config.get("eagle_config")
    ids = nested.get("eagle_aux_hidden_state_layer_ids") if isinstance(nested, dict) else None
    shift = 1 if ids else 0
    ids = ids or config.get("eagle_aux_hidden_state_layer_ids") or own.get("layers")
    if not ids:
        ids = [] if features == width else [2, depth // 2, depth - 3]
    if not isinstance(ids, list) or any(type(n) is not int for n in ids):
        raise ModelError(f"the head in '{folder}' names the layers {ids!r:.60}; expected numbers")
    layers = tuple(n + shift for n in ids)
    if any(not 0 <= n < depth for n in layers):
        raise ModelError(
            f"the head in '{folder}' wants what goes into the layers {list(layers)}, but its "
            f"target has {depth} layers; expected 0 to {depth - 1}"
        )
    if features != width * max(len(layers), 1):
        raise ModelError(
            f"the fc.weight of the head in '{folder}' takes features of width {features}, but "
            f"{max(len(layers), 1)} hidden states of width {width} are {width * len(layers)} wide; "
            "expected the same"
        )
    return layers


def _same(folder: Path, target: Path, what: str, head: int, model: int) -> None:
    if head != model:
        raise ModelError(
            f"the head in '{folder}' is made for {what} of {head}, but '{target}' has {model}; "
            "expected the same"
        )


def _drafted_tokens(folder: Path, found: Mapping[str, SafeTensor], shape: HeadShape) -> Tensor:
    """The token id of each row of the output."""
    rows = np.arange(shape.drafted)
    if "d2t" not in found:
        if shape.drafted < shape.vocabulary:
            raise ModelError(
                f"'{folder}' lacks the tensor 'd2t', which says which {shape.drafted} of "
                f"{shape.vocabulary} tokens it drafts"
            )
        return torch.from_numpy(rows)
    offsets = _whole_numbers(found["d2t"], shape.drafted)
    tokens = rows + offsets
    if tokens.min() < 0 or tokens.max() >= shape.vocabulary or len({*tokens.tolist()}) < len(rows):
        raise ModelError(
            f"'{folder}': the tensor 'd2t' does not name {shape.drafted} different tokens of the "
            f"vocabulary, 0 to {shape.vocabulary - 1}"
        )
    if "t2d" in found:
        drafts = _whole_numbers(found["t2d"], shape.vocabulary).astype(bool)
        if drafts.sum() != len(tokens) or not drafts[tokens].all():
            raise ModelError(f"'{folder}': the tensors 'd2t' and 't2d' name different tokens")
    return torch.from_numpy(tokens)


def _whole_numbers(tensor: SafeTensor, size: int) -> NDArray[np.int64]:
    if tensor.kind not in _KINDS or tensor.shape != (size,):
        raise ModelError(
            f"'{tensor.file}': the tensor '{tensor.name}' is {tensor.kind}{list(tensor.shape)}; "
            f"expected {' or '.join(_KINDS)} and [{size}]"
        )
    found = tensor.raw(_KINDS[tensor.kind], 0, size)
    numbers: NDArray[np.int64] = found.astype(np.int64)
    return numbers


def _checked_rows(folder: Path, model: StoredModel, table: Tensor, shape: HeadShape) -> Tensor:
    expected = (shape.vocabulary, shape.hidden)
    if tuple(table.shape) != expected:
        raise ModelError(
            f"the head in '{folder}' needs embeddings of shape {list(expected)}, but those of "
            f"'{model.folder}' have {list(table.shape)}"
        )
    return table


def _values(tensor: SafeTensor, dtype: torch.dtype) -> Tensor:
    return torch.from_numpy(tensor.rows(0, tensor.shape[0])).to(dtype)
