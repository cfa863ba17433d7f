"""A whole decoder of the core, made from a folder of safetensors: its matrices are quantised, row
by row, as llama.cpp quantises them.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foresay._core import BlockLinear
from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models.cpu.decoder import LayeredDecoder, Linear, make_decoder
from foresay.models.decoder_config import DecoderConfig, read_config
from foresay.models.options import Quantise, check_quantise
from foresay.models.progress import Progress, silent
from foresay.models.weights.folder import ExpectedTensors, config_of, tensors_of
from foresay.models.weights.gguf_values import BLOCK, quantised

__all__ = ["can_quantise", "quantised_config", "quantised_decoder"]

_VALUES_AT_A_TIME = 1 << 22
# Old models have the first, which transformers makes itself; and the second may be there beside the
# embedding that it is.
_IGNORED = ("rotary_emb.inv_freq", "lm_head.weight")


def can_quantise(folder: Path) -> bool:
    """Whether the core's decoder knows the architecture of a folder.

    Raises: ModelError for a configuration that is damaged.
    """
    try:
        quantised_config(folder)
    except UnsupportedModel:
        return False
    return True


def quantised_config(folder: Path) -> DecoderConfig:
    """What the decoder of a folder will be, without reading its weights.

    Raises: UnsupportedModel for an architecture, a setting or a width that it does not have;
    ModelError for a configuration that is damaged.
    """
    config = read_config(config_of(folder), f"'{folder}'")
    widths = {
        "hidden_size": config.width,
        "intermediate_size": config.inner,
        "width of all heads": config.heads * config.head_dim,
    }
    for name, width in widths.items():
        if width % BLOCK:
            raise UnsupportedModel(
                f"'{folder}' cannot be quantised: its {name} is {width}; expected a multiple of "
                f"{BLOCK}"
            )
    return config


def quantised_decoder(
    folder: Path, format: Quantise, progress: Progress = silent
) -> LayeredDecoder:
    """The decoder of a folder of config.json and safetensors. Of the weights that are not quantised
    a part is in memory at a time.

    Raises: InputError for another format; as `quantised_config`; ModelError naming the tensor that
    is missing, damaged or of another shape, or sizes that cannot be used; UnsupportedModel naming a
    tensor that is not used.
    """
    check_quantise(format)
    config = quantised_config(folder)
    source = _Tensors(folder, config, format, progress)
    decoder = make_decoder(config, source, folder)
    source.tensors.refuse_others(_IGNORED, f"those of a {config.layers}-layer decoder")
    return decoder


class _Tensors:
    """`Weights` of a folder."""

    def __init__(
        self, folder: Path, config: DecoderConfig, format: Quantise, progress: Progress
    ) -> None:
        self.tensors = ExpectedTensors(folder, tensors_of(folder), "a model of its config.json")
        self._config, self._format, self._progress = config, format, progress
        self._done, self._total = 0, sum(one.size for one in self.tensors.found.values())
        progress("quantise", 0, self._total)

    def linears(self, wanted: Sequence[Linear]) -> list[BlockLinear]:
        return [self._linear(*one) for one in wanted]

    def _linear(self, path: str, outs: int, ins: int, bias: bool) -> BlockLinear:
        whole, first, rows = _place(path, outs, self._config)
        tensor = self.tensors.take(f"{whole}.weight", (rows, ins))
        step = max(1, _VALUES_AT_A_TIME // ins)
        parts = [
            quantised(tensor.rows(at, min(step, first + outs - at)), self._format)
            for at in range(first, first + outs, step)
        ]
        added = None
        if bias:
            added = self.tensors.take(f"{whole}.bias", (rows,)).rows(first, outs)
        self._done += tensor.size // rows * outs
        self._progress("quantise", self._done, self._total)
        stored = np.concatenate(parts).reshape(-1)
        try:
            return BlockLinear(self._format.upper(), stored, outs, ins, None, added)
        except InputError as error:
            raise ModelError(
                f"'{tensor.file}': the tensor '{tensor.name}' cannot be quantised: {error}"
            ) from error

    def norm(self, path: str, width: int) -> NDArray[np.float32]:
        found = self.tensors.take(f"{path}.weight", (width,)).rows(0, width)
        return found + np.float32(1) if self._config.kind.above_one else found


def _place(path: str, outs: int, config: DecoderConfig) -> tuple[str, int, int]:
    """The layer that holds the rows of another, the first of them there, and how many it has."""
    parent, _, name = path.rpartition(".")
    queries, keys = config.heads * config.head_dim, config.key_heads * config.head_dim
    fused = {
        "q_proj": ("qkv_proj", 0, queries + 2 * keys),
        "k_proj": ("qkv_proj", queries, queries + 2 * keys),
        "v_proj": ("qkv_proj", queries + keys, queries + 2 * keys),
        "gate_proj": ("gate_up_proj", 0, 2 * config.inner),
        "up_proj": ("gate_up_proj", config.inner, 2 * config.inner),
    }
    if not config.kind.fused or name not in fused:
        return path, 0, outs
    whole, first, rows = fused[name]
    return f"{parent}.{whole}", first, rows
