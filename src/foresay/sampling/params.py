"""The sampling parameters of a request."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Literal

from foresay.arrays import MAX_TOKEN
from foresay.errors import InputError
from foresay.sampling.structured_outputs import StructuredOutputs

__all__ = ["PROCESSORS", "SamplingParams", "check_seed"]

PROCESSORS = ("temperature", "top_k", "top_p", "min_p")
"""The logits processors whose order a request may choose, in the order of transformers."""
_LARGEST = 3.4e38  # the largest float32; logits are processed in float32


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are sampled and when an answer ends. Logits are processed in the order of
    transformers: the mask of `structured_outputs`, bias, repetition penalty, presence and frequency
    penalty, min_tokens, temperature, top-k, top-p, min-p; each over the text so far, drafted tokens
    included. `processor_order` changes the order of the last four.

    Raises: InputError when constructed.
    """

    max_tokens: int = 256
    """The answer ends after this many tokens."""
    temperature: float = 1.0
    """0 is greedy: the likeliest token; of equally likely ones the lowest id."""
    top_k: int = 0
    """Only the k likeliest tokens (and what ties with the last of them); 0: all."""
    top_p: float = 1.0
    """Only the likeliest tokens that together reach this probability; 1: all."""
    min_p: float = 0.0
    """Only tokens at least this likely compared with the likeliest; 0: all."""
    repetition_penalty: float = 1.0
    """Logits of tokens in the prompt or the answer are divided by it (multiplied if negative)."""
    presence_penalty: float = 0.0
    """Subtracted from the logits of tokens in the answer."""
    frequency_penalty: float = 0.0
    """Subtracted from the logits of tokens in the answer, once per occurrence."""
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    """Added to the logits of these token ids; -inf forbids a token."""
    stop: str | Sequence[str | int] = ()
    """Stop strings and stop token ids: they end the answer."""
    seed: int | None = None
    """The same seed gives the same answer; None: a new one is drawn."""
    logprobs: int | None = None
    """Report log probabilities of the answer's tokens, and of this many likeliest at each place."""
    n: int = 1
    """How many answers."""
    ignore_eos: bool = False
    """Continue after tokens that end an answer of the model."""
    min_tokens: int = 0
    """Tokens before an answer may end: until then no token that ends it is sampled, and stop
    strings are ignored."""
    rule: Literal["match", "rejection"] = "match"
    """How drafts are verified. match: a drafted token is accepted where it is the token that the
    target samples with the seed's noise, so the text is the same for every drafter. rejection: a
    token sampled from q is accepted with chance min(1, p / q), which accepts more of a drafter that
    samples. It keeps the target's distribution, not the text: a seed does not repeat the answer.
    (Drafts may come from earlier answers to the same seed, so each request gets new noise.)"""
    processor_order: Sequence[str] = PROCESSORS
    """In which order temperature, top_k, top_p and min_p are applied, each to what the ones before
    it have left. With the temperature last, top_p and min_p see the model's own probabilities."""
    structured_outputs: StructuredOutputs | None = None
    """The form that the answer has. Tokens that would leave it are masked before everything else,
    drafted ones too."""

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check_int("top_k", self.top_k, 0, MAX_TOKEN)
        _check_int("n", self.n, 1, 2**31 - 1)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens, "max_tokens")
        if not _is_number(self.temperature, 0.0, _LARGEST) or 0 < self.temperature < 1e-3:
            raise InputError(
                f"temperature is {self.temperature!r}; expected 0 (greedy) or a number from 0.001"
            )
        if not isinstance(self.rule, str) or self.rule not in ("match", "rejection"):
            raise InputError(f"rule is {self.rule!r}; expected 'match' or 'rejection'")
        _check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise InputError("top_p is 0, which leaves no token; expected above 0, at most 1")
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        _check_number("presence_penalty", self.presence_penalty, -1e6, 1e6)
        _check_number("frequency_penalty", self.frequency_penalty, -1e6, 1e6)
        if self.seed is not None:
            check_seed(self.seed)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_TOKEN)
        if not isinstance(self.ignore_eos, bool):
            raise InputError(f"ignore_eos is {self.ignore_eos!r}; expected True or False")
        if not isinstance(self.structured_outputs, StructuredOutputs | None):
            raise InputError(
                f"structured_outputs is {self.structured_outputs!r}; expected StructuredOutputs"
            )
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        object.__setattr__(self, "stop", _checked_stop(self.stop))
        object.__setattr__(self, "processor_order", _checked_order(self.processor_order))

    @property
    def greedy(self) -> bool:
        return self.temperature == 0

    @property
    def penalised(self) -> bool:
        """Whether the logits depend on which tokens the text so far holds."""
        return (self.repetition_penalty, self.presence_penalty, self.frequency_penalty) != (1, 0, 0)

    @property
    def stop_texts(self) -> tuple[str, ...]:
        return tuple(s for s in self.stop if isinstance(s, str))

    @property
    def stop_ids(self) -> tuple[int, ...]:
        return tuple(s for s in self.stop if not isinstance(s, str))


def check_seed(seed: object) -> None:
    """Refuse what is no seed. Raises: InputError."""
    _check_int("seed", seed, 0, 2**64 - 1)


def _check_int(name: str, value: object, low: int, high: int, high_name: str = "") -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not low <= value <= high:  # type: ignore[operator]
        limit = f"{high_name}, {high}" if high_name else str(high)
        raise InputError(f"{name} is {value!r}; expected a whole number from {low} to {limit}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if not _is_number(value, low, high):
        raise InputError(f"{name} is {value!r}; expected a number from {low:g} to {high:g}")


def _is_number(value: object, low: float, high: float) -> bool:
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and low <= value <= high  # type: ignore[operator]


def _checked_bias(bias: object) -> Mapping[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise InputError(f"logit_bias is {bias!r}; expected a mapping of token ids to numbers")
    for token, value in bias.items():
        _check_int("a token id of logit_bias", token, 0, MAX_TOKEN)
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or math.isnan(value) or value > _LARGEST or -math.inf < value < -_LARGEST:
            raise InputError(
                f"logit_bias[{token}] is {value!r}; expected a finite number or -inf, which "
                "forbids the token"
            )
    return {token: float(value) for token, value in bias.items()}


def _checked_stop(stop: object) -> tuple[str | int, ...]:
    if isinstance(stop, str):
        stop = (stop,)
    if stop is None:
        return ()
    if not isinstance(stop, Sequence) or isinstance(stop, (bytes, bytearray)):
        raise InputError(f"stop is {stop!r}; expected a str, or a list of strs and token ids")
    for item in stop:
        if item == "":
            raise InputError("a stop string is empty; expected at least 1 character")
        if not isinstance(item, str):
            _check_int("a token id of stop", item, 0, MAX_TOKEN)
    return tuple(stop)


def _checked_order(order: object) -> tuple[str, ...]:
    listed = isinstance(order, Sequence) and not isinstance(order, str)
    names = tuple(order) if listed else ()  # type: ignore[arg-type]
    if len(names) != len(PROCESSORS) or any(name not in names for name in PROCESSORS):
        raise InputError(
            f"processor_order is {order!r}; expected {', '.join(PROCESSORS[:-1])} and "
            f"{PROCESSORS[-1]}, each once, in any order"
        )
    return names
