"""The parts of processors.py: who is asked for what, in turns, and the runs that come of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from processors_bars import DEFAULT, LLAMA, NONE, ROWS, TRANSFORMERS
from processors_worker import Worker
from ratios import take_turns

HERE = Path(__file__).parent


@dataclass(frozen=True)
class Scale:
    """How much is measured; the defaults are the whole run."""

    tokens: int = 128
    """Of every answer of `tasks`, at most."""
    rounds: int = 3
    """Of every part: each asks everybody for everything once, with fresh engines."""
    each: int = 8
    """Prompts of a task, at most."""
    prefill_tokens: int = 512
    decode_tokens: int = 64
    batch_tokens: int = 64
    requests: int = 8
    row_repeats: int = 15
    row_context: int = 128
    transformers_tokens: int = 32
    """At 60 ms a token more would only take longer."""


QUICK = Scale(
    tokens=32,
    rounds=1,
    each=1,
    decode_tokens=24,
    batch_tokens=16,
    row_repeats=5,
    transformers_tokens=8,
)


@dataclass(frozen=True)
class Prompt:
    name: str
    task: str
    tokens: list[int]
    length: int
    """Tokens of our answer, where it ends by itself, or the most that are asked for."""


@dataclass(frozen=True)
class Engines:
    """Which engines there are, and how each is started and loaded."""

    loads: dict[str, dict[str, Any]]
    """By engine: what its worker's `load` is given. "foresay" is always there."""
    threads: int
    seconds: float = 900

    def start(self, engine: str) -> Worker:
        """A process of its own. OpenMP's threads sleep soon after a request; see `Worker.ask`."""
        return Worker(
            {"llama": LLAMA}.get(engine, engine),
            [sys.executable, str(HERE / f"processors_{engine}.py")],
            seconds=self.seconds,
            environment={"OMP_NUM_THREADS": str(self.threads), "TOKENIZERS_PARALLELISM": "false"},
        )

    def load(self, engine: str, worker: Worker) -> dict[str, Any]:
        found: dict[str, Any] = worker.ask("load", **self.loads[engine], threads=self.threads)
        return found


@dataclass
class Bench:
    """What the parts share: a worker of each engine, which keeps its model."""

    engines: Engines
    workers: dict[str, Worker]
    scale: Scale
    prompts: list[Prompt]
    file_bytes: int
    lookups: Sequence[int] = (2, 4)
    different: list[dict[str, Any]] = field(default_factory=list)
    compared: int = 0

    @property
    def foresay(self) -> Worker:
        return self.workers["foresay"]

    @property
    def llama(self) -> Worker | None:
        return self.workers.get("llama")

    def first(self, count: int) -> list[Prompt]:
        """The first prompts of each task."""
        found: dict[str, list[Prompt]] = {}
        for prompt in self.prompts:
            found.setdefault(prompt.task, []).append(prompt)
        return [prompt for some in found.values() for prompt in some[:count]]

    def forget(self) -> None:
        """Fresh engines that remember nothing: a round begins."""
        self.foresay.ask("forget")
        if self.llama is not None:
            self.llama.ask("forget")

    def compare(self, part: str, prompt: str, one: Sequence[int], other: Sequence[int]) -> None:
        """Our text with speculation must be our text without."""
        self.compared += 1
        if list(one) != list(other):
            pairs = zip(one, other, strict=False)
            size = min(len(one), len(other))
            place = next((at for at, (a, b) in enumerate(pairs) if a != b), size)
            self.different.append({"part": part, "prompt": prompt, "token": place})


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def ours(bench: Bench, tokens: list[int], count: int, ways: Sequence[str]) -> dict[str, Any]:
    """Answers of our engine: the ways step by step in turns."""
    names = {NONE: "none", DEFAULT: "default"}
    found = bench.foresay.ask("answer", tokens=tokens, count=count, ways=[names[w] for w in ways])
    return {way: _counted(found[names[way]]) for way in ways}


def _counted(found: dict[str, Any]) -> dict[str, Any]:
    return {**found, "tokens": len(found["token_ids"])}


def load(bench: Bench) -> dict[str, Any]:
    """Fresh processes: imports, the model, the first token, memory. The models were loaded before,
    so that all files are cached.
    """
    runs = []
    for turn in range(bench.scale.rounds):

        def fresh(engine: str) -> dict[str, Any]:
            with bench.engines.start(engine) as worker:
                found = bench.engines.load(engine, worker)
                if engine == "foresay":
                    found["without_model"] = worker.ask("drop")
                    left = found["without_model"]["bytes"]
                    found["model_bytes"] = found["memory"]["bytes"] - left
                return found

        ways = {
            {"foresay": DEFAULT, "llama": LLAMA}.get(engine, engine): partial(fresh, engine)
            for engine in bench.workers
        }
        runs.append({"ways": take_turns(ways, turn)})
        took = {way: one["took"]["first_token"]["seconds"] for way, one in runs[-1]["ways"].items()}
        say("load: " + ", ".join(f"{way} {value:.1f} s" for way, value in took.items()))
    return {"runs": runs, "file_bytes": bench.file_bytes}


def prefill(bench: Bench) -> dict[str, Any]:
    """A long prompt and its first token. Each turn has another prompt, since the beginning of one
    that was seen is stored.
    """
    size, runs = bench.scale.prefill_tokens, []
    text = [token for prompt in bench.prompts for token in prompt.tokens]
    bench.forget()
    for turn in range(3 * bench.scale.rounds + 1):
        begin = 29 * (turn + 1) % len(text)
        tokens = (text[begin:] + text * (size // len(text) + 1))[:size]
        ways: dict[str, Callable[[], Any]] = {
            NONE: partial(bench.foresay.ask, "prefill", tokens=tokens)
        }
        if bench.llama is not None:
            ways[LLAMA] = partial(bench.llama.ask, "prefill", tokens=tokens)
        run = take_turns(ways, turn)
        if turn:  # the first is for warming up
            runs.append({"ways": run})
    return {"runs": runs, "tokens": size}


def decode(bench: Bench) -> dict[str, Any]:
    """One request without speculation; only what follows the first token counts."""
    runs, count = [], bench.scale.decode_tokens
    bench.forget()
    prompts = bench.first(1)
    for turn in range(bench.scale.rounds):
        for at, prompt in enumerate(prompts):
            ways: dict[str, Callable[[], Any]] = {
                NONE: lambda p=prompt: ours(bench, p.tokens, count, [NONE])[NONE]
            }
            if bench.llama is not None:
                ways[LLAMA] = lambda p=prompt: _theirs(bench, p.tokens, count)
            runs.append(_run(prompt, take_turns(ways, turn + at)))
    return {"runs": runs, "past_the_end": True}


def _theirs(bench: Bench, tokens: list[int], count: int, lookup: int = 0) -> dict[str, Any]:
    assert bench.llama is not None
    return _counted(bench.llama.ask("answer", tokens=tokens, count=count, lookup=lookup))


def batch(bench: Bench) -> dict[str, Any]:
    """Many requests at once, prompts of `chat`: short, and nothing to copy. Every way writes as
    many tokens of each answer as we do until it ends.
    """
    size, most = bench.scale.requests, bench.scale.batch_tokens
    chats = [p for p in bench.prompts if p.task == "chat"] or bench.prompts
    chosen = [chats[at % len(chats)] for at in range(size)]
    prompts, counts = [p.tokens for p in chosen], [min(most, p.length) for p in chosen]
    runs = []
    for turn in range(bench.scale.rounds + 1):
        ask = partial(bench.foresay.ask, "batch", prompts=prompts, counts=counts)
        ways: dict[str, Callable[[], Any]] = {
            NONE: partial(ask, way="none"),
            DEFAULT: partial(ask, way="default"),
        }
        if bench.llama is not None:
            ways[LLAMA] = partial(bench.llama.ask, "batch", prompts=prompts, counts=counts)
        run = take_turns(ways, turn)
        for prompt, one, other in zip(
            chosen, run[DEFAULT]["token_ids"], run[NONE]["token_ids"], strict=True
        ):
            bench.compare("batch", prompt.name, one, other)
        if turn:  # the first is for warming up
            total = {"tokens": sum(counts)}
            runs.append({"ways": {way: _without_texts(one) | total for way, one in run.items()}})
            took = (f"{way} {one['seconds']:.2f} s" for way, one in run.items())
            say(f"batch: {', '.join(took)}")
    return {"runs": runs, "requests": size, "counts": counts}


def rows(bench: Bench) -> dict[str, Any]:
    """Steps of few rows after one text, logits for all of them: what verifying drafts costs."""
    scale, runs = bench.scale, []
    text = [token for prompt in bench.prompts for token in prompt.tokens]
    tokens = (text * (scale.row_context // len(text) + 1))[: scale.row_context]
    asked = {"tokens": tokens, "sizes": list(ROWS), "repeats": scale.row_repeats}
    for turn in range(scale.rounds):
        ways: dict[str, Callable[[], Any]] = {NONE: partial(bench.foresay.ask, "rows", **asked)}
        if bench.llama is not None:
            ways[LLAMA] = partial(bench.llama.ask, "rows", **asked)
        runs.append({"ways": take_turns(ways, turn)})
    return {"runs": runs, "context": scale.row_context}


def tasks(bench: Bench) -> dict[str, Any]:
    """Every prompt, one at a time, prefill included: our two ways, llama.cpp plain and with its
    prompt lookup. All write as many tokens as our answer has. In each round everybody begins anew,
    and gets no prompt twice.
    """
    runs = []
    for turn in range(bench.scale.rounds):
        bench.forget()
        for at, prompt in enumerate(bench.prompts):
            ways: dict[str, Callable[[], Any]] = {
                "foresay": lambda p=prompt: ours(bench, p.tokens, p.length, [NONE, DEFAULT])
            }
            if bench.llama is not None:
                for lookup in (0, *bench.lookups):
                    ways[f"{LLAMA}, lookup {lookup}" if lookup else LLAMA] = partial(
                        _theirs_from_the_template, bench, prompt, lookup
                    )
            found = take_turns(ways, turn + at)
            both = found.pop("foresay")
            run = both | found
            bench.compare("tasks", prompt.name, run[DEFAULT]["token_ids"], run[NONE]["token_ids"])
            runs.append({"round": turn} | _run(prompt, run))
            speeds = (f"{way} {o['tokens'] / o['seconds']:.1f}" for way, o in run.items())
            say(
                f"{prompt.task} {prompt.name}, {prompt.length} tokens: {', '.join(speeds)} tokens/s"
            )
    return {"runs": runs, "lookups": list(bench.lookups)}


def _theirs_from_the_template(bench: Bench, prompt: Prompt, lookup: int) -> dict[str, Any]:
    """llama.cpp's answer, with what the template gives to all prompts stored, as in our prefix
    cache, and not the prompt itself, which another way of llama.cpp may have had just before.
    """
    assert bench.llama is not None
    bench.llama.ask("keep", tokens=_common(bench.prompts))
    return _theirs(bench, prompt.tokens, prompt.length, lookup)


def _common(prompts: Sequence[Prompt]) -> list[int]:
    """The beginning of all prompts."""
    first, last = min(p.tokens for p in prompts), max(p.tokens for p in prompts)
    pairs = enumerate(zip(first, last, strict=False))
    size = next((at for at, (a, b) in pairs if a != b), min(len(first), len(last)))
    return first[:size] if len(prompts) > 1 else []


def transformers(bench: Bench) -> dict[str, Any]:
    """`generate`, one prompt of each task, against ours without and with speculation."""
    worker, runs = bench.workers.get("transformers"), []
    for turn in range(bench.scale.rounds if worker is not None else 0):
        assert worker is not None
        bench.forget()
        for at, prompt in enumerate(bench.first(1)):
            count = min(bench.scale.transformers_tokens, prompt.length)
            ways: dict[str, Callable[[], Any]] = {
                "foresay": lambda p=prompt, n=count: ours(bench, p.tokens, n, [NONE, DEFAULT]),
                TRANSFORMERS: lambda p=prompt, n=count: _counted(
                    worker.ask("answer", tokens=p.tokens, count=n)
                ),
            }
            found = take_turns(ways, turn + at)
            runs.append(_run(prompt, found.pop("foresay") | found))
    return {"runs": runs}


def _run(prompt: Prompt, ways: dict[str, Any]) -> dict[str, Any]:
    """A run as it is recorded: without texts, but how far each is the same as ours."""
    mine = ways[NONE]["token_ids"]
    described = {
        way: _without_texts(one) | {"same_tokens": _same(mine, one["token_ids"])}
        for way, one in ways.items()
    }
    about = {"prompt": prompt.name, "task": prompt.task, "prompt_tokens": len(prompt.tokens)}
    return about | {"ways": described}


def _same(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens are the same from the beginning."""
    pairs = enumerate(zip(one, other, strict=False))
    return next((at for at, (a, b) in pairs if a != b), min(len(one), len(other)))


def _without_texts(one: dict[str, Any]) -> dict[str, Any]:
    return {
        key: round(value, 6) if isinstance(value, float) else value
        for key, value in one.items()
        if key != "token_ids"
    }


PARTS: dict[str, Callable[[Bench], dict[str, Any]]] = {
    "load": load,
    "prefill": prefill,
    "decode": decode,
    "batch": batch,
    "rows": rows,
    "tasks": tasks,
    "transformers": transformers,
}


def start_all(engines: Engines, stack: ExitStack) -> tuple[dict[str, Worker], dict[str, Any]]:
    """A worker of each engine, its model loaded, and what each said of it."""
    workers, said = {}, {}
    for engine in engines.loads:
        workers[engine] = stack.enter_context(engines.start(engine))
        said[engine] = engines.load(engine, workers[engine])
        say(f"{engine}: loaded in {said[engine]['took']['model']['seconds']:.1f} s")
    return workers, said
