"""The frequencies of rotary position embeddings, from a model's configuration."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights.settings import Settings

__all__ = ["Frequencies", "frequencies", "rope_type"]

Frequencies = NDArray[np.float32]


def rope_type(scaling: Mapping[str, Any] | None) -> str:
    """Of settings in the old style or the new one; "default" for none."""
    given = scaling or {}
    return str(given.get("rope_type", given.get("type", "default")))


def frequencies(
    base: float, dims: int, scaling: Mapping[str, Any] | None, where: str = "the model"
) -> tuple[Frequencies, float]:
    """What a position is multiplied by for each pair of a head's `dims` numbers, and the factor of
    their sines and cosines.

    base     "rope_theta" of the configuration
    scaling  its "rope_scaling" or "rope_parameters": None, or of type default, linear, llama3 or
             yarn
    where    names the model in errors

    Raises: UnsupportedModel for another type, ModelError for a setting that is missing or wrong.
    """
    plain = 1.0 / base ** (np.arange(0, dims, 2, dtype=np.float64) / dims)
    kind, scale = rope_type(scaling), 1.0
    if kind not in ("default", "linear", "llama3", "yarn"):
        raise UnsupportedModel(
            f"{where} uses RoPE of type '{kind:.60}'; expected default, linear, llama3 or yarn"
        )
    if scaling is not None and kind != "default":
        settings = Settings(scaling, where, "'{}' of RoPE")
        factor = settings.real("factor")
        if kind == "linear":
            plain = plain / factor
        elif kind == "llama3":
            plain = _llama3(plain, factor, settings)
        else:
            plain, scale = _yarn(plain, base, factor, settings), _yarn_scale(factor, settings)
    if not plain.max() < 1e30:
        raise ModelError(
            f"{where}: RoPE has a frequency of {plain.max():.3g}; expected less than 1e30"
        )
    return plain.astype(np.float32), scale


def _llama3(plain: NDArray[np.float64], factor: float, settings: Settings) -> NDArray[np.float64]:
    """Long waves are stretched, short ones are not, those between by degrees."""
    low, high = settings.real("low_freq_factor"), settings.real("high_freq_factor")
    if low >= high:
        raise settings.wrong("low_freq_factor", low, f"less than {high}")
    original = settings.real("original_max_position_embeddings")
    waves = 2 * np.pi / plain
    smooth = (original / waves - low) / (high - low)
    between = (1 - smooth) * plain / factor + smooth * plain
    return np.where(
        waves < original / high, plain, np.where(waves > original / low, plain / factor, between)
    )


def _yarn(
    plain: NDArray[np.float64], base: float, factor: float, settings: Settings
) -> NDArray[np.float64]:
    """Numbers that turn often keep their frequency, those that turn seldom are stretched."""
    dims, original = 2 * len(plain), settings.real("original_max_position_embeddings")

    def dim_of(turns: float) -> float:
        return dims * math.log(original / (turns * 2 * math.pi)) / (2 * math.log(base))

    low, high = dim_of(settings.real("beta_fast", 32)), dim_of(settings.real("beta_slow", 1))
    if settings.values.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, dims - 1)
    places = np.arange(len(plain), dtype=np.float64)
    ramp: NDArray[np.float64] = np.clip((places - low) / ((high - low) or 0.001), 0, 1)
    return plain / factor * ramp + plain * (1 - ramp)


def _yarn_scale(factor: float, settings: Settings) -> float:
    if "attention_factor" in settings:
        return settings.real("attention_factor")

    def scale(weight: float) -> float:
        return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0

    if settings.values.get("mscale") and settings.values.get("mscale_all_dim"):
        return scale(settings.real("mscale")) / scale(settings.real("mscale_all_dim"))
    return scale(1.0)
