"""The plain loop: one text, one token at a time. The engine must give the same tokens.

It is slow and obvious: the model computes the whole text again for every token. It is the
documentation of the engine and the oracle of its tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.models.target import SequenceInput, Target
from foresay.sampling.params import SamplingParams
from foresay.sampling.reference import match
from foresay.sampling.verification import VerificationInput
from foresay.structured.matcher import Grammar

__all__ = ["logits_of", "plain"]

NextLogits = Callable[[Int32s, int], Tensor]


def plain(
    next_logits: NextLogits,
    prompt: Sequence[int],
    params: SamplingParams,
    seed: int,
    stops: tuple[int, ...] = (),
    grammar: Grammar | None = None,
) -> list[int]:
    """The answer's tokens. `next_logits(text, prompt)` gives the row of logits after a text whose
    first `prompt` tokens are the prompt; `grammar` is the compiled form of the answer.

    Raises: LogitsError.
    """
    output: list[int] = []
    matcher = None if grammar is None else grammar.matcher((*stops, *params.stop_ids))
    while len(output) < params.max_tokens:
        mask = None
        if matcher is not None:
            mask = np.empty((1, matcher.grammar.words), np.int32)
            matcher.fill_mask(mask[0])
        ask = VerificationInput(params, seed, prompt, output, stops, mask)
        row = next_logits(np.array([*prompt, *output], np.int32), len(prompt))
        verdict = match(Draft.empty(), row[None].float().numpy(), ask)
        output.append(int(verdict.tokens[0]))
        if output[-1] in ask.stops:
            break
        if matcher is not None and (not matcher.advance(output[-1]) or matcher.complete):
            break
    return output


def logits_of(target: Target) -> NextLogits:
    """The target's logits after a text, computed afresh.

    Raises: InputError for tokens outside the vocabulary or a text beyond the context.
    """

    def next_logits(text: Int32s, prompt: int) -> Tensor:
        with torch.inference_mode():
            part = SequenceInput.of(target, target.open(), text, prefill=prompt - 1)
            return target.forward([part]).logits[0]

    return next_logits
