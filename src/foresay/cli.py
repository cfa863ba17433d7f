"""The command line: parse, call, print. Nothing is computed here."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from importlib import resources
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from foresay import __version__
from foresay.errors import ForesayError, InputError

__all__ = ["app", "run"]

app = typer.Typer(
    name="foresay",
    help="Language models answer faster without changing a single answer.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
corpus_app = typer.Typer(help="Frozen index files over a corpus.", no_args_is_help=True)
app.add_typer(corpus_app, name="corpus")

AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
TraceFile = Annotated[Path, typer.Argument(help="Trace file: JSON lines, optionally gzipped.")]
CorpusFile = Annotated[Path, typer.Argument(help="Corpus file.")]


class ShareOption(str, Enum):
    none = "none"
    group = "group"
    all = "all"


class OrderOption(str, Enum):
    file = "file"
    stagger = "stagger"


class FieldOption(str, Enum):
    both = "both"
    output = "output"


def run() -> None:
    """Run the command line and exit: 0 on success, 1 on failure, 2 on wrong usage."""
    try:
        app()
    except ForesayError as error:
        _fail(str(error))
    except OSError as error:
        reason = error.strerror or str(error)
        _fail(f"{error.filename}: {reason}" if error.filename else reason)
    except ModuleNotFoundError as error:
        _fail(f"{error.name} is not installed; `foresay doctor` says how to get it")


@app.callback(invoke_without_command=True)
def _root(
    version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False,
) -> None:
    if version:
        print(f"foresay {__version__}")
        raise typer.Exit


@app.command()
def replay(
    file: TraceFile,
    drafter: Annotated[
        str, typer.Option(help="suffix, sam, ngram, corpus or merge (see `foresay doctor`).")
    ] = "suffix",
    budget: Annotated[int, typer.Option(help="Nodes per draft, 1 or more.")] = 16,
    chain: Annotated[bool, typer.Option("--chain", help="Guess a chain: no branches.")] = False,
    share: Annotated[
        ShareOption,
        typer.Option(
            help="What requests see of each other: nothing, their group, or everything; "
            "ngram uses own text only, whatever is said here."
        ),
    ] = ShareOption.none,
    lockstep: Annotated[int, typer.Option(help="Requests that advance together.")] = 1,
    order: Annotated[
        OrderOption, typer.Option(help="File order, or one sibling of every group first.")
    ] = OrderOption.file,
    corpus: Annotated[Path | None, typer.Option(help="Corpus file to draft from as well.")] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Tokenizer file; refuse a corpus of another one.")
    ] = None,
    curve: Annotated[
        Path | None, typer.Option(help="Write tokens per step by position as CSV.")
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Write tokens per step by position as SVG.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Replay recorded outputs through a drafter, without a model.

    Counts tokens per step: what a real engine would commit per model pass with these drafts.

    \b
    Examples:
      foresay replay traces.jsonl.gz
      foresay replay traces.jsonl --drafter ngram --budget 8 --json
      foresay replay traces.jsonl --share all --lockstep 64 --order stagger
      foresay replay traces.jsonl --corpus answers.foresay --plot curve.svg
    """
    from foresay.bench import curve as curves
    from foresay.bench.lineup import make_drafter
    from foresay.bench.replay import replay as run_replay
    from foresay.corpus import tokenizer_hash_of
    from foresay.traces import read_traces

    for out in (curve, plot):  # before the work, not after it
        if out is not None and out.exists() and out.samefile(file):
            raise InputError(f"'{out}' is the trace itself; choose another file to write to")
        if out is not None and not out.parent.is_dir():
            raise InputError(f"'{out.parent}' is not a folder; choose another file to write to")
    traces = read_traces(file)
    guesser = make_drafter(
        drafter,
        share=share.value,
        corpus=corpus,
        tokenizer_hash=None if tokenizer is None else tokenizer_hash_of(tokenizer),
        chain=chain,
    )
    with _progress("replaying", sum(len(t.output) for t in traces)) as advance:
        result = run_replay(
            traces,
            guesser,
            budget=budget,
            chain=chain,
            share=share.value,
            lockstep=lockstep,
            order=order.value,
            progress=advance,
        )
    if curve is not None:
        curves.write_csv(result, curve)
    if plot is not None:
        curves.write_svg(result, plot, f"tokens per step: {drafter}, {budget} nodes, {file.name}")
    if as_json:
        print(json.dumps(result.as_dict()))
        return
    fields = result.as_dict()
    depths = " ".join(f"{share_:.3f}" for share_ in fields.pop("acceptance_by_depth"))
    fields["acceptance_rate"] = result.acceptance_rate
    _print_fields(fields | {"acceptance_by_depth": depths or "nothing was accepted"})
    print()
    _print_table(
        ["position", "steps", "tokens", "tokens per step"],
        [[f"{a}-{b}", str(s), str(t), f"{r:.3f}"] for a, b, s, t, r in curves.rows(result)],
    )


@app.command()
def demo(as_json: AsJson = False) -> None:
    """Replay a small recorded trace through every drafter and compare.

    The trace comes with the package; no model and no network is needed.

    \b
    Examples:
      foresay demo
      foresay demo --json
    """
    from foresay.bench.demo import run_demo

    data = resources.files("foresay") / "data" / "demo.jsonl.gz"
    with resources.as_file(data) as path, _progress("replaying", None) as advance:
        lines = run_demo(path, advance)
    if as_json:
        print(json.dumps({line.name: line.result.as_dict() for line in lines}))
        return
    first = lines[0].result
    print(
        f"Replaying {first.requests} recorded answers of SmolLM2-135M-Instruct "
        f"({first.tokens} tokens), up to 16 guessed tokens per step.\n"
        "No model runs: a guess is accepted where it equals what the model wrote.\n"
    )
    _print_table(
        ["drafter", "guesses from", "tokens per step", "guesses kept"],
        [
            [n.name, n.about, f"{n.result.tokens_per_step:.3f}", f"{n.result.acceptance_rate:.1%}"]
            for n in lines
        ],
    )


@app.command()
def doctor(as_json: AsJson = False) -> None:
    """Say what is installed, what will be used, what is missing and how to get it.

    \b
    Examples:
      foresay doctor
      foresay doctor --json
    """
    from foresay.bench.lineup import NAMES
    from foresay.doctor import examine

    report = examine()
    if as_json:
        print(json.dumps(report | {"drafters": NAMES}))
    else:
        shown = ("foresay", "python", "platform", "core", "drafting", "models")
        _print_fields({name: report[name] for name in shown})
        print()
        _print_table(
            ["library", "version", "needed for", "get it with"],
            [
                [p["name"], p["version"] or "missing", p["use"], "" if p["version"] else p["get"]]
                for p in report["libraries"]
            ],
        )
        print()
        _print_table(["drafter", "what it is"], [[name, about] for name, about in NAMES.items()])
    if not report["ok"]:
        raise typer.Exit(1)


@corpus_app.command("build")
def corpus_build(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Trace files, or .npy arrays with their .offsets.npy beside them."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Corpus file to write.")],
    field: Annotated[
        FieldOption, typer.Option(help="Index prompts and outputs, or outputs only.")
    ] = FieldOption.both,
    tokenizer: Annotated[
        Path | None, typer.Option(help="Tokenizer file (tokenizer.json) to bind the corpus to.")
    ] = None,
    vocabulary: Annotated[
        int | None, typer.Option(help="Refuse tokens from here on; otherwise read the files twice.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Build a corpus file from trace files or token arrays.

    The file appears under its name only when it is complete.

    \b
    Examples:
      foresay corpus build answers.jsonl.gz -o answers.foresay
      foresay corpus build a.jsonl b.jsonl -o both.foresay --field output
      foresay corpus build answers.npy -o answers.foresay --tokenizer tokenizer.json
    """
    from foresay import corpus

    with _stages() as report:
        corpus.build(
            paths,
            out,
            field=field.value,
            tokenizer_hash=None if tokenizer is None else corpus.tokenizer_hash_of(tokenizer),
            vocabulary=vocabulary,
            progress=report,
        )
    _print_corpus(corpus.inspect(out), as_json)


@corpus_app.command("inspect")
def corpus_inspect(file: CorpusFile, as_json: AsJson = False) -> None:
    """Say what a corpus file holds.

    \b
    Examples:
      foresay corpus inspect answers.foresay
      foresay corpus inspect answers.foresay --json
    """
    from foresay import corpus

    _print_corpus(corpus.inspect(file), as_json)


@corpus_app.command("verify")
def corpus_verify(file: CorpusFile, as_json: AsJson = False) -> None:
    """Check every byte of a corpus file; fails if it is damaged.

    \b
    Examples:
      foresay corpus verify answers.foresay
      foresay corpus verify answers.foresay --json
    """
    from foresay import corpus

    corpus.verify(file)
    _print_object({"file": str(file), "ok": True}, as_json)


@contextmanager
def _progress(what: str, total: int | None) -> Iterator[Callable[[int], None] | None]:
    """A bar on stderr while the body runs, only if stderr is a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bar() as bar:
        task = bar.add_task(what, total=total)
        yield lambda n: bar.advance(task, n)


@contextmanager
def _stages() -> Iterator[Callable[[str, float], None] | None]:
    """The same for work in stages, each of which fills the bar once."""
    if not sys.stderr.isatty():
        yield None
        return
    with _bar() as bar:
        task = bar.add_task("", total=1.0)
        yield lambda stage, done: bar.update(task, description=f"{stage:<8}", completed=done)


def _bar() -> Progress:
    columns = (TextColumn("{task.description}"), BarColumn(), TimeRemainingColumn())
    return Progress(*columns, console=Console(stderr=True), transient=True)


def _print_object(value: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(value))
    else:
        _print_fields(value)


def _print_corpus(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    sections = summary.pop("section_bytes")
    hash_ = summary.pop("tokenizer_hash") or "none: not bound to a tokenizer"
    _print_fields(summary | {"tokenizer_hash": hash_})
    print()
    _print_table(
        ["section", "bytes", "bytes per token"],
        [[name, str(n), f"{n / summary['tokens']:.2f}"] for name, n in sections.items()],
    )


def _print_fields(fields: dict[str, Any]) -> None:
    width = max(len(name) for name in fields) + 2
    for name, value in fields.items():
        shown = (
            f"{value:.4f}" if isinstance(value, float) else "unknown" if value is None else value
        )
        print(f"{name.replace('_', ' '):<{width}}{shown}")


def _print_table(head: list[str], body: list[list[str]]) -> None:
    widths = [max(len(row[i]) for row in [head, *body]) for i in range(len(head))]
    for number, row in enumerate([head, *body]):
        line = "  ".join(f"{cell:<{width}}" for cell, width in zip(row, widths, strict=True))
        if number == 0 and sys.stdout.isatty():
            Console(highlight=False).print(line.rstrip(), style="bold", soft_wrap=True)
        else:
            print(line.rstrip())


def _fail(sentence: str) -> None:
    print(f"foresay: {sentence}", file=sys.stderr)
    raise SystemExit(1)
