"""`foresay bench drafters`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from foresay.cli.asking import MaxTokens
from foresay.cli.interrupts import Interrupts
from foresay.cli.model import (
    DEFAULT_MODEL,
    Device,
    Dtype,
    Model,
    Quantize,
    device_for,
    load,
    require_engine,
)
from foresay.cli.options import naming_options
from foresay.cli.root import AsJson, app
from foresay.cli.show import print_table, tolerate_encoding
from foresay.cli.waiting import Waiting, waiting

if TYPE_CHECKING:
    from foresay.bench.drafters import Round, Table
    from foresay.bench.questions import Question

bench_app = typer.Typer(
    help="Measure on this machine, with a model of your own.", no_args_is_help=True
)
app.add_typer(bench_app, name="bench")

PerCategory = Annotated[
    int | None, typer.Option(help="Questions of each category.", show_default="all")
]
FileTemperature = Annotated[float, typer.Option(help="For the prompts of a file; 0 is greedy.")]
_DRAFTERS = "none,suffix,ngram,sam,recycle,suffix+recycle"


@bench_app.command("drafters")
@naming_options({"the nodes of a draft": "--nodes", "the questions per category": "--per-category"})
def bench_drafters(
    drafters: Annotated[
        str, typer.Option(help="Names with commas between, as for --drafter of `generate`.")
    ] = _DRAFTERS,
    prompts: Annotated[
        list[Path] | None,
        typer.Option(
            help='JSON lines, {"category", "turns"} or {"prompt"}; may be given again. Without it '
            "the prompts of `foresay demo`."
        ),
    ] = None,
    per_category: PerCategory = None,
    nodes: Annotated[
        int | None, typer.Option(help="Of every draft; else what pays.", show_default="adaptive")
    ] = None,
    max_tokens: MaxTokens = 96,
    temperature: FileTemperature = 0.0,
    seed: Annotated[int, typer.Option(help="Of sampled answers.")] = 1,
    model: Model = DEFAULT_MODEL,
    dtype: Dtype = "auto",
    quantize: Quantize = None,
    device: Device = "auto",
    memory_mb: Annotated[
        int, typer.Option(min=1, help="For the KV cache of each drafter's engine.")
    ] = 1024,
    as_json: AsJson = False,
) -> None:
    """Compare drafters on the same prompts and the same model.

    Each drafter answers every prompt, in turns with the others and with no drafts at all. The table
    has tokens per step, nodes per step, the time of drafting, the speed-up against no drafts
    (median and geometric mean over the prompts, prefill included) and the drafter's memory; a
    second one tokens per step by category. Fails if a single text differs from the one without
    drafts, or a drafter fails.

    With Spec-Bench's question.jsonl as --prompts its six categories are shown, MT-Bench's eight
    kinds as one, all turns asked. HumanEval's file gives another category.

    Progress goes to stderr. After an interrupt, the table of finished prompts is printed.

    \b
    Examples:
      foresay bench drafters
      foresay bench drafters --drafters suffix,recycle,suffix+recycle --nodes 16
      foresay bench drafters --prompts question.jsonl --per-category 5 --json
      foresay bench drafters --drafters suffix,self,eagle:head,suffix+eagle:head --model ./model
    """
    from foresay.bench.drafters import Table, answer_all, check_nodes, ways_of

    tolerate_encoding()
    ways = ways_of(drafters)
    check_nodes(nodes)
    questions = read_or_built_in(prompts, per_category, max_tokens, temperature, seed)
    require_engine("bench")
    device = device_for(device, dtype, quantize)
    done: list[Round] = []
    interrupted = False
    try:
        with waiting(as_json) as wait, Interrupts() as interrupts:
            _find_drafters(ways, device, wait)
            options: dict[str, Any] = {"drafter": None, "policy": "none", "quantize": quantize}
            options |= {"device": device, "memory": memory_mb << 20}
            llm = load(model, dtype, wait, **options)
            for one in answer_all(llm, ways, questions, nodes, wait):
                with interrupts.held():
                    done.append(one)
    except KeyboardInterrupt:
        interrupted = True
    table = Table(nodes, done)
    if as_json:
        asked = {"model": model, "device": device, "max_tokens": max_tokens}
        values = {**asked, "temperature": temperature, **table.as_dict()}
        print(json.dumps(values | {"interrupted": True} if interrupted else values))
    elif done:
        _print(table)
    if interrupted:
        raise typer.Exit(130)
    if table.differences or table.failures:
        raise typer.Exit(1)


def _find_drafters(ways: list[str], device: str, wait: Waiting) -> None:
    """Refuse a drafter whose files are not there, before torch is imported and a model loaded."""
    from foresay.arrays import user_path
    from foresay.drafters.lineup import parts_of
    from foresay.models.load import find_model
    from foresay.models.weights.folder import check

    for part in [part for way in ways for part in parts_of(way)]:
        kind, _, name = part.removeprefix("worker:").partition(":")
        if kind == "eagle":
            check(user_path(name, "the drafter's folder"))
        elif kind == "model":
            wait("find", 0, None)
            find_model(name, device=device, progress=wait)


def read_or_built_in(
    files: list[Path] | None,
    per_category: int | None,
    max_tokens: int,
    temperature: float,
    seed: int,
) -> list[Question]:
    from foresay.bench.questions import built_in_questions, read_questions, some_of_each
    from foresay.sampling.params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=seed)
    questions = read_questions(files, params) if files else built_in_questions(max_tokens)
    return questions if per_category is None else some_of_each(questions, per_category)


def _print(table: Table) -> None:
    many = "as many nodes as pay" if table.nodes is None else f"at most {table.nodes} nodes"
    print(f"{len(table.rounds)} prompts, {many} in a draft\n")
    head = ["drafter", "tokens per step", "nodes per step", "draft time", "speed-up", "mean"]
    print_table([*head, "memory"], [_row(table.row(way)) for way in table.ways])
    print("\nTokens per step by category\n")
    rows = [
        [category, *(f"{table.total(way, category).tokens_per_step:.2f}" for way in table.ways)]
        for category in table.categories
    ]
    print_table(["category", *table.ways], rows)
    print(
        "\nDraft time is that of one step. Speed-up is against none, the median over the prompts, "
        "then\nthe geometric mean; times are of whole answers, prefill included."
    )
    texts = sum(len(one.answers[way].texts) for one in table.rounds for way in table.ways[1:])
    if not table.differences:
        print(f"All {texts} texts with drafts are those without, token by token.")
    for sentence in table.differences:
        print(f"NOT identical: {sentence}")
    for sentence in table.failures:
        print(f"FAILED: {sentence}")


def _row(row: dict[str, Any]) -> list[str]:
    return [
        row["drafter"],
        f"{row['tokens_per_step']:.2f}",
        f"{row['nodes_per_step']:.1f}",
        f"{row['draft_ms_per_step']:.2f} ms",
        f"{row['speedup_median']:.2f} x",
        f"{row['speedup_mean']:.2f} x",
        "" if row["bytes"] is None else f"{row['bytes'] / 2**10:.0f} KiB",
    ]
