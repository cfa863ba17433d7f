"""From a GGUF file's metadata to a transformers config, and from its tensors to the target's.

The conventions are those of llama.cpp, which writes these files and runs them. An unknown key or
tensor is refused by its name: it could change every answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights.gguf_header import GgmlType, Header, Tensor
from foresay.models.weights.gguf_values import tensor_bytes
from foresay.models.weights.rope import frequencies
from foresay.models.weights.settings import Settings

__all__ = ["Plan", "StoredTensor", "plan", "rope_bytes"]

ARCHITECTURES = {
    "llama": ("llama", "LlamaForCausalLM"),
    "qwen2": ("qwen2", "Qwen2ForCausalLM"),
    "qwen3": ("qwen3", "Qwen3ForCausalLM"),
    "gemma": ("gemma", "GemmaForCausalLM"),
    "gemma2": ("gemma2", "Gemma2ForCausalLM"),
    "gemma3": ("gemma3_text", "Gemma3ForCausalLM"),
}
_KEYS = {
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.layer_norm_rms_epsilon"),
    *("attention.key_length", "attention.value_length", "attention.sliding_window"),
    *("rope.freq_base", "rope.freq_base_swa", "rope.dimension_count", "rope.scaling.type"),
    *("rope.scaling.factor", "rope.scaling.original_context_length", "rope.scaling.finetuned"),
    *("attn_logit_softcapping", "final_logit_softcapping"),
}
_FACTORS = "rope_freqs.weight"
# Keys that have no effect when they have this value.
_IDLE = {
    "expert_count": 0,
    "expert_used_count": 0,
    "attention.causal": True,
    "rope.scale_linear": 1.0,
}


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of the target as the file stores it: how llama.cpp changed it.

    heads    llama.cpp interleaved the two halves of every head's rows; 0: it did not
    plus     what was added to every value
    """

    tensor: Tensor
    heads: int = 0
    plus: float = 0.0


@dataclass(frozen=True)
class Plan:
    """The config, and the target's tensors by name."""

    config: dict[str, Any]
    tensors: dict[str, StoredTensor]


def rope_bytes(header: Header, file: Path) -> bytes:
    """The bytes of the file's table of RoPE factors; none if it has none.

    Raises: ModelError naming the tensor if the file is shorter than its header says.
    """
    factors = header.tensors.get(_FACTORS)
    return b"" if factors is None else tensor_bytes(file, factors).tobytes()


def plan(header: Header, file: Path) -> Plan:
    """What to write for a file. `lm_head.weight` is among the tensors if the file has an output.

    Raises: UnsupportedModel naming what is unknown, ModelError for a key that is missing or has an
    invalid value.
    """
    path = str(file)
    parts = header.metadata.get("split.count", 1)
    if np.ndim(parts) or parts not in (0, 1):
        raise UnsupportedModel(f"'{path}' is one of {parts} parts of a model; join them first")
    architecture = str(header.metadata.get("general.architecture", "(none)"))
    if architecture not in ARCHITECTURES:
        raise UnsupportedModel(
            f"'{path}' is of architecture '{architecture}'; expected {', '.join(ARCHITECTURES)}"
        )
    config = _config(_keys(header, architecture, path), architecture, len(header.tensors))
    tensors = _tensors(header, config, architecture, path)
    used = {stored.tensor.name for stored in tensors.values()} | {_FACTORS}
    for name in header.tensors:
        if name not in used:
            raise UnsupportedModel(
                f"'{path}' has the tensor '{name}', which a model of architecture "
                f"'{architecture}' does not use here"
            )
    factors = header.tensors.get(_FACTORS)
    if factors is not None:
        if architecture != "llama":
            raise UnsupportedModel(
                f"'{path}' has RoPE factors, known only for architecture 'llama'"
            )
        if factors.kind != GgmlType.F32:
            raise UnsupportedModel(
                f"'{path}': the tensor '{_FACTORS}' is of type {factors.kind.name}; expected F32"
            )
        found = np.frombuffer(rope_bytes(header, file), "<f4").astype(np.float32)
        config["rope_scaling"] = _llama3(found, config, path) or config["rope_scaling"]
    return Plan(config, tensors)


def _keys(header: Header, architecture: str, path: str) -> Settings:
    """The keys of the architecture, without its name; of a list of one number per layer, all the
    same, that number."""
    keys: dict[str, Any] = {}
    for key, value in header.metadata.items():
        own, _, rest = key.partition(".")
        if own != architecture:
            continue
        several = np.ndim(value) > 0
        if rest not in _KEYS and (several or rest not in _IDLE or value != _IDLE[rest]):
            shown = "a list" if several else value
            raise UnsupportedModel(f"'{path}' sets {key} to {shown}, which is not supported")
        if isinstance(value, np.ndarray):
            if not value.size or not bool((value == value[0]).all()):
                raise UnsupportedModel(
                    f"'{path}' has other values of {rest}; expected one for every layer"
                )
            value = value[0].item()
        if isinstance(value, float):
            value = float(str(np.float32(value)))  # 1e-05, which float32 cannot hold exactly
        keys[rest] = value
    return Settings(keys, f"'{path}'", f"{architecture}.{{}}")


def _config(keys: Settings, architecture: str, tensors: int) -> dict[str, Any]:
    model_type, model_class = ARCHITECTURES[architecture]
    width, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    if "attention.key_length" not in keys and width % heads:
        raise ModelError(f"{keys.where}: {width} dimensions do not divide into {heads} heads")
    head = keys.whole("attention.key_length", width // heads or None)
    context, layers = keys.whole("context_length"), keys.whole("block_count")
    if layers > tensors:  # lists are made as long
        raise ModelError(f"{keys.where} says it has {layers} layers, but has {tensors} tensors")
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.whole(key, head) != head:
            raise UnsupportedModel(
                f"{keys.where}: {key} is {keys.whole(key)}; expected {head}, the "
                "dimensions of a key"
            )
    config: dict[str, Any] = {
        "architectures": [model_class],
        "model_type": model_type,
        "vocab_size": 0,  # known from the embedding
        "hidden_size": width,
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": keys.whole("attention.head_count_kv", heads),
        "head_dim": head,
        "max_position_embeddings": context,
        "rms_norm_eps": keys.real("attention.layer_norm_rms_epsilon"),
        "rope_theta": keys.real("rope.freq_base", 10000.0),
        "rope_scaling": _rope_scaling(keys),
        "attention_dropout": 0.0,
        "torch_dtype": "bfloat16",
        "transformers_version": "4.56.0",  # whose names these are; later ones read them too
        "use_cache": True,
    }
    if heads % config["num_key_value_heads"] or head % 2:
        raise ModelError(
            f"{keys.where}: {heads} heads of {head} do not share "
            f"{config['num_key_value_heads']} keys"
        )
    if architecture in ("gemma2", "gemma3"):
        config |= _gemma(keys, config, second=architecture == "gemma2")
    elif "attention.sliding_window" in keys and keys.whole("attention.sliding_window") < context:
        raise UnsupportedModel(
            f"{keys.where} has a sliding window of {keys.whole('attention.sliding_window')}, "
            f"which is not supported for architecture '{architecture}'"
        )
    if architecture != "qwen2":  # where the biases of queries, keys and values are no choice
        config["attention_bias"] = False
    if architecture == "gemma":
        config |= {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    elif not architecture.startswith("gemma"):
        config |= {"hidden_act": "silu"}
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if key in keys:
                raise UnsupportedModel(f"{keys.where}: '{architecture}' has no {key}")
    return config


def _gemma(keys: Settings, config: dict[str, Any], *, second: bool) -> dict[str, Any]:
    layers, width, heads = (
        cast(int, config[key])
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    # llama.cpp knows the largest of each family by its layers: only there is the scale of the
    # attention another than that of a head.
    large = layers == (46 if second else 62)
    period = 2 if second else 6
    extra: dict[str, Any] = {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": width // heads if large else config["head_dim"],
        "sliding_window": keys.whole("attention.sliding_window"),
        "layer_types": [
            "sliding_attention" if (layer + 1) % period else "full_attention"
            for layer in range(layers)
        ],
    }
    for key, default in (("attn_logit_softcapping", 50.0), ("final_logit_softcapping", 30.0)):
        extra[key] = keys.real(key, default) if second or key in keys else None
    if not second:
        extra["rope_local_base_freq"] = keys.real("rope.freq_base_swa", 10000.0)
        extra["rope_theta"] = keys.real("rope.freq_base", 1000000.0)
    return extra


def _rope_scaling(keys: Settings) -> dict[str, Any] | None:
    kind = keys.text("rope.scaling.type", "none")
    if kind == "none":
        return None
    factor = keys.real("rope.scaling.factor")
    if kind == "linear":
        return {"rope_type": "linear", "factor": factor}
    if kind == "yarn":
        original = keys.whole("rope.scaling.original_context_length")
        return {
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings": original,
        }
    raise UnsupportedModel(f"{keys.where} scales RoPE by '{kind}'; expected linear or yarn")


def _llama3(
    factors: NDArray[np.float32], config: dict[str, Any], path: str
) -> dict[str, Any] | None:
    """The scaling of Llama 3 that makes these factors, one per frequency; None for factors of 1.

    The file holds the factors and not what they were made from, so the published settings are
    tried: a low and a high frequency factor of 1 and 4 over 8192 positions.

    Raises: UnsupportedModel when the factors are others.
    """
    scaling: dict[str, Any] = {
        "rope_type": "llama3",
        "factor": float(str(factors.max())),
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    base, head = config["rope_theta"], config["head_dim"]
    wrong = UnsupportedModel(f"'{path}' has RoPE factors that are not those of Llama 3")
    if factors.shape != (head // 2,) or not 0 < scaling["factor"] < 1e30:
        raise wrong
    plain, scaled = (frequencies(base, head, each, f"'{path}'")[0] for each in (None, scaling))
    with np.errstate(all="ignore"):
        made = plain / scaled
    if not np.allclose(factors, made, rtol=1e-4, atol=0):
        raise wrong
    return None if np.all(factors == 1) else scaling


def _tensors(
    header: Header, config: dict[str, Any], architecture: str, path: str
) -> dict[str, StoredTensor]:
    gemma = architecture.startswith("gemma")
    width, inner = config["hidden_size"], config["intermediate_size"]
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    head = config["head_dim"]
    queries, values = heads * head, shared * head
    tensors: dict[str, StoredTensor] = {}

    def add(target: str, name: str, *shape: int, turned: int = 0) -> None:
        if name not in header.tensors:
            raise ModelError(f"'{path}' lacks the tensor '{name}'")
        tensor = header.tensors[name]
        if tensor.shape != shape:
            raise ModelError(
                f"'{path}': the tensor '{name}' is {list(tensor.shape)}; expected {list(shape)} by "
                "the keys of the file"
            )
        norm = name.endswith("norm.weight")
        tensors[target] = StoredTensor(tensor, turned, 1.0 if gemma and norm else 0.0)

    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"'{path}' lacks the tensor 'token_embd.weight' of 2 dimensions")
    config["vocab_size"] = vocabulary = embedding.shape[0]
    add("model.embed_tokens.weight", "token_embd.weight", vocabulary, width)
    norms = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm"}
    if architecture in ("gemma2", "gemma3"):
        norms |= {
            "post_attention_norm": "post_attention_layernorm",
            "ffn_norm": "pre_feedforward_layernorm",
            "post_ffw_norm": "post_feedforward_layernorm",
        }
    turned = {"attn_q.weight": heads, "attn_k.weight": shared} if architecture == "llama" else {}
    parts: dict[str, tuple[Any, ...]] = {  # in the order in which they are written
        "self_attn.q_proj.weight": ("attn_q.weight", queries, width),
        "self_attn.k_proj.weight": ("attn_k.weight", values, width),
        "self_attn.v_proj.weight": ("attn_v.weight", values, width),
        "self_attn.o_proj.weight": ("attn_output.weight", width, queries),
    }
    for part, size in (("q", queries), ("k", values), ("v", values)):
        if architecture == "qwen2":
            parts[f"self_attn.{part}_proj.bias"] = (f"attn_{part}.bias", size)
        if architecture in ("qwen3", "gemma3") and part != "v":
            parts[f"self_attn.{part}_norm.weight"] = (f"attn_{part}_norm.weight", head)
    parts |= {
        "mlp.gate_proj.weight": ("ffn_gate.weight", inner, width),
        "mlp.up_proj.weight": ("ffn_up.weight", inner, width),
        "mlp.down_proj.weight": ("ffn_down.weight", width, inner),
        **{f"{name}.weight": (f"{norm}.weight", width) for norm, name in norms.items()},
    }
    for layer in range(config["num_hidden_layers"]):
        for target, (name, *shape) in parts.items():
            there, here = f"model.layers.{layer}.{target}", f"blk.{layer}.{name}"
            add(there, here, *shape, turned=turned.get(name, 0))
    add("model.norm.weight", "output_norm.weight", width)
    if "output.weight" in header.tensors:
        add("lm_head.weight", "output.weight", vocabulary, width)
    return tensors
