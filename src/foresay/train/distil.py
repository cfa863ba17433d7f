"""A small causal language model that learns to say what its target would say.

Its loss is the cross entropy to the target's distribution after every token of a text.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from foresay.files import whole_file
from foresay.models.small import SmallModel
from foresay.models.tables import ModelFacts
from foresay.models.teacher import Teacher
from foresay.models.weights.hashes import sha256_of
from foresay.train.lesson import Padded

__all__ = ["Measured", "loss_of", "measure", "save_model"]

_ROWS = 2048  # rows of logits over the whole vocabulary that are computed at once


@dataclass(frozen=True, slots=True, eq=False)
class _Rows:
    """Some rows of a batch.

    probs      the target's distribution [R, vocabulary]
    logits     the models' own, [R, vocabulary] each
    in_answer  bool[R]: whether the next token is one of the answer
    """

    probs: Tensor
    logits: list[Tensor]
    in_answer: Tensor


def _rows(
    models: Sequence[SmallModel],
    teacher: Teacher,
    batch: Padded,
    earlier: Sequence[SmallModel] = (),
) -> Iterator[_Rows]:
    """What target and models say after each token of the texts, some rows at a time; the logits of
    the `earlier` ones come last, and have no gradients."""
    last = teacher.states(batch.tokens, batch.is_text)[1]
    texts = {"input_ids": batch.tokens, "attention_mask": batch.is_text, "use_cache": False}
    wide = batch.tokens.device.type == "cuda"
    with torch.autocast("cuda", torch.bfloat16, enabled=wide):
        states = [model.model(**texts).last_hidden_state for model in models]
        with torch.no_grad():
            states += [model.model(**texts).last_hidden_state for model in earlier]
    outputs = [model.lm_head.weight for model in models]
    outputs += [model.lm_head.weight.detach() for model in earlier]
    text = batch.is_text.bool()
    answer = torch.zeros_like(text)
    answer.scatter_(1, batch.before, batch.valid)
    chosen = [part[text].split(_ROWS) for part in (last, answer, *states)]
    for target, in_answer, *own in zip(*chosen, strict=True):
        with torch.no_grad():
            probs = (target @ teacher.output.T).float().softmax(-1)
        with torch.autocast("cuda", torch.bfloat16, enabled=wide):
            logits = [part @ output.T for part, output in zip(own, outputs, strict=True)]
        yield _Rows(probs, logits, in_answer)


def loss_of(
    model: SmallModel,
    teacher: Teacher,
    batch: Padded,
    earlier: Sequence[SmallModel] = (),
    covered: float = 1.0,
) -> Tensor:
    """The cross entropy to the target, the mean over all tokens. Where one of the `earlier` models
    already has the target's likeliest token, a token counts `covered` times."""
    total, weight = torch.zeros(2, device=batch.tokens.device)
    for row in _rows([model], teacher, batch, earlier):
        own = row.logits[0].float().log_softmax(-1)
        losses = -(row.probs * own).sum(-1)
        weights = torch.ones_like(losses)
        if earlier:
            weights[_hits(row.probs, row.logits[1:])] = covered
        total, weight = total + (losses * weights).sum(), weight + weights.sum()
    mean: Tensor = total / weight
    return mean


@dataclass(frozen=True, slots=True)
class Measured:
    """On the answers of a target, for a list of models.

    loss       of the last one: its cross entropy to the target, per token
    agreement  of each model: how often its likeliest token is the target's
    coverage   of the first, the first two, and so on: how often one of them agrees
    overlap    of the last one: how often a token that it samples would be accepted at temperature 1
               under rule rejection
    """

    loss: float
    agreement: list[float]
    coverage: list[float]
    overlap: float


@torch.no_grad()
def measure(
    models: Sequence[SmallModel],
    teacher: Teacher,
    batches: Sequence[Padded],
) -> Measured:
    """How well models say what the target would say."""
    count = len(models)
    loss, overlap, rows = torch.zeros(3, dtype=torch.double)
    alone, together = torch.zeros(2, count, dtype=torch.double)
    for batch in batches:
        for found in _rows(models, teacher, batch):
            probs = found.probs[found.in_answer]
            logits = [own[found.in_answer].float() for own in found.logits]
            last = logits[-1].log_softmax(-1)
            loss -= (probs * last).sum().cpu()
            overlap += torch.minimum(probs, last.exp()).sum().cpu()
            rows += len(probs)
            for at in range(count):
                alone[at] += _hits(probs, logits[at : at + 1]).sum().cpu()
                together[at] += _hits(probs, logits[: at + 1]).sum().cpu()
    return Measured(
        float(loss / rows),
        (alone / rows).tolist(),
        (together / rows).tolist(),
        float(overlap / rows),
    )


def _hits(probs: Tensor, logits: Sequence[Tensor]) -> Tensor:
    """bool[R]: whether the target's likeliest token is the likeliest of one of the models."""
    likeliest = probs.argmax(-1)
    found = torch.zeros_like(likeliest, dtype=torch.bool)
    for own in logits:
        found |= own.argmax(-1) == likeliest
    return found


def save_model(model: SmallModel, folder: Path, target: str, facts: ModelFacts) -> tuple[str, int]:
    """Write config.json and model.safetensors in bfloat16: their sha256 and size. The tokenizer is
    the target's, of which only the hash is noted. A file appears under its name only when it is
    complete.

    Raises: OSError.
    """
    from safetensors.torch import save

    tensors = {
        name: weight.detach().to("cpu", torch.bfloat16).contiguous()
        for name, weight in model.named_parameters()
    }
    config: dict[str, Any] = model.config.to_diff_dict() | {
        "architectures": [type(model).__name__],
        "dtype": "bfloat16",
        "vocab_size": model.config.vocab_size,
        "foresay": {"target": {"name": target, "tokenizer_sha256": facts.tokenizer}},
    }
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(config, indent=1, sort_keys=True) + "\n"
    weights = folder / "model.safetensors"
    for path, content in (
        (weights, save(tensors, metadata={"format": "pt"})),
        (folder / "config.json", text.encode()),
    ):
        with whole_file(path) as part:
            part.write_bytes(content)
    return sha256_of(weights), weights.stat().st_size
