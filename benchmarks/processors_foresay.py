"""foresay's worker of processors.py. Without speculation and with the default are two engines over
one model, which answer a prompt step by step in turns: so both share the machine's phases.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from processors_worker import Timer, memory, serve

WAYS = ("none", "default")


class Foresay:
    """One model in memory, and an engine for each way."""

    def load(self, model: str, dtype: str, threads: int) -> dict[str, Any]:
        """As a user does it: LLM(model), then a first answer of one token."""
        imports = Timer()
        import torch

        from foresay import LLM, SamplingParams
        from foresay._core import cpu_level

        took = {"imports": imports.read()}
        torch.set_num_threads(threads)
        self._params = SamplingParams
        before, timer = memory(), Timer()
        self._llm = LLM(model, dtype=dtype)  # type: ignore[arg-type]
        took["model"] = timer.read()
        self._llm.generate([[1, 2, 3]], self._greedy(1))
        took["first_token"] = timer.read()
        after = memory()
        return {
            "took": took,
            "memory": after,
            "grown_bytes": after["bytes"] - before["bytes"],
            "level": cpu_level(),
            "exact": self._llm.target.exact,
            "dtype": str(getattr(self._llm.target, "dtype", dtype)).removeprefix("torch."),
        }

    def drop(self) -> dict[str, int]:
        """The memory of this process without the model: what it needs for the tokenizer, and for
        what was imported with the model, stays.
        """
        del self._llm.target, self._llm.engine
        return memory()

    def forget(self) -> None:
        """Fresh engines, which remember no prompt and no answer: a round begins."""
        self._ways = {
            "none": self._llm.beside(None, "none"),
            "default": self._llm.beside(),
        }
        for llm in self._ways.values():
            llm.generate([[1, 2, 3, 4, 5]], self._greedy(4))

    def encode(self, texts: list[str], chat: bool) -> list[list[int]]:
        return [self._llm.encode(text, chat=chat).tolist() for text in texts]

    def lengths(self, prompts: list[list[int]], most: int) -> list[int]:
        """How long the answers are, where they end by themselves."""
        llm = self._llm.beside(None, "none")
        params = self._params(temperature=0, max_tokens=most)
        return [len(result.token_ids) for result in llm.generate(prompts, params)]

    def prefill(self, tokens: list[int]) -> dict[str, Any]:
        """A first token. The prompt must not begin as an earlier one, whose prefix is stored."""
        timer = Timer()
        (result,) = self._ways["none"].generate([tokens], self._greedy(1))
        return {**timer.read(), "tokens": len(tokens) - result.stats.shared_tokens}

    def answer(
        self, tokens: list[int], count: int, ways: list[str] | None = None
    ) -> dict[str, dict[str, Any]]:
        """Exactly so many tokens of each way, one step of each after the other."""
        streams: dict[str, Any] = {}
        took: dict[str, list[float]] = {}
        found: dict[str, dict[str, Any]] = {}
        for way in ways or WAYS:
            begin = time.perf_counter()
            streams[way] = self._ways[way].stream([tokens], self._greedy(count))
            took[way] = [time.perf_counter() - begin]
        names = list(streams)
        while names:
            for way in list(names):
                begin = time.perf_counter()
                chunk = next(streams[way])
                took[way].append(time.perf_counter() - begin)
                if chunk.result is not None:
                    names.remove(way)
                    found[way] = _described(chunk.result, took[way])
            names = [*names[1:], *names[:1]]  # who begins changes from step to step
        return found

    def batch(self, prompts: list[list[int]], counts: list[int], way: str) -> dict[str, Any]:
        """All prompts at once, so many tokens of each."""
        llm = self._llm.beside(None, "none") if way == "none" else self._llm.beside()
        llm.generate([[1, 2, 3, 4, 5]] * 2, self._greedy(4))
        timer = Timer()
        results = llm.generate(prompts, [self._greedy(count) for count in counts])
        took = timer.read()
        for result in results:
            _check(result)
        return {**took, "token_ids": [result.token_ids for result in results]}

    def rows(self, tokens: list[int], sizes: list[int], repeats: int) -> dict[str, list[float]]:
        """Seconds of steps of so many rows after these tokens, the sizes in turns: the last token
        and a chain of drafted ones.
        """
        import numpy as np

        from foresay import Draft
        from foresay.models.target import Part

        target, found = self._llm.target, {str(size): [] for size in sizes}
        kv, text = target.open(), np.array(tokens, np.int32)
        prompt = Part.of(target, kv, text[:-1])
        target.forward([prompt])
        prompt.keep()
        for repeat in range(-1, repeats):
            for size in sizes:
                draft = Draft.chain(np.repeat(text[-1:], size - 1))
                begin = time.perf_counter()
                target.forward([Part.of(target, kv, text[-1:], draft)])
                took = time.perf_counter() - begin
                if repeat >= 0:  # the first is for warming up
                    found[str(size)].append(took)
        return found

    def _greedy(self, tokens: int) -> Any:
        return self._params(temperature=0, max_tokens=tokens, ignore_eos=True)


def _check(result: Any) -> None:
    if result.error is not None:
        raise result.error


def _described(result: Any, took: list[float]) -> dict[str, Any]:
    _check(result)
    return {
        "seconds": sum(took),
        "first_seconds": sum(took[:2]),
        "token_ids": result.token_ids,
        "steps": result.stats.steps,
        "drafted": result.stats.drafted,
        "accepted": result.stats.accepted,
    }


def main() -> None:
    foresay = Foresay()
    tasks = ("load", "drop", "forget", "encode", "lengths", "prefill", "answer", "batch", "rows")
    serve({name: getattr(foresay, name) for name in tasks})


if __name__ == "__main__":
    sys.exit(main())
