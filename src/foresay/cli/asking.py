"""The options by which a command is asked for answers: prompts and sampling parameters."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = [
    *("AsJson", "MaxTokens", "MinP", "Prompts", "Raw", "Seed", "Stop", "Temperature", "TopK"),
    *("ProcessorOrder", "TopP", "processors_of"),
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


def processors_of(order: str) -> list[str]:
    """The names of an order, as SamplingParams has them."""
    return [name.strip().replace("-", "_") for name in order.split(",")]
