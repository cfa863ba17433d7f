"""The readable twin of `cpu/`: the same steps in pure torch, on any device, with no claim to speed.

It shows that the protocol is all that an engine needs. It is the reference that faster targets are
compared with, and the fallback where there is none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy as copy_of
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from foresay.arrays import Int32s
from foresay.errors import InputError
from foresay.models.attention import AttentionPass
from foresay.models.parts import kvs_of
from foresay.models.passes import forward_pass, named_layers
from foresay.models.replacing import kinds_of, tensors_of, to_replace
from foresay.models.rows import StepRows
from foresay.models.skipping import model_with
from foresay.models.target import Hidden, Outputs, SequenceInput
from foresay.models.visibility import Visible

__all__ = ["PlainKv", "PlainTarget"]


class PlainKv:
    """A `TextKv`: for each layer keys [heads, tokens, width] and values, then the step's rows."""

    def __init__(self, layers: int) -> None:
        self.length = 0
        self.rows = 0  # of the last step, behind the stored tokens
        self.layers: list[tuple[Tensor, Tensor] | None] = [None] * layers
        self.never: set[int] = set()  # layers that steps have skipped, and none has computed

    @property
    def capacity(self) -> int:
        return self.length

    def keep(self, path: Int32s) -> None:
        rows = [int(row) for row in path]
        if rows != sorted(set(rows)) or (rows and not 0 <= rows[0] <= rows[-1] < self.rows):
            raise InputError(f"the path is {rows}; expected rows of 0 to {self.rows - 1}, in order")
        self._take([*range(self.length), *(self.length + row for row in rows)])

    def cut(self, length: int) -> None:
        if not 0 <= length <= self.length:
            raise InputError(f"length is {length}; expected 0 to {self.length}")
        self._take(range(length))

    def copy_from(self, other: PlainKv, length: int) -> None:
        if self.length or not 0 <= length <= other.length:
            raise InputError(f"length is {length}; expected 0 to {other.length}, and an empty text")
        self.layers, self.rows = list(other.layers), other.rows
        self.length = other.length
        self._take(range(length))

    def check_integrity(self) -> None:
        for at, stored in enumerate(self.layers):
            if stored is None and at in self.never:
                continue
            size = 0 if stored is None else stored[0].shape[1]
            if size < self.length + self.rows:  # a step that failed may have left more
                raise RuntimeError(f"layer {at} has {size} tokens, not {self.length + self.rows}")

    def add(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """The stored tokens with the rows of a step behind them; the rows of the step before are
        gone."""
        stored = self.layers[layer]
        if stored is not None:
            keys = torch.cat([stored[0][:, : self.length], keys], 1)
            values = torch.cat([stored[1][:, : self.length], values], 1)
        self.layers[layer] = keys, values
        return keys, values

    def skip(self, layer: int, rows: int) -> None:
        """Of a layer that the step skips, the rows are zeros."""
        stored = self.layers[layer]
        if stored is None:
            self.never.add(layer)
        else:
            keys, values = (each.new_zeros(each.shape[0], rows, each.shape[2]) for each in stored)
            self.add(layer, keys, values)

    def _take(self, places: Sequence[int]) -> None:
        for at, stored in enumerate(self.layers):
            if stored is not None:
                chosen = torch.tensor(list(places), dtype=torch.long, device=stored[0].device)
                self.layers[at] = stored[0][:, chosen], stored[1][:, chosen]
        self.length, self.rows = len(places), 0


class PlainStep:
    """The attention of a step, text by text, with an attention mask for each.

    kept  the layers of the texts that the step has; (): all
    """

    def __init__(self, kvs: Sequence[PlainKv], rows: StepRows, kept: Sequence[int] = ()) -> None:
        if len({id(kv) for kv in kvs}) != len(kvs):
            raise InputError("a text is in the step twice; expected each once")
        self.kvs, self.offsets = kvs, rows.offsets.tolist()
        self.kept = kept or range(len(kvs[0].layers))
        self.positions: list[int] = []
        self.masks: list[Tensor] = []  # bool[rows, stored + rows]: a row's text and ancestors
        for kv, begin, end in zip(kvs, self.offsets[:-1], self.offsets[1:], strict=True):
            mask = torch.zeros(end - begin, kv.length + end - begin, dtype=torch.bool)
            mask[:, : kv.length] = True
            for row, parent in enumerate(rows.parents[begin:end].tolist()):
                if parent >= 0:
                    mask[row] = mask[parent]
                mask[row, kv.length + row] = True
                self.positions.append(int(mask[row].sum()) - 1)
            self.masks.append(mask)
            kv.rows = 0  # those of the step before are overwritten from now on

    def attend(
        self,
        layer: int,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        out: Tensor,
        scaling: float,
        window: int = 0,
        chunk: int = 0,
        softcap: float = 0.0,
        sinks: Any = None,
        threads: int = 1,
    ) -> None:
        """Write into `out` [1, T, Hq, Dv]; for the other shapes see `attention.attend`."""
        visibility = Visible(window, chunk)
        groups = query.shape[1] // key.shape[1]  # queries that share a head of keys and values
        for at, (kv, mask) in enumerate(zip(self.kvs, self.masks, strict=True)):
            begin, end = self.offsets[at], self.offsets[at + 1]
            keys, values = kv.add(self.kept[layer], key[0, :, begin:end], value[0, :, begin:end])
            if layer == len(self.kept) - 1:  # now all layers have them
                for skipped in set(range(len(kv.layers))).difference(self.kept):
                    kv.skip(skipped, end - begin)
                kv.rows = end - begin
            places = [*range(kv.length), *self.positions[begin:end]]
            firsts = torch.tensor([visibility.first(place) for place in self.positions[begin:end]])
            visible = (mask & (torch.tensor(places) >= firsts[:, None])).to(query.device)
            scores = query[0, :, begin:end] @ keys.repeat_interleave(groups, 0).mT * scaling
            if softcap:
                scores = softcap * torch.tanh(scores / softcap)
            scores = scores.float().masked_fill(~visible, -torch.inf)
            if sinks is not None:  # a key per head that is visible to all rows and has no value
                sink = torch.as_tensor(sinks, device=query.device)[:, None, None]
                scores = torch.cat([scores, sink.expand(-1, end - begin, 1)], -1)
            weights = scores.softmax(-1)[..., : keys.shape[1]].to(query.dtype)
            out[0, begin:end] = (weights @ values.repeat_interleave(groups, 0)).transpose(0, 1)


class PlainTarget:
    """A `Target`; `load_transformers.plain_target_of` makes and checks one.

    model   the model, its attention replaced; call it through the target only
    layers  the visibility of each layer
    shapes  heads of keys and values, width of a key, width of a value, for each layer
    kept    the layers of the texts that the model's layers are; (): all (see `skipping`)

    Mutates: only the texts given to `forward`, and the model by `replace_weights`.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        layers: Sequence[Visible],
        shapes: Sequence[tuple[int, int, int]],
        names: Mapping[str, Sequence[str]],
        *,
        context: int,
    ) -> None:
        self.model = model
        self.kept: Sequence[int] = ()
        self.dtype, self.device = model.dtype, model.device
        self.vocabulary = int(model.config.get_text_config().vocab_size)
        self.context = context
        self.layers = layers
        self.shapes = shapes
        self.exact: bool | None = None  # nothing is done to make it batch-invariant
        self.version = 0
        self.depth = named_layers(model)
        self.threads = 1
        self.identity: str | None = None
        self.memory: int | None = None
        self._names = names

    @property
    def bytes_per_token(self) -> int:
        return sum(heads * (key + value) for heads, key, value in self.shapes) * self.dtype.itemsize

    def open(self) -> PlainKv:
        return PlainKv(len(self.shapes))

    def open_filled(self, tokens: int) -> PlainKv:
        kv = self.open()
        kv.length = tokens
        kv.layers = [
            (
                torch.ones(heads, tokens, key, dtype=self.dtype, device=self.device),
                torch.ones(heads, tokens, value, dtype=self.dtype, device=self.device),
            )
            for heads, key, value in self.shapes
        ]
        return kv

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        rows = StepRows.of(parts)
        kvs = kvs_of(parts)
        step = PlainStep(kvs, rows, self.kept)
        positions = torch.tensor(np.array(step.positions), device=self.device)
        attention = AttentionPass(step, self.layers, 1)
        return forward_pass(self.model, rows, attention, positions, hidden=hidden)

    def only(self, kept: Sequence[int]) -> PlainTarget:
        """See `skipping.HasLayers`."""
        made = copy_of(self)
        made.kept, made.layers = list(kept), [self.layers[at] for at in kept]
        made.model = model_with(self.model, len(self.shapes), kept)
        return made

    def weights_changed(self) -> None:
        """See `InPlaceTarget`."""
        self.version += 1

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        return {name: tuple(tensor.shape) for name, tensor in tensors_of(self.model).items()}

    def replace_weights(self, weights: Mapping[str, Tensor], *, copy: bool = True) -> None:
        own = tensors_of(self.model)
        given = to_replace(weights, self._names, kinds_of(own))
        # All are made before the first is replaced, so that what fails changes nothing.
        made = {
            name: tensor.detach().to(self.device, own[name].dtype, copy=copy)
            for name, tensor in given.items()
        }
        try:
            for name, tensor in made.items():
                own[name].data = tensor
        finally:
            self.version += 1  # also after an interrupt: some of the weights are others now
