"""The drafting core against its peers: one step of many requests, memory, extends.

    python benchmarks/core.py TRACE.jsonl.gz … [--only steps,memory,extends] [--bars]

The text is real: the records of the given traces (of one tokenizer), in a fixed random order so
that the samples of one problem do not lie side by side. Each request starts at its own place.

One step appends 2 true next tokens to each of 256 requests and drafts 8 nodes for each: a tree
through our public Drafter API, a chain of 8 through ArcticInference's API (limits off, trees of
depth 24 as in vLLM and of 64, its own default). Ours is the default drafter, on one thread and on
two, and versus it one that keeps no history and learns less of tokens. The drafters take turns, a
few steps each, so that a noisy machine disturbs them alike, and the ratio is taken turn by turn.
Every step is timed by two clocks, from the arguments in the caller's hands to the result: wall
time, and processor time of all threads, in which what other work takes from the machine is not.
ArcticInference runs on one thread, since it holds the interpreter's lock.

`--bars` ends with status 1 if ArcticInference at depth 24 takes less than 5.5 times as long as the
default drafter: in wall time on two threads, or in processor time on one.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import harness
import workers
from foresay import VerdictBatch, _core
from foresay.drafters import SuffixDrafter
from foresay.traces import read_traces

Tokens = NDArray[np.int32]
OURS = "foresay"
CLOCKS = ("wall", "processor")
BAR = 5.5  # times the default drafter's step, at depth 24
JUDGED = (("wall", f"{OURS}, 2 threads"), ("processor", f"{OURS}, 1 thread"))
Times = NDArray[np.float64]  # seconds by each of CLOCKS


def clock() -> Times:
    return np.array((time.perf_counter(), time.process_time()))


def real_text(traces: Sequence[str]) -> Tokens:
    """The records of all traces, shuffled, as one array."""
    records = [np.concatenate([r.prompt, r.output]) for path in traces for r in read_traces(path)]
    random.Random(0).shuffle(records)
    return np.concatenate(records)


def slices(text: Tokens, count: int, length: int) -> Tokens:
    """`count` stretches of the text; they overlap or wrap only if the text is too short."""
    starts = np.arange(count, dtype=np.int64) * len(text) // count
    return np.stack([np.take(text, range(s, s + length), mode="wrap") for s in starts])


class Ours:
    def __init__(
        self, texts: Tokens, known: int, append: int, nodes: int, threads: int, history: bool = True
    ) -> None:
        self.drafter = SuffixDrafter(history=history, threads=threads)
        self.states = [self.drafter.begin(np.ascontiguousarray(row[:known])) for row in texts]
        self.texts, self.known, self.append = texts, known, append
        self.budgets = np.full(len(texts), nodes, np.int32)
        self.offsets = np.arange(0, append * len(texts) + 1, append, dtype=np.int32)
        self.paths = np.zeros(len(texts) + 1, np.int32)

    def step(self) -> Times:
        start, self.known = self.known, self.known + self.append
        tokens = np.ascontiguousarray(self.texts[:, start : self.known]).reshape(-1)
        verdicts = VerdictBatch(tokens, self.offsets, np.empty(0, np.int32), self.paths)
        begun = clock()
        self.drafter.observe(self.states, verdicts)
        self.drafter.propose(self.states, self.budgets)
        return clock() - begun


class Arctic:
    def __init__(self, texts: Tokens, known: int, append: int, nodes: int, depth: int) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.cache = SuffixDecodingCache(depth, 0)
        for request, row in enumerate(texts):
            self.cache.start_request(request, np.ascontiguousarray(row[:known]))
        self.texts, self.known, self.append = texts, known, append
        self.depth, self.nodes = depth, nodes

    def step(self) -> Times:
        start, self.known = self.known, self.known + self.append
        new = [row[start : self.known].tolist() for row in self.texts]
        recent = [row[self.known - self.depth : self.known].copy() for row in self.texts]
        observe, draft = self.cache.add_active_response, self.cache.speculate
        begun = clock()
        for request, (tokens, context) in enumerate(zip(new, recent, strict=True)):
            observe(request, tokens)
            draft(request, context, self.nodes, max_spec_factor=1e6, min_token_prob=0.0)
        return clock() - begun


class Ngram:
    def __init__(self, texts: Tokens, known: int, append: int, nodes: int) -> None:
        from peers import NgramPeer

        self.texts, self.lengths = texts, np.full(len(texts), known)
        self.append, self.nodes = append, nodes
        self.peer = NgramPeer(2, 5)
        self.peer.propose_batch(texts[:, :64], np.full(len(texts), 64), 1)  # compiles

    def step(self) -> Times:
        self.lengths += self.append
        begun = clock()
        self.peer.propose_batch(self.texts, self.lengths, self.nodes)
        return clock() - begun


def turns_of(
    cores: Mapping[str, Any], turns: int, steps: int, warm_up: int = 2
) -> dict[str, dict[str, Times]]:
    """Milliseconds per step of each core by each clock, turn by turn."""
    times: dict[str, list[Times]] = {name: [] for name in cores}
    for turn in range(turns + warm_up):
        for name, core in cores.items():
            median = np.median([core.step() for _ in range(steps)], axis=0) * 1e3
            if turn >= warm_up:
                times[name].append(median)
    return {name: dict(zip(CLOCKS, np.array(ms).T, strict=True)) for name, ms in times.items()}


def summary(times: Mapping[str, Mapping[str, Times]]) -> dict[str, Any]:
    """Medians over the turns: milliseconds, and how many times as long as each of ours the others
    take, by each clock."""
    ours = [name for name in times if name.startswith(OURS)]
    found: dict[str, Any] = {}
    for name, measured in times.items():
        found[name] = {
            f"{clock}_ms": round(float(np.median(ms)), 4) for clock, ms in measured.items()
        }
        for our in ours if name not in ours else ():
            found[name][f"times {our}"] = {
                clock: round(float(np.median(ms / times[our][clock])), 2)
                for clock, ms in measured.items()
            }
    return found


def below_bar(steps: Mapping[str, Any]) -> list[str]:
    """A sentence for every ratio below the bar, and for every one that was not measured."""
    found = []
    for size, rows in steps.items():
        for clock, our in JUDGED:
            ratio = rows.get("arctic, depth 24", {}).get(f"times {our}", {}).get(clock)
            if ratio is None:
                found.append(f"{size}: {our} was not measured versus ArcticInference at depth 24")
            elif not ratio >= BAR:
                found.append(
                    f"{size}: ArcticInference at depth 24 takes {ratio} times the {clock} time of "
                    f"{our}; the bar is {BAR}"
                )
    return found or ([] if steps else ["no step was measured"])


def memory(text: Tokens, depth: int | None = None) -> dict[str, Any]:
    """Bytes per token of one text, as counted and as the system counts: of our automaton, or of
    ArcticInference's tree of a depth."""
    from peers import ArcticPeer

    peer = None if depth is None else ArcticPeer(depth=depth)
    before, found = workers.resident()[0], {"tokens": len(text)}
    if peer is not None:
        counted = peer.memory(peer.begin(text))
    else:
        automaton = _core.Automaton()
        automaton.extend(automaton.begin(), text)
        counted = automaton.bytes
        found["inner_states_per_token"] = round(automaton.num_inner_states / len(text), 3)
    grown = workers.resident()[0] - before
    return found | {
        "bytes_per_token": round(counted / len(text), 1),
        "resident_bytes_per_token": round(grown / len(text), 1),
    }


def extends(text: Tokens, occurrences: bool) -> dict[str, Any]:
    """Nanoseconds per token in runs of growing length, and the tail of single extends."""
    out: dict[str, Any] = {}
    for size in (4096, 32768, 100_000, 1_000_000):
        if size > len(text):
            break
        runs = []
        for _ in range(max(3, 400_000 // size)):
            automaton = _core.Automaton(occurrences)
            sequence, begun = automaton.begin(), time.perf_counter()
            automaton.extend(sequence, text[:size])
            runs.append((time.perf_counter() - begun) / size * 1e9)
        out[f"ns_per_token_at_{size}"] = round(float(np.median(runs)), 1)
    single = _core.time_extends(text[:1_000_000], occurrences)
    shares = (50, 99, 99.9, 100)
    out["single_us"] = {f"p{q}": round(float(np.percentile(single, q)), 2) for q in shares}
    return out


def alone(measure: Callable[[], Any]) -> Any:
    """Runs a measurement in a child process, so that it inherits no used heap."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    child = context.Process(target=lambda: sender.send(measure()))
    child.start()
    result = receiver.recv()
    child.join()
    return result


def main() -> None:
    parser = harness.parser(__doc__, parts=("memory", "extends", "steps"))
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--contexts", type=int, nargs="*", default=[4096, 32768])
    parser.add_argument("--append", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="in each turn")
    parser.add_argument("--depths", type=int, nargs="*", default=[24, 64])
    parser.add_argument("--no-peers", action="store_true", help="ours alone")
    parser.add_argument("--bars", action="store_true", help="status 1 if a ratio is below the bar")
    options = harness.parse(parser)
    text = real_text(options.traces)
    depths = () if options.no_peers else options.depths
    figures: dict[str, Any] = {"traces": [Path(path).name for path in options.traces], "steps": {}}
    if "memory" in options.chosen:
        figures["memory"] = {OURS: alone(lambda: memory(text[:1_000_000]))} | {
            f"arctic, depth {depth}": alone(lambda d=depth: memory(text[:1_000_000], d))
            for depth in depths
        }
    if "extends" in options.chosen:
        figures["extend"] = alone(lambda: extends(text, False))
        figures["extend_counting_occurrences"] = alone(lambda: extends(text, True))
    for known in options.contexts if "steps" in options.chosen else ():
        length = known + (options.turns + 2) * options.steps * options.append
        texts = slices(text, options.requests, length)

        def measure(texts: Tokens = texts, known: int = known) -> dict[str, Any]:
            shape = (texts, known, options.append, options.nodes)
            cores: dict[str, Any] = {
                f"{OURS}, 1 thread": Ours(*shape, 1),
                f"{OURS}, 2 threads": Ours(*shape, 2),
                f"{OURS}, 1 thread, no history": Ours(*shape, 1, history=False),
            }
            if not options.no_peers:
                cores["vLLM's n-gram rule [2,5]"] = Ngram(*shape)
            cores |= {f"arctic, depth {depth}": Arctic(*shape, depth) for depth in depths}
            return summary(turns_of(cores, options.turns, options.steps))

        figures["steps"][f"{options.requests} x {known}"] = alone(measure)
    figures["below_bar"] = below_bar(figures["steps"])

    def show(figures: dict[str, Any]) -> None:
        print(json.dumps(figures, indent=2))
        print(*figures["below_bar"], sep="\n")

    failed = "; ".join(figures["below_bar"]) if options.bars else ""
    harness.finish("core", figures, options, show, failed)


if __name__ == "__main__":
    main()
