"""Every drafter beside no drafts, by Spec-Bench's protocol: the table of docs/drafters.md.

    python benchmarks/drafters.py --prompts question.jsonl --prompts HumanEval.jsonl.gz

Prompts are JSON lines, {"category", "turns"} as in Spec-Bench or {"prompt"} as in HumanEval; all
turns are asked, through the model's chat template.

    nodes     drafts of at most --nodes nodes, whatever a step costs: what the drafters find
    adaptive  as many as pay on this machine: what a user gets

Each part begins with drafters that have seen nothing, and they keep what they learn from question
to question. Ways take turns, and who begins changes. The tokens of all ways are compared with those
of no drafts, and one difference makes the script fail. It is `foresay bench drafters` with both
policies and a record. The default drafters are named from the repository's root.

The bars: several drafters against the best of them alone, in tokens per step with fixed nodes, and
in speed where the policy is adaptive. With fixed nodes each drafter alone has to find something,
and some pairs have to find more than either, which they do not if one is left out.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path
from typing import Any, get_args

import torch

import record
from foresay import LLM, SamplingParams
from foresay.bench.drafters import Table, answer_all, check_nodes, ways_of
from foresay.bench.questions import Question, read_questions, some_of_each
from foresay.drafters.lineup import parts_of
from foresay.errors import ForesayError
from foresay.models.options import Dtype
from foresay.models.weights import DEFAULT_MODEL

PARTS = ("nodes", "adaptive")
MODEL, HEAD = "model:weights/smollm2-135m-draft", "eagle:weights/smollm2-135m-eagle"
GAINS = ("suffix+recycle", f"suffix+{MODEL}", f"suffix+{HEAD}", "first:sam+recycle")
DRAFTERS = (
    f"none,suffix,ngram,sam,recycle,self,{MODEL},{HEAD},first:sam+recycle,suffix+recycle,"
    f"suffix+{MODEL},suffix+{HEAD},suffix+recycle+{HEAD}"
)


def measure(
    llm: LLM, ways: list[str], questions: list[Question], nodes: int | None, part: str
) -> Table:
    """One part; a line on stderr for every question."""
    rounds = []
    for number, one in enumerate(answer_all(llm, ways, questions, nodes), start=1):
        rounds.append(one)
        found = ", ".join(f"{way} {one.answers[way].tokens_per_step:.2f}" for way in ways[1:])
        category = one.question.category
        say(f"{part}, question {number} of {len(questions)}, {category}: tokens per step {found}")
    return Table(nodes, rounds)


def with_questions(name: str, table: Table) -> dict[str, Any]:
    """The table with its bars, and what was measured of every question."""
    each = [
        {
            "question": Path(one.question.where).name,
            "category": one.question.category,
            "ways": {way: answer.as_dict() for way, answer in one.answers.items()},
        }
        for one in table.rounds
    ]
    found = table.as_dict()
    return {**found, "bars": bars(name, found["rows"]), "runs": each}


def bars(part: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Single drafters, and several by the best of them: what was measured, what is asked."""
    measure = "tokens_per_step" if part == "nodes" else "speedup_mean"
    value = {row["drafter"]: row[measure] for row in rows}
    found = []
    for name in value:
        members = parts_of(name)
        if part == "nodes" and len(members) == 1 and name != "none":
            found.append(bar(f"{name}, {measure}", value[name], 1.05))
        gains = part == "nodes" and name in GAINS
        if len(members) < 2 or not all(m in value for m in members):
            continue
        if name.startswith("first:") and not gains:
            continue
        best = max(members, key=lambda member: value[member])
        asked = 1.07 if gains else 0.98
        found.append(bar(f"{name} by {best}, {measure}", value[name] / value[best], asked))
        head = members[1]
        if part == "adaptive" and members[0] == "suffix" and head.startswith("eagle:"):
            found.append(bar(f"{name} by {head}, {measure}", value[name] / value[head], 1.05))
    return found


def bar(name: str, value: float, asked: float) -> dict[str, Any]:
    return {"bar": name, "measured": round(value, 4), "asked": asked, "met": value >= asked}


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def show(part: dict[str, Any]) -> None:
    """The rows, and tokens per step by category."""
    for row in part["rows"]:
        held = "" if row["bytes"] is None else f"{row['bytes'] / 2**10:8.0f} KiB"
        print(
            f"  {row['drafter']:<24}{row['tokens_per_step']:6.3f} tokens and "
            f"{row['nodes_per_step']:5.1f} nodes per step, draft "
            f"{row['draft_ms_per_step']:6.2f} ms, speed-up {row['speedup_median']:5.2f} median, "
            f"{row['speedup_mean']:5.2f} mean{held}"
        )
    for category in part["questions"]:
        found = ", ".join(
            f"{row['drafter']} {row['by_category'][category]['tokens_per_step']:.2f}"
            for row in part["rows"][1:]
        )
        print(f"  {category:<24}{found}")
    for one in part["bars"]:
        met = "met" if one["met"] else "NOT MET"
        print(f"  {one['bar']}: {one['measured']:.3f}, asked {one['asked']}: {met}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument(
        "--prompts", type=Path, action="append", required=True, metavar="FILE", help="JSON lines"
    )
    parser.add_argument("--drafters", default=DRAFTERS, help="names, with commas between")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--per-category", type=int, default=10, help="questions of each category")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--nodes", type=int, default=16, help="of every draft in part `nodes`")
    parser.add_argument("--temperature", type=float, default=0.0)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="auto", choices=get_args(Dtype))
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as it comes")
    parser.add_argument("--name", default="", help="added to the record's name")
    record.add_option(parser)
    options = parser.parse_args()
    chosen = options.only.split(",")
    for name in chosen:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; choose from {', '.join(PARTS)}")
    params = SamplingParams(max_tokens=options.tokens, temperature=options.temperature, seed=1)
    try:
        ways = ways_of(options.drafters)
        check_nodes(options.nodes)
        questions = some_of_each(read_questions(options.prompts, params), options.per_category)
    except ForesayError as error:
        parser.error(str(error))
    if options.threads:
        torch.set_num_threads(options.threads)
    llm = LLM(options.model, None, "none", dtype=options.dtype, memory=1 << 30)
    tables = {
        name: measure(llm, ways, questions, options.nodes if name == "nodes" else None, name)
        for name in chosen
    }
    figures = {
        "model": Path(options.model).name,
        "dtype": options.dtype,
        "max_tokens": options.tokens,
        "temperature": options.temperature,
        "torch_threads": torch.get_num_threads(),
        "load_average": os.getloadavg(),
        "identical": not any(table.differences for table in tables.values()),
        "parts": {name: with_questions(name, table) for name, table in tables.items()},
    }
    # A part of the whole must not take the place of the day's record.
    some = "" if set(chosen) == set(PARTS) else "-" + "-".join(chosen)
    path = record.write(f"drafters{some}{options.name}", figures, options.record)
    for name, part in figures["parts"].items():
        print(f"{name}, {sum(part['questions'].values())} questions")
        show(part)
    print(f"recorded in {path.name}")
    if any(table.differences or table.failures for table in tables.values()):
        sys.exit("texts differ with and without drafts, or a drafter failed: see the record")


if __name__ == "__main__":
    main()
