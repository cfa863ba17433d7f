"""Whether a model of transformers can be run exactly; other models are refused before the first
answer.

Several architectures silently ignore the attention function, keep state beside keys and values, or
compute positions by themselves. Their answers would be plausible and wrong. So the configuration is
read, the calls of one small pass are counted, and a ragged step with a draft tree is compared with
the model's own plain passes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedConfig, PreTrainedModel

from foresay.draft import Draft
from foresay.errors import UnsupportedModel
from foresay.models import attention
from foresay.models.attention import AttentionPass, LayerCall, running
from foresay.models.target import SequenceInput, Target
from foresay.models.visibility import Visible, as_unsupported, narrow, narrowed

__all__ = ["TransformersTarget", "alike", "check_config", "check_logits", "layer_shapes", "trial"]

_LAYER_TYPES = {"full_attention", "sliding_attention", "chunked_attention"}
_BATCH_ROPE = {"longrope", "dynamic"}
# What rounding does to the logits of random texts, as a share of their spread: two of the model's
# own attention functions differ by up to 0.3 in one row in bfloat16, wrong ones by more than 1.
_CLOSE = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.3}
_ALIKE = 0.03  # where one activation is rounded in another way


class TransformersTarget(Target, Protocol):
    """A target that runs a model of transformers. `layers`: the visibility of each layer."""

    model: PreTrainedModel
    dtype: torch.dtype
    layers: Sequence[Visible]


def check_config(config: PreTrainedConfig) -> None:
    """Refuse a model that its configuration shows to be unsupported.

    Raises: UnsupportedModel.
    """
    name, text = config.model_type, config.get_text_config()
    if config.is_encoder_decoder:
        raise UnsupportedModel(f"{name} has an encoder; expected a decoder-only model")
    if not getattr(text, "is_causal", True):
        raise UnsupportedModel(f"{name} is not causal; expected a causal model")
    other = set(getattr(text, "layer_types", None) or ()) - _LAYER_TYPES
    if other:
        raise UnsupportedModel(
            f"{name} has layers of type {', '.join(sorted(map(str, other)))}, whose state is not "
            "keys and values; expected attention layers only"
        )
    batch_rope = _BATCH_ROPE & set(_rope_types(getattr(text, "rope_parameters", None)))
    if batch_rope:
        raise UnsupportedModel(
            f"{name} uses RoPE of type {batch_rope.pop()}, which lets a long text change the "
            "positions of a short one beside it; expected default, linear, llama3 or yarn"
        )


def _rope_types(rope: object) -> Iterator[str]:
    if isinstance(rope, Mapping):
        for key, value in rope.items():
            if key in ("rope_type", "type") and isinstance(value, str):
                yield value
            yield from _rope_types(value)


def layer_shapes(model: PreTrainedModel) -> list[tuple[int, int, int]]:
    """Heads of keys and values, width of a key, width of a value, for each layer: as one small
    pass shows them. The model uses our attention function afterwards.

    Raises: UnsupportedModel if a layer does not call it just once, with a key for every row,
    without masks.
    """
    name, rows = model.config.model_type, 5
    _use(model, attention.NAME)
    run = AttentionPass(None, (), 1, [])
    places = torch.arange(rows, device=model.device)[None]
    tokens = places % model.config.get_text_config().vocab_size
    with as_unsupported(model), torch.inference_mode(), running(run):
        model(input_ids=tokens, position_ids=places, use_cache=False)
    calls = run.calls or []
    layers = [call.layer for call in calls]
    if not calls:
        raise UnsupportedModel(
            f"{name} does not use the attention function it is given; its answers would be wrong"
        )
    depth = model.config.get_text_config().num_hidden_layers
    if layers != list(range(depth)):
        raise UnsupportedModel(
            f"{name} called attention for the layers {layers}; expected one call by each of its "
            f"{depth} layers, in order"
        )
    for call in calls:
        _check_call(name, call, rows)
    return [call.shape for call in calls]


def _check_call(name: str, call: LayerCall, rows: int) -> None:
    if call.rows != rows or call.keys != rows:
        raise UnsupportedModel(
            f"layer {call.layer} of {name} has {call.keys} keys and {call.rows} queries for {rows} "
            "tokens; expected one of each per token"
        )
    if call.masked or call.unknown:
        what = "a mask of its own" if call.masked else " and ".join(call.unknown)
        raise UnsupportedModel(f"layer {call.layer} of {name} uses {what}, which is not supported")


def check_logits(target: TransformersTarget) -> float:
    """Compare one ragged step with a tree, after a prefill in two parts, with plain passes of the
    model's own attention; the mean difference as a share of the logits' spread. Windows and chunks
    are made narrow for it, so that the texts reach beyond them.

    Raises: UnsupportedModel if it is more than rounding explains, or if a layer's visibility is
    not what was found.
    """
    texts, trees = _texts_and_trees(target)
    with narrowed(target.model, target.layers) as layers, _seeing(target, layers):
        with as_unsupported(target.model):
            given = _in_one_step(target, texts, trees)
        _use(target.model, "eager")
        try:
            wanted = torch.cat([_plainly(target, t, d) for t, d in zip(texts, trees, strict=True)])
        finally:
            _use(target.model, attention.NAME)
    off = _difference(given, wanted)
    if not off <= _CLOSE[target.dtype]:
        raise UnsupportedModel(
            f"{target.model.config.model_type} gives other logits here than by itself (off by "
            f"{off:.2g} of their spread; {_CLOSE[target.dtype]:g} is rounding); its answers "
            "would be wrong"
        )
    return off


def trial(target: TransformersTarget) -> Tensor:
    """The logits of a small ragged step with trees and narrow windows, to be compared with those of
    another implementation.
    """
    with _seeing(target, narrow(target.layers)):
        return _in_one_step(target, *_texts_and_trees(target))


def alike(given: Tensor, wanted: Tensor) -> bool:
    """Whether two trials differ by no more than single roundings to bfloat16."""
    return _difference(given, wanted) <= _ALIKE


@contextmanager
def _seeing(target: TransformersTarget, layers: list[Visible]) -> Iterator[None]:
    before = target.layers
    target.layers = layers
    try:
        yield
    finally:
        target.layers = before


def _texts_and_trees(target: TransformersTarget) -> tuple[list[Any], list[Draft]]:
    random = np.random.default_rng(7)
    texts = [_tokens(random, target, size) for size in (3, 9, 14)]
    trees = [
        Draft.empty(),
        Draft(_tokens(random, target, 5), [-1, 0, 0, 1, -1]),
        Draft(_tokens(random, target, 4), [-1, -1, 1, 1]),
    ]
    return texts, trees


def _difference(given: Tensor, wanted: Tensor) -> float:
    """As a share of the logits' spread."""
    spread = wanted.std(dim=-1).mean().clamp_min(1e-6)
    return float(((given - wanted).pow(2).mean(dim=-1).sqrt() / spread).mean())


def _in_one_step(
    target: TransformersTarget, texts: Sequence[Any], trees: Sequence[Draft]
) -> Tensor:
    kvs = [target.open() for _ in texts]
    parts = [
        SequenceInput.of(target, kv, text[:2], needs_logits=False)
        for kv, text in zip(kvs, texts, strict=True)
    ]
    target.forward(parts)
    for part in parts:
        part.keep()
    parts = [
        SequenceInput.of(target, *given)
        for given in zip(kvs, [t[2:] for t in texts], trees, strict=True)
    ]
    return target.forward(parts).logits.float()


def _plainly(target: TransformersTarget, text: Any, tree: Draft) -> Tensor:
    """The model's own logits after the text and after each node's path: one pass for each leaf
    gives the rows of all nodes on its path.
    """
    rows: dict[int, Tensor] = {}
    for leaf in reversed(range(-1, len(tree))):
        if leaf in rows:
            continue
        path = [leaf]
        while path[0] >= 0:
            path.insert(0, int(tree.parents[path[0]]))
        nodes = [int(tree.tokens[node]) for node in path[1:]]
        ids = torch.tensor([[*text.tolist(), *nodes]], device=target.model.device)
        with torch.inference_mode():
            logits = target.model(input_ids=ids, use_cache=False).logits[0, -len(path) :]
        rows |= {node: row.float() for node, row in zip(path, logits, strict=True)}
    return torch.stack([rows[node] for node in range(-1, len(tree))])


def _tokens(random: np.random.Generator, target: Target, size: int) -> Any:
    return random.integers(0, target.vocabulary, size).astype(np.int32)


def _use(model: PreTrainedModel, name: str) -> None:
    model.set_attn_implementation(name)
    if model.config._attn_implementation != name:
        raise UnsupportedModel(
            f"{model.config.model_type} does not let its attention function be set; its "
            "answers would be wrong"
        )
