"""Tokens per step of our drafter and its peers on recorded outputs, in one run.

    python benchmarks/replay.py --specbench F --humaneval F [--corpus F] [--more F …] [--no-peers]

Every row is a deterministic count: the same command prints the same tokens per step. The times are
this machine's and noisy. Peers are replayed by the same loop as our drafters, with the same budget
and, where they can, as trees; "all" keeps finished answers in ArcticInference's global tree.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import harness
import peers
from foresay import Draft, DraftBatch, Verdict, Wants, corpus
from foresay.bench.replay import replay, replay_epochs
from foresay.drafters import SuffixDrafter
from foresay.drafters.suffix import SamRule
from foresay.traces import read_traces

Row = tuple[str, int, Callable[[], Any], dict[str, Any]]  # name, nodes, drafter, replay's options

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
GROUP, EPOCHS = 1.19, 1.05
STAGGERED = {"lockstep": 64, "order": "stagger"}


def name_of(trace: str) -> str:
    return Path(trace).name.split(".jsonl")[0]


@contextmanager
def built_corpus(trace: str | None) -> Iterator[Path | None]:
    """A corpus file of a trace while the body runs; None without a trace."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "corpus.foresay"
        if trace:
            corpus.build([trace], path)
        yield path if trace else None


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


def ours(path: Path | None) -> Iterator[Row]:
    """Our rows on a trace, one of them with the corpus at `path`."""
    alone = partial(SuffixDrafter, history=False)
    for nodes in (16, 8):
        yield "own", nodes, alone, {}
        yield "all", nodes, SuffixDrafter, {"share": "all"}
    yield "all, 64 in lockstep, staggered", 16, SuffixDrafter, STAGGERED | {"share": "all"}
    yield "own, 8 in lockstep", 16, alone, {"lockstep": 8}
    yield "group, 8 in lockstep", 16, alone, {"lockstep": 8, "share": "group"}
    if path is not None:
        yield "all + corpus", 16, partial(SuffixDrafter, corpus=path), {"share": "all"}
    yield "SAM-Decoding's rule", 16, partial(alone, rule=SamRule(l_threshold=1, l_bias=0)), {}


def theirs() -> Iterator[Row]:
    def row(name: str, nodes: int, tree: bool) -> Row:
        return name, nodes, lambda: PeerDrafter(peers.PEERS[name](), tree), {}

    for nodes in (16, 8):
        yield row("arctic-own", nodes, True)
        yield row("arctic-all", nodes, True)
    for name in ("arctic-own-vllm", "arctic-all-vllm", "vllm-ngram-1-3"):
        yield row(name, 16, False)
    yield row("prompt-lookup-3", 10, False)


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--specbench", required=True)
    parser.add_argument("--humaneval", required=True)
    parser.add_argument("--corpus", help="trace file that the corpus of the first is built from")
    parser.add_argument("--more", nargs="*", default=[], help="more traces, ours only")
    parser.add_argument("--no-peers", action="store_true")
    options = harness.parse(parser)
    files = {"specbench": options.specbench, "humaneval": options.humaneval}
    files |= {name_of(path): path for path in options.more}
    traces = {name: read_traces(path) for name, path in files.items()}
    rows: list[dict[str, Any]] = []

    def note(who: str, trace: str, name: str, nodes: int, result: Any) -> float:
        seconds = result.propose_seconds + result.observe_seconds
        row = {
            "drafter": who,
            "trace": trace,
            "row": name,
            "nodes": nodes,
            "tokens_per_step": round(result.tokens_per_step, 4),
            "drafted_per_step": round(result.drafted_per_step, 2),
            "us_per_step": round(1e6 * seconds / result.steps, 2),
        }
        bound = BARS.get((trace, name, nodes)) if who == "foresay" else None
        line = f"{who:8} {trace:34.34} {name:32} {nodes:3} nodes  {row['tokens_per_step']:.3f}"
        if bound is not None:
            row["bar"] = bound
            line += f"  bar {bound}: {'met' if result.tokens_per_step >= bound else 'MISSED'}"
        rows.append(row)
        print(line, flush=True)
        return float(result.tokens_per_step)

    found: dict[tuple[str, str], float] = {}
    with built_corpus(options.corpus) as built:
        for trace in traces:
            for name, nodes, make, how in ours(built if trace == "specbench" else None):
                result = replay(traces[trace], make(), budget=nodes, **how)
                found[trace, name] = note("foresay", trace, name, nodes, result)
    group = found["humaneval", "group, 8 in lockstep"] / found["humaneval", "own, 8 in lockstep"]
    print(f"humaneval, 8 in lockstep: a group reaches {group:.3f} times own text; bar {GROUP}")
    epochs = {}
    for trace in (name for name in traces if name != "specbench"):  # which has one answer to each
        results = replay_epochs(traces[trace], SuffixDrafter(), 2, budget=16, **STAGGERED)
        first, second = (
            note("foresay", trace, f"{name} of 2 epochs", 16, result)
            for name, result in zip(("first", "second"), results, strict=True)
        )
        epochs[trace] = round(second / first, 4)
        print(
            f"{trace}: the second epoch reaches {epochs[trace]:.3f} times the first; bar {EPOCHS}"
        )
    for trace in () if options.no_peers else ("specbench", "humaneval"):
        for name, nodes, make, how in theirs():
            note("peer", trace, name, nodes, replay(traces[trace], make(), budget=nodes, **how))
    figures = {
        "group_over_own": round(group, 4),
        "bar_group_over_own": GROUP,
        "second_over_first_epoch": epochs,
        "bar_second_over_first_epoch": EPOCHS,
        "rows": rows,
    }
    harness.finish("replay", figures, options)


if __name__ == "__main__":
    main()
