"""Make a target of a model. How it is run is chosen here, and only what that needs is imported.

Each device has a folder, whose module `load` has two functions: `runs_as_stored(model)`, whether it
uses the tensors of a GGUF file as they are, and `load(model, options)`, which makes the target.
"""

from __future__ import annotations

import os
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from foresay.arrays import as_path
from foresay.models import weights
from foresay.models.options import Dtype, LoadOptions, Quantise
from foresay.models.progress import Progress, silent
from foresay.models.weights.stored import StoredModel, in_folder

if TYPE_CHECKING:
    from foresay.models.cpu.stored_target import StoredTarget
    from foresay.models.cpu.target import CpuTarget

__all__ = ["find_model", "load"]

_DEVICES = {"cpu": "foresay.models.cpu.load"}


def find_model(
    name: str | os.PathLike[str],
    *,
    dtype: Dtype = "auto",
    quantize: Quantise | None = None,
    cache: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> StoredModel:
    """The model of that name in the form in which `load` runs it with these options: a GGUF file as
    it is stored, or a folder of safetensors. Of a GGUF file that is not run as it is stored, a copy
    in bfloat16 is written to the cache: with another dtype, with `quantize`, or of another
    architecture.

    Mutates, raises: as `weights.find`; InputError for options as `load`.
    """
    if LoadOptions(dtype, quantize).as_stored:
        found = weights.find_stored(name, cache=cache, progress=progress)
        if found.gguf is None or _on("cpu").runs_as_stored(found):
            return found
    return in_folder(weights.find(name, convert=True, cache=cache, progress=progress))


def load(
    model: StoredModel | str | os.PathLike[str],
    *,
    dtype: Dtype = "auto",
    quantize: Quantise | None = None,
    deterministic: bool = True,
    threads: int = 0,
    progress: Progress = silent,
) -> CpuTarget | StoredTarget:
    """The target of a model, checked.

    model          as `find_model` finds it, or a folder of config and safetensors
    dtype          "auto": weights as they are stored; of safetensors bfloat16 where that is faster
                   on this machine, else float32
    quantize       "q8_0" or "q4_0": the matrices of safetensors are quantised when they are read;
                   those of a GGUF file are widened first
    deterministic  make it batch-invariant: a row has the same bits whatever else is in its step
    threads        of the core; 0: as many as torch uses
    progress       called when the model is loaded, and for each check of it

    Raises: ModelError for files that cannot be read, UnsupportedModel for a model that cannot be
    run exactly, InputError for another dtype or a FORESAY_CPU that this machine lacks.
    """
    options = LoadOptions(dtype, quantize, deterministic, threads, progress)
    progress("read", 0, None)
    if not isinstance(model, StoredModel):
        model = in_folder(Path(as_path(model, "folder")))
    target: CpuTarget | StoredTarget = _on("cpu").load(model, options)
    return target


def _on(device: str) -> Any:
    """What runs models on a device."""
    return import_module(_DEVICES[device])
