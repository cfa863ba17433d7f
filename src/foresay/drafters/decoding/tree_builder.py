"""Builds the drafts of many requests with a model, one forward pass per level.

Keys and values of a tree cannot be stored as a tree, only those of a text. So what all nodes of a
level have in common, their *trunk*, is stored behind the text, and the branches below it are
computed again with each level. Of a chain everything is trunk: each level computes one row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor

from foresay.arrays import Floats, Int32s
from foresay.draft import Draft
from foresay.drafters.decoding.dropout import Dropout
from foresay.drafters.decoding.next_tokens import NextTokens, Row, Way, distributions, next_tokens
from foresay.drafters.decoding.shapes import Shape
from foresay.drafters.decoding.state import RequestState
from foresay.models.target import Outputs, SequenceInput, Target
from foresay.sampling.signals import Signals

__all__ = ["TreeBuilder", "build_trees"]

_ROWS = 512
"""Rows of one forward pass, at most, unless one text has more."""


class TreeBuilder:
    """The draft of one request while it grows."""

    def __init__(
        self, state: RequestState, budget: int, depth: int, shape: Shape, way: Way
    ) -> None:
        self.state = state
        self._weight = state.noise_weight.value
        self._budget = budget
        self._way = way
        self._branches = (shape.sampled if way == "sampled" else shape.branches)[:depth]
        self._width = None if way == "sampled" else shape.width
        self._level = 0
        self._tokens: list[int] = []
        self._parents: list[int] = []
        self._scores: list[float] = []
        self._probs: list[Floats] = []
        self._signals: list[Signals] = []
        self._frontier = [-1]  # nodes that get children next; -1 is the text
        self._trunk: list[int] = []  # nodes that all of these come after, or are
        self._below: list[int] = []  # nodes of the part's draft
        self._size = 0  # tokens of the part

    def part(self, target: Target) -> SequenceInput:
        """Its share of the next forward pass."""
        state = self.state
        trunk = np.array([self._tokens[node] for node in self._trunk], np.int32)
        pending = np.concatenate([state.text, trunk])[state.stored :]
        held = set(self._trunk)
        below: set[int] = set()
        for node in self._frontier:
            while node >= 0 and node not in held and node not in below:
                below.add(node)
                node = self._parents[node]
        self._below, self._size = sorted(below), len(pending)
        place = {node: at for at, node in enumerate(self._below)}
        draft = Draft._trusted(
            np.array([self._tokens[node] for node in self._below], np.int32),
            np.array([place.get(self._parents[node], -1) for node in self._below], np.int32),
        )
        prefill = min(state.prefill_left, len(pending))
        return SequenceInput.of(target, state.kv_of(target), pending, draft, prefill=prefill)

    def rows(self) -> tuple[list[int], list[Row]]:
        """Which rows of the part's logits get children, and how many."""
        place = {node: 1 + at for at, node in enumerate(self._below)}
        branch, answer = self._branches[self._level], self.state.answer
        asks = [self.state.asked(answer, self._path(node)) for node in self._frontier]
        return [place.get(node, 0) for node in self._frontier], [
            Row(ask, self._way, branch, self._weight) for ask in asks
        ]

    def add(self, found: Sequence[NextTokens]) -> bool:
        """Add the children of this level, store what the next one builds on; whether there is a
        next one."""
        first = len(self._tokens)
        if self._level == 0:
            self.state.by_weight = found[0].by_weight
        for node, children in zip(self._frontier, found, strict=True):
            above = self._scores[node] if node >= 0 else 1.0
            for at, token in enumerate(children.tokens):
                if self._way == "sampled" and len(self._tokens) == self._budget:
                    break
                self._tokens.append(token)
                self._parents.append(node)
                self._scores.append(above * children.chances[at])
                self._probs += children.probs[at : at + 1]
                if children.signals is not None:
                    self._signals.append(children.signals.at([at]))
        self._level += 1
        self._frontier = self._next_frontier(first)
        self._store()
        return bool(self._frontier)

    def draft(self) -> Draft:
        """The best nodes within the budget; where they were sampled, all."""
        nodes = self._kept()
        if not nodes:
            return Draft.empty()
        place = {node: at for at, node in enumerate(nodes)}
        return Draft._trusted(
            np.array([self._tokens[node] for node in nodes], np.int32),
            np.array([place.get(self._parents[node], -1) for node in nodes], np.int32),
            np.array([self._scores[node] for node in nodes], np.float32),
            np.stack(self._probs) if self._probs else None,
        )

    def signals(self) -> Signals | None:
        """How uncertain the model is of each node of `draft`; None unless they are kept."""
        if len(self._signals) < len(self._tokens) or not self._tokens:
            return None
        return Signals.joined([self._signals[node] for node in self._kept()])

    def _kept(self) -> list[int]:
        return list(range(len(self._tokens))) if self._way == "sampled" else sorted(self._best())

    def _best(self) -> list[int]:
        """The likeliest nodes within the budget, the best first. A node never without its parent:
        that has no smaller score, and comes first."""
        order = sorted(range(len(self._tokens)), key=lambda node: (-self._scores[node], node))
        return order[: self._budget]

    def _next_frontier(self, first: int) -> list[int]:
        """The nodes from `first` on that get children."""
        if self._level == len(self._branches):
            return []
        if self._way == "sampled":  # all in their order, as far as the budget goes
            left, branch = self._budget - len(self._tokens), self._branches[self._level]
            return list(range(first, len(self._tokens)))[: -(-left // branch)]
        # What is not among the best now will not be when there are more, nor will its children.
        best = [node for node in self._best() if node >= first]
        return sorted(best if self._width is None else best[: self._width])

    def _store(self) -> None:
        """Of the last pass, store the new trunk but for its last token: a pass needs one."""
        state, before = self.state, len(self._trunk)
        if not self._frontier:
            state.keep(range(self._size), [self._tokens[node] for node in self._trunk])
            return
        paths = [self._nodes(node) for node in self._frontier]
        trunk = paths[0]
        for path in paths[1:]:
            same = [a == b for a, b in zip(trunk, path, strict=False)]
            trunk = trunk[: same.index(False) if False in same else len(same)]
        rows = list(range(self._size))
        if len(trunk) == before:
            rows.pop()
        else:
            rows += [self._size + self._below.index(node) for node in trunk[before:-1]]
        state.keep(rows, [self._tokens[node] for node in trunk[:-1]])
        self._trunk = trunk

    def _nodes(self, node: int) -> list[int]:
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self._parents[node]
        return path[::-1]

    def _path(self, node: int) -> Int32s:
        return np.array([self._tokens[at] for at in self._nodes(node)], np.int32)


def build_trees(
    target: Target,
    builders: Sequence[TreeBuilder],
    vocabulary: int,
    *,
    signals: bool = False,
    dropout: Dropout | None = None,
) -> None:
    """Grow them to the end, all of a level together.

    vocabulary  ids that may be drafted
    signals     keep how uncertain the model is of each token
    dropout     of these the variance too; None: not

    Raises: what the model raises; what was stored of these texts is forgotten then.
    """
    try:
        with torch.inference_mode():
            _catch_up(target, [builder.state for builder in builders])
            while builders:
                picked: list[Outputs] = []
                rows: list[Row] = []
                counts = []
                parts = [builder.part(target) for builder in builders]
                passed = _forward(target, parts, hidden=dropout is not None)
                for builder, outputs in zip(builders, passed, strict=True):
                    which, wanted = builder.rows()
                    picked.append(_rows_of(outputs, which))
                    rows += wanted
                    counts.append(len(wanted))
                logits = _fitted(torch.cat([each.logits for each in picked]), vocabulary)
                tokens = next_tokens(logits, rows, target.threads)
                if signals:
                    tokens = _uncertain(tokens, logits, rows, picked, dropout)
                found = iter(tokens)
                builders = [
                    builder
                    for builder, count in zip(builders, counts, strict=True)
                    if builder.add([next(found) for _ in range(count)])
                ]
    except BaseException:
        for builder in builders:
            builder.state.forget()
        raise


def _catch_up(target: Target, states: Sequence[RequestState]) -> None:
    """Store texts but for what one pass takes."""
    while sum(len(state.text) - state.stored for state in states) > _ROWS:
        parts, room = [], _ROWS
        for state in states:
            take = min(len(state.text) - 1 - state.stored, room)
            if take > 0:
                tokens = state.text[state.stored : state.stored + take]
                prefill = min(state.prefill_left, take)
                kv = state.kv_of(target)
                parts.append(
                    SequenceInput.of(target, kv, tokens, needs_logits=False, prefill=prefill)
                )
                room -= take
        if not parts:
            return
        target.forward(parts)
        for part in parts:
            part.keep()


def _uncertain(
    found: Sequence[NextTokens],
    logits: Tensor,
    rows: Sequence[Row],
    picked: Sequence[Outputs],
    dropout: Dropout | None,
) -> list[NextTokens]:
    """The tokens with their signals."""
    probs = distributions(logits, rows)
    passes = None
    if dropout is not None:
        hidden = torch.cat([each.hidden for each in picked if each.hidden is not None])
        thinned = [_fitted(each, logits.shape[1]) for each in dropout.logits(hidden)]
        passes = np.stack([distributions(each, rows) for each in thinned], axis=1)
    return [
        one.with_signals(probs[at], None if passes is None else passes[at])
        for at, one in enumerate(found)
    ]


def _rows_of(outputs: Outputs, which: list[int] | slice) -> Outputs:
    hidden = outputs.hidden
    return Outputs(outputs.logits[which], None if hidden is None else hidden[which])


def _forward(target: Target, parts: Sequence[SequenceInput], *, hidden: bool) -> Iterator[Outputs]:
    """The outputs of each part, in as many passes as its rows need."""
    group: list[SequenceInput] = []
    rows = 0
    for at, part in enumerate(parts):
        group.append(part)
        rows += len(part.tokens) + len(part.draft)
        following = parts[at + 1 : at + 2]
        more = sum(len(p.tokens) + len(p.draft) for p in following)
        if not following or rows + more > _ROWS:
            sizes = [1 + len(p.draft) for p in group]
            found = target.forward(group, hidden=hidden)
            first = 0
            for size in sizes:
                yield _rows_of(found, slice(first, first + size))
                first += size
            group, rows = [], 0


def _fitted(logits: Tensor, vocabulary: int) -> Tensor:
    """As many columns as the vocabulary that is drafted for: a model may be padded otherwise."""
    missing = vocabulary - logits.shape[1]
    if missing <= 0:
        return logits[:, :vocabulary]
    return torch.nn.functional.pad(logits, (0, missing), value=-torch.inf)
