"""`foresay bench edge`."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foresay.cli.asking import MaxTokens
from foresay.cli.bench import FileTemperature, PerCategory, bench_app, read_or_built_in
from foresay.cli.interrupts import Interrupts
from foresay.cli.model import DEFAULT_MODEL, Device, Model, device_for, require_engine
from foresay.cli.options import SERVER, naming_options, require
from foresay.cli.root import AsJson
from foresay.cli.show import print_table, tolerate_encoding
from foresay.cli.waiting import waiting
from foresay.errors import ForesayError, InputError

if TYPE_CHECKING:
    from foresay.bench.edge_table import EdgeTable

_WAYS = "cloud,cloud-drafts,blocking,ahead,ahead-block,free-run"


@bench_app.command("edge")
@naming_options({"the way": "--ways"})
def bench_edge(
    ways: Annotated[
        str, typer.Option(help="Names with commas between; with --edge-model also edge-only.")
    ] = _WAYS,
    rtt: Annotated[
        str, typer.Option(help="Round-trip times in ms, with commas between.")
    ] = "0,5,20,50,100",
    jitter: Annotated[float, typer.Option(help="In ms, each way, up or down.")] = 0.0,
    loss: Annotated[
        float, typer.Option(help="Chance that a segment is lost and sent again.")
    ] = 0.0,
    bandwidth: Annotated[
        float | None, typer.Option(help="Megabits per second each way.", show_default="no limit")
    ] = None,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help='JSON lines, {"category", "turns"} or {"prompt"}; may be given again. Only the '
            "first turn is asked. Without it the prompts of `foresay demo` that restate a text."
        ),
    ] = None,
    per_category: PerCategory = None,
    category: Annotated[
        str | None, typer.Option(help="Only this category of --prompts.", show_default="all")
    ] = None,
    max_tokens: MaxTokens = 96,
    temperature: FileTemperature = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampled answers, jitter and loss.")] = 1,
    model: Model = DEFAULT_MODEL,
    device: Device = "auto",
    drafter: Annotated[str, typer.Option(help="Of the edge.")] = "suffix",
    corpus: Annotated[
        Path | None, typer.Option(help="A corpus file for the edge's drafter.")
    ] = None,
    gate: Annotated[
        bool, typer.Option("--gate", help="The edge sends early, and drafts less, at hard tokens.")
    ] = False,
    edge_model: Annotated[
        str | None, typer.Option(help="The edge's own model, for the way edge-only.")
    ] = None,
    cloud_drafter: Annotated[
        str, typer.Option(help="Of the server; 'edge': only the edge's drafts.")
    ] = "suffix",
    memory_mb: Annotated[int, typer.Option(min=1, help="For the KV cache of each server.")] = 512,
    log: Annotated[Path | None, typer.Option(help="Write every round as a JSON line.")] = None,
    prometheus: Annotated[Path | None, typer.Option(help="Write Prometheus' text format.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write a page with charts.")] = None,
    as_json: AsJson = False,
) -> None:
    """Compare edge streams with the cloud alone over emulated networks.

    Starts `foresay serve` twice on this machine, without drafts and with its own, and an edge
    client behind a proxy that delays. Ways take turns on the same prompt. Fails if a single text
    differs from the cloud's alone.

    \b
    cloud         streams, without drafts anywhere
    cloud-drafts  streams, with the server's drafts
    blocking      the edge drafts, sends, waits for the verdict
    ahead         the edge drafts on meanwhile; the cloud waits where it pays
    ahead-block   the same; the cloud always waits
    free-run      the same; the cloud never waits
    edge-only     the edge's own model alone: not the target's text

    `by cloud` and `by drafts` are times as fast as cloud and cloud-drafts after the first token;
    docs/edge.md, "How to measure", explains every column. At the end come the bars: what edge
    streams have to reach at an RTT of 20 ms. A bar that is NOT MET does not change the exit status,
    a text that differs does.

    Progress goes to stderr. After an interrupt, what was measured is printed.

    \b
    Examples:
      foresay bench edge --rtt 0,20 --max-tokens 64
      foresay bench edge --rtt 50 --jitter 5 --loss 0.01 --html edge.html
      foresay bench edge --prompts question.jsonl --category summarization --per-category 8 --json
    """
    from foresay.bench.edge import edge_ways
    from foresay.bench.edge_table import EdgeTable
    from foresay.bench.proxy import EmulatedLink
    from foresay.bench.questions import in_order

    tolerate_encoding()
    for option, path in {"--log": log, "--prometheus": prometheus, "--html": html}.items():
        if path is not None:
            _check_writable(option, path)
    milliseconds, megabits = "milliseconds, 0 or more", "megabits per second, above 0"
    if not 0 <= jitter < math.inf:
        raise InputError(f"jitter is {jitter:g}; expected {milliseconds}")
    if bandwidth is not None and not 0 < 1e6 * bandwidth < math.inf:
        raise InputError(f"bandwidth is {bandwidth:g}; expected {megabits}")
    limit = None if bandwidth is None else 1e6 * bandwidth
    links = [EmulatedLink(time, jitter / 1e3, loss, limit, seed) for time in _seconds(rtt)]
    chosen = edge_ways(f"{ways},edge-only" if edge_model is not None else ways)
    questions = read_or_built_in(prompts, per_category, max_tokens, temperature, seed)
    questions = [
        question
        for question in questions
        if question.params.n == 1 and (prompts or question.category != "free chat")
    ]
    there = in_order(question.category for question in questions)
    if category not in (None, *there):
        raise InputError(f"category is {category!r}; expected one of {', '.join(there)}")
    questions = [question for question in questions if category in (None, question.category)]
    require_engine("bench")
    require("bench edge", "serve,edge", *SERVER)
    device = device_for(device, "auto")
    from foresay.bench.edge_runs import EdgeSetup, run_edge

    setup = EdgeSetup(
        chosen,
        links,
        model,
        drafter=drafter,
        corpus=corpus,
        gate=gate,
        edge_model=edge_model,
        cloud_drafter=cloud_drafter,
        memory_mb=memory_mb,
        device=device,
    )
    table = EdgeTable([], setup.about())
    interrupted, failed = False, None
    try:
        with (
            waiting(as_json) as wait,
            Interrupts() as interrupts,
            closing(run_edge(setup, questions, wait)) as running,
        ):
            for found in running:
                with interrupts.held():
                    table = found
    except KeyboardInterrupt:
        interrupted = True
    except ForesayError as error:
        if not any(row.answers for row in table.rows):
            raise
        failed = error
    table.rows = [row for row in table.rows if row.answers]
    if as_json:
        values = table.as_dict()
        print(json.dumps(values | {"interrupted": True} if interrupted else values))
    elif table.rows:
        _print(table, len(questions))
    written = _write(table, {"--log": log, "--prometheus": prometheus, "--html": html})
    if failed is not None:
        raise failed
    if interrupted:
        raise typer.Exit(130)
    if not (table.identical and written):
        raise typer.Exit(1)


def _seconds(given: str) -> list[float]:
    found = []
    for part in given.split(","):
        try:
            found.append(float(part) / 1e3)
        except ValueError:
            raise InputError(
                f"rtt is {given!r}; expected milliseconds with commas between, such as 0,20,50"
            ) from None
        if not 0 <= found[-1] < math.inf:
            raise InputError(f"rtt is {part.strip()}; expected milliseconds, 0 or more")
    return found


def _check_writable(option: str, path: Path) -> None:
    """Refuse a file that cannot be written before anything is measured."""
    why = "is no file" if path.exists() and not path.is_file() else ""
    if not why:
        try:
            with NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}."):
                pass
        except OSError as error:
            why = f"cannot be written: {error.strerror or error}"
    if why:
        raise InputError(f"{option} is '{path}', which {why}; expected a file in a folder of yours")


def _write(table: EdgeTable, files: dict[str, Path | None]) -> bool:
    """Write the files that are wanted; False if one could not be written, which is said."""
    from foresay.bench.edge_report import html_report, prometheus_text
    from foresay.files import whole_file

    texts: dict[str, Callable[[], str]] = {
        "--log": lambda: "".join(line + "\n" for line in table.log_lines()),
        "--prometheus": lambda: prometheus_text(table),
        "--html": lambda: html_report(table),
    }
    good = True
    for option, path in files.items():
        if path is None or not table.rows:
            continue
        try:
            with whole_file(path) as part:
                part.write_text(texts[option](), encoding="utf-8")
        except OSError as error:
            why = error.strerror or error
            print(f"foresay: {option} '{path}' was not written: {why}", file=sys.stderr)
            good = False
    return good


def _print(table: EdgeTable, prompts: int) -> None:
    from foresay.bench.edge import EDGE_ONLY
    from foresay.bench.edge_report import COLUMNS, cells

    found = table.as_dict()
    done = max(len(row.answers) for row in table.rows)
    asked = f"{done} prompts" if done == prompts else f"{done} of {prompts} prompts"
    print(f"{asked}, {table.about['model']} in the cloud, {table.about['edge_drafter']} "
          "on the edge")  # fmt: skip
    groups: list[list[str]] = [list(COLUMNS)[:9], list(COLUMNS)[9:]]
    for time in dict.fromkeys(row["rtt_emulated_ms"] for row in found["rows"]):
        rows: list[dict[str, Any]] = [r for r in found["rows"] if r["rtt_emulated_ms"] == time]
        for names in groups:
            print(f"\nRTT {time:g} ms\n")
            body = []
            for row in rows:
                shown = dict(zip(COLUMNS, cells(row), strict=True))
                body.append([row["way"], *(shown[name] for name in names)])
            print_table(["way", *(COLUMNS[name][0] for name in names)], body)
    if EDGE_ONLY in table.ways:
        print(f"\n{EDGE_ONLY} is the edge's own model: not the target's text.")
    print()
    for bar in found["bars"]:
        met = {None: "not measured", True: "met", False: "NOT MET"}[bar["met"]]
        value = "" if bar["value"] is None else f"{bar['value']:.3f}"
        print(f"{bar['name']:<48}{value:>8}   bar {bar['bar']:g}   {met}")
    for time, ratio in found["drafting_ahead_alone"].items():
        print(f"ahead-block by blocking, the same wait, at {time} ms: {ratio:.3f}")
    if found["identical"]:
        print(f"\nAll {table.compared} texts are those of the cloud alone, token by token.")
    elif not table.compared:
        print("\nNOT identical: no text was compared")
    for sentence in found["differences"]:
        print(f"NOT identical: {sentence}")
