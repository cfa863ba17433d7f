"""Drafts for sampled answers: what a request's known noise is worth.

    python benchmarks/sampled_drafts.py --prompts question.jsonl

    rules  a small model drafts one token at a temperature: coupled with the request's noise under
           rule match, against one that is sampled under rule rejection. No coupling can be
           accepted more often in the mean
    group  several samples of each prompt at once, with equal nodes: suffix alone, and with
           recycling

Counts, so they do not depend on how fast the machine is. In the part `group` all texts are
compared with those of no drafts.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import record
from foresay import LLM, SamplingParams
from foresay.bench.questions import Question, read_questions, some_of_each
from foresay.budget.policy import Fixed
from foresay.counts import tokens_per_step
from foresay.drafters import MergeDrafter, ModelDrafter, RecycleDrafter, SuffixDrafter
from foresay.errors import ForesayError
from foresay.models.weights import DEFAULT_MODEL

PARTS = ("rules", "group")
DRAFT = Path(__file__).parent.parent / "weights" / "smollm2-135m-draft"


def rules(llm: LLM, questions: list[Question], options: argparse.Namespace) -> dict[str, Any]:
    """First drafted tokens that were accepted, by rule."""
    found: dict[str, Any] = {}
    for name, rule, choice in (
        ("coupled", "match", "coupled"),
        ("likeliest", "match", "likeliest"),
        ("rejection", "rejection", "coupled"),
    ):
        drafter = ModelDrafter(options.draft, shape=1, choice=choice)
        engine = llm.beside(drafter, Fixed(k=1))
        steps = drafted = accepted = 0
        for question in questions:
            params = SamplingParams(
                temperature=options.temperature, max_tokens=options.tokens, seed=1, rule=rule
            )
            [result] = engine.generate(prompt(question), params)
            steps, drafted = steps + result.stats.steps, drafted + result.stats.drafted
            accepted += result.stats.accepted
        found[name] = {
            "acceptance": round(accepted / max(drafted, 1), 4),
            "drafted": drafted,
            "steps": steps,
        }
        say(f"{name}: {found[name]}")
    gap = found["rejection"]["acceptance"] - found["coupled"]["acceptance"]
    return found | {"points_below_rejection": round(100 * gap, 2)}


def group(llm: LLM, questions: list[Question], options: argparse.Namespace) -> dict[str, Any]:
    """Tokens per step of samples that draft from each other."""
    ways: dict[str, Any] = {
        "none": None,
        "suffix": SuffixDrafter(),
        "suffix+recycle": MergeDrafter(SuffixDrafter(), RecycleDrafter(k=options.topk)),
    }
    engines = {
        name: llm.beside(way, "none" if way is None else Fixed(k=options.nodes))
        for name, way in ways.items()
    }
    counts = {name: [0, 0] for name in ways}
    different = 0
    for number, question in enumerate(questions, start=1):
        params = SamplingParams(
            temperature=options.temperature, max_tokens=options.tokens, seed=1, n=options.samples
        )
        texts = []
        for name, engine in engines.items():
            results = engine.generate(prompt(question), params)
            counts[name][0] += sum(result.stats.tokens for result in results)
            counts[name][1] += sum(result.stats.steps for result in results)
            texts.append([result.token_ids for result in results])
        different += texts.count(texts[0]) < len(texts)
        shown = {name: round(tokens_per_step(*each), 3) for name, each in counts.items()}
        say(f"question {number} of {len(questions)}: {shown}")
    found: dict[str, Any] = {
        name: {"tokens_per_step": round(tokens_per_step(*each), 4), "steps": each[1]}
        for name, each in counts.items()
    }
    ratio = found["suffix+recycle"]["tokens_per_step"] / found["suffix"]["tokens_per_step"]
    return found | {"ratio": round(ratio, 4), "different_texts": different}


def prompt(question: Question) -> Any:
    return [{"role": "user", "content": question.turns[0]}]


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prompts", type=Path, action="append", required=True, metavar="FILE")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--draft", default=str(DRAFT), help="folder of the small model")
    parser.add_argument("--per-category", type=int, default=2, help="questions of each category")
    parser.add_argument("--tokens", type=int, default=96, help="of an answer, at most")
    parser.add_argument("--nodes", type=int, default=4, help="of every draft in part `group`")
    parser.add_argument("--samples", type=int, default=8, help="of each prompt in part `group`")
    parser.add_argument("--topk", type=int, default=8, help="tokens that recycling keeps of a row")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--name", default="", help="added to the record's name")
    record.add_option(parser)
    options = parser.parse_args()
    chosen = options.only.split(",")
    for name in chosen:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; choose from {', '.join(PARTS)}")
    try:
        questions = some_of_each(
            read_questions(options.prompts, SamplingParams()), options.per_category
        )
    except ForesayError as error:
        parser.error(str(error))
    llm = LLM(options.model, None, "none", memory=1 << 30)
    figures = {
        "model": options.model,
        "draft": Path(options.draft).name,
        "temperature": options.temperature,
        "max_tokens": options.tokens,
        "questions": len(questions),
        "nodes": options.nodes,
        "samples": options.samples,
        "topk": options.topk,
    }
    measured = {"rules": rules, "group": group}
    figures |= {name: measured[name](llm, questions, options) for name in chosen}
    path = record.write(f"sampled-drafts{options.name}", figures, options.record)
    print(f"recorded in {path.name}")
    if figures.get("group", {}).get("different_texts"):
        sys.exit("texts differ with and without drafts: see the record")


if __name__ == "__main__":
    main()
