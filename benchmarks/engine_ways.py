"""Who answers in engine.py: our engine, and transformers in its four ways; and their texts."""

from __future__ import annotations

import json
import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers
from transformers import AutoModelForCausalLM, GenerationConfig
from transformers.generation.configuration_utils import ContinuousBatchingConfig

from foresay import LLM, SamplingParams
from foresay.budget.cost import StepCost
from foresay.budget.policy import make_policy
from foresay.counts import tokens_per_step
from foresay.drafter import Drafter
from foresay.engine.measure import measured_cost
from foresay.engine.text import AnswerText

clock = time.perf_counter
LOOKUP = 10  # tokens that transformers' prompt lookup drafts
PAGE = 256  # tokens of a page of transformers' continuous batching, its default


@dataclass(frozen=True)
class Prompt:
    name: str
    category: str
    tokens: list[int]


class Job(NamedTuple):
    """One answer that is wanted of our engine."""

    prompt: Prompt
    params: SamplingParams
    seed: int = 0
    group: str | None = None


class Moment(NamedTuple):
    """What one step did for one answer: how much of it there was, and what came of the step."""

    position: int
    drafted: int
    accepted: int
    tokens: int


@dataclass(frozen=True)
class Answered:
    """What somebody wrote, and how long it took, prompts included."""

    seconds: float
    texts: list[list[int]]
    steps: int | None = None
    moments: list[Moment] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(map(len, self.texts))

    @property
    def rate(self) -> float:
        """Tokens per second."""
        return self.tokens / self.seconds

    def as_dict(self) -> dict[str, Any]:
        out: dict[str, Any] = {
            "seconds": round(self.seconds, 4),
            "tokens": self.tokens,
            "tokens_per_second": round(self.rate, 2),
        }
        if self.steps is not None:
            drafted = sum(m.drafted for m in self.moments)
            accepted = sum(m.accepted for m in self.moments)
            out |= {"steps": self.steps, "drafted": drafted, "accepted": accepted}
            out["tokens_per_step"] = round(tokens_per_step(self.tokens, self.steps), 3)
        return out


def greedy(tokens: int, *, past_the_end: bool) -> SamplingParams:
    return SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=past_the_end)


class Answering:
    """Jobs in an LLM's engine, asked as `LLM.generate` asks them; `step` by step until `done`."""

    def __init__(self, llm: LLM, jobs: Sequence[Job]) -> None:
        self._engine = llm.engine
        start = clock()
        self._requests = [
            llm.engine.add(
                job.prompt.tokens,
                job.params,
                seed=job.seed,
                stops=() if job.params.ignore_eos else llm.tokenizer.ends,
                group=job.group,
                text=AnswerText(llm.tokenizer.decode),
                together=True,
            )
            for job in jobs
        ]
        self._seconds = clock() - start
        self._before = {id(request): (0, 0, 0) for request in self._requests}
        self._moments: list[Moment] = []

    def step(self) -> bool:
        """Whether there is more to do."""
        start = clock()
        written = self._engine.step()
        self._seconds += clock() - start
        for request in written:
            stats, old = request.stats, self._before[id(request)]
            new = stats.tokens, stats.drafted, stats.accepted
            self._moments.append(Moment(old[0], new[1] - old[1], new[2] - old[2], new[0] - old[0]))
            self._before[id(request)] = new
        return self._engine.busy

    def done(self) -> Answered:
        for request in self._requests:
            if request.error is not None:
                raise request.error
        # Steps of single answers: those that many answers had in common are counted for each.
        steps = sum(request.stats.steps for request in self._requests)
        texts = [request.token_ids for request in self._requests]
        return Answered(self._seconds, texts, steps, self._moments)


def answer(llm: LLM, jobs: Sequence[Job]) -> Answered:
    """All jobs at once."""
    asked = Answering(llm, jobs)
    while asked.step():
        pass
    return asked.done()


def step_in_turns(asked: Mapping[str, tuple[LLM, Sequence[Job]]]) -> dict[str, Answered]:
    """Everybody's jobs, one step of each after the other; who begins changes from step to step. The
    machine has phases of seconds in which everything takes twice as long: so all share them.
    """
    answering = {name: Answering(*given) for name, given in asked.items()}
    names = list(answering)
    while names:
        names = [name for name in (*names[1:], names[0]) if answering[name].step()]
    return {name: answering[name].done() for name in asked}


class Ours:
    """One model in memory, and as many engines over it as are wanted."""

    def __init__(self, model: str, dtype: Any) -> None:
        self.llm = LLM(model, None, "none", dtype=dtype)
        self._cost: StepCost | None = None

    def plain(self) -> LLM:
        return warm(self.llm.beside(None, "none"))

    def default(self, drafter: str | Drafter[Any] = "suffix") -> LLM:
        """A fresh engine with the default policy. The machine is measured once, for all of them:
        an LLM does it when it is made.
        """
        if self._cost is None:
            self._cost = measured_cost(self.llm.target)
        policy = make_policy("adaptive", deepcopy(self._cost))
        return warm(self.llm.beside(drafter, policy))


def warm(llm: LLM) -> LLM:
    """Let it say something short first, so that the first measured answer is not its first."""
    answer(llm, [Job(Prompt("warm", "", [1, 2, 3, 4, 5]), greedy(4, past_the_end=True))])
    return llm


class Theirs:
    """The same weights in transformers, as it comes: sdpa, its default cache, nothing packed.

    It never sees an end of text: all its answers have exactly as many tokens as are asked for.
    """

    def __init__(self, folder: Path, dtype: torch.dtype) -> None:
        transformers.logging.set_verbosity_error()
        transformers.logging.disable_progress_bar()
        logging.getLogger("ContinuousBatchingLogger").setLevel(logging.CRITICAL)
        self.model: Any = AutoModelForCausalLM.from_pretrained(
            folder, dtype=dtype, attn_implementation="sdpa", local_files_only=True
        ).eval()
        self.model.generation_config = GenerationConfig(do_sample=False, pad_token_id=0)
        self.model.config.eos_token_id = None
        self.plain([1, 2, 3], 4)

    def plain(self, prompt: Sequence[int], tokens: int) -> Answered:
        """`generate`, one token at a time."""
        return self._generate([list(prompt)], tokens)

    def lookup(self, prompt: Sequence[int], tokens: int) -> Answered:
        """`generate` with prompt lookup."""
        return self._generate([list(prompt)], tokens, prompt_lookup_num_tokens=LOOKUP)

    def padded(self, prompts: Sequence[Sequence[int]], tokens: int) -> Answered:
        """`generate` for a batch, the prompts padded to the longest on their left."""
        return self._generate([list(prompt) for prompt in prompts], tokens)

    def _generate(self, prompts: list[list[int]], tokens: int, **options: Any) -> Answered:
        longest = max(map(len, prompts))
        ids = torch.zeros((len(prompts), longest), dtype=torch.int64)
        mask = torch.zeros_like(ids)
        for row, prompt in enumerate(prompts):
            ids[row, longest - len(prompt) :] = torch.tensor(prompt)
            mask[row, longest - len(prompt) :] = 1
        start = clock()
        out = self.model.generate(ids, attention_mask=mask, max_new_tokens=tokens, **options)
        return _exactly(tokens, Answered(clock() - start, out[:, longest:].tolist()))

    @contextmanager
    def continuous(
        self, prompts: Sequence[Sequence[int]], tokens: int, rows: int
    ) -> Iterator[Callable[[], Answered]]:
        """Continuous batching: a function that answers the prompts, while its thread runs. Making
        pages and threads is not timed. Its pages are as many as the prompts need, so that nobody
        waits for memory; `rows` tokens at most are in a step.
        """
        pages = sum(-(-(len(prompt) + tokens) // PAGE) for prompt in prompts) + 1
        config = ContinuousBatchingConfig(
            num_blocks=pages, max_batch_tokens=rows, allow_block_sharing=False
        )
        wanted = GenerationConfig(do_sample=False, eos_token_id=-1, pad_token_id=0)
        manager = self.model.init_continuous_batching(
            generation_config=wanted, continuous_batching_config=config
        )
        manager.start()

        def wait_for(asked: Sequence[Sequence[int]], count: int) -> Answered:
            start = clock()
            names = manager.add_requests(inputs=list(map(list, asked)), max_new_tokens=count)
            done: dict[str, Any] = {}
            while len(done) < len(names):
                result = manager.get_result(timeout=1)
                if result is not None and result.is_finished():
                    done[result.request_id] = result
                elif result is None and not manager.is_running():
                    raise RuntimeError("transformers' continuous batching has stopped")
            texts = [done[name].generated_tokens for name in names]
            return _exactly(count, Answered(clock() - start, texts))

        try:
            wait_for([[1, 2, 3]], 2)
            yield lambda: wait_for(prompts, tokens)
        finally:
            manager.stop(block=True, timeout=10)


def _exactly(tokens: int, answered: Answered) -> Answered:
    if any(len(text) != tokens for text in answered.texts):
        sizes = sorted({len(text) for text in answered.texts})
        raise RuntimeError(f"transformers wrote {sizes} tokens where {tokens} were asked for")
    return answered


class Texts:
    """Everything that our engine wrote. What is asked alike must be answered alike: exactly so in
    one part, and as far as both go in two parts, which may ask for different lengths.
    """

    def __init__(self) -> None:
        self.compared: Counter[str] = Counter()
        self.different: list[dict[str, Any]] = []
        self._known: dict[object, dict[str, list[int]]] = {}

    def note(self, part: str, who: str, asked: object, text: list[int]) -> None:
        """Compare a text with the ones that are known; `asked` holds all that decides about it."""
        known = self._known.setdefault(asked, {})
        for other, first in known.items():
            size = min(len(text), len(first))
            same = text == first if other == part else text[:size] == first[:size]
            self.compared[part] += 1
            if not same:
                pairs = zip(text, first, strict=False)
                place = next((i for i, (a, b) in enumerate(pairs) if a != b), size)
                found = {"part": part, "who": who, "asked": str(asked), "with": other}
                self.different.append({**found, "token": place})
        known.setdefault(part, text)

    def as_dict(self) -> dict[str, Any]:
        return {
            "identical": not self.different,
            "compared": dict(self.compared),
            "different": self.different,
        }


def read_prompts(path: Path, llm: LLM, most: int) -> dict[str, list[Prompt]]:
    """The first turns of the first prompts of each category; categories with many prompts first."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line.strip()]
    sizes = Counter(str(line["category"]) for line in lines)
    found: dict[str, list[Prompt]] = {name: [] for name, _ in sizes.most_common()}
    for line in lines:
        category = found[str(line["category"])]
        if len(category) < most:
            tokens = llm.encode(line["turns"][0], chat=True).tolist()
            category.append(Prompt(str(line["question_id"]), str(line["category"]), tokens))
    return found
