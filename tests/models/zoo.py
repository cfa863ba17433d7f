"""Tiny models with random weights, by name: one of every kind that transformers writes differently.

The usual small initial weights give nearly uniform attention and flat logits, under which every
mistake looks like rounding; so the weights here are drawn wide enough that an early token changes
the last logits by whole units.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

from foresay.arrays import Int32s
from foresay.draft import Draft

VOCABULARY = 128
CONTEXT = 256
WINDOW = 16
"""Also the size of a chunk; texts of the tests are several times as long."""

_COMMON: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": CONTEXT,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "tie_word_embeddings": False,
}
_WINDOWED = ["sliding_attention", "full_attention"]
_EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}

SUPPORTED: dict[str, dict[str, Any]] = {
    "llama": {},
    "qwen2": {},
    "qwen3": {},
    "qwen3_moe": {**_EXPERTS, "decoder_sparse_step": 1},
    "mistral": {"sliding_window": WINDOW},
    "gemma2": {
        "num_hidden_layers": 3,
        "sliding_window": WINDOW,
        "attn_logit_softcapping": 5.0,
        "final_logit_softcapping": 30.0,
        "query_pre_attn_scalar": 9,
    },
    "gemma3_text": {
        "num_hidden_layers": 3,
        "sliding_window": WINDOW,
        "layer_types": [*_WINDOWED, "sliding_attention"],
        "query_pre_attn_scalar": 16,
    },
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": CONTEXT},
    "gpt_oss": {
        "sliding_window": WINDOW,
        "layer_types": _WINDOWED,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "llama4_text": {
        "num_hidden_layers": 4,
        "attention_chunk_size": WINDOW,
        "intermediate_size_mlp": 48,
        "num_local_experts": 2,
        "interleave_moe_layer_step": 2,
    },
    "olmo2": {},
    "phi3": {},
    "cohere2": {"sliding_window": WINDOW, "layer_types": _WINDOWED, "logit_scale": 1.0},
    "deepseek_v3": {
        "num_key_value_heads": 4,
        "q_lora_rank": 24,
        "kv_lora_rank": 16,
        "qk_nope_head_dim": 16,
        "qk_rope_head_dim": 8,
        "v_head_dim": 12,
        "head_dim": 8,
        "n_routed_experts": 4,
        "n_group": 2,
        "topk_group": 1,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 16,
        "first_k_dense_replace": 1,
    },
}
"""What the target must run. Changes of the common shape, by model type."""


def make(
    name: str, *, dtype: torch.dtype = torch.float32, seed: int = 0, **changes: Any
) -> PreTrainedModel:
    """A model of the type `name`, the same in every call."""
    logging.set_verbosity_error()
    shape = {**_COMMON, **SUPPORTED.get(name, {}), **changes}
    return from_config(AutoConfig.for_model(name, **shape), dtype=dtype, seed=seed)


def from_config(
    config: Any, *, dtype: torch.dtype = torch.float32, seed: int = 0
) -> PreTrainedModel:
    """A model with wide random weights, rounded to `dtype`."""
    logging.set_verbosity_error()
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config)
    draw = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, weight in sorted(model.named_parameters()):
            noise = torch.randn(weight.shape, generator=draw)
            if weight.ndim > 1:
                width = weight.shape[-1] ** -0.5
                wide = 3.0 if "head" in key else 2.0 if "q_" in key or "k_" in key else 1.5
                weight.copy_(noise * (1.0 if "emb" in key or "wte" in key else wide * width))
            else:  # of norms, biases, sinks
                weight.add_(noise * 0.2)
    made: PreTrainedModel = model.to(dtype).train(False)
    return made


def tokens(random: np.random.Generator, size: int) -> Int32s:
    """A random text. Small ids are left out: some types treat them as padding."""
    return random.integers(3, VOCABULARY, size).astype(np.int32)


def tree(random: np.random.Generator, nodes: int) -> Draft:
    """A random tree: each node hangs from any one before it, or from the text."""
    parents = [int(random.integers(-1, at)) if at else -1 for at in range(nodes)]
    return Draft(tokens(random, nodes), np.array(parents, np.int32))


def path(draft: Draft, node: int) -> list[int]:
    """The nodes from the root to `node`; none for -1."""
    nodes: list[int] = []
    while node >= 0:
        nodes.insert(0, node)
        node = int(draft.parents[node])
    return nodes


def plain_logits(model: PreTrainedModel, text: Sequence[int] | Int32s) -> torch.Tensor:
    """What the model itself says after each token of one text, by its own attention."""
    with torch.inference_mode():
        ids = torch.tensor([list(map(int, text))])
        logits: torch.Tensor = model(input_ids=ids, use_cache=False).logits[0]
        return logits.float()


def expected(model: PreTrainedModel, text: Int32s, draft: Draft) -> torch.Tensor:
    """What a step must give for a text and a tree after it: plain passes over the path to every
    leaf, those of one length side by side; the nodes above a leaf are in its text."""
    inner = set(draft.parents.tolist())
    leaves = [node for node in range(len(draft)) if node not in inner] or [-1]
    paths = sorted((path(draft, leaf) for leaf in leaves), key=len)
    rows: dict[int, torch.Tensor] = {}
    for _, alike in groupby(paths, len):
        nodes = list(alike)
        ids = torch.tensor([[*text.tolist(), *draft.tokens[each].tolist()] for each in nodes])
        with torch.inference_mode():
            logits = model(input_ids=ids, use_cache=False).logits[:, len(text) - 1 :].float()
        for each, found in zip(nodes, logits, strict=True):
            rows |= zip((-1, *each), found, strict=True)
    return torch.stack([rows[node] for node in range(-1, len(draft))])
