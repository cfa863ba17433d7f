"""The weights of a model on a device, by the names of transformers: from a GGUF file, whose blocks
are widened there, or from a folder of safetensors.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.decoder_config import DecoderConfig, read_config
from foresay.models.gpu.blocks import ON_DEVICE, WORKING_BYTES, widen
from foresay.models.gpu.pieces import PIECE_BYTES, Pieces, reading_pieces
from foresay.models.progress import Progress, silent
from foresay.models.weights.folder import ExpectedTensors, config_of, tensors_of
from foresay.models.weights.gguf_header import GgmlType
from foresay.models.weights.gguf_values import dequantised
from foresay.models.weights.stored import StoredModel

__all__ = ["decoder_config", "each_weight", "needed_bytes", "read_weights", "weight_shapes"]

# Old models have the first, which follows from the configuration; and the second may be there
# beside the embedding that it is.
_IGNORED = ("rotary_emb.inv_freq", "lm_head.weight")
_SAFE = {name: GgmlType[name] for name in ("F32", "F16", "BF16")}
_SEGMENT = 1 << 21  # what torch's allocator takes of a GPU is a multiple of it


@dataclass(frozen=True)
class _Place:
    """Where a tensor is stored, and how. `heads` and `plus` are those of `StoredTensor`."""

    name: str
    file: Path
    kind: GgmlType
    start: int
    size: int
    shape: tuple[int, ...]
    heads: int = 0
    plus: float = 0.0


def decoder_config(model: StoredModel) -> DecoderConfig:
    """What the decoder of a model is made by.

    Raises: UnsupportedModel, ModelError as `read_config`.
    """
    if model.plan is None:
        return read_config(config_of(model.folder), f"'{model.folder}'")
    tied = {"tie_word_embeddings": "lm_head.weight" not in model.tensors}
    return read_config({**model.plan.config, **tied}, f"'{model.gguf}'")


def weight_shapes(config: DecoderConfig) -> dict[str, tuple[int, ...]]:
    """The weights of such a decoder: those of no layer first, then layer by layer. Without
    `lm_head.weight` the output is the embedding.
    """
    kind, width, inner = config.kind, config.width, config.inner
    queries, keys = config.heads * config.head_dim, config.key_heads * config.head_dim
    own, mlp = "self_attn", "mlp"
    linears = {
        f"{own}.q_proj": (queries, width, config.query_bias),
        f"{own}.k_proj": (keys, width, config.query_bias),
        f"{own}.v_proj": (keys, width, config.query_bias),
        f"{own}.o_proj": (width, queries, config.out_bias),
        f"{mlp}.gate_proj": (inner, width, config.mlp_bias),
        f"{mlp}.up_proj": (inner, width, config.mlp_bias),
        f"{mlp}.down_proj": (width, inner, config.mlp_bias),
    }
    if kind.fused:
        linears = {
            f"{own}.qkv_proj": (queries + 2 * keys, width, config.query_bias),
            f"{own}.o_proj": linears[f"{own}.o_proj"],
            f"{mlp}.gate_up_proj": (2 * inner, width, config.mlp_bias),
            f"{mlp}.down_proj": linears[f"{mlp}.down_proj"],
        }
    norms = {"input_layernorm": width, "post_attention_layernorm": width}
    if kind.after_norms:
        norms |= {"pre_feedforward_layernorm": width, "post_feedforward_layernorm": width}
    if kind.head_norms:
        norms |= {f"{own}.q_norm": config.head_dim, f"{own}.k_norm": config.head_dim}
    layer: dict[str, tuple[int, ...]] = {}
    for name, (outs, ins, bias) in linears.items():
        layer[f"{name}.weight"] = (outs, ins)
        if bias:
            layer[f"{name}.bias"] = (outs,)
    layer |= {f"{name}.weight": (size,) for name, size in norms.items()}
    table = (config.vocabulary, width)
    return {
        "model.embed_tokens.weight": table,
        "model.norm.weight": (width,),
        **({} if config.tied else {"lm_head.weight": table}),
        **{
            f"model.layers.{index}.{name}": shape
            for index in range(config.layers)
            for name, shape in layer.items()
        },
    }


def needed_bytes(model: StoredModel, dtype: torch.dtype) -> int:
    """Bytes that `read_weights` takes of a GPU while it works, within some MB. What is missing,
    of another size or of an unknown kind is found here; the values are not read.

    Raises: as `read_weights`.
    """
    places = _places(model).values()
    turned = [_taken(place.shape, dtype) for place in places if place.heads]
    working = WORKING_BYTES + 2 * PIECE_BYTES + max(turned, default=0)
    return working + sum(_taken(place.shape, dtype) for place in places)


def read_weights(
    model: StoredModel, device: torch.device, dtype: torch.dtype, progress: Progress = silent
) -> dict[str, Tensor]:
    """All weights of a model, contiguous, by the names and in the order of `weight_shapes`. Those
    of a GGUF file are widened in float32; all are rounded once.

    Raises: UnsupportedModel for an architecture, a setting, a tensor or a kind that is not known;
    ModelError naming the tensor that is missing, damaged, of another shape, holds what is no
    number, or does not fit on the device; what `progress` raises. Nothing stays on the device.
    """
    found: dict[str, Tensor] = {}
    try:
        for name, tensor in each_weight(model, device, dtype, progress):
            found[name] = tensor
    except BaseException:
        found.clear()  # or the error's traceback would hold them
        raise
    return found


def each_weight(
    model: StoredModel, device: torch.device, dtype: torch.dtype, progress: Progress = silent
) -> Iterator[tuple[str, Tensor]]:
    """As `read_weights`, one weight after another. Whether all are numbers is found out after the
    last, so that the device is not waited for before.
    """
    places = _places(model)
    total, done = sum(place.size for place in places.values()), 0
    progress("read", 0, total)
    bounds: list[Tensor] = []
    with reading_pieces(device) as pieces:
        for name, place in places.items():
            try:
                tensor = _read(place, pieces, device, dtype)
                bounds.append(torch.stack(torch.aminmax(tensor)))
            except torch.OutOfMemoryError:
                raise ModelError(
                    f"'{place.file}': the tensor '{place.name}' does not fit on {device}, with "
                    f"{done} of {total} bytes read; expected more free memory there"
                ) from None
            done += place.size
            yield name, tensor
            del tensor  # its memory may be the next one's
            progress("read", done, total)
    _check_bounds(list(places.values()), bounds, dtype)


def _read(place: _Place, pieces: Pieces, device: torch.device, dtype: torch.dtype) -> Tensor:
    kind = place.kind
    # What was added is taken away before the values are rounded.
    out = torch.empty(place.shape, dtype=torch.float32 if place.plus else dtype, device=device)
    flat, blocks = out.view(-1), place.size // kind.block_bytes
    step = PIECE_BYTES // kind.block_bytes
    for at in range(0, blocks, step):
        count = min(step, blocks - at)
        start = place.start + at * kind.block_bytes
        piece = pieces.read(place.file, start, count * kind.block_bytes, place.name)
        widen(piece, kind, flat[at * kind.block : (at + count) * kind.block])
    if place.heads:
        # Rows came as (half, pair) in every head and were stored as (pair, half).
        turned = out.view(place.heads, -1, 2, *place.shape[1:]).transpose(1, 2)
        out = turned.reshape(place.shape)
    return (out - place.plus).to(dtype) if place.plus else out


def _check_bounds(places: list[_Place], bounds: list[Tensor], dtype: torch.dtype) -> None:
    """Least and greatest of each tensor, which are no numbers if one of its values is none."""
    sound = torch.stack(bounds).isfinite().all(1).tolist()
    for place, is_sound in zip(places, sound, strict=True):
        if not is_sound:
            raise ModelError(
                f"'{place.file}' is damaged: the tensor '{place.name}' holds values that are no "
                f"numbers, or too large for {str(dtype).removeprefix('torch.')}"
            )


def _taken(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """Bytes of a GPU that a tensor takes."""
    size = prod(shape) * dtype.itemsize
    return size + -size % (_SEGMENT if size >= _SEGMENT else 512)


def _places(model: StoredModel) -> dict[str, _Place]:
    """Where each weight is, in the order of `weight_shapes`, checked against the configuration."""
    shapes = weight_shapes(decoder_config(model))
    places = _in_folder(model.folder, shapes) if model.gguf is None else _in_gguf(model, shapes)
    for kind in {place.kind for place in places.values()} - ON_DEVICE:
        try:
            dequantised(np.zeros((1, kind.block_bytes), np.uint8), kind)
        except UnsupportedModel as error:
            one = next(place for place in places.values() if place.kind == kind)
            raise UnsupportedModel(f"'{one.file}': the tensor '{one.name}' is {error}") from error
    return places


def _in_gguf(model: StoredModel, shapes: dict[str, tuple[int, ...]]) -> dict[str, _Place]:
    assert model.gguf is not None
    places: dict[str, _Place] = {}
    for name, shape in shapes.items():
        stored = model.tensors.get(name)
        if stored is None or stored.tensor.shape != shape:
            has = "is not there" if stored is None else f"is {list(stored.tensor.shape)}"
            raise ModelError(
                f"'{model.gguf}': the tensor for '{name}' {has}; expected {list(shape)}"
            )
        tensor = stored.tensor
        places[name] = _Place(
            tensor.name,
            model.gguf,
            tensor.kind,
            tensor.start,
            tensor.size,
            shape,
            stored.heads,
            stored.plus,
        )
    return places


def _in_folder(folder: Path, shapes: dict[str, tuple[int, ...]]) -> dict[str, _Place]:
    tensors = ExpectedTensors(folder, tensors_of(folder), "a model of its config.json")
    places: dict[str, _Place] = {}
    for name, shape in shapes.items():
        found = tensors.take(name, shape)
        if found.kind not in _SAFE:
            raise UnsupportedModel(
                f"'{found.file}': the tensor '{name}' is of type {found.kind}; expected "
                f"{', '.join(_SAFE)}"
            )
        kind = _SAFE[found.kind]
        places[name] = _Place(name, found.file, kind, found.start, found.size, shape)
    tensors.refuse_others(_IGNORED, "those of its config.json alone")
    return places
