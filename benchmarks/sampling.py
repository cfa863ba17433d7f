"""Sampling and verification on the CPU: the noise kernel, and the batched rules against the loop.

    python benchmarks/sampling.py [--requests 64] [--drafts 8] [--vocabulary 152064] [--json]

One row: `argmax(logits / temperature + noise)` over the vocabulary on one core, by the core; the
numpy twin beside it.

A batch: chains of drafts for many requests through `sampling.match` and `sampling.rejection`, and
through the readable reference, request by request; in turns, so that a noisy machine disturbs them
alike. The readable loop computes, like the batched one, only rows that its walk reaches; it is
measured on some of the requests and scaled by the tokens they commit, since it takes seconds each.
Packing of drafts
and asks is not part of the times.

The target is likely to agree with the draft: a chosen token has a chance of about 0.67, a
sampled one comes from a distribution near the target's.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import torch

import harness
from foresay import Draft, DraftBatch, _core
from foresay.sampling import (
    SamplingParams,
    Stream,
    VerificationBatch,
    VerificationInput,
    match,
    reference,
    rejection,
)
from foresay.sampling.noise import gumbel

clock = time.perf_counter
TURNS = 5
ROWS = 64


def timed(function: Callable[[], object]) -> float:
    start = clock()
    function()
    return clock() - start


def one_row(vocabulary: int) -> dict[str, float]:
    """Milliseconds for one row on one core; the median of many."""
    # Many rows in turn, more than the caches hold: in an engine each row comes from memory.
    logits = (np.random.default_rng(0).normal(size=(ROWS, vocabulary)) * 3).astype(np.float32)
    top_k = logits.copy()
    top_k[logits < np.partition(logits, -50, axis=1)[:, -50:-49]] = -np.inf
    turn = count()

    def choose(rows: Any, temperature: float) -> object:
        at = next(turn) % ROWS
        return _core.choose(
            rows[at : at + 1],
            temperatures=np.array([temperature], np.float32),
            seeds=np.array([1], np.uint64),
            positions=np.array([5], np.uint32),
            stream=Stream.TARGET,
            threads=1,
        )

    def twin() -> object:
        return int(np.argmax(logits[0].astype(np.float64) + gumbel(1, 5, np.arange(vocabulary))))

    cases: dict[str, tuple[Callable[[], object], int]] = {
        "temperature 1": (lambda: choose(logits, 1.0), 200),
        "temperature 0.7": (lambda: choose(logits, 0.7), 200),
        "50 tokens left": (lambda: choose(top_k, 1.0), 200),
        "greedy": (lambda: choose(logits, 0.0), 200),
        "numpy twin, temperature 1": (twin, 3),
    }
    return {
        name: 1e3 * statistics.median(timed(run) for _ in range(turns))
        for name, (run, turns) in cases.items()
    }


def batch(requests: int, drafts: int, vocabulary: int, some: int) -> list[dict[str, Any]]:
    """Seconds of each way, turn by turn, and the ratios."""
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(requests, drafts + 1, vocabulary), scale=2).astype(np.float32)
    drafted = rng.integers(0, vocabulary, (requests, drafts))
    for i in range(requests):  # a likely token, of chance about 0.67
        rest = np.log(np.exp(logits[i, :-1].astype(np.float64)).sum(axis=1))
        logits[i, np.arange(drafts), drafted[i]] = rest + 0.7
    chosen = [Draft.chain(row.astype(np.int32)) for row in drafted]
    near = logits[:, :-1] + rng.normal(size=(requests, drafts, vocabulary)).astype(np.float32) / 2
    q = torch.softmax(torch.from_numpy(near), dim=-1).numpy()
    # Sampled with Gumbel noise; the rows of a chain do not depend on what was sampled, here.
    tokens = (near + rng.gumbel(size=near.shape).astype(np.float32)).argmax(axis=2)
    sampled = [Draft.chain(tokens[i].astype(np.int32), probs=q[i]) for i in range(requests)]
    del near
    asks = [VerificationInput(SamplingParams(), i, [1, 2, 3]) for i in range(requests)]
    columns, rows = VerificationBatch.of(asks), torch.from_numpy(logits.reshape(-1, vocabulary))
    results = []
    for name, rule, readable, given in (
        ("match, chosen", match, reference.match, chosen),
        ("rejection, chosen", rejection, reference.rejection, chosen),
        ("rejection, sampled", rejection, reference.rejection, sampled),
    ):
        packed = DraftBatch.of(given)
        verified = rule(packed, rows, columns)
        ways: dict[str, Callable[[], object]] = {
            "batched": lambda rule=rule, packed=packed: rule(packed, rows, columns),
            "readable": lambda readable=readable, given=given: [
                readable(given[i], logits[i], asks[i]) for i in range(some)
            ],
        }
        for i in range(some):  # both agree, or their times mean nothing
            expected = verified.verdicts[i].tokens.tolist()
            assert readable(given[i], logits[i], asks[i]).tokens.tolist() == expected
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for _ in range(TURNS):
            for way, run in ways.items():
                committed = verified.verdicts.offsets
                scale = committed[-1] / committed[some] if way == "readable" else 1
                seconds[way].append(timed(run) * scale)
        results.append(
            {
                "rule": name,
                "committed": len(verified.verdicts.tokens),
                "seconds": {way: statistics.median(times) for way, times in seconds.items()},
                "turns": seconds,
                "readable_over_batched": statistics.median(
                    a / b for a, b in zip(seconds["readable"], seconds["batched"], strict=True)
                ),
            }
        )
    return results


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--requests", type=int, default=64)
    parser.add_argument("--drafts", type=int, default=8)
    parser.add_argument("--vocabulary", type=int, default=152_064)
    parser.add_argument("--some", type=int, default=2, help="requests for the readable loop")
    options = harness.parse(parser)
    figures = {
        "requests": options.requests,
        "drafts": options.drafts,
        "vocabulary": options.vocabulary,
        "torch_threads": torch.get_num_threads(),
        "row_ms": one_row(options.vocabulary),
        "batch": batch(options.requests, options.drafts, options.vocabulary, options.some),
    }
    harness.finish("sampling", figures, options, show)


def show(figures: dict[str, Any]) -> None:
    for name, ms in figures["row_ms"].items():
        print(f"one row, {name:<28}{ms:>10.3f} ms")
    for line in figures["batch"]:
        print(
            f"{line['rule']:<20} batched {line['seconds']['batched']:.3f} s, "
            f"readable loop {line['readable_over_batched']:.0f}x"
        )


if __name__ == "__main__":
    main()
