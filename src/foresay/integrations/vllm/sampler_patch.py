"""Patches of vLLM's rejection sampler that make sampled requests exact on CPUs.

There are three, applied when a drafter of ours is made. The first two fix faults that vLLM has with
any speculation; its functions are tested first, and left alone if they are right.

1. vLLM may leave the temperature, top_k and top_p of drafted tokens uninitialised (its CPU
   replacement of a Triton kernel writes into a copy: vllm#55005). They are filled in.

2. vLLM may fail, and with it the server, if a request has a top_k and no request of the step has
   drafted tokens. The function that fails for zero tokens is then not called.

3. vLLM accepts a drafted token at random, so a request's seed gives the same text only with the
   same drafts; ours depend on other requests. Here a request with a seed gets, at each position,
   the token that vLLM's own sampler draws there without drafts, from the same generator in the same
   state, and a drafted token is accepted if it is that token. So a seed gives the same text with
   and without drafts.

If a later vLLM has other functions, nothing is drafted: a drafter does not see which requests have
a temperature.

On other devices nothing is changed: Triton's kernel is right.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from typing import Any

from foresay.integrations.vllm.meter import log

__all__ = ["patch_sampler"]

_SAMPLER = "vllm.v1.sample.rejection_sampler"
_NOTHING = -1  # vLLM's placeholder for no token
_FORWARD = ["self", "metadata", "draft_probs", "logits", "sampling_metadata"]
_GIVEN = [  # the first parameters of rejection_sample; with other names it is another function
    "draft_token_ids",
    "num_draft_tokens",
    "max_spec_len",
    "cu_num_draft_tokens",
    "draft_probs",
    "target_logits",
    "bonus_token_ids",
    "sampling_metadata",
]


def patch_sampler() -> bool:
    """Make sampled requests exact, if this is a process of vLLM that runs on CPUs.

    Returns whether drafts leave their distribution unchanged. True outside vLLM.

    Raises: nothing; what cannot be patched is logged.
    """
    if "vllm" not in sys.modules:
        return True
    try:
        if sys.modules["vllm.platforms"].current_platform.is_cpu():
            sampler = sys.modules[_SAMPLER]
            _patch_expansion(sampler)
            _patch_steps_without_drafts(sampler)
            _patch_seeds(sampler)
    except Exception as error:
        log.warning(
            "foresay: nothing is drafted: this vLLM's sampler is unknown to foresay, and with "
            "drafts, requests with a temperature might get wrong texts (%s: %s)",
            type(error).__name__,
            error,
        )
        return False
    return True


def _patch_expansion(sampler: Any) -> None:
    if _is_expanded(sampler.expand_batch_to_tokens):
        return
    sampler.expand_batch_to_tokens = _expand
    log.warning(
        "foresay: this vLLM does not fill in temperature, top_k and top_p of drafted tokens "
        "(vllm#55005); they are filled in for it"
    )


def _patch_steps_without_drafts(sampler: Any) -> None:
    import torch

    theirs = sampler.apply_top_k_top_p
    try:
        theirs(torch.zeros(0, 8), torch.zeros(0, dtype=torch.int32), None)
    except (RuntimeError, IndexError):
        sampler.apply_top_k_top_p = lambda logits, k, p: (
            theirs(logits, k, p) if len(logits) else logits
        )
        log.warning(
            "foresay: this vLLM fails with top_k in steps without drafted tokens; it is patched"
        )


def _is_expanded(expand: Callable[..., Any]) -> bool:
    """Whether each row's value is repeated for its tokens. Tested twice, as uninitialised memory
    may be right by chance.
    """
    import torch

    ends = torch.tensor([2, 2, 5], dtype=torch.int32)
    for a, b in ((0.5, 0.75), (1.25, 0.0)):
        found = expand(torch.tensor([a, 3.0, b]), ends, 5, replace_from=0, replace_to=1)
        if found.tolist() != [a, a, b or 1.0, b or 1.0, b or 1.0]:
            return False
    return True


def _expand(
    x: Any, cu_num_tokens: Any, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Any:
    counts = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    x = x.masked_fill(x == replace_from, replace_to)
    return x.repeat_interleave(counts, output_size=num_tokens)


def _patch_seeds(sampler: Any) -> None:
    if hasattr(sampler.rejection_sample, "_foresay"):
        return
    for function, names in (
        (sampler.rejection_sample, _GIVEN),
        (sampler.RejectionSampler.forward, _FORWARD),
    ):
        given = list(inspect.signature(function).parameters)[: len(names)]
        if given != names:  # the distribution is right without us
            log.warning(
                "foresay: this vLLM's %s takes %s, not %s; with drafts, a request's seed may give "
                "other texts than without",
                function.__name__,
                ", ".join(given),
                ", ".join(names),
            )
            return
    coupled = _Coupled(sampler.RejectionSampler.forward, sampler.rejection_sample)

    def forward(
        self: Any,
        metadata: Any,
        draft_probs: Any,
        logits: Any,
        sampling_metadata: Any,
        *more: Any,
        **named: Any,
    ) -> Any:
        return coupled.forward(
            self, metadata, draft_probs, logits, sampling_metadata, *more, **named
        )

    def rejection_sample(*args: Any, **kwargs: Any) -> Any:
        return coupled.sample(*args, **kwargs)

    rejection_sample._foresay = True  # type: ignore[attr-defined]
    sampler.RejectionSampler.forward, sampler.rejection_sample = forward, rejection_sample


class _Coupled:
    """Wraps vLLM's two functions, so that a row with a seed gets its tokens without drafts."""

    def __init__(self, forward: Callable[..., Any], sample: Callable[..., Any]) -> None:
        self._forward, self._sample = forward, sample
        self._draw: Any = None
        self._rows: dict[int, tuple[Any, Any]] = {}  # a generator, and its state before the step

    def forward(
        self,
        this: Any,
        metadata: Any,
        draft_probs: Any,
        logits: Any,
        sampling: Any,
        *more: Any,
        **named: Any,
    ) -> Any:
        self._draw, self._rows = this.sampler.topk_topp_sampler, {}
        if not getattr(this, "synthetic_mode", False):
            for row, generator in sampling.generators.items():
                count = metadata.num_draft_tokens[row]
                if count:
                    self._rows[row] = generator, generator.get_state()
                    # vLLM draws the last token first. So the noise of the positions before it is
                    # drawn here once and dropped: then it gets the noise of its own position.
                    some, again = logits[:count].float(), dict.fromkeys(range(count), generator)
                    self._draw(some.clone(), again, None, None)
        try:
            return self._forward(this, metadata, draft_probs, logits, sampling, *more, **named)
        finally:
            self._rows = {}

    def sample(
        self,
        drafted: Any,
        counts: list[int],
        most: int,
        ends: Any,
        probs: Any,
        logits: Any,
        last: Any,
        *more: Any,
        **named: Any,
    ) -> Any:
        after = {row: generator.get_state() for row, (generator, _) in self._rows.items()}
        out = self._sample(drafted, counts, most, ends, probs, logits, last, *more, **named)
        for row, (generator, before) in self._rows.items():
            count, end = counts[row], int(ends[row])
            generator.set_state(before)
            out[row] = _NOTHING
            for at, place in enumerate(range(end - count, end)):
                row_logits = logits[place : place + 1].clone()
                token = int(self._draw(row_logits, {0: generator}, None, None)[0])
                out[row, at] = token
                if token != drafted[place]:
                    break
            else:
                out[row, count] = last[row, 0]
                generator.set_state(after[row])
        return out
