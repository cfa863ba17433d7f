"""The target on a GPU: a dense decoder, run by our kernels over the weights as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from copy import copy as copy_of
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay._core import PagedStep, PagedText, PagePool, keep_together
from foresay.arrays import Int32s
from foresay.errors import InputError
from foresay.models.gpu.attention import BLOCK, least_items, tile_rows
from foresay.models.gpu.decoder import Decoder
from foresay.models.gpu.elementwise import copy_slots
from foresay.models.gpu.graphs import ROW_SIZES, Graphs, item_size, row_size
from foresay.models.gpu.inputs import Staging, StepInputs
from foresay.models.gpu.workspace import Sizes, Workspace, WorkspaceMemory
from foresay.models.parts import kvs_of
from foresay.models.replacing import kinds_of, to_replace
from foresay.models.rows import StepRows
from foresay.models.target import Hidden, Outputs, SequenceInput
from foresay.models.visibility import Visible

__all__ = ["GpuTarget"]

_NUMBERS = 1 << 21  # int32 of a step's inputs: 4 million tokens in pages, beside their rows
_LOGITS = 256  # rows of a step whose logits are a part of its graph, at most


@dataclass(frozen=True, slots=True, eq=False)
class _StepSize:
    """What steps of one size share: see `GpuTarget._size_for`. `run` starts their kernels."""

    key: Hashable
    inputs: StepInputs
    space: Workspace
    logits: Tensor | None
    run: Callable[[], None]


class GpuTarget:
    """A `Target`; `load.load_gpu` and `load.make_target` make and check one. `forward` returns
    before the device has finished: who reads the logits waits for it.

    decoder   the kernels' arguments
    tensors   the weights, by all of their names
    pages     of keys and values, for all texts together
    kept      the numbers of the layers that run (see `skipping`)
    memory    bytes of these pages

    Only the texts given to `forward` are changed, and the weights by `replace_weights`.
    """

    def __init__(
        self,
        decoder: Decoder,
        tensors: Mapping[str, Tensor],
        names: Mapping[str, Sequence[str]],
        *,
        pages: int,
        identity: str | None = None,
    ) -> None:
        config, heads = decoder.config, decoder.heads
        self.decoder = decoder
        self.dtype, self.device = decoder.norm.dtype, decoder.norm.device
        self.vocabulary = config.vocabulary
        self.context = config.context
        self.shapes = [(heads.keys, heads.padded, heads.padded)] * config.layers
        self.kept: Sequence[int] = range(config.layers)
        self.exact: bool | None = None
        self.version = 0
        self.depth = config.layers
        self.threads = 1
        self.row_sizes = ROW_SIZES
        self.identity = identity
        self.model: Any = None  # of transformers, if the weights are its own
        self._tensors, self._names = tensors, names
        self._pool = PagePool(pages)
        self._numbers = torch.zeros(
            (config.layers, 2, pages + 1, heads.keys, BLOCK, heads.padded),
            dtype=self.dtype,
            device=self.device,
        )
        self._staging = Staging(_NUMBERS, self.device)
        self._space = WorkspaceMemory(
            Sizes(config.width, config.inner, decoder.largest_parts(), config.vocabulary, heads),
            self.dtype,
            self.device,
        )
        whole = decoder.streamed is None  # copies of layers are not captured
        self._graphs = Graphs(enabled=whole and self.device.type == "cuda")
        self._sizes: dict[Hashable, _StepSize] = {}
        self._tile_rows, self._least_items = tile_rows(heads), least_items(heads, self.device)
        self._index = self.device.index if self.device.type == "cuda" else None
        self._grown = 0

    @property
    def bytes_per_token(self) -> int:
        heads, key, value = self.shapes[0]
        return len(self.shapes) * heads * (key + value) * int(self.dtype.itemsize)

    @property
    def memory(self) -> int:
        size: int = self._pool.pages * BLOCK * self.bytes_per_token
        return size

    @property
    def layers(self) -> Sequence[Visible]:
        """The visibility of each layer."""
        return self.decoder.visible

    @layers.setter
    def layers(self, visible: Sequence[Visible]) -> None:
        self.decoder.visible = visible
        self._graphs.drop()

    def open(self) -> PagedText:
        return PagedText(self._pool)

    def open_filled(self, tokens: int) -> PagedText:
        kv = self.open()
        kv.begin_step(tokens)
        kv.end_step(tokens)
        kv.keep(np.arange(tokens, dtype=np.int32))
        pages = torch.from_numpy(np.unique(kv.slots() // BLOCK).astype(np.int64)).to(self.device)
        made = torch.rand(self._numbers.shape[3:], dtype=torch.float32, device=self.device)
        self._numbers[:, :, pages] = made.to(self.dtype)
        return kv

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        return self._forward(parts, hidden, None)

    def forward_next(self, parts: Sequence[SequenceInput], tokens: Tensor, /) -> Outputs:
        """See `target.RunsAhead`."""
        return self._forward(parts, False, tokens)

    def _forward(
        self, parts: Sequence[SequenceInput], hidden: Hidden, tokens: Tensor | None
    ) -> Outputs:
        """`tokens`: of the rows, where they are on the device only."""
        rows = StepRows.of(parts)
        layers = _checked(hidden, self.depth)
        kvs: Any = tuple(kvs_of(parts))
        step = PagedStep(kvs, rows.offsets, rows.parents, self._tile_rows, self._least_items)
        in_order = len(rows.needed) == step.rows and not rows.prefill.any()
        with self._here(), torch.inference_mode():
            self._copy()
            size = self._size_for(step, layers, with_logits=in_order)
            capacity = size.inputs.row_capacity, size.inputs.item_capacity
            self._staging.send(step, rows.tokens, *capacity)
            if tokens is not None:
                size.inputs.tokens[: step.rows].copy_(tokens.clamp(min=0))
            self._graphs.run(size.key, size.inputs.row_capacity, size.run)
            step.end()
            return self._outputs(size, step.rows, None if in_order else rows.needed, hidden)

    def keep_together(self, kvs: Sequence[Any], rows: Int32s, offsets: Int32s, /) -> None:
        """See `target.KeepsTogether`."""
        keep_together(tuple(kvs), rows, offsets)

    def _size_for(self, step: PagedStep, layers: Sequence[int], *, with_logits: bool) -> _StepSize:
        """The size that a step is filled up to."""
        rows, items = row_size(step.rows), item_size(step.items)
        with_logits = with_logits and rows <= _LOGITS
        key = rows, items, tuple(layers), tuple(self.kept), with_logits, step.by_span
        self._space.reserve(rows, step.results, len(layers))
        if self._space.grown != self._grown:
            self._graphs.drop()
            self._sizes.clear()
            self._grown = self._space.grown
        found = self._sizes.get(key)
        if found is None:
            inputs = StepInputs.of(self._staging.buffer, rows, items, step.by_span)
            space, kept = self._space.views(rows, len(layers)), list(self.kept)
            logits = self._space.logits(rows) if with_logits else None

            def run() -> None:
                self.decoder.run(inputs, space, self._numbers, kept, layers)
                if logits is not None:
                    self.decoder.write_logits(space.normed, logits)

            found = self._sizes[key] = _StepSize(key, inputs, space, logits, run)
        return found

    def _outputs(
        self, size: _StepSize, rows: int, needed: NDArray[np.int64] | None, hidden: Hidden
    ) -> Outputs:
        """Of these rows, in their order; None: of all. Copies: the next step writes over them."""
        space, states = size.space, list[Tensor]()
        if needed is None:
            if hidden is not False:
                given = [space.normed] if hidden is True else space.hidden
                states = [each[:rows].clone() for each in given]
            if size.logits is not None:
                logits = size.logits[:rows].clone()
            else:
                logits = self.decoder.logits(space.normed[:rows])
        else:
            picked = self._sent(needed)
            last, *inner = (each.index_select(0, picked) for each in [space.normed, *space.hidden])
            logits, states = self.decoder.logits(last), [last] if hidden is True else inner
        return Outputs(logits, torch.cat(states, 1) if states else None)

    def _copy(self) -> None:
        """Move the keys and values of tokens that were kept, and copy those of shared prefixes."""
        while (batch := self._pool.next_copies()) is not None:
            try:
                self._copy_slots(*batch)
            except BaseException:
                # Whether they were copied is unknown, and twice would be wrong as well.
                self.version += 1
                raise
            finally:
                self._pool.copied()

    def _copy_slots(self, *batch: Int32s) -> None:
        """From, to, and the offsets of groups."""
        layers, _, _, heads, _, width = self._numbers.shape
        sent = self._sent(np.concatenate(batch))
        source, target, offsets = sent.split([len(each) for each in batch])
        copy_slots[(len(offsets) - 1, 2 * layers, heads)](
            self._numbers, source, target, offsets, self._numbers.stride(1), heads,
            block=BLOCK, width=width, many=16, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip

    def _sent(self, array: NDArray[Any]) -> Tensor:
        """On the device, without a wait for what it computes."""
        tensor = torch.from_numpy(array)
        on_gpu = self.device.type == "cuda"
        return (tensor.pin_memory() if on_gpu else tensor).to(self.device, non_blocking=True)

    def _here(self) -> AbstractContextManager[Any]:
        """Triton starts kernels on the current device."""
        if self._index is None or self._index == torch.cuda.current_device():
            return nullcontext()
        return torch.cuda.device(self._index)

    def only(self, kept: Sequence[int]) -> GpuTarget:
        """See `skipping.HasLayers`."""
        made = copy_of(self)
        made.kept = [self.kept[at] for at in kept]
        return made

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in self._tensors.items()}

    def weights_changed(self) -> None:
        """The owner of the weights has written into them: what was computed before is of no use."""
        self.version += 1

    def replace_weights(self, weights: Mapping[str, Tensor], *, copy: bool = True) -> None:
        given = to_replace(weights, self._names, kinds_of(self._tensors))
        # All are here before the first is written, so that what fails changes nothing.
        made = {
            name: tensor.detach().to(self.device, self._tensors[name].dtype)
            for name, tensor in given.items()
        }
        try:
            with torch.inference_mode():
                for name, tensor in made.items():
                    self._tensors[name].copy_(tensor)
        finally:
            self.version += 1  # also after an interrupt: some of the weights are others now


def _checked(hidden: Hidden, depth: int) -> tuple[int, ...]:
    """The layers whose inputs are asked for."""
    if isinstance(hidden, bool):
        return ()
    if not all(0 <= number < depth for number in hidden):
        raise InputError(
            f"hidden states of layers {list(hidden)} are asked for; expected 0 to {depth - 1}"
        )
    return hidden
