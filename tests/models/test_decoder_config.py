"""Configurations mean what transformers takes them for: rope in the old style and in the new one,
windows, and what is missing.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig

from foresay.errors import UnsupportedModel
from foresay.models.decoder_config import ARCHITECTURES, read_config
from models import zoo

LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
SCALINGS: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default"},
    "linear": {"rope_type": "linear", "factor": 4.0},
    "linear by its old name": {"type": "linear", "factor": 2},
    "llama3": {"rope_type": "llama3", **LLAMA3, "original_max_position_embeddings": 64},
    "yarn": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    "yarn of the whole context": {"rope_type": "yarn", "factor": 4.0},
    "yarn with bounds": {"rope_type": "yarn", "factor": 4.0, "beta_fast": 16, "beta_slow": 2},
    "yarn of halves": {"rope_type": "yarn", "factor": 4.0, "truncate": False},
    "yarn with a factor": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.3},
    "yarn of DeepSeek": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.1},
}


def theirs(model_type: str, **changes: Any) -> tuple[list[torch.Tensor], float]:
    """The frequencies in transformers' own model, and the factor of sines and cosines."""
    rope = zoo.make(model_type, **changes).model.rotary_emb
    if model_type == "gemma3_text":
        both = [rope.full_attention_inv_freq, rope.sliding_attention_inv_freq]
        return both, float(rope.full_attention_attention_scaling)
    return [rope.inv_freq], float(rope.attention_scaling)


def settings(model_type: str, **changes: Any) -> dict[str, Any]:
    """A config.json of the zoo."""
    found: dict[str, Any] = AutoConfig.for_model(
        model_type, **{**zoo._COMMON, **zoo.SUPPORTED.get(model_type, {}), **changes}
    ).to_dict()
    return found


def assert_same(config: dict[str, Any], wanted: tuple[list[torch.Tensor], float]) -> None:
    found = read_config(config, "it")
    assert len(found.frequencies) == len(wanted[0])
    for ours, given in zip(found.frequencies, wanted[0], strict=True):
        assert torch.allclose(torch.tensor(ours), given, rtol=1e-5)
    assert found.rope_scale == pytest.approx(wanted[1])


@pytest.mark.parametrize("name", SCALINGS)
def test_rope_in_both_styles(name: str) -> None:
    scaling = SCALINGS[name]
    wanted = theirs("llama", rope_parameters={"rope_theta": 500.0, **scaling})
    assert_same(settings("llama", rope_parameters={"rope_theta": 500.0, **scaling}), wanted)
    old = settings("llama")
    del old["rope_parameters"]
    assert_same({**old, "rope_theta": 500.0, "rope_scaling": scaling}, wanted)
    if name != "default":  # so that the test can fail
        with pytest.raises(AssertionError):
            assert_same({**old, "rope_theta": 500.0}, wanted)


def test_the_two_ropes_of_gemma3() -> None:
    local = {"rope_type": "default", "rope_theta": 300.0}
    full = {"rope_type": "linear", "factor": 8.0, "rope_theta": 5000.0}
    both = {"full_attention": full, "sliding_attention": local}
    wanted = theirs("gemma3_text", rope_parameters=both)
    assert_same(settings("gemma3_text", rope_parameters=both), wanted)
    old = settings("gemma3_text")
    del old["rope_parameters"]
    old |= {"rope_theta": 5000.0, "rope_local_base_freq": 300.0}
    assert_same({**old, "rope_scaling": {"type": "linear", "factor": 8.0}}, wanted)
    del old["rope_theta"], old["rope_local_base_freq"]
    assert_same(old, theirs("gemma3_text"))
    yarn = {"rope_type": "yarn", "factor": 4.0}
    with pytest.raises(UnsupportedModel, match="expected one factor"):
        read_config({**old, "rope_scaling": yarn}, "it")


@pytest.mark.parametrize("model_type", ARCHITECTURES)
def test_what_is_missing(model_type: str) -> None:
    """A configuration of before rope_parameters, layer_types and head_dim."""
    whole = settings(model_type)
    keys = ("rope_parameters", "layer_types", "tie_word_embeddings", "rope_scaling")
    old = {key: value for key, value in whole.items() if key not in keys}
    found = read_config(old, "it")
    defaults = AutoConfig.for_model(model_type)
    given = AutoConfig.for_model(**old)
    assert found.tied == defaults.tie_word_embeddings
    types = getattr(given, "layer_types", None)
    if types is None:
        types = ["sliding_attention" if getattr(given, "sliding_window", None) else ""] * 2
    windows = [zoo.WINDOW if each == "sliding_attention" else 0 for each in types]
    assert list(found.windows) == windows
    assert_same(old, theirs(model_type))


def test_windows_of_qwen() -> None:
    windowed = {"use_sliding_window": True, "sliding_window": 16, "max_window_layers": 1}
    old = settings("qwen2", **windowed)
    assert read_config(old, "it").windows == (0, 16)
    del old["layer_types"]
    assert read_config(old, "it").windows == (0, 16)
    assert read_config({**old, "use_sliding_window": False}, "it").windows == (0, 0)
    with pytest.raises(UnsupportedModel, match="layer of type 'chunked_attention'; expected full"):
        read_config({**old, "layer_types": ["chunked_attention"] * 2}, "it")
