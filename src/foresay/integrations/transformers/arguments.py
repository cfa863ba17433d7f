"""The arguments of `model.generate` as sampling parameters, or why they are refused."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from inspect import Parameter, Signature, signature
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig
from transformers.generation import logits_process as processors
from transformers.generation import stopping_criteria as ends

from foresay.errors import InputError
from foresay.sampling.params import SamplingParams
from foresay.sampling.structured_outputs import StructuredOutputs

__all__ = [
    "check_call",
    "check_config",
    "check_processors",
    "end_ids",
    "given_the_tokenizer",
    "params_of",
    "prompts_of",
    "stop_strings_of",
]

Function = TypeVar("Function", bound=Callable[..., Any])
_HONOURED = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_return_sequences"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("eos_token_id", "pad_token_id", "suppress_tokens", "stop_strings", "renormalize_logits"),
}
# Fields that change no text without beams, assistants or an encoder, only how it is computed.
_IDLE = {
    *("bos_token_id", "decoder_start_token_id", "transformers_version", "is_assistant"),
    *("use_cache", "compile_config", "disable_compile", "prefill_chunk_size", "low_memory"),
    *("early_stopping", "length_penalty", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind"),
    "max_matching_ngram_size",
}
# The values that mean "off" where that is neither None nor False.
_OFF = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "guidance_scale", "typical_p"), 1),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    "encoder_repetition_penalty": 1,
    "cache_implementation": "dynamic",
}
_ASKS = (
    "_extract_generation_mode_kwargs"  # the one of transformers' methods that asks for a signature
)
_INPUTS = {"attention_mask", "position_ids", "past_key_values", "logits_to_keep", "use_cache"}


class _Parameters(Signature):
    """transformers takes the tokenizer out of the keywords of `model.generate`, and does not pass
    it to its `custom_generate`; then there is none for `stop_strings`. In between it reads the
    function's parameters: there the tokenizer is put back.
    """

    @property
    def parameters(self) -> MappingProxyType[str, Parameter]:
        asking = sys._getframe(1)
        if asking.f_code.co_name == _ASKS:
            taken, kwargs = (asking.f_locals.get(n) for n in ("generation_mode_kwargs", "kwargs"))
            if isinstance(taken, dict) and isinstance(kwargs, dict) and "tokenizer" in taken:
                kwargs.setdefault("tokenizer", taken["tokenizer"])
        return super().parameters


def given_the_tokenizer(function: Function) -> Function:
    """Make a function for `custom_generate` get the tokenizer that the caller gave to
    `model.generate`, in its parameter `tokenizer`.
    """
    plain = signature(function)
    function.__signature__ = _Parameters(  # type: ignore[attr-defined]
        list(plain.parameters.values()), return_annotation=plain.return_annotation
    )
    return function


def check_call(callers: dict[str, Any]) -> None:
    """Refuse arguments that `model.generate` takes and does not pass on: a streamer would wait for
    ever. They can be seen only in the caller's frame.

    Raises: InputError.
    """
    for name in ("streamer", "assistant_model"):
        if callers.get(name) is not None:
            raise InputError(f"{name} was given; expected None with this custom_generate")


def check_config(config: GenerationConfig, where: str = "custom_generate=generate") -> None:
    """Refuse, by its name, each field that is set and not supported here, also fields of later
    versions of transformers. `where` is for the message.

    Raises: InputError.
    """
    usual: dict[str, Any] = getattr(GenerationConfig, "_get_default_generation_params", dict)()
    for name, value in vars(config).items():
        if name.startswith("_") or name in _HONOURED or name in _IDLE:
            continue
        off = _OFF.get(name, usual.get(name))
        if value is not None and value is not False and value != off:
            raise InputError(
                f"the GenerationConfig's {name} is {value!r}; expected {off!r} with {where}"
            )


def params_of(
    config: GenerationConfig, width: int, form: StructuredOutputs | None = None
) -> SamplingParams:
    """The sampling parameters, after prompts of `width` tokens, of answers with this form.

    Raises: InputError.
    """
    most = config.max_length - width
    least = max(config.min_new_tokens or 0, (config.min_length or 0) - width, 0)
    if least > most:
        raise InputError(
            f"min_new_tokens or min_length is {least} new tokens; expected at most {most}"
        )
    common: dict[str, Any] = {
        "max_tokens": most,
        "structured_outputs": form,
        "min_tokens": least,
        "repetition_penalty": config.repetition_penalty or 1.0,
        "logit_bias": dict.fromkeys(map(int, config.suppress_tokens or ()), -np.inf),
    }
    if not config.do_sample:
        return SamplingParams(temperature=0, **common)
    return SamplingParams(
        temperature=1.0 if config.temperature is None else config.temperature,
        top_k=config.top_k or 0,
        top_p=1.0 if config.top_p is None else config.top_p,
        min_p=config.min_p or 0.0,
        **common,
    )


def end_ids(config: GenerationConfig) -> tuple[int, ...]:
    """The tokens that end an answer."""
    found = config.eos_token_id
    if found is None:
        return ()
    return tuple(torch.as_tensor(found).reshape(-1).tolist())


def prompts_of(input_ids: Tensor, inputs: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Each row without its padding, from whatever device the tensors are on.

    Raises: InputError.
    """
    for name, value in inputs.items():
        if name not in _INPUTS and value is not None and value is not False:
            raise InputError(f"{name} was given; expected input_ids and attention_mask")
    if input_ids.device.type not in ("cpu", "cuda"):
        raise InputError(f"input_ids are on {input_ids.device}; expected the CPU or a CUDA device")
    cache = inputs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise InputError(
            f"past_key_values hold {cache.get_seq_length()} tokens; expected an empty cache"
        )
    input_ids, mask = input_ids.cpu(), inputs.get("attention_mask")
    seen = torch.ones_like(input_ids) if mask is None else (mask.cpu() != 0).long()
    if seen.shape != input_ids.shape:
        raise InputError(
            f"attention_mask has the shape {list(seen.shape)}; expected that of input_ids, "
            f"{list(input_ids.shape)}"
        )
    wrong = (seen.diff(dim=1) < 0).any(dim=1) | (seen[:, -1] == 0)
    if wrong.any():
        raise InputError(
            f"row {int(wrong.nonzero()[0])} of attention_mask has gaps or padding on the right; "
            "expected padding on the left"
        )
    places = inputs.get("position_ids")
    if places is not None and ((places.cpu() != seen.cumsum(dim=1) - 1) & (seen == 1)).any():
        raise InputError("position_ids do not fit the attention_mask; expected none, or its own")
    rows = zip(input_ids, seen, strict=True)
    return [row[own == 1].numpy().astype(np.int32) for row, own in rows]


def check_processors(
    given: Sequence[processors.LogitsProcessor],
    config: GenerationConfig,
    padding: Sequence[int],
    width: int,
    stops: tuple[int, ...],
) -> None:
    """Refuse processors that do not come from the config: they may look at more than one text or
    keep state.

    padding  tokens before each text, which count for no penalty; transformers from 5.23 on says so
             to its own

    Raises: InputError.
    """
    made: list[processors.LogitsProcessor] = [processors.LogitNormalization()]
    if config.repetition_penalty not in (None, 1.0):
        made.append(processors.RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
    if stops and config.min_length:
        made.append(processors.MinLengthLogitsProcessor(config.min_length, list(stops)))
    if stops and config.min_new_tokens:
        least = config.min_new_tokens
        made.append(processors.MinNewTokensLengthLogitsProcessor(width, least, list(stops)))
    if config.suppress_tokens is not None:
        made.append(processors.SuppressTokensLogitsProcessor(config.suppress_tokens))
    if config.do_sample:
        if config.temperature is not None:
            made.append(processors.TemperatureLogitsWarper(config.temperature))
        if config.top_k:
            made.append(processors.TopKLogitsWarper(config.top_k))
        if config.top_p is not None and config.top_p < 1:
            made.append(processors.TopPLogitsWarper(config.top_p))
        if config.min_p is not None:
            made.append(processors.MinPLogitsWarper(config.min_p))
    known = [(type(one), _plain_vars(one)) for one in made]
    for one in given:
        found = _plain_vars(one)
        penalty = type(one) is processors.RepetitionPenaltyLogitsProcessor
        if penalty and found.get("prompt_ignore_length") == list(padding):
            found["prompt_ignore_length"] = None
        if (type(one), found) not in known:
            raise InputError(
                f"{type(one).__name__} is among the logits processors and does not come from the "
                "GenerationConfig; expected its own fields"
            )


def _plain_vars(of: object) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in vars(of).items()}


def stop_strings_of(
    given: Sequence[ends.StoppingCriteria], config: GenerationConfig, stops: tuple[int, ...]
) -> list[ends.StoppingCriteria]:
    """The criteria for stop strings; all others must be the config's own.

    Raises: InputError for others.
    """
    texts: list[ends.StoppingCriteria] = []
    for one in given:
        if type(one) is ends.StopStringCriteria:
            texts.append(one)
            continue
        length = type(one) is ends.MaxLengthCriteria and one.max_length == config.max_length
        token = type(one) is ends.EosTokenCriteria and (
            set(torch.as_tensor(one.eos_token_id).reshape(-1).tolist()) == set(stops)
        )
        if not (length or token):
            raise InputError(
                f"{type(one).__name__} is among the stopping criteria; expected max_length, "
                "max_new_tokens, eos_token_id and StopStringCriteria"
            )
    return texts
