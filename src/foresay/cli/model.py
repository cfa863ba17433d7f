"""Options of commands that run a model, and loading it."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

import typer

from foresay.cli.options import require
from foresay.cli.waiting import Waiting

if TYPE_CHECKING:
    from foresay.engine.llm import LLM

__all__ = [
    "Corpus",
    "Device",
    "Drafter",
    "Dtype",
    "DtypeName",
    "Model",
    "Policy",
    "Quantize",
    "check_names",
    "device_for",
    "load",
    "require_engine",
]

DEFAULT_MODEL = "smollm2-135m"  # of foresay.models.weights, which is not imported for a help text


DtypeName: TypeAlias = Literal["auto", "bfloat16", "float32", "float16"]
QuantizeName: TypeAlias = Literal["q8_0", "q4_0"]

Model = Annotated[
    str, typer.Option(help="smollm2-135m, a folder, a .gguf file, or a hub model org/name.")
]


Dtype = Annotated[
    DtypeName,
    typer.Option(help="Of the weights; auto: as they are stored. float16 is for GPUs."),
]
Quantize = Annotated[
    QuantizeName | None,
    typer.Option(
        help="Quantise safetensors when they are read; a GGUF file is widened first. On the CPU."
    ),
]
Device = Annotated[
    str, typer.Option(help="auto: an NVIDIA GPU where there is one; or cpu, cuda, cuda:N.")
]

Drafter = Annotated[
    str,
    typer.Option(
        help="suffix, recycle, model:NAME, … (see `foresay doctor`), joined with +; or none."
    ),
]
Policy = Annotated[
    str,
    typer.Option(help="How many tokens to draft: adaptive, fixed, threshold, dynamic-k or none."),
]
Corpus = Annotated[
    Path | None, typer.Option(help="Corpus file to draft from as well; verified first.")
]


def require_engine(command: str) -> None:
    """Refuse to continue without the libraries that run a model."""
    require(command, "engine", "torch", "transformers", "safetensors", "tokenizers")


def check_names(
    drafter: str, policy: str, corpus: Path | None = None, *, without: Sequence[str] = ("none",)
) -> None:
    """Refuse unknown names, and a corpus that nobody drafts from, before torch is imported, which
    takes seconds; `without`: names of what drafts from no text here."""
    from foresay.budget.policy import make_policy
    from foresay.drafters.lineup import NAMES, check_drafter_name
    from foresay.errors import InputError

    if drafter not in (*NAMES, *without) and not {":", "+"} & set(drafter):
        known = ", ".join((*NAMES, *without))
        raise InputError(f"drafter is {drafter!r}; expected one of {known}")
    if drafter not in without:
        check_drafter_name(drafter)
    elif corpus is not None:
        raise InputError(
            f"corpus is {str(corpus)!r} and drafter is {drafter!r}; expected a drafter that drafts "
            "from it, such as suffix"
        )
    make_policy(policy)


def device_for(device: str, dtype: DtypeName, quantize: QuantizeName | None = None) -> str:
    """Where a model runs with these options. torch is imported only on machines with NVIDIA's
    driver.

    Raises: InputError for a device that is not there.
    """
    from foresay.models import device as devices
    from foresay.models.options import LoadOptions

    return devices.device_for(LoadOptions(dtype, quantize, device=device))


def load(
    model: str,
    dtype: DtypeName,
    wait: Waiting,
    *,
    device: str,
    quantize: QuantizeName | None = None,
    **options: Any,
) -> LLM:
    """Load the model, and report progress. `device` as `device_for` says it."""
    how: dict[str, Any] = {"dtype": dtype, "quantize": quantize, "device": device}
    wait("find", 0, None)
    from foresay.models.load import find_model

    found = find_model(model, progress=wait, **how)  # on the CPU also before torch is imported
    from foresay.models.reading import reading

    # On the CPU a file's weights are used as they are stored: it was found so.
    with reading(found, device) as read:
        wait("import", 0, None)
        from foresay.engine.llm import LLM

        llm = LLM(read, progress=wait, **how, **options)
    wait.tell("loaded", "the model is loaded")
    if llm.target.exact is False:
        print(
            f"note: on this machine {model} in {llm.target.dtype} is not batch-invariant; where "
            "two tokens are nearly equal, drafts may change a text (--dtype float32 makes "
            "that rare)",
            file=sys.stderr,
        )
    return llm
