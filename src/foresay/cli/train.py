"""`foresay train`: write, model, boost and eagle."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Protocol

import typer

from foresay.cli.model import DEFAULT_MODEL, Model, require_engine
from foresay.cli.options import naming_options
from foresay.cli.root import AsJson, app
from foresay.cli.show import print_fields
from foresay.cli.waiting import waiting
from foresay.models.progress import Progress

train_app = typer.Typer(
    help="Train what drafts for a model, on its own answers.", no_args_is_help=True
)
app.add_typer(train_app, name="train")

Files = Annotated[
    list[Path],
    typer.Option("--corpus", help="Trace file of the model's own answers; may be given again."),
]
Folder = Annotated[Path, typer.Option("--out", "-o", help="Folder to write to.")]
Device = Annotated[str, typer.Option(help="cpu, or cuda for a GPU.")]
Epochs = Annotated[int, typer.Option(help="How often each answer is seen.")]
Tokens = Annotated[int, typer.Option(help="Tokens of a batch, with padding.")]
Rate = Annotated[float, typer.Option(help="The highest one.")]
HeldOut = Annotated[float, typer.Option(help="Share of the answers that only measure.")]
Longest = Annotated[int, typer.Option(help="Longer texts are left out.")]
Seed = Annotated[int, typer.Option(help="Of the first weights and the order.")]


class _Result(Protocol):
    def as_dict(self) -> dict[str, Any]: ...


@train_app.command("write")
@naming_options({"temperatures": "--temperature"})
def train_write(
    out: Annotated[Path, typer.Option("--out", "-o", help="File to write, .jsonl.gz.")],
    target: Model = DEFAULT_MODEL,
    invented: Annotated[
        int, typer.Option(help="Conversations that begin with a prompt which the model invents.")
    ] = 0,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(help="JSON lines with a prompt, a question or turns; may be given again."),
    ] = None,
    turns: Annotated[int, typer.Option(help="Of each conversation; later ones are invented.")] = 1,
    temperature: Annotated[
        list[float] | None,
        typer.Option(
            help="Conversations have these in turns; may be given again. 0 and 0.8 without it."
        ),
    ] = None,
    most: Annotated[int, typer.Option(help="Tokens of an answer.")] = 384,
    longest: Annotated[int, typer.Option(help="Tokens of a conversation.")] = 1024,
    batch: Annotated[int, typer.Option(help="Conversations that are continued at once.")] = 64,
    device: Device = "cpu",
    seed: Annotated[int, typer.Option(help="Of what is sampled.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Let a model write the answers that its drafters are trained on.

    \b
    Examples:
      foresay train write -o answers.jsonl.gz --invented 4500 --batch 3072 --device cuda
      foresay train write -o answers.jsonl.gz --prompts questions.jsonl --temperature 0
    """
    from foresay.train.settings import check_settings, check_writing

    sizes = {"turns": turns, "most": most, "longest": longest, "batch": batch, "seed": seed}
    settings = check_settings(**sizes)
    settings |= {"invented": invented, "prompts": prompts or ()}
    settings["temperatures"] = temperature or (0.0, 0.8)
    check_writing(out, invented, settings["prompts"], settings["temperatures"])

    def work(progress: Progress) -> _Result:
        from foresay.train.write import write

        return write(target, out, device=device, **settings, progress=progress)

    _run(work, target, device, as_json)


@train_app.command("model")
@naming_options()
def train_model(
    context: typer.Context,
    corpus: Files,
    out: Folder,
    target: Model = DEFAULT_MODEL,
    device: Device = "cpu",
    epochs: Epochs = 20,
    tokens: Tokens = 16_384,
    learning_rate: Rate = 2e-3,
    hidden: Annotated[int, typer.Option(help="Width of the model, 32 or more per head.")] = 128,
    layers: Annotated[int, typer.Option(help="Layers of attention and MLP.")] = 4,
    heads: Annotated[int, typer.Option(help="Heads of attention.")] = 4,
    intermediate: Annotated[int, typer.Option(help="Width of the MLP.")] = 512,
    held_out: HeldOut = 0.05,
    longest: Longest = 1024,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Train a small model for the drafter model, from nothing but the target's answers.

    After an interrupt the same command goes on where it was.

    \b
    Examples:
      foresay train model --corpus answers.jsonl.gz --out small --device cuda
      foresay generate "Why is the sky blue?" --drafter suffix+model:small
    """
    from foresay.models.options import check_sizes
    from foresay.train.settings import check_corpus, out_folder

    settings = _settings(context, "hidden", "layers", "heads", "intermediate")
    check_sizes(hidden, heads)
    out_folder(out, "LlamaForCausalLM")
    check_corpus(corpus)

    def work(progress: Progress) -> _Result:
        from foresay.train.model import train

        return train(target, corpus, out, device=device, **settings, progress=progress)

    _run(work, target, device, as_json)


@train_app.command("boost")
@naming_options()
def train_boost(
    context: typer.Context,
    model: Annotated[Path, typer.Option(help="Folder of the small model that is copied.")],
    corpus: Files,
    out: Folder,
    target: Model = DEFAULT_MODEL,
    count: Annotated[int, typer.Option(help="How many copies are tuned.")] = 2,
    device: Device = "cpu",
    epochs: Epochs = 4,
    tokens: Tokens = 16_384,
    learning_rate: Rate = 1e-3,
    covered: Annotated[
        float, typer.Option(help="How much a token counts that an earlier model has.")
    ] = 0.1,
    control: Annotated[
        bool, typer.Option("--control", help="Also tune copies on all tokens alike, to compare.")
    ] = False,
    held_out: HeldOut = 0.05,
    longest: Longest = 1024,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Tune copies of a small model on what the ones before them miss.

    `coverage` is how often one of the first, the first two … models has the target's token in
    answers that were not trained on. After an interrupt the same command goes on where it was.

    \b
    Examples:
      foresay train boost --model small --corpus answers.jsonl.gz --out boosted --device cuda
      foresay generate "Hello" --drafter worker:model:small+worker:model:boosted/1
    """
    from foresay.models.weights.folder import check
    from foresay.train.settings import check_corpus

    settings = _settings(context, "count", "covered")
    check(model.expanduser())
    check_corpus(corpus)

    def work(progress: Progress) -> _Result:
        from foresay.train.boost import boost

        given = {"device": device, "control": control, **settings}
        return boost(model, target, corpus, out, **given, progress=progress)

    _run(work, target, device, as_json)


@train_app.command("eagle")
@naming_options({"layers": "--layer"})
def train_eagle(
    context: typer.Context,
    corpus: Files,
    out: Folder,
    target: Model = DEFAULT_MODEL,
    device: Device = "cpu",
    epochs: Epochs = 20,
    tokens: Tokens = 16_384,
    learning_rate: Rate = 1e-3,
    steps: Annotated[int, typer.Option(help="Steps on the head's own features.")] = 5,
    drafted: Annotated[
        int, typer.Option(help="How many tokens it can draft: the corpus's most frequent.")
    ] = 8192,
    intermediate: Annotated[
        int | None, typer.Option(help="Width of its MLP; else the model's.")
    ] = None,
    layer: Annotated[
        list[int] | None,
        typer.Option(
            help="Layer whose input is a feature; may be given again. Without it the last hidden "
            "state is the feature."
        ),
    ] = None,
    held_out: HeldOut = 0.05,
    longest: Longest = 1024,
    seed: Seed = 0,
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
    from foresay.train.settings import check_corpus, out_folder

    settings = _settings(context, "steps", "drafted", "intermediate")
    out_folder(out, "LlamaForCausalLMEagle3")
    check_corpus(corpus)

    def work(progress: Progress) -> _Result:
        from foresay.train.eagle import train

        given: dict[str, Any] = {"device": device, "layers": tuple(layer or ()), **settings}
        return train(target, corpus, out, **given, progress=progress)

    _run(work, target, device, as_json)


def _settings(context: typer.Context, *own: str) -> dict[str, Any]:
    """The numbers that say how to train, checked: those of every training, and a command's own."""
    from foresay.train.settings import check_settings

    names = ("epochs", "tokens", "learning_rate", *own, "held_out", "longest", "seed")
    asked = {name: context.params[name] for name in names}
    return check_settings(**{name: v for name, v in asked.items() if v is not None})


def _run(work: Callable[[Progress], _Result], target: str, device: str, as_json: bool) -> None:
    """Find the target, then do the work, which imports torch, with progress on stderr; print what
    came of it."""
    from foresay.models import weights
    from foresay.models.options import check_device_name

    check_device_name(device)
    require_engine("train")
    with waiting(as_json) as wait:
        wait("find", 0, None)
        weights.find(target, convert=True, progress=wait)
        wait("import", 0, None)
        done = work(wait)
    _show(done.as_dict(), as_json)


def _show(fields: dict[str, Any], as_json: bool) -> None:
    """As JSON, or one line for each field that has a value; shares in a list side by side."""
    if as_json:
        print(json.dumps(fields))
        return
    print_fields({name: _text(value) for name, value in fields.items() if value != []})


def _text(value: Any) -> Any:
    if not isinstance(value, list):
        return value
    return " ".join(f"{each:.3f}" if isinstance(each, float) else str(each) for each in value)
