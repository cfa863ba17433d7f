"""The drafter's memory in a rollout of many long answers: the part `memory` of rollouts.py."""

from __future__ import annotations

import argparse
import resource
import sys
import time
from collections.abc import Iterator
from inspect import signature
from pathlib import Path
from typing import Any

import numpy as np

from foresay.arrays import Int32s
from foresay.rl import Rollouts
from foresay.rl.countdown import Task, draw_puzzle, search_trace
from foresay.rl.rollouts import rollout_drafter
from foresay.traces import read_traces
from foresay.verdict import VerdictBatch

HISTORY: int = signature(Rollouts).parameters["history_bytes"].default
BUDGET = 4  # drafted tokens of a request in a step


def searches(groups: int, samples: int, length: int) -> Iterator[list[Int32s]]:
    """The answers of each group: searches of the same puzzles, each with noise of its own."""
    task = Task(cap=length)
    for number in range(groups):
        rng = np.random.default_rng([7, number])
        texts: list[list[int]] = [[] for _ in range(samples)]
        while min(map(len, texts)) < length:
            puzzle = draw_puzzle(task, rng)
            for text in texts:
                text += search_trace(puzzle, task, rng)
        yield [np.array(text[:length], np.int32) for text in texts]


def recorded(file: Path, groups: int, samples: int, length: int) -> Iterator[list[Int32s]]:
    """The answers of each group: recorded answers to some prompts, drawn anew for each group, one
    behind the other; where a sample is used again, a token of it is changed here and there, since a
    text that is there twice would take less."""
    of: dict[str, list[Int32s]] = {}
    for trace in read_traces(file):
        of.setdefault(trace.group, []).append(trace.output)
    full = [outputs for outputs in of.values() if len(outputs) >= samples]
    largest = max(int(output.max()) for outputs in full for output in outputs)
    for number in range(groups):
        rng = np.random.default_rng([8, number])
        texts: list[list[Int32s]] = [[] for _ in range(samples)]
        while min(sum(map(len, text)) for text in texts) < length:
            drawn = full[int(rng.integers(len(full)))]
            for text, at in zip(texts, rng.permutation(len(drawn)), strict=False):
                text.append(drawn[int(at)])
        joined = [np.concatenate(text)[:length].astype(np.int32) for text in texts]
        for answer in joined:
            places = rng.random(length) < 1 / 32
            answer[places] = rng.integers(largest, size=int(places.sum()), dtype=np.int32)
        yield joined


def memory(options: argparse.Namespace) -> dict[str, Any]:
    """Without a model: what the drafter of `Rollouts` holds while all answers grow."""
    groups, samples, length = options.memory_groups, options.samples, options.length
    made = (
        recorded(options.traces, groups, samples, length)
        if options.traces
        else searches(groups, samples, length)
    )
    texts = np.stack([text for answers in made for text in answers])
    print(f"memory: {texts.size:,} tokens were made", file=sys.stderr)
    before = resident()
    drafter = rollout_drafter(HISTORY)
    prompt = np.arange(32, dtype=np.int32)
    names = [f"rollout {number}" for number in range(groups)]
    states = [
        drafter.begin(prompt + number % 128, group=names[number // samples])
        for number in range(groups * samples)
    ]
    most = most_resident = 0
    begin = time.perf_counter()
    for at in range(0, length, options.stride):
        given = np.ascontiguousarray(texts[:, at : at + options.stride])
        ends = np.arange(len(given) + 1, dtype=np.int32)
        verdicts = VerdictBatch(given.ravel(), ends * given.shape[1], [], 0 * ends)
        drafter.step(states, verdicts, [BUDGET] * len(states))
        if at // options.stride % 16 == 0 or at + options.stride >= length:
            most = max(most, drafter.bytes_used())
            most_resident = max(most_resident, resident())
    grown = drafter.bytes_used()
    spent = time.perf_counter() - begin
    for state in states:
        drafter.finish(state)
        most = max(most, drafter.bytes_used())
    most_resident = max(most_resident, resident())
    ended = drafter.bytes_used()
    for name in names:
        drafter.drop_group(name)
    dropped = drafter.bytes_used()
    del states
    return {
        "text": options.traces.name if options.traces else "countdown-trace",
        "requests": groups * samples,
        "tokens_each": length,
        "history_bytes": HISTORY,
        "most_bytes": most,
        "bytes_all_grown": grown,
        "bytes_per_token": round(grown / texts.size, 2),
        "bytes_all_ended": ended,
        "bytes_groups_dropped": dropped,
        "resident_before": before,
        "resident_most": most_resident,
        "resident_after": resident(),
        "resident_peak_of_process": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10,
        "microseconds_per_token": round(1e6 * spent / texts.size, 3),
    }


SIZES = (
    *("most_bytes", "bytes_all_grown", "bytes_all_ended", "bytes_groups_dropped"),
    *("resident_before", "resident_most", "resident_after"),
)


def resident() -> int:
    """Bytes of this process in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
