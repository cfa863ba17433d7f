"""Make a target of a model of transformers, and check before its use that it is run exactly."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from foresay._core import cpu_level
from foresay.errors import InputError, ModelError
from foresay.models import checks
from foresay.models.cpu import linears
from foresay.models.cpu.decoder_layers import fuse_layers, fusible, restore
from foresay.models.cpu.invariance import make_batch_invariant
from foresay.models.cpu.norms import fuse_norms
from foresay.models.cpu.quantise import Quantise, check_quantise
from foresay.models.cpu.quantised_linears import quantise_linears
from foresay.models.cpu.target import CpuTarget
from foresay.models.invariance import is_batch_invariant
from foresay.models.options import Dtype, check_threads
from foresay.models.plain import PlainTarget
from foresay.models.progress import Progress, silent
from foresay.models.replacing import names_of
from foresay.models.visibility import visible_by_layer
from foresay.models.weights.folder import config_of

__all__ = ["LOADING", "load_modules", "plain_target_of", "read_model", "target_of"]

# from_pretrained replaces functions of torch and of its own for the whole process while it runs
# (tie_weights, those that initialise, the default dtype), and two at once put back each other's.
LOADING = threading.Lock()
_COUNTS = ("layers", "n_layer", "experts", "blocks")  # how settings that count modules end
_MOST = 4096
_TRIALS = 5  # linear layers, visibility, logits, whole layers, batch invariance


def load_modules(
    folder: Path,
    *,
    dtype: Dtype = "auto",
    quantize: Quantise | None = None,
    deterministic: bool = True,
    threads: int = 0,
    progress: Progress = silent,
) -> CpuTarget:
    """The model in a folder of config and safetensors, run by transformers' modules; see
    `load.load`. With `quantize` its linear layers are quantised, and the rest is of float32.

    Raises: as `load.load`.
    """
    if quantize is not None:
        check_quantise(quantize)
        model = read_model(folder, torch.float32)
        return target_of(
            model,
            quantize=quantize,
            deterministic=deterministic,
            threads=threads,
            progress=progress,
        )
    model = read_model(folder, _torch_dtype(dtype))
    slow = not _torch_multiplies_bfloat16()
    if dtype == "auto" and slow and linears.multiplied_by_torch(model, packed=False):
        model = read_model(folder, torch.float32)
    return target_of(model, deterministic=deterministic, threads=threads, progress=progress)


def target_of(
    model: PreTrainedModel,
    *,
    quantize: Quantise | None = None,
    deterministic: bool = True,
    try_exact: bool = True,
    threads: int = 0,
    progress: Progress = silent,
) -> CpuTarget:
    """A target on this processor for a model, which belongs to it from now on. A model that is to
    be quantised is of float32. `try_exact`: find out whether it is batch-invariant, which takes as
    long as dozens of steps and changes nothing; without, its `exact` stays None.

    Mutates: the model: its attention function, layers and norms. Raises: UnsupportedModel,
    InputError for a FORESAY_CPU that this machine lacks, and what `progress` raises.
    """
    check_threads(threads)
    cpu_level()
    context, names = _prepared(model)
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
        deterministic=deterministic,
        threads=threads or torch.get_num_threads(),
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


def plain_target_of(model: PreTrainedModel) -> PlainTarget:
    """The plain target for a model, on whatever device it is; the model belongs to it from now on.
    On a processor without bfloat16 let the model be of float32: torch's products of bfloat16 take a
    hundred times as long there.

    Raises: UnsupportedModel.
    """
    context, names = _prepared(model)
    layers = visible_by_layer(model, context)
    target = PlainTarget(model, layers, checks.layer_shapes(model), names, context=context)
    checks.check_logits(target)
    return target


def _prepared(model: Any) -> tuple[int, dict[str, Sequence[str]]]:
    """What both kinds of target need: the context, and the names of weights."""
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise InputError(f"the model is of type {kind}; expected a model of transformers")
    checks.check_config(model.config)
    model.train(False).requires_grad_(False)
    context, names = _context_of(model.config.get_text_config()), names_of(model)
    _without_far_scaling(model)
    return context, names


def read_model(folder: str | os.PathLike[str], dtype: torch.dtype) -> PreTrainedModel:
    """The model in a folder, as transformers reads it; no code of the folder is run.

    Raises: ModelError.
    """
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    _check_counts(Path(folder) / "config.json", config_of(Path(folder)))
    try:
        with LOADING:
            model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
                Path(folder),
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
            )
    except StrictDataclassError as error:  # a value of config.json that transformers refuses
        raise ModelError(
            f"'{Path(folder) / 'config.json'}' cannot be used: {_reason(error)}"
        ) from error
    except (
        *(OSError, ValueError, KeyError, RuntimeError, ImportError),
        # Of values that transformers does not check:
        *(TypeError, AttributeError, ArithmeticError, AssertionError),
    ) as error:
        said = str(error).strip().splitlines()
        raise ModelError(
            f"the model in '{folder}' cannot be loaded: {said[0] if said else error!r}"
        ) from error
    # Weights of the file's own type are the mapped file: if somebody cut it the process would end,
    # and if somebody wrote into it the texts would change.
    for weight in model.parameters():
        weight.data = weight.data.clone()
    return model


def _check_counts(file: Path, config: Mapping[str, Any]) -> None:
    """Refuse what transformers would build without end, before it compares it with the weights.

    Raises: ModelError.
    """
    for part in (config, *(each for each in config.values() if isinstance(each, dict))):
        for key, value in part.items():
            if key.endswith(_COUNTS) and type(value) is int and value > _MOST:
                raise ModelError(f"'{file}': '{key:.60}' is {value}; expected at most {_MOST}")


def _reason(error: StrictDataclassError) -> str:
    """What is wrong with a config, in one line: which value, and what was expected."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    said = lines[-1].partition("Error: ")[2] or lines[-1] if lines else repr(error)
    return said.partition(" Errors: ")[0].rstrip(".")


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


def _context_of(config: Any) -> int:
    """How long a text may be."""
    context = getattr(config, "max_position_embeddings", None) or 1 << 20
    if getattr(config, "attn_temperature_tuning", False):
        context = min(context, int(config.floor_scale) - 1)  # see _without_far_scaling
    return int(context)


def _without_far_scaling(model: PreTrainedModel) -> None:
    """Llama 4 scales the queries of far positions, and takes a row's number for its position. Up to
    the context that we give it the scale is 1.
    """
    for module in model.modules():
        if getattr(module, "attn_temperature_tuning", False):
            setattr(module, "attn_temperature_tuning", False)  # noqa: B010 (not known to mypy)
