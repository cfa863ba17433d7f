"""The arguments of both rules, checked once."""

from __future__ import annotations

import os
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.arrays import sizes_of
from foresay.draft import Draft, DraftBatch
from foresay.errors import ForesayError, InputError
from foresay.sampling.verification import VerificationBatch, VerificationInput

__all__ = ["best_for", "checked", "known_kernel", "readable", "refused", "threads_of"]

Name = TypeVar("Name", bound=str)
MAX_THREADS = 256


def checked(
    drafts: Sequence[Draft], logits: Tensor, inputs: Sequence[VerificationInput]
) -> tuple[DraftBatch, Tensor, VerificationBatch]:
    """The arguments packed; the logits without gradients, in float32 or shorter.

    Raises: InputError if they do not fit each other.
    """
    if isinstance(drafts, Draft) or isinstance(inputs, VerificationInput):
        raise InputError("a single draft or input was given; expected lists of them, or batches")
    drafts, inputs = DraftBatch.of(drafts), VerificationBatch.of(inputs)
    if len(drafts) != len(inputs):
        raise InputError(
            f"there are {len(drafts)} drafts and {len(inputs)} inputs; expected one each"
        )
    rows = len(drafts) + len(drafts.tokens)
    if not isinstance(logits, Tensor) or logits.layout != torch.strided:
        raise InputError(f"logits are a {type(logits).__name__}; expected a dense torch tensor")
    if logits.ndim != 2 or len(logits) != rows or not logits.is_floating_point():
        raise InputError(
            f"logits have shape {tuple(logits.shape)} and dtype {logits.dtype}; {len(drafts)} "
            f"requests with {len(drafts.tokens)} nodes need {rows} rows of floats"
        )
    vocabulary = logits.shape[1]
    if not vocabulary:
        raise InputError("logits have 0 columns; expected at least 1")
    if drafts.probs is not None and drafts.probs.shape != (len(drafts.tokens), vocabulary):
        raise InputError(
            f"probs have shape {drafts.probs.shape}; expected {(len(drafts.tokens), vocabulary)}"
        )
    if inputs.masked:
        _check_masks(drafts, inputs, vocabulary)
    # Longer floats are shortened, as the readable twins do; shorter ones stay as they are.
    logits = logits.detach()
    return drafts, logits.float() if logits.dtype == torch.float64 else logits, inputs


def _check_masks(drafts: DraftBatch, inputs: VerificationBatch, vocabulary: int) -> None:
    words = -(-vocabulary // 32)
    for request, size in zip(inputs.inputs, sizes_of(drafts.offsets).tolist(), strict=True):
        if request.masks is not None and request.masks.shape != (size + 1, words):
            raise InputError(
                f"masks have shape {request.masks.shape}; a draft of {size} nodes and "
                f"{vocabulary} columns need {(size + 1, words)}"
            )


def readable(logits: Tensor) -> NDArray[Any]:
    """The logits as the core reads them: float32, or the bits of bfloat16, which numpy has not. A
    copy in float32 of all rows would take longer than the choice from those that a walk reaches.
    """
    if logits.dtype == torch.bfloat16:
        bits: NDArray[Any] = logits.view(torch.int16).numpy().view(np.uint16)
        return bits
    return logits.float().numpy()


def refused(
    drafts: DraftBatch, inputs: VerificationBatch, vocabulary: int
) -> dict[int, ForesayError]:
    """Which requests cannot be verified, by their numbers, and why. The others can."""
    found: dict[int, ForesayError] = {}
    nodes = len(drafts.tokens)
    known = not nodes or drafts.tokens.max() < vocabulary
    longest = max(inputs.positions.tolist(), default=0) + nodes
    if known and longest < 1 << 32 and not inputs.processed:
        return found
    for name, tokens, offsets in (
        ("the draft", drafts.tokens, drafts.offsets),
        ("the text", inputs.context, inputs.context_offsets),
    ):
        for at in np.flatnonzero(tokens >= vocabulary):
            request = int(np.searchsorted(offsets, at, side="right")) - 1
            said = f"{name} has token {tokens[at]}; the logits have {vocabulary} columns"
            found.setdefault(request, InputError(said))
    for at in np.flatnonzero(inputs.bias[1] >= vocabulary):
        said = f"logit_bias names token {inputs.bias[1][at]}; the logits have {vocabulary} columns"
        found.setdefault(int(inputs.bias[0][at]), InputError(said))
    for long in np.flatnonzero(inputs.positions + sizes_of(drafts.offsets) >= 1 << 32):
        said = "the text is longer than the 2**32 - 1 positions that noise is keyed by"
        found.setdefault(int(long), InputError(said))
    return found


def best_for(logits: Tensor) -> Literal["core", "triton", "torch"]:
    """The best kernel for logits on this device."""
    if logits.device.type == "cpu":
        return "core"
    return "triton" if logits.device.type == "cuda" and find_spec("triton") else "torch"


def known_kernel(kernel: Name, logits: Tensor, known: Sequence[str]) -> Name:
    """The name of a kernel, if it is one and can read the logits.

    Raises: InputError.
    """
    if kernel not in known:
        raise InputError(f"kernel is {kernel!r}; expected {', '.join(known)}")
    if kernel == "core" and logits.device.type != "cpu":
        raise InputError(f"the logits are on {logits.device}; kernel 'core' reads those on the cpu")
    if kernel == "triton" and logits.device.type != "cuda" and not os.getenv("TRITON_INTERPRET"):
        raise InputError(f"the logits are on {logits.device}; kernel 'triton' reads those on cuda")
    return kernel


def threads_of(threads: int) -> int:
    """How many threads the core shall use; 0: as many as torch does.

    Raises: InputError.
    """
    if not isinstance(threads, int) or not 0 <= threads <= MAX_THREADS:
        raise InputError(f"threads is {threads!r}; expected 0 to {MAX_THREADS}")
    return threads or min(torch.get_num_threads(), MAX_THREADS)
