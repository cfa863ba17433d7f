"""A target with some of another's layers: the same weights in memory, and less work.

Its texts are those of the whole target, so it can go on where that one has stopped: with its keys
and values of the text so far. Of what it adds itself, the skipped layers have nothing, and a text
has to be cut before the whole target goes on with it.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor, nn

from foresay.errors import InputError, UnsupportedModel
from foresay.models.target import Hidden, Outputs, SequenceInput, Target, TextKv

__all__ = ["HasLayers", "SkippingTarget", "layers_of", "model_with"]


@runtime_checkable
class HasLayers(Protocol):
    """A target whose layers are known.

    shapes  heads of keys and values, width of a key, width of a value, for each layer
    """

    shapes: Sequence[tuple[int, int, int]]

    def only(self, kept: Sequence[int]) -> Target:
        """The same with these layers alone, for texts of the whole; it shares all its weights."""
        ...


def layers_of(target: Target) -> int:
    """How many layers a target has.

    Raises: UnsupportedModel for one whose layers are not known.
    """
    return len(_with_layers(target).shapes)


def _with_layers(target: Target) -> HasLayers:
    if not isinstance(target, HasLayers):
        raise UnsupportedModel(
            f"the layers of a {type(target).__name__} are not known; expected a target that "
            "foresay.models.load.load returns"
        )
    return target


def _checked(kept: object, layers: int) -> tuple[int, ...]:
    """The numbers of layers that are kept: rising, at least one.

    Raises: InputError.
    """
    found = list(kept) if isinstance(kept, Sequence) and not isinstance(kept, str) else []
    whole = all(type(at) is int and 0 <= at < layers for at in found)
    if not found or not whole or found != sorted(set(found)):
        raise InputError(
            f"layers are {kept!r}; expected numbers from 0 to {layers - 1}, rising, at least one"
        )
    return tuple(found)


class SkippingTarget:
    """A `Target` with the layers `kept` of another, for texts of either; it follows when the
    weights are replaced.

    Raises: InputError for layers that the target has not, UnsupportedModel for a target whose
    layers are not known.
    """

    def __init__(self, target: Target, kept: Sequence[int]) -> None:
        self.target = target
        self.kept = _checked(kept, layers_of(target))
        self.vocabulary = target.vocabulary
        self.context = target.context
        self.threads = target.threads
        self.identity: str | None = None
        self.exact: bool | None = None
        self.depth = 0
        self._made = _with_layers(target).only(self.kept)
        self._of = target.version

    @property
    def version(self) -> int:
        """That of the whole target."""
        return self.target.version

    @property
    def bytes_per_token(self) -> int:
        return self.target.bytes_per_token

    def open(self) -> TextKv:
        return self.target.open()

    def open_filled(self, tokens: int) -> TextKv:
        return self.target.open_filled(tokens)

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        if self._of != self.target.version:  # layers may have been replaced as a whole
            self._made, self._of = _with_layers(self.target).only(self.kept), self.target.version
        return self._made.forward(parts, hidden=hidden)

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """None: the weights are those of the whole target."""
        return {}

    def replace_weights(self, weights: Mapping[str, Tensor], *, copy: bool = True) -> None:
        """Raises: InputError; nothing changes."""
        raise InputError(
            "the weights of a target that skips layers are those of the whole target; expected "
            "that one's replace_weights"
        )


def model_with(model: Any, layers: int, kept: Sequence[int]) -> Any:
    """A model of transformers that has `layers` of them, with the layers `kept` alone.

    Raises: UnsupportedModel for one whose list of layers is not found.
    """
    lists = [
        path
        for path, module in model.named_modules()
        if isinstance(module, nn.ModuleList) and len(module) == layers and _number(module[0]) == 0
    ]
    if len(lists) != 1:
        raise UnsupportedModel(
            f"{type(model).__name__} has {len(lists)} lists of {layers} layers; expected one"
        )
    *above, last = lists[0].split(".")
    made = at = _clone(model)
    for name in above:
        at._modules[name] = _clone(at._modules[name])
        at = at._modules[name]  # type: ignore[assignment]
    whole: Any = at._modules[last]
    at._modules[last] = nn.ModuleList(_renumbered(whole[old], new) for new, old in enumerate(kept))
    config: Any = getattr(at, "config", None)
    if config is not None:  # by which some models count their layers
        at.config = _config_of(config, kept)
    return made


def _config_of(config: Any, kept: Sequence[int]) -> Any:
    made = copy.copy(config)
    made.num_hidden_layers = len(kept)
    kinds = getattr(config, "layer_types", None)
    if kinds is not None:
        made.layer_types = [kinds[at] for at in kept]
    return made


def _clone(module: Any) -> nn.Module:
    """The module, with a list of parts of its own."""
    made: nn.Module = copy.copy(module)
    made._modules = dict(module._modules)
    return made


def _renumbered(module: nn.Module, number: int) -> nn.Module:
    """The same layer, whose keys and values are stored as those of another number."""
    made = _clone(module)
    if isinstance(getattr(made, "layer_idx", None), int):
        setattr(made, "layer_idx", number)  # noqa: B010 (not known to mypy)
    for name, part in made._modules.items():
        if part is not None and _number(part) is not None:
            made._modules[name] = _renumbered(part, number)
    return made


def _number(module: nn.Module) -> int | None:
    """The number of the layer that the module is, or is in."""
    found = (getattr(part, "layer_idx", None) for part in module.modules())
    return next((number for number in found if isinstance(number, int)), None)
