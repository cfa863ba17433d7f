"""The small files of a GGUF file's model: its config and its tokenizer, as transformers names them.

They follow from the file's header and its table of RoPE factors alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from foresay.errors import UnsupportedModel
from foresay.models.weights.cache import FORMAT
from foresay.models.weights.gguf_config import Plan, check_rope_factors, plan
from foresay.models.weights.gguf_header import Header, Tensor
from foresay.models.weights.gguf_types import GgmlType
from foresay.models.weights.gguf_values import tensor_bytes

if TYPE_CHECKING:
    from foresay.models.weights.gguf_tokenizer import Words

__all__ = ["planned", "rope_bytes", "write_texts"]


def rope_bytes(header: Header, file: Path) -> bytes:
    """The bytes of the file's table of RoPE factors; none if it has none.

    Raises: ModelError naming the tensor if the file is shorter than its header says.
    """
    factors = header.tensors.get("rope_freqs.weight")
    if factors is None:
        return b""
    return tensor_bytes(file, factors).tobytes()


def planned(header: Header, file: Path) -> Plan:
    """The plan of a file, its config complete with the RoPE scaling that the factors mean.

    Raises: UnsupportedModel, ModelError, see `gguf_config.plan`.
    """
    made = plan(header, str(file))
    if made.rope_factors is not None:
        factors = _floats(made.rope_factors, rope_bytes(header, file), file)
        check_rope_factors(factors, made.config, str(file))
    return made


def write_texts(made: Plan, words: Words, folder: Path, *, note: Mapping[str, Any]) -> None:
    """Write config, generation_config, tokenizer and foresay.json into a folder that exists.

    note    goes into foresay.json

    Raises: OSError.
    """
    ids = {f"{name}_token_id": token for name, token in words.ids.items() if name != "unk"}
    ends = words.ends[0] if len(words.ends) == 1 else list(words.ends) or None
    generation = {**ids, "eos_token_id": ends}
    texts: dict[str, Any] = {
        "config.json": {
            **made.config,
            "tie_word_embeddings": "lm_head.weight" not in made.tensors,
            **ids,
        },
        "generation_config.json": {
            key: value for key, value in generation.items() if value is not None
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": made.config["max_position_embeddings"],
            **words.config,
        },
        "foresay.json": {"format": FORMAT, **note},
    }
    for name, content in texts.items():
        written = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(written, encoding="utf-8")
    (folder / "tokenizer.json").write_text(words.tokenizer, encoding="utf-8")


def _floats(tensor: Tensor, raw: bytes, file: Path) -> Any:
    if tensor.kind != GgmlType.F32:
        raise UnsupportedModel(
            f"'{file}': the tensor '{tensor.name}' is of type {tensor.kind.name}; expected F32"
        )
    return np.frombuffer(raw, "<f4").astype(np.float32)
