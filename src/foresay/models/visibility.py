"""Which earlier tokens a layer attends to: all, a window, or a chunk.

What a configuration or a module says about windows is not always what the layer does. So the rule
is taken from the attention mask that the model would build, once, when it is loaded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import (
    AttentionInterface,
    AttentionMaskInterface,
    PreTrainedConfig,
    PreTrainedModel,
)

from foresay.errors import UnsupportedModel

__all__ = ["Visible", "as_unsupported", "narrow", "narrowed", "visible_by_layer"]

_NAME = "foresay-probe"
# What a configuration calls the sizes, and how small they are made to try them on short texts.
_WINDOW, _CHUNK = "sliding_window", "attention_chunk_size"
_NARROW = {_WINDOW: 5, _CHUNK: 6}
Rule = Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]
Rules: TypeAlias = "dict[int, Rule | None]"
# The rules that layers were given: names are registered for the whole process, and models may be
# tested in several threads at once.
_RULES: ContextVar[Rules] = ContextVar("foresay_rules")


@dataclass(frozen=True, slots=True)
class Visible:
    """The visibility of a layer: keys less than `window` behind, or of the same `chunk`; 0: all."""

    window: int = 0
    chunk: int = 0

    def first(self, position: int) -> int:
        """The first position that is visible to the query at `position`."""
        if self.chunk:
            return position // self.chunk * self.chunk
        return max(position - self.window + 1, 0) if self.window else 0


@contextmanager
def as_unsupported(model: PreTrainedModel) -> Iterator[None]:
    """Any error that a model raises in the body means that it is not supported.

    Raises: UnsupportedModel in place of any other error but MemoryError.
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
    """The visibility of each layer, in the order of the layers.

    Mutates: nothing that lasts: the model's attention is set back. Raises: UnsupportedModel for a
    rule that is none of the three.
    """
    rules: Rules = {}
    before, token = model.config._attn_implementation, _RULES.set(rules)
    try:
        with as_unsupported(model), torch.inference_mode():
            model.set_attn_implementation(_NAME)
            ones = torch.ones(1, 3, dtype=torch.long, device=model.device)
            model(
                input_ids=torch.zeros_like(ones),
                position_ids=torch.arange(3, device=model.device)[None],
                attention_mask=ones,
                use_cache=False,
            )
    finally:
        _RULES.reset(token)
        model.set_attn_implementation(before)
    hints, name = sorted(set(_sizes(model).values())), model.config.model_type
    return [
        _classified(f"layer {at} of {name}", rules[at], context, hints, model.device)
        for at in sorted(rules)
    ]


def narrow(layers: Sequence[Visible]) -> list[Visible]:
    """The visibility of the layers when windows and chunks are a few tokens wide, so that short
    texts reach beyond them.
    """
    return [
        Visible(min(layer.window, _NARROW[_WINDOW]), min(layer.chunk, _NARROW[_CHUNK]))
        for layer in layers
    ]


@contextmanager
def narrowed(model: PreTrainedModel, layers: Sequence[Visible]) -> Iterator[list[Visible]]:
    """While the body runs, the model's own windows and chunks are narrow too. Gives the visibility
    of the layers then, checked against the model.

    Mutates: the model's configuration, which is set back. Raises: UnsupportedModel if `layers` is
    not the visibility of the model's layers.
    """
    given = {id(config): config for config in map(_config_of, model.modules()) if config}
    text = model.config.get_text_config()
    given[id(text)] = text
    sizes, wanted, before = _sizes(model), narrow(layers), []
    for at, layer in enumerate(layers):
        for size, name in ((layer.window, _WINDOW), (layer.chunk, _CHUNK)):
            if size and size != sizes.get(name):
                raise UnsupportedModel(
                    f"layer {at} of {model.config.model_type} was found to see {size} tokens; "
                    f"expected its {name}, {sizes.get(name)}"
                )
    try:
        for config in given.values():
            for name in sizes.keys() & vars(config).keys():
                size = getattr(config, name)
                before.append((config, name, size))
                setattr(config, name, size and min(size, _NARROW[name]))
        found = visible_by_layer(model, 4 * max(_NARROW.values()))
        wrong = [at for at, seen in enumerate(found) if wanted[at : at + 1] != [seen]]
        if wrong or len(found) != len(wanted):
            raise UnsupportedModel(
                f"the layers {wrong} of {model.config.model_type} have another attention mask than "
                "was found before; its answers would be wrong"
            )
        yield wanted
    finally:
        for config, name, size in before:
            setattr(config, name, size)


def _config_of(module: nn.Module) -> PreTrainedConfig | None:
    config = getattr(module, "config", None)
    return config if isinstance(config, PreTrainedConfig) else None


def _sizes(model: PreTrainedModel) -> dict[str, int]:
    """The sizes of windows and chunks that the configuration names."""
    config = model.config.get_text_config()
    found = {name: getattr(config, name, None) for name in _NARROW}
    return {name: size for name, size in found.items() if isinstance(size, int) and size > 0}


def _record_rule(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, **_: Any
) -> tuple[Tensor, None]:
    """In place of attention: record the mask rule that the layer was given."""
    _RULES.get()[int(module.layer_idx)] = getattr(mask, "rule", None)
    return query.new_zeros(1, query.shape[2], query.shape[1], value.shape[3]), None


class _Mask:
    """What the model passes to its layers in place of an attention mask: the rule that makes it."""

    def __init__(self, *, mask_function: Rule, **_: Any) -> None:
        self.rule = mask_function


def _classified(
    layer: str, rule: Rule | None, context: int, hints: list[int], device: torch.device
) -> Visible:
    if rule is None:
        raise UnsupportedModel(
            f"{layer} builds its attention mask by itself; expected a mask that transformers "
            "builds (full, sliding window, chunked)"
        )
    longest = max([context, *(4 * hint for hint in hints)]) if hints else context
    longest = min(longest, 1 << 20)
    asked = {0, 1, 2, longest - 1, longest // 2}
    asked |= {hint * times + step for hint in hints for times in (1, 2, 3) for step in (-1, 0, 1)}
    queries = sorted(q for q in asked if 0 <= q < longest)
    seen = [_row(rule, query, device) for query in queries]
    for visible in [Visible(), *map(Visible, hints), *(Visible(0, hint) for hint in hints)]:
        if all(
            bool(row[visible.first(query) :].all()) and not row[: visible.first(query)].any()
            for query, row in zip(queries, seen, strict=True)
        ):
            return visible
    raise UnsupportedModel(
        f"{layer} has an unknown attention mask; expected full, a sliding window or "
        f"chunks of {hints or 'a configured size'}"
    )


def _row(rule: Rule, query: int, device: torch.device) -> Tensor:
    """A rule may hold tensors of the model's device."""
    zero = torch.zeros(1, 1, dtype=torch.long, device=device)
    keys = torch.arange(query + 1, device=device)[None]
    rows = torch.full((1, 1), query, device=device)
    return rule(zero, zero, rows, keys).expand(1, query + 1)[0]


AttentionInterface.register(_NAME, _record_rule)
AttentionMaskInterface.register(_NAME, lambda **given: _Mask(**given))
