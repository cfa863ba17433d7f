"""Tokens per step of our drafter and its peers on recorded outputs, in one run.

    python benchmarks/replay.py --specbench F --humaneval F [--corpus F] [--more F …] [--no-peers]

Every row is a deterministic count: the same command prints the same tokens per step. The times are
this machine's and noisy. Peers are replayed by the same loop as our drafters, with the same budget
and, where they can, as trees; "all" keeps finished answers in ArcticInference's global tree.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import peers
import record
from foresay import Draft, DraftBatch, Verdict, Wants, corpus
from foresay.bench.replay import replay, replay_epochs
from foresay.drafters import SuffixDrafter
from foresay.drafters.suffix import SamRule
from foresay.traces import read_traces

# What the row must reach, where the project has set itself a bar.
BARS = {
    ("specbench", "own", 16): 1.97,
    ("specbench", "all", 16): 2.23,
    ("specbench", "all + corpus", 16): 2.44,
    ("specbench", "all", 8): 2.07,
    ("humaneval", "all", 16): 2.49,
    ("humaneval", "all, 64 in lockstep, staggered", 16): 2.72,
    ("humaneval", "all", 8): 2.26,
}


class PeerDrafter:
    """A peer behind our Drafter protocol, for the replay loop."""

    wants = Wants()

    def __init__(self, peer: peers.Peer, tree: bool) -> None:
        self.peer, self.tree = peer, tree

    def begin(self, prompt: Any, /, **about: Any) -> Any:
        return {"id": self.peer.begin(prompt), "text": prompt.tolist()}

    def propose(self, states: Sequence[Any], budgets: Sequence[int], /) -> DraftBatch:
        drafts = []
        for state, budget in zip(states, budgets, strict=True):
            text = np.array(state["text"], np.int32)
            tokens, parents = self.peer.propose(state["id"], text, budget, self.tree)
            drafts.append(Draft(list(tokens), list(parents)))
        return DraftBatch.of(drafts)

    def observe(self, states: Sequence[Any], verdicts: Sequence[Verdict], /) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            self.peer.observe(state["id"], verdict.tokens.tolist())
            state["text"] += verdict.tokens.tolist()

    def finish(self, state: Any, /) -> None:
        self.peer.finish(state["id"])


def ours(
    options: argparse.Namespace, corpora: dict[str, Path]
) -> list[tuple[str, str, int, Callable[[], Any], dict[str, Any]]]:
    """(trace, row, nodes, drafter, replay options) of every row of ours."""
    rows: list[tuple[str, str, int, Callable[[], Any], dict[str, Any]]] = []
    for trace in options.traces:
        for nodes in (16, 8):
            rows += [
                (trace, "own", nodes, lambda: SuffixDrafter(history=False), {}),
                (trace, "all", nodes, SuffixDrafter, {"share": "all"}),
            ]
        stagger = {"share": "all", "lockstep": 64, "order": "stagger"}
        lockstep = {"lockstep": 8}
        alone = lambda: SuffixDrafter(history=False)  # noqa: E731
        rows += [
            (trace, "all, 64 in lockstep, staggered", 16, SuffixDrafter, stagger),
            (trace, "own, 8 in lockstep", 16, alone, lockstep),
            (trace, "group, 8 in lockstep", 16, alone, lockstep | {"share": "group"}),
        ]
        if trace in corpora:
            path = corpora[trace]
            both = {"share": "all"}
            rows.append((trace, "all + corpus", 16, lambda p=path: SuffixDrafter(corpus=p), both))
        sam = SamRule(l_threshold=1, l_bias=0)
        rows.append(
            (
                trace,
                "SAM-Decoding's rule",
                16,
                lambda r=sam: SuffixDrafter(history=False, rule=r),
                {},
            )
        )
    return rows


def theirs(options: argparse.Namespace) -> list[tuple[str, str, int, Callable[[], Any]]]:
    rows: list[tuple[str, str, int, Callable[[], Any]]] = []
    for trace in ("specbench", "humaneval"):
        for nodes in (16, 8):
            for name in ("arctic-own", "arctic-all"):
                rows.append(
                    (trace, name, nodes, lambda n=name: PeerDrafter(peers.PEERS[n](), True))
                )
        for name in ("arctic-own-vllm", "arctic-all-vllm", "vllm-ngram-1-3", "sam-first"):
            rows.append((trace, name, 16, lambda n=name: PeerDrafter(peers.PEERS[n](), False)))
        rows.append(
            (trace, "prompt-lookup-3", 10, lambda: PeerDrafter(peers.PromptLookupPeer(), False))
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--specbench", required=True)
    parser.add_argument("--humaneval", required=True)
    parser.add_argument("--corpus", help="trace file that the corpus of the first is built from")
    parser.add_argument("--more", nargs="*", default=[], help="more traces, ours only")
    parser.add_argument("--no-peers", action="store_true")
    record.add_option(parser)
    options = parser.parse_args()
    files = {"specbench": options.specbench, "humaneval": options.humaneval}
    files |= {Path(path).name.split(".jsonl")[0]: path for path in options.more}
    options.traces = list(files)
    traces = {name: read_traces(path) for name, path in files.items()}
    figures: list[dict[str, Any]] = []

    def show(who: str, trace: str, row: str, nodes: int, result: Any) -> None:
        value = result.tokens_per_step
        figure = {
            "drafter": who,
            "trace": trace,
            "row": row,
            "nodes": nodes,
            "tokens_per_step": round(value, 4),
            "drafted_per_step": round(result.drafted_per_step, 2),
            "us_per_step": round(
                1e6 * (result.propose_seconds + result.observe_seconds) / result.steps, 2
            ),
        }
        bar = BARS.get((trace, row, nodes)) if who == "foresay" else None
        if bar is not None:
            figure["bar"] = bar
        figures.append(figure)
        mark = "" if bar is None else f"  bar {bar}: {'met' if value >= bar else 'MISSED'}"
        print(f"{who:8} {trace:34.34} {row:32} {nodes:3} nodes  {value:.3f}{mark}", flush=True)

    with tempfile.TemporaryDirectory() as folder:
        corpora = {}
        if options.corpus:
            corpora["specbench"] = Path(folder) / "corpus.foresay"
            corpus.build([options.corpus], corpora["specbench"])
        for trace, row, nodes, make, how in ours(options, corpora):
            show("foresay", trace, row, nodes, replay(traces[trace], make(), budget=nodes, **how))
    alone, group = (
        next(f["tokens_per_step"] for f in figures if f["trace"] == "humaneval" and f["row"] == row)
        for row in ("own, 8 in lockstep", "group, 8 in lockstep")
    )
    print(f"humaneval, 8 in lockstep: a group reaches {group / alone:.3f} times own text; bar 1.19")
    epochs = {}
    for trace in (name for name in traces if name != "specbench"):  # which has one answer to each
        first, second = replay_epochs(
            traces[trace], SuffixDrafter(), 2, budget=16, lockstep=64, order="stagger"
        )
        for name, result in (("first", first), ("second", second)):
            show("foresay", trace, f"{name} of 2 epochs", 16, result)
        epochs[trace] = round(second.tokens_per_step / first.tokens_per_step, 4)
        print(f"{trace}: the second epoch reaches {epochs[trace]:.3f} times the first; bar 1.05")
    if not options.no_peers:
        for trace, row, nodes, make in theirs(options):
            show("peer", trace, row, nodes, replay(traces[trace], make(), budget=nodes))
    path = record.write(
        "replay",
        {
            "group_over_own": round(group / alone, 4),
            "bar_group_over_own": 1.19,
            "second_over_first_epoch": epochs,
            "bar_second_over_first_epoch": 1.05,
            "rows": figures,
        },
        options.record,
    )
    print(f"recorded in {path.name}")


if __name__ == "__main__":
    main()
