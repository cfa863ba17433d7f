"""Make a target of a model. On processors: a whole decoder of the core where it knows the model and
its weights are in blocks, else the modules of transformers. Only what that needs is imported.
"""

from __future__ import annotations

import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from foresay.arrays import as_path
from foresay.models import weights
from foresay.models.cpu.quantised_decoder import can_quantise
from foresay.models.cpu.stored_decoder import runs_as_stored
from foresay.models.device import device_for
from foresay.models.options import Dtype, LoadOptions, Quantise
from foresay.models.progress import Progress, silent
from foresay.models.weights.stored import StoredModel, in_folder

if TYPE_CHECKING:
    from foresay.models.target import LoadedTarget

__all__ = ["find_model", "load"]


def find_model(
    name: str | os.PathLike[str],
    *,
    dtype: Dtype = "auto",
    quantize: Quantise | None = None,
    device: str = "auto",
    cache: str | os.PathLike[str] | None = None,
    progress: Progress = silent,
) -> StoredModel:
    """The model of that name in the form in which `load` runs it with these options: a GGUF file as
    it is stored, or a folder of safetensors. Of a GGUF file that is not run as it is stored, a copy
    in bfloat16 is written to the cache: with another dtype, with `quantize`, or of another
    architecture. On a GPU a GGUF file is always used as it is: it is widened there.

    Mutates, raises: as `weights.find`; InputError for options as `load`.
    """
    options = LoadOptions(dtype, quantize, device=device)
    on_gpu = device_for(options) != "cpu"
    if on_gpu or options.as_stored:
        found = weights.find_stored(name, cache=cache, progress=progress)
        if on_gpu or found.gguf is None or runs_as_stored(found):
            return found
    return in_folder(weights.find(name, convert=True, cache=cache, progress=progress))


def load(
    model: StoredModel | str | os.PathLike[str],
    *,
    dtype: Dtype = "auto",
    quantize: Quantise | None = None,
    deterministic: bool = True,
    threads: int = 0,
    device: str = "auto",
    memory: int | None = None,
    weight_memory: int | None = None,
    progress: Progress = silent,
) -> LoadedTarget:
    """The target of a model, checked.

    model          as `find_model` finds it, or a folder of config and safetensors
    dtype          "auto": weights as they are stored; of safetensors bfloat16 where that is faster
                   on this machine, else float32. "float16" is for GPUs
    quantize       "q8_0" or "q4_0": the matrices of safetensors are quantised when they are read;
                   those of a GGUF file are widened first. On processors only
    deterministic  make it batch-invariant: a row has the same bits whatever else is in its step
    threads        of the core; 0: as many as torch uses
    device         "auto" (a CUDA device where there is one), "cpu", "cuda" or "cuda:N"
    memory         bytes for keys and values on a GPU; None: what its target takes
    weight_memory  bytes of weights on a GPU: the other layers are streamed; None: all are there
    progress       called when the model is loaded, and for each check of it

    Raises: ModelError for files that cannot be read, UnsupportedModel for a model that cannot be
    run exactly, InputError for another dtype, a device that is not there, or a FORESAY_CPU that
    this machine lacks.
    """
    options = LoadOptions(
        dtype, quantize, deterministic, threads, progress, device, memory, weight_memory
    )
    options = replace(options, device=device_for(options))
    progress("read", 0, None)
    if not isinstance(model, StoredModel):
        model = in_folder(Path(as_path(model, "folder")))
    if options.device != "cpu":
        found: LoadedTarget = import_module("foresay.models.gpu.load").load_gpu(model, options)
        return found
    if model.gguf is not None and not (options.as_stored and runs_as_stored(model)):
        model = in_folder(weights.find(model.gguf, convert=True, progress=progress))
    if model.gguf is not None or (quantize is not None and can_quantise(model.folder)):
        from foresay.models.cpu.stored_target import load_blocks  # torch

        return load_blocks(model, options)
    from foresay.models.cpu.modules import load_modules  # transformers, which takes seconds

    return load_modules(model.folder, options)
