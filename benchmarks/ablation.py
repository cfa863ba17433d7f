"""What each part is worth: tokens per step with one part off, by budget, and over SAM's settings.

    python benchmarks/ablation.py TRACE.jsonl.gz [--corpus TRACE.jsonl.gz] [--nodes 16]

Three tables, all deterministic counts: components (own text, group, history, corpus, branches, the
blend itself), budgets from 1 to 32, and the grid of l_threshold and l_bias of SAM-Decoding's rule
with the corpus. Everything runs through the public API.
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path
from typing import Any

import record
from foresay import corpus
from foresay.bench.replay import replay
from foresay.drafters import CorpusDrafter, SuffixDrafter
from foresay.drafters.suffix import SamRule
from foresay.traces import read_traces

BUDGETS = (1, 2, 3, 4, 6, 8, 16, 32)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("trace")
    parser.add_argument("--corpus", help="trace file to build a corpus from")
    parser.add_argument("--nodes", type=int, default=16)
    record.add_option(parser)
    options = parser.parse_args()
    traces = read_traces(options.trace)
    name = Path(options.trace).name.split(".jsonl")[0]

    def count(drafter: Any, nodes: int = options.nodes, **how: Any) -> float:
        return round(replay(traces, drafter, budget=nodes, **how).tokens_per_step, 4)

    def show(table: dict[str, Any], title: str) -> dict[str, Any]:
        print(title)
        for row, value in table.items():
            print(f"  {row:34} {value:.3f}", flush=True)
        return table

    with tempfile.TemporaryDirectory() as folder:
        path = None
        if options.corpus:
            path = Path(folder) / "corpus.foresay"
            corpus.build([options.corpus], path)
        everything = {"share": "all"}
        components = {
            "everything": count(SuffixDrafter(corpus=path), **everything),
            "without own text": count(SuffixDrafter(own=False, corpus=path), **everything),
            "without the group": count(SuffixDrafter(corpus=path)),
            "without history": count(SuffixDrafter(history=False, corpus=path), share="group"),
            "without branches": count(SuffixDrafter(chain=True, corpus=path), **everything),
            "own text alone": count(SuffixDrafter(history=False)),
            "longest match alone (SAM's rule)": count(
                SuffixDrafter(history=False, rule=SamRule(l_threshold=1))
            ),
        }
        if path is not None:
            components["without the corpus"] = count(SuffixDrafter(), **everything)
            components["the corpus alone"] = count(CorpusDrafter(path))
        figures = {
            "trace": name,
            "nodes": options.nodes,
            "components": show(components, "components"),
            "budgets": show(
                {
                    str(n): count(SuffixDrafter(), n, **everything)
                    for n in (1, 2, 3, 4, 6, 8, 16, 32)
                },
                "nodes, own text and everything finished",
            ),
        }
        if path is not None:
            figures["sam"] = show(
                {
                    f"l_threshold {t}, l_bias {b}": count(
                        SuffixDrafter(
                            history=False, corpus=path, rule=SamRule(l_threshold=t, l_bias=b)
                        )
                    )
                    for t in (1, 2, 3, 5, 8)
                    for b in (0, 2, 5, 8)
                },
                "SAM-Decoding's rule with the corpus",
            )
    print(f"recorded in {record.write(f'ablation-{name}', figures, options.record).name}")


if __name__ == "__main__":
    main()
