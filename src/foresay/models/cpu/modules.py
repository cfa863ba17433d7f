"""Make a target on processors of transformers' modules: the core's attention, linear layers, norms
and whole layers take the place of the model's own.
"""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel

from foresay._core import cpu_level
from foresay.models import checks
from foresay.models.cpu import linears
from foresay.models.cpu.decoder_layers import fuse_layers, fusible, restore
from foresay.models.cpu.invariance import make_batch_invariant
from foresay.models.cpu.norms import fuse_norms
from foresay.models.cpu.quantised_linears import quantise_linears
from foresay.models.cpu.target import CpuTarget
from foresay.models.invariance import is_batch_invariant
from foresay.models.load_transformers import prepared, read_model
from foresay.models.options import Dtype, LoadOptions
from foresay.models.visibility import visible_by_layer

__all__ = ["load_modules", "make_target"]

_TRIALS = 5  # linear layers, visibility, logits, whole layers, batch invariance


def load_modules(folder: Path, options: LoadOptions) -> CpuTarget:
    """The model in a folder of config and safetensors, run by transformers' modules; see
    `load.load`. With `quantize` its linear layers are quantised, and the rest is of float32.

    Raises: as `load.load`.
    """
    if options.quantize is not None:
        model = read_model(folder, torch.float32)
    else:
        model = read_model(folder, _torch_dtype(options.dtype))
        slow = options.dtype == "auto" and not _torch_multiplies_bfloat16()
        if slow and linears.multiplied_by_torch(model, packed=False):
            model = read_model(folder, torch.float32)
    return make_target(model, options)


def make_target(
    model: PreTrainedModel, options: LoadOptions, *, try_exact: bool = True
) -> CpuTarget:
    """The target for a model on this processor, as `load_transformers.target_of` says. A model that
    is to be quantised is of float32.

    Raises: as there, and what the progress raises.
    """
    quantize, deterministic, progress = options.quantize, options.deterministic, options.progress
    context, names = prepared(model)
    if deterministic:
        make_batch_invariant(model)
    progress("try", 0, _TRIALS)
    if quantize is None:
        linears.pack(model, deterministic=deterministic)
        linears.warn_if_slow(model)
    progress("try", 1, _TRIALS)
    layers = visible_by_layer(model, context)
    shapes = checks.layer_shapes(model)
    fuse_norms(model)
    target = CpuTarget(
        model,
        layers,
        shapes,
        names if quantize is None else {},  # of weights that can be replaced
        context=context,
        threads=options.threads or torch.get_num_threads(),
    )
    progress("try", 2, _TRIALS)
    checks.check_logits(target)
    if quantize is not None:  # after the comparison, whose single roundings integers would enlarge
        quantise_linears(model, quantize)
    progress("try", 3, _TRIALS)
    if fusible(model):
        before, replaced = checks.trial(target), fuse_layers(model)
        if not checks.alike(checks.trial(target), before):
            restore(model, replaced)
    progress("try", 4, _TRIALS)
    if deterministic and try_exact:
        target.exact = is_batch_invariant(target)
    return target


def _torch_multiplies_bfloat16() -> bool:
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _torch_dtype(name: Dtype) -> torch.dtype:
    """Where torch has no fast product of bfloat16, the core's is used. With NEON it is faster than
    float32 in decode, since it reads less memory, and about as fast in prefill (measured on level
    neon; i8mm only has more instructions); on other levels that was not measured.
    """
    if name == "auto":
        fast = _torch_multiplies_bfloat16() or cpu_level() in ("i8mm", "dotprod", "neon")
        return torch.bfloat16 if fast else torch.float32
    return torch.bfloat16 if name == "bfloat16" else torch.float32
