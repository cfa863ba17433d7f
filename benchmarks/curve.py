"""Tokens per step by position, to 32k tokens: recorded answers of one trace as one long session.

    python benchmarks/curve.py TRACE.jsonl.gz [--tokens 32768] [--budget 16]

No recorded answer is that long. So questions and answers follow each other in the order of the
file, as in one conversation of one user, and only the answers' tokens are drafted and counted. Rows
of 1,000 tokens; counts are deterministic.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np

import record
from foresay.bench import curve
from foresay.bench.replay import ReplayResult, replay
from foresay.drafters import SuffixDrafter
from foresay.traces import Trace, read_traces


def session(traces: list[Trace], tokens: int) -> list[Trace]:
    """The answers, each after all questions and answers before it, up to so many tokens."""
    turns: list[Trace] = []
    before = np.array([], np.int32)
    for trace in traces:
        prompt = np.concatenate([before, trace.prompt])
        before = np.concatenate([prompt, trace.output])
        if len(before) > tokens:
            break
        turns.append(Trace(trace.id, trace.group, prompt, trace.output))
    return turns


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--tokens", type=int, default=32_768)
    parser.add_argument("--budget", type=int, default=16)
    record.add_option(parser)
    options = parser.parse_args()
    turns = session(list(read_traces(options.trace)), options.tokens)
    result: ReplayResult = replay(turns, SuffixDrafter(history=False), budget=options.budget)
    rows = curve.rows(result)
    for begin, end, steps, tokens, rate in rows:
        print(f"{begin:6}-{end:<6} {steps:6} steps {tokens:6} tokens  {rate:.3f}")
    name = Path(options.trace).name.split(".jsonl")[0]
    figures = {"trace": name, "turns": len(turns), "budget": options.budget, "rows": rows}
    print(f"recorded in {record.write(f'curve-{name}', figures, options.record).name}")


if __name__ == "__main__":
    main()
