"""Tiny GGUF files, written as llama.cpp's converter writes them from a transformers model.

The conventions here are the other direction of those in foresay.models.weights, written from the
converter's side: what the tests compare is a model before export and after conversion.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from gguf import GGMLQuantizationType as Kind
from numpy.typing import NDArray
from transformers import AutoConfig, AutoModelForCausalLM
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from foresay.models.progress import Progress, silent
from foresay.models.weights.cache import place
from foresay.models.weights.gguf import write_model

BYTES = [chr(code) for code in (*range(33, 127), *range(161, 173), *range(174, 256))]
BYTES += [chr(256 + n) for n in range(256 - len(BYTES))]  # how byte-level BPE spells the rest
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["h e", "l l", "he ll", "hell o", "Ġ w", "1 2"]
WORDS = [*SPECIAL, *BYTES, *(merge.replace(" ", "") for merge in MERGES), "<think>"]
KINDS = [3] * len(SPECIAL) + [1] * (len(WORDS) - len(SPECIAL) - 1) + [4]
VOCABULARY = 272  # more rows than words, as in real models
TEMPLATE = "{% for m in messages %}<|im_start|>{{ m['content'] }}<|im_end|>{% endfor %}"

_SMALL: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "tie_word_embeddings": False,
    "rope_theta": 5000.0,
}
_WINDOWED = {"sliding_window": 6, "head_dim": 32, "query_pre_attn_scalar": 32}
CONFIGS: dict[str, dict[str, Any]] = {
    "llama": _SMALL,
    "qwen2": _SMALL,
    "qwen3": {**_SMALL, "head_dim": 32},
    "gemma": {**_SMALL, "head_dim": 32, "hidden_activation": "gelu_pytorch_tanh"},
    "gemma2": {
        **_SMALL,
        **_WINDOWED,
        "attn_logit_softcapping": 7.0,
        "final_logit_softcapping": 9.0,
        "num_hidden_layers": 3,
    },
    "gemma3": {**_SMALL, **_WINDOWED, "num_hidden_layers": 7, "rope_local_base_freq": 10000.0},
}
# Where a block of a K format has the scales of its scales and minimums, and a usual size of each.
_K_SCALES = {
    Kind.Q4_K: {0: 1e-3, 2: 7.5e-3},
    Kind.Q5_K: {0: 5e-4, 2: 7.5e-3},
    Kind.Q6_K: {208: 2e-4},
}


def tiny(architecture: str, seed: int = 0, **changes: Any) -> Any:
    """A model with wide random weights that bfloat16 can hold."""
    model_type = "gemma3_text" if architecture == "gemma3" else architecture
    settings = {**CONFIGS[architecture], **changes}
    config = AutoConfig.for_model(model_type, **settings)
    torch.manual_seed(seed)
    kind: Any = AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation="eager")
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_((torch.randn(parameter.shape) * 0.3).to(torch.bfloat16).float())
    return model.eval()


SCALINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "linear": ("llama", {"rope_type": "linear", "factor": 4.0}),
    "yarn": (
        "llama",
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
    ),
    "llama3": (
        "llama",
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 8192,
        },
    ),
    "linear of full attention alone": ("gemma3", {"rope_type": "linear", "factor": 8.0}),
}


def scaled(name: str) -> tuple[Any, str, dict[str, Any]]:
    """A model with that rope, its architecture, and what else `export` has to write. Its base is
    small, so that few positions reach all three zones of Llama 3's scaling."""
    architecture, scaling = SCALINGS[name]
    model, kind = tiny(architecture, rope_scaling=scaling), scaling["rope_type"]
    if kind == "llama3":
        found, _ = ROPE_INIT_FUNCTIONS["llama3"](model.config, torch.device("cpu"))
        factors = (5000.0 ** -(torch.arange(8) / 8) / found).numpy().astype(np.float32)
        assert len({round(float(factor), 3) for factor in factors}) > 2
        return model, architecture, {"tensors": {"rope_freqs.weight": factors}}
    keys = {"type": kind, "factor": scaling["factor"]}
    if kind == "yarn":
        keys["original_context_length"] = 32
    extra = {f"{architecture}.rope.scaling.{key}": value for key, value in keys.items()}
    return model, architecture, {"extra": extra}


def packed(values: NDArray[np.float32], kind: Kind) -> NDArray[np.uint8]:
    """Rows stored as `kind`. Of a K format, which gguf cannot write, random blocks with values of
    about the same size.
    """
    if kind not in _K_SCALES:
        found: NDArray[np.uint8] = gguf.quantize(values, kind)
        return found
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(values.size).integers(
        0, 256, (values.size // numbers, size), np.uint8
    )
    for at, scale in _K_SCALES[kind].items():
        scales = (scale * np.linspace(0.5, 1.5, len(blocks))).astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(len(values), -1)


def byte_words(pre: str, **keys: Any) -> dict[str, Any]:
    """The keys of a byte-level tokenizer that splits texts as `pre` says."""
    words = {"tokens": WORDS, "token_type": KINDS, "merges": MERGES}
    return {"model": "gpt2", "pre": pre, **words, "bos_token_id": 1, "eos_token_id": 2, **keys}


def export(
    model: Any,
    path: Path,
    architecture: str,
    kind: Kind = Kind.F32,
    *,
    extra: dict[str, Any] | None = None,
    tensors: dict[str, NDArray[Any]] | None = None,
    without: tuple[str, ...] = (),
    words: dict[str, Any] | None = None,
    narrow: bool = True,
) -> None:
    """Write the model, and leave in it what `kind` left of its matrices; if `narrow`, what is left
    of that when it is converted to bfloat16. `words`: the keys of its tokenizer; None: byte-level
    words, and places in the embedding that no word has.
    """
    config = model.config
    if words is None:
        padding = [f"[PAD{n}]" for n in range(len(WORDS), VOCABULARY)]
        kinds = KINDS + [5] * len(padding)
        words = byte_words("smollm", tokens=WORDS + padding, token_type=kinds)
    writer = gguf.GGUFWriter(path, architecture)
    keys: dict[str, Any] = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.layer_norm_rms_epsilon": config.rms_norm_eps,
        "rope.freq_base": CONFIGS[architecture]["rope_theta"],
    }
    if architecture not in ("llama", "qwen2"):
        keys |= {"attention.key_length": config.head_dim, "attention.value_length": config.head_dim}
    if architecture in ("gemma2", "gemma3"):
        keys["attention.sliding_window"] = config.sliding_window
    if architecture == "gemma2":
        keys["attn_logit_softcapping"] = config.attn_logit_softcapping
        keys["final_logit_softcapping"] = config.final_logit_softcapping
    named = {
        **{f"{architecture}.{key}": value for key, value in keys.items()},
        **{f"tokenizer.ggml.{key}": value for key, value in words.items()},
        "tokenizer.chat_template": TEMPLATE,
    }
    for key, value in {**named, **(extra or {})}.items():
        found = gguf.GGUFValueType.get_type(value)
        writer.add_key_value(key, value, gguf.GGUFValueType.UINT32 if type(value) is int else found)
    for name, array in (tensors or {}).items():
        writer.add_tensor(name, array)
    _add_tensors(writer, model, architecture, kind, without, narrow)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def convert(file: Path, folder: Path, progress: Progress = silent) -> None:
    """The folder of safetensors of a file, all of it or none."""
    place(folder, lambda made: write_model(file, made, progress), needed=1)


def _add_tensors(
    writer: gguf.GGUFWriter,
    model: Any,
    architecture: str,
    kind: Kind,
    without: tuple[str, ...],
    narrow: bool,
) -> None:
    state = model.state_dict()
    tied = model.config.tie_word_embeddings
    number = next(key for key, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture)
    names = gguf.get_tensor_name_map(number, model.config.num_hidden_layers)
    for name, values in state.items():
        stored = names.get_name(name, try_suffixes=(".weight", ".bias")) or "output.weight"
        if stored in without or (tied and name == "lm_head.weight"):
            continue
        array = values.numpy().copy()
        if array.ndim == 1:
            norm = architecture.startswith("gemma") and name.endswith("norm.weight")
            writer.add_tensor(stored, array + np.float32(1) if norm else array)
            continue
        rows = packed(array, kind)
        left = torch.from_numpy(np.array(gguf.dequantize(rows, kind).reshape(array.shape)))
        values.copy_(left.bfloat16() if narrow else left)
        heads = {
            "q_proj": model.config.num_attention_heads,
            "k_proj": model.config.num_key_value_heads,
        }.get(name.split(".")[-2])
        if architecture == "llama" and heads:  # as `permute` of the converter
            rows = rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)
        writer.add_tensor(stored, np.ascontiguousarray(rows), raw_dtype=kind)
