"""One step of a proposer in vLLM: ours, vLLM's own n-gram proposer, and ArcticInference's.

    make test-vllm    # makes the environment; ArcticInference as in make_peers.sh
    .venv-vllm/bin/python benchmarks/vllm_step.py TRACE.jsonl.gz … [--rows 256] [--json]

The text is real: records of the traces (of one tokenizer), in a fixed random order. All proposers
are vLLM's classes, or called as vLLM calls ours, with the arguments that vLLM gives: the same rows,
the same new tokens. How many tokens a row gets in a step was decided beforehand, by what our drafts
would have been kept of. The proposers take turns, a few steps each, so that a noisy machine
disturbs them alike; times are of the whole call, and ratios are taken turn by turn.

As many answers as there are rows have been finished before (unless --no-history), so that ours and
ArcticInference have them to draft from as well. `us` is the wall's time of a call, and ratios are
of that; `cpu_us` is the time in which all threads of the process ran. Ours may use several
(--threads, or as many as it would by default); the others use one, as vLLM has it. vLLM's n-gram
proposer runs twice: with its defaults (5 tokens must match) and with 2 to 5, as most recipes have
it.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import numpy as np

import harness
from core import OURS, Times, Tokens, clock, real_text, slices, turns_of
from foresay.counts import tokens_per_step
from foresay.integrations.vllm import SuffixProposer


def config(rows: int, length: int, nodes: int, least_match: int = 5) -> Any:
    """What the proposers read of vLLM's configuration, with vLLM's defaults."""
    return SimpleNamespace(
        speculative_config=SimpleNamespace(
            num_speculative_tokens=nodes,
            prompt_lookup_min=least_match,
            prompt_lookup_max=5,
            suffix_decoding_max_tree_depth=24,
            suffix_decoding_max_spec_factor=1.0,
            suffix_decoding_min_token_prob=0.1,
            suffix_decoding_max_cached_requests=10000,
        ),
        model_config=SimpleNamespace(max_model_len=length),
        parallel_config=SimpleNamespace(tensor_parallel_size=1),
        scheduler_config=SimpleNamespace(max_num_seqs=rows),
    )


class Schedule:
    """The batch's arrays at each step: rows, how long each is, and what it just got."""

    def __init__(self, texts: Tokens, known: int) -> None:
        self.texts = texts
        self.lengths = [np.full(len(texts), known, np.int32)]
        self.sampled: list[list[list[int]]] = []

    def advance(self, drafts: list[list[int]]) -> None:
        """The next step, in which of each draft is kept what the text has."""
        lengths = self.lengths[-1].copy()
        sampled = []
        for row, draft in enumerate(drafts):
            start = int(lengths[row])
            following = self.texts[row, start : start + len(draft) + 1].tolist()
            kept = next((i for i, t in enumerate(draft) if t != following[i]), len(draft))
            sampled.append(following[: kept + 1])
            lengths[row] += kept + 1
        self.lengths.append(lengths)
        self.sampled.append(sampled)


Step = Callable[[list[list[int]], Tokens, Tokens], list[list[int]]]


def ours(given: Any) -> Step:
    return SuffixProposer(given).propose


def ngram(given: Any) -> Step:
    from vllm.v1.spec_decode.ngram_proposer import NgramProposer

    proposer = NgramProposer(given)
    nodes = given.speculative_config.num_speculative_tokens
    return lambda sampled, lengths, texts: proposer.propose(nodes, sampled, lengths, texts)


def suffix(given: Any) -> Step:
    from vllm.v1.spec_decode.suffix_decoding import SuffixDecodingProposer

    proposer = SuffixDecodingProposer(given)
    nodes = given.speculative_config.num_speculative_tokens
    batches: dict[int, Any] = {}

    def step(sampled: list[list[int]], lengths: Tokens, texts: Tokens) -> list[list[int]]:
        if id(texts) not in batches:
            names = [f"{len(batches)} {row}" for row in range(len(texts))]
            batches[id(texts)] = SimpleNamespace(
                req_ids=names,
                req_id_to_index={name: row for row, name in enumerate(names)},
                num_prompt_tokens=lengths - np.array([len(new) for new in sampled]),
                token_ids_cpu=texts,
            )
        batch = batches[id(texts)]
        batch.num_tokens_no_spec = lengths
        drafts: list[list[int]] = proposer.propose(nodes, batch, sampled)
        return drafts

    return step


def schedule_of(texts: Tokens, given: Any, known: int, steps: int) -> Schedule:
    """What vLLM would give, step by step, if it drafted with ours."""
    schedule, step = Schedule(texts, known), ours(given)
    schedule.advance([[] for _ in texts])
    while len(schedule.sampled) < steps:
        schedule.advance(step(schedule.sampled[-1], schedule.lengths[-1], texts))
    return schedule


def finish_some(step: Step, texts: Tokens, prompt: int = 64) -> None:
    """Requests that come, get their whole answer, and are gone in the next step."""
    rows, length = texts.shape
    answers = [row[prompt:].tolist() for row in texts]
    step(answers, np.full(rows, length, np.int32), texts)


class Timed:
    """A proposer that goes through the schedule, timed as `core.turns_of` does."""

    def __init__(self, step: Step, schedule: Schedule) -> None:
        self._given = zip(schedule.sampled, schedule.lengths[1:], strict=True)
        self._propose, self._texts = step, schedule.texts

    def step(self) -> Times:
        sampled, lengths = next(self._given)
        begun = clock()
        self._propose(sampled, lengths, self._texts)
        return clock() - begun


def summary(times: Mapping[str, Mapping[str, Times]]) -> dict[str, Any]:
    """Microseconds per step of each proposer, and how many times ours each takes."""
    found = {}
    ours = times[OURS]
    for name, measured in times.items():
        ratios = {clock: ms / ours[clock] for clock, ms in measured.items()}
        wall, cpu = (1e3 * ms for ms in measured.values())
        found[name] = {
            "us": round(float(np.median(wall)), 1),
            "least_us": round(float(wall.min()), 1),
            "cpu_us": round(float(np.median(cpu)), 1),
            "times_ours": round(float(np.median(ratios["wall"])), 2),
            "lowest": round(float(ratios["wall"].min()), 2),
            "times_ours_cpu": round(float(np.median(ratios["processor"])), 2),
        }
    return found


def check(step: Any, mean: float) -> None:
    """Fail if our proposer was fast because it did nothing."""
    stats = step.__self__.stats()
    if stats.errors or not stats.drafted or mean < 1.2:
        sys.exit(
            f"{stats.errors} steps failed, {stats.drafted} tokens were drafted, and a step had "
            f"{mean:.2f} tokens; a time counts with none, many, and at least 1.2"
        )


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("traces", nargs="+")
    parser.add_argument("--rows", type=int, default=256)
    parser.add_argument("--contexts", type=int, nargs="*", default=[1024, 4096])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--turns", type=int, default=12)
    parser.add_argument("--steps", type=int, default=10, help="in each turn")
    parser.add_argument("--threads", type=int, default=0, help="of ours; 0: as by default")
    parser.add_argument("--no-history", action="store_true", help="nothing was finished before")
    parser.add_argument("--no-peers", action="store_true", help="ours alone, without vLLM")
    options = harness.parse(parser)
    # Times between our calls are those of the others, which say nothing about vLLM's steps; and
    # what was finished is to be drafted from at once.
    os.environ |= {"FORESAY_VLLM_MEASURE": "0", "FORESAY_VLLM_GRACE": "0"}
    os.environ["FORESAY_VLLM_THREADS"] = str(options.threads)
    steps, rows = (options.turns + 1) * options.steps, options.rows
    figures: dict[str, Any] = {
        "rows": rows,
        "nodes": options.nodes,
        "history": not options.no_history,
        "threads": options.threads or "default",
        "bar_us": 60 + 2 * rows,
    }
    text = real_text(options.traces)
    for known in options.contexts:
        length = known + (steps + 2) * (options.nodes + 1)
        both = slices(text, 2 * rows, length)
        texts, earlier = both[::2].copy(), both[1::2, :512].copy()
        given = config(rows, length, options.nodes)
        schedule = schedule_of(texts, given, known, steps)
        proposers = {OURS: ours(given)}
        if not options.no_peers:
            proposers["vLLM's ngram"] = ngram(given)
            proposers["vLLM's ngram, 2 to 5"] = ngram(config(rows, length, options.nodes, 2))
            proposers["ArcticInference in vLLM"] = suffix(given)
        if not options.no_history:
            for step in proposers.values():
                finish_some(step, earlier)
        timed = {name: Timed(step, schedule) for name, step in proposers.items()}
        # The first turn warms up, and reads the prompts.
        found = summary(turns_of(timed, options.turns, options.steps, warm_up=1))
        tokens = sum(len(new) for sampled in schedule.sampled for new in sampled)
        mean = tokens_per_step(tokens, steps * rows)
        figures[f"{rows} x {known}"] = found | {"tokens_per_step": round(mean, 3)}
        check(proposers[OURS], mean)
    name = f"vllm-step-{options.threads}-threads" if options.threads else "vllm-step"
    harness.finish(name, figures, options, lambda found: print(json.dumps(found, indent=2)))


if __name__ == "__main__":
    main()
