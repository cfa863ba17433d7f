"""The options by which a command is asked for answers: prompts and sampling parameters."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.sampling.structured_outputs import StructuredOutputs

__all__ = [
    *("AsJson", "MaxTokens", "MinP", "Prompts", "Raw", "Seed", "Stop", "Temperature", "TopK"),
    *("ProcessorOrder", "TopP", "processors_of"),
    *("Choice", "Grammar", "JsonSchema", "Regex", "form_of"),
]

Prompts = Annotated[
    list[str] | None, typer.Argument(help="The prompt; - is all of stdin.", metavar="PROMPT")
]
MaxTokens = Annotated[int, typer.Option(help="Tokens per answer, at most.")]
Temperature = Annotated[float, typer.Option(help="0 is greedy: always the likeliest token.")]
TopK = Annotated[int, typer.Option(help="Only the k likeliest tokens; 0: all.")]
TopP = Annotated[
    float, typer.Option(help="Only the likeliest tokens that together reach this probability.")
]
MinP = Annotated[
    float, typer.Option(help="Only tokens at least this likely, relative to the likeliest.")
]
ProcessorOrder = Annotated[
    str, typer.Option(help="In which order these limits and the temperature are applied.")
]
Seed = Annotated[int | None, typer.Option(help="The same seed gives the same answer.")]
Stop = Annotated[list[str] | None, typer.Option(help="A stop string; may be given again.")]
Raw = Annotated[
    bool, typer.Option("--raw", help="Continue the prompt as it is, without chat template.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object per line and answer.")]


JsonSchema = Annotated[
    Path | None, typer.Option(help="A file with a JSON schema, which the answer follows.")
]
Regex = Annotated[
    str | None, typer.Option(help="A regular expression, which the whole answer matches.")
]
Choice = Annotated[
    list[str] | None, typer.Option(help="What the answer may be; may be given again.")
]
Grammar = Annotated[
    Path | None, typer.Option(help="A file with a grammar in Lark's notation, for the answer.")
]


def form_of(
    json_schema: Path | None, regex: str | None, choice: list[str] | None, grammar: Path | None
) -> StructuredOutputs | None:
    """The form that answers are asked to have, if any.

    Raises: InputError for several forms, and files that hold none; OSError for no file.
    """
    from foresay.sampling.structured_outputs import StructuredOutputs

    given: dict[str, Any] = {
        "json": None if json_schema is None else _read(json_schema),
        "regex": regex,
        "choice": choice or None,
        "grammar": None if grammar is None else _read(grammar),
    }
    if all(value is None for value in given.values()):
        return None
    try:
        return StructuredOutputs(**given)
    except InputError as error:  # which speaks of Python's fields
        said, field = str(error), "json of structured_outputs"
        raise InputError(said.replace(field, f"'{json_schema}'", 1)) from None


def _read(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise InputError(f"'{file}' is not UTF-8; expected a text file") from None


def processors_of(order: str) -> list[str]:
    """The names of an order, as SamplingParams has them."""
    return [name.strip().replace("-", "_") for name in order.split(",")]
