"""A whole decoder of the core, made from the tensors of a GGUF file as they are stored."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from foresay._core import BlockLinear, read_linears
from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models.cpu.decoder import LayeredDecoder, Linear, make_decoder
from foresay.models.decoder_config import DecoderConfig, read_config
from foresay.models.progress import Progress, silent
from foresay.models.weights import StoredModel

__all__ = ["FORMATS", "decoder_of", "runs_as_stored"]

FORMATS = frozenset(
    ("F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
)
"""The formats of weights that the core multiplies as they are."""

_FLOATS: dict[str, np.dtype[Any]] = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}

_MOST_THREADS = 16  # that read: more of them wait for memory


def runs_as_stored(model: StoredModel) -> bool:
    """Whether `decoder_of` takes it: a GGUF file of an architecture and of formats that the core
    knows. A layer's gate and up are multiplied together, so they have one format.

    Raises: ModelError for a setting that has an invalid value.
    """
    if model.plan is None:
        return False
    try:
        _config_of(model)
    except UnsupportedModel:
        return False
    kinds = {name: stored.tensor.kind.name for name, stored in model.tensors.items()}
    return all(
        kind in (FORMATS if len(model.tensors[name].tensor.shape) == 2 else _FLOATS)
        and kind == kinds[name.replace(".gate_proj.", ".up_proj.")]
        for name, kind in kinds.items()
    )


def decoder_of(model: StoredModel, threads: int = 1, progress: Progress = silent) -> LayeredDecoder:
    """The decoder. It holds its own copy of the weights, read on `threads`.

    GIL: released while the matrices are read. Raises: ModelError naming the tensor that is damaged,
    or saying which sizes cannot be used; UnsupportedModel; what `progress` raises.
    """
    return make_decoder(_config_of(model), _Tensors(model, threads, progress), model.gguf)


def _config_of(model: StoredModel) -> DecoderConfig:
    assert model.plan is not None
    tied = {"tie_word_embeddings": "lm_head.weight" not in model.tensors}
    return read_config({**model.plan.config, **tied}, f"'{model.gguf}'")


class _Tensors:
    """`Weights` of a file. The plan has checked which tensors there are, and their shapes."""

    def __init__(self, model: StoredModel, threads: int, progress: Progress) -> None:
        self._model, self._threads, self._progress = model, threads, progress

    def linears(self, wanted: Sequence[Linear]) -> list[BlockLinear]:
        self._progress("read", 0, None)
        try:
            places = [self._place(*one) for one in wanted]
            return read_linears(str(self._model.gguf), places, min(self._threads, _MOST_THREADS))
        except InputError as error:
            raise ModelError(f"'{self._model.gguf}': {error}") from error

    def _place(self, path: str, outs: int, ins: int, bias: bool) -> tuple[Any, ...]:
        """Where a matrix is, as the core takes it."""
        stored = self._model.tensors[f"{path}.weight"]
        tensor = stored.tensor
        order = _order(outs, stored.heads) if stored.heads else None
        added = self._numbers(f"{path}.bias") if bias else None
        return tensor.name, tensor.kind.name, tensor.start, outs, ins, order, added

    def norm(self, path: str, width: int) -> NDArray[np.float32]:
        return self._numbers(f"{path}.weight")  # whose stored numbers are what is multiplied by

    def _numbers(self, name: str) -> NDArray[np.float32]:
        stored = self._model.tensors[name]
        kind = stored.tensor.kind.name
        found = self._model.bytes_of(name).view(_FLOATS[kind])
        if not np.isfinite(found).all():
            raise ModelError(
                f"'{self._model.gguf}': the tensor '{stored.tensor.name}' holds what is no number"
            )
        numbers: NDArray[np.float32] = found.astype(np.float32)
        return numbers


def _order(rows: int, heads: int) -> NDArray[np.int32]:
    """Which stored row each row is: those of a head were stored as (pair, half)."""
    order = np.arange(rows, dtype=np.int32).reshape(heads, rows // heads // 2, 2)
    return np.ascontiguousarray(order.swapaxes(1, 2).reshape(-1))
