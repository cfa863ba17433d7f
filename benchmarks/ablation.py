"""What each part of the suffix drafter is worth, by position, and what a token takes.

    python benchmarks/ablation.py TRACE.jsonl.gz [--corpus TRACE.jsonl.gz] [--only parts,…]

    parts    tokens per step with one part off (own text, group, history, corpus, branches, the
             blend itself), for budgets of 1 to 32, for chains of 1 to 16 tokens, and over
             SAM-Decoding's settings: the factor of its draft length, `to_anc`, and the grid of
             l_threshold and l_bias with the corpus
    curve    tokens per step by position, to 32k tokens: questions and answers follow each other in
             the order of the file, as in one conversation; only answers are drafted and counted
    latency  what one token takes the automaton by the length of the text, to a million tokens: the
             trace end to end, again and again. After each token it is asked for its longest match.
             Timed are batches of 64 in the thread's CPU time; operations are counted one by one

Counts are deterministic.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import harness
from foresay._core import Automaton
from foresay.bench import curve
from foresay.bench.replay import replay
from foresay.drafters import CorpusDrafter, SuffixDrafter
from foresay.drafters.suffix import SamRule
from foresay.traces import Trace, read_texts, read_traces
from replay import built_corpus, name_of

BUDGETS = (1, 2, 3, 4, 6, 8, 16, 32)
LENGTH_FACTORS = (0, 0.5, 1, 2, 4, 8)  # tokens of draft for a token of match; 0: all 60
BATCH = 64  # tokens that are timed together
WINDOW = 100_000  # tokens of text in a row of `latency`


def parts(options: argparse.Namespace) -> dict[str, Any]:
    traces, everything = read_traces(options.trace), {"share": "all"}

    def count(drafter: Any, nodes: int = options.nodes, **how: Any) -> float:
        return round(replay(traces, drafter, budget=nodes, **how).tokens_per_step, 4)

    def sam(nodes: int = options.nodes, path: Any = None, **rule: Any) -> float:
        return count(SuffixDrafter(history=False, corpus=path, rule=SamRule(**rule)), nodes)

    with built_corpus(options.corpus) as path:
        components = {
            "everything": count(SuffixDrafter(corpus=path), **everything),
            "without own text": count(SuffixDrafter(own=False, corpus=path), **everything),
            "without the group": count(SuffixDrafter(corpus=path)),
            "without history": count(SuffixDrafter(history=False, corpus=path), share="group"),
            "without branches": count(SuffixDrafter(chain=True, corpus=path), **everything),
            "own text alone": count(SuffixDrafter(history=False)),
            "longest match alone (SAM's rule)": sam(l_threshold=1),
        }
        if path is not None:
            components["without the corpus"] = count(SuffixDrafter(), **everything)
            components["the corpus alone"] = count(CorpusDrafter(path))
        found = {
            "components": components,
            "budgets": {str(n): count(SuffixDrafter(), n, **everything) for n in BUDGETS},
            "chains": {
                str(k): count(SuffixDrafter(chain=True, history=False), k) for k in range(1, 17)
            },
            "lengths": {
                f"{f'1 + {factor} x match' if factor else '60'}, to_anc {anc}": sam(
                    60, l_threshold=1, length_factor=factor, to_anc=anc
                )
                for factor in LENGTH_FACTORS
                for anc in (False, True)
            },
        }
        if path is not None:
            found["sam"] = {
                f"l_threshold {t}, l_bias {b}": sam(path=path, l_threshold=t, l_bias=b)
                for t in (1, 2, 3, 5, 8)
                for b in (0, 2, 5, 8)
            }
    return found


def conversation(options: argparse.Namespace) -> dict[str, Any]:
    turns: list[Trace] = []
    before = np.array([], np.int32)
    for trace in read_traces(options.trace):
        prompt = np.concatenate([before, trace.prompt])
        before = np.concatenate([prompt, trace.output])
        if len(before) > options.session:
            break
        turns.append(Trace(trace.id, trace.group, prompt, trace.output))
    result = replay(turns, SuffixDrafter(history=False), budget=options.nodes)
    return {"turns": len(turns), "rows": curve.rows(result)}


def latency(options: argparse.Namespace) -> dict[str, Any]:
    once = np.concatenate([np.asarray(text, np.int32) for text in read_texts(options.trace)])
    text = np.tile(once, -(-options.tokens // len(once)))[: options.tokens]
    automaton = Automaton()
    sequence, rows = automaton.begin(), []
    for begin in range(0, len(text) - BATCH + 1, WINDOW):
        seconds, steps = list[float](), list[float]()
        for at in range(begin, min(begin + WINDOW, len(text)) - BATCH + 1, BATCH):
            before, start = automaton.link_steps, time.thread_time()
            automaton.extend(sequence, text[at : at + BATCH])
            automaton.match_length(sequence)
            seconds.append((time.thread_time() - start) / BATCH)
            steps.append((automaton.link_steps - before) / BATCH)
        row = {"tokens": begin + WINDOW}
        for name, percent in (("p50", 50), ("p99", 99), ("max", 100)):
            row[f"{name}_ns"] = round(1e9 * float(np.percentile(seconds, percent)), 1)
        row["steps_p50"], row["steps_max"] = round(float(np.median(steps)), 3), round(max(steps), 3)
        rows.append(row)
    return {"distinct": len(once), "rows": rows}


PARTS = {"parts": parts, "curve": conversation, "latency": latency}


def show(figures: dict[str, Any]) -> None:
    for title, table in figures.get("parts", {}).items():
        print(title)
        for name, value in table.items():
            print(f"  {name:34} {value:.3f}")
    for begin, end, steps, tokens, rate in figures.get("curve", {}).get("rows", ()):
        print(f"{begin:6}-{end:<6} {steps:6} steps {tokens:6} tokens  {rate:.3f}")
    for row in figures.get("latency", {}).get("rows", ()):
        print(", ".join(f"{name} {value}" for name, value in row.items()))


def main() -> None:
    parser = harness.parser(__doc__, parts=tuple(PARTS))
    parser.add_argument("trace")
    parser.add_argument("--corpus", help="trace file to build a corpus from")
    parser.add_argument("--nodes", type=int, default=16, help="of every draft")
    parser.add_argument("--session", type=int, default=32_768, help="tokens of `curve`")
    parser.add_argument("--tokens", type=int, default=1_000_000, help="of `latency`")
    options = harness.parse(parser)
    name = name_of(options.trace)
    figures: dict[str, Any] = {"trace": name, "nodes": options.nodes}
    figures |= {part: PARTS[part](options) for part in options.chosen}
    harness.finish(f"ablation-{name}", figures, options, show)


if __name__ == "__main__":
    main()
