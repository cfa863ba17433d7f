"""What the parts of gpu.py share: how much is measured, the models that are loaded, times on the
device. `--cpu-smoke` has the same parts over tiny shapes, on the processor.
"""

from __future__ import annotations

import gc
import itertools
import statistics
import sys
import time
from argparse import Namespace
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from torch import Tensor

from foresay import LLM, SamplingParams
from foresay.draft import Draft
from foresay.models.target import SequenceInput, Target, TextKv

Case: TypeAlias = tuple[int, int, int]
"""Batch, context, drafted nodes of each text."""

QWEN3_8B: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151_936,
    "max_position_embeddings": 40_960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1e6,
    "hidden_act": "silu",
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
}
SMALL = QWEN3_8B | {
    "hidden_size": 64,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 128,
    "max_position_embeddings": 512,
}


@dataclass(frozen=True)
class Scale:
    """How much is measured; the defaults are the whole run.

    batches       requests at once, of `batch`, with the bar of edits
    host_batches  the same of `host`
    exact         requests of `exact` for every model and temperature, most of them at once
    repeats       timed steps of a case, in three turns
    """

    context: int = 1024
    real_nodes: tuple[int, ...] = (7, 8, 15, 16)
    cases: tuple[Case, ...] = (
        *(
            (1, 1024, 8),
            (1, 1024, 16),
            (8, 16_384, 7),
            (8, 16_384, 8),
            (32, 4096, 3),
            (32, 4096, 4),
        ),
        *((128, 2048, 1), (128, 2048, 2), (1, 32_768, 15), (1, 32_768, 16)),
    )
    deterministic: tuple[Case, ...] = ((1, 1024, 8), (8, 1024, 8), (64, 1024, 2))
    shapes: Mapping[str, Any] = field(default_factory=lambda: QWEN3_8B)
    repeats: int = 30
    rounds: int = 3
    edits: int = 16
    chats: int = 16
    tokens: int = 256
    batches: tuple[int, ...] = (8, 64, 256)
    samples: tuple[int, int] = (4, 8)
    host_batches: tuple[int, ...] = (1, 64, 128)
    host_steps: int = 40
    exact: int = 200
    at_once: int = 64
    exact_tokens: int = 64
    compared: int = 50
    compared_tokens: int = 48
    offload_tokens: int = 32
    offload_share: float = 0.5
    vllm_requests: int = 64
    memory: int | None = 40 << 30


SMOKE = Scale(
    context=32,
    real_nodes=(2, 3),
    cases=((1, 32, 2), (2, 24, 2)),
    deterministic=((1, 32, 2),),
    shapes=SMALL,
    repeats=6,
    rounds=1,
    edits=2,
    chats=2,
    tokens=12,
    batches=(2, 3),
    samples=(2, 2),
    host_batches=(2,),
    host_steps=3,
    exact=6,
    at_once=4,
    exact_tokens=6,
    compared=2,
    compared_tokens=6,
    offload_tokens=6,
    vllm_requests=2,
    memory=None,
)


class Prompt(NamedTuple):
    """A name, its kind ("edit", "chat"), and its tokens with the model's chat template."""

    name: str
    kind: str
    tokens: list[int]


class OutOfTime(Exception):
    """A part's time is over; what it measured stays."""


@dataclass
class Bench:
    """What is loaded, and the time that is left. `say` prints a line with the seconds so far."""

    options: Namespace
    scale: Scale
    smoke: bool
    began: float = field(default_factory=time.perf_counter)
    until: float = float("inf")
    prompts: Mapping[str, Sequence[Prompt]] = field(default_factory=dict)
    loaded: dict[Any, LLM] = field(default_factory=dict)

    @property
    def device(self) -> torch.device:
        return torch.device("cpu" if self.smoke else self.options.device)

    @property
    def seconds(self) -> float:
        return time.perf_counter() - self.began

    def say(self, text: str) -> None:
        print(f"{self.seconds:7.1f} s  {text}", file=sys.stderr, flush=True)

    def check_time(self, what: str) -> None:
        """Raises: OutOfTime."""
        if self.seconds > self.until:
            raise OutOfTime(f"no time was left for {what}")

    def llm(self, model: str | None = None, **more: Any) -> LLM:
        """The model, loaded once for each set of options, with an engine that drafts nothing. The
        given model as it is has most of the memory for keys and values."""
        model = str(self.options.model or self.options.default_model) if model is None else model
        key = (model, *sorted(more.items()))
        if key not in self.loaded:
            self.say(f"loading {model.rpartition('/')[2]} {more or ''}".rstrip())
            given: dict[str, Any] = {} if self.smoke else {"device": self.options.device}
            if self.scale.memory is not None:
                main = model == self.options.model and not more
                given["memory"] = self.scale.memory if main else min(6 << 30, self.scale.memory)
            self.loaded[key] = LLM(model, "none", **{**given, **more})
        return self.loaded[key]

    def drop(self, *, keep_given: bool = False) -> None:
        """Forget the models, and give the device's memory back."""
        kept = self.loaded.get((self.options.model,)) if keep_given else None
        self.loaded.clear()
        if kept is not None:
            self.loaded[(self.options.model,)] = kept
        gc.collect()
        if not self.smoke:
            torch.cuda.synchronize()
            torch.cuda.empty_cache()

    def wait(self) -> None:
        if not self.smoke:
            torch.cuda.synchronize(self.device)


def greedy(tokens: int, **more: Any) -> SamplingParams:
    return SamplingParams(max_tokens=tokens, temperature=0.0, **more)


def random_target(bench: Bench, tokens: int, weights: int | None = None) -> Target:
    """A target of the scale's shapes with random weights, made on the device, with memory for so
    many tokens. `weights` is how many bytes of weights the device may hold: layers beyond that are
    streamed.
    """
    shapes = dict(bench.scale.shapes)
    if not bench.smoke:
        from foresay.models.gpu.load import random_target as made

        each = shapes["num_hidden_layers"] * shapes["num_key_value_heads"] * shapes["head_dim"]
        more = {} if weights is None else {"weights": weights}
        found: Target = made(shapes, bench.device, memory=4 * each * tokens, **more)
        return found
    from transformers import Qwen3Config, Qwen3ForCausalLM

    from foresay.models.cpu.modules import make_target
    from foresay.models.options import LoadOptions

    config = Qwen3Config(**{k: v for k, v in shapes.items() if k != "torch_dtype"})
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Qwen3ForCausalLM(config).eval()
    return make_target(model, LoadOptions())


# Steps


def draft_of(nodes: int, vocabulary: int, seed: int = 0) -> Draft | None:
    """A tree of so many nodes: a chain of three quarters of them, and branches beside it."""
    if not nodes:
        return None
    random = np.random.default_rng(seed)
    chain = max(1, nodes * 3 // 4)
    parents = [*range(-1, chain - 1), *(int(random.integers(-1, at)) for at in range(chain, nodes))]
    tokens = [int(token) for token in random.choice(vocabulary, nodes, replace=False)]
    return Draft(tokens, parents)


def filled(target: Target, batch: int, context: int) -> list[TextKv]:
    """Texts of so many tokens, each with memory of its own: shared pages would be read once."""
    return [target.open_filled(context) for _ in range(batch)]


def step_of(target: Target, kvs: Sequence[TextKv], nodes: int) -> Callable[[], Tensor]:
    """A step over these texts, each with its last token and a tree; nothing of it is kept."""
    drafts = [draft_of(nodes, target.vocabulary, seed) for seed in range(len(kvs))]
    last = np.ones(1, np.int32)

    def step() -> Tensor:
        parts = [
            SequenceInput.of(target, kv, last, draft) for kv, draft in zip(kvs, drafts, strict=True)
        ]
        return target.forward(parts).logits

    return step


def timed(bench: Bench, steps: Mapping[str, Callable[[], object]]) -> dict[str, list[float]]:
    """Milliseconds of every step, one behind the other without waiting; the steps take turns in
    blocks. On a GPU by events behind each step, so what the host does meanwhile is hidden where it
    is faster than the device.
    """
    found: dict[str, list[float]] = {name: [] for name in steps}
    turns, block = 3, max(2, bench.scale.repeats // 3)
    for turn in range(-1, turns):  # the first turn warms up: kernels, graphs
        for name, step in steps.items():
            took = one_by_one(step, 3 if turn < 0 else block, str(bench.device))
            found[name] += took if turn >= 0 else []
            bench.check_time("more steps")
    return found


def one_by_one(step: Callable[[], object], count: int, device: str) -> list[float]:
    """Milliseconds of each of `count` steps that follow each other; on the CPU by the clock."""
    if not device.startswith("cuda"):
        times = []
        for _ in range(count):
            begin = time.perf_counter()
            step()
            times.append(1e3 * (time.perf_counter() - begin))
        return times
    step()  # the first after a pause finds the device idle
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        step()
        event.record()
    torch.cuda.synchronize(device)
    return [a.elapsed_time(b) for a, b in itertools.pairwise(events)]


def alone(bench: Bench, step: Callable[[], Tensor], count: int = 10) -> float:
    """Median milliseconds of a step until the host has read a logit of it."""
    times = []
    for _ in range(count + 2):
        bench.wait()
        begin = time.perf_counter()
        step()[-1, 0].item()
        times.append(1e3 * (time.perf_counter() - begin))
    return statistics.median(times[2:])


def weight_bytes(target: Target, bytes_each: int = 2) -> int:
    """Bytes of weights that a step has to read: all but an embedding that is no output as well."""
    shapes = dict(target.weight_shapes())
    heads = [name for name in shapes if name.endswith("lm_head.weight")]
    tables = [name for name in shapes if name.endswith("embed_tokens.weight")]
    left = shapes.keys() - (tables if heads else [])
    return bytes_each * sum(int(np.prod(shapes[name])) for name in left)


def bandwidth(bench: Bench) -> float:
    """Bytes per second of a copy on the device, what is read and what is written."""
    size = 1 << 20 if bench.smoke else 4 << 30
    one = torch.randint(0, 255, [size], dtype=torch.uint8, device=bench.device)
    two = torch.empty_like(one)
    took = timed(bench, {"copy": lambda: two.copy_(one)})["copy"]
    return 2 * size / (1e-3 * statistics.median(took))


# Answers


def first_differences(
    one: Sequence[Sequence[int]], other: Sequence[Sequence[int]]
) -> list[dict[str, int]]:
    """Where texts differ: which, and its first token that does."""
    found = []
    for at, (a, b) in enumerate(zip(one, other, strict=True)):
        if list(a) != list(b):
            place = next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), -1)
            found.append({"text": at, "token": place if place >= 0 else min(len(a), len(b))})
    return found


def said(error: BaseException) -> str:
    """An error as one line."""
    with suppress(Exception):
        return f"{type(error).__name__}: {error}"[:600]
    return type(error).__name__
