"""`foresay corpus build`, `inspect` and `verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from foresay.cli.root import AsJson, app
from foresay.cli.show import print_fields, print_object, print_table, stages

corpus_app = typer.Typer(help="Frozen index files over a corpus.", no_args_is_help=True)
app.add_typer(corpus_app, name="corpus")

CorpusFile = Annotated[Path, typer.Argument(help="Corpus file.")]


@corpus_app.command("build")
def corpus_build(
    paths: Annotated[
        list[Path],
        typer.Argument(help="Trace files, or .npy arrays with their .offsets.npy beside them."),
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="Corpus file to write.")],
    field: Annotated[
        Literal["both", "output"],
        typer.Option(help="Index prompts and outputs, or outputs only."),
    ] = "both",
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

    with stages() as report:
        corpus.build(
            paths,
            out,
            field=field,
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
    print_object({"file": str(file), "ok": True}, as_json)


def _print_corpus(summary: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print(json.dumps(summary))
        return
    sections = summary.pop("section_bytes")
    hash_ = summary.pop("tokenizer_hash") or "none: not bound to a tokenizer"
    print_fields(summary | {"tokenizer_hash": hash_})
    print()
    print_table(
        ["section", "bytes", "bytes per token"],
        [[name, str(n), f"{n / summary['tokens']:.2f}"] for name, n in sections.items()],
    )
