"""The frequencies of rotary position embeddings, from a model's configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay.errors import ModelError, UnsupportedModel

__all__ = ["Frequencies", "frequencies", "rope_type"]

Frequencies = NDArray[np.float32]


def rope_type(scaling: Mapping[str, Any] | None) -> str:
    """Of settings in the old style or the new one; "default" for none."""
    given = scaling or {}
    return str(given.get("rope_type", given.get("type", "default")))


def frequencies(
    base: float, dims: int, scaling: Mapping[str, Any] | None
) -> tuple[Frequencies, float]:
    """What a position is multiplied by for each pair of a head's `dims` numbers, and the factor of
    their sines and cosines.

    base     "rope_theta" of the configuration
    scaling  its "rope_scaling" or "rope_parameters": None, or of type default, linear, llama3 or
             yarn

    Raises: UnsupportedModel for another type, ModelError for a setting that is missing or wrong.
    """
    plain = 1.0 / base ** (np.arange(0, dims, 2, dtype=np.float64) / dims)
    kind, scale = rope_type(scaling), 1.0
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise UnsupportedModel(
            f"the model uses RoPE of type '{kind}'; expected default, linear, llama3 or yarn"
        )
    if scaling is not None and kind != "default":
        factor = _number(scaling, "factor")
        if kind == "linear":
            plain = plain / factor
        elif kind == "llama3":
            plain = _llama3(plain, factor, scaling)
        else:
            plain, scale = _yarn(plain, base, factor, scaling), _yarn_scale(factor, scaling)
    if not plain.max() < 1e30:
        raise ModelError(f"RoPE has a frequency of {plain.max():.3g}; expected less than 1e30")
    return plain.astype(np.float32), scale


def _llama3(
    plain: NDArray[np.float64], factor: float, scaling: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Long waves are stretched, short ones are not, those between by degrees."""
    low, high = _number(scaling, "low_freq_factor"), _number(scaling, "high_freq_factor")
    if low >= high:
        raise ModelError(f"the low_freq_factor of RoPE is {low}; expected less than {high}")
    original = _number(scaling, "original_max_position_embeddings")
    waves = 2 * np.pi / plain
    smooth = (original / waves - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    return np.where(
        waves < original / high, plain, np.where(waves > original / low, plain / factor, between)
    )


def _yarn(
    plain: NDArray[np.float64], base: float, factor: float, scaling: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Numbers that turn often keep their frequency, those that turn seldom are stretched."""
    dims, original = 2 * len(plain), _number(scaling, "original_max_position_embeddings")

    def dim_of(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dim_of(_number(scaling, "beta_fast", 32)), dim_of(_number(scaling, "beta_slow", 1))
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    places = np.arange(len(plain), dtype=np.float64)
    ramp: NDArray[np.float64] = np.clip((places - low) / ((high - low) or 0.001), 0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


def _yarn_scale(factor: float, scaling: Mapping[str, Any]) -> float:
    if scaling.get("attention_factor") is not None:
        return _number(scaling, "attention_factor")

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if scaling.get("mscale") and scaling.get("mscale_all_dim"):
        return scale(_number(scaling, "mscale")) / scale(_number(scaling, "mscale_all_dim"))
    return scale(1.0)


def _number(scaling: Mapping[str, Any], key: str, default: float | None = None) -> float:
    value = default if scaling.get(key) is None else scaling[key]
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1e30:
        raise ModelError(f"the {key} of RoPE is {value!r:.60}; expected a number above 0")
    return float(value)
