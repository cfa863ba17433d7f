"""Edge streams versus the cloud alone, over emulated networks; and what gating signals foretell.

    python benchmarks/edge.py [--only ways,gating] [--rtts 0,5,20,50,100] [--prompts FILE]

ways      `foresay bench edge`: every way at every round-trip time on the same prompts, in
          turns; the server, the proxy and the client are processes on this machine and share its
          cores. Bars at 20 ms: free-run by the cloud alone with the same server drafts, draft-ahead
          by blocking; texts; bytes of a round. One bar that is not met and the script fails.
gating    whether a signal or a rule of the gate foretells rejection, by the area under the ROC
          curve: .5 says nothing. Every position of the target's own answers is an examined token:
          the edge's drafter proposes the next token after the true text, and it is rejected if the
          target wrote another. A rule is a signal of 0 or 1. The edge's model draws with the
          target's noise, so it has to be another one than the target. With --corpus also the rule
          for rare words.

Run it on a machine with nothing else to do.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import harness
from foresay.arrays import Int32s
from foresay.bench.edge import WAYS, edge_ways
from foresay.bench.edge_report import cells, html_report
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
from foresay.drafter import SeededParams
from foresay.edge.ahead import CONTEXT
from foresay.edge.drafting import EdgeDrafts, edge_drafter
from foresay.edge.gating import auc, auc_by_signal
from foresay.edge.text_rules import KINDS, CorpusWords, Rules, read_tokens
from foresay.engine.llm import LLM
from foresay.errors import ForesayError, InputError
from foresay.models import weights
from foresay.sampling.params import SamplingParams
from foresay.sampling.signals import Signals, nll_of_scores
from harness import count, number

RTTS = "0,5,20,50,100"
SMALL = "weights/smollm2-135m-draft"
TEMPERATURE, PASSES = 0.8, 8  # of `gating`; passes with dropout
milliseconds = number("milliseconds, 0 or more", lambda value: value >= 0)
chance = number("a chance from 0 to below 1", lambda value: 0 <= value < 1)


def rtts(text: str) -> list[float]:
    return [milliseconds(part) for part in text.split(",")]


def new_file(text: str) -> Path:
    """A file that can be written, as far as its folder says."""
    path = Path(text)
    if path.is_dir() or not path.parent.is_dir():
        raise argparse.ArgumentTypeError(
            f"it is {text!r}; expected a file in a folder that is there"
        )
    return path


def questions_of(options: argparse.Namespace) -> list[Question]:
    """Summarization, or the built-in prompts that restate a text."""
    if options.prompts is None:
        found = [q for q in built_in_questions(options.tokens) if q.params.n == 1]
        return [q for q in found if q.category != "free chat"][: options.each]
    params = SamplingParams(max_tokens=options.tokens, temperature=options.temperature, seed=1)
    every = read_questions([options.prompts], params)
    chosen = [q for q in every if options.category in ("", q.category)]
    if not chosen:
        there = ", ".join(in_order(q.category for q in every))
        raise InputError(f"--category is {options.category!r}; expected one of {there}, or empty")
    return some_of_each(chosen, options.each)


def ways(options: argparse.Namespace, questions: list[Question]) -> dict[str, Any]:
    links = [EmulatedLink(rtt / 1e3, options.jitter / 1e3, options.loss) for rtt in options.rtts]
    setup = EdgeSetup(
        edge_ways(",".join(WAYS[options.edge_model is None :])),
        links,
        options.model,
        drafter=options.drafter,
        corpus=options.corpus,
        edge_model=options.edge_model,
        cloud_drafter=options.cloud_drafter,
        memory_mb=options.memory_mb,
    )
    table = EdgeTable([])
    for found in run_edge(setup, questions):
        table = found
    if options.html is not None:
        options.html.write_text(html_report(table), encoding="utf-8")
    return table.as_dict()


class Seen:
    """What a drafter said of each token, and whether it was rejected."""

    def __init__(self) -> None:
        self.signals: list[Signals] = []
        self.rejected: list[bool] = []
        self.marks: dict[str, list[bool]] = {}

    def areas(self) -> dict[str, Any]:
        signals = auc_by_signal(Signals.joined(self.signals), self.rejected)
        found = {name: area._asdict() for name, area in signals.items()}
        for name, marks in self.marks.items():
            area = auc(np.array(marks, float), self.rejected)
            found[name] = {**area._asdict(), "marked": sum(marks)}
        return found


def gating(options: argparse.Namespace, questions: Sequence[Question]) -> dict[str, Any]:
    """The area of each signal and rule, of the edge's model and of the suffix drafter."""
    edge_model, corpus = options.edge_model or SMALL, options.corpus
    target = LLM(options.model, None, memory=options.memory_mb << 20)
    rules: dict[str, Rules] = {kind: Rules((kind,)) for kind in KINDS}
    rules["any rule"] = Rules()
    if corpus is not None:
        words = CorpusWords.of(corpus, target.tokenizer)
        rules |= {"rare word": Rules((), word_counts=words), "any rule": Rules(word_counts=words)}
    drafters = {
        "model": edge_drafter(f"model:{edge_model}", signals=True, dropout=PASSES),
        "suffix": edge_drafter("suffix", corpus=corpus),
    }
    seen = {name: Seen() for name in drafters}
    for question in questions:
        params = replace(question.params, temperature=TEMPERATURE, seed=1)
        turn: Any = question.turns[0]
        prompt = target.encode(turn, chat=target.tokenizer.chats)
        answer = np.array(target.generate(prompt, params)[0].token_ids, np.int32)
        sampling = SeededParams(replace(params, max_tokens=len(answer) + 2), 1)
        for name, drafter in drafters.items():
            drafts = EdgeDrafts(drafter, prompt, sampling)
            walk(drafts, prompt, answer, seen[name], rules, target.tokenizer.decode)
            drafts.finish()
            if drafts.error is not None:
                raise drafts.error
    return {
        "edge_model": Path(edge_model).name,
        "same_model": edge_model == options.model,
        "temperature": TEMPERATURE,
        "passes": PASSES,
        "prompts": len(questions),
        "areas": {name: each.areas() for name, each in seen.items()},
    }


def walk(
    drafts: EdgeDrafts,
    prompt: Int32s,
    answer: Int32s,
    seen: Seen,
    rules: Mapping[str, Rules],
    decode: Callable[..., str],
) -> None:
    text = [*prompt.tolist(), *answer.tolist()]
    for at, token in enumerate(answer.tolist(), len(prompt)):
        found = drafts.propose(1)
        if len(found.draft):
            drafted, scores = int(found.draft.tokens[0]), found.draft.scores
            assert scores is not None
            seen.signals.append(found.signals or Signals(nll=nll_of_scores(np.minimum(scores, 1))))
            seen.rejected.append(drafted != token)
            read, offsets = read_tokens(decode, text[max(0, at - CONTEXT) : at], [drafted])
            for name, rule in rules.items():
                marks = seen.marks.setdefault(name, [])
                marks.append(bool(rule.mask(read, offsets, [drafted])[0]))
        drafts.observe(np.array([token], np.int32))


PARTS = {"ways": ways, "gating": gating}


def show(figures: dict[str, Any]) -> None:
    parts = figures["parts"]
    for row in parts.get("ways", {}).get("rows", []):
        print(f"{row['way']} at {row['rtt_emulated_ms']:g} ms: {cells(row)}")
    for drafter, areas in parts.get("gating", {}).get("areas", {}).items():
        for signal, found in areas.items():
            area = "none" if found["area"] is None else f"{found['area']:.3f}"
            counts = f"{found['rejected']} rejected, {found['accepted']} accepted"
            print(f"AUC of {drafter} {signal}: {area} ({counts})")
    harness.print_bars({"unit": "", **bar} for bar in parts.get("ways", {}).get("bars", []))
    for time, ratio in parts.get("ways", {}).get("drafting_ahead_alone", {}).items():
        print(f"  ahead-block by blocking, the same wait, at {time} ms: {ratio:.3f}")


def main() -> None:
    parser = harness.parser(__doc__, parts=tuple(PARTS), quick=True)
    parser.add_argument("--model", default=weights.DEFAULT_MODEL)
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
    options = harness.parse(parser)
    if options.quick:
        options.rtts, options.each, options.tokens = rtts("0,20"), 2, 32
    try:
        questions = questions_of(options)
        parts = {name: PARTS[name](options, questions) for name in options.chosen}
    except (ForesayError, OSError) as error:
        sys.exit(f"{parser.prog}: {error}")
    figures = {
        "prompts": [Path(question.where).name for question in questions],
        "max_tokens": options.tokens,
        "parts": parts,
    }
    bars = parts.get("ways", {}).get("bars", [])
    usual = options.quick or (options.rtts == rtts(RTTS) and not (options.jitter or options.loss))
    name = "edge" if usual else "edge-some"
    harness.finish(name, figures, options, show, harness.not_met(bars))


if __name__ == "__main__":
    main()
