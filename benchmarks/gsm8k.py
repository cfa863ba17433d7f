"""GSM8K with and without drafts: greedy answers token by token, sampled ones by their accuracy.

Three comparisons. Greedy: all answers must be the same tokens. Sampled with one seed in both arms:
again the same tokens, by construction. Sampled with different seeds: the shares of right answers,
by a test of two proportions, with an interval and what difference it would have found.

    python benchmarks/gsm8k.py QUESTIONS.jsonl.gz --train TRAIN.jsonl.gz --questions 200 --seeds 8

Rows are {"question", "answer"}. The shots of the prompt are the first rows of --train; without it
the first rows of QUESTIONS, which are not asked then. The small default model solves few of them;
what counts here is that both arms solve equally many. With --answers FILE the answers are kept and
a later call goes on from there, so that a long run can be made of short ones (--minutes).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import gsm8k_score as gsm8k
import record
from foresay.machine import usable_processors

CHUNK = 16  # questions that run at once


class Job(NamedTuple):
    """Some questions, in one arm."""

    arm: str  # "none" or "suffix", the drafter
    seed: int | None  # None: greedy
    first: int


def jobs_of(questions: int, seeds: int) -> list[Job]:
    """The sampled arms have seeds of their own; the first one is also answered with drafts."""
    runs: list[tuple[str, int | None]] = [("none", None), ("suffix", None), ("suffix", 0)]
    runs += [("none", seed) for seed in range(seeds)]
    runs += [("suffix", seeds + seed) for seed in range(seeds)]
    return [Job(*run, first) for run in runs for first in range(0, questions, CHUNK)]


_LLMS: dict[str, Any] = {}  # of a worker, by drafter


def start(model: str, threads: int) -> None:
    import torch

    from foresay import LLM

    torch.set_num_threads(threads)
    _LLMS["none"] = LLM(model, "none", memory=1 << 30, max_running=CHUNK)
    _LLMS["suffix"] = _LLMS["none"].beside("suffix")


def answer(work: tuple[Job, list[str], float, int]) -> list[dict[str, Any]]:
    from foresay import SamplingParams
    from foresay.sampling.noise import seed_of_sample

    job, prompts, temperature, tokens = work
    params = [
        SamplingParams(
            max_tokens=tokens,
            temperature=0 if job.seed is None else temperature,
            seed=None if job.seed is None else seed_of_sample(job.seed, 1 + job.first + at),
            stop=gsm8k.STOP,
        )
        for at in range(len(prompts))
    ]
    results = _LLMS[job.arm].generate(prompts, params)
    for one in results:
        if one.error is not None:
            raise one.error
    return [
        {
            **job._asdict(),
            "question": job.first + at,
            "token_ids": one.token_ids,
            "text": one.text,
            "steps": one.stats.steps,
        }
        for at, one in enumerate(results)
    ]


def answered(options: argparse.Namespace, prompts: list[str]) -> list[dict[str, Any]] | None:
    """All answers; None if the time was over before."""
    setting = {
        "model": options.model,
        "prompts": prompts,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
    }
    kept: list[dict[str, Any]] = []
    if options.answers and options.answers.exists():
        first, *rows = options.answers.read_text(encoding="utf-8").splitlines()
        if json.loads(first) != setting:
            raise SystemExit(f"{options.answers} is of another setting; expected a new file")
        kept = [row for line in rows for row in json.loads(line)]
    elif options.answers:
        options.answers.write_text(json.dumps(setting) + "\n", encoding="utf-8")
    jobs = jobs_of(len(prompts), options.seeds)
    done = {Job(row["arm"], row["seed"], row["first"]) for row in kept}
    kept = [row for row in kept if Job(row["arm"], row["seed"], row["first"]) in set(jobs)]
    left = [job for job in jobs if job not in done]
    if not left:
        return kept
    work = [
        (job, prompts[job.first : job.first + CHUNK], options.temperature, options.max_tokens)
        for job in left
    ]
    began, threads = time.monotonic(), max(usable_processors() // options.processes, 1)
    with ExitStack() as stack:
        if options.processes == 1:
            start(options.model, threads)
            chunks: Iterable[list[dict[str, Any]]] = map(answer, work)
        else:
            context = multiprocessing.get_context("spawn")
            pool = context.Pool(options.processes, start, (options.model, threads))
            chunks = stack.enter_context(pool).imap_unordered(answer, work)
        for at, rows in enumerate(chunks, 1):
            kept += rows
            if options.answers:
                with options.answers.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(rows) + "\n")
            if at % 10 == 0 or at == len(work):
                minutes = (time.monotonic() - began) / 60
                print(
                    f"{len(jobs) - len(left) + at} of {len(jobs)} chunks, {minutes:.1f} minutes",
                    flush=True,
                )
            if options.minutes and time.monotonic() - began > 60 * options.minutes:
                return kept if at == len(work) else None
    return kept


def figures(rows: list[dict[str, Any]], asked: list[dict[str, str]], seeds: int) -> dict[str, Any]:
    found = {(r["arm"], r["seed"], r["question"]): r for r in rows}
    scores = {key: gsm8k.score(r["text"], asked[key[2]]["answer"]) for key, r in found.items()}
    every = range(len(asked))

    def same(seed: int | None) -> dict[str, Any]:
        pairs = [(found["none", seed, q], found["suffix", seed, q]) for q in every]
        tokens = sum(len(a["token_ids"]) for a, _ in pairs)
        return {
            "questions": len(pairs),
            "identical": sum(a["token_ids"] == b["token_ids"] for a, b in pairs),
            "tokens": tokens,
            "tokens_per_step": tokens / sum(b["steps"] for _, b in pairs),
            "accuracy": sum(scores["none", seed, q]["strict"] for q in every) / len(pairs),
        }

    def arm(drafter: str, which: range, kind: str) -> list[list[bool]]:
        return [[scores[drafter, seed, q][kind] for q in every] for seed in which]

    return {
        "greedy": same(None),
        "same_seed": same(0),
        "sampled": {
            kind: gsm8k.compared(
                arm("none", range(seeds), kind), arm("suffix", range(seeds, 2 * seeds), kind)
            )
            for kind in ("strict", "flexible", "marked")
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, help="questions: JSON lines, also gzipped")
    parser.add_argument("--train", type=Path, help="where the shots come from")
    parser.add_argument("--shots", type=int, default=5, help="questions shown with their answers")
    parser.add_argument("--questions", type=int, default=200, help="how many are asked; 0: all")
    parser.add_argument("--seeds", type=int, default=8, help="of each arm")
    parser.add_argument("--processes", type=int, default=1, help="the cores are shared among them")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--answers", type=Path, help="keep the answers here, and go on from them")
    parser.add_argument("--minutes", type=float, help="end after this long, if --answers is given")
    record.add_option(parser)
    options = parser.parse_args()
    if options.minutes and not options.answers:
        parser.error("--minutes without --answers would lose all answers")
    if options.seeds < 1 or options.processes < 1 or options.questions < 0:
        parser.error("--seeds and --processes are at least 1, --questions at least 0")
    rows = gsm8k.read(options.file)
    shots = gsm8k.read(options.train)[: options.shots] if options.train else rows[: options.shots]
    asked = rows if options.train else rows[options.shots :]
    asked = asked[: options.questions] if options.questions else asked
    if not asked:
        parser.error(f"{options.file} has {len(rows)} rows; expected more than --shots")
    got = answered(options, [gsm8k.prompt(shots, row["question"]) for row in asked])
    if got is None:
        raise SystemExit("the time is over; call it again with the same --answers to go on")
    content = {
        "model": options.model,
        "questions": len(asked),
        "shots": len(shots),
        "seeds": options.seeds,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        **figures(got, asked, options.seeds),
    }
    for name in ("greedy", "same_seed"):
        line = content[name]
        print(
            f"{name}: {line['identical']} of {line['questions']} answers identical, accuracy "
            f"{line['accuracy']:.4f}, {line['tokens_per_step']:.2f} tokens per step"
        )
    for kind, line in content["sampled"].items():
        low, high = line["interval_95"]
        print(
            f"sampled, {kind}: {line['shares'][0]:.4f} without and {line['shares'][1]:.4f} with "
            f"drafts, difference {line['difference']:+.4f} [{low:+.4f}, {high:+.4f}], "
            f"p {line['p_value']:.2f}; found with power 80 %: "
            f"{line['detectable_with_power_80']:.4f}"
        )
    for name in ("greedy", "same_seed"):
        if content[name]["identical"] != content[name]["questions"]:
            record.write("gsm8k", content, options.record)
            raise SystemExit(f"{name}: drafts changed an answer")
    print(f"recorded in {record.write('gsm8k', content, options.record).name}")


if __name__ == "__main__":
    main()
