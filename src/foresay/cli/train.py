"""`foresay train eagle`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from foresay.cli.model import DEFAULT_MODEL, require_engine
from foresay.cli.root import AsJson, app
from foresay.cli.show import print_fields
from foresay.cli.waiting import waiting

train_app = typer.Typer(
    help="Train what drafts for a model, on its own answers.", no_args_is_help=True
)
app.add_typer(train_app, name="train")


@train_app.command("eagle")
def train_eagle(
    corpus: Annotated[
        list[Path],
        typer.Option(help="Trace file of the model's own answers; may be given again."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder to write the head to.")],
    target: Annotated[
        str, typer.Option(help="smollm2-135m, a folder, a .gguf file, or a hub model org/name.")
    ] = DEFAULT_MODEL,
    device: Annotated[str, typer.Option(help="cpu, or cuda for a GPU.")] = "cpu",
    epochs: Annotated[int, typer.Option(help="How often each answer is seen.")] = 20,
    tokens: Annotated[int, typer.Option(help="Tokens of a batch, with padding.")] = 16_384,
    learning_rate: Annotated[float, typer.Option(help="The highest one.")] = 1e-3,
    steps: Annotated[int, typer.Option(help="Steps on the head's own features.")] = 5,
    drafted: Annotated[
        int, typer.Option(help="How many tokens it can draft: the corpus's most frequent.")
    ] = 8192,
    intermediate: Annotated[
        int | None, typer.Option(help="Width of its MLP; else the model's.", show_default=False)
    ] = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(
            help="Layer whose input is a feature; may be given again. Without it the last hidden "
            "state is the feature.",
            show_default=False,
        ),
    ] = None,
    held_out: Annotated[float, typer.Option(help="Share of the answers that only measure.")] = 0.05,
    longest: Annotated[int, typer.Option(help="Longer texts are left out.")] = 1024,
    seed: Annotated[int, typer.Option(help="Of the first weights and the order.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train a head for the drafter eagle.

    The corpus are trace files that the model itself wrote. After an interrupt the same command goes
    on where it was.

    \b
    Examples:
      foresay train eagle --corpus answers.jsonl.gz --out head --device cuda
      foresay train eagle --target ./model --corpus a.jsonl --corpus b.jsonl -o head --epochs 5
      foresay generate "Why is the sky blue?" --drafter eagle:head
    """
    require_engine("train")
    with waiting(as_json) as wait:
        wait("import", 0, None)
        from foresay.train.eagle import train

        trained = train(
            target,
            corpus,
            out,
            device=device,
            epochs=epochs,
            tokens=tokens,
            learning_rate=learning_rate,
            steps=steps,
            drafted=drafted,
            intermediate=intermediate,
            layers=tuple(layer or ()),
            held_out=held_out,
            longest=longest,
            seed=seed,
            progress=wait,
        )
    if as_json:
        print(json.dumps(trained.as_dict()))
        return
    fields = trained.as_dict()
    agreement = " ".join(f"{share:.3f}" for share in fields.pop("agreement"))
    print_fields(fields | {"agreement": agreement})
