"""The parts of processors.py: who is asked for what, in turns, and the runs that come of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any

import harness
from foresay.counts import first_difference
from harness import say, take_turns
from processors_bars import (
    CONTINUOUS,
    DEFAULT,
    GENERATE_LOOKUP,
    LLAMA,
    NONE,
    ROWS,
    TRANSFORMERS,
    speed,
)
from workers import Worker

OURS = {NONE: "none", DEFAULT: "default"}
Sides = dict[str, Callable[[], Any]]


@dataclass(frozen=True)
class Scale:
    """How much is measured; the defaults are the whole run.

    rounds  of every part: each asks everybody for everything once, with fresh engines
    each    prompts of a task, at most
    """

    tokens: int = 128
    rounds: int = 3
    each: int = 8
    prefill_tokens: int = 512
    decode_tokens: int = 64
    batch_tokens: int = 64
    requests: int = 8
    row_repeats: int = 15
    row_context: int = 128
    transformers_tokens: int = 32

    def at_most(self, tokens: int) -> Scale:
        names = ("tokens", "decode_tokens", "batch_tokens", "transformers_tokens")
        values = asdict(self)
        return replace(self, **{name: min(values[name], tokens) for name in names})


QUICK = Scale(32, 1, 1, decode_tokens=24, batch_tokens=16, row_repeats=5, transformers_tokens=8)


@dataclass(frozen=True)
class Prompt:
    """A prompt's tokens; `length` is how many our answer has, or the most that are asked for."""

    name: str
    task: str
    tokens: list[int]
    length: int


@dataclass
class Bench:
    """What the parts share: how each engine is loaded, and a worker of each that keeps its model.

    loads  by engine: what its worker's `load` is given. "foresay" is always there
    """

    loads: Mapping[str, dict[str, Any]]
    threads: int
    limit: float
    scale: Scale
    file_bytes: int
    lookups: Sequence[int]
    workers: dict[str, Worker] = field(default_factory=dict)
    prompts: list[Prompt] = field(default_factory=list)
    different: list[dict[str, Any]] = field(default_factory=list)
    compared: int = 0

    def start(self, engine: str) -> Worker:
        """A process of its own. OpenMP's threads sleep soon after a request; see `Worker.ask`."""
        script = str(harness.HERE / "processors_engines.py")
        return Worker(
            {"llama": LLAMA}.get(engine, engine),
            [sys.executable, script, engine],
            seconds=self.limit,
            environment={"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"},
        )

    def load(self, engine: str, worker: Worker) -> dict[str, Any]:
        found: dict[str, Any] = worker.ask("load", **self.loads[engine], threads=self.threads)
        return found

    def ask(self, engine: str, what: str, /, **values: Any) -> Any:
        return self.workers[engine].ask(what, **values)

    @property
    def llama(self) -> bool:
        return "llama" in self.workers

    def first(self, count: int) -> list[Prompt]:
        """The first prompts of each task."""
        found: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            found.setdefault(prompt.task, []).append(prompt)
        return [prompt for some in found.values() for prompt in some[:count]]

    def forget(self) -> None:
        """Fresh engines that remember nothing: a round begins."""
        for engine in self.workers:
            if engine != "transformers":
                self.ask(engine, "forget")

    def compare(self, part: str, prompt: str, one: Sequence[int], other: Sequence[int]) -> None:
        """Our text with speculation must be our text without."""
        self.compared += 1
        place = first_difference(one, other)
        if place is not None:
            self.different.append({"part": part, "prompt": prompt, "token": place})

    def ours(self, tokens: list[int], count: int, *sides: str) -> dict[str, Any]:
        """Answers of our engines, step by step in turns."""
        engines = [OURS[side] for side in sides]
        found = self.ask("foresay", "answer", tokens=tokens, count=count, engines=engines)
        return {side: _counted(found[OURS[side]]) for side in sides}

    def theirs(self, tokens: list[int], count: int, lookup: int = 0) -> dict[str, Any]:
        return _counted(self.ask("llama", "answer", tokens=tokens, count=count, lookup=lookup))

    def text(self, size: int, begin: int = 0) -> list[int]:
        """So many tokens of all prompts, one behind the other."""
        text = [token for prompt in self.prompts for token in prompt.tokens]
        return (text[begin % len(text) :] + text * (size // len(text) + 1))[:size]


def _counted(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "tokens": len(found["token_ids"])}


def load(bench: Bench) -> dict[str, Any]:
    """Fresh processes: imports, the model, the first token, memory. The models were loaded before,
    so that all files are cached.
    """
    names, runs = {"foresay": DEFAULT, "llama": LLAMA}, []
    for turn in range(bench.scale.rounds):

        def fresh(engine: str) -> dict[str, Any]:
            with bench.start(engine) as worker:
                found = bench.load(engine, worker)
                if engine == "foresay":
                    found["model_bytes"] = found["bytes"] - worker.ask("drop")
                return found

        sides = {names.get(engine, engine): partial(fresh, engine) for engine in bench.workers}
        runs.append({"sides": take_turns(sides, turn)})
    return {"runs": runs, "file_bytes": bench.file_bytes}


def prefill(bench: Bench) -> dict[str, Any]:
    """A long prompt and its first token. Each turn has another prompt, since the beginning of one
    that was seen is stored.
    """
    size, runs = bench.scale.prefill_tokens, []
    bench.forget()
    for turn in range(3 * bench.scale.rounds + 1):
        tokens = bench.text(size, 29 * (turn + 1))
        sides: Sides = {NONE: partial(bench.ask, "foresay", "prefill", tokens=tokens)}
        if bench.llama:
            sides[LLAMA] = partial(bench.ask, "llama", "prefill", tokens=tokens)
        run = take_turns(sides, turn)
        if turn:  # the first is for warming up
            runs.append({"sides": run})
    return {"runs": runs, "tokens": size}


def decode(bench: Bench) -> dict[str, Any]:
    """One request without speculation; only what follows the first token counts."""
    runs, count = [], bench.scale.decode_tokens
    bench.forget()
    for turn in range(bench.scale.rounds):
        for at, prompt in enumerate(bench.first(1)):
            sides: Sides = {NONE: lambda p=prompt: bench.ours(p.tokens, count, NONE)[NONE]}
            if bench.llama:
                sides[LLAMA] = partial(bench.theirs, prompt.tokens, count)
            runs.append(_run(prompt, take_turns(sides, turn + at)))
    return {"runs": runs, "past_the_end": True}


def batch(bench: Bench) -> dict[str, Any]:
    """Many requests at once, prompts of `chat`: short, and nothing to copy. Every side writes as
    many tokens of each answer as we do until it ends.
    """
    size, most = bench.scale.requests, bench.scale.batch_tokens
    chats = [p for p in bench.prompts if p.task == "chat"] or bench.prompts
    chosen = [chats[at % len(chats)] for at in range(size)]
    asked: dict[str, Any] = {
        "prompts": [p.tokens for p in chosen],
        "counts": [min(most, p.length) for p in chosen],
    }
    runs, total = [], {"tokens": sum(asked["counts"])}
    for turn in range(bench.scale.rounds + 1):
        sides: Sides = {
            side: partial(bench.ask, "foresay", "batch", engine=engine, **asked)
            for side, engine in OURS.items()
        }
        for engine, name in ((LLAMA, "llama"), (CONTINUOUS, "transformers")):
            if name in bench.workers:
                sides[engine] = partial(bench.ask, name, "batch", **asked)
        run = take_turns(sides, turn)
        texts = zip(chosen, run[DEFAULT]["token_ids"], run[NONE]["token_ids"], strict=True)
        for prompt, one, other in texts:
            bench.compare("batch", prompt.name, one, other)
        if turn:  # the first is for warming up
            runs.append({"sides": {side: _figures(one) | total for side, one in run.items()}})
    return {"runs": runs, "requests": size, "counts": asked["counts"]}


def rows(bench: Bench) -> dict[str, Any]:
    """Steps of few rows after one text, logits for all of them: what verifying drafts costs."""
    scale = bench.scale
    tokens = bench.text(scale.row_context)
    asked = {"tokens": tokens, "sizes": list(ROWS), "repeats": scale.row_repeats}
    sides: Sides = {NONE: partial(bench.ask, "foresay", "rows", **asked)}
    if bench.llama:
        sides[LLAMA] = partial(bench.ask, "llama", "rows", **asked)
    runs = [{"sides": take_turns(sides, turn)} for turn in range(scale.rounds)]
    return {"runs": runs, "context": scale.row_context}


def tasks(bench: Bench) -> dict[str, Any]:
    """Every prompt, one at a time, prefill included. In each round everybody begins anew, and gets
    no prompt twice. llama.cpp has what the template gives to all prompts stored, as our prefix
    cache has, and not the prompt itself, which its other settings may have had just before.
    """
    template, runs = _common([p.tokens for p in bench.prompts]), []

    def theirs(prompt: Prompt, lookup: int) -> dict[str, Any]:
        bench.ask("llama", "keep", tokens=template)
        return bench.theirs(prompt.tokens, prompt.length, lookup)

    for turn in range(bench.scale.rounds):
        bench.forget()
        for at, prompt in enumerate(bench.prompts):
            sides: Sides = {"foresay": partial(bench.ours, prompt.tokens, prompt.length, *OURS)}
            for lookup in (0, *bench.lookups) if bench.llama else ():
                name = f"{LLAMA}, lookup {lookup}" if lookup else LLAMA
                sides[name] = partial(theirs, prompt, lookup)
            found = take_turns(sides, turn + at)
            run = found.pop("foresay") | found
            bench.compare("tasks", prompt.name, run[DEFAULT]["token_ids"], run[NONE]["token_ids"])
            runs.append({"round": turn} | _run(prompt, run))
            speeds = ", ".join(f"{side} {speed(one):.1f}" for side, one in run.items())
            say(f"{prompt.task} {prompt.name}, {prompt.length} tokens: {speeds} tokens/s")
    return {"runs": runs, "lookups": list(bench.lookups)}


def _common(prompts: Sequence[list[int]]) -> list[int]:
    """The beginning of all prompts."""
    first, last = min(prompts), max(prompts)
    return first[: first_difference(first, last)] if len(prompts) > 1 else []


def transformers(bench: Bench) -> dict[str, Any]:
    """`generate`, one prompt of each task, plain and with prompt lookup, against ours without and
    with speculation."""
    runs = []
    for turn in range(bench.scale.rounds if "transformers" in bench.workers else 0):
        bench.forget()
        for at, prompt in enumerate(bench.first(1)):
            count = min(bench.scale.transformers_tokens, prompt.length)
            asked = {"tokens": prompt.tokens, "count": count}
            sides: Sides = {"foresay": partial(bench.ours, prompt.tokens, count, *OURS)}
            for name, lookup in ((TRANSFORMERS, 0), (GENERATE_LOOKUP, 10)):
                ask = partial(bench.ask, "transformers", "answer", lookup=lookup, **asked)
                sides[name] = lambda ask=ask: _counted(ask())
            found = take_turns(sides, turn + at)
            runs.append(_run(prompt, found.pop("foresay") | found))
    return {"runs": runs}


def _run(prompt: Prompt, sides: dict[str, Any]) -> dict[str, Any]:
    """A run as it is recorded: without texts, but how far each is the same as ours."""
    mine = sides[NONE]["token_ids"]
    described = {}
    for side, one in sides.items():
        place = first_difference(mine, one["token_ids"])
        same = len(mine) if place is None else place
        described[side] = _figures(one) | {"same_tokens": same}
    about = {"prompt": prompt.name, "task": prompt.task, "prompt_tokens": len(prompt.tokens)}
    return about | {"sides": described}


def _figures(one: dict[str, Any]) -> dict[str, Any]:
    return {
        key: round(value, 6) if isinstance(value, float) else value
        for key, value in one.items()
        if key != "token_ids"
    }


PARTS = {
    "load": load,
    "prefill": prefill,
    "decode": decode,
    "batch": batch,
    "rows": rows,
    "tasks": tasks,
    "transformers": transformers,
}
