"""The target on processors: a model of transformers over the core's attention, keys and values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy as copy_of

import torch
from torch import Tensor
from transformers import PreTrainedModel

from foresay._core import AttentionStep, Kv
from foresay.models.attention import AttentionPass
from foresay.models.cpu.decoder_layers import CoreDecoderLayer
from foresay.models.cpu.kv import bytes_per_token, filled_kv
from foresay.models.cpu.linears import PackedLinear, prefilling
from foresay.models.parts import kvs_of
from foresay.models.passes import forward_pass, named_layers
from foresay.models.replacing import kinds_of, tensors_of, to_replace
from foresay.models.rows import StepRows
from foresay.models.skipping import model_with
from foresay.models.target import Hidden, Outputs, SequenceInput
from foresay.models.visibility import Visible

__all__ = ["CpuTarget"]


class CpuTarget:
    """A `Target`; `load_transformers.target_of` makes and checks one.

    model   the model, its layers replaced by the core's; call it through the target only
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
        threads: int,
    ) -> None:
        self.model = model
        self.dtype: torch.dtype = next(model.parameters()).dtype
        self.vocabulary = int(model.config.get_text_config().vocab_size)
        self.context = context
        self.layers = layers
        self.shapes = shapes
        self.threads = threads
        self.kept: Sequence[int] = ()
        self.exact: bool | None = None
        self.version = 0
        self.depth = named_layers(model)
        self.identity: str | None = None
        self.memory: int | None = None
        self._names = names

    @property
    def bytes_per_token(self) -> int:
        """With padding to whole vectors."""
        return bytes_per_token(self.open())

    def open(self) -> Kv:
        return Kv(self.shapes, str(self.dtype).removeprefix("torch."))

    def open_filled(self, tokens: int) -> Kv:
        return filled_kv(self.open(), self.shapes, self.dtype, tokens)

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        rows = StepRows.of(parts)
        kvs = kvs_of(parts)
        step = AttentionStep(kvs, rows.offsets, rows.parents, kept=self.kept)
        attention = AttentionPass(step, self.layers, self.threads)
        positions = torch.from_numpy(step.positions)
        with prefilling(torch.from_numpy(rows.prefill)):
            return forward_pass(self.model, rows, attention, positions, hidden=hidden)

    def only(self, kept: Sequence[int]) -> CpuTarget:
        """See `skipping.HasLayers`."""
        made = copy_of(self)
        made.kept, made.layers = list(kept), [self.layers[at] for at in kept]
        made.model = model_with(self.model, len(self.shapes), kept)
        return made

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        kinds = kinds_of(tensors_of(self.model)) | _packed_kinds(self._packed())
        return {
            name: tuple(kinds[alias][0])
            for name, aliases in self._names.items()
            for alias in [next((one for one in aliases if one in kinds), None)]
            if alias is not None
        }

    def replace_weights(self, weights: Mapping[str, Tensor], *, copy: bool = True) -> None:
        packed, own = self._packed(), tensors_of(self.model)
        given = to_replace(weights, self._names, kinds_of(own) | _packed_kinds(packed))
        # All of it is made before anything is replaced, so that what fails changes nothing.
        layers = {
            path: _laid_out(layer, given[f"{path}.weight"], given.get(f"{path}.bias"), copy=copy)
            for path, layer in packed.items()
            if f"{path}.weight" in given
        }
        values = {
            name: given[name].detach().to("cpu", own[name].dtype, copy=copy).contiguous()
            for name in given.keys() & own.keys()
        }
        try:
            for path, made in layers.items():
                self.model.set_submodule(path, made)
            for name, value in values.items():
                own[name].data = value
            for module in self.model.modules():
                if isinstance(module, CoreDecoderLayer):
                    module.refresh()
        finally:
            self.version += 1  # also after an interrupt: some of the weights are others now

    def _packed(self) -> dict[str, PackedLinear]:
        return {
            path: module
            for path, module in self.model.named_modules()
            if isinstance(module, PackedLinear)
        }


def _packed_kinds(packed: Mapping[str, PackedLinear]) -> dict[str, tuple[torch.Size, torch.dtype]]:
    """Of the weights and biases, as the layers that were packed had them."""
    kinds = {f"{path}.weight": (_shape(layer), layer.dtype) for path, layer in packed.items()}
    for path, layer in packed.items():
        if layer.bias is not None:
            kinds[f"{path}.bias"] = layer.bias.shape, layer.bias.dtype
    return kinds


def _laid_out(
    old: PackedLinear, weight: Tensor, bias: Tensor | None, *, copy: bool
) -> PackedLinear:
    bias = old.bias if bias is None else bias.detach().to("cpu", old.dtype, copy=copy)
    weight = weight.detach().to("cpu", old.dtype)
    made = PackedLinear(weight, bias, transposed=old.transposed)
    made.decode, made.prefill = old.decode, old.prefill
    return made


def _shape(layer: PackedLinear) -> torch.Size:
    shape = (layer.out_features, layer.in_features)
    return torch.Size(reversed(shape) if layer.transposed else shape)
