"""Edge streams beside the cloud alone, over emulated networks; and what gating signals foretell.

    python benchmarks/edge.py [--only ways,gating] [--rtts 0,5,20,50,100] [--prompts FILE] [--quick]

ways     `foresay bench edge`: every way at every round-trip time on the same prompts, in turns; the
         server, the proxy and the client are processes on this machine and share its cores. Bars at
         20 ms: free-run by the cloud alone with the same server drafts, draft-ahead by blocking;
         texts; bytes of a round. One bar that is not met and the script fails.
gating   whether a signal or a rule of the gate foretells rejection, by the area under the ROC
         curve: .5 says nothing (`edge_gating.py`). With --corpus also the rule for rare words.

Run it on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

import edge_gating
import record
from edge_options import chance, count, in_a_sentence, milliseconds, new_file, rtts
from foresay.bench.edge import WAYS, edge_ways
from foresay.bench.edge_report import COLUMNS, cells, html_report
from foresay.bench.edge_runs import EdgeSetup, run_edge
from foresay.bench.edge_table import EdgeTable
from foresay.bench.proxy import EmulatedLink
from foresay.bench.questions import (
    Question,
    built_in_questions,
    in_order,
    read_questions,
    some_of_each,
)
from foresay.errors import InputError
from foresay.models import weights
from foresay.sampling.params import SamplingParams

PARTS = ("ways", "gating")
RTTS = "0,5,20,50,100"
SMALL = "weights/smollm2-135m-draft"


def questions_of(options: argparse.Namespace, tokens: int, each: int) -> list[Question]:
    """Summarization, or the built-in prompts that restate a text."""
    if options.prompts is None:
        found = [q for q in built_in_questions(tokens) if q.params.n == 1]
        return [q for q in found if q.category != "free chat"][:each]
    params = SamplingParams(max_tokens=tokens, temperature=options.temperature, seed=1)
    every = read_questions([options.prompts], params)
    chosen = [q for q in every if options.category in ("", q.category)]
    if not chosen:
        there = ", ".join(in_order(q.category for q in every))
        raise InputError(f"--category is {options.category!r}; expected one of {there}, or empty")
    return some_of_each(chosen, each)


def told(stage: str, done: int, total: int | None) -> None:
    if stage == "write" and total and done % max(1, total // 20) == 0:
        print(f"{done} of {total} answers", file=sys.stderr)


def measure_ways(options: argparse.Namespace, questions: list[Question]) -> EdgeTable:
    links = [EmulatedLink(rtt / 1e3, options.jitter / 1e3, options.loss) for rtt in options.rtts]
    ways = ",".join(way for way in WAYS if way != "edge-only")
    if options.edge_model is not None:
        ways += ",edge-only"
    setup = EdgeSetup(
        edge_ways(ways),
        links,
        options.model,
        drafter=options.drafter,
        corpus=options.corpus,
        edge_model=options.edge_model,
        cloud_drafter=options.cloud_drafter,
        memory_mb=options.memory_mb,
    )
    table = EdgeTable([])
    for found in run_edge(setup, questions, told):
        table = found
    return table


def show(parts: dict[str, Any]) -> None:
    for row in parts.get("ways", {}).get("rows", []):
        names = [head for head, _ in COLUMNS.values()]
        shown = ", ".join(f"{n} {v}" for n, v in zip(names, cells(row), strict=True) if v)
        print(f"{row['way']} at {row['rtt_emulated_ms']:g} ms: {shown}")
    for drafter, areas in parts.get("gating", {}).get("areas", {}).items():
        for signal, found in areas.items():
            area = "none" if found["area"] is None else f"{found['area']:.3f}"
            counts = f"{found['rejected']} rejected, {found['accepted']} accepted"
            print(f"AUC of {drafter} {signal}: {area} ({counts})")
    for bar in parts.get("ways", {}).get("bars", []):
        met = {None: "not measured", True: "met", False: "NOT MET"}[bar["met"]]
        print(f"  {bar['name']:<48}{bar['value']!s:>9}   bar {bar['bar']:g}   {met}")
    for time, ratio in parts.get("ways", {}).get("drafting_ahead_alone", {}).items():
        print(f"  ahead-block by blocking, the same wait, at {time} ms: {ratio:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=weights.DEFAULT_MODEL)
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--quick", action="store_true", help="2 prompts, 32 tokens, 0 and 20 ms")
    parser.add_argument("--rtts", type=rtts, default=RTTS, help="in ms, with commas between")
    parser.add_argument("--jitter", type=milliseconds, default=0.0, help="in ms")
    parser.add_argument("--loss", type=chance, default=0.0)
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's question.jsonl")
    parser.add_argument("--category", default="summarization", help="of --prompts; empty: all")
    parser.add_argument("--each", type=count, default=8, help="prompts of a category")
    parser.add_argument("--tokens", type=count, default=96, help="of each answer")
    parser.add_argument("--temperature", type=float, default=0.0, help="for --prompts")
    parser.add_argument("--drafter", default="suffix", help="of the edge")
    parser.add_argument("--corpus", type=Path, help="a corpus file for the edge's drafter")
    parser.add_argument("--edge-model", help=f"the edge's own model; of gating {SMALL} by default")
    parser.add_argument("--cloud-drafter", default="suffix")
    parser.add_argument("--memory-mb", type=count, default=512)
    parser.add_argument("--html", type=new_file, help="write the page too")
    parser.add_argument("--json", action="store_true", help="print the record")
    record.add_option(parser)
    options = parser.parse_args()
    chosen = options.only.split(",")
    for name in chosen:
        if name not in PARTS:
            parser.error(f"there is no part {name!r}; choose from {', '.join(PARTS)}")
    if options.quick:
        options.rtts, options.each, options.tokens = rtts("0,20"), 2, 32
    with in_a_sentence(parser.prog):
        measure(options, chosen)


def measure(options: argparse.Namespace, chosen: list[str]) -> None:
    """Measure the parts, record them, and exit with 1 if a bar is not met."""
    questions = questions_of(options, options.tokens, options.each)
    parts: dict[str, Any] = {}
    load = os.getloadavg()
    if "ways" in chosen:
        table = measure_ways(options, questions)
        parts["ways"] = table.as_dict()
        if options.html is not None:
            options.html.write_text(html_report(table), encoding="utf-8")
    if "gating" in chosen:
        edge_model = options.edge_model or SMALL
        parts["gating"] = edge_gating.measure(
            questions, options.model, edge_model, options.corpus, options.memory_mb << 20
        )
    figures = {
        "load_average": {"before": load, "after": os.getloadavg()},
        "prompts": [Path(question.where).name for question in questions],
        "max_tokens": options.tokens,
        "parts": parts,
    }
    usual = options.rtts == rtts(RTTS) and not (options.jitter or options.loss or options.quick)
    name = "edge" + ("" if usual else "-quick" if options.quick else "-some")
    name += "" if set(chosen) == set(PARTS) else "-" + "-".join(chosen)
    path = record.write(name, figures, options.record)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(parts)
    print(f"recorded in {path.name}")
    missed = [bar["name"] for bar in parts.get("ways", {}).get("bars", []) if bar["met"] is False]
    if missed:
        sys.exit(f"NOT MET: {'; '.join(missed)}")


if __name__ == "__main__":
    main()
