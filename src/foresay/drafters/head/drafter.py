"""The common part of EagleDrafter and MtpDrafter: a head over the target's features, as a Drafter.

For each committed token the engine reports the hidden state that it was predicted from. Such a pair
is a row of the head's input, so after a verdict the head knows all that it needs: its keys and
values grow by the committed tokens, and the last row predicts what follows.

The head's context begins with the answer: hidden states of the prompt are not reported. What of the
prompt matters is in the features. Before the first token there is no feature, and no draft.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from foresay.arrays import Floats, Int32s, IntsLike, check_positive, joined
from foresay.draft import Draft, DraftBatch
from foresay.drafter import SeededParams, Source, as_asked, as_prompt, as_states, check_lengths
from foresay.drafters.head.head import Head, Kept
from foresay.drafters.head.requests import ask_of, noise_of, process_of
from foresay.drafters.head.tree import Context, grow
from foresay.errors import InputError
from foresay.models.target import Target
from foresay.sampling.verification import VerificationInput
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["HeadDrafter", "HeadState", "check_settings"]

_PIECE = 64  # rows of a request that the head reads at once, when it was not asked for long
_UNREAD = 512  # rows that wait for a draft to be asked for, at most …
_LATEST = 256  # … and how many of them stay where there are more
_DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class HeadState:
    """One request: its text, and what the head has read of it."""

    def __init__(self, owner: HeadDrafter, prompt: Int32s, sampling: SeededParams | None) -> None:
        self.owner = owner
        self.sampling = sampling
        self.texts = [prompt.copy()]
        self.ask = ask_of(sampling, self.texts[0], owner._head.vocabulary)
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
    def asked(self) -> VerificationInput | None:
        """The request as it stands, if it has logits processors."""
        return None if self.ask is None else self.ask.along(joined(self.texts[1:]))

    @property
    def read(self) -> int:
        """Rows that the head has read."""
        return 0 if self.keys is None else self.keys.shape[1]


class HeadDrafter:
    """Drafts trees with a head; for the settings see `EagleDrafter`."""

    def __init__(self, head: Head, wants: Wants, *, topk: int, depth: int, shortlist: int) -> None:
        self.wants = wants
        self._head = head
        self._topk, self._depth, self._shortlist = topk, depth, shortlist
        self._live: set[HeadState] = set()

    needs_target = False

    def fit(self, target: Target, tokenizer_hash: bytes | None = None) -> None:
        """Refuse a target of another vocabulary: the head is of another model then.

        Raises: InputError.
        """
        if target.vocabulary != self._head.vocabulary:
            raise InputError(
                f"the head is of a model of {self._head.vocabulary} tokens, but the target has "
                f"{target.vocabulary}; expected a head of the target"
            )

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> HeadState:
        """Start a request; group and tenant change nothing.

        Raises: TokenTypeError, InputError for an empty prompt or a token out of range.
        """
        state = HeadState(self, as_prompt(prompt), sampling)
        self._live.add(state)
        return state

    @torch.inference_mode()
    def propose(self, states: Sequence[HeadState], budgets: Sequence[int], /) -> DraftBatch:
        """A tree for each state, the likeliest node first; scores are path probabilities.

        Raises: StateError, InputError for a budget outside 0 … 4096, a state that is there twice or
        lengths that differ.
        """
        given = as_asked(states, budgets, HeadState, self)
        asked = [(state, n) for state, n in given if n and (state.unread or state.read)]
        trees = dict(zip([id(state) for state, _ in asked], self._trees(asked), strict=True))
        drafts = [trees.get(id(state), Draft.empty()) for state, _ in given]
        for (state, _), draft in zip(given, drafts, strict=True):
            state.drafted = len(draft)
        return DraftBatch.of(drafts)

    def observe(self, states: Sequence[HeadState], verdicts: Sequence[Verdict], /) -> None:
        """Keep what was committed, with its features; the head reads it when it is asked to draft.

        A verdict without hidden states ends the head's context: it begins again with the next one.
        So does a request that is not asked for a draft for more than 512 tokens: it begins again
        with the latest 256 of them, so that features which nobody reads do not pile up.

        Raises: StateError, InputError for a state that is there twice, lengths that differ, tokens
        outside the head's vocabulary or hidden states of another width; nothing has changed then.
        """
        alive = as_states(states, HeadState, self)
        batch = VerdictBatch.of(verdicts)
        check_lengths(len(alive), len(batch), "verdicts")
        head = self._head
        if batch.hidden is not None and batch.hidden.shape[1] != head.width:
            raise InputError(
                f"the hidden states are {batch.hidden.shape[1]} wide; expected {head.width}, "
                "the head's features"
            )
        if len(batch.tokens) and batch.tokens.max() >= head.vocabulary:
            raise InputError(
                f"a token is {batch.tokens.max()}; expected 0 to {head.vocabulary - 1}, the "
                "head's vocabulary"
            )
        for state, verdict in zip(alive, batch, strict=True):
            tokens = verdict.tokens.copy()  # else a view of the whole step; so of the features
            state.texts.append(tokens)
            state.length += len(tokens)
            state.drafted = 0
            if verdict.hidden is None:
                state.restart()
            elif len(tokens):
                state.features.append(verdict.hidden.copy())
                state.tokens.append(tokens)
                state.unread += len(tokens)
                if state.unread > _UNREAD:
                    state.begin_again(_LATEST)

    def finish(self, state: HeadState, /) -> None:
        """End a request.

        Raises: StateError if it was finished before or is no state of this drafter.
        """
        as_states([state], HeadState, self)
        state.finished = True
        state.restart()
        state.texts, state.length = [], 0
        self._live.remove(state)

    def sources(self, state: HeadState, /) -> list[tuple[Source, ...]]:
        """`Source.HEAD`, for each node of the state's last draft.

        Raises: StateError.
        """
        as_states([state], HeadState, self)
        return [(Source.HEAD,)] * state.drafted

    def text(self, state: HeadState, /) -> Int32s:
        """Prompt and observed tokens, a copy.

        Raises: StateError.
        """
        as_states([state], HeadState, self)
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

    def _trees(self, asked: Sequence[tuple[HeadState, int]]) -> list[Draft]:
        if not asked:
            return []
        states = [state for state, _ in asked]
        while behind := [state for state in states if state.unread]:
            self._read(behind)
        kept = self._padded(states, self._topk * (self._depth - 1))
        hidden = torch.stack([state.hidden for state in states if state.hidden is not None])
        return grow(
            self._head,
            Context(hidden, kept, self._tensor([state.read for state in states])),
            [budget for _, budget in asked],
            topk=self._topk,
            depth=self._depth,
            shortlist=self._shortlist,
            noise=noise_of([state.sampling for state in states], [s.length for s in states]),
            process=process_of([state.asked for state in states], self._head),
        )

    def _read(self, states: Sequence[HeadState]) -> None:
        """Let the head read committed rows of each state, at most `_PIECE`."""
        head, counts = self._head, [min(state.unread, _PIECE) for state in states]
        most = max(counts)
        features = np.zeros((len(states), most, head.width), np.float32)
        tokens = np.zeros((len(states), most), np.int64)
        rest: list[tuple[Floats, Int32s]] = []
        for at, (state, count) in enumerate(zip(states, counts, strict=True)):
            every, ids = np.concatenate(state.features), np.concatenate(state.tokens)
            features[at, :count], tokens[at, :count] = every[:count], ids[:count]
            rest.append((every[count:], ids[count:]))
        begins = self._tensor([state.read for state in states])
        kept = self._padded(states, most)
        device, end = begins.device, kept.keys.shape[2]
        # A row's place is its position; behind a text's own rows are those of padding, which come
        # after all rows that count. Positions count from the first row that was read: rotary
        # embeddings see differences alone.
        positions = begins[:, None] + torch.arange(most, device=device)
        places = torch.arange(end, device=device)
        visible = places <= positions[..., None]
        if head.window:
            visible &= places > positions[..., None] - head.window
        kept.next_at(positions, end)
        rows, read = torch.from_numpy(features).to(device), torch.from_numpy(tokens).to(device)
        output = head.read(head.rows(rows), read, positions, kept, visible[:, None])
        for at, (state, count) in enumerate(zip(states, counts, strict=True)):
            end = state.read + count
            state.keys = kept.keys[at, :, :end].clone()
            state.values = kept.values[at, :, :end].clone()
            state.hidden = output[at, count - 1].clone()
            left, unread = rest[at]
            state.features, state.tokens = ([left], [unread]) if len(unread) else ([], [])
            state.unread = len(unread)

    def _padded(self, states: Sequence[HeadState], room: int) -> Kept:
        """What was kept of each, with room for `room` rows behind the longest."""
        kept = self._head.room(len(states), max(state.read for state in states) + room)
        for at, state in enumerate(states):
            if state.keys is not None and state.values is not None:
                kept.keys[at, :, : state.read] = state.keys
                kept.values[at, :, : state.read] = state.values
        return kept

    def _tensor(self, numbers: Sequence[int]) -> Tensor:
        return torch.tensor(numbers, device=self._head.tokens.device)


def check_settings(topk: object, depth: object, shortlist: object, dtype: object) -> torch.dtype:
    """Refuse settings out of range; the type of that name.

    Raises: InputError.
    """
    for name, value in (("topk", topk), ("depth", depth), ("shortlist", shortlist)):
        check_positive(value, name)
    if not isinstance(dtype, str) or dtype not in _DTYPES:
        raise InputError(f"dtype is {dtype!r}; expected {' or '.join(_DTYPES)}")
    return _DTYPES[dtype]
