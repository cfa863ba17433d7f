"""Folders of safetensors, quantised when they are loaded, and what cannot be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from foresay._core import BlockLinear
from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models.cpu import quantised_decoder as module
from foresay.models.cpu.quantised_decoder import quantised_config, quantised_decoder
from foresay.models.cpu.stored_target import StoredTarget
from foresay.models.decoder_config import ARCHITECTURES
from foresay.models.invariance import is_batch_invariant
from foresay.models.load import load
from foresay.models.options import Quantise
from foresay.models.weights.gguf_values import quantised
from models import zoo
from models.core_reference import difference, found, least_difference, text_of

CLOSE, QUANTISED = 2e-4, 0.1
TEXT = text_of(zoo.VOCABULARY, 60)
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    **{name: (name, {}) for name in ARCHITECTURES},
    "llama with biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama tied": ("llama", {"tie_word_embeddings": True}),
    "phi3 with a window": ("phi3", {"sliding_window": zoo.WINDOW}),
    "phi3 turned in part": ("phi3", {"partial_rotary_factor": 0.5}),
    "qwen2 with windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": zoo.WINDOW, "max_window_layers": 1},
    ),
}


def make(name: str, **changes: Any) -> Any:
    model: Any = zoo.make(name, hidden_size=64, intermediate_size=96, **changes)
    model.set_attn_implementation("eager")
    return model


def saved(model: Any, folder: Path, **how: Any) -> Path:
    model.save_pretrained(folder, **how)
    return folder


def target_of(folder: Path, format: Quantise = "q8_0") -> StoredTarget:
    decoder = quantised_decoder(folder, format)
    return StoredTarget(decoder, context=quantised_config(folder).context, threads=1)


@torch.no_grad()
def left(model: Any, format: str) -> Any:
    """The model with what the format leaves of its matrices."""
    kind = Kind[format.upper()]
    for weight in model.parameters():
        if weight.ndim == 2:
            values = gguf.dequantize(gguf.quantize(weight.float().numpy(), kind), kind)
            weight.copy_(torch.from_numpy(np.array(values)))
    return model


@pytest.mark.parametrize(
    ("name", "format"),
    [
        *((name, "q8_0") for name in VARIANTS),
        *((name, "q4_0") for name in ("llama", "llama tied", "phi3 with a window")),
    ],
)
def test_logits_are_those_of_transformers(name: str, format: Quantise, tmp_path: Path) -> None:
    model_type, changes = VARIANTS[name]
    model = make(model_type, **changes)
    target = target_of(saved(model, tmp_path), format)
    model = left(model, format)
    assert least_difference(target, model, quantised=True) < CLOSE
    # Beyond windows, with integers against none.
    assert difference(found(target, TEXT), zoo.plain_logits(model, TEXT)) < QUANTISED
    assert is_batch_invariant(target)


@pytest.mark.parametrize("name", ["mistral", "phi3 with a window", "qwen2 with windows"])
def test_windows_are_seen(name: str, tmp_path: Path) -> None:
    """Without them the logits are others, so that the test above would fail."""
    model_type, changes = VARIANTS[name]
    target = target_of(saved(make(model_type, **changes), tmp_path))
    without = {**changes, "sliding_window": None, "use_sliding_window": False}
    whole = left(make(model_type, **without), "q8_0")
    assert difference(found(target, TEXT), zoo.plain_logits(whole, TEXT)) > 2 * QUANTISED


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_types_and_files(
    dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Several files, and large tensors in parts."""
    make("llama").to(dtype).save_pretrained(tmp_path, max_shard_size="30KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    monkeypatch.setattr(module, "_VALUES_AT_A_TIME", 500)
    seen: list[tuple[str, int, int | None]] = []
    decoder = quantised_decoder(tmp_path, "q8_0", lambda *step: seen.append(step))
    assert seen[0][:2] == ("quantise", 0) and 0.9 < seen[-1][1] / (seen[-1][2] or 1) <= 1
    target = StoredTarget(decoder, context=zoo.CONTEXT, threads=1)
    read: Any = AutoModelForCausalLM.from_pretrained(
        tmp_path, dtype=torch.float32, attn_implementation="eager"
    )
    assert least_difference(target, left(read, "q8_0"), quantised=True) < CLOSE


@pytest.mark.parametrize("format", ["q8_0", "q4_0"])
def test_the_core_reads_what_was_quantised(format: Quantise) -> None:
    values = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    rows = quantised(values, format)
    layer = BlockLinear(format.upper(), rows.reshape(-1), 5, 64)
    read = np.stack([layer.row(row) for row in range(5)])
    assert np.array_equal(read, gguf.dequantize(rows, Kind[format.upper()]))
    assert np.abs(read - values).max() < (0.02 if format == "q8_0" else 0.3)


def test_memory_and_a_tied_head(tmp_path: Path) -> None:
    """The blocks of the embedding are shared; a head that the file has beside it is not read."""
    tied = quantised_decoder(saved(make("llama", tie_word_embeddings=True), tmp_path / "a"), "q4_0")
    own = quantised_decoder(saved(make("llama"), tmp_path / "b"), "q4_0")
    assert own.bytes - tied.bytes == zoo.VOCABULARY * (64 // 32 * 18 + 4)  # and a bias, of zero


def change(folder: Path, **settings: Any) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


FOREIGN: dict[str, tuple[dict[str, Any], str]] = {
    "architecture": ({"model_type": "mamba"}, "architecture 'mamba'; expected llama, mistral"),
    "activation": ({"hidden_act": "relu"}, "activation 'relu'; expected silu"),
    "quantised": ({"quantization_config": {"bits": 4}}, "quantised already"),
    "width": ({"hidden_size": 72}, "hidden_size is 72; expected a multiple of 32"),
    "inner": ({"intermediate_size": 48}, "intermediate_size is 48; expected a multiple of 32"),
    "heads": ({"head_dim": 10}, "width of all heads is 40; expected a multiple of 32"),
    "rope": ({"rope_parameters": {"rope_type": "longrope"}}, "RoPE of type 'longrope'; expected"),
    "turned": ({"partial_rotary_factor": 0.5}, "turns 8 of the 16 numbers of a head; expected all"),
}
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    **FOREIGN,
    "no setting": ({"rms_norm_eps": None}, "no setting 'rms_norm_eps'"),
    "a word": ({"hidden_size": "64"}, "'hidden_size' is '64'; expected a whole number"),
    "negative": ({"rms_norm_eps": -1.0}, "'rms_norm_eps' is -1.0; expected a number above 0"),
    "other heads": ({"num_key_value_heads": 4}, r"k_proj.weight' .* \[32, 64\], .* \[64, 64"),
    "many layers": ({"num_hidden_layers": 3}, "lacks the tensor 'model.layers.2"),
    "too many layers": ({"num_hidden_layers": 10**8}, "100000000 layers; expected at most 4096"),
    "wide heads": ({"head_dim": 10**9}, "heads 1000000000 wide; expected at most 4096"),
    "no factor": ({"rope_parameters": {"rope_type": "linear"}}, "no setting 'factor' of RoPE"),
    "no object": ({"rope_scaling": 7}, "'rope_scaling' is 7; expected an object"),
    "base": ({"rope_parameters": {"rope_theta": 1}}, "expected a number above 1"),
    # Transformers saves such a model; the error names the folder and both widths.
    "shared heads": (
        {"num_key_value_heads": 3, "head_dim": 32},
        "'.*' has sizes .* queries of layer 0 .* width 128; expected a multiple of 96,",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_configurations_that_do_not_fit(name: str, tmp_path: Path) -> None:
    settings, message = REFUSED[name]
    sizes = settings if name == "shared heads" else {}
    folder = saved(make("llama", **sizes), tmp_path)
    change(folder, **settings)
    with pytest.raises(UnsupportedModel if name in FOREIGN else ModelError, match=message):
        quantised_decoder(folder, "q8_0")


def test_a_context_that_is_too_short(tmp_path: Path) -> None:
    folder = saved(make("llama"), tmp_path)
    for context in (1, 5, 13):
        change(folder, max_position_embeddings=context)
        with pytest.raises(ModelError, match=f"context is {context} tokens; expected 14 or more"):
            load(folder, quantize="q8_0")
    change(folder, max_position_embeddings=14)
    assert load(folder, quantize="q8_0").exact


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("model.layers.0.self_attn.sinks", torch.zeros(4), ", which a model of"),
        ("model.norm.weight", torch.full((64,), torch.nan), "holds what is no number"),
        ("lm_head.weight", torch.full((128, 64), 1e9), "cannot be quantised: .* no number"),
        ("lm_head.weight", torch.zeros(128, 64).long(), "is of type I64; expected F32"),
    ],
)
def test_tensors_that_do_not_fit(name: str, value: Any, message: str, tmp_path: Path) -> None:
    file = saved(make("llama"), tmp_path) / "model.safetensors"
    save_file({**load_file(file), name: value}, file)
    with pytest.raises(ModelError, match=f"the tensor '{name}'.*{message}"):
        quantised_decoder(tmp_path, "q8_0")


def test_the_format_is_checked(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="quantize is 'q5_0'; expected q8_0, q4_0"):
        quantised_decoder(tmp_path, "q5_0")  # type: ignore[arg-type]
