"""From a GGUF file's metadata to a transformers config, and from its tensors to the target's.

The conventions are those of llama.cpp, which writes these files and runs them. An unknown key or
tensor is refused by its name: it could change every answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights.gguf_header import Header, Tensor

__all__ = ["Plan", "StoredTensor", "check_rope_factors", "plan"]

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
    """The config, the target's tensors by name, and the file's table of RoPE factors, if any."""

    config: dict[str, Any]
    tensors: dict[str, StoredTensor]
    rope_factors: Tensor | None


def plan(header: Header, path: str) -> Plan:
    """What to write for a file. `lm_head.weight` is among the tensors if the file has an output.

    Raises: UnsupportedModel naming what is unknown, ModelError for a key that is missing or has an
    invalid value.
    """
    parts = header.metadata.get("split.count", 1)
    if np.ndim(parts) or parts not in (0, 1):
        raise UnsupportedModel(f"'{path}' is one of {parts} parts of a model; join them first")
    keys = _Keys(header, path)
    config = _config(keys)
    tensors = _tensors(header, config, keys)
    used = {stored.tensor.name for stored in tensors.values()} | {"rope_freqs.weight"}
    for name in header.tensors:
        if name not in used:
            raise UnsupportedModel(
                f"'{path}' has the tensor '{name}', which a model of architecture "
                f"'{keys.architecture}' does not use here"
            )
    factors = header.tensors.get("rope_freqs.weight")
    if factors is not None and keys.architecture != "llama":
        raise UnsupportedModel(f"'{path}' has RoPE factors, known only for architecture 'llama'")
    return Plan(config, tensors, factors)


class _Keys:
    """The keys of one architecture, checked when they are read."""

    def __init__(self, header: Header, path: str) -> None:
        self._metadata, self._tensors, self.path = header.metadata, len(header.tensors), path
        self.architecture = str(header.metadata.get("general.architecture", "(none)"))
        if self.architecture not in ARCHITECTURES:
            raise UnsupportedModel(
                f"'{path}' is of architecture '{self.architecture}'; "
                f"expected {', '.join(ARCHITECTURES)}"
            )
        for key, value in header.metadata.items():
            own, _, rest = key.partition(".")
            if own != self.architecture or rest in _KEYS:
                continue
            if rest not in _IDLE or np.ndim(value) or value != _IDLE[rest]:
                shown = value if np.ndim(value) == 0 else "a list"
                raise UnsupportedModel(f"'{path}' sets {key} to {shown}, which is not supported")

    @property
    def layers(self) -> int:
        """Of which there are never more than tensors; lists are made as long."""
        layers = self.whole("block_count")
        if layers > self._tensors:
            raise ModelError(
                f"'{self.path}' says it has {layers} layers, but has {self._tensors} tensors"
            )
        return layers

    def has(self, key: str) -> bool:
        return f"{self.architecture}.{key}" in self._metadata

    def whole(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, np.ndarray) and value.size and bool((value == value[0]).all()):
            value = value[0].item()  # one number per layer, all the same
        if isinstance(value, np.ndarray):
            raise UnsupportedModel(
                f"'{self.path}' has other values of {key}; expected one for every layer"
            )
        if type(value) is not int or not 1 <= value < 1 << 31:
            raise self._wrong(key, value, "a whole number from 1")
        return value

    def real(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if type(value) not in (int, float) or not 0 < value < 1e30:
            raise self._wrong(key, value, "a number above 0")
        return float(str(np.float32(value)))  # 1e-05, which float32 cannot hold exactly

    def text(self, key: str, default: str) -> str:
        value = self._get(key, default)
        if not isinstance(value, str):
            raise self._wrong(key, value, "a word")
        return value

    def _get(self, key: str, default: Any) -> Any:
        value = self._metadata.get(f"{self.architecture}.{key}", default)
        if value is None:
            raise ModelError(f"'{self.path}' has no key {self.architecture}.{key}")
        return value

    def _wrong(self, key: str, value: object, valid: str) -> ModelError:
        shown = f"{value!r:.60}"
        return ModelError(f"'{self.path}': {self.architecture}.{key} is {shown}; expected {valid}")


def _config(keys: _Keys) -> dict[str, Any]:
    architecture = keys.architecture
    model_type, model_class = ARCHITECTURES[architecture]
    width, heads = keys.whole("embedding_length"), keys.whole("attention.head_count")
    if not keys.has("attention.key_length") and width % heads:
        raise ModelError(f"'{keys.path}': {width} dimensions do not divide into {heads} heads")
    head = keys.whole("attention.key_length", width // heads or None)
    context = keys.whole("context_length")
    for key in ("attention.value_length", "rope.dimension_count"):
        if keys.whole(key, head) != head:
            raise UnsupportedModel(
                f"'{keys.path}': {key} is {keys.whole(key)}; expected {head}, the "
                "dimensions of a key"
            )
    config: dict[str, Any] = {
        "architectures": [model_class],
        "model_type": model_type,
        "vocab_size": 0,  # known from the embedding
        "hidden_size": width,
        "intermediate_size": keys.whole("feed_forward_length"),
        "num_hidden_layers": keys.layers,
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
            f"'{keys.path}': {heads} heads of {head} do not share "
            f"{config['num_key_value_heads']} keys"
        )
    if architecture in ("gemma2", "gemma3"):
        config |= _gemma(keys, config)
    elif keys.has("attention.sliding_window") and keys.whole("attention.sliding_window") < context:
        raise UnsupportedModel(
            f"'{keys.path}' has a sliding window of {keys.whole('attention.sliding_window')}, "
            f"which is not supported for architecture '{architecture}'"
        )
    if architecture != "qwen2":  # where the biases of queries, keys and values are no choice
        config["attention_bias"] = False
    if architecture == "gemma":
        config |= {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh"}
    elif not architecture.startswith("gemma"):
        config |= {"hidden_act": "silu"}
        for key in ("attn_logit_softcapping", "final_logit_softcapping"):
            if keys.has(key):
                raise UnsupportedModel(f"'{keys.path}': '{architecture}' has no {key}")
    return config


def _gemma(keys: _Keys, config: dict[str, Any]) -> dict[str, Any]:
    layers, width, heads = (
        cast(int, config[key])
        for key in ("num_hidden_layers", "hidden_size", "num_attention_heads")
    )
    second = keys.architecture == "gemma2"
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
        extra[key] = keys.real(key, default) if second or keys.has(key) else None
    if not second:
        extra["rope_local_base_freq"] = keys.real("rope.freq_base_swa", 10000.0)
        extra["rope_theta"] = keys.real("rope.freq_base", 1000000.0)
    return extra


def _rope_scaling(keys: _Keys) -> dict[str, Any] | None:
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
    raise UnsupportedModel(f"'{keys.path}' scales RoPE by '{kind}'; expected linear or yarn")


def check_rope_factors(factors: NDArray[np.float32], config: dict[str, Any], path: str) -> None:
    """Give the config the scaling of Llama 3 that makes these factors, one per frequency.

    The file holds the factors and not what they were made from, so the published settings are
    tried: a low and a high frequency factor of 1 and 4 over 8192 positions.

    Raises: UnsupportedModel when the factors are others.
    """
    half = config["head_dim"] // 2
    factor, low, high, original = float(factors.max()), 1.0, 4.0, 8192
    with np.errstate(all="ignore"):
        waves = 2 * np.pi * config["rope_theta"] ** (np.arange(half) / half)
        smooth = (original / waves - low) / (high - low)
        between = 1 / ((1 - smooth) / factor + smooth)
    made = np.where(waves < original / high, 1.0, np.where(waves > original / low, factor, between))
    if factors.shape != (half,) or not np.allclose(factors, made, rtol=1e-4, atol=0):
        raise UnsupportedModel(f"'{path}' has RoPE factors that are not those of Llama 3")
    if np.all(factors == 1):
        return
    config["rope_scaling"] = {
        "rope_type": "llama3",
        "factor": float(str(factors.max())),
        "low_freq_factor": low,
        "high_freq_factor": high,
        "original_max_position_embeddings": original,
    }


def _tensors(header: Header, config: dict[str, Any], keys: _Keys) -> dict[str, StoredTensor]:
    architecture, path = keys.architecture, keys.path
    gemma = architecture.startswith("gemma")
    width, inner = config["hidden_size"], config["intermediate_size"]
    heads, shared = config["num_attention_heads"], config["num_key_value_heads"]
    queries, values = heads * config["head_dim"], shared * config["head_dim"]
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
    for layer in range(config["num_hidden_layers"]):
        here, there = f"blk.{layer}", f"model.layers.{layer}"
        own = f"{there}.self_attn"
        turned = (heads, shared) if architecture == "llama" else (0, 0)
        add(f"{own}.q_proj.weight", f"{here}.attn_q.weight", queries, width, turned=turned[0])
        add(f"{own}.k_proj.weight", f"{here}.attn_k.weight", values, width, turned=turned[1])
        add(f"{own}.v_proj.weight", f"{here}.attn_v.weight", values, width)
        add(f"{own}.o_proj.weight", f"{here}.attn_output.weight", width, queries)
        if architecture == "qwen2":
            add(f"{own}.q_proj.bias", f"{here}.attn_q.bias", queries)
            add(f"{own}.k_proj.bias", f"{here}.attn_k.bias", values)
            add(f"{own}.v_proj.bias", f"{here}.attn_v.bias", values)
        if architecture in ("qwen3", "gemma3"):
            for part in ("q", "k"):
                name = f"{here}.attn_{part}_norm.weight"
                add(f"{own}.{part}_norm.weight", name, config["head_dim"])
        add(f"{there}.mlp.gate_proj.weight", f"{here}.ffn_gate.weight", inner, width)
        add(f"{there}.mlp.up_proj.weight", f"{here}.ffn_up.weight", inner, width)
        add(f"{there}.mlp.down_proj.weight", f"{here}.ffn_down.weight", width, inner)
        for norm, name in norms.items():
            add(f"{there}.{name}.weight", f"{here}.{norm}.weight", width)
    add("model.norm.weight", "output_norm.weight", width)
    if "output.weight" in header.tensors:
        add("lm_head.weight", "output.weight", vocabulary, width)
    return tensors
