"""Parts `answers` and `batch` of gpu.py: tokens per second from prompt to answer, ours with drafts
beside ours without, in turns. Every round has fresh engines, which remember nothing.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from foresay import LLM, SamplingParams
from foresay.engine.answers import Result
from gpu_bench import Bench, Prompt, first_differences, greedy
from harness import take_turns

Run = dict[str, Any]
SIDES = {"plain": "none", "drafts": "suffix"}


def engines(bench: Bench) -> dict[str, LLM]:
    """Fresh ones. Those before must be gone: all have their texts in the memory of one target."""
    gc.collect()
    llm = bench.llm()
    return {side: llm.beside(drafter) for side, drafter in SIDES.items()}


def asked(
    bench: Bench, llm: LLM, prompts: Sequence[Prompt], params: SamplingParams
) -> tuple[Run, list[list[int]]]:
    """All prompts at once: what it took, and the texts."""
    bench.wait()
    begin = time.perf_counter()
    texts = [prompt.tokens for prompt in prompts]
    results = llm.generate(texts, params, progress=lambda _: bench.check_time("an answer"))
    took = time.perf_counter() - begin
    return run_of(results, took), [result.token_ids for result in results]


def run_of(results: Sequence[Result], seconds: float) -> Run:
    for result in results:
        if result.error is not None:
            raise result.error
    tokens = sum(len(result.token_ids) for result in results)
    stats = [result.stats for result in results]
    return {
        "tokens": tokens,
        "seconds": round(seconds, 5),
        "tokens_per_second": round(tokens / seconds, 2),
        "tokens_per_step": round(tokens / max(1, sum(one.steps for one in stats)), 4),
        "accepted": sum(one.accepted for one in stats),
        "drafted": sum(one.drafted for one in stats),
    }


def warm(bench: Bench, sizes: Sequence[int]) -> None:
    """Both sides at these batch sizes, so that kernels are compiled and graphs captured; with other
    prompts than those that are timed."""
    prompts = list(bench.prompts["edit"])[::-1]
    for size in sizes:
        bench.check_time("warming up")
        for llm in engines(bench).values():
            some = [prompts[at % len(prompts)] for at in range(size)]
            asked(bench, llm, some, greedy(min(48, bench.scale.tokens)))


def answers(bench: Bench, found: dict[str, Any]) -> None:
    """One at a time: edits, then chat, with the ratio of every prompt over the rounds."""
    scale = bench.scale
    warm(bench, (1,))
    sizes = {"edit": (scale.edits, 2 * scale.tokens), "chat": (scale.chats, scale.tokens)}
    runs: dict[str, dict[str, list[dict[str, Run]]]] = {"edit": {}, "chat": {}}
    different = found.setdefault("different", [])
    try:
        for turn in range(scale.rounds):
            for kind, (count, tokens) in sizes.items():
                both = engines(bench)
                for at, prompt in enumerate(bench.prompts[kind][:count]):
                    bench.check_time(f"round {turn + 1} of {kind}")
                    run, differs = _in_turns(bench, both, [prompt], greedy(tokens), turn + at)
                    different += [{"prompt": prompt.name, **one} for one in differs]
                    runs[kind].setdefault(prompt.name, []).append(run)
            bench.say(f"answers: round {turn + 1} of {scale.rounds}")
    finally:  # also what there is of a round that was not finished
        found |= {kind: _by_prompt(one) for kind, one in runs.items() if one}


def _in_turns(
    bench: Bench,
    both: Mapping[str, LLM],
    prompts: Sequence[Prompt],
    params: SamplingParams,
    turn: int,
) -> tuple[dict[str, Run], list[dict[str, int]]]:
    """What each side took, and where their texts differ."""
    sides: dict[str, Callable[[], tuple[Run, list[list[int]]]]] = {
        side: lambda llm=llm: asked(bench, llm, prompts, params)  # type: ignore[misc]
        for side, llm in both.items()
    }
    run = take_turns(sides, turn)
    texts = [run[side][1] for side in SIDES]
    return {side: one for side, (one, _) in run.items()}, first_differences(*texts)


def _by_prompt(runs: Mapping[str, Sequence[Mapping[str, Run]]]) -> dict[str, Any]:
    """Medians over the rounds for each prompt, then over the prompts."""
    lines = []
    for name, rounds in runs.items():
        speeds = {
            side: statistics.median(one[side]["tokens_per_second"] for one in rounds)
            for side in SIDES
        }
        lines.append(
            {
                "prompt": name,
                "tokens": rounds[0]["plain"]["tokens"],
                **{f"{side}_tokens_per_second": round(speed, 1) for side, speed in speeds.items()},
                "tokens_per_step": rounds[0]["drafts"]["tokens_per_step"],
                # Of a pair in turns: what a machine does meanwhile is in both.
                "ratio": round(statistics.median(_ratio(one) for one in rounds), 4),
                "rounds": len(rounds),
            }
        )
    middle: dict[str, Any] = {
        key: round(statistics.median(line[key] for line in lines), 4)
        for key in ("plain_tokens_per_second", "drafts_tokens_per_second", "ratio")
    }
    seconds = {
        side: sum(line["tokens"] / line[f"{side}_tokens_per_second"] for line in lines)
        for side in SIDES
    }
    tokens = sum(line["tokens"] for line in lines)
    total = {f"{side}_all": round(tokens / took, 1) for side, took in seconds.items()}
    least = round(min(line["ratio"] for line in lines), 4)
    return {**middle, **total, "least_ratio": least, "prompts": lines}


def _ratio(run: Mapping[str, Run]) -> float:
    """How many times as fast drafts are; the texts are the same."""
    return float(run["plain"]["seconds"] / run["drafts"]["seconds"])


def batch(bench: Bench, found: dict[str, Any]) -> None:
    """Many at once: edits and chats; what was asked before; samples."""
    scale = bench.scale
    different, lines = found.setdefault("different", []), found.setdefault("cases", [])
    warm(bench, scale.batches)
    for size in scale.batches:
        rounds = scale.rounds if size <= 64 else max(1, scale.rounds - 1)
        for kind in ("edit", "chat"):
            lines.append(_at_once(bench, kind, size, rounds, different))
    again = scale.batches[0]
    lines.append(_at_once(bench, "edit", again, scale.rounds, different, again=True))
    lines.append(_samples(bench, different))


def _at_once(
    bench: Bench, kind: str, size: int, rounds: int, different: list[Any], *, again: bool = False
) -> dict[str, Any]:
    """`again`: both sides have answered the same before, which is not timed."""
    prompts, params = list(bench.prompts[kind][:size]), greedy(bench.scale.tokens)
    prompts += [prompts[at % len(prompts)] for at in range(size - len(prompts))]
    runs = []
    for turn in range(rounds):
        bench.check_time(f"{size} of {kind}")
        both = engines(bench)
        if again:
            for side in SIDES:
                asked(bench, both[side], prompts, params)
        run, differs = _in_turns(bench, both, prompts, params, turn)
        different += [{"at_once": size, "kind": kind, **one} for one in differs]
        runs.append(run)
        both.clear()
    return _line(bench, f"{size} {kind}s{' again' if again else ''}", runs)


def _samples(bench: Bench, different: list[Any]) -> dict[str, Any]:
    """Several answers to each of a few prompts, at temperature 0.8."""
    count, each = bench.scale.samples
    prompts = bench.prompts["edit"][:count]
    params = SamplingParams(max_tokens=bench.scale.tokens, temperature=0.8, seed=7, n=each)
    runs = []
    for turn in range(bench.scale.rounds):
        bench.check_time("samples")
        run, differs = _in_turns(bench, engines(bench), prompts, params, turn)
        different += [{"samples": count * each, **one} for one in differs]
        runs.append(run)
    return _line(bench, f"{count} x {each} samples, T 0.8", runs)


def _line(bench: Bench, name: str, runs: Sequence[Mapping[str, Run]]) -> dict[str, Any]:
    speeds = {
        side: round(statistics.median(run[side]["tokens_per_second"] for run in runs), 1)
        for side in SIDES
    }
    found = {
        "case": name,
        "tokens": runs[0]["plain"]["tokens"],
        **{f"{side}_tokens_per_second": speed for side, speed in speeds.items()},
        "tokens_per_step": runs[0]["drafts"]["tokens_per_step"],
        "ratio": round(statistics.median(map(_ratio, runs)), 4),
        "ratios": [round(_ratio(run), 3) for run in runs],
    }
    bench.say(f"{found}")
    return found
