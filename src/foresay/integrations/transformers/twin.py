"""A twin of the caller's model: a target that uses its weights and leaves the model unchanged.

A target replaces modules of its model: attention, linear layers, norms. So it gets a copy of the
modules. The weights are shared, but linear layers keep a second layout of theirs, which would be
stale if the weights were trained in between. So each call first compares all weights, and lays out
again what has changed.
"""

from __future__ import annotations

import copy
import zlib
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from foresay.drafter import Drafter
from foresay.engine.engine import Engine
from foresay.engine.llm import drafter_of
from foresay.errors import UnsupportedModel
from foresay.models.cpu.target import CpuTarget
from foresay.models.load_transformers import target_of
from foresay.models.replacing import tensors_of

__all__ = ["DTYPES", "Held", "copied", "held_for", "refuse_hooks"]

DTYPES = (torch.float32, torch.bfloat16)
_ENGINES = 4  # kept per model: each has a drafter with its own memory


@dataclass(slots=True, eq=False)
class Held:
    """What was made for a model: its twin as a target, and engines. One thread at a time may use
    them: `lock` is for that.

    Raises: see `engine`.
    """

    kind: list[Any]
    """Names, dtypes and shapes: equal as long as only values change."""
    marks: list[Any]
    """Checksums of the values."""
    target: CpuTarget
    lock: Lock = field(default_factory=Lock)
    engines: dict[Any, tuple[Drafter[Any] | None, Engine]] = field(default_factory=dict)

    def engine(self, drafter: str | Drafter[Any], policy: str, memory: int) -> Engine:
        """The engine with this drafter, policy and memory: one of the last few, or a new one.

        Raises: InputError for arguments that an engine does not take.
        """
        key = (drafter if isinstance(drafter, str) else id(drafter), policy, memory)
        if key not in self.engines:
            made_drafter = drafter_of(drafter)
            made = Engine(self.target, made_drafter, policy=policy, memory=memory)
            while len(self.engines) >= _ENGINES:
                del self.engines[next(iter(self.engines))]  # the least recently used
            self.engines[key] = made_drafter, made  # the drafter lives: its id stays its own
        self.engines[key] = self.engines.pop(key)
        return self.engines[key][1]


_HELD: WeakKeyDictionary[nn.Module, Held] = WeakKeyDictionary()
_BUILDING = Lock()


def held_for(model: Any) -> Held:
    """The target and engines of a transformers model; updated if its weights have changed.

    Raises: UnsupportedModel.
    """
    _check(model)
    kind, marks = _kind(model), _marks(model)
    with _BUILDING:
        held = _HELD.get(model)
        if held is None or held.kind != kind:
            held = _HELD[model] = Held(kind, marks, target_of(_twin(model)))
        elif held.marks != marks:
            with held.lock:
                held.target.replace_weights(tensors_of(model), copy=False)
                held.marks = marks
        return held


def _check(model: Any) -> None:
    name = model.config.model_type
    for path, tensor in tensors_of(model).items():
        if tensor.device.type != "cpu":
            raise UnsupportedModel(f"{path} of {name} is on {tensor.device}; expected the CPU")
    if model.dtype not in DTYPES:
        raise UnsupportedModel(f"{name} has {model.dtype}; expected float32 or bfloat16")
    refuse_hooks(model)


def refuse_hooks(model: nn.Module, *, checkpointing: bool = False) -> None:
    """Refuse the forward hook of somebody else, which may do anything; transformers' own in `utils`
    only record outputs. With `checkpointing` its hook of gradient checkpointing is removed.

    Raises: UnsupportedModel.
    """
    for path, module in model.named_modules():
        for hooks in (module._forward_hooks, module._forward_pre_hooks):
            for key, hook in list(hooks.items()):
                home = str(getattr(hook, "__module__", ""))
                if home.startswith("transformers.utils."):
                    continue
                if not (checkpointing and home.startswith("transformers.")):
                    raise UnsupportedModel(
                        f"'{path or type(model).__name__}' has a forward hook, which would see "
                        "other tensors here; expected a model without hooks"
                    )
                del hooks[key]


def _kind(model: nn.Module) -> list[Any]:
    threads = torch.get_num_threads()  # the linear layers were tuned for this number
    return [
        threads,
        [(path, tensor.dtype, tensor.shape) for path, tensor in tensors_of(model).items()],
    ]


def _marks(model: nn.Module) -> list[Any]:
    """Tensor versions would miss changes made through `.data`; so all bytes are read, as each step
    reads them anyway.
    """
    found = []
    for path, tensor in tensors_of(model).items():
        flat = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
        found.append((path, tensor.data_ptr(), zlib.crc32(flat.numpy().data)))
    return found


def _twin(model: Any) -> Any:
    """A copy of the modules that shares only the weights."""
    return copied(
        model,
        {
            id(weight): nn.Parameter(weight.detach(), requires_grad=False)
            for weight in model.parameters()
        },
    )


def copied(model: Any, known: dict[int, Any] | None = None) -> Any:
    """A copy of the modules. For parts that are `known` by their id the value is taken.

    Raises: UnsupportedModel.
    """
    try:
        return copy.deepcopy(model, known)
    except (RuntimeError, TypeError, ValueError, NotImplementedError) as error:
        raise UnsupportedModel(
            f"{type(model).__name__} holds something that cannot be copied: {error}"
        ) from error
