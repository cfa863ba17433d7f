"""Layer offloading: decoder layers of which a device holds some, while the others wait in pinned
memory of the host and are copied to it in turn.

A pass takes as long as those copies, so fewer passes take proportionally less time. Two buffers of
the device take turns: while the kernels of one layer read theirs, the next layer is copied to the
other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, islice
from typing import Any, Protocol

import torch
from torch import Tensor

from foresay.errors import InputError, ModelError
from foresay.models.gpu.weights import decoder_config, each_weight
from foresay.models.progress import Progress, silent
from foresay.models.weights.stored import StoredModel

__all__ = ["Copies", "StreamedLayers", "read_streamed", "resident_layers"]

_ALIGNED = 256  # bytes, of a tensor in the block of its layer
_BUFFERS = 2


class Copies(Protocol):
    """What copies blocks beside the kernels of a device."""

    def start(self, to: Tensor, block: Tensor) -> Any:
        """Copy a block to the device when all kernels launched so far have ended, beside those that
        are launched from now on. Returns the event of its end.
        """
        ...

    def wait(self, event: Any) -> None:
        """Let kernels that are launched from now on begin after that event."""
        ...

    def finish(self, event: Any) -> None:
        """Wait on the host until that event."""
        ...


class _CudaCopies:
    """`Copies` on a stream of its own. Kernels are those of the stream that is current."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)

    def start(self, to: Tensor, block: Tensor) -> torch.cuda.Event:
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            to.copy_(block, non_blocking=True)
        to.record_stream(self._stream)  # or its memory could be given away during the copy
        event = torch.cuda.Event()
        event.record(self._stream)
        return event

    def wait(self, event: torch.cuda.Event) -> None:
        torch.cuda.current_stream(self._device).wait_event(event)

    def finish(self, event: torch.cuda.Event) -> None:
        event.synchronize()


class _PlainCopies:
    """`Copies` of a processor, which have ended when they return."""

    def start(self, to: Tensor, block: Tensor) -> None:
        to.copy_(block)

    def wait(self, event: None) -> None:
        pass

    def finish(self, event: None) -> None:
        pass


@dataclass(frozen=True)
class _Layout:
    """Where the tensors of a layer are in its block, and how long that is."""

    places: dict[str, tuple[int, torch.Size, torch.dtype]]
    size: int

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> _Layout:
        places, end = {}, 0
        for name, tensor in tensors.items():
            places[name] = (end, tensor.shape, tensor.dtype)
            end += tensor.nbytes + -tensor.nbytes % _ALIGNED
        return cls(places, end)

    def views(self, block: Tensor) -> dict[str, Tensor]:
        """The tensors in a block."""
        return {
            name: block[at : at + shape.numel() * dtype.itemsize].view(dtype).view(shape)
            for name, (at, shape, dtype) in self.places.items()
        }


@dataclass
class _Buffer:
    """A buffer of the device: the layer that is in it or being copied to it, and the event of the
    end of that copy.
    """

    block: Tensor
    layer: int | None = None
    filled: Any = None


def resident_layers(count: int, size: int, limit: int) -> list[bool]:
    """Which of `count` layers of `size` bytes each stay on the device, so that they and the buffers
    of the others are within the limit. Others are of even number, so that a layer always comes to
    the same buffer and a CUDA graph may read it; they are spread evenly, so that copies go on while
    layers are computed that stay.

    Raises: ModelError for a limit that is too small.
    """
    if count * size <= limit:
        return [True] * count
    stay = limit // size - _BUFFERS
    stay -= (count - stay) % 2
    if stay < 0:
        least = min(count, _BUFFERS + count % 2) * size
        raise ModelError(
            f"the memory for layers is {limit} bytes; expected at least {least}, for "
            f"{least // size} of {count} layers"
        )
    return [(at + 1) * stay // count > at * stay // count for at in range(count)]


class StreamedLayers:
    """Decoder layers within a limit of memory.

    layers    the tensors of each layer by name, all alike; each is let go before the next is taken,
              so that an iterator may read them
    count     how many there are
    limit     bytes on the device, for layers that stay and for two buffers
    copies    None: those of the device

    Use: `layer(0)`, kernels, `layer(1)`, kernels, …, `release()`. Another order is right as well,
    but waits for copies. Kernels and calls are of one stream; calls are not captured in a graph.

    Raises: ModelError for a limit that is too small, or host memory that cannot be pinned;
    InputError for layers that differ, or are of another number; what the iterator raises.
    """

    def __init__(
        self,
        layers: Iterable[Mapping[str, Tensor]],
        *,
        count: int,
        device: torch.device,
        limit: int,
        copies: Copies | None = None,
    ) -> None:
        on_gpu = device.type == "cuda"
        self._copies: Copies = copies or (_CudaCopies(device) if on_gpu else _PlainCopies())
        self._on_device: list[dict[str, Tensor]] = []
        self._blocks: dict[int, Tensor] = {}  # of layers that do not stay, on the host
        self._turn: list[int] = []  # these layers
        self._buffers: list[_Buffer] = []
        self._given: int | None = None
        given, layout, stays = iter(layers), None, list[bool]()
        for at in range(count):
            tensors = next(given, None)
            found = None if tensors is None else _Layout.of(tensors)
            if layout is None and found is not None:
                layout, stays = found, resident_layers(count, found.size, limit)
                if not all(stays):
                    self._buffers = [_Buffer(_empty(found.size, device)) for _ in range(_BUFFERS)]
            if tensors is None or layout is None or found != layout:
                raise InputError(f"layer {at} is missing or unlike layer 0; expected {count} alike")
            block = _empty(layout.size, device) if stays[at] else _pinned(layout.size, on_gpu)
            for name, view in layout.views(block).items():
                view.copy_(tensors[name])
            del tensors
            if not stays[at]:
                self._blocks[at] = block
                block = self._buffers[len(self._turn) % _BUFFERS].block
                self._turn.append(at)
            self._on_device.append(layout.views(block))
        if layout is None or next(given, None) is not None:
            raise InputError(f"more layers are given than {count}; expected as many, at least one")
        self._layout = layout
        self._order = {layer: place for place, layer in enumerate(self._turn)}
        for layer in self._turn[:_BUFFERS]:
            self._copy(layer)

    def __len__(self) -> int:
        return len(self._on_device)

    @property
    def resident(self) -> list[int]:
        """The layers that stay on the device."""
        return [at for at in range(len(self)) if at not in self._blocks]

    @property
    def device_bytes(self) -> int:
        """Bytes on the device."""
        return self._layout.size * (len(self.resident) + len(self._buffers))

    def layer(self, index: int) -> dict[str, Tensor]:
        """The layer's tensors on the device, the same ones at each call. The kernels that read the
        layer before must have been launched: its buffer is given to the next but one.

        Valid until: the next call of `layer` or `release`, for kernels launched until then.
        """
        self.release()
        if index in self._order:
            buffer = self._buffer(index)
            if buffer.layer != index:  # another order, or a layer that was replaced
                self._copy(index)
            self._copies.wait(buffer.filled)
            self._given = index
        return self._on_device[index]

    def release(self) -> None:
        """The kernels that read the layer given last have been launched; the layer that comes next
        to its buffer may be copied. `layer` does so, too; after the last layer of a pass it is done
        at once.
        """
        if self._given is not None:
            place = self._order[self._given] + _BUFFERS
            self._given = None
            self._copy(self._turn[place % len(self._turn)])

    def replace(self, index: int, name: str, tensor: Tensor, first: int = 0) -> None:
        """Put a tensor into that of the layer of that name, from row `first` on.

        Raises: InputError for another name or shape; nothing changes.
        """
        if not 0 <= index < len(self) or name not in self._layout.places:
            raise InputError(f"layer {index} has no tensor {name!r}; expected one of its names")
        _, shape, _ = self._layout.places[name]
        if tensor.shape[1:] != shape[1:] or not 0 <= first <= shape[0] - tensor.shape[0]:
            raise InputError(
                f"{name} of layer {index} has the shape {list(shape)}; expected one that fits from "
                f"row {first} on, not {list(tensor.shape)}"
            )
        views = self._on_device[index]
        if index in self._order:
            buffer = self._buffer(index)
            self._copies.finish(buffer.filled)  # it or one before it may still read the block
            if buffer.layer == index:
                buffer.layer = None
            views = self._layout.views(self._blocks[index])
        views[name][first : first + tensor.shape[0]].copy_(tensor)

    def _buffer(self, layer: int) -> _Buffer:
        return self._buffers[self._order[layer] % _BUFFERS]

    def _copy(self, layer: int) -> None:
        """Start to copy a layer to its buffer, unless that has been done."""
        buffer = self._buffer(layer)
        if buffer.layer != layer:
            buffer.filled = self._copies.start(buffer.block, self._blocks[layer])
            buffer.layer = layer


def read_streamed(
    model: StoredModel,
    device: torch.device,
    dtype: torch.dtype,
    limit: int,
    progress: Progress = silent,
    *,
    prepare: Callable[[dict[str, Tensor]], dict[str, Tensor]] = dict,
) -> tuple[dict[str, Tensor], StreamedLayers]:
    """The weights that belong to no layer, on the device, and the layers within what they leave of
    the limit. Blocks are widened on the device for all of them.

    limit      bytes of weights on the device; while it reads, it takes one layer more, and what
               `weights.needed_bytes` says beside the weights
    prepare    makes of a layer's tensors, by their names within the layer, those that are kept

    Raises: as `weights.read_weights`; ModelError for a limit that is too small.
    """
    config = decoder_config(model)
    weights = each_weight(model, device, dtype, progress)
    others = dict(islice(weights, 2 if config.tied else 3))
    left = limit - sum(tensor.nbytes for tensor in others.values())

    def layers() -> Iterator[dict[str, Tensor]]:
        for _, group in groupby(weights, lambda one: one[0].split(".")[2]):
            yield prepare({name.split(".", 3)[3]: tensor for name, tensor in group})

    return others, StreamedLayers(layers(), count=config.layers, device=device, limit=left)


def _empty(size: int, device: torch.device) -> Tensor:
    return torch.empty(size, dtype=torch.uint8, device=device)


def _pinned(size: int, on_gpu: bool) -> Tensor:
    """Memory of the host, pinned where a GPU reads it.

    Raises: ModelError.
    """
    try:
        return torch.empty(size, dtype=torch.uint8, pin_memory=on_gpu)
    except RuntimeError as error:
        raise ModelError(
            f"{size} bytes of the host's memory cannot be pinned for a layer; expected more free "
            "memory, or a larger share of the weights on the device"
        ) from error
