"""Drafts from the target's own features, with a small head (EAGLE).

For each committed token the engine reports the hidden state that it was predicted from. Such a pair
is a row of the head's input, so after a verdict the head knows all that it needs: its keys and
values grow by the committed tokens, and the last row predicts what follows.

The head's context begins with the answer: hidden states of the prompt are not reported. What of the
prompt matters is in the features. Before the first token there is no feature, and no draft.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foresay.arrays import Floats, Int32s, IntsLike, as_path, check_positive, joined
from foresay.draft import Draft, DraftBatch
from foresay.drafter import SeededParams, Source, as_budgets, as_prompt, as_states, check_lengths
from foresay.drafters.eagle.files import load_head, target_name
from foresay.drafters.eagle.head import EagleHead
from foresay.drafters.eagle.requests import ask_of, noise_of, process_of
from foresay.drafters.eagle.tree import Context, grow
from foresay.errors import InputError
from foresay.models.load import find_model
from foresay.models.weights import StoredModel
from foresay.sampling.ask import Ask
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["EagleDrafter", "EagleState"]

_PIECE = 64  # rows of a request that the head reads at once, when it was not asked for long
_UNREAD = 512  # rows that wait for a draft to be asked for, at most …
_LATEST = 256  # … and how many of them stay where there are more
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class EagleState:
    """One request: its text, and what the head has read of it."""

    __slots__ = (
        "ask",
        "drafted",
        "features",
        "finished",
        "hidden",
        "keys",
        "length",
        "owner",
        "sampling",
        "texts",
        "tokens",
        "unread",
        "values",
    )

    def __init__(self, owner: EagleDrafter, prompt: Int32s, sampling: SeededParams | None) -> None:
        self.owner = owner
        self.sampling = sampling
        self.texts = [prompt.copy()]
        self.ask = ask_of(sampling, self.texts[0], owner.head.shape.vocabulary)
        self.length = len(prompt)
        self.drafted = 0  # nodes of the last draft
        self.finished = False
        self.restart()

    def restart(self) -> None:
        """Forget what was read."""
        self.features: list[Floats] = []  # committed, but not read by the head
        self.tokens: list[Int32s] = []
        self.unread = 0
        self.hidden: Tensor | None = None  # the head's output after the last row that was read
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def begin_again(self, rows: int) -> None:
        """Forget all but the latest rows, which are not read yet."""
        features, tokens = np.concatenate(self.features), np.concatenate(self.tokens)
        self.restart()
        self.features, self.tokens = [features[-rows:].copy()], [tokens[-rows:].copy()]
        self.unread = len(self.tokens[0])

    @property
    def asked(self) -> Ask | None:
        """The request as it stands, if it has logits processors."""
        return None if self.ask is None else self.ask.along(joined(self.texts[1:]))

    @property
    def read(self) -> int:
        """Rows that the head has read."""
        return 0 if self.keys is None else self.keys.shape[1]


class EagleDrafter:
    """Drafts trees with a head that was trained for the target.

    head       a folder, as `foresay train eagle` writes it or as heads are published
    model      the target, as `foresay.models.load.find_model` finds it; None: the one that the head
               was trained for
    topk       nodes of a level that are expanded, and children of each
    depth      levels of a tree, at most
    shortlist  of how many of the head's likeliest tokens a sampled request drafts
    device     where the head runs
    dtype      of its weights, "float32" or "bfloat16"

    Raises: ModelError for a head that is damaged or does not fit the model, InputError.
    """

    def __init__(
        self,
        head: str | os.PathLike[str] | EagleHead,
        model: str | os.PathLike[str] | StoredModel | None = None,
        *,
        topk: int = 4,
        depth: int = 6,
        shortlist: int = 128,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        for name, value in (("topk", topk), ("depth", depth), ("shortlist", shortlist)):
            check_positive(value, name)
        if dtype not in _DTYPES:
            raise InputError(f"dtype is {dtype!r}; expected {' or '.join(_DTYPES)}")
        if not isinstance(head, EagleHead):
            folder = Path(as_path(head, "the head")).expanduser()
            model = _model_for(folder, model)
            head = load_head(folder, model, dtype=_DTYPES[dtype], device=device)
        self.head = head
        self.wants = Wants(hidden=True, hidden_layers=head.shape.layers)
        self._topk, self._depth, self._shortlist = topk, depth, shortlist
        self._live: set[EagleState] = set()

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> EagleState:
        """Start a request; group and tenant change nothing.

        Raises: TokenTypeError, InputError for an empty prompt or a token out of range.
        """
        state = EagleState(self, as_prompt(prompt), sampling)
        self._live.add(state)
        return state

    @torch.inference_mode()
    def propose(self, states: Sequence[EagleState], budgets: Sequence[int], /) -> DraftBatch:
        """A tree for each state, the likeliest node first; scores are path probabilities.

        Raises: StateError, InputError for a budget outside 0 … 4096, a state that is there twice or
        lengths that differ.
        """
        alive = as_states(states, EagleState, self)
        checked = as_budgets(budgets, len(alive))
        asked = [
            at for at, state in enumerate(alive) if checked[at] and (state.unread or state.read)
        ]
        drafts = [Draft.empty()] * len(alive)
        if asked:
            trees = self._trees([alive[at] for at in asked], [checked[at] for at in asked])
            for at, tree in zip(asked, trees, strict=True):
                drafts[at] = tree
        for state, draft in zip(alive, drafts, strict=True):
            state.drafted = len(draft)
        return DraftBatch.of(drafts)

    def observe(self, states: Sequence[EagleState], verdicts: Sequence[Verdict], /) -> None:
        """Keep what was committed, with its features; the head reads it when it is asked to draft.

        A verdict without hidden states ends the head's context: it begins again with the next one.
        So does a request that is not asked for a draft for more than 512 tokens: it begins again
        with the latest 256 of them, so that features which nobody reads do not pile up.

        Raises: StateError, InputError for a state that is there twice, lengths that differ, tokens
        outside the head's vocabulary or hidden states of another width; nothing has changed then.
        """
        alive = as_states(states, EagleState, self)
        batch = VerdictBatch.of(verdicts)
        check_lengths(len(alive), len(batch), "verdicts")
        shape = self.head.shape
        if batch.hidden is not None and batch.hidden.shape[1] != shape.features:
            raise InputError(
                f"the hidden states are {batch.hidden.shape[1]} wide; expected {shape.features}, "
                "the head's features"
            )
        if len(batch.tokens) and batch.tokens.max() >= shape.vocabulary:
            raise InputError(
                f"a token is {batch.tokens.max()}; expected 0 to {shape.vocabulary - 1}, the "
                "head's vocabulary"
            )
        for state, verdict in zip(alive, batch, strict=True):
            state.texts.append(verdict.tokens)
            state.length += len(verdict.tokens)
            state.drafted = 0
            if verdict.hidden is None:
                state.restart()
            elif len(verdict.tokens):
                state.features.append(verdict.hidden.copy())  # else a view of the whole step
                state.tokens.append(verdict.tokens)
                state.unread += len(verdict.tokens)
                if state.unread > _UNREAD:
                    state.begin_again(_LATEST)

    def finish(self, state: EagleState, /) -> None:
        """End a request.

        Raises: StateError if it was finished before or is no state of this drafter.
        """
        as_states([state], EagleState, self)
        state.finished = True
        state.restart()
        state.texts, state.length = [], 0
        self._live.remove(state)

    def sources(self, state: EagleState, /) -> list[tuple[Source, ...]]:
        """`Source.HEAD`, for each node of the state's last draft.

        Raises: StateError.
        """
        as_states([state], EagleState, self)
        return [(Source.HEAD,)] * state.drafted

    def text(self, state: EagleState, /) -> Int32s:
        """Prompt and observed tokens, a copy.

        Raises: StateError.
        """
        as_states([state], EagleState, self)
        return np.concatenate(state.texts)

    def bytes_used(self) -> int:
        """Bytes held for all live requests; the head is not counted."""
        return sum(
            4 * state.length
            + sum(rows.nbytes for rows in state.features)
            + sum(t.nbytes for t in (state.keys, state.values) if t is not None)
            for state in list(self._live)
        )

    def tokens_held(self) -> int:
        """Tokens held for all live requests."""
        return sum(state.length for state in list(self._live))

    def _trees(self, states: Sequence[EagleState], budgets: Sequence[int]) -> list[Draft]:
        while behind := [state for state in states if state.unread]:
            self._read(behind)
        room = self._topk * (self._depth - 1)
        keys, values = self._padded(states, room)
        hidden = torch.stack([state.hidden for state in states if state.hidden is not None])
        return grow(
            self.head,
            Context(hidden, keys, values, self._tensor([state.read for state in states])),
            budgets,
            topk=self._topk,
            depth=self._depth,
            shortlist=self._shortlist,
            noise=noise_of([state.sampling for state in states], [s.length for s in states]),
            process=process_of([state.asked for state in states], self.head),
        )

    def _read(self, states: Sequence[EagleState]) -> None:
        """Let the head read committed rows of each state, at most `_PIECE`."""
        head, counts = self.head, [min(state.unread, _PIECE) for state in states]
        most = max(counts)
        features = np.zeros((len(states), most, head.shape.features), np.float32)
        tokens = np.zeros((len(states), most), np.int64)
        rest: list[tuple[Floats, Int32s]] = []
        for at, (state, count) in enumerate(zip(states, counts, strict=True)):
            every, ids = np.concatenate(state.features), np.concatenate(state.tokens)
            features[at, :count], tokens[at, :count] = every[:count], ids[:count]
            rest.append((every[count:], ids[count:]))
        begins = self._tensor([state.read for state in states])
        keys, values = self._padded(states, most)
        weight = head.fc.weight
        rows = head.fc(torch.from_numpy(features).to(weight.device, weight.dtype))
        positions = begins[:, None] + torch.arange(most, device=weight.device)
        embedded = head.embedded(torch.from_numpy(tokens).to(weight.device))
        query, key, value = head.project(rows, embedded, positions)
        # A row's key has the place of its position; behind a text's own rows are those of padding,
        # which come after all rows that count.
        places = positions[:, None, :, None].expand_as(key)
        keys, values = keys.scatter(2, places, key), values.scatter(2, places, value)
        visible = torch.arange(keys.shape[2], device=weight.device) <= positions[..., None]
        output = head.complete(rows, head.attend(query, keys, values, visible[:, None]))
        for at, (state, count) in enumerate(zip(states, counts, strict=True)):
            end = state.read + count
            state.keys, state.values = keys[at, :, :end].clone(), values[at, :, :end].clone()
            state.hidden = output[at, count - 1].clone()
            left, ids = rest[at]
            state.features, state.tokens = ([left], [ids]) if len(ids) else ([], [])
            state.unread = len(ids)

    def _padded(self, states: Sequence[EagleState], room: int) -> tuple[Tensor, Tensor]:
        """Keys and values [B, heads, longest + room, width]."""
        shape, weight = self.head.shape, self.head.fc.weight
        longest = max(state.read for state in states)
        size = (len(states), shape.kv_heads, longest + room, shape.head_dim)
        keys = torch.zeros(size, dtype=weight.dtype, device=weight.device)
        values = torch.zeros_like(keys)
        for at, state in enumerate(states):
            if state.keys is not None and state.values is not None:
                keys[at, :, : state.read], values[at, :, : state.read] = state.keys, state.values
        return keys, values

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self.head.fc.weight.device)


def _model_for(folder: Path, model: Any) -> StoredModel:
    if isinstance(model, StoredModel):
        return model
    name = target_name(folder) if model is None else model
    if name is None:
        raise InputError(
            f"the head in '{folder}' does not say for which model it was trained; expected the "
            "model beside it: EagleDrafter(head, model)"
        )
    return find_model(name)
