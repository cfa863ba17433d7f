"""Several samples of one prompt: added together, drafted from each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from uuid import uuid4

from foresay.arrays import IntsLike, as_items
from foresay.engine.engine import Engine
from foresay.engine.request import Request
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import InputError
from foresay.models.tokenizer import Tokenizer
from foresay.sampling.noise import new_seed, seed_of_sample
from foresay.sampling.params import SamplingParams

__all__ = ["add_answers", "add_samples"]


def add_answers(
    engine: Engine,
    tokenizer: Tokenizer,
    prompt: IntsLike,
    params: SamplingParams,
    *,
    tenant: str | None = None,
    prompt_logprobs: int | None = None,
    together: bool = False,
    decode: Callable[[Sequence[int]], str] | None = None,
) -> list[Request]:
    """A new request for each of the `params.n` answers to a prompt, with their texts, seeds and
    ends; all of them or none. `decode` makes the texts, by default the tokenizer. The rest is as in
    `Engine.add`.

    Mutates: the engine. Raises: as `Engine.add`; nothing has changed then.
    """
    seed = new_seed() if params.seed is None else params.seed
    stops, least = params.stop_texts, params.min_tokens
    return add_samples(
        engine,
        prompt,
        params,
        seeds=[seed_of_sample(seed, sample) for sample in range(params.n)],
        stops=() if params.ignore_eos else tokenizer.ends,
        tenant=tenant,
        text=partial(IncrementalDetokenizer, decode or tokenizer.decode, stops, least),
        prompt_logprobs=prompt_logprobs,
        together=together,
    )


def add_samples(
    engine: Engine,
    prompt: IntsLike,
    params: SamplingParams | None = None,
    *,
    seeds: Sequence[int],
    stops: Sequence[int] = (),
    tenant: str | None = None,
    text: Callable[[], IncrementalDetokenizer] | None = None,
    prompt_logprobs: int | None = None,
    together: bool = False,
) -> list[Request]:
    """A new request for each of the seeds, all of them or none. Several are a group, which ends
    with its last member, however that one ends. `text` makes the detokenizer of each; the rest is
    as in `Engine.add`.

    Mutates: the engine. Raises: InputError without seeds, and as `Engine.add`; nothing has changed
    then.
    """
    seeds = as_items(seeds, "seeds", "a list of whole numbers")
    if not seeds:
        raise InputError("there are no seeds; expected one for each sample, 1 or more")
    # Unlike any name of a user or of another engine: drafters may be shared.
    name = f"samples {uuid4()}" if len(seeds) > 1 else None
    asked: list[Request] = []
    try:
        if name is not None:
            engine.groups.open(tenant, name)
        for seed in seeds:
            request = engine.add(
                prompt,
                params,
                seed=seed,
                stops=stops,
                group=name,
                tenant=tenant,
                text=None if text is None else text(),
                prompt_logprobs=prompt_logprobs,
                together=together,
            )
            asked.append(request)
    except BaseException:
        if name is not None:
            engine.cancel(*engine.groups.members(tenant, name))
            engine.groups.close(tenant, name)
        raise
    return asked
