"""The target drafts itself, with some of its layers: self-speculative decoding."""

from __future__ import annotations

from collections.abc import Sequence
from time import perf_counter
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from foresay.arrays import Int32s, IntsLike, as_items, as_tokens, check_positive
from foresay.draft import Draft
from foresay.drafter import as_budgets, as_states, check_lengths
from foresay.drafters.decoding.drafter import MEMORY, Choice, DecodingDrafter
from foresay.drafters.decoding.shapes import ShapeLike
from foresay.drafters.decoding.state import RequestState
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay.models.target import Target, TextKv

__all__ = ["SelfDrafter", "best_layers"]

_PIECE = 64  # tokens of a text that are looked at together


class SelfDrafter(DecodingDrafter):
    """Drafts with the layers `layers` of the target; the others are skipped.

    target  the target; None: that of the engine or LLM that the drafter is given to
    layers  the numbers of the layers that are kept, rising; `best_layers` finds good ones. None:
            all but every fifth between the first quarter and the last sixth
    shape, choice, memory  as for `ModelDrafter`

    The weights are the target's own, and so are the keys and values that an engine shares (see
    `share_kv_cache`): it computes and keeps nothing of a request's text, only the drafted tokens. A
    text of which the target has not stored all but the last token gets no draft. Without an engine
    it keeps keys and values of its own, as ModelDrafter does.

    What can be skipped depends on the model, and a small one may need all of its layers: for
    SmolLM2-135M `best_layers` found no set that is faster than none. docs/drafters.md has what the
    usual layers find.

    One thread at a time may use it, and not while the target runs in another.

    Raises: InputError when constructed or when it is given to an engine; UnsupportedModel for a
    target whose layers are not known.
    """

    def __init__(
        self,
        target: Target | None = None,
        *,
        layers: Sequence[int] | None = None,
        shape: ShapeLike = 5,
        choice: Choice = "coupled",
        memory: int = MEMORY,
    ) -> None:
        super().__init__(None, shape=shape, choice=choice, memory=memory)
        self._layers = layers
        self._shared: dict[int, TextKv] | None = None  # by state, while it is shared
        if target is not None:
            self._skip(target)

    @property
    def layers(self) -> tuple[int, ...]:
        """The layers that are kept.

        Raises: InputError if it has no target yet.
        """
        model: Any = self.model
        kept: tuple[int, ...] = model.kept
        return kept

    def fit(self, target: Target, tokenizer_hash: bytes | None = None) -> None:
        """Take the target if it has none; refuse one of another vocabulary.

        Raises: InputError, UnsupportedModel.
        """
        if self.needs_target:
            self._skip(target)
        super().fit(target, tokenizer_hash)

    def share_kv_cache(
        self, target: Target, states: Sequence[RequestState], kvs: Sequence[TextKv], /
    ) -> None:
        """What `target` has stored of each state's text, for the proposals that follow, until it is
        called again: with nothing to end it. Tokens that are drafted are stored behind the
        text, which the target has to cut.

        Raises: StateError, InputError for lengths that differ.
        """
        alive = as_states(states, RequestState, self)
        check_lengths(len(alive), len(kvs), "kvs")
        model: Any = self.model
        shared = {id(state): kv for state, kv in zip(alive, kvs, strict=True)}
        self._shared = shared if shared and model.target is target else None

    def propose(self, states: Sequence[RequestState], budgets: Sequence[int], /) -> list[Draft]:
        """A draft for each state, behind what is shared of it, if anything is.

        Raises: as `ModelDrafter.propose`.
        """
        shared = self._shared
        if shared is None:
            return super().propose(states, budgets)
        alive = as_states(states, RequestState, self)
        checked = as_budgets(budgets, len(alive))
        try:
            for at, state in enumerate(alive):
                kv = shared.get(id(state))
                # More than that are drafted tokens of this step, which are cut before the draft.
                if kv is not None and kv.length >= len(state.text) - 1:
                    state.share(kv, self.model.version)
                else:
                    checked[at] = 0
            return super().propose(alive, checked)
        finally:
            for state in alive:
                state.forget()

    def _make_room(self, asked: Sequence[tuple[RequestState, int]]) -> set[RequestState]:
        """What is shared takes no memory of this drafter."""
        return super()._make_room(asked) if self._shared is None else {state for state, _ in asked}

    def _skip(self, target: Target) -> None:
        from foresay.models.skipping import SkippingTarget, layers_of
        from foresay.models.target import check_target  # torch, which takes seconds

        check_target(target)
        count = layers_of(target)
        skipped = range(max(1, count // 4), count - max(1, count // 6), 5)
        usual = [at for at in range(count) if at not in skipped]
        self._use(SkippingTarget(target, usual if self._layers is None else self._layers))


def best_layers(
    target: Target,
    texts: Sequence[IntsLike],
    *,
    length: int = 5,
    tries: int = 8,
    patience: int = 6,
    tokens: int = 256,
    seconds: tuple[float, float] | None = None,
) -> tuple[int, ...]:
    """The layers to keep for the highest speed, by a short greedy search on recorded texts.

    From all layers on, the one is dropped without which the kept ones agree most often with the
    whole target on the likeliest next token, behind its keys and values of the text before: all
    layers take the same time. Of the sets on this
    way the one is returned with the highest speed, (1 - a^(k+1)) / ((1 - a) (1 + k r)) at its best
    k: with agreement a, draft length k, and a share r of the target's time. It is all of them where
    skipping does not pay.

    length    the longest draft that is thought of
    tries     layers that are tried in a round: of those of the round before the ones that cost
              least, and with each round one less; the first round tries all, and so does the one
              after the last of these
    patience  rounds without a faster set, after which the search ends
    tokens    of the texts, from their beginnings, that are looked at
    seconds   of a pass without its layers, and of one layer; None: measured

    Raises: InputError for texts without 2 tokens, or options out of range.
    """
    from foresay.models.skipping import layers_of

    for name, value in (
        ("length", length),
        ("tries", tries),
        ("patience", patience),
        ("tokens", tokens),
    ):
        check_positive(value, name)
    pieces = _pieces(texts, tokens, target)
    everything = tuple(range(layers_of(target)))
    stored = [_stored(target, piece) for piece in pieces]
    rest, layer = _measured(target, everything) if seconds is None else seconds

    def agreement(kept: tuple[int, ...]) -> float:
        return _agreement(target, kept, stored)

    def speed(kept: tuple[int, ...], agreed: float) -> float:
        share = (rest + layer * len(kept)) / (rest + layer * len(everything))
        return max(_speed(agreed, k, share) for k in range(1, length + 1))

    kept, tried = everything, list(everything)
    best, fastest, since = kept, speed(kept, 1.0), 0
    while len(kept) > 1 and since < patience:
        found = {
            at: agreement(tuple(other for other in kept if other != at))
            for at in tried
            if at in kept
        }
        order = sorted(found, key=lambda at: (-found[at], at))
        kept = tuple(other for other in kept if other != order[0])
        now = speed(kept, found[order[0]])
        since += 1
        if now > fastest:
            best, fastest, since = kept, now, 0
        tried = order[1 : tries + 1] or list(kept)
    return best


def _speed(agreed: float, length: int, share: float) -> float:
    committed = sum(agreed**at for at in range(length + 1))
    return committed / (1 + length * share)


def _pieces(texts: Sequence[IntsLike], tokens: int, target: Target) -> list[Int32s]:
    left, pieces = tokens, list[Int32s]()
    size = min(_PIECE, target.context)
    for text in as_items(texts, "texts", "a list of lists of token ids"):
        found = as_tokens(text, "texts")[:left]
        left -= len(found)
        pieces += [found[at : at + size] for at in range(0, len(found), size)]
    pieces = [piece for piece in pieces if len(piece) > 1]
    if not pieces:
        raise InputError(f"there are {len(texts)} texts; expected at least one of 2 tokens or more")
    return pieces


class _Stored(NamedTuple):
    """A piece of text, what the target has stored of it, and the likeliest token after each."""

    tokens: Int32s
    kv: TextKv
    likeliest: Int32s


def _stored(target: Target, tokens: Int32s) -> _Stored:
    from foresay.models.target import SequenceInput

    ahead = len(tokens) - 1
    part = SequenceInput.of(target, target.open(), tokens, prefill=ahead, prefill_logits=ahead)
    after = target.forward([part]).logits.argmax(-1).cpu().numpy()
    part.keep()
    return _Stored(tokens, part.kv, np.append(after[1:], after[0]).astype(np.int32))


def _agreement(target: Target, kept: Sequence[int], pieces: Sequence[_Stored]) -> float:
    """How often these layers find the same token likeliest as all of them."""
    from foresay.models.skipping import SkippingTarget
    from foresay.models.target import SequenceInput

    few = SkippingTarget(target, kept)
    kvs = [target.open() for _ in pieces]
    for kv, piece in zip(kvs, pieces, strict=True):
        kv.copy_from(piece.kv, len(piece.tokens) - 1)
    same = 0
    for at in reversed(range(max(len(piece.tokens) for piece in pieces))):
        asked = [(kv, piece) for kv, piece in zip(kvs, pieces, strict=True) if kv.length >= at]
        for kv, _ in asked:
            kv.cut(at)  # the whole target's, of the text before
        parts = [SequenceInput.of(few, kv, piece.tokens[at : at + 1]) for kv, piece in asked]
        found = few.forward(parts).logits.argmax(-1).tolist()
        same += sum(
            one == piece.likeliest[at] for one, (_, piece) in zip(found, asked, strict=True)
        )
    return same / sum(len(piece.tokens) for piece in pieces)


def _measured(target: Target, layers: Sequence[int]) -> tuple[float, float]:
    """Seconds of a pass over one token without its layers, and of one layer."""
    from foresay.models.skipping import SkippingTarget

    one, every = _seconds(SkippingTarget(target, layers[:1])), _seconds(target)
    layer = max(every - one, 1e-9) / max(len(layers) - 1, 1)
    return max(one - layer, 0.0), layer


def _seconds(target: Target, times: int = 7) -> float:
    from foresay.models.target import SequenceInput

    kv, token = target.open_filled(64), np.zeros(1, np.int32)
    spent = []
    for _ in range(times):
        begin = perf_counter()
        target.forward([SequenceInput.of(target, kv, token)]).wait()
        spent.append(perf_counter() - begin)
    return float(np.median(spent))
