"""Which tensors of a model are replaced when some are given by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from foresay.errors import InputError

__all__ = ["Kinds", "cannot_replace", "kinds_of", "names_of", "tensors_of", "to_replace"]

Kinds = Mapping[str, tuple[torch.Size, torch.dtype]]
"""Shape and dtype of tensors, by name."""


def tensors_of(model: nn.Module) -> dict[str, Tensor]:
    """The parameters and buffers by name, a tied one by each of its names."""
    return {
        **dict(model.named_parameters(remove_duplicate=False)),
        **dict(model.named_buffers(remove_duplicate=False)),
    }


def kinds_of(tensors: Mapping[str, Tensor]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """The shape and dtype of each."""
    return {name: (tensor.shape, tensor.dtype) for name, tensor in tensors.items()}


def names_of(model: nn.Module) -> dict[str, Sequence[str]]:
    """For the name of each parameter and buffer, all names of the same tensor."""
    by_tensor: dict[int, list[str]] = {}
    for name, tensor in tensors_of(model).items():
        by_tensor.setdefault(id(tensor), []).append(name)
    return {name: names for names in by_tensor.values() for name in names}


def cannot_replace(name: object) -> InputError:
    """The error to raise for a weight of a model whose weights are in blocks."""
    return InputError(
        f"the weight {name!r} cannot be replaced: the model's weights are used in blocks, as they "
        "are stored or quantised; expected a model loaded with dtype 'bfloat16' or 'float32'"
    )


def to_replace(
    weights: object, names: Mapping[str, Sequence[str]], kinds: Kinds
) -> dict[str, Tensor]:
    """`weights` with each tensor under all of its names. `kinds`: what the tensors are like that
    they replace.

    Raises: InputError for what is no dense tensor, an unknown name, a shape or kind of number that
    differs, a bias without its weight, or two values for one tensor.
    """
    if not isinstance(weights, Mapping):
        kind = type(weights).__name__
        raise InputError(f"weights are of type {kind}; expected tensors by name")
    found: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if not names:
            raise cannot_replace(name)
        if name not in names:
            some = ", ".join(list(names)[:3])
            raise InputError(f"the model has no weight {name!r}; expected names such as {some}")
        if not isinstance(tensor, Tensor):
            raise InputError(f"{name} is {tensor!r}; expected a tensor")
        if tensor.layout is not torch.strided or tensor.is_meta or tensor.is_quantized:
            raise InputError(
                f"{name} has layout {tensor.layout} and is on {tensor.device}; expected a dense "
                "tensor with values"
            )
        for alias in names[name]:
            if alias not in kinds:
                continue  # such as a buffer that a layer of the core does without
            shape, dtype = kinds[alias]
            if tensor.shape != shape:
                raise InputError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}")
            if tensor.is_floating_point() != dtype.is_floating_point or tensor.is_complex():
                raise InputError(f"{name} is of {tensor.dtype}; expected {dtype}, or alike")
            if alias in found and not _same(found[alias], tensor):
                raise InputError(
                    f"{name} and {alias} are one tensor, and two values are given; expected one"
                )
            found[alias] = tensor
    for name in found:
        if name.endswith(".bias") and f"{name[:-5]}.weight" not in found:
            weight = f"{name[:-5]}.weight"
            if weight in names:
                raise InputError(f"{name} is given without {weight}; expected both")
    return found


def _same(one: Tensor, other: Tensor) -> bool:
    alike = one.data_ptr() == other.data_ptr() and one.stride() == other.stride()
    return alike or torch.equal(one, other)
