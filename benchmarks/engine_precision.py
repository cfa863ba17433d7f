"""The part of engine.py that looks at single logits: the same token decoded alone, verified in a
chain, and verified in a tree. The text is fixed, so that differences cannot add up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from engine_parts import Bench, say
from engine_ways import Job, Ours, Theirs, answer, greedy
from foresay import Draft
from foresay.models.target import Part, Target

ROWS = 8  # tokens of a verification: the last one and 7 drafted ones
CHUNK = 512
TOKENS = 48
PLACES = ("summarization", "coding")


def precision(bench: Bench, exact: Ours) -> dict[str, Any]:
    """Differences of log probabilities over the whole vocabulary, and of the likeliest token."""
    rows = []
    params = greedy(min(TOKENS, bench.scale.tokens), past_the_end=True)
    for ours in dict.fromkeys((bench.ours, exact)):
        target = ours.llm.target
        dtype = str(target.dtype).removeprefix("torch.")
        theirs = bench.theirs if ours is bench.ours else Theirs(bench.folder, target.dtype)
        pairs: dict[str, list[tuple[Tensor, Tensor]]] = {}
        for prompt in bench.first(PLACES, 1):
            (text,) = answer(ours.plain(), [Job(prompt, params)]).texts
            for name, one, other in _compared(target, theirs, prompt.tokens, text):
                pairs.setdefault(name, []).append((one, other))
            say(f"precision {dtype}, {prompt.name}")
        for name, found in pairs.items():
            who = "transformers" if name.startswith("transformers") else "ours"
            row = {"dtype": dtype, "who": who, "compared": name, **_differences(found)}
            rows.append(row | {"deterministic": who == "ours" and target.deterministic})
    return {"results": [], "rows_verified_at_once": ROWS, "compared": rows}


def _compared(
    target: Target, theirs: Theirs, prompt: Sequence[int], text: Sequence[int]
) -> Iterable[tuple[str, Tensor, Tensor]]:
    decoded = _ours(target, prompt, text, 1, _chain)
    yield "decode, chain", decoded, _ours(target, prompt, text, ROWS, _chain)
    yield "decode, tree", decoded, _ours(target, prompt, text, ROWS, _tree)
    one, many = (_theirs(theirs.model, prompt, text, rows) for rows in (1, ROWS))
    yield f"transformers, 1 token and {ROWS} at once", one, many


def _chain(true: Sequence[int], vocabulary: int) -> tuple[Draft, list[int]]:
    """The true tokens as a draft, and their nodes."""
    return Draft.chain(np.array(true, np.int32)), list(range(len(true)))


def _tree(true: Sequence[int], vocabulary: int) -> tuple[Draft, list[int]]:
    """The true tokens, each behind a wrong sibling."""
    tokens, parents = [], []
    for depth, token in enumerate(true):
        tokens += [(token + 1) % vocabulary, token]
        parents += [2 * depth - 1] * 2
    return Draft(np.array(tokens, np.int32), np.array(parents, np.int32)), [
        2 * depth + 1 for depth in range(len(true))
    ]


def _ours(
    target: Target,
    prompt: Sequence[int],
    text: Sequence[int],
    rows: int,
    drafted: Callable[[Sequence[int], int], tuple[Draft, list[int]]],
) -> Tensor:
    """Log probabilities after the prompt and after each token but the last, `rows` at once."""
    kv, stored = target.open(), np.array(prompt[:-1], np.int32)
    for at in range(0, len(stored), CHUNK):
        part = Part.of(target, kv, stored[at : at + CHUNK], needs_logits=False)
        target.forward([part])
        part.keep()
    line, found = [prompt[-1], *text[:-1]], []
    for at in range(0, len(line), rows):
        block = line[at : at + rows]
        draft, path = drafted(block[1:], target.vocabulary)
        part = Part.of(target, kv, np.array(block[:1], np.int32), draft)
        logits = target.forward([part]).logits
        part.keep(path)
        found.append(logits[[0, *(node + 1 for node in path)]])
    return _logprobs(found)


@torch.inference_mode()
def _theirs(model: Any, prompt: Sequence[int], text: Sequence[int], rows: int) -> Tensor:
    cache = DynamicCache(config=model.config)
    model(torch.tensor([prompt[:-1]]), past_key_values=cache, use_cache=True, logits_to_keep=1)
    line = [prompt[-1], *text[:-1]]
    found = [
        model(torch.tensor([line[at : at + rows]]), past_key_values=cache, use_cache=True).logits[0]
        for at in range(0, len(line), rows)
    ]
    return _logprobs(found)


def _logprobs(found: Sequence[Tensor]) -> Tensor:
    return torch.log_softmax(torch.cat(list(found)).double(), dim=-1)


def _differences(pairs: Sequence[tuple[Tensor, Tensor]]) -> dict[str, Any]:
    largest, total, count, tokens, equal, flips = 0.0, 0.0, 0, 0, 0, 0
    for one, other in pairs:
        apart = (one - other).abs()
        largest = max(largest, float(apart.max()))
        total, count = total + float(apart.sum()), count + apart.numel()
        tokens += len(one)
        equal += int((apart.amax(dim=1) == 0).sum())
        flips += int((one.argmax(dim=1) != other.argmax(dim=1)).sum())
    return {
        "tokens": tokens,
        "largest": largest,
        "mean": total / count,
        "equal_to_the_last_bit": equal,
        "argmax_flips": flips,
    }
