"""Make a target of a model. How it is run is chosen here, and only what that needs is imported."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from foresay.arrays import as_path
from foresay.models.options import Dtype, check_dtype, check_threads
from foresay.models.progress import Progress, silent
from foresay.models.weights.folder import check

if TYPE_CHECKING:
    from foresay.models.cpu.target import CpuTarget

__all__ = ["load"]


def load(
    folder: str | os.PathLike[str],
    *,
    dtype: Dtype = "auto",
    deterministic: bool = True,
    threads: int = 0,
    progress: Progress = silent,
) -> CpuTarget:
    """The model in a folder of config and safetensors (see `weights.find`), checked.

    dtype          "auto": bfloat16 where that is faster on this machine, else float32
    deterministic  make it batch-invariant: a row has the same bits whatever else is in its step
    threads        of attention; 0: as many as torch uses
    progress       called when the model is loaded, and for each check of it

    Raises: ModelError for files that cannot be read, UnsupportedModel for a model that cannot be
    run exactly, InputError for another dtype or a FORESAY_CPU that this machine lacks.
    """
    check_threads(threads)
    check_dtype(dtype)
    progress("read", 0, None)
    found = check(Path(as_path(folder, "folder")))
    from foresay.models.load_transformers import load_modules  # transformers, which takes seconds

    return load_modules(
        found, dtype=dtype, deterministic=deterministic, threads=threads, progress=progress
    )
