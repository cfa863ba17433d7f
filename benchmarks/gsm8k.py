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
import math
import re
import time
from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import harness
from foresay.traces import read_records

CHUNK = 16  # questions that run at once
STOP = "Question:"  # where the model goes on with a question of its own
_NUMBER = r"-?\$?\d[\d,]*(?:\.\d+)?"
_MARKED = re.compile(rf"####\s*({_NUMBER})")
_ANY = re.compile(_NUMBER)
Z95, Z80 = 1.959964, 0.841621  # normal quantiles: an interval of 95 %, a power of 80 %


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


def answer(llm: Any, job: Job, prompts: list[str], setting: dict[str, Any]) -> list[dict[str, Any]]:
    from foresay import SamplingParams
    from foresay.sampling.noise import seed_of_sample

    params = [
        SamplingParams(
            max_tokens=setting["max_tokens"],
            temperature=0 if job.seed is None else setting["temperature"],
            seed=None if job.seed is None else seed_of_sample(job.seed, 1 + job.first + at),
            stop=STOP,
        )
        for at in range(len(prompts))
    ]
    rows = []
    for at, one in enumerate(llm.generate(prompts, params)):
        if one.error is not None:
            raise one.error
        about = {"question": job.first + at, "token_ids": one.token_ids, "text": one.text}
        rows.append({**job._asdict(), **about, "steps": one.stats.steps})
    return rows


def answered(options: argparse.Namespace, prompts: list[str]) -> list[dict[str, Any]] | None:
    """All answers; None if the time was over before."""
    from foresay import LLM

    names = ("model", "temperature", "max_tokens")
    setting = {"prompts": prompts, **{name: vars(options)[name] for name in names}}
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
    plain = LLM(options.model, "none", memory=1 << 30, max_running=CHUNK)
    llms, began = {"none": plain, "suffix": plain.beside("suffix")}, time.monotonic()
    for at, job in enumerate(left, 1):
        rows = answer(llms[job.arm], job, prompts[job.first : job.first + CHUNK], setting)
        kept += rows
        if options.answers:
            with options.answers.open("a", encoding="utf-8") as file:
                file.write(json.dumps(rows) + "\n")
        minutes = (time.monotonic() - began) / 60
        harness.say(f"{len(done) + at} of {len(jobs)} chunks, {minutes:.1f} minutes")
        if options.minutes and minutes > options.minutes and at < len(left):
            return None
    return kept


# Which answers are right, and how far two accuracies are apart


def prompt(shots: Sequence[dict[str, Any]], question: str) -> str:
    """A few questions with their answers, and then the question: as lm-eval asks."""
    shown = "".join(f"Question: {s['question']}\nAnswer: {s['answer']}\n\n" for s in shots)
    return f"{shown}Question: {question}\nAnswer:"


def marked(text: str) -> Decimal | None:
    """The number after the first ####, as the answers of the dataset have it."""
    found = _MARKED.search(text)
    return _value(found[1]) if found else None


def last(text: str) -> Decimal | None:
    """The last number of the text, with or without a mark."""
    found = _ANY.findall(text)
    return _value(found[-1]) if found else None


def _value(number: str) -> Decimal | None:
    try:
        return Decimal(number.replace(",", "").replace("$", ""))
    except InvalidOperation:
        return None


def score(text: str, answer: str) -> dict[str, bool]:
    """Whether an answer is right, by its marked number and by its last one; and whether it has a
    marked one at all."""
    right = marked(answer)
    if right is None:
        raise ValueError(f"the dataset's answer {answer!r} has no number after ####")
    return {
        "strict": marked(text) == right,
        "flexible": last(text) == right,
        "marked": marked(text) is not None,
    }


def compared(one: Sequence[Sequence[bool]], other: Sequence[Sequence[bool]]) -> dict[str, Any]:
    """Two arms of answers, [seeds][questions]: are their shares of right answers apart?

    The test of two proportions takes all answers as independent. Those to one question are not, but
    both arms have the same questions, which makes the true error smaller: the test errs on the safe
    side. `paired` is the interval over questions, each with its difference of means.
    """
    arms = np.array(one, float), np.array(other, float)
    n, m = (arm.size for arm in arms)
    first, second = (float(arm.mean()) for arm in arms)
    apart, pooled = second - first, (first * n + second * m) / (n + m)
    error = math.sqrt(pooled * (1 - pooled) * (1 / n + 1 / m))
    alone = math.sqrt(first * (1 - first) / n + second * (1 - second) / m)
    each = arms[1].mean(0) - arms[0].mean(0)
    spread = float(each.std(ddof=min(len(each) - 1, 1))) / math.sqrt(len(each))
    return {
        "answers": [n, m],
        "shares": [first, second],
        "per_seed": [arm.mean(1).tolist() for arm in arms],
        "difference": apart,
        "p_value": math.erfc(abs(apart) / error / math.sqrt(2)) if error else 1.0,
        "interval_95": [apart - Z95 * alone, apart + Z95 * alone],
        "paired_interval_95": [apart - Z95 * spread, apart + Z95 * spread],
        "detectable_with_power_80": (Z95 + Z80) * error,
    }


def figures(rows: list[dict[str, Any]], asked: list[dict[str, Any]], seeds: int) -> dict[str, Any]:
    found = {(r["arm"], r["seed"], r["question"]): r for r in rows}
    scores = {key: score(r["text"], asked[key[2]]["answer"]) for key, r in found.items()}
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
            kind: compared(
                arm("none", range(seeds), kind), arm("suffix", range(seeds, 2 * seeds), kind)
            )
            for kind in ("strict", "flexible", "marked")
        },
    }


def show(content: dict[str, Any]) -> None:
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


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("file", type=Path, help="questions: JSON lines, also gzipped")
    parser.add_argument("--train", type=Path, help="where the shots come from")
    parser.add_argument("--shots", type=int, default=5, help="questions shown with their answers")
    parser.add_argument("--questions", type=int, default=200, help="how many are asked; 0: all")
    parser.add_argument("--seeds", type=harness.count, default=8, help="of each arm")
    parser.add_argument("--model", default="smollm2-135m")
    parser.add_argument("--temperature", type=float, default=0.8)
    parser.add_argument("--max-tokens", type=int, default=256)
    parser.add_argument("--answers", type=Path, help="keep the answers here, and go on from them")
    parser.add_argument("--minutes", type=float, help="end after this long, if --answers is given")
    options = harness.parse(parser)
    if options.minutes and not options.answers:
        parser.error("--minutes without --answers would lose all answers")
    rows = [row for _, row in read_records(options.file)]
    shots = rows if options.train is None else [row for _, row in read_records(options.train)]
    asked = (rows if options.train else rows[options.shots :])[: options.questions or None]
    if not asked:
        parser.error(f"{options.file} has {len(rows)} rows; expected more than --shots")
    shots = shots[: options.shots]
    found = answered(options, [prompt(shots, row["question"]) for row in asked])
    if found is None:
        raise SystemExit("the time is over; call it again with the same --answers to go on")
    content = {
        "model": options.model,
        "questions": len(asked),
        "shots": len(shots),
        "seeds": options.seeds,
        "temperature": options.temperature,
        "max_tokens": options.max_tokens,
        **figures(found, asked, options.seeds),
    }
    changed = [
        f"{name}: drafts changed an answer"
        for name in ("greedy", "same_seed")
        if content[name]["identical"] != content[name]["questions"]
    ]
    harness.finish("gsm8k", content, options, show, "; ".join(changed))


if __name__ == "__main__":
    main()
