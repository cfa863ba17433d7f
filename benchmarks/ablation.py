"""What each part is worth: tokens per step with one part off, by budget, and over SAM's settings.

    python benchmarks/ablation.py TRACE.jsonl.gz [--corpus TRACE.jsonl.gz] [--nodes 16]

Tables of deterministic counts: components (own text, group, history, corpus, branches, the blend
itself), budgets from 1 to 32, chains of 1 to 16 tokens, SAM-Decoding's rule by the factor of its
draft length (`length_factor`) and with and without following suffix links until enough tokens
remain (`to_anc`), and the grid of its l_threshold and l_bias with the corpus. Everything runs
through the public API.
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
LENGTH_FACTORS = (0, 0.5, 1, 2, 4, 8)  # tokens of draft for a token of match; 0: all 60


def _length(factor: float) -> str:
    return f"1 + {factor} x match" if factor else "60"


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
                {str(n): count(SuffixDrafter(), n, **everything) for n in BUDGETS},
                "nodes, own text and everything finished",
            ),
            "chains": show(
                {str(k): count(SuffixDrafter(chain=True, history=False), k) for k in range(1, 17)},
                "chains of own text by length",
            ),
            "lengths": show(
                {
                    f"{_length(factor)}, to_anc {anc}": count(
                        SuffixDrafter(
                            history=False,
                            rule=SamRule(l_threshold=1, length_factor=factor, to_anc=anc),
                        ),
                        60,
                    )
                    for factor in LENGTH_FACTORS
                    for anc in (False, True)
                },
                "SAM-Decoding's rule, own text, at most 60 tokens",
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
