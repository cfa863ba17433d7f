"""What a user asks of sampling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral, Real
from typing import Literal

from foresay.arrays import MAX_TOKEN
from foresay.errors import InputError

__all__ = ["SamplingParams", "check_seed"]

_LARGEST = 3.4e38  # of float32, in which logits are processed


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when an answer ends. Logits are processed in the order of
    transformers: bias, repetition penalty, presence and frequency penalty, min_tokens, temperature,
    top-k, top-p, min-p; each along the text so far, drafted tokens included.

    Raises: InputError when constructed.
    """

    max_tokens: int = 256
    """The answer ends after this many tokens."""
    temperature: float = 1.0
    """0 is greedy: the likeliest token, the lowest id where several are."""
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
    """Texts and token ids that end the answer."""
    seed: int | None = None
    """The same seed gives the same answer; None: a new one is drawn."""
    logprobs: int | None = None
    """Report log probabilities of the answer's tokens, and of this many likeliest beside each."""
    n: int = 1
    """How many answers."""
    ignore_eos: bool = False
    """Go on after the model's end-of-text token."""
    min_tokens: int = 0
    """No token that ends the answer is chosen before this many others, and texts of `stop` are
    ignored in the first this many tokens."""
    rule: Literal["match", "rejection"] = "match"
    """How guesses are verified. match: a guess is taken where it is the token that the target
    chooses with the seed's noise, so that the text is the same whoever guesses. rejection: a token
    drawn from q is taken with chance min(1, p / q), which takes more of the guesses of a drafter
    that draws. That is exact in law, not in text: the answer is a sample of the target's, and a
    seed repeats it only where the drafts are the same too."""

    def __post_init__(self) -> None:
        _check_int("max_tokens", self.max_tokens, 1, 2**31 - 1)
        _check_int("top_k", self.top_k, 0, MAX_TOKEN)
        _check_int("n", self.n, 1, 2**31 - 1)
        _check_int("min_tokens", self.min_tokens, 0, self.max_tokens, "max_tokens")
        if not _is_number(self.temperature, 0.0, _LARGEST) or 0 < self.temperature < 1e-3:
            raise InputError(
                f"temperature is {self.temperature!r}; valid are 0 (greedy) and numbers from 0.001"
            )
        if not isinstance(self.rule, str) or self.rule not in ("match", "rejection"):
            raise InputError(f"rule is {self.rule!r}; valid are 'match' and 'rejection'")
        _check_number("top_p", self.top_p, 0.0, 1.0)
        if self.top_p == 0:
            raise InputError("top_p is 0, which leaves no token; valid are numbers above 0 to 1")
        _check_number("min_p", self.min_p, 0.0, 1.0)
        _check_number("repetition_penalty", self.repetition_penalty, 1e-6, 1e6)
        _check_number("presence_penalty", self.presence_penalty, -1e6, 1e6)
        _check_number("frequency_penalty", self.frequency_penalty, -1e6, 1e6)
        if self.seed is not None:
            check_seed(self.seed)
        if self.logprobs is not None:
            _check_int("logprobs", self.logprobs, 0, MAX_TOKEN)
        if not isinstance(self.ignore_eos, bool):
            raise InputError(f"ignore_eos is {self.ignore_eos!r}; valid are True and False")
        object.__setattr__(self, "logit_bias", _checked_bias(self.logit_bias))
        object.__setattr__(self, "stop", _checked_stop(self.stop))

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
    """Refuse what cannot be the key of a noise. Raises: InputError."""
    _check_int("seed", seed, 0, 2**64 - 1)


def _check_int(name: str, value: object, low: int, high: int, high_name: str = "") -> None:
    whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not whole or not low <= value <= high:  # type: ignore[operator]
        limit = f"{high_name}, {high}" if high_name else str(high)
        raise InputError(f"{name} is {value!r}; valid are whole numbers from {low} to {limit}")


def _check_number(name: str, value: object, low: float, high: float) -> None:
    if not _is_number(value, low, high):
        raise InputError(f"{name} is {value!r}; valid are numbers from {low:g} to {high:g}")


def _is_number(value: object, low: float, high: float) -> bool:
    number = isinstance(value, Real) and not isinstance(value, bool)
    return number and low <= value <= high  # type: ignore[operator]


def _checked_bias(bias: object) -> Mapping[int, float]:
    if bias is None:
        return {}
    if not isinstance(bias, Mapping):
        raise InputError(f"logit_bias is {bias!r}; a mapping of token ids to numbers is needed")
    for token, value in bias.items():
        _check_int("a token id of logit_bias", token, 0, MAX_TOKEN)
        number = isinstance(value, Real) and not isinstance(value, bool)
        if not number or math.isnan(value) or value > _LARGEST or -math.inf < value < -_LARGEST:
            raise InputError(
                f"logit_bias[{token}] is {value!r}; valid are finite numbers and -inf, which "
                "forbids the token"
            )
    return {token: float(value) for token, value in bias.items()}


def _checked_stop(stop: object) -> tuple[str | int, ...]:
    if isinstance(stop, str):
        stop = (stop,)
    if stop is None:
        return ()
    if not isinstance(stop, Sequence) or isinstance(stop, (bytes, bytearray)):
        raise InputError(f"stop is {stop!r}; a text, or a list of texts and token ids is needed")
    for item in stop:
        if item == "":
            raise InputError("a text of stop is empty, which would end every answer at once")
        if not isinstance(item, str):
            _check_int("a token id of stop", item, 0, MAX_TOKEN)
    return tuple(stop)
