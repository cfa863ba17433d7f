"""Heads with random weights for tiny targets, and trees by the definition."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from foresay import Draft, SamplingParams, SeededParams, Verdict, VerdictBatch
from foresay.arrays import Floats, Int32s
from foresay.drafters.eagle.files import TargetName, save_head
from foresay.drafters.eagle.head import EagleHead, HeadShape
from foresay.drafters.head.drafter import HeadDrafter
from foresay.models.tables import ModelFacts
from models import zoo

FACTS = ModelFacts(32, zoo.VOCABULARY, 2, None)


def shape_of(drafted: int = zoo.VOCABULARY, layers: tuple[int, ...] = ()) -> HeadShape:
    return HeadShape(
        features=32 * max(len(layers), 1),
        hidden=32,
        intermediate=48,
        heads=4,
        kv_heads=2,
        head_dim=16,
        vocabulary=zoo.VOCABULARY,
        drafted=drafted,
        layers=layers,
        own_output=True,
    )


def random_head(
    model: PreTrainedModel | None = None,
    *,
    drafted: int = zoo.VOCABULARY,
    layers: tuple[int, ...] = (),
    seed: int = 0,
) -> EagleHead:
    """Weights wide enough that an early token changes the last logits."""
    head, draw = EagleHead(shape_of(drafted, layers)), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in head.parameters():
            if weight.ndim > 1:
                weight.copy_(torch.randn(weight.shape, generator=draw) * 0.25)
    head.tokens = torch.randperm(zoo.VOCABULARY, generator=draw)[:drafted].sort().values
    if model is None:
        tables = [torch.randn(zoo.VOCABULARY, 32, generator=draw) for _ in range(2)]
    else:
        named = dict(model.named_parameters())
        tables = [named["model.embed_tokens.weight"], named["lm_head.weight"]]
    head.embedding = tables[0].detach().clone()
    head.output = tables[1].detach()[head.tokens].clone()
    return head.requires_grad_(False)


def save_target(folder: Path, model: PreTrainedModel) -> Path:
    model.save_pretrained(folder)
    return folder


def saved(head: EagleHead, folder: Path, facts: ModelFacts = FACTS, name: str = "tiny") -> Path:
    save_head(head, folder, TargetName(name, facts))
    return folder


def alone(head: EagleHead, features: Floats, tokens: Sequence[int], path: Sequence[int]) -> Tensor:
    """The head's logits after a text and a path, without keys and values that are kept: row by row,
    each of which sees all rows before it."""
    rows: list[Tensor] = []
    inputs = [head.fc(torch.from_numpy(row)) for row in features]
    for at in range(len(inputs) - 1, len(tokens) + len(path)):  # nobody reads the rows before
        if at >= len(inputs):
            inputs.append(rows[-1])
        every = torch.stack(inputs[: at + 1])[None]
        ids = torch.tensor([[*tokens, *path][: at + 1]])
        q, k, v = head.project(every, head.embedded(ids), torch.arange(at + 1)[None])
        keys, values = (part.repeat_interleave(2, 1) for part in (k, v))
        weights = (q[:, :, -1:] @ keys.mT / math.sqrt(16)).softmax(-1)
        rows.append(head.complete(every[:, -1:], weights @ values)[0, 0])
    return head.logits(rows[-1])


def reference_tree(
    law: Callable[[Sequence[int]], Floats], budget: int, topk: int, depth: int
) -> Draft:
    """EAGLE-2 by its definition: `law(path)` gives the log probability of every token after it."""
    nodes: list[tuple[float, tuple[int, ...]]] = []
    level: list[tuple[float, tuple[int, ...]]] = [(0.0, ())]
    for _ in range(depth):
        children = []
        for score, path in level:
            row = law(path)
            best = np.argsort(-row, kind="stable")[:topk]
            children += [(score + float(row[token]), (*path, int(token))) for token in best]
        nodes += children
        level = sorted(children, key=lambda node: -node[0])[:topk]
    kept = sorted(nodes, key=lambda node: (-node[0], len(node[1])))[:budget]
    place = {path: at for at, (_, path) in enumerate(kept)}
    return Draft(
        [path[-1] for _, path in kept],
        [place[path[:-1]] if len(path) > 1 else -1 for _, path in kept],
        np.minimum.accumulate(np.exp([score for score, _ in kept])).astype(np.float32),
    )


class HeadRequest:
    """A request with a head: what it commits, and from which features. Both are made up, unless
    they are given: then `text` begins with a prompt of `begun` tokens, and `hidden` has a feature
    for each of its tokens."""

    def __init__(
        self,
        drafter: HeadDrafter,
        seed: int,
        temperature: float = 0.0,
        *,
        text: Int32s | None = None,
        hidden: Floats | None = None,
        **params: Any,
    ) -> None:
        random, begun = np.random.default_rng(seed), 5 + seed
        if text is None:
            text = random.integers(0, 128, begun + 400).astype(np.int32)
        if hidden is None:
            size = (len(text), drafter._head.width)
            hidden = random.standard_normal(size).astype(np.float32)
        self.drafter, self.seed, self.temperature = drafter, seed, temperature
        self.prompt, self._text, self._hidden = text[:begun], text[begun:], hidden[begun - 1 :]
        self.params = SamplingParams(temperature=temperature, **params)
        self.state = drafter.begin(self.prompt, sampling=SeededParams(self.params, seed))
        self.features: Floats = np.zeros((0, hidden.shape[1]), np.float32)
        self.tokens: list[int] = []

    def commits(self, count: int) -> Verdict:
        new, features = self._text[:count], np.ascontiguousarray(self._hidden[:count])
        self._text, self._hidden = self._text[count:], self._hidden[count:]
        self.features = np.concatenate([self.features, features])
        self.tokens += new.tolist()
        return Verdict([], new.copy(), hidden=features)


def commit(asked: Sequence[HeadRequest], *counts: int) -> None:
    verdicts = [one.commits(count) for one, count in zip(asked, counts, strict=True)]
    asked[0].drafter.observe([one.state for one in asked], VerdictBatch.of(verdicts))


def assert_same(given: Draft, wanted: Draft, rtol: float = 1e-3) -> None:
    assert given.tokens.tolist() == wanted.tokens.tolist()
    assert given.parents.tolist() == wanted.parents.tolist()
    assert given.scores is not None and wanted.scores is not None
    np.testing.assert_allclose(given.scores, wanted.scores, rtol=rtol)
