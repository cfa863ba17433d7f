"""A model over whole texts at once: what training a drafter needs of its target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import DynamicCache

from foresay.arrays import Int32s
from foresay.errors import InputError, UnsupportedModel
from foresay.models.load_transformers import read_model
from foresay.models.options import check_device_name

__all__ = ["Teacher", "check_device"]

_CLEAR = 32  # steps


def check_device(device: object) -> None:
    """Refuse what torch does not know, or does not find on this machine.

    Raises: InputError.
    """
    check_device_name(device)
    try:
        torch.empty(0, device=str(device))
    except (RuntimeError, AssertionError) as error:
        raise InputError(
            f"device is {device!r}, which torch cannot use here; expected cpu, or cuda on a "
            "machine with a GPU"
        ) from error


class Teacher:
    """The model in a folder of safetensors, with transformers' own attention, on any device: in
    bfloat16 on a GPU, in float32 elsewhere, where bfloat16 may be slow.

    context  tokens that a text may have
    config   the model's own

    Raises: ModelError for files that cannot be read, UnsupportedModel for a model that does not
    name its parts.
    """

    def __init__(self, folder: Path, *, device: str) -> None:
        dtype = torch.bfloat16 if device.startswith("cuda") else torch.float32
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

    @torch.inference_mode()
    def continued(
        self,
        texts: Sequence[Int32s],
        *,
        most: int,
        ends: Sequence[int],
        temperature: float,
    ) -> list[Int32s]:
        """Write on after each text until one of `ends`, which is part of it, at most `most` tokens.
        Sampled tokens depend on torch's random numbers, and on what else is in the batch."""
        device, count = self.embedding.device, len(texts)
        width = max(map(len, texts))
        given, mask = np.zeros((2, count, width), np.int64)
        for row, text in enumerate(texts):
            given[row, width - len(text) :], mask[row, width - len(text) :] = text, 1
        tokens, is_text = (torch.from_numpy(part).to(device) for part in (given, mask))
        written = torch.zeros(count, most, dtype=torch.int64, device=device)
        sizes = torch.full((count,), most, device=device)
        stops = torch.tensor(list(ends), device=device)
        rows = torch.arange(count, device=device)  # those that are still written
        cache = DynamicCache()
        for step in range(most):
            out = self._model(
                input_ids=tokens,
                attention_mask=is_text,
                position_ids=(is_text.cumsum(-1) - 1).clamp(min=0)[:, -tokens.shape[1] :],
                past_key_values=cache,
                use_cache=True,
                logits_to_keep=1,
            )
            logits = out.logits[:, -1].float()
            if temperature:  # the largest of p / e, e exponential, is a sample of p
                logits = (logits / temperature).softmax(-1) / torch.empty_like(
                    logits
                ).exponential_()
            tokens = logits.argmax(-1, keepdim=True)
            written[rows, step] = tokens[:, 0]
            ended = torch.isin(tokens[:, 0], stops) & (sizes[rows] == most)
            sizes[rows[ended]] = step + 1
            is_text = torch.cat([is_text, torch.ones_like(tokens)], -1)
            if step % _CLEAR == _CLEAR - 1:  # what has ended takes no more time
                left = (sizes[rows] == most).nonzero()[:, 0]
                if not len(left):
                    break
                cache.batch_select_indices(left)
                rows, tokens, is_text = rows[left], tokens[left], is_text[left]
        answers = written.cpu().numpy().astype(np.int32)
        return [answers[row, :size] for row, size in enumerate(sizes.tolist())]
