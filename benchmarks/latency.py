"""How long one token of a text takes the automaton, by the length of the text: p50, p99, max.

    python benchmarks/latency.py TRACE.jsonl.gz … [--tokens 1000000]

The text is that of the given traces, end to end and again from the start until it is long enough;
the second time round everything has been seen. After every token the text is extended and asked for
the most probable continuations of its longest match, as a drafter does. Timed are batches of 64
tokens in the thread's CPU time, divided by 64; the operations are counted one by one. Amortised
O(1) means that none of the columns but the largest grows with the text.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np

import record
from foresay._core import Automaton
from foresay.traces import read_texts

BATCH = 64  # tokens that are timed together
WINDOW = 100_000  # tokens of text in a row of the table


def rows_of(text: np.ndarray[Any, np.dtype[np.int32]]) -> list[dict[str, float]]:
    """One row for each window of the text."""
    automaton = Automaton()
    sequence = automaton.begin()
    rows = []
    for begin in range(0, len(text), WINDOW):
        seconds, steps = [], []
        for at in range(begin, min(begin + WINDOW, len(text)) - BATCH + 1, BATCH):
            piece = text[at : at + BATCH]
            before = automaton.link_steps
            start = time.thread_time()
            automaton.extend(sequence, piece)
            automaton.match_length(sequence)
            seconds.append((time.thread_time() - start) / BATCH)
            steps.append((automaton.link_steps - before) / BATCH)
        if not seconds:
            break
        p50, p99, most = np.percentile(seconds, [50, 99, 100]) * 1e9
        rows.append(
            {
                "tokens": begin + WINDOW,
                "p50_ns": round(float(p50), 1),
                "p99_ns": round(float(p99), 1),
                "max_ns": round(float(most), 1),
                "steps_p50": round(float(np.median(steps)), 3),
                "steps_max": round(float(np.max(steps)), 3),
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--tokens", type=int, default=1_000_000)
    record.add_option(parser)
    options = parser.parse_args()
    texts = [np.asarray(text, np.int32) for file in options.traces for text in read_texts(file)]
    once = np.concatenate(texts)
    text = np.tile(once, -(-options.tokens // len(once)))[: options.tokens]
    rows = rows_of(text)
    print(f"{'tokens':>9} {'p50':>8} {'p99':>8} {'max':>9}  ns a token   link steps p50, max")
    for row in rows:
        print(
            f"{row['tokens']:9.0f} {row['p50_ns']:8.0f} {row['p99_ns']:8.0f} {row['max_ns']:9.0f}"
            f"{row['steps_p50']:16.2f} {row['steps_max']:12.2f}"
        )
    figures = {
        "traces": options.traces and len(options.traces),
        "distinct": len(once),
        "rows": rows,
    }
    print(f"recorded in {record.write('latency', figures, options.record).name}")


if __name__ == "__main__":
    main()
