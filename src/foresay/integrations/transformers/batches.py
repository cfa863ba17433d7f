"""A whole batch of `model.generate` on foresay's engine."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as ends

from foresay.drafter import Drafter
from foresay.engine.request import Request
from foresay.engine.samples import add_samples
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import InputError
from foresay.integrations.transformers.arguments import (
    check_call,
    check_config,
    check_processors,
    end_ids,
    given_the_tokenizer,
    params_of,
    prompts_of,
    stop_strings_of,
)
from foresay.integrations.transformers.forms import grammars_of
from foresay.integrations.transformers.twin import held_for
from foresay.sampling.noise import seed_of_sample
from foresay.sampling.structured_outputs import StructuredOutputs

__all__ = ["generate"]


@given_the_tokenizer
def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Sequence[processors.LogitsProcessor],
    stopping_criteria: Sequence[ends.StoppingCriteria],
    generation_config: GenerationConfig,
    drafter: str | Drafter[Any] = "suffix",
    policy: str = "adaptive",
    seed: int | None = None,
    memory: int = 4 << 30,
    tokenizer: Any = None,
    structured_outputs: StructuredOutputs | None = None,
    **model_kwargs: Any,
) -> Tensor:
    """Prompts and answers, as `model.generate` gives them: [batch, longest], padded on the right.
    To be given to it as `custom_generate`; the keywords after the config may be given beside it.

    drafter    "suffix", "ngram", "none", or any Drafter
    policy     how many tokens are drafted, by its name: see `foresay.budget.policy.POLICIES`
    seed       of sampling; None: drawn from torch's default generator
    memory     bytes for the KV cache; on a GPU it stays taken as long as the model lives
    tokenizer  needed with the GenerationConfig's stop_strings, as always; they end an answer as in
               transformers, also before min_new_tokens; and with structured_outputs
    structured_outputs  the form that the answers have, which transformers itself has not

    Greedy answers are those of `model.generate`, in bfloat16 up to the rounding of its kernels and
    ours; sampled ones have the same distribution, and other random numbers. Each text stands alone:
    padding does not count for penalties. The model computes without dropout.

    A model on a CUDA device is run there, with its weights where they are; the answer is on the
    device of `input_ids`.

    Valid until: for ever; changed weights are noticed in the next call. Raises: InputError for an
    unsupported argument, by its name, UnsupportedModel for a model that is on several devices or
    cannot be run exactly.
    """
    check_call(sys._getframe(1).f_locals)
    check_config(generation_config)
    prompts = prompts_of(input_ids, model_kwargs)
    stops = end_ids(generation_config)
    width = input_ids.shape[1]
    padding = [width - len(prompt) for prompt in prompts]
    check_processors(logits_processor, generation_config, padding, width, stops)
    texts = stop_strings_of(stopping_criteria, generation_config, stops)
    if texts and not stops and len(prompts) > 1:
        raise InputError("eos_token_id is None; expected one for stop_strings with several texts")
    params = params_of(generation_config, input_ids.shape[1], structured_outputs)
    held = held_for(model, memory)
    longest = max(map(len, prompts)) + params.max_tokens
    if longest > held.target.context:
        raise InputError(
            f"max_length lets a text grow to {longest} tokens; expected at most "
            f"{held.target.context}, the context of the model"
        )
    if seed is None:
        seed = int(torch.randint(0, 1 << 62, ())) if not params.greedy else 0
    each = generation_config.num_return_sequences or 1
    with held.lock:
        grammars = None
        if structured_outputs is not None:
            grammars = grammars_of(tokenizer, stops, held.target.vocabulary)
        engine = held.engine(drafter, policy, memory, grammars)
        requests: list[Request] = []
        try:
            for first in range(0, len(prompts), each):
                rows = range(first, first + each)
                requests += add_samples(
                    engine,
                    prompts[first],
                    params,
                    seeds=[seed_of_sample(seed, row) for row in rows],
                    stops=stops,
                    text=partial(_UntilCriteria, input_ids[first].cpu(), texts) if texts else None,
                    together=True,
                )
            while any(not request.finished for request in requests):
                engine.step()
        finally:
            engine.cancel(*requests)
            held.ended(engine)
    for request in requests:
        if request.error is not None:
            raise request.error
    return _padded(input_ids, [r.token_ids for r in requests], generation_config, stops)


class _UntilCriteria(IncrementalDetokenizer):
    """Ends an answer where one of transformers' own criteria says so; they are called for every
    token."""

    def __init__(self, prompt: Tensor, criteria: Sequence[ends.StoppingCriteria]) -> None:
        super().__init__(lambda _: "")
        self._row = prompt[None]
        self._criteria = criteria

    def add(self, token: int) -> bool:
        self._row = torch.cat([self._row, self._row.new_tensor([[token]])], dim=1)
        row: Any = self._row
        for criterion in self._criteria:
            given: Any = criterion(row, None)
            if bool(given[0]):
                self.stopped = type(criterion).__name__
                return True
        return False


def _padded(
    input_ids: Tensor, answers: list[list[int]], config: GenerationConfig, stops: tuple[int, ...]
) -> Tensor:
    """Prompts and answers; shorter answers are padded on the right."""
    pad = config.pad_token_id
    if pad is None:
        pad = stops[0] if stops else 0  # without ends all answers are of one length
    longest = max(map(len, answers))
    rows = [answer + [int(pad)] * (longest - len(answer)) for answer in answers]
    return torch.cat([input_ids, input_ids.new_tensor(rows)], dim=1)
