"""Make a target of a model of transformers, and check before its use that it is run exactly."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from foresay.errors import InputError, ModelError
from foresay.models import checks
from foresay.models.options import LoadOptions
from foresay.models.plain import PlainTarget
from foresay.models.replacing import names_of
from foresay.models.visibility import visible_by_layer
from foresay.models.weights.folder import config_of

if TYPE_CHECKING:
    from foresay.models.target import LoadedTarget

__all__ = ["LOADING", "plain_target_of", "prepared", "read_model", "target_of"]

# from_pretrained replaces functions of torch and of its own for the whole process while it runs
# (tie_weights, those that initialise, the default dtype), and two at once put back each other's.
LOADING = threading.Lock()
# Whose `make_target` makes the target there.
_DEVICES = {"cpu": "foresay.models.cpu.modules", "cuda": "foresay.models.gpu.load"}
_COUNTS = ("layers", "n_layer", "experts", "blocks")  # how settings that count modules end
_MOST = 4096


def target_of(
    model: PreTrainedModel,
    *,
    deterministic: bool = True,
    try_exact: bool = True,
    threads: int = 0,
    memory: int | None = None,
) -> LoadedTarget:
    """The target for a model on the device that it is on; the model belongs to it from now on. On a
    GPU its weights are used where they are.

    deterministic  make it batch-invariant
    try_exact      find out whether it is, which takes as long as dozens of steps and changes
                   nothing; without, its `exact` stays None
    threads        of the core; 0: as many as torch uses
    memory         bytes for keys and values on a GPU; None: what its target takes

    Mutates: the model: its attention function, layers and norms. Raises: UnsupportedModel,
    InputError for a device that has no target, or a FORESAY_CPU that this machine lacks.
    """
    _check_model(model)
    kind = model.device.type
    if kind not in _DEVICES:
        raise InputError(
            f"the model is on {kind}; expected {', '.join(_DEVICES)}, or plain_target_of"
        )
    options = LoadOptions(
        deterministic=deterministic, threads=threads, device=str(model.device), memory=memory
    )
    made: LoadedTarget = import_module(_DEVICES[kind]).make_target(
        model, options, try_exact=try_exact
    )
    return made


def plain_target_of(model: PreTrainedModel) -> PlainTarget:
    """The plain target for a model, on whatever device it is; the model belongs to it from now on.
    On a processor without bfloat16 let the model be of float32: torch's products of bfloat16 take a
    hundred times as long there.

    Raises: UnsupportedModel.
    """
    context, names = prepared(model)
    layers = visible_by_layer(model, context)
    target = PlainTarget(model, layers, checks.layer_shapes(model), names, context=context)
    checks.check_logits(target)
    return target


def prepared(model: PreTrainedModel) -> tuple[int, dict[str, Sequence[str]]]:
    """What every target of a model needs: the context, and the names of weights. The model is not
    trained any more.

    Raises: UnsupportedModel.
    """
    _check_model(model)
    checks.check_config(model.config)
    model.train(False).requires_grad_(False)
    context, names = _context_of(model.config.get_text_config()), names_of(model)
    _without_far_scaling(model)
    return context, names


def _check_model(model: object) -> None:
    if not isinstance(model, PreTrainedModel):
        kind = type(model).__name__
        raise InputError(f"the model is of type {kind}; expected a model of transformers")


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
