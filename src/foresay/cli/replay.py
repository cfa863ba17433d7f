"""`foresay replay`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from foresay.cli.model import Corpus
from foresay.cli.root import AsJson, app
from foresay.cli.show import check_out, print_fields, print_table, progress
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.bench.replay import ReplayResult

TraceFile = Annotated[Path, typer.Argument(help="Trace file: JSON lines, optionally gzipped.")]


@app.command()
def replay(
    file: TraceFile,
    drafter: Annotated[
        str, typer.Option(help="suffix, sam, ngram, corpus or merge (see `foresay doctor`).")
    ] = "suffix",
    budget: Annotated[int, typer.Option(help="Nodes per draft, 1 to 4096.")] = 16,
    chain: Annotated[bool, typer.Option("--chain", help="Draft a chain: no branches.")] = False,
    share: Annotated[
        Literal["none", "group", "all"],
        typer.Option(
            help="What requests draft from: own text, also their group, or all texts; "
            "ngram always uses own text only."
        ),
    ] = "none",
    lockstep: Annotated[int, typer.Option(help="Requests that advance together.")] = 1,
    order: Annotated[
        Literal["file", "stagger"],
        typer.Option(help="File order, or one sibling of every group first."),
    ] = "file",
    epochs: Annotated[
        int,
        typer.Option(
            help="Epochs over which each group's samples are dealt out, the later ones with the "
            "answers of the earlier ones to draft from; needs --share all."
        ),
    ] = 1,
    corpus: Corpus = None,
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
      foresay replay traces.jsonl --share all --lockstep 64 --order stagger --epochs 2
      foresay replay traces.jsonl --corpus answers.foresay --plot curve.svg
    """
    from foresay.bench import curve as curves
    from foresay.bench.replay import replay as run_replay
    from foresay.bench.replay import replay_epochs
    from foresay.corpus import tokenizer_hash_of
    from foresay.drafters.lineup import make_drafter, parts_of, sees_target
    from foresay.traces import read_traces

    for out in (curve, plot):
        check_out(out, file)
    for part in parts_of(drafter):
        if sees_target(part):
            raise InputError(
                f"the drafter {part!r} needs the target's own work, which recorded answers do not "
                "have; expected suffix, sam, ngram, corpus or merge"
            )
    traces = read_traces(file)
    made_drafter = make_drafter(
        drafter,
        share=share,
        corpus=corpus,
        tokenizer_hash=None if tokenizer is None else tokenizer_hash_of(tokenizer),
        verify=True,
        chain=chain,
    )
    how: Any = {"budget": budget, "chain": chain, "lockstep": lockstep, "order": order}
    tokens = sum(len(trace.output) for trace in traces)
    if epochs != 1:
        if share != "all":
            raise InputError(f"share is {share!r} (--share) with {epochs} epochs; expected 'all'")
        if curve is not None or plot is not None:
            raise InputError(
                "a curve is of one epoch; expected --curve and --plot without --epochs"
            )
        with progress("replaying", tokens) as advance:
            results = replay_epochs(traces, made_drafter, epochs, progress=advance, **how)
        _print_epochs(results, as_json)
        return
    with progress("replaying", tokens) as advance:
        result = run_replay(traces, made_drafter, share=share, progress=advance, **how)
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
    print_fields(fields | {"acceptance_by_depth": depths or "nothing was accepted"})
    print()
    print_table(
        ["position", "steps", "tokens", "tokens per step"],
        [[f"{a}-{b}", str(s), str(t), f"{r:.3f}"] for a, b, s, t, r in curves.rows(result)],
    )


def _print_epochs(results: list[ReplayResult], as_json: bool) -> None:
    if as_json:
        print(json.dumps({"epochs": [result.as_dict() for result in results]}))
        return
    print_table(
        ["epoch", "requests", "steps", "tokens", "tokens per step", "of the first"],
        [
            [
                str(number),
                str(result.requests),
                str(result.steps),
                str(result.tokens),
                f"{result.tokens_per_step:.3f}",
                f"{result.tokens_per_step / results[0].tokens_per_step:.3f}x",
            ]
            for number, result in enumerate(results, 1)
        ],
    )
