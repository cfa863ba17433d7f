"""Every drafter versus no drafts, by Spec-Bench's protocol: the table of docs/drafters.md.

    python benchmarks/drafters.py --prompts question.jsonl --prompts HumanEval.jsonl.gz

Prompts are JSON lines, {"category", "turns"} as in Spec-Bench or {"prompt"} as in HumanEval; all
turns are asked, through the model's chat template.

    nodes     drafts of at most --nodes nodes, whatever a step costs: what the drafters find
    adaptive  as many as pay on this machine: what a user gets
    rules     sampled answers: a small model drafts one token at a temperature, coupled with the
              request's noise under rule match, versus one that is sampled under rule rejection. No
              coupling can be accepted more often in the mean (first turns, one token of draft)
    group     several samples of each prompt at once, 4 nodes: suffix alone, and with recycling

Each part begins with drafters that have seen nothing, and they keep what they learn from question
to question. Drafters take turns, and who begins changes. All tokens are compared with those of no
drafts, and one difference makes the script fail. `nodes` and `adaptive` are `foresay bench
drafters` with a record. The default drafters are named from the repository's root.

The bars: several drafters against the best of them alone, in tokens per step with fixed nodes, and
in speed where the policy is adaptive. With fixed nodes each drafter alone has to find something,
and some pairs have to find more than either, which they do not if one is left out.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, get_args

import torch

import harness
from foresay import LLM, SamplingParams
from foresay.bench.drafters import Answered, Table, answer_all, check_nodes, ways_of
from foresay.bench.questions import Question, read_questions, some_of_each
from foresay.budget.policy import Fixed
from foresay.drafters import MergeDrafter, ModelDrafter, RecycleDrafter, SuffixDrafter
from foresay.drafters.lineup import parts_of
from foresay.errors import ForesayError
from foresay.models.options import Dtype
from foresay.models.weights import DEFAULT_MODEL
from harness import bar, say

PARTS = ("nodes", "adaptive", "rules", "group")
MODEL, HEAD = "model:weights/smollm2-135m-draft", "eagle:weights/smollm2-135m-eagle"
GAINS = ("suffix+recycle", f"suffix+{MODEL}", f"suffix+{HEAD}", "first:sam+recycle")
DRAFTERS = (
    f"none,suffix,ngram,sam,recycle,self,{MODEL},{HEAD},first:sam+recycle,suffix+recycle,"
    f"suffix+{MODEL},suffix+{HEAD},suffix+recycle+{HEAD}"
)


def compare(
    llm: LLM, questions: list[Question], options: argparse.Namespace, part: str
) -> dict[str, Any]:
    """The table with its bars, and what was measured of every question."""
    nodes, rounds, runs = options.nodes if part == "nodes" else None, [], []
    for number, one in enumerate(answer_all(llm, options.drafters, questions, nodes), start=1):
        rounds.append(one)
        runs.append(
            {
                "question": Path(one.question.where).name,
                "category": one.question.category,
                "ways": {way: answer.as_dict() for way, answer in one.answers.items()},
            }
        )
        say(f"{part}, question {number} of {len(questions)}, {one.question.category}")
    found = Table(nodes, rounds).as_dict()
    return {**found, "bars": bars(part, found["rows"]), "runs": runs}


def bars(part: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Single drafters, and several by the best of them."""
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
        bound = 1.07 if gains else 0.98
        found.append(bar(f"{name} by {best}, {measure}", value[name] / value[best], bound))
        head = members[1]
        if part == "adaptive" and members[0] == "suffix" and head.startswith("eagle:"):
            found.append(bar(f"{name} by {head}, {measure}", value[name] / value[head], 1.05))
    return found


def sampled(engine: LLM, question: Question, options: argparse.Namespace, **how: Any) -> list[Any]:
    params = SamplingParams(temperature=0.8, max_tokens=options.tokens, seed=1, **how)
    return engine.generate([{"role": "user", "content": question.turns[0]}], params)  # type: ignore[no-any-return]


def rules(llm: LLM, questions: list[Question], options: argparse.Namespace) -> dict[str, Any]:
    """First drafted tokens that were accepted, by rule."""
    found: dict[str, Any] = {}
    for name, rule, choice in (
        ("coupled", "match", "coupled"),
        ("likeliest", "match", "likeliest"),
        ("rejection", "rejection", "coupled"),
    ):
        engine = llm.beside(ModelDrafter(options.draft, shape=1, choice=choice), Fixed(k=1))
        stats = [sampled(engine, one, options, rule=rule)[0].stats for one in questions]
        drafted, accepted = sum(s.drafted for s in stats), sum(s.accepted for s in stats)
        share = round(accepted / max(drafted, 1), 4)
        found[name] = {
            "acceptance": share,
            "drafted": drafted,
            "steps": sum(s.steps for s in stats),
        }
    gap = found["rejection"]["acceptance"] - found["coupled"]["acceptance"]
    return found | {"points_below_rejection": round(100 * gap, 2), "identical": True}


def group(llm: LLM, questions: list[Question], options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per step of samples that draft from each other."""
    engines = {
        "none": llm.beside(None, "none"),
        "suffix": llm.beside(SuffixDrafter(), Fixed(k=4)),
        "suffix+recycle": llm.beside(
            MergeDrafter(SuffixDrafter(), RecycleDrafter(k=8)), Fixed(k=4)
        ),
    }
    made = {
        name: Answered(
            results=[r for q in questions for r in sampled(engine, q, options, n=options.samples)]
        )
        for name, engine in engines.items()
    }
    found: dict[str, Any] = {
        name: {"tokens_per_step": round(one.tokens_per_step, 4), "steps": one.steps}
        for name, one in made.items()
    }
    ratio = found["suffix+recycle"]["tokens_per_step"] / found["suffix"]["tokens_per_step"]
    same = all(one.texts == made["none"].texts for one in made.values())
    return found | {"ratio": round(ratio, 4), "identical": same}


def show(figures: dict[str, Any]) -> None:
    for name, part in figures["parts"].items():
        if "rows" not in part:
            print(name, *(f"{key} {value}" for key, value in part.items()), sep="\n  ")
            continue
        print(f"{name}, {sum(part['questions'].values())} questions")
        names = ("tokens_per_step", "nodes_per_step", "draft_ms_per_step")
        names += ("speedup_median", "speedup_mean")
        body = [
            [row["drafter"], *(f"{row[key]:.3f}" for key in names), f"{row['bytes'] or 0:,}"]
            for row in part["rows"]
        ]
        harness.print_table(["drafter", *names, "bytes"], body)
        body = []
        for row in part["rows"]:
            each = [f"{one['tokens_per_step']:.2f}" for one in row["by_category"].values()]
            body.append([row["drafter"], *each])
        harness.print_table(["tokens per step", *part["questions"]], body)
        harness.print_bars(part["bars"])


def main() -> None:
    parser = harness.parser(__doc__, parts=PARTS, usual=PARTS[:2])
    parser.add_argument(
        "--prompts", type=Path, action="append", required=True, metavar="FILE", help="JSON lines"
    )
    parser.add_argument("--drafters", default=DRAFTERS, help="names, with commas between")
    parser.add_argument("--draft", default=MODEL.partition(":")[2], help="small model of `rules`")
    parser.add_argument("--per-category", type=int, default=10, help="questions of each category")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer, at most")
    parser.add_argument("--nodes", type=int, default=16, help="of every draft in part `nodes`")
    parser.add_argument("--samples", type=int, default=8, help="of each prompt in part `group`")
    parser.add_argument("--temperature", type=float, default=0.0, help="of nodes and adaptive")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--dtype", default="auto", choices=get_args(Dtype))
    parser.add_argument("--threads", type=int, default=0, help="of torch; 0: as it comes")
    options = harness.parse(parser)
    params = SamplingParams(max_tokens=options.tokens, temperature=options.temperature, seed=1)
    try:
        options.drafters = ways_of(options.drafters)
        check_nodes(options.nodes)
        questions = some_of_each(read_questions(options.prompts, params), options.per_category)
    except ForesayError as error:
        parser.error(str(error))
    if options.threads:
        torch.set_num_threads(options.threads)
    llm = LLM(options.model, None, "none", dtype=options.dtype, memory=1 << 30)
    of = {"rules": rules, "group": group}
    parts = {
        name: of[name](llm, questions, options)
        if name in of
        else compare(llm, questions, options, name)
        for name in options.chosen
    }
    figures = {
        "model": options.model,
        "dtype": options.dtype,
        "max_tokens": options.tokens,
        "temperature": options.temperature,
        "torch_threads": torch.get_num_threads(),
        "identical": all(part["identical"] for part in parts.values()),
        "parts": parts,
    }
    failed = "" if figures["identical"] else "texts differ with and without drafts"
    if any(part.get("failures") for part in parts.values()):
        failed = failed or "a drafter failed: see the record"
    harness.finish("drafters", figures, options, show, failed)


if __name__ == "__main__":
    main()
