"""foresay inside transformers: a switch for `model.generate`, and candidates for its assisted mode.

    from foresay.integrations.transformers import SuffixCandidates, assisted, generate

    model.generate(**inputs, max_new_tokens=200, custom_generate=generate)
    model.generate(**inputs, custom_generate=assisted, candidate_generator=SuffixCandidates())

The first runs a whole batch through foresay's engine; the second stays with transformers' own loop,
one text at a time. What the caller's GenerationConfig asks for is done, or refused by its name.
"""

from __future__ import annotations

import copy
import sys
from collections.abc import Sequence
from itertools import count
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import GenerationConfig, PreTrainedModel
from transformers.generation import logits_process as law
from transformers.generation import stopping_criteria as ends
from transformers.generation.candidate_generator import CandidateGenerator

from foresay.drafter import Drafter
from foresay.drafters.suffix import SuffixDrafter
from foresay.engine.request import Request
from foresay.engine.text import AnswerText
from foresay.errors import InputError
from foresay.integrations.chain import Chain
from foresay.integrations.twin import held_for
from foresay.sampling.noise import seed_of_sample
from foresay.sampling.params import SamplingParams

__all__ = ["SuffixCandidates", "assisted", "generate"]

_HONOURED = {
    *("max_length", "max_new_tokens", "min_length", "min_new_tokens", "num_return_sequences"),
    *("do_sample", "temperature", "top_k", "top_p", "min_p", "repetition_penalty"),
    *("eos_token_id", "pad_token_id", "suppress_tokens", "stop_strings", "renormalize_logits"),
}
# Fields that do nothing to a text without beams, assistants or an encoder: how it is computed.
_IDLE = {
    *("bos_token_id", "decoder_start_token_id", "transformers_version", "is_assistant"),
    *("use_cache", "compile_config", "disable_compile", "prefill_chunk_size", "low_memory"),
    *("early_stopping", "length_penalty", "num_assistant_tokens", "num_assistant_tokens_schedule"),
    *("assistant_confidence_threshold", "assistant_lookbehind", "target_lookbehind"),
    "max_matching_ngram_size",
}
# What stands for "off" where that is neither None nor False.
_OFF = {
    **dict.fromkeys(("num_beams", "num_beam_groups", "guidance_scale", "typical_p"), 1),
    **dict.fromkeys(("epsilon_cutoff", "eta_cutoff", "diversity_penalty"), 0),
    **dict.fromkeys(("no_repeat_ngram_size", "encoder_no_repeat_ngram_size"), 0),
    "encoder_repetition_penalty": 1,
    "cache_implementation": "dynamic",
}
_INPUTS = {"attention_mask", "position_ids", "past_key_values", "logits_to_keep", "use_cache"}
_GROUPS = count()


def generate(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Sequence[law.LogitsProcessor],
    stopping_criteria: Sequence[ends.StoppingCriteria],
    generation_config: GenerationConfig,
    drafter: str | Drafter[Any] = "suffix",
    policy: str = "adaptive",
    seed: int | None = None,
    memory: int = 4 << 30,
    **model_kwargs: Any,
) -> Tensor:
    """Prompts and answers, as `model.generate` gives them: [batch, longest], padded on the right.
    To be given to it as `custom_generate`; the keywords after the config may be given beside it.

    drafter  who guesses: "suffix", "ngram", "none", or any Drafter
    policy   how much is guessed, by its name: see `foresay.engine.budget.POLICIES`
    seed     of the noise of sampling; None: torch's own generator is asked for one
    memory   bytes for keys and values

    Greedy answers are those of `model.generate`; sampled ones have its law. Each text is taken for
    itself: its padding counts for no penalty. The model computes without dropout.

    Mutates: nothing of the model: its weights are used from a twin of it, which also holds a copy
    of them in another layout; the drafter learns. Valid until: for ever; weights that change are
    noticed in the next call. Raises: InputError for what is not done here, by its name,
    UnsupportedModel for a model that is not on the CPU or cannot be run exactly. GIL: released by
    torch and the core.
    """
    _check_call(sys._getframe(1).f_locals)
    _check_config(generation_config)
    prompts = _prompts(input_ids, model_kwargs)
    stops = _end_ids(generation_config)
    _check_processors(logits_processor, generation_config, input_ids.shape[1], stops)
    texts = _stop_strings(stopping_criteria, generation_config, stops)
    if texts and not stops and len(prompts) > 1:
        raise InputError("stop_strings with several texts need an eos_token_id; it is None")
    params = _params(generation_config, input_ids.shape[1])
    held = held_for(model)
    longest = max(map(len, prompts)) + params.max_tokens
    if longest > held.target.context:
        raise InputError(
            f"max_length lets a text grow to {longest} tokens; the model takes "
            f"{held.target.context}"
        )
    if seed is None:
        seed = int(torch.randint(0, 1 << 62, ())) if not params.greedy else 0
    each = generation_config.num_return_sequences or 1
    group = next(_GROUPS)
    with held.lock:
        engine = held.engine(drafter, policy, memory)
        requests: list[Request] = []
        try:
            for row, prompt in enumerate(prompts):
                requests.append(
                    engine.add(
                        prompt,
                        params,
                        seed=seed_of_sample(seed, row),
                        stops=stops,
                        group=f"generate {group}, {row // each}" if each > 1 else None,
                        text=_UntilCriteria(input_ids[row], texts) if texts else None,
                    )
                )
            while any(not request.finished for request in requests):
                engine.step()
        finally:
            for request in requests:
                engine.cancel(request)
    for request in requests:
        if request.error is not None:
            raise request.error
    return _padded(input_ids, [r.token_ids for r in requests], generation_config, stops)


def assisted(
    model: PreTrainedModel,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Sequence[ends.StoppingCriteria],
    generation_config: GenerationConfig,
    candidate_generator: CandidateGenerator | None = None,
    **model_kwargs: Any,
) -> Any:
    """transformers' own assisted generation of one text, with the candidates of any
    CandidateGenerator; without one, of a new `SuffixCandidates`. To be given to `model.generate` as
    `custom_generate`.

    Mutates: the candidate generator learns. Valid until: for ever. Raises: InputError for several
    texts, and for criteria that look at a text's last token only; else as transformers. GIL:
    released by torch.
    """
    _check_call(sys._getframe(1).f_locals)
    if len(input_ids) != 1:
        raise InputError(
            f"there are {len(input_ids)} texts; assisted generation takes 1, "
            "custom_generate=generate takes any number"
        )
    for criterion in stopping_criteria:
        # The loop asks once for all tokens of a step, and a stop in the middle would be missed.
        if type(criterion) not in (ends.MaxLengthCriteria, ends.EosTokenCriteria):
            raise InputError(
                f"{type(criterion).__name__} is among the stopping criteria; with assisted "
                "generation valid are max_length, max_new_tokens and eos_token_id"
            )
    candidates = SuffixCandidates() if candidate_generator is None else candidate_generator
    if isinstance(candidates, SuffixCandidates):
        candidates.max_length = generation_config.max_length
    host: Any = copy.copy(model)  # so that the caller's model keeps its own way to get candidates
    host._get_candidate_generator = lambda **_: candidates
    return host._assisted_decoding(
        input_ids, logits_processor, stopping_criteria, generation_config, **model_kwargs
    )


class SuffixCandidates(CandidateGenerator):
    """Candidates for assisted generation, from the text so far and from earlier ones. It may be
    used for one call after the other, and remembers them.

    most     tokens that are guessed at once
    drafter  a drafter of chains; None: a new SuffixDrafter

    Mutates: only through its methods. Valid until: for ever. Raises: InputError when constructed.
    GIL: released in the core.
    """

    def __init__(self, most: int = 16, drafter: Drafter[Any] | None = None) -> None:
        if type(most) is not int or not 0 <= most <= 4096:
            raise InputError(f"most is {most!r}; it is a whole number from 0 to 4096")
        self.most = most
        self.max_length: int | None = None
        """No candidate reaches beyond it; `assisted` sets it."""
        self._chain = Chain(SuffixDrafter(chain=True) if drafter is None else drafter)

    def get_candidates(self, input_ids: Tensor, **_: Any) -> tuple[Tensor, None]:  # type: ignore[override]
        """The text with a guess of what follows, and no law: the guess was chosen, not drawn.

        Mutates: the drafter observes what is new. Valid until: for ever. Raises: InputError for
        several texts. GIL: released in the core.
        """
        if len(input_ids) != 1:
            raise InputError(f"there are {len(input_ids)} texts; candidates are made for 1")
        text = input_ids[0].cpu().numpy().astype(np.int32)
        room = self.most if self.max_length is None else self.max_length - len(text) - 1
        guess = self._chain.after(text, max(min(self.most, room), 0))
        return torch.cat([input_ids, input_ids.new_tensor(guess.tolist())[None]], dim=1), None


class _UntilCriteria(AnswerText):
    """Ends an answer where one of transformers' own criteria says so, asked after every token."""

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


def _check_call(callers: dict[str, Any]) -> None:
    """Refuse what `model.generate` takes and hands to nobody. It has no other way to be seen, and
    who waits for a streamer would wait for ever.
    """
    for name in ("streamer", "assistant_model"):
        if callers.get(name) is not None:
            raise InputError(f"{name} was given; with this custom_generate valid is None")


def _check_config(config: GenerationConfig) -> None:
    """Refuse, by its name, each field that asks for something else than is done here, also fields
    that nobody has heard of yet.
    """
    usual: dict[str, Any] = getattr(GenerationConfig, "_get_default_generation_params", dict)()
    for name, value in vars(config).items():
        if name.startswith("_") or name in _HONOURED or name in _IDLE:
            continue
        off = _OFF.get(name, usual.get(name))
        if value is not None and value is not False and value != off:
            raise InputError(
                f"the GenerationConfig's {name} is {value!r}; with custom_generate=generate valid "
                f"is {off!r}"
            )


def _params(config: GenerationConfig, width: int) -> SamplingParams:
    most = config.max_length - width
    least = max(config.min_new_tokens or 0, (config.min_length or 0) - width, 0)
    if least > most:
        raise InputError(f"at least {least} new tokens are wanted, and at most {most}")
    common: dict[str, Any] = {
        "max_tokens": most,
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


def _end_ids(config: GenerationConfig) -> tuple[int, ...]:
    found = config.eos_token_id
    if found is None:
        return ()
    return tuple(torch.as_tensor(found).reshape(-1).tolist())


def _prompts(input_ids: Tensor, inputs: dict[str, Any]) -> list[np.ndarray[Any, Any]]:
    """Each row without its padding."""
    for name, value in inputs.items():
        if name not in _INPUTS and value is not None and value is not False:
            raise InputError(f"{name} was given; valid are input_ids and attention_mask")
    if input_ids.device.type != "cpu":
        raise InputError(f"input_ids are on {input_ids.device}; tensors on the CPU are needed")
    cache = inputs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        raise InputError(
            f"past_key_values hold {cache.get_seq_length()} tokens; valid is an empty cache"
        )
    mask = inputs.get("attention_mask")
    seen = torch.ones_like(input_ids) if mask is None else (mask != 0).long()
    if seen.shape != input_ids.shape:
        raise InputError(
            f"attention_mask has the shape {list(seen.shape)}; input_ids have "
            f"{list(input_ids.shape)}"
        )
    wrong = (seen.diff(dim=1) < 0).any(dim=1) | (seen[:, -1] == 0)
    if wrong.any():
        raise InputError(
            f"row {int(wrong.nonzero()[0])} of attention_mask has gaps or padding on the right; "
            "padding belongs on the left"
        )
    places = inputs.get("position_ids")
    if places is not None and ((places != seen.cumsum(dim=1) - 1) & (seen == 1)).any():
        raise InputError("position_ids are not those of the attention_mask; leave them out")
    rows = zip(input_ids, seen, strict=True)
    return [row[own == 1].numpy().astype(np.int32) for row, own in rows]


def _check_processors(
    given: Sequence[law.LogitsProcessor],
    config: GenerationConfig,
    width: int,
    stops: tuple[int, ...],
) -> None:
    """Refuse processors that do not come from the config: they are programs, and may look at more
    than one text or remember what they saw.
    """
    made: list[law.LogitsProcessor] = [law.LogitNormalization()]
    if config.repetition_penalty not in (None, 1.0):
        made.append(law.RepetitionPenaltyLogitsProcessor(config.repetition_penalty))
    if stops and config.min_length:
        made.append(law.MinLengthLogitsProcessor(config.min_length, list(stops)))
    if stops and config.min_new_tokens:
        least = config.min_new_tokens
        made.append(law.MinNewTokensLengthLogitsProcessor(width, least, list(stops)))
    if config.suppress_tokens is not None:
        made.append(law.SuppressTokensLogitsProcessor(config.suppress_tokens))
    if config.do_sample:
        if config.temperature is not None:
            made.append(law.TemperatureLogitsWarper(config.temperature))
        if config.top_k:
            made.append(law.TopKLogitsWarper(config.top_k))
        if config.top_p is not None and config.top_p < 1:
            made.append(law.TopPLogitsWarper(config.top_p))
        if config.min_p is not None:
            made.append(law.MinPLogitsWarper(config.min_p))
    known = [(type(one), _plain_vars(one)) for one in made]
    for one in given:
        if (type(one), _plain_vars(one)) not in known:
            raise InputError(
                f"{type(one).__name__} is among the logits processors and does not come from the "
                "GenerationConfig; valid are its own fields"
            )


def _plain_vars(of: object) -> dict[str, Any]:
    return {k: v.tolist() if isinstance(v, Tensor) else v for k, v in vars(of).items()}


def _stop_strings(
    given: Sequence[ends.StoppingCriteria], config: GenerationConfig, stops: tuple[int, ...]
) -> list[ends.StoppingCriteria]:
    """The criteria that look for texts; the others must be the config's own."""
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
                f"{type(one).__name__} is among the stopping criteria; valid are max_length, "
                "max_new_tokens, eos_token_id and StopStringCriteria"
            )
    return texts


def _padded(
    input_ids: Tensor, answers: list[list[int]], config: GenerationConfig, stops: tuple[int, ...]
) -> Tensor:
    """Prompts and answers; behind an answer that ended earlier than others, padding."""
    pad = config.pad_token_id
    if pad is None:
        pad = stops[0] if stops else 0  # without ends all answers are of one length
    longest = max(map(len, answers))
    rows = [answer + [int(pad)] * (longest - len(answer)) for answer in answers]
    return torch.cat([input_ids, input_ids.new_tensor(rows)], dim=1)
