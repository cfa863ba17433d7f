"""A request's input to one verification: its sampling parameters, its seed, its text so far.

An `Ask` is that of one request; an `AskBatch` is many of them as columns, which the batched
functions read without a Python loop. A plain list of asks is accepted wherever a batch is.

Mutates: nothing. Valid until: for ever, if the arrays given are not written to. Raises: InputError,
TokenTypeError when constructed. GIL: held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay import arrays
from foresay.arrays import Floats, Int32s, IntsLike
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams, check_seed

__all__ = ["Ask", "AskBatch"]

Longs: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """One request at one step.

    prompt, output   int32 token ids: the text so far
    seed             the key of its noise, 0 to 2**64 - 1
    stops            token ids that end the answer: the model's EOS ids, unless they are ignored;
                     those of `params.stop` are added
    """

    params: SamplingParams
    seed: int
    prompt: IntsLike
    output: IntsLike = ()
    stops: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.params, SamplingParams):
            raise InputError(f"params is {self.params!r}; expected SamplingParams")
        object.__setattr__(self, "prompt", arrays.as_tokens(self.prompt, "prompt"))
        object.__setattr__(self, "output", arrays.as_tokens(self.output, "output"))
        stops = arrays.as_tokens(self.stops, "stops").tolist()
        object.__setattr__(self, "stops", tuple(dict.fromkeys([*stops, *self.params.stop_ids])))
        check_seed(self.seed)
        if self.room < 1:
            raise InputError(
                f"the answer has {len(self.output)} tokens and max_tokens is "
                f"{self.params.max_tokens}; expected fewer tokens than max_tokens"
            )

    def along(self, output: Int32s) -> Ask:
        """The same request with the answer `output`, which is not checked: committed tokens need no
        second check.
        """
        ask = object.__new__(Ask)
        for name in ("params", "seed", "prompt", "stops"):
            object.__setattr__(ask, name, getattr(self, name))
        object.__setattr__(ask, "output", output)
        return ask

    @property
    def position(self) -> int:
        """The position of the next token in the text."""
        return len(self.prompt) + len(self.output)

    @property
    def room(self) -> int:
        """How many tokens the answer may still get."""
        return self.params.max_tokens - len(self.output)


@dataclass(frozen=True, slots=True, eq=False)
class AskBatch(Sequence[Ask]):
    """B asks as columns; the sequence of those asks."""

    asks: tuple[Ask, ...]
    temperatures: Floats
    top_k: Longs
    top_p: NDArray[np.float64]
    min_p: NDArray[np.float64]
    repetition: Floats
    presence: Floats
    frequency: Floats
    seeds: NDArray[np.uint64]
    positions: Longs
    room: Longs
    """Tokens the answer may still get."""
    silent: Longs
    """Tokens the answer must still get before one may end it."""
    penalised: NDArray[np.bool_]
    context: Int32s
    """Prompts and outputs of the penalised requests only, one after the other."""
    context_offsets: Longs
    outputs_from: Longs
    """Where in `context` each request's output begins."""
    bias: tuple[Longs, Longs, Floats]
    """Request, token id and value of every bias."""
    stops: tuple[Longs, Longs]
    """Request and id of every token that ends an answer."""

    @classmethod
    def of(cls, asks: Sequence[Ask]) -> AskBatch:
        """`asks` as columns: the batch itself if it is one already."""
        if isinstance(asks, AskBatch):
            return asks
        params = [ask.params for ask in asks]
        penalised = np.array([p.penalised for p in params], bool)
        texts = [(np.asarray(a.prompt), np.asarray(a.output)) for a in asks if a.params.penalised]
        lengths = np.zeros((len(asks), 2), np.int64)
        lengths[penalised] = np.array([[len(p), len(o)] for p, o in texts]).reshape(-1, 2)
        offsets = np.concatenate([[0], np.cumsum(lengths.sum(axis=1))])
        bias = [(i, t, v) for i, p in enumerate(params) for t, v in p.logit_bias.items()]
        stops = [(i, token) for i, ask in enumerate(asks) for token in ask.stops]
        return cls(
            asks=tuple(asks),
            temperatures=np.array([p.temperature for p in params], np.float32),
            top_k=np.array([p.top_k for p in params], np.int64),
            top_p=np.array([p.top_p for p in params], np.float64),
            min_p=np.array([p.min_p for p in params], np.float64),
            repetition=np.array([p.repetition_penalty for p in params], np.float32),
            presence=np.array([p.presence_penalty for p in params], np.float32),
            frequency=np.array([p.frequency_penalty for p in params], np.float32),
            seeds=np.array([ask.seed for ask in asks], np.uint64),
            positions=np.array([ask.position for ask in asks], np.int64),
            room=np.array([ask.room for ask in asks], np.int64),
            silent=np.array([a.params.min_tokens - len(a.output) for a in asks], np.int64),
            penalised=penalised,
            context=arrays.joined([part for text in texts for part in text]),
            context_offsets=offsets,
            outputs_from=offsets[:-1] + lengths[:, 0],
            bias=(
                np.array([b[0] for b in bias], np.int64),
                np.array([b[1] for b in bias], np.int64),
                np.array([b[2] for b in bias], np.float32),
            ),
            stops=(
                np.array([s[0] for s in stops], np.int64),
                np.array([s[1] for s in stops], np.int64),
            ),
        )

    def __len__(self) -> int:
        return len(self.asks)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return AskBatch.of(self.asks[index]) if isinstance(index, slice) else self.asks[index]
