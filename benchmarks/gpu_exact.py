"""Part `exact` of gpu.py: the same texts with and without drafts in whatever company, bits of rows
in whatever step, and the device against the processor.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch

from foresay import LLM, SamplingParams
from foresay.engine.request import Request
from foresay.models.invariance import is_batch_invariant
from foresay.models.target import SequenceInput, Target
from gpu_bench import Bench, OutOfTime, first_differences, greedy, said
from gpu_prompts import prompts_of


class Asked(NamedTuple):
    """A request; `leaves` after so many tokens, before its end: it is cancelled then."""

    tokens: list[int]
    params: SamplingParams
    leaves: int | None


def exact(bench: Bench, found: dict[str, Any]) -> None:
    """All three, for the given model and the default one."""
    options = bench.options
    found |= {"models": {}, "max_tokens": bench.scale.exact_tokens}
    names = dict.fromkeys([str(options.model or options.default_model), options.default_model])
    for model in names:
        about = found["models"][model.rpartition("/")[2]] = {}
        try:
            _one_model(bench, bench.llm(model), about)
        except OutOfTime:
            raise
        except Exception as error:  # the other model is tried all the same
            about["error"] = said(error)
            bench.say(about["error"])
    bench.check_time("the processor")
    found["processor"] = against_processor(bench)
    texts = [one[key] for one in found["models"].values() for key in one if key.startswith("T ")]
    found["compared"] = sum(one["requests"] for one in texts)
    found["identical"] = not any(one["different"] for one in texts)


def _one_model(bench: Bench, llm: LLM, about: dict[str, Any]) -> None:
    about["exact"] = llm.target.exact
    about["is_batch_invariant"] = is_batch_invariant(llm.target)
    bench.say(f"is_batch_invariant: {about['is_batch_invariant']}")
    prompts = prompts_of(partial(llm.encode, chat=True), *_sizes(bench))
    both = [prompt for pair in zip(*prompts.values(), strict=False) for prompt in pair]
    for temperature in (0.0, 0.8):
        bench.check_time(f"T {temperature}")
        asked = requests([one.tokens for one in both], bench, temperature)
        about[f"T {temperature:g}"] = _compare(bench, llm, asked)


def _sizes(bench: Bench) -> tuple[int, int]:
    """Prompts of each kind, and tokens of a prompt at most."""
    return max(1, bench.scale.exact // 2), 10_000 if bench.smoke else 800


def requests(prompts: Sequence[list[int]], bench: Bench, temperature: float) -> list[Asked]:
    """As many as the scale says, over the prompts; one of 16 is cancelled."""
    random_one, made = random.Random(5), []
    for at in range(bench.scale.exact):
        size = random_one.randint(max(1, bench.scale.exact_tokens // 4), bench.scale.exact_tokens)
        params = SamplingParams(max_tokens=size, temperature=temperature, seed=1000 + at)
        leaves = size // 2 if random_one.random() < 1 / 16 else None
        made.append(Asked(prompts[at % len(prompts)], params, leaves))
    return made


def _compare(bench: Bench, llm: LLM, asked: Sequence[Asked]) -> dict[str, Any]:
    """Three ways to answer them: some alone, all in random batches without drafts, all in other
    random batches with drafts, of a policy that always drafts and of the usual one."""
    most = bench.scale.at_once
    plain = in_batches(bench, llm.beside("none"), asked, most, seed=1)
    few = list(asked[:: max(1, len(asked) // 12)])
    ways = {
        "alone": (few, in_batches(bench, llm.beside("none"), few, 1, seed=0)),
        "fixed": (asked, in_batches(bench, llm.beside("suffix", "fixed"), asked, most, seed=2)),
        "adaptive": (asked, in_batches(bench, llm.beside("suffix"), asked, most, seed=3)),
    }
    different = []
    by_request = {id(one): ids for one, ids in zip(asked, plain, strict=True)}
    for way, (these, ids) in ways.items():
        wanted = [by_request[id(one)] for one in these]
        # What was cancelled ends with the step that was under way: the common beginning counts.
        cut = [
            (a[: min(len(a), len(b))], b[: min(len(a), len(b))]) if one.leaves else (a, b)
            for one, a, b in zip(these, wanted, ids, strict=True)
        ]
        found = first_differences([a for a, _ in cut], [b for _, b in cut])
        different += [{"way": way, **one} for one in found]
    bench.say(f"{len(asked)} requests, {len(different)} different")
    tokens = sum(map(len, plain))
    return {"requests": len(asked), "tokens": tokens, "different": different[:20]}


def in_batches(
    bench: Bench, llm: LLM, asked: Sequence[Asked], most: int, seed: int
) -> list[list[int]]:
    """The answers; how many run at once changes at random, 1 to `most`, and who leaves is replaced
    a few steps later."""
    random_one = random.Random(seed)
    engine, waiting = llm.engine, list(enumerate(asked))
    random_one.shuffle(waiting)
    running: dict[int, Request] = {}
    ended: dict[int, Request] = {}
    wanted = random_one.randint(1, most)
    while waiting or running:
        if random_one.random() < 0.15:
            wanted = random_one.randint(1, most)
        if len(running) < wanted or not running:
            for _ in range(random_one.randint(1, max(1, wanted - len(running)))):
                if waiting:
                    at, one = waiting.pop()
                    running[at] = engine.add(
                        one.tokens, one.params, stops=llm.tokenizer.ends, seed=one.params.seed
                    )
        bench.check_time("all answers")
        engine.step()
        for at, request in list(running.items()):
            leaves = asked[at].leaves
            if not request.finished and leaves is not None and request.stats.tokens >= leaves:
                engine.cancel(request)
            if request.finished:
                ended[at] = running.pop(at)
    failed = [request.error for request in ended.values() if request.error is not None]
    if failed:
        raise failed[0]
    return [list(ended[at].token_ids) for at in range(len(asked))]


def against_processor(bench: Bench) -> dict[str, Any]:
    """The default model in float32 here and there: greedy texts of some prompts; where one differs,
    its first difference, and by how much either side prefers its token."""
    options, scale = bench.options, bench.scale
    there = bench.llm(options.default_model, dtype="float32")
    prompts = prompts_of(partial(there.encode, chat=True), *_sizes(bench))
    both = [prompt for pair in zip(*prompts.values(), strict=False) for prompt in pair]
    chosen = [one.tokens for one in both[: scale.compared]]
    bench.say(f"{len(chosen)} prompts in float32")
    given = {} if bench.smoke else {"device": "cpu"}
    here = LLM(options.default_model, "none", dtype="float32", **given)  # type: ignore[arg-type]
    params = greedy(scale.compared_tokens)
    texts = [[result.token_ids for result in llm.generate(chosen, params)] for llm in (there, here)]
    different: list[dict[str, Any]] = [*first_differences(*texts)]
    for one in different[:8]:
        at, place = one["text"], one["token"]
        text = chosen[at] + texts[0][at][:place]
        pair = [texts[side][at][place] for side in (0, 1) if place < len(texts[side][at])]
        for name, llm in (("device", there), ("processor", here)):
            try:
                margin: Any = _margin(llm.target, text, len(chosen[at]), pair)
            except Exception as error:
                margin = said(error)
            one[f"margin_{name}"] = margin
    bench.say(f"against the processor: {len(different)} of {len(chosen)} differ")
    return {"prompts": len(chosen), "tokens": sum(map(len, texts[1])), "different": different}


def _margin(target: Target, text: Sequence[int], prompt: int, pair: Sequence[int]) -> float:
    """How much larger the first token's logit is than the second's, after this text."""
    with torch.inference_mode():
        tokens = np.array(text, np.int32)
        part = SequenceInput.of(target, target.open(), tokens, prefill=prompt - 1)
        row = target.forward([part]).logits[0].float().cpu()
    if len(pair) < 2:
        return float("nan")
    return float(row[pair[0]] - row[pair[1]])
