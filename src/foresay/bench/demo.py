"""The demonstration: the same prompts without and with speculation, compared token by token.

What a step costs by its rows is shown beside it: a draft pays where verifying it costs less than
the steps that it saves.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import TYPE_CHECKING, Any

from foresay.budget.adaptive import Adaptive
from foresay.counts import first_difference, tokens_per_step
from foresay.drafter import Source
from foresay.models.progress import Progress, silent
from foresay.sampling.params import SamplingParams

if TYPE_CHECKING:
    from foresay.engine.llm import LLM, Result

__all__ = [
    "Comparison",
    "Demo",
    "DemoPrompt",
    "StepTime",
    "TimedResults",
    "built_in_prompts",
    "compare",
    "step_times",
]

ROWS = (1, 4, 8, 16)
CONTEXT = 256  # tokens of the text: about what the prompts and their answers have

# Sampled: that needs all that greedy decoding needs, and the noise.
_WARM_UP = ("Name three colours.", SamplingParams(max_tokens=12, seed=1, ignore_eos=True))


@dataclass(frozen=True, slots=True)
class DemoPrompt:
    """A prompt and how it is to be answered."""

    name: str
    text: str
    params: SamplingParams


@dataclass(frozen=True, slots=True)
class StepTime:
    """What a step of so many rows takes: one for the next token, the others verify a draft.

    relative  compared with a step of one row
    """

    rows: int
    seconds: float
    relative: float

    @property
    def break_even(self) -> float | None:
        """How many drafted tokens such a step must accept to be worth its time; None where even all
        of them are too few, or nothing is drafted.
        """
        least = self.relative - 1
        return least if least < self.rows - 1 else None

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "rows": self.rows,
            "seconds": round(self.seconds, 6),
            "relative": round(self.relative, 4),
            "break_even": None if self.break_even is None else round(self.break_even, 4),
        }


@dataclass(frozen=True, slots=True)
class TimedResults:
    """The answers to one prompt, and the seconds that they took, prefill included."""

    results: list[Result]
    seconds: float

    @property
    def tokens(self) -> int:
        return sum(len(result.token_ids) for result in self.results)

    @property
    def steps(self) -> int:
        """Decode steps; see `foresay.counts`."""
        return sum(result.stats.steps for result in self.results)


@dataclass(frozen=True, slots=True)
class Comparison:
    """A prompt's answers without and with speculation; prompt None: of the whole demonstration."""

    prompt: DemoPrompt | None
    plain: TimedResults
    fast: TimedResults

    @property
    def differences(self) -> list[tuple[int, int]]:
        """(answer, token) of the first difference of every answer that has one; an answer that
        failed differs from its first token on.
        """
        pairs = zip(self.plain.results, self.fast.results, strict=True)
        found = [(answer, _first_difference(a, b)) for answer, (a, b) in enumerate(pairs)]
        return [(answer, token) for answer, token in found if token is not None]

    @property
    def identical(self) -> bool:
        return not self.differences

    @property
    def tokens_per_step(self) -> float:
        return tokens_per_step(self.fast.tokens, self.fast.steps)

    @property
    def speedup(self) -> float:
        """Seconds without speculation by seconds with it."""
        return self.plain.seconds / self.fast.seconds

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "answers": len(self.fast.results),
            "tokens": self.fast.tokens,
            "plain_seconds": round(self.plain.seconds, 4),
            "speculative_seconds": round(self.fast.seconds, 4),
            "plain_steps": self.plain.steps,
            "speculative_steps": self.fast.steps,
            "tokens_per_step": round(self.tokens_per_step, 4),
            "speedup": round(self.speedup, 4),
            "identical": self.identical,
        }


@dataclass(frozen=True, slots=True)
class Demo:
    """All comparisons, in the order of the prompts."""

    comparisons: list[Comparison]

    @property
    def total(self) -> Comparison:
        return Comparison(
            None,
            _together([comparison.plain for comparison in self.comparisons]),
            _together([comparison.fast for comparison in self.comparisons]),
        )

    @property
    def sources(self) -> Counter[Source]:
        """How many tokens were drafted from where."""
        results = self.total.fast.results
        own = Source.MODEL
        return Counter(s for r in results for s in r.sources or [own] * len(r.token_ids))


def built_in_prompts(max_tokens: int) -> list[DemoPrompt]:
    """The prompts that come with the package; greedy where they say nothing else.

    Raises: InputError for max_tokens below 1.
    """
    file = resources.files("foresay") / "data" / "prompts.jsonl"
    prompts = []
    for line in file.read_text(encoding="utf-8").splitlines():
        fields = {"temperature": 0.0, **json.loads(line)}
        name, text = fields.pop("name"), fields.pop("prompt")
        prompts.append(DemoPrompt(name, text, SamplingParams(max_tokens=max_tokens, **fields)))
    return prompts


def step_times(llm: LLM) -> list[StepTime]:
    """What a decode step of one request takes, as it was measured when the model was loaded and
    corrected since; nothing for a policy that does not measure it.
    """
    policy = llm.engine.policy
    if not isinstance(policy, Adaptive):
        return []
    times = policy.cost.grid(ROWS, (CONTEXT,))[:, 0].tolist()
    return [StepTime(*step, step[1] / times[0]) for step in zip(ROWS, times, strict=True)]


def compare(
    plain: LLM, fast: LLM, prompts: Sequence[DemoPrompt], progress: Progress = silent
) -> Iterator[Comparison]:
    """Answer every prompt with both, one after the other, so that a noisy machine disturbs both;
    each comparison as soon as it is made.

    progress  called with "warm", then "answer": tokens of 2 * n * max_tokens of every prompt

    Raises: InputError for a prompt that cannot be answered.
    """
    progress("warm", 0, None)
    for llm in (plain, fast):  # first calls of a library are slow, and must not count
        llm.generate(*_WARM_UP, chat=llm.tokenizer.chats)
    done, total = 0, 2 * sum(prompt.params.n * prompt.params.max_tokens for prompt in prompts)
    progress("answer", done, total)

    def timed(llm: LLM, prompt: DemoPrompt) -> TimedResults:
        nonlocal done
        most = done + prompt.params.n * prompt.params.max_tokens

        def advance(tokens: int) -> None:
            nonlocal done
            done += tokens
            progress("answer", done, total)

        began = time.perf_counter()
        results = llm.generate(
            prompt.text, prompt.params, chat=llm.tokenizer.chats, progress=advance
        )
        run = TimedResults(results, time.perf_counter() - began)
        advance(most - done)  # answers may have ended early
        return run

    for number, prompt in enumerate(prompts):
        # The second run finds the processor's caches warm, so the order alternates.
        if number % 2:
            fast_run = timed(fast, prompt)
            yield Comparison(prompt, timed(plain, prompt), fast_run)
        else:
            plain_run = timed(plain, prompt)
            yield Comparison(prompt, plain_run, timed(fast, prompt))


def _together(runs: list[TimedResults]) -> TimedResults:
    return TimedResults([r for run in runs for r in run.results], sum(run.seconds for run in runs))


def _first_difference(a: Result, b: Result) -> int | None:
    if a.error is not None or b.error is not None:
        return 0
    return first_difference(a.token_ids, b.token_ids)
