"""The drafting core against its peers: one step of many requests, memory, extends.

    python benchmarks/core.py TRACE.jsonl.gz … [--contexts 4096 32768] [--json]

The text is real: the records of the given traces (of one tokenizer), in a fixed random order so
that the samples of one problem do not lie side by side. Each request starts at its own place.

One step appends 2 true next tokens to each of 256 requests and drafts 8 nodes for each: a tree
through our public Drafter API, a chain of 8 through ArcticInference's API (limits off, trees of
depth 24 as in vLLM and of 64, its own default). The drafters take turns, a few steps each, so that
a noisy machine disturbs them alike, and the ratio is taken turn by turn. Times are wall time from
the arguments in the caller's hands to the result. ArcticInference runs on one thread, since it
holds the interpreter's lock; ours is measured on one and with its default, which is up to 4.
A second run counts the calling thread's processor time instead, ours on one thread: what other
work takes from the machine is not in it.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import random
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

import record
from foresay import VerdictBatch, _core
from foresay.drafters import SuffixDrafter
from foresay.traces import read_traces

Tokens = NDArray[np.int32]
OURS = "foresay"
clock = time.perf_counter


class Core(Protocol):
    name: str

    def step(self) -> float: ...


def real_text(traces: Sequence[str]) -> Tokens:
    """The records of all traces, shuffled, as one array."""
    records = [np.concatenate([r.prompt, r.output]) for path in traces for r in read_traces(path)]
    random.Random(0).shuffle(records)
    return np.concatenate(records)


def slices(text: Tokens, count: int, length: int) -> NDArray[np.int32]:
    """`count` stretches of the text; they overlap or wrap only if the text is too short."""
    starts = np.arange(count, dtype=np.int64) * len(text) // count
    return np.stack([np.take(text, range(s, s + length), mode="wrap") for s in starts])


class Ours:
    def __init__(
        self, texts: NDArray[np.int32], known: int, append: int, nodes: int, threads: int | None
    ) -> None:
        self.name = OURS if threads is None else f"{OURS}, {threads} thread"
        self.drafter = SuffixDrafter(history=False, threads=threads)
        self.states = [self.drafter.begin(np.ascontiguousarray(row[:known])) for row in texts]
        self.texts, self.known, self.append = texts, known, append
        self.budgets = np.full(len(texts), nodes, np.int32)
        self.offsets = np.arange(0, append * len(texts) + 1, append, dtype=np.int32)
        self.paths = np.zeros(len(texts) + 1, np.int32)

    def step(self) -> float:
        start, self.known = self.known, self.known + self.append
        tokens = np.ascontiguousarray(self.texts[:, start : self.known]).reshape(-1)
        verdicts = VerdictBatch(tokens, self.offsets, np.empty(0, np.int32), self.paths)
        begun = clock()
        self.drafter.observe(self.states, verdicts)
        self.drafter.propose(self.states, self.budgets)
        return clock() - begun


class Arctic:
    def __init__(
        self, texts: NDArray[np.int32], known: int, append: int, nodes: int, depth: int
    ) -> None:
        from arctic_inference.suffix_decoding import SuffixDecodingCache

        self.name = f"arctic, depth {depth}"
        self.cache = SuffixDecodingCache(depth, 0)
        for request, row in enumerate(texts):
            self.cache.start_request(request, np.ascontiguousarray(row[:known]))
        self.texts, self.known, self.append = texts, known, append
        self.depth, self.nodes = depth, nodes

    def step(self) -> float:
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
    name = "vLLM's n-gram rule [2,5]"

    def __init__(self, texts: NDArray[np.int32], known: int, append: int, nodes: int) -> None:
        from peers import NgramPeer

        self.texts, self.lengths = texts, np.full(len(texts), known)
        self.append, self.nodes = append, nodes
        self.peer = NgramPeer(2, 5)
        self.peer.propose_batch(texts[:, :64], np.full(len(texts), 64), 1)  # compiles

    def step(self) -> float:
        self.lengths += self.append
        begun = clock()
        self.peer.propose_batch(self.texts, self.lengths, self.nodes)
        return clock() - begun


def take_turns(cores: Sequence[Core], turns: int, steps: int) -> dict[str, Any]:
    """Milliseconds per step of each core, and how many times the first one's each takes, turn by
    turn."""
    times: dict[str, list[float]] = {core.name: [] for core in cores}
    for turn in range(turns + 2):  # the first two warm up
        for core in cores:
            median = float(np.median([core.step() for _ in range(steps)]) * 1e3)
            if turn >= 2:
                times[core.name].append(median)
    ours = np.array(times[cores[0].name])
    return {
        name: {
            "ms": round(float(np.median(ms)), 4),
            "times_ours": round(float(np.median(np.array(ms) / ours)), 2),
            "lowest": round(float((np.array(ms) / ours).min()), 2),
        }
        for name, ms in times.items()
    }


def resident() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def memory(text: Tokens) -> dict[str, Any]:
    """Bytes per token of one automaton over the text: as it counts, and as the system does."""
    before = resident()
    automaton = _core.Automaton()
    automaton.extend(automaton.begin(), text)
    grown = resident() - before
    return {
        "tokens": len(text),
        "bytes_per_token": round(automaton.bytes / len(text), 1),
        "resident_bytes_per_token": round(grown / len(text), 1),
        "inner_states_per_token": round(automaton.num_inner_states / len(text), 3),
    }


def arctic_memory(text: Tokens, depth: int) -> dict[str, Any]:
    """The same for ArcticInference's tree, with its own estimate."""
    from peers import ArcticPeer

    peer = ArcticPeer(depth=depth)
    before = resident()
    request = peer.begin(text)
    grown = resident() - before
    return {
        "tokens": len(text),
        "bytes_per_token": round(peer.memory(request) / len(text), 1),
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
            sequence, begun = automaton.begin(), clock()
            automaton.extend(sequence, text[:size])
            runs.append((clock() - begun) / size * 1e9)
        out[f"ns_per_token_at_{size}"] = round(float(np.median(runs)), 1)
    single = _core.time_extends(text[:1_000_000], occurrences)
    out["single_us"] = {
        f"p{q}": round(float(np.percentile(single, q)), 2) for q in (50, 99, 99.9, 100)
    }
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
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--requests", type=int, default=256)
    parser.add_argument("--contexts", type=int, nargs="*", default=[4096, 32768])
    parser.add_argument("--append", type=int, default=2)
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="in each turn")
    parser.add_argument("--depths", type=int, nargs="*", default=[24, 64])
    parser.add_argument("--json", action="store_true")
    record.add_option(parser)
    options = parser.parse_args()
    text = real_text(options.traces)
    figures: dict[str, Any] = {
        "traces": [os.path.basename(path) for path in options.traces],
        "memory": {OURS: alone(lambda: memory(text[:1_000_000]))}
        | {
            f"arctic, depth {depth}": alone(lambda d=depth: arctic_memory(text[:1_000_000], d))
            for depth in options.depths
        },
        "extend": alone(lambda: extends(text, False)),
        "extend_counting_occurrences": alone(lambda: extends(text, True)),
        "steps": {},
        "steps_processor_time": {},
    }
    for known in options.contexts:
        room = known + (options.turns + 2) * options.steps * options.append
        texts = slices(text, options.requests, room)

        def measure(texts: NDArray[np.int32] = texts, known: int = known) -> dict[str, Any]:
            shape = (texts, known, options.append, options.nodes)
            cores: list[Core] = [Ours(*shape, None), Ours(*shape, 1), Ngram(*shape)]
            cores += [Arctic(*shape, depth) for depth in options.depths]
            return take_turns(cores, options.turns, options.steps)

        def measure_processor(
            texts: NDArray[np.int32] = texts, known: int = known
        ) -> dict[str, Any]:
            global clock
            clock = time.thread_time  # of this child process
            shape = (texts, known, options.append, options.nodes)
            cores: list[Core] = [Ours(*shape, 1)]
            cores += [Arctic(*shape, depth) for depth in options.depths]
            return take_turns(cores, options.turns, options.steps)

        size = f"{options.requests} x {known}"
        figures["steps"][size] = alone(measure)
        figures["steps_processor_time"][size] = alone(measure_processor)
    path = record.write("core", figures, options.record)
    print(json.dumps(figures, indent=None if options.json else 2))
    if not options.json:
        print(f"recorded in {path}")


if __name__ == "__main__":
    main()
