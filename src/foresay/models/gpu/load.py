"""Make a target on a GPU: of files, or of a model of transformers that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foresay.errors import ModelError, UnsupportedModel
from foresay.models import checks, weights
from foresay.models.decoder_config import DecoderConfig, read_config
from foresay.models.gpu.attention import BLOCK
from foresay.models.gpu.decoder import Decoder, heads_of, layer_of, tensor_of
from foresay.models.gpu.streaming import StreamedLayers, read_streamed
from foresay.models.gpu.target import GpuTarget
from foresay.models.gpu.weights import decoder_config, needed_bytes, read_weights, weight_shapes
from foresay.models.invariance import is_batch_invariant
from foresay.models.load_transformers import plain_target_of, read_model
from foresay.models.options import LoadOptions
from foresay.models.plain import PlainTarget
from foresay.models.remembered import Memory, is_remembering
from foresay.models.replacing import names_of, tensors_of
from foresay.models.visibility import Visible
from foresay.models.weights.folder import config_of
from foresay.models.weights.stored import StoredModel

__all__ = ["load_gpu", "make_target", "random_target", "target_over"]

_DTYPES = {
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "float32": torch.float32,
}
_SHARE = 0.5  # of the memory that is free, for keys and values, where nothing is said


def load_gpu(model: StoredModel, options: LoadOptions) -> GpuTarget | PlainTarget:
    """The target of a model's files on the device of the options; see `load.load`. What is no
    dense decoder of a known family is run by transformers.

    Raises: as `load.load`; ModelError if there is not enough memory.
    """
    device = torch.device(options.device)
    dtype = _dtype_of(model, options)
    where = f"'{model.gguf or model.folder}'"
    try:
        config = decoder_config(model)
        heads_of(config, where)
        needed = needed_bytes(model, dtype)
    except UnsupportedModel:
        return _through_transformers(model, dtype, device, options)
    _check_fits(where, min(needed, options.weight_memory or needed), device)
    identity = f"{model.identity} {dtype} on {torch.cuda.get_device_name(device)}"
    streamed = None
    if options.weight_memory is None:
        found = read_weights(model, device, dtype, options.progress)
    else:
        limit, identity = options.weight_memory, f"{identity}, {options.weight_memory} bytes"
        found, streamed = read_streamed(model, device, dtype, limit, options.progress)
    torch.cuda.empty_cache()  # what reading took
    target = _with_both_names(
        config, found, where, memory=options.memory, identity=identity, streamed=streamed
    )
    if options.deterministic:
        target.exact = _is_exact(target, options)
    return target


def make_target(
    model: PreTrainedModel, options: LoadOptions, *, try_exact: bool = True
) -> GpuTarget | PlainTarget:
    """The target for a model that is on a GPU; its weights are used where they are.

    Mutates: the model, where it is no dense decoder of a known family: then its attention function
    is replaced. Raises: as `load_transformers.target_of`.
    """
    target = _over_modules(model, options)
    if target is None:
        return plain_target_of(model)
    options.progress("try", 0, 2)
    before = model.config._attn_implementation
    try:
        checks.check_logits(target)
    finally:
        model.set_attn_implementation(before)
    options.progress("try", 1, 2)
    if options.deterministic and try_exact:
        target.exact = is_batch_invariant(target)
    return target


def random_target(
    settings: Mapping[str, Any],
    device: torch.device | str,
    *,
    memory: int | None = None,
    weights: int | None = None,
    dtype: torch.dtype = torch.bfloat16,
) -> GpuTarget:
    """A target of that configuration with made-up weights, for timing.

    memory   bytes of keys and values; None: half of what is free
    weights  bytes of weights on the device, where layers beyond that are to be streamed
    """
    config, device = read_config(settings, "the configuration"), torch.device(device)
    chance = torch.Generator(device).manual_seed(1)

    def made(shape: tuple[int, ...]) -> Tensor:
        numbers = torch.randn(shape, generator=chance, device=device, dtype=torch.float32)
        scaled = numbers * shape[-1] ** -0.5 if len(shape) > 1 else 1 + numbers / 10
        return scaled.to(dtype)

    shapes = weight_shapes(config)
    if weights is None:
        found = {name: made(shape) for name, shape in shapes.items()}
        return _with_both_names(config, found, "the configuration", memory=memory, identity=None)
    others = {n: made(shape) for n, shape in shapes.items() if not n.startswith("model.layers.")}
    left = weights - sum(tensor.nbytes for tensor in others.values())
    layers = (
        {
            name.split(".", 3)[3]: made(shape)
            for name, shape in shapes.items()
            if name.startswith(f"model.layers.{number}.")
        }
        for number in range(config.layers)
    )
    streamed = StreamedLayers(layers, count=config.layers, device=device, limit=left)
    return _with_both_names(
        config, others, "the configuration", memory=memory, identity=None, streamed=streamed
    )


def target_over(
    config: DecoderConfig,
    tensors: Mapping[str, Tensor],
    names: Mapping[str, Sequence[str]],
    where: str,
    *,
    memory: int | None,
    identity: str | None = None,
    streamed: StreamedLayers | None = None,
) -> GpuTarget:
    """The target over tensors that are on the device.

    names     for each name all names of the same tensor
    memory    bytes of keys and values; None: half of what is free
    streamed  the layers, where they are not among the tensors

    Raises: UnsupportedModel, ModelError for tensors that do not fit, or too little memory.
    """
    decoder = _decoder_of(config, tensors, where, streamed)
    heads, dtype, device = decoder.heads, decoder.norm.dtype, decoder.norm.device
    page = 2 * config.layers * heads.keys * heads.padded * dtype.itemsize * BLOCK
    free = _free(device)
    wanted = int(free * _SHARE) if memory is None else memory
    if wanted < 2 * page or wanted > free:
        raise ModelError(
            f"{where} is to have {wanted >> 20} MiB for keys and values; expected at least "
            f"{-(-2 * page >> 20)} MiB, and {free >> 20} MiB are free on {device}"
        )
    return GpuTarget(decoder, tensors, names, pages=wanted // page - 1, identity=identity)


def _over_modules(model: PreTrainedModel, options: LoadOptions) -> GpuTarget | None:
    """None: the model is none that the kernels know."""
    if model.dtype not in _DTYPES.values():
        return None
    where = f"the model {type(model).__name__}"
    tensors = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    try:
        config = read_config(model.config.to_dict(), where)
        target = target_over(config, tensors, names_of(model), where, memory=options.memory)
    except UnsupportedModel:
        return None
    target.model = model
    return target


def _through_transformers(
    model: StoredModel, dtype: torch.dtype, device: torch.device, options: LoadOptions
) -> PlainTarget:
    if model.gguf is not None:
        folder = weights.find(model.gguf, convert=True, progress=options.progress)
    else:
        folder = model.folder
    size = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    _check_fits(f"'{folder}'", size, device)
    read: Any = read_model(folder, dtype)
    target = plain_target_of(read.to(device))
    target.memory = int(_free(device) * _SHARE) if options.memory is None else options.memory
    return target


def _check_fits(where: str, needed: int, device: torch.device) -> None:
    free = _free(device)
    if needed > free:
        raise ModelError(
            f"the weights of {where} take {needed >> 20} MiB; {free >> 20} MiB are free on {device}"
        )


def _dtype_of(model: StoredModel, options: LoadOptions) -> torch.dtype:
    """That of the options; "auto": of float16 if the weights are, else bfloat16."""
    if options.dtype != "auto":
        return _DTYPES[options.dtype]
    stored = {} if model.gguf is not None else config_of(model.folder)
    said = str(stored.get("dtype", stored.get("torch_dtype")))
    return torch.float16 if said == "float16" else torch.bfloat16


def _with_both_names(
    config: DecoderConfig,
    found: dict[str, Tensor],
    where: str,
    *,
    memory: int | None,
    identity: str | None,
    streamed: StreamedLayers | None = None,
) -> GpuTarget:
    """The target over a file's tensors; a tied output has the embedding's name as well."""
    names: dict[str, Sequence[str]] = {name: [name] for name in found}
    if config.tied:
        both = ["model.embed_tokens.weight", "lm_head.weight"]
        found[both[1]] = found[both[0]]
        names |= dict.fromkeys(both, both)
    return target_over(
        config, found, names, where, memory=memory, identity=identity, streamed=streamed
    )


def _decoder_of(
    config: DecoderConfig,
    tensors: Mapping[str, Tensor],
    where: str,
    streamed: StreamedLayers | None,
) -> Decoder:
    heads = heads_of(config, where)
    embedding = tensor_of(tensors, "model.embed_tokens.weight", config.vocabulary, config.width)
    head = embedding
    if not config.tied:
        head = tensor_of(tensors, "lm_head.weight", config.vocabulary, config.width)
    return Decoder(
        config,
        heads,
        [
            layer_of(tensors if streamed is None else _streamed(streamed, at), config, at)
            for at in range(config.layers)
        ],
        [Visible(window) for window in config.windows],
        embedding,
        tensor_of(tensors, "model.norm.weight", config.width),
        head,
        streamed,
    )


def _streamed(layers: StreamedLayers, number: int) -> dict[str, Tensor]:
    """The tensors of a layer that is streamed, where they will be each time. Norms and biases stay:
    they are needed when the layer behind them is there already."""
    return {
        f"model.layers.{number}.{name}": tensor.clone() if tensor.ndim == 1 else tensor
        for name, tensor in layers.layer(number).items()
    }


def _is_exact(target: GpuTarget, options: LoadOptions) -> bool:
    """Whether it is batch-invariant here. What an earlier start has found is not tried again."""
    memory = Memory("batch-invariant", str(target.identity), target.threads)
    if is_remembering() and memory.read() is True:
        return True
    options.progress("try", 0, 1)
    exact = is_batch_invariant(target, hidden=True)
    if is_remembering() and exact:
        memory.write(True)
    return exact


def _free(device: torch.device) -> int:
    """Bytes that are free there; in the interpreter, some."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 1 << 30
