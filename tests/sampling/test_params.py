"""What SamplingParams and Ask accept, and the sentences with which they refuse."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np
import pytest

from foresay.errors import InputError, TokenTypeError
from foresay.sampling import SamplingParams, Stream, VerificationInput
from foresay.sampling.noise import philox, seed_of_sample

FIELDS = (
    "max_tokens temperature top_k top_p min_p repetition_penalty presence_penalty frequency_penalty"
    " logit_bias stop seed logprobs n ignore_eos min_tokens rule"
    " processor_order structured_outputs"
)


def test_the_fields_are_those_of_the_design() -> None:
    assert [f.name for f in fields(SamplingParams)] == FIELDS.split()


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"max_tokens": 0}, "max_tokens is 0; expected a whole number from 1 to"),
        ({"max_tokens": 2.0}, "max_tokens is 2.0"),
        ({"max_tokens": True}, "max_tokens is True"),
        ({"temperature": -1}, "temperature is -1; expected 0 .greedy. or a number from 0.001"),
        ({"temperature": 1e-5}, r"expected 0 \(greedy\) or a number from 0.001"),
        ({"temperature": float("nan")}, "temperature is nan"),
        ({"temperature": float("inf")}, "temperature is inf"),
        ({"temperature": "hot"}, "temperature is 'hot'"),
        ({"top_k": -1}, "top_k is -1"),
        ({"top_p": 0}, "top_p is 0, which leaves no token"),
        ({"top_p": 1.01}, "top_p is 1.01; expected a number from 0 to 1"),
        ({"min_p": 2}, "min_p is 2"),
        ({"repetition_penalty": 0}, "repetition_penalty is 0"),
        ({"presence_penalty": float("inf")}, "presence_penalty is inf"),
        ({"frequency_penalty": None}, "frequency_penalty is None"),
        ({"logit_bias": [1]}, r"logit_bias is \[1\]; expected a mapping"),
        ({"logit_bias": {-1: 0.0}}, "a token id of logit_bias is -1"),
        ({"logit_bias": {"1": 0.0}}, "a token id of logit_bias is '1'"),
        ({"logit_bias": {1: float("inf")}}, r"logit_bias\[1\] is inf"),
        ({"logit_bias": {1: float("nan")}}, r"logit_bias\[1\] is nan"),
        ({"stop": [""]}, "a stop string is empty"),
        ({"stop": [-1]}, "a token id of stop is -1"),
        ({"stop": 5}, "stop is 5; expected a str, or a list"),
        ({"stop": b"x"}, "stop is b'x'; expected a str, or a list"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 2**64}, "seed is 18446744073709551616"),
        ({"logprobs": -1}, "logprobs is -1"),
        ({"n": 0}, "n is 0"),
        ({"ignore_eos": 1}, "ignore_eos is 1"),
        ({"min_tokens": 9, "max_tokens": 8}, "min_tokens is 9; .* to max_tokens, 8"),
        (
            {"processor_order": ["top_k", "top_p"]},
            r"processor_order is \['top_k', 'top_p'\]; expected temperature, top_k, top_p and "
            "min_p, each once, in any order",
        ),
        ({"processor_order": ["top_k"] * 4}, "processor_order is .* each once"),
        ({"processor_order": "top_k"}, "processor_order is 'top_k'; expected"),
        ({"processor_order": None}, "processor_order is None; expected"),
        ({"processor_order": [1, [2], 3, 4]}, "processor_order is .*; expected"),
        *(
            ({"rule": rule}, r"rule is .*; expected 'match' or 'rejection'")
            for rule in ("Match", "", None, 1, ["match"])
        ),
    ],
)
def test_refusals(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        SamplingParams(**given)


def test_what_is_accepted() -> None:
    params = SamplingParams(
        temperature=0, stop=["end", 7], logit_bias={0: float("-inf")}, seed=2**64 - 1
    )
    assert params.greedy and not params.penalised
    assert params.stop_texts == ("end",) and params.stop_ids == (7,)
    assert SamplingParams(stop="x").stop == ("x",)
    order = ["min_p", "top_p", "temperature", "top_k"]
    assert SamplingParams(processor_order=order).processor_order == tuple(order)
    assert SamplingParams(frequency_penalty=-1).penalised
    assert SamplingParams().rule == "match"
    assert SamplingParams(rule="rejection").rule == "rejection"
    numbers = SamplingParams(top_k=np.int64(5), temperature=np.float32(0.5))  # of numpy
    assert (numbers.top_k, numbers.temperature) == (5, 0.5)
    nothing: Any = None
    assert SamplingParams(logit_bias=nothing, stop=nothing) == SamplingParams()


def test_inputs() -> None:
    request = VerificationInput(SamplingParams(max_tokens=3), 1, [1, 2], [3])
    assert (request.position, request.room) == (3, 2)
    with pytest.raises(InputError, match="3 tokens and max_tokens is 3; expected fewer tokens"):
        VerificationInput(SamplingParams(max_tokens=3), 1, [1], [1, 2, 3])
    for seed in (-5, 1.5, "1", None, True):
        with pytest.raises(
            InputError, match=f"seed is {seed!r}; expected a whole number from 0 to"
        ):
            VerificationInput(SamplingParams(), seed, [1])  # type: ignore[arg-type]
    ended = VerificationInput(SamplingParams(stop=[7, "end", 8]), 1, [1], stops=(2, 7))
    assert ended.stops == (2, 7, 8)
    with pytest.raises(TokenTypeError, match="int64"):
        VerificationInput(SamplingParams(), 0, np.zeros(2, np.int64))


def test_the_streams_never_meet() -> None:
    assert [int(s) for s in Stream] == [0, 1, 2, 3, 16]
    words = philox(np.array([1, 0, Stream.SEED, 0], np.uint32), np.array([5, 0], np.uint32))
    assert seed_of_sample(5, 1) == int(words[0]) | int(words[1]) << 32


def test_seeds_of_samples() -> None:
    seeds = [seed_of_sample(5, sample) for sample in range(1000)]
    assert seeds[0] == 5 and len(set(seeds)) == 1000
    assert not set(seeds) & {seed_of_sample(6, sample) for sample in range(1000)}
