"""Make a target on processors: a whole decoder of the core where it knows the model and its weights
are in blocks, else the modules of transformers. torch is imported when it is made.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from foresay.models import weights
from foresay.models.cpu.quantised_decoder import can_quantise
from foresay.models.cpu.stored_decoder import runs_as_stored
from foresay.models.options import LoadOptions
from foresay.models.weights.stored import StoredModel, in_folder

if TYPE_CHECKING:
    from foresay.models.cpu.stored_target import StoredTarget
    from foresay.models.cpu.target import CpuTarget

__all__ = ["load", "runs_as_stored"]


def load(model: StoredModel, options: LoadOptions) -> CpuTarget | StoredTarget:
    """Raises: as `models.load.load`."""
    if model.gguf is not None and not options.as_stored:
        model = in_folder(weights.find(model.gguf, convert=True, progress=options.progress))
    if model.gguf is not None or (options.quantize is not None and can_quantise(model.folder)):
        from foresay.models.cpu.stored_target import load_blocks

        return load_blocks(model, options)
    from foresay.models.cpu.modules import load_modules  # transformers, which takes seconds

    return load_modules(model.folder, options)
