"""Which earlier tokens a layer sees: all, a window, or a chunk; asked of the model itself.

What a configuration or a module says about windows is not always what the layer does, so the rule
is taken from the mask that the model would build, once, when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel

from foresay.errors import UnsupportedModel

__all__ = ["Visible", "asking", "visible_by_layer"]

_NAME = "foresay-probe"
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Visible:
    """What a layer sees: keys less than `window` behind, or of the same `chunk`; 0: all.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """

    window: int = 0
    chunk: int = 0

    def first(self, position: int) -> int:
        """The first position that the query at `position` sees."""
        if self.chunk:
            return position // self.chunk * self.chunk
        return max(position - self.window + 1, 0) if self.window else 0


@contextmanager
def asking(model: PreTrainedModel) -> Iterator[None]:
    """Whatever a model raises while the body tries it out is a reason to refuse the model.

    Mutates: nothing. Valid until: the body ends. Raises: UnsupportedModel in place of any other
    error but a lack of memory. GIL: held.
    """
    try:
        yield
    except (UnsupportedModel, MemoryError):
        raise
    except Exception as error:
        said = str(error).strip().splitlines()
        raise UnsupportedModel(
            f"{model.config.model_type} cannot be run with another attention function: "
            f"{type(error).__name__}{f', {said[0]}' if said else ''}"
        ) from error


def visible_by_layer(model: PreTrainedModel, context: int) -> list[Visible]:
    """What each layer sees, in the order of the layers.

    Mutates: nothing that lasts: the model's attention is set back. Valid until: for ever. Raises:
    UnsupportedModel for a rule that is none of the three. GIL: released by torch.
    """
    rules: dict[int, Rule | None] = {}

    def keep(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any) -> Any:
        rules[int(module.layer_idx)] = getattr(mask, "rule", None)
        heads, width = query.shape[1], value.shape[3]
        return query.new_zeros(1, query.shape[2], heads, width), None

    AttentionInterface.register(_NAME, keep)
    AttentionMaskInterface.register(_NAME, _Mask)
    before = model.config._attn_implementation
    try:
        with asking(model), torch.inference_mode():
            model.set_attn_implementation(_NAME)
            model(
                input_ids=torch.zeros(1, 3, dtype=torch.long),
                position_ids=torch.arange(3)[None],
                attention_mask=torch.ones(1, 3, dtype=torch.long),
                use_cache=False,
            )
    finally:
        model.set_attn_implementation(before)
    config = model.config.get_text_config()
    sizes = {getattr(config, name, None) for name in ("sliding_window", "attention_chunk_size")}
    hints = sorted(size for size in sizes if isinstance(size, int) and size > 0)
    name = model.config.model_type
    return [_classified(f"layer {at} of {name}", rules[at], context, hints) for at in sorted(rules)]


class _Mask:
    """What the model hands to its layers in place of a mask: the rule that would make it."""

    def __init__(self, *, mask_function: Rule, **_: Any) -> None:
        self.rule = mask_function


def _classified(layer: str, rule: Rule | None, context: int, hints: list[int]) -> Visible:
    if rule is None:
        raise UnsupportedModel(
            f"{layer} builds its attention mask by itself; only masks that transformers "
            "builds (full, sliding window, chunked) can be run exactly"
        )
    longest = max([context, *(4 * hint for hint in hints)]) if hints else context
    longest = min(longest, 1 << 20)
    asked = {0, 1, 2, longest - 1, longest // 2}
    asked |= {hint * times + step for hint in hints for times in (1, 2, 3) for step in (-1, 0, 1)}
    queries = sorted(q for q in asked if 0 <= q < longest)
    seen = [_row(rule, query) for query in queries]
    for visible in [Visible(), *map(Visible, hints), *(Visible(0, hint) for hint in hints)]:
        if all(
            bool(row[visible.first(query) :].all()) and not row[: visible.first(query)].any()
            for query, row in zip(queries, seen, strict=True)
        ):
            return visible
    raise UnsupportedModel(
        f"{layer} sees earlier tokens by a rule that is neither full nor a sliding window "
        f"nor chunks of {hints or 'a configured size'}; only those can be run exactly"
    )


def _row(rule: Rule, query: int) -> Tensor:
    zero = torch.zeros(1, 1, dtype=torch.long)
    keys = torch.arange(query + 1)[None]
    return rule(zero, zero, torch.full((1, 1), query), keys).expand(1, query + 1)[0]
