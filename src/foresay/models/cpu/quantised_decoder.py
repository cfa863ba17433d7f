"""A whole decoder of the core, made from a folder of safetensors: its matrices are quantised, row
by row, as llama.cpp quantises them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from foresay._core import BlockLinear
from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models.cpu.decoder import LayeredDecoder, Linear, make_decoder
from foresay.models.cpu.decoder_config import DecoderConfig, read_config
from foresay.models.cpu.quantise import BLOCK, Quantise, check_quantise, quantised
from foresay.models.progress import Progress, silent
from foresay.models.weights.folder import config_of, tensors_of
from foresay.models.weights.safetensors import SafeTensor

__all__ = ["quantised_config", "quantised_decoder"]

_VALUES_AT_A_TIME = 1 << 22
_IGNORED = (".rotary_emb.inv_freq",)  # that old models have, and transformers makes itself


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
    tensors = _Tensors(folder, tensors_of(folder), config, format, progress)
    decoder = make_decoder(config, tensors, folder)
    tensors.refuse_others()
    return decoder


class _Tensors:
    """`Weights` of a folder."""

    def __init__(
        self,
        folder: Path,
        tensors: Mapping[str, SafeTensor],
        config: DecoderConfig,
        format: Quantise,
        progress: Progress,
    ) -> None:
        self._folder, self._tensors, self._config = folder, tensors, config
        self._format, self._progress = format, progress
        self._done, self._total = 0, sum(tensor.size for tensor in tensors.values())
        self._used = {"lm_head.weight"}  # which a model may have beside the embedding that it is
        progress("quantise", 0, self._total)

    def linears(self, wanted: Sequence[Linear]) -> list[BlockLinear]:
        return [self._linear(*one) for one in wanted]

    def _linear(self, path: str, outs: int, ins: int, bias: bool) -> BlockLinear:
        whole, first, rows = _place(path, outs, self._config)
        tensor = self._tensor(f"{whole}.weight", rows, ins)
        step = max(1, _VALUES_AT_A_TIME // ins)
        parts = [
            quantised(tensor.rows(at, min(step, first + outs - at)), self._format)
            for at in range(first, first + outs, step)
        ]
        added = self._tensor(f"{whole}.bias", rows).rows(first, outs) if bias else None
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
        found = self._tensor(f"{path}.weight", width).rows(0, width)
        return found + np.float32(1) if self._config.kind.above_one else found

    def refuse_others(self) -> None:
        """Refuse a folder with a tensor that was not asked for: another model, perhaps.

        Raises: UnsupportedModel.
        """
        for name in self._tensors:
            if name not in self._used and not name.endswith(_IGNORED):
                raise UnsupportedModel(
                    f"'{self._folder}' has the tensor '{name:.80}', which a model of its "
                    "config.json does not use"
                )

    def _tensor(self, name: str, *shape: int) -> SafeTensor:
        if name not in self._tensors:
            raise ModelError(f"'{self._folder}' lacks the tensor '{name}'")
        self._used.add(name)
        found = self._tensors[name]
        if found.shape != shape:
            raise ModelError(
                f"'{found.file}': the tensor '{name}' is {list(found.shape)}; expected "
                f"{list(shape)} by its config.json"
            )
        return found


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
