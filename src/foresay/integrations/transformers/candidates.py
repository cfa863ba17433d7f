"""Candidates for transformers' own assisted generation, one text at a time."""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import stopping_criteria as ends
from transformers.generation.candidate_generator import CandidateGenerator

from foresay.arrays import Int32s
from foresay.drafter import Drafter
from foresay.drafters.suffix import SuffixDrafter
from foresay.errors import InputError
from foresay.integrations.transformers.arguments import check_call, given_the_tokenizer
from foresay.verdict import Verdict

__all__ = ["Chain", "SuffixCandidates", "assisted"]


@given_the_tokenizer
def assisted(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Sequence[ends.StoppingCriteria],
    generation_config: GenerationConfig,
    candidate_generator: CandidateGenerator | None = None,
    tokenizer: Any = None,
    **model_kwargs: Any,
) -> Any:
    """transformers' own assisted generation of one text, with the candidates of any
    CandidateGenerator; without one, of a new `SuffixCandidates`. To be given to `model.generate` as
    `custom_generate`.

    Raises: InputError for several texts, and for criteria that look at the last token only; else as
    transformers.
    """
    check_call(sys._getframe(1).f_locals)
    if len(input_ids) != 1:
        raise InputError(
            f"there are {len(input_ids)} texts; expected 1 (custom_generate=generate takes any "
            "number)"
        )
    for criterion in stopping_criteria:
        # The loop checks once for all tokens of a step, and would miss a stop in the middle.
        if type(criterion) not in (ends.MaxLengthCriteria, ends.EosTokenCriteria):
            raise InputError(
                f"{type(criterion).__name__} is among the stopping criteria; with assisted "
                "generation expected max_length, max_new_tokens and eos_token_id"
            )
    candidates = SuffixCandidates() if candidate_generator is None else candidate_generator
    if isinstance(candidates, SuffixCandidates):
        candidates.max_length = generation_config.max_length
    host: Any = copy.copy(model)  # so that the caller's model keeps its own method
    host._get_candidate_generator = lambda **_: candidates
    return host._assisted_decoding(
        input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs
    )


class SuffixCandidates(CandidateGenerator):
    """Candidates for assisted generation, drafted from the text so far and from earlier texts. One
    object may be used for many calls, one after the other, and drafts from all of them.

    most     drafted tokens per step, at most
    drafter  a drafter of chains; None: a new SuffixDrafter

    Raises: InputError when constructed.
    """

    def __init__(self, most: int = 16, drafter: Drafter[Any] | None = None) -> None:
        if type(most) is not int or not 0 <= most <= 4096:
            raise InputError(f"most is {most!r}; expected a whole number from 0 to 4096")
        self.most = most
        self.max_length: int | None = None
        """No candidate reaches beyond it; `assisted` sets it."""
        self._chain = Chain(SuffixDrafter(chain=True) if drafter is None else drafter)

    def get_candidates(self, input_ids: Tensor, **_: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        """The text with a draft of what follows, and no draft probabilities: it was not sampled.

        Mutates: the drafter observes what is new. Raises: InputError for several texts.
        """
        if len(input_ids) != 1:
            raise InputError(f"there are {len(input_ids)} texts; expected 1")
        text = input_ids[0].cpu().numpy().astype(np.int32)
        room = self.most if self.max_length is None else self.max_length - len(text) - 1
        draft = self._chain.after(text, max(min(self.most, room), 0))
        return torch.cat([input_ids, input_ids.new_tensor(draft.tolist())[None]], dim=1), None


class Chain:
    """A drafter for a text that grows from call to call; a text that does not continue the last one
    is a new request.

    Raises: see `after`.
    """

    def __init__(self, drafter: Drafter[Any]) -> None:
        self._drafter = drafter
        self._state: Any = None
        self._text: Int32s = np.empty(0, np.int32)
        self._draft: Int32s = np.empty(0, np.int32)

    def after(self, text: Int32s, most: int) -> Int32s:
        """A draft of at most `most` tokens.

        Mutates: the drafter observes what is new in the text. Raises: as the drafter.
        """
        if self._state is None or not self._continues(text):
            if self._state is not None:
                self._drafter.finish(self._state)
            self._state = self._drafter.begin(text.copy())
        elif len(text) > len(self._text):
            new = text[len(self._text) :]
            self._drafter.observe([self._state], [Verdict(self._path(new), new.copy())])
        self._text = text.copy()
        (draft,) = self._drafter.propose([self._state], [most])
        # The first path of a tree; for a chain that is all of it.
        branches = np.flatnonzero(draft.parents != np.arange(-1, len(draft) - 1))
        self._draft = draft.tokens[: branches[0] if len(branches) else len(draft)].copy()
        return self._draft

    def _continues(self, text: Int32s) -> bool:
        return np.array_equal(text[: len(self._text)], self._text)

    def _path(self, new: Int32s) -> Int32s:
        """The accepted drafted tokens, without the target's own last token."""
        size = min(len(self._draft), len(new) - 1)
        wrong = np.flatnonzero(self._draft[:size] != new[:size])
        return np.arange(wrong[0] if len(wrong) else size, dtype=np.int32)
