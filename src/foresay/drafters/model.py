"""A smaller model drafts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from foresay.corpus import tokenizer_hash_of
from foresay.drafters.decoding.drafter import MEMORY, Choice, DecodingDrafter
from foresay.drafters.decoding.shapes import Dynamic, ShapeLike
from foresay.errors import ModelError
from foresay.models.weights.folder import config_of

if TYPE_CHECKING:
    from foresay.models.target import Target

__all__ = ["Dynamic", "ModelDrafter"]


class ModelDrafter(DecodingDrafter):
    """Drafts with a smaller model of the target's tokenizer.

    model           a loaded `Target`, or a model's name as for `LLM`, which is loaded now
    shape           5: a chain of 5 tokens; (3, 2, 1): a tree whose nodes have 3, then 2, then 1
                    children; Dynamic(width=4, depth=5): a tree by confidence. Budgets cut it: to
                    its likeliest nodes, or of sampled tokens to its first
    choice          for requests that are sampled: "coupled", tokens are ranked with the noise that
                    the target will sample with, so that a good model drafts what the target will
                    sample; how much of it is best for this model is learned (`noise_weight`).
                    "likeliest": without it. Greedy requests get the likeliest in both cases
    memory          bytes of keys and values, at most, 1 GiB by default. Those of the request that
                    was asked least recently are forgotten, and computed again when it is asked; of
                    requests that are asked together, those that do not fit get no drafts
    device          of a model that is given by its name, as for `LLM`; "cpu" by default
    tokenizer_hash  of the model's tokenizer file (`foresay.corpus.tokenizer_hash_of`), which an
                    `LLM` compares with its own; by default that of a model given by its name, and
                    None for a Target: then nothing is compared

    For requests under rule rejection tokens are sampled from the model's processed distribution,
    without replacement, and drafts have `probs`; a tree by confidence is a chain for them.

    A score is the product of the chances on the path: see `decoding.next_tokens`. Each request has
    keys and values of the draft model from its first draft until `finish`, unless they are
    forgotten. A text that is longer than the model's context, or has a token that it does not know,
    gets no drafts.
    One thread at a time may use it.

    Raises: InputError when constructed; for a name also as `models.load.load`.
    """

    def __init__(
        self,
        model: Target | str | os.PathLike[str],
        *,
        shape: ShapeLike = 5,
        choice: Choice = "coupled",
        memory: int = MEMORY,
        device: str = "cpu",
        tokenizer_hash: bytes | None = None,
    ) -> None:
        super().__init__(
            None, shape=shape, choice=choice, memory=memory, tokenizer_hash=tokenizer_hash
        )
        made: Any = model
        if isinstance(model, (str, os.PathLike)):
            made, found = _loaded(model, device, memory)
            self.tokenizer_hash = found if tokenizer_hash is None else tokenizer_hash
        from foresay.models.target import check_target  # torch, which takes seconds

        check_target(made)
        self._use(made)


def _loaded(name: str | os.PathLike[str], device: str, memory: int) -> tuple[Any, bytes | None]:
    """The target of that name, and the hash of its tokenizer, if that is known. On processors
    weights of 16 and 32 bits are quantised to 8 where the core has a decoder for them: drafts need
    not be exact."""
    from foresay.models.cpu.quantised_decoder import can_quantise
    from foresay.models.device import device_for
    from foresay.models.load import find_model, load
    from foresay.models.options import LoadOptions

    device = device_for(LoadOptions(device=device))
    found = find_model(name, device=device)
    if found.gguf is None and "Eagle" in str(config_of(found.folder).get("architectures")):
        raise ModelError(
            f"'{name}' is a head, no model; expected a model. A head drafts where its target runs, "
            f"as --drafter eagle:{name}"
        )
    quantize: Literal["q8_0"] | None = None
    if device == "cpu" and found.gguf is None and can_quantise(found.folder):
        quantize = "q8_0"
    file = Path(found.folder) / "tokenizer.json"
    own = tokenizer_hash_of(file) if file.is_file() else _noted_hash(config_of(found.folder))
    return load(found, quantize=quantize, device=device, memory=memory), own


def _noted_hash(config: dict[str, Any]) -> bytes | None:
    """Of the target's tokenizer, as `foresay train model` notes it."""
    noted: Any = config
    for key in ("foresay", "target", "tokenizer_sha256"):
        noted = noted.get(key) if isinstance(noted, dict) else None
    try:
        found = bytes.fromhex(noted)
    except (TypeError, ValueError):
        return None
    return found if len(found) == 32 else None
