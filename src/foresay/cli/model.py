"""Options of commands that run a model, and loading it."""

from __future__ import annotations

import sys
from enum import Enum
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foresay.cli.waiting import Waiting

if TYPE_CHECKING:
    from foresay.engine.llm import LLM

__all__ = [
    "Corpus",
    "Drafter",
    "Dtype",
    "DtypeOption",
    "Model",
    "Policy",
    "Quantize",
    "check_names",
    "load",
    "require_engine",
]

DEFAULT_MODEL = "smollm2-135m"  # of foresay.models.weights, which is not imported for a help text
_NEEDED = ("torch", "transformers", "safetensors", "tokenizers")


class DtypeOption(str, Enum):
    auto = "auto"
    bfloat16 = "bfloat16"
    float32 = "float32"


Model = Annotated[
    str, typer.Option(help="smollm2-135m, a folder, a .gguf file, or a hub model org/name.")
]


class QuantizeOption(str, Enum):
    q8_0 = "q8_0"
    q4_0 = "q4_0"


Dtype = Annotated[DtypeOption, typer.Option(help="Of the weights; auto: as they are stored.")]
Quantize = Annotated[
    QuantizeOption | None,
    typer.Option(help="Quantise safetensors when they are read; a GGUF file is widened first."),
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
    missing = [name for name in _NEEDED if find_spec(name) is None]
    if missing:
        raise ModuleNotFoundError(
            f"foresay {command} needs {' and '.join(missing)}; install "
            f"{'them' if len(missing) > 1 else 'it'} with: "
            "pip install '.[engine]' in foresay's checkout"
        )


def check_names(drafter: str, policy: str) -> None:
    """Refuse unknown names before torch is imported, which takes seconds."""
    from foresay.budget.policy import make_policy
    from foresay.drafters.lineup import NAMES, check_name
    from foresay.errors import InputError

    if drafter not in (*NAMES, "none") and not {":", "+"} & set(drafter):
        raise InputError(f"drafter is {drafter!r}; expected one of {', '.join(NAMES)}, none")
    if drafter != "none":
        check_name(drafter)
    make_policy(policy)


def load(
    model: str,
    dtype: DtypeOption,
    wait: Waiting,
    *,
    quantize: QuantizeOption | None = None,
    **options: Any,
) -> LLM:
    """Load the model, and report progress."""
    how: dict[str, Any] = {"dtype": dtype.value, "quantize": quantize and quantize.value}
    wait("find", 0, None)
    from foresay.models.load import find_model

    found = find_model(model, progress=wait, **how)  # also before torch is imported
    from foresay.models.reading import reading

    with reading(found) as read:  # a file's weights are used as they are stored: it was found so
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
