"""A model over whole texts at once: what training a drafter needs of its target."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foresay.errors import UnsupportedModel
from foresay.models.load_transformers import read_model

__all__ = ["Teacher"]


class Teacher:
    """The model in a folder of safetensors, with transformers' own attention, on any device.

    context  tokens that a text may have
    config   the model's own

    Raises: ModelError for files that cannot be read, UnsupportedModel for a model that does not
    name its parts.
    """

    def __init__(self, folder: Path, *, device: str, dtype: torch.dtype) -> None:
        model: Any = read_model(folder, dtype)
        self._model = model.to(device).requires_grad_(False)
        self._model.train(False)
        self.config: Any = self._model.config.get_text_config()
        self.context = int(getattr(self.config, "max_position_embeddings", None) or 1 << 20)
        self._decoder = self._model.get_decoder()
        output = self._model.get_output_embeddings()
        if self._decoder is None or getattr(output, "weight", None) is None:
            raise UnsupportedModel(
                f"{self.config.model_type} does not name its decoder and its output embedding"
            )
        self.output: Tensor = output.weight
        self.embedding: Tensor = self._model.get_input_embeddings().weight

    def states(
        self, tokens: Tensor, is_text: Tensor, layers: tuple[int, ...] = ()
    ) -> tuple[Tensor, Tensor]:
        """The features [B, T, width] of texts int64[B, T] that are padded on the right, and their
        last hidden states: the inputs of `layers` side by side, or without layers the same twice.
        """
        with torch.no_grad():  # not inference mode: training needs them
            out = self._decoder(
                input_ids=tokens,
                attention_mask=is_text,
                use_cache=False,
                output_hidden_states=bool(layers),
            )
        last: Tensor = out.last_hidden_state
        if not layers:
            return last, last
        return torch.cat([out.hidden_states[layer] for layer in layers], -1), last
