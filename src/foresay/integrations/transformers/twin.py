"""A twin of the caller's model: a target that uses its weights and leaves the model unchanged.

A target replaces modules of its model: attention, linear layers, norms. So it gets a copy of the
modules. The weights are shared, but linear layers keep a second layout of theirs, which would be
stale if the weights were trained in between. So each call first compares all weights, and lays out
again what has changed.

On a GPU nothing is laid out again: the target reads the caller's tensors in every step, whatever
was written into them. It is made anew only where a tensor has moved. What was computed with the
weights before is not used in the next call: neither torch's versions of tensors nor anything else
that is quick tells whether they are still the same.
"""

from __future__ import annotations

import copy
import zlib
from collections.abc import Callable
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
from foresay.models.load_transformers import target_of
from foresay.models.replacing import tensors_of
from foresay.models.target import LoadedTarget
from foresay.structured.grammars import Grammars

__all__ = ["DTYPES", "Held", "copied", "held_for", "refuse_hooks"]

DTYPES = (torch.float32, torch.bfloat16)
_GPU_DTYPES = (*DTYPES, torch.float16)
_ENGINES = 4  # kept per model: each has a drafter with its own memory


@dataclass(slots=True, eq=False)
class Held:
    """What was made for a model: its twin as a target, and engines. One thread at a time may use
    them: `lock` is for that.

    Raises: see `engine`.
    """

    kind: list[Any]
    """Names, dtypes and shapes: equal as long as only values change. On a GPU also the places."""
    marks: list[Any]
    """Checksums of the values; none on a GPU."""
    target: LoadedTarget
    device: str = "cpu"
    weights_changed: Callable[[], None] | None = None
    """Tells it to the target, where that cannot see it: before each call."""
    lock: Lock = field(default_factory=Lock)
    engines: dict[Any, tuple[Drafter[Any] | None, Engine]] = field(default_factory=dict)

    def engine(
        self,
        drafter: str | Drafter[Any],
        policy: str,
        memory: int,
        grammars: Grammars | None = None,
    ) -> Engine:
        """The engine with these: one of the last few, or a new one. For a new call: what was
        computed with other weights is not used.

        Raises: InputError for arguments that an engine does not take.
        """
        which = drafter if isinstance(drafter, str) else id(drafter)
        key = (which, policy, memory, grammars)
        if key not in self.engines:
            made_drafter, own = drafter_of(drafter, device=self.device), self.target.memory
            made = Engine(
                self.target,
                made_drafter,
                policy=policy,
                memory=memory if own is None else own,
                grammars=grammars,
            )
            while len(self.engines) >= _ENGINES:
                del self.engines[next(iter(self.engines))]  # the least recently used
            self.engines[key] = made_drafter, made  # the drafter lives: its id stays its own
        if self.weights_changed is not None:
            self.weights_changed()
        self.engines[key] = self.engines.pop(key)
        return self.engines[key][1]

    def ended(self, engine: Engine) -> None:
        """After a call: what the next one cannot use is freed, since the engines share the memory
        of their target."""
        if self.weights_changed is not None:
            engine.scheduler.drop_prefixes()


_HELD: WeakKeyDictionary[nn.Module, Held] = WeakKeyDictionary()
_BUILDING = Lock()


def held_for(model: Any, memory: int) -> Held:
    """The target and engines of a transformers model; updated if its weights have changed.
    `memory`: bytes that it has for keys and values on a GPU.

    Raises: UnsupportedModel.
    """
    _check(model)
    if _is_on_gpu(model):
        return _held_in_place(model, memory)
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


def _held_in_place(model: Any, memory: int) -> Held:
    """The same on a GPU."""
    places = [
        (path, tensor.dtype, tensor.shape, tensor.stride(), tensor.data_ptr())
        for path, tensor in tensors_of(model).items()
    ]
    kind = [memory, places]
    with _BUILDING:
        held = _HELD.get(model)
        if held is None or held.kind != kind:
            held = None
            _HELD.pop(model, None)  # the memory of the old one is free before the new one takes its
            made: Any = target_of(_twin(model, buffers=True), memory=memory)
            held = _HELD[model] = Held(kind, [], made, str(model.device), made.weights_changed)
        return held


def _is_on_gpu(model: Any) -> bool:
    return bool(model.device.type == "cuda")


def _check(model: Any) -> None:
    name = model.config.model_type
    for path, tensor in tensors_of(model).items():
        if tensor.device.type not in ("cpu", "cuda"):
            raise UnsupportedModel(
                f"{path} of {name} is on {tensor.device}; expected the CPU or a CUDA device"
            )
    devices = sorted({str(tensor.device) for tensor in tensors_of(model).values()})
    if len(devices) > 1:
        raise UnsupportedModel(
            f"the weights of {name} are on {' and '.join(devices)}; expected one device"
        )
    if model.dtype not in (_GPU_DTYPES if _is_on_gpu(model) else DTYPES):
        known = "float32, bfloat16 or float16" if _is_on_gpu(model) else "float32 or bfloat16"
        raise UnsupportedModel(f"{name} has {model.dtype}; expected {known}")
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


def _twin(model: Any, *, buffers: bool = False) -> Any:
    """A copy of the modules that shares only the weights, and the buffers where asked for."""
    shared: dict[int, Any] = {
        id(weight): nn.Parameter(weight.detach(), requires_grad=False)
        for weight in model.parameters()
    }
    if buffers:
        shared |= {id(buffer): buffer for buffer in model.buffers()}
    return copied(model, shared)


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
