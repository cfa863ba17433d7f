"""Which token comes next, exactly.

params      SamplingParams
verification  VerificationInput, VerificationBatch: a request's input to one verification
structured_outputs  StructuredOutputs: the form that an answer is to have
noise       the keyed noise, its specification
processors  logits to scores and probabilities, one row at a time
reference   rules match and rejection, one request at a time
acceptance  both rules over packed batches, in torch and the core; the noise also in Triton
logprobs    log probabilities of what was committed
signals     how uncertain a distribution is of a token
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from foresay.sampling.noise import Stream
from foresay.sampling.params import SamplingParams
from foresay.sampling.verification import VerificationBatch, VerificationInput

if TYPE_CHECKING:
    from foresay.sampling.acceptance.match import match
    from foresay.sampling.acceptance.rejection import rejection
    from foresay.sampling.acceptance.verdicts import Verified
    from foresay.sampling.acceptance.verify import verify
    from foresay.sampling.logprobs import Logprobs, logprobs_of

__all__ = [
    "Logprobs",
    "SamplingParams",
    "Stream",
    "VerificationBatch",
    "VerificationInput",
    "Verified",
    "logprobs_of",
    "match",
    "rejection",
    "verify",
]

_HOMES = {
    "Logprobs": "logprobs",
    "Verified": "acceptance.verdicts",
    "logprobs_of": "logprobs",
    "match": "acceptance.match",
    "rejection": "acceptance.rejection",
    "verify": "acceptance.verify",
}


def __getattr__(name: str) -> object:
    # Lazily, because these need torch, and the sampling parameters do not.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
