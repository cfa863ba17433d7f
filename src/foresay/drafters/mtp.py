"""Drafts with the multi-token-prediction (MTP) module that some models ship.

The module belongs to the target: it is read from the target's own files, and shares its embeddings.
It was trained to predict one token beyond the target's. Its output is a hidden state like the
target's own, so it is applied again, to its own output, for the tokens after that.
"""

from __future__ import annotations

import os
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding, linear

from foresay.drafters.head.drafter import HeadDrafter, check_settings
from foresay.drafters.head.head import Kept
from foresay.errors import ModelError
from foresay.models.load import find_model
from foresay.models.mtp import MtpModule, read_mtp
from foresay.models.tables import Tables, tables_of
from foresay.models.weights import StoredModel
from foresay.verdict import Wants

__all__ = ["MtpDrafter", "MtpHead"]


class MtpHead:
    """An MTP module with the tables of its model, as a head."""

    def __init__(self, module: MtpModule, tables: Tables) -> None:
        self.module = module
        self.window = module.window
        weight: Tensor = module.layer.eh_proj.weight
        self._weight = weight
        self._embedding = tables.embedding.to(weight.device)  # large: as it is stored
        self._output = tables.output.to(weight.device, weight.dtype)
        self.tokens = torch.arange(len(self._output), device=weight.device)
        self._kept = self._trial()

    @property
    def width(self) -> int:
        """Of the target's features."""
        return int(self._weight.shape[0])

    @property
    def vocabulary(self) -> int:
        """Tokens that it can read."""
        return len(self._embedding)

    def rows(self, features: Tensor) -> Tensor:
        """The target's features as they are."""
        return features.to(self._weight.dtype)

    def room(self, texts: int, places: int) -> Kept:
        """For `places` rows of each text."""
        keys, values = (
            self._weight.new_zeros(texts, heads, places, width) for heads, width in self._kept
        )
        return Kept(keys, values)

    def read(
        self, rows: Tensor, tokens: Tensor, positions: Tensor, kept: Any, visible: Tensor
    ) -> Tensor:
        """The output after rows with their tokens and positions, int64[B, R]."""
        embedded = embedding(tokens, self._embedding).to(rows.dtype)
        module = self.module
        output: Tensor = module.layer(
            embedded,
            rows,
            position_embeddings=module.rotary(embedded, position_ids=positions, **module.rope),
            attention_mask=visible,
            position_ids=positions,
            past_key_values=kept,
        )
        return output

    def logits(self, rows: Tensor) -> Tensor:
        """Of all tokens, as float32."""
        return linear(rows, self._output).float()

    @torch.inference_mode()
    def _trial(self) -> list[tuple[int, int]]:
        """Heads and width of what the layer keeps of a row: keys and values, or what it makes them
        of."""
        noted = _Noted()
        zero = torch.zeros(1, 1, dtype=torch.int64, device=self._weight.device)
        rows = self._weight.new_zeros(1, 1, self.width)
        self.read(rows, zero, zero, noted, torch.ones_like(zero, dtype=torch.bool)[None, None])
        return noted.sizes


class _Noted:
    """A cache that notes what it is given."""

    def update(self, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
        self.sizes = [(rows.shape[1], rows.shape[3]) for rows in (key, value)]
        return key, value


class MtpDrafter(HeadDrafter):
    """Drafts trees with the target's own MTP module.

    model      the target, as `foresay.models.load.find_model` finds it: a folder of safetensors of
               a family in `foresay.models.mtp.FAMILIES`
    topk       nodes of a level that are expanded, and children of each; 1: chains
    depth      levels of a tree, at most
    shortlist  of how many of the likeliest tokens a sampled request drafts
    device     where the module runs
    dtype      of its weights, "float32" or "bfloat16"

    Raises: ModelError for a model without the module, or whose module is damaged or does not fit;
    UnsupportedModel for another family; InputError.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | StoredModel,
        *,
        topk: int = 4,
        depth: int = 4,
        shortlist: int = 128,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        made = check_settings(topk, depth, shortlist, dtype)
        found = model if isinstance(model, StoredModel) else find_model(model, device=device)
        module, tables = read_mtp(found, dtype=made, device=device), tables_of(found)
        width = module.layer.eh_proj.weight.shape[0]
        for name, table in (("embedding", tables.embedding), ("output", tables.output)):
            if table.ndim != 2 or table.shape[1] != width or len(table) != len(tables.embedding):
                raise ModelError(
                    f"the {name} of the model in '{found.folder}' has the shape "
                    f"{list(table.shape)}; expected [{len(tables.embedding)}, {width}], as its MTP "
                    "head has it"
                )
        self.head = MtpHead(module, tables)
        super().__init__(self.head, Wants(hidden=True), topk=topk, depth=depth, shortlist=shortlist)
