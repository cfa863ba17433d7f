"""The frequencies of rotary position embeddings, from a model's configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay.errors import UnsupportedModel

__all__ = ["Frequencies", "frequencies"]

Frequencies = NDArray[np.float32]


def frequencies(
    base: float, dims: int, scaling: Mapping[str, Any] | None
) -> tuple[Frequencies, float]:
    """What a position is multiplied by for each pair of a head's `dims` numbers, and the factor of
    their sines and cosines.

    base     "rope_theta" of the configuration
    scaling  its "rope_scaling": None, or of type default, linear, llama3 or yarn

    Raises: UnsupportedModel for another type.
    """
    plain = 1.0 / base ** (np.arange(0, dims, 2, dtype=np.float64) / dims)
    kind = "default" if scaling is None else str(scaling.get("rope_type", scaling.get("type")))
    if scaling is None or kind == "default":
        return plain.astype(np.float32), 1.0
    factor = float(scaling["factor"])
    if kind == "linear":
        return (plain / factor).astype(np.float32), 1.0
    if kind == "llama3":
        return _llama3(plain, factor, scaling).astype(np.float32), 1.0
    if kind == "yarn":
        return _yarn(plain, base, factor, scaling).astype(np.float32), _mscale(factor)
    raise UnsupportedModel(
        f"the model uses RoPE of type '{kind}'; expected default, linear, llama3 or yarn"
    )


def _llama3(
    plain: NDArray[np.float64], factor: float, scaling: Mapping[str, Any]
) -> NDArray[np.float64]:
    """Long waves are stretched, short ones are not, those between by degrees."""
    low, high = float(scaling["low_freq_factor"]), float(scaling["high_freq_factor"])
    original = float(scaling["original_max_position_embeddings"])
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
    dims, original = 2 * len(plain), float(scaling["original_max_position_embeddings"])

    def dim_of(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low = max(math.floor(dim_of(float(scaling.get("beta_fast", 32)))), 0)
    high = min(math.ceil(dim_of(float(scaling.get("beta_slow", 1)))), dims - 1)
    ramp = np.clip((np.arange(len(plain)) - low) / max(high - low, 0.001), 0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


def _mscale(factor: float) -> float:
    return 0.1 * math.log(factor) + 1.0 if factor > 1 else 1.0
