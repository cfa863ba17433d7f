"""A request's input to one verification: its sampling parameters, its seed, its text so far.

A `VerificationInput` is that of one request; a `VerificationBatch` is many of them as columns,
which the batched functions read without a Python loop. A plain list of inputs is accepted wherever
a batch is.

Mutates: nothing. Valid until: for ever, if the arrays given are not written to. Raises: InputError,
TokenTypeError when constructed. GIL: held.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from foresay import arrays
from foresay.arrays import Floats, Int32s, IntsLike
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams, check_seed

__all__ = ["VerificationBatch", "VerificationInput"]

Longs: TypeAlias = NDArray[np.int64]
Number = TypeVar("Number", bound=np.generic)


@dataclass(frozen=True, slots=True, eq=False)
class VerificationInput:
    """One request at one step.

    prompt, output   int32 token ids: the text so far
    seed             the key of its noise, 0 to 2**64 - 1
    stops            token ids that end the answer: the model's EOS ids, unless they are ignored;
                     those of `params.stop` are added
    masks            int32[n + 1, words]: which tokens may come after the text and after each node
                     of its draft: bit t % 32 of word t // 32 is token t's. None: all of them
    """

    params: SamplingParams
    seed: int
    prompt: IntsLike
    output: IntsLike = ()
    stops: tuple[int, ...] = ()
    masks: NDArray[np.int32] | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.params, SamplingParams):
            raise InputError(f"params is {self.params!r}; expected SamplingParams")
        object.__setattr__(self, "prompt", arrays.as_tokens(self.prompt, "prompt"))
        object.__setattr__(self, "output", arrays.as_tokens(self.output, "output"))
        stops = arrays.as_tokens(self.stops, "stops").tolist()
        object.__setattr__(self, "stops", tuple(dict.fromkeys([*stops, *self.params.stop_ids])))
        check_seed(self.seed)
        masks = self.masks
        if masks is not None and not (
            isinstance(masks, np.ndarray) and masks.dtype == np.int32 and masks.ndim == 2
        ):
            raise InputError(
                f"masks are a {type(masks).__name__}; expected an array of int32, a row for the "
                "text and for each drafted token"
            )
        if self.room < 1:
            raise InputError(
                f"the answer has {len(self.output)} tokens and max_tokens is "
                f"{self.params.max_tokens}; expected fewer tokens than max_tokens"
            )

    def along(self, output: Int32s, masks: NDArray[np.int32] | None = None) -> VerificationInput:
        """The same request with the answer `output` and these masks, which are not checked:
        committed tokens need no second check.
        """
        request = object.__new__(VerificationInput)
        for name in ("params", "seed", "prompt", "stops"):
            object.__setattr__(request, name, getattr(self, name))
        object.__setattr__(request, "output", output)
        object.__setattr__(request, "masks", masks)
        return request

    @property
    def position(self) -> int:
        """The position of the next token in the text."""
        return len(self.prompt) + len(self.output)

    @property
    def room(self) -> int:
        """How many tokens the answer may still get."""
        return self.params.max_tokens - len(self.output)


def _column(name: str, dtype: type[Number]) -> cached_property[NDArray[Number]]:
    """One of the sampling parameters of all inputs."""

    def made(batch: VerificationBatch) -> NDArray[Number]:
        return np.array([getattr(params, name) for params in batch._params], dtype)

    return cached_property(made)


class VerificationBatch(Sequence[VerificationInput]):
    """B inputs, and their parameters as columns, each made when it is first read; the sequence of
    those inputs.
    """

    def __init__(self, inputs: Sequence[VerificationInput]) -> None:
        self.inputs = tuple(inputs)
        self._params = [request.params for request in self.inputs]

    @classmethod
    def of(cls, inputs: Sequence[VerificationInput]) -> VerificationBatch:
        """`inputs` as a batch: the batch itself if it is one already."""
        return inputs if isinstance(inputs, VerificationBatch) else cls(inputs)

    def a_token_on(self) -> VerificationBatch:
        """The same requests when each has one token more, whichever that is: for choosing tokens
        without penalties, which depend on it."""
        made = VerificationBatch(self.inputs)
        made.positions, made.silent, made.room = self.positions + 1, self.silent - 1, self.room - 1
        return made

    temperatures = _column("temperature", np.float32)
    top_k = _column("top_k", np.int64)
    top_p = _column("top_p", np.float64)
    min_p = _column("min_p", np.float64)
    repetition = _column("repetition_penalty", np.float32)
    presence = _column("presence_penalty", np.float32)
    frequency = _column("frequency_penalty", np.float32)
    penalised = _column("penalised", np.bool_)

    @cached_property
    def seeds(self) -> NDArray[np.uint64]:
        return np.array([request.seed for request in self.inputs], np.uint64)

    @cached_property
    def positions(self) -> Longs:
        return np.array([request.position for request in self.inputs], np.int64)

    @cached_property
    def room(self) -> Longs:
        """Tokens the answer may still get."""
        return np.array([request.room for request in self.inputs], np.int64)

    @cached_property
    def silent(self) -> Longs:
        """Tokens the answer must still get before one may end it."""
        return np.array([a.params.min_tokens - len(a.output) for a in self.inputs], np.int64)

    @cached_property
    def context(self) -> Int32s:
        """Prompts and outputs of the penalised requests only, one after the other."""
        texts = [(np.asarray(a.prompt), np.asarray(a.output)) for a in self._penalised]
        return arrays.joined([part for text in texts for part in text])

    @cached_property
    def context_offsets(self) -> Longs:
        """[B + 1]: where in `context` each request's text begins."""
        return np.concatenate([[0], np.cumsum(self._context_lengths.sum(axis=1))])

    @cached_property
    def outputs_from(self) -> Longs:
        """Where in `context` each request's output begins."""
        found: Longs = self.context_offsets[:-1] + self._context_lengths[:, 0]
        return found

    @cached_property
    def bias(self) -> tuple[Longs, Longs, Floats]:
        """Request, token id and value of every bias."""
        bias = [(i, t, v) for i, p in enumerate(self._params) for t, v in p.logit_bias.items()]
        return (
            np.array([b[0] for b in bias], np.int64),
            np.array([b[1] for b in bias], np.int64),
            np.array([b[2] for b in bias], np.float32),
        )

    @cached_property
    def stops(self) -> tuple[Longs, Longs]:
        """Request and id of every token that ends an answer."""
        stops = [(i, token) for i, request in enumerate(self.inputs) for token in request.stops]
        return (
            np.array([s[0] for s in stops], np.int64),
            np.array([s[1] for s in stops], np.int64),
        )

    @cached_property
    def orders(self) -> tuple[list[Sequence[str]], Longs]:
        """The orders of processors that occur, and which of them each request has."""
        each = [params.processor_order for params in self._params]
        orders = list(dict.fromkeys(each))
        if len(orders) == 1:
            return orders, np.zeros(len(each), np.int64)
        return orders, np.array([orders.index(order) for order in each], np.int64)

    @cached_property
    def processed(self) -> bool:
        """Whether one of them has more than a temperature, now or later in the answer."""
        return self.masked or any(
            p.penalised or p.logit_bias or p.min_tokens or p.top_k or p.top_p < 1 or p.min_p
            for p in self._params
        )

    @cached_property
    def masked(self) -> bool:
        """Whether tokens of one of them are masked."""
        return any(request.masks is not None for request in self.inputs)

    @cached_property
    def masks(self) -> tuple[NDArray[np.int32], Longs]:
        """The masks of all requests, one after the other, and where each one's begin: -1 for those
        without masks. Only for a batch that is `masked`."""
        given = [np.empty((0, 0)) if a.masks is None else a.masks for a in self.inputs]
        sizes = np.array([len(masks) for masks in given])
        begins = np.where(sizes > 0, np.cumsum(sizes) - sizes, -1)
        return np.concatenate([masks for masks in given if len(masks)]), begins

    @cached_property
    def _penalised(self) -> list[VerificationInput]:
        return [request for request in self.inputs if request.params.penalised]

    @cached_property
    def _context_lengths(self) -> Longs:
        """[B, 2]: of the prompt and the output; 0 of requests without penalties."""
        lengths = np.zeros((len(self.inputs), 2), np.int64)
        found = [[len(a.prompt), len(a.output)] for a in self._penalised]
        lengths[self.penalised] = np.array(found).reshape(-1, 2)
        return lengths

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, index):  # type: ignore[no-untyped-def]
        return (
            VerificationBatch.of(self.inputs[index])
            if isinstance(index, slice)
            else self.inputs[index]
        )
