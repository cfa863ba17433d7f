"""The parts of engine.py that race: each gives its results against their bars, and all its runs."""

from __future__ import annotations

import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from engine_ways import (
    Answered,
    Job,
    Moment,
    Ours,
    Prompt,
    Texts,
    Theirs,
    answer,
    greedy,
    step_in_turns,
)
from foresay import SamplingParams
from foresay.counts import tokens_per_step
from foresay.drafters import SuffixDrafter
from foresay.sampling.noise import seed_of_sample
from ratios import geometric, take_turns

COPYING = ("summarization", "rag", "math_reasoning", "coding")
LITTLE = ("translation", "qa")
GROUPS = ("math_reasoning", "coding", "rag")
OURS, DEFAULT = "ours, none", "ours, default"
NO_HISTORY, NO_SHARING = "ours, no history", "ours, no sharing"
PLAIN, LOOKUP = "transformers", "transformers, prompt lookup"
CONTINUOUS, PADDED = "transformers, continuous", "transformers, padded"
BUCKETS = (0, 16, 32, 64, 128, 256)


@dataclass(frozen=True)
class Scale:
    """How much is measured. The defaults are the whole run; see engine.py for the time it takes."""

    tokens: int = 128
    plain_tokens: int = 32
    batch_tokens: int = 64
    each: int = 5
    """Prompts of a category."""
    repeats: int = 3
    """Of the pairs that are nearly equal."""
    sizes: tuple[int, ...] = (8, 32)
    rounds: int = 2
    """Of each batch."""
    groups: int = 2
    """Prompts of a category that are asked for a group of samples."""
    samples: int = 8
    history: bool = False
    """Whether the default is also measured without history."""


QUICK = Scale(48, 16, 24, each=2, repeats=1, sizes=(8,), rounds=1, groups=1)


@dataclass
class Bench:
    """What the parts share."""

    prompts: dict[str, list[Prompt]]
    scale: Scale
    ours: Ours
    folder: Path
    rows: int
    """Tokens in a step of transformers' continuous batching."""
    texts: Texts = field(default_factory=Texts)
    moments: dict[str, list[Moment]] = field(default_factory=dict)
    """Steps of the default, by category, for `acceptance`."""
    made: list[Theirs] = field(default_factory=list)

    @property
    def theirs(self) -> Theirs:
        if not self.made:
            self.made.append(Theirs(self.folder, self.ours.llm.target.dtype))
        return self.made[0]

    def first(self, categories: Sequence[str], count: int) -> list[Prompt]:
        """The first prompts of each category, those of one category together."""
        found = [p for name in categories for p in self.prompts.get(name, ())[:count]]
        if not found:
            raise SystemExit(f"the prompts have none of the categories {', '.join(categories)}")
        return found

    def mixed(self, count: int) -> list[Prompt]:
        """One prompt of each category, then a second of each, until there are enough."""
        deepest = max(map(len, self.prompts.values()))
        ranks = [p[i] for i in range(deepest) for p in self.prompts.values() if i < len(p)]
        return ranks[:count]

    def note(self, part: str, who: str, jobs: Sequence[Job], answered: Answered) -> None:
        for job, text in zip(jobs, answered.texts, strict=True):
            how = "greedy" if job.params.greedy else f"T {job.params.temperature} seed {job.seed}"
            self.texts.note(part, who, f"{job.prompt.name} {how}", text)


def ratios(runs: Sequence[dict[str, Answered]], one: str, other: str) -> list[float]:
    """How many times as many tokens per second `one` makes, run by run."""
    return [run[one].rate / run[other].rate for run in runs]


def result(name: str, values: Sequence[float], bar: float | None) -> dict[str, Any]:
    """One line of the table: a geometric mean against its bar."""
    mean = geometric(values)
    return {
        "name": name,
        "times": round(mean, 4),
        "least": round(min(values), 4),
        "most": round(max(values), 4),
        "runs": len(values),
        "bar": bar,
        "met": None if bar is None else mean >= bar,
    }


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def plain(bench: Bench) -> dict[str, Any]:
    """Without drafts, one answer at a time, against `generate`: the first prompt of each category.
    Both write as many tokens as are asked for, past the end of the answer.
    """
    llm, runs, rows = bench.ours.plain(), [], []
    params = greedy(bench.scale.plain_tokens, past_the_end=True)
    for turn, prompt in enumerate(bench.first(list(bench.prompts), 1)):
        jobs = [Job(prompt, params)]
        ways = {
            PLAIN: partial(bench.theirs.plain, prompt.tokens, params.max_tokens),
            OURS: partial(answer, llm, jobs),
        }
        run = take_turns(ways, turn)
        bench.note("plain", OURS, jobs, run[OURS])
        runs.append(run)
        rows.append(_row(prompt, run) | {"same_text": run[OURS].texts == run[PLAIN].texts})
        say(f"plain {prompt.name}: {run[OURS].rate / run[PLAIN].rate:.2f}x")
    return {
        "results": [result("no speculation / transformers", ratios(runs, OURS, PLAIN), 1.2)],
        "past_the_end": True,
        "runs": rows,
    }


def single(bench: Bench) -> dict[str, Any]:
    """One answer at a time, the default as a user has it: one LLM for all, which remembers. All
    write as many tokens as are asked for, past the end of the answer; `ends` is where it was.
    """
    llms = {OURS: bench.ours.plain(), DEFAULT: bench.ours.default()}
    if bench.scale.history:
        llms[NO_HISTORY] = bench.ours.default(SuffixDrafter(history=False))
    params, theirs = greedy(bench.scale.tokens, past_the_end=True), bench.theirs
    runs, rows, whole = [], [], []
    for turn, prompt in enumerate(bench.first(COPYING, bench.scale.each)):
        jobs = [Job(prompt, params)]
        ways: dict[str, Callable[[], Answered]] = {
            PLAIN: partial(theirs.plain, prompt.tokens, params.max_tokens),
            LOOKUP: partial(theirs.lookup, prompt.tokens, params.max_tokens),
        }
        ways |= {name: partial(answer, llm, jobs) for name, llm in llms.items()}
        run = take_turns(ways, turn)
        for name in llms:
            bench.note("single", name, jobs, run[name])
        bench.moments.setdefault(prompt.category, []).extend(run[DEFAULT].moments)
        ends = _end(run[OURS].texts[0], bench.ours.llm.tokenizer.ends)
        if ends is None:
            whole.append(run)
        runs.append(run)
        same = run[LOOKUP].texts == run[PLAIN].texts
        rows.append(_row(prompt, run) | {"ends": ends, "lookup_has_the_plain_text": same})
        say(f"single {prompt.name}: {run[DEFAULT].rate / run[PLAIN].rate:.2f}x")
    results = [
        result("default / transformers", ratios(runs, DEFAULT, PLAIN), 2.0),
        result("default / transformers' prompt lookup", ratios(runs, DEFAULT, LOOKUP), 1.4),
        result("default / no speculation", ratios(runs, DEFAULT, OURS), None),
        result("no speculation / transformers", ratios(runs, OURS, PLAIN), None),
    ]
    if NO_HISTORY in llms:
        results.append(result("default / no history", ratios(runs, DEFAULT, NO_HISTORY), None))
    if 0 < len(whole) < len(runs):
        name = "default / transformers, answers that go on"
        results.append(result(name, ratios(whole, DEFAULT, PLAIN), None))
    for category in dict.fromkeys(row["category"] for row in rows):
        some = [run for run, row in zip(runs, rows, strict=True) if row["category"] == category]
        name = f"default / transformers, {category}"
        results.append(result(name, ratios(some, DEFAULT, PLAIN), None))
    return {"results": results, "past_the_end": True, "runs": rows}


def little(bench: Bench) -> dict[str, Any]:
    """Where there is little to copy: the default against none, both ours. Answers end where they
    end; both write the same. A prompt's ratio is the median over the repeats, and each repeat has
    new engines, since the default would remember the answer.
    """
    params = greedy(bench.scale.tokens, past_the_end=False)
    prompts = bench.first(LITTLE, bench.scale.each)
    found: dict[str, list[float]] = {prompt.name: [] for prompt in prompts}
    rows = []
    for repeat in range(bench.scale.repeats):
        llms = {OURS: bench.ours.plain(), DEFAULT: bench.ours.default()}
        for turn, prompt in enumerate(prompts):
            jobs = [Job(prompt, params)]
            run = take_turns(
                {name: partial(answer, llm, jobs) for name, llm in llms.items()}, turn + repeat
            )
            for name in llms:
                bench.note("little", name, jobs, run[name])
            found[prompt.name] += ratios([run], DEFAULT, OURS)
            rows.append(_row(prompt, run) | {"repeat": repeat})
            say(f"little {prompt.name}: {found[prompt.name][-1]:.2f}x")
    medians = {
        category: [statistics.median(found[p.name]) for p in prompts if p.category == category]
        for category in dict.fromkeys(prompt.category for prompt in prompts)
    }
    return {
        "results": [
            result(f"default / no speculation, {category}", values, 0.97)
            for category, values in medians.items()
        ],
        "past_the_end": False,
        "runs": rows,
    }


def batch(bench: Bench) -> dict[str, Any]:
    """Many at once, of all categories, each with as many tokens as are asked for. Engines are new
    in each round; ours take turns step by step. Padding is measured for the smallest batch, for
    information: the more prompts, the more of it is padding.
    """
    params = greedy(bench.scale.batch_tokens, past_the_end=True)
    results, rows = [], []
    for wanted in bench.scale.sizes:
        prompts = bench.mixed(wanted)
        size = len(prompts)
        jobs = [Job(prompt, params) for prompt in prompts]
        given = [prompt.tokens for prompt in prompts]
        runs = []

        def ours(jobs: Sequence[Job] = jobs, size: int = size) -> dict[str, Answered]:
            llms = {OURS: bench.ours.plain(), DEFAULT: bench.ours.default()}
            run = step_in_turns({name: (llm, jobs) for name, llm in llms.items()})
            for name in llms:
                bench.note(f"batch {size}", name, jobs, run[name])
            return run

        for turn in range(bench.scale.rounds):
            run = ours() if turn % 2 else {}
            with bench.theirs.continuous(given, params.max_tokens, bench.rows) as continuous:
                ways = {CONTINUOUS: continuous}
                if wanted == min(bench.scale.sizes):
                    ways[PADDED] = partial(bench.theirs.padded, given, params.max_tokens)
                run |= take_turns(ways, turn)
            run |= {} if turn % 2 else ours()
            runs.append(run)
            rows.append({"size": size, "prompts": [p.name for p in prompts], **_ways(run)})
            say(f"batch {size}: {run[OURS].rate / run[CONTINUOUS].rate:.2f}x")
        results.append(
            result(f"{size}: {OURS} / {CONTINUOUS}", ratios(runs, OURS, CONTINUOUS), 1.0)
        )
        pairs = [
            *runs,
            *(ours() for _ in range(bench.scale.repeats)),
        ]  # nearly equal, so more often
        rows += [{"size": size, **_ways(pair)} for pair in pairs[len(runs) :]]
        results.append(result(f"{size}: {DEFAULT} / {OURS}", ratios(pairs, DEFAULT, OURS), 0.97))
        results.append(
            result(f"{size}: {DEFAULT} / {CONTINUOUS}", ratios(runs, DEFAULT, CONTINUOUS), None)
        )
        if PADDED in runs[0]:
            results.append(result(f"{size}: {OURS} / {PADDED}", ratios(runs, OURS, PADDED), None))
    return {"results": results, "past_the_end": True, "step_tokens": bench.rows, "runs": rows}


def group(bench: Bench) -> dict[str, Any]:
    """Samples of one prompt at once, temperature 0.8; answers end where they end, all write the
    same, step by step in turns. As in a rollout one LLM answers group after group, each prompt
    once; what it finished before, it may draft from, unless it is the one that shares nothing.
    """
    params = SamplingParams(temperature=0.8, max_tokens=bench.scale.tokens)
    runs, rows = [], []
    llms = {
        OURS: bench.ours.plain(),
        DEFAULT: bench.ours.default(),
        NO_SHARING: bench.ours.default(SuffixDrafter(history=False)),
    }
    for prompt in bench.first(GROUPS, bench.scale.groups):
        seeds = [seed_of_sample(1, sample) for sample in range(bench.scale.samples)]
        alone = [Job(prompt, params, seed) for seed in seeds]
        together = [Job(prompt, params, seed, group=prompt.name) for seed in seeds]
        run = step_in_turns(
            {name: (llm, alone if name == NO_SHARING else together) for name, llm in llms.items()}
        )
        for name in llms:
            bench.note("group", name, alone, run[name])
        bench.moments.setdefault("a group", []).extend(run[DEFAULT].moments)
        runs.append(run)
        rows.append(_row(prompt, run))
        say(f"group {prompt.name}: {run[DEFAULT].rate / run[OURS].rate:.2f}x")
    return {
        "results": [
            result("sharing / no speculation", ratios(runs, DEFAULT, OURS), 1.2),
            result("sharing / the same without", ratios(runs, DEFAULT, NO_SHARING), 1.05),
        ],
        "past_the_end": False,
        "samples": bench.scale.samples,
        "runs": rows,
    }


def acceptance(bench: Bench) -> dict[str, Any]:
    """How much comes true, by place in the answer: of the default's runs in `single` and `group`,
    or of a few answers of its own if those were not run.
    """
    if not bench.moments:
        llm, params = bench.ours.default(), greedy(bench.scale.tokens, past_the_end=True)
        for prompt in bench.first(COPYING, min(2, bench.scale.each)):
            run = answer(llm, [Job(prompt, params)])
            bench.moments.setdefault(prompt.category, []).extend(run.moments)
    rows = []
    for category, moments in bench.moments.items():
        for low, high in pairwise(BUCKETS):
            some = [m for m in moments if low <= m.position < high]
            if some:
                drafted, accepted = sum(m.drafted for m in some), sum(m.accepted for m in some)
                rows.append(
                    {
                        "category": category,
                        "from": low,
                        "to": high - 1,
                        "steps": len(some),
                        "drafted_per_step": round(drafted / len(some), 3),
                        "accepted_of_drafted": round(accepted / drafted, 4) if drafted else None,
                        "tokens_per_step": round(
                            tokens_per_step(sum(m.tokens for m in some), len(some)), 3
                        ),
                    }
                )
    return {"results": [], "by_position": rows}


def float32(bench: Bench, exact: Ours) -> dict[str, Any]:
    """Only texts: the default against none in float32, alone, together and sampled."""
    tokens = min(32, bench.scale.tokens)
    prompts = bench.first((*COPYING, *LITTLE), 1)
    jobs = [Job(prompt, greedy(tokens, past_the_end=False)) for prompt in prompts]
    params = SamplingParams(temperature=0.8, max_tokens=tokens)
    seeds = [seed_of_sample(1, sample) for sample in range(min(4, bench.scale.samples))]
    samples = [Job(prompts[0], params, seed, group="samples") for seed in seeds]
    texts = Texts()
    inner = Bench(bench.prompts, bench.scale, exact, bench.folder, bench.rows, texts)
    for name, llm in ((OURS, exact.plain()), (DEFAULT, exact.default())):
        for job in jobs:
            inner.note("float32, alone", name, [job], answer(llm, [job]))
        inner.note("float32, batch", name, jobs, answer(llm, jobs))
        inner.note("float32, group", name, samples, answer(llm, samples))
    return {"results": [], "texts": texts.as_dict()}


def _row(prompt: Prompt, run: dict[str, Answered]) -> dict[str, Any]:
    about = {"prompt": prompt.name, "category": prompt.category, "length": len(prompt.tokens)}
    return about | _ways(run)


def _ways(run: dict[str, Answered]) -> dict[str, Any]:
    return {"ways": {name: run[name].as_dict() for name in sorted(run)}}


def _end(text: Sequence[int], ends: Sequence[int]) -> int | None:
    """Where the answer would have ended."""
    return next((at for at, token in enumerate(text, 1) if token in ends), None)
