"""Make a target on a GPU: of files, or of a model of transformers that is there."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foresay.errors import ModelError, UnsupportedModel
from foresay.models import checks
from foresay.models.decoder_config import ARCHITECTURES, DecoderConfig, read_config
from foresay.models.gpu.attention import BLOCK
from foresay.models.gpu.decoder import Decoder, heads_of, layer_of, tensor_of
from foresay.models.gpu.target import GpuTarget
from foresay.models.invariance import is_batch_invariant
from foresay.models.load_transformers import plain_target_of
from foresay.models.options import LoadOptions
from foresay.models.plain import PlainTarget
from foresay.models.replacing import names_of, tensors_of
from foresay.models.visibility import Visible

__all__ = ["make_target", "target_over"]

_DTYPES = (torch.bfloat16, torch.float16, torch.float32)
_SHARE = 0.5  # of the memory that is free, for keys and values, where nothing is said


def decoder_of(config: DecoderConfig, tensors: Mapping[str, Tensor], where: str) -> Decoder:
    """The decoder of a model whose tensors are on the device.

    Raises: UnsupportedModel, ModelError.
    """
    heads = heads_of(config, where)
    embedding = tensor_of(tensors, "model.embed_tokens.weight", config.vocabulary, config.width)
    head = embedding
    if not config.tied:
        head = tensor_of(tensors, "lm_head.weight", config.vocabulary, config.width)
    return Decoder(
        config,
        heads,
        {number: layer_of(tensors, config, number) for number in range(config.layers)},
        [Visible(window) for window in config.windows],
        embedding,
        tensor_of(tensors, "model.norm.weight", config.width),
        head,
    )


def target_over(
    config: DecoderConfig,
    tensors: Mapping[str, Tensor],
    names: Mapping[str, Sequence[str]],
    where: str,
    *,
    memory: int | None,
    identity: str | None = None,
    graphs: bool = True,
) -> GpuTarget:
    """The target over tensors that are on the device.

    memory  bytes of keys and values; None: half of what is free

    Raises: as `decoder_of`; ModelError for too little memory.
    """
    decoder = decoder_of(config, tensors, where)
    heads, dtype = decoder.heads, decoder.norm.dtype
    page = 2 * config.layers * heads.keys * heads.padded * dtype.itemsize * BLOCK
    if memory is None:
        memory = int(_free(decoder.norm.device) * _SHARE)
    if memory < 2 * page:
        raise ModelError(
            f"{memory >> 20} MiB are left for keys and values; {where} needs at least "
            f"{(2 * page >> 20) + 1} MiB"
        )
    return GpuTarget(
        decoder, tensors, names, pages=memory // page, identity=identity, graphs=graphs
    )


def _free(device: torch.device) -> int:
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else 1 << 28


def make_target(
    model: PreTrainedModel, options: LoadOptions, *, try_exact: bool = True
) -> GpuTarget | PlainTarget:
    """The target for a model that is on a GPU; its weights are used where they are. A dense decoder
    of a known family is not changed; any other model belongs to the target, which is a plain one.

    Raises: as `load_transformers.target_of`.
    """
    made = _fast_target(model, options)
    if made is None:
        return plain_target_of(model)
    options.progress("try", 0, 2)
    before = model.config._attn_implementation
    try:
        checks.check_logits(made)
    finally:
        model.set_attn_implementation(before)
    options.progress("try", 1, 2)
    if options.deterministic and try_exact:
        made.exact = is_batch_invariant(made)
    return made


def _fast_target(model: PreTrainedModel, options: LoadOptions) -> GpuTarget | None:
    """None: the model is none that the kernels know."""
    if model.config.model_type not in ARCHITECTURES or model.dtype not in _DTYPES:
        return None
    where = f"the model {type(model).__name__}"
    tensors = {name: tensor.detach() for name, tensor in tensors_of(model).items()}
    try:
        config = read_config(model.config.to_dict(), where)
        made = target_over(config, tensors, names_of(model), where, memory=options.memory)
    except UnsupportedModel:
        return None
    made.model = model
    return made
