"""What a whole decoder is made by, from the config.json of a model; for every device.

By architecture, since models that scale, cap or place norms differently have the same tensors. What
is not among them runs through transformers. A setting that is missing is what transformers takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights.rope import frequencies, rope_type
from foresay.models.weights.settings import Settings

__all__ = ["ARCHITECTURES", "DecoderConfig", "Kind", "read_config"]

_FULL, _SLIDING = "full_attention", "sliding_attention"
_MOST_LAYERS = _MOST_WIDE = 4096  # layers, and numbers of a head, as a KV cache may have


@dataclass(frozen=True)
class Kind:
    """How an architecture differs from Llama's.

    gelu          its activation, instead of silu
    scaled        the embedding is multiplied by the square root of its width
    after_norms   results are normed before they are added
    head_norms    single heads of queries and keys are normed
    above_one     safetensors hold how far a norm's weight is above 1
    biased        queries, keys and values have biases
    fused         queries, keys and values are one tensor, and so are gate and up; numbers of a head
                  may be left unturned
    tied          the output is the embedding, where the configuration does not say
    """

    gelu: bool = False
    scaled: bool = False
    after_norms: bool = False
    head_norms: bool = False
    above_one: bool = False
    biased: bool = False
    fused: bool = False
    tied: bool = False


_GEMMA = {"gelu": True, "scaled": True, "above_one": True, "tied": True}
ARCHITECTURES = {
    "llama": Kind(),
    "mistral": Kind(),
    "qwen2": Kind(biased=True),
    "qwen3": Kind(head_norms=True),
    "phi3": Kind(fused=True),
    "gemma": Kind(**_GEMMA),
    "gemma2": Kind(**_GEMMA, after_norms=True),
    "gemma3_text": Kind(**_GEMMA, after_norms=True, head_norms=True),
}
"""By "model_type"."""


@dataclass(frozen=True)
class DecoderConfig:
    """The decoder's shape and numbers.

    inner         width between gate and down
    query_bias    of queries, keys and values
    windows       of each layer; 0: none
    ropes         of each layer: which list of frequencies
    """

    kind: Kind
    vocabulary: int
    context: int
    width: int
    inner: int
    layers: int
    heads: int
    key_heads: int
    head_dim: int
    tied: bool
    query_bias: bool
    out_bias: bool
    mlp_bias: bool
    eps: float
    scaling: float
    score_cap: float
    logit_cap: float
    windows: tuple[int, ...]
    ropes: tuple[int, ...]
    frequencies: tuple[tuple[float, ...], ...]
    rope_scale: float


def read_config(config: Mapping[str, Any], where: str) -> DecoderConfig:
    """The configuration of the decoder.

    where    names the model in errors

    Raises: UnsupportedModel for what the decoder does not compute, ModelError for a setting that is
    missing or has an invalid value.
    """
    values, name = Settings(config, where), str(config.get("model_type"))
    if name not in ARCHITECTURES:
        raise UnsupportedModel(
            f"{where} is of architecture '{name:.60}'; expected {', '.join(ARCHITECTURES)}"
        )
    kind = ARCHITECTURES[name]
    _refuse(values, kind)
    width, heads, layers = (
        values.whole(key) for key in ("hidden_size", "num_attention_heads", "num_hidden_layers")
    )
    if layers > _MOST_LAYERS:
        raise ModelError(f"{where} has {layers} layers; expected at most {_MOST_LAYERS}")
    head_dim = values.whole("head_dim", width // heads)
    if head_dim > _MOST_WIDE:
        raise ModelError(f"{where} has heads {head_dim} wide; expected at most {_MOST_WIDE}")
    bases, scale = _ropes(values, kind, name, head_dim)
    types = _layer_types(values, name, layers)
    window = values.whole("sliding_window", 4096) if _SLIDING in types else 0
    pre = values.whole("query_pre_attn_scalar", 256) if kind.after_norms else head_dim
    bias = values.flag("attention_bias")
    caps = {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0}
    score_cap, logit_cap = (
        _cap(values, key, cap if name == "gemma2" else 0.0) if kind.after_norms else 0.0
        for key, cap in caps.items()
    )
    return DecoderConfig(
        kind,
        vocabulary=values.whole("vocab_size"),
        context=values.whole("max_position_embeddings"),
        width=width,
        inner=values.whole("intermediate_size"),
        layers=layers,
        heads=heads,
        key_heads=values.whole("num_key_value_heads", heads),
        head_dim=head_dim,
        tied=values.flag("tie_word_embeddings", kind.tied),
        query_bias=kind.biased or bias,
        out_bias=bias and not kind.biased,
        mlp_bias=values.flag("mlp_bias") and name == "llama",
        eps=values.real("rms_norm_eps"),
        scaling=pre**-0.5,
        score_cap=score_cap,
        logit_cap=logit_cap,
        windows=tuple(window if each == _SLIDING else 0 for each in types),
        ropes=tuple(int(len(bases) > 1 and each == _SLIDING) for each in types),
        frequencies=bases,
        rope_scale=scale,
    )


def _cap(values: Settings, key: str, default: float) -> float:
    """0: none. Here null is no cap, and a missing one the default."""
    if key not in values.values:
        return default
    return values.real(key) if key in values else 0.0


def _refuse(values: Settings, kind: Kind) -> None:
    """What would change the logits, and is not computed."""
    config, where = values.values, values.where
    activations = (
        {"hidden_act": ("gelu", "gelu_pytorch_tanh"), "hidden_activation": ("gelu_pytorch_tanh",)}
        if kind.gelu
        else {"hidden_act": ("silu",)}
    )
    for key, valid in activations.items():
        if config.get(key) is not None and config[key] not in valid:
            raise UnsupportedModel(
                f"{where} has the activation {config[key]!r:.60}; expected {valid[-1]}"
            )
    if config.get("quantization_config") is not None:
        raise UnsupportedModel(f"{where} is quantised already; expected weights that are not")
    if config.get("use_bidirectional_attention"):
        raise UnsupportedModel(f"{where} attends to later tokens; expected causal attention")


def _layer_types(values: Settings, name: str, layers: int) -> list[str]:
    given = values.values.get("layer_types")
    if name in ("mistral", "phi3"):
        missing = 4096 if name == "mistral" else None
        return [_SLIDING if values.values.get("sliding_window", missing) else _FULL] * layers
    if name in ("llama", "gemma"):
        return [_FULL] * layers
    if given is not None:
        if not isinstance(given, list) or len(given) != layers:
            raise ModelError(f"{values.where}: 'layer_types' has not one entry for each layer")
        for each in given:
            if each not in (_FULL, _SLIDING):
                raise UnsupportedModel(
                    f"{values.where} has a layer of type {each!r:.60}; expected {_FULL} or "
                    f"{_SLIDING}"
                )
        return given
    if name in ("qwen2", "qwen3"):
        first = values.whole("max_window_layers", 28)
        windowed = values.flag("use_sliding_window")
        return [_SLIDING if windowed and at >= first else _FULL for at in range(layers)]
    period = 2 if name == "gemma2" else values.whole("sliding_window_pattern", 6)
    return [_SLIDING if (at + 1) % period else _FULL for at in range(layers)]


def _ropes(
    values: Settings, kind: Kind, name: str, head_dim: int
) -> tuple[tuple[tuple[float, ...], ...], float]:
    """The lists of frequencies, and the factor of their sines and cosines. Of settings in the old
    style (rope_theta, rope_scaling) and in the new one (rope_parameters).
    """
    old, new = values.inner("rope_scaling"), values.inner("rope_parameters")
    if name != "gemma3_text":
        found, scale = _rope(values, old or new, "rope_theta", 10_000.0, kind, head_dim)
        return (found,), scale
    full, local = (values.inside(new).inner(each) for each in (_FULL, _SLIDING))
    found, scale = _rope(values, {**full, **old}, "rope_theta", 1_000_000.0, kind, head_dim)
    near, other = _rope(values, local, "rope_local_base_freq", 10_000.0, kind, head_dim)
    if scale != other:
        raise UnsupportedModel(
            f"{values.where} scales the RoPE of some layers by {scale} and of others by {other}; "
            "expected one factor"
        )
    return (found, near), scale


def _rope(
    values: Settings, given: dict[str, Any], key: str, base: float, kind: Kind, head_dim: int
) -> tuple[tuple[float, ...], float]:
    original = "original_max_position_embeddings"
    settings = {original: values.whole("max_position_embeddings"), **given}
    if values.values.get(original) is not None:
        settings[original] = values.values[original]  # which transformers prefers
    base = values.inside(given).real("rope_theta", values.real(key, base))
    if base <= 1:
        raise ModelError(f"{values.where}: '{key}' is {base}; expected a number above 1")
    share = values.inside(given).real(
        "partial_rotary_factor", values.real("partial_rotary_factor", 1.0)
    )
    dims = int(head_dim * share)
    if (share != 1 and not kind.fused) or not 2 <= dims <= head_dim or dims % 2:
        raise UnsupportedModel(
            f"{values.where} turns {dims} of the {head_dim} numbers of a head; expected "
            + ("an even number of them" if kind.fused else "all")
        )
    if kind.fused and rope_type(settings) != "default":
        raise UnsupportedModel(
            f"{values.where} uses RoPE of type '{rope_type(settings):.60}'; expected default"
        )
    found, scale = frequencies(base, dims, settings, values.where)
    return tuple(found.tolist()), scale
