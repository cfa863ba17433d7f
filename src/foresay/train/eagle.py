"""Train a head for EagleDrafter on answers that its target wrote.

The target reads each text once more (teacher forcing): its hidden states are the features, and what
it says comes next is what the head has to learn. The head's loss is the cross entropy to the
target's distribution, over several steps on the head's own features (`unroll`), since that is how
it drafts. Its context begins with the answer, as in `EagleDrafter`.

The embedding and the output embedding are the target's and stay as they are, so a head is small.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from foresay.drafters.eagle.files import TargetName, save_head
from foresay.drafters.eagle.head import EagleHead, HeadShape
from foresay.errors import InputError
from foresay.models.progress import Progress, silent
from foresay.models.teacher import Teacher
from foresay.traces import Trace
from foresay.train.lesson import Padded, batches_of, frequent, open_lesson, padded
from foresay.train.loop import last_loss, update_all
from foresay.train.settings import CorpusFiles, check_settings, out_folder
from foresay.train.unroll import unrolled

__all__ = ["Trained", "train"]

_ROWS = 1024  # rows of logits over the whole vocabulary that are held at once


@dataclass(frozen=True, slots=True)
class Trained:
    """A training that is done.

    sha256         of the head's weights, and how many `bytes` they have
    loss           of the last tenth of the updates, per token and step
    held_out_loss  of answers that were not trained on
    agreement      how often the head's likeliest token is the target's, in each step of a chain
                   along these answers
    coverage       the share of the corpus's tokens that the head can draft
    """

    out: str
    target: str
    sha256: str
    bytes: int
    updates: int
    texts: int
    loss: float
    held_out_loss: float
    agreement: list[float]
    drafted: int
    coverage: float
    seconds: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def train(
    target: str | os.PathLike[str],
    corpus: CorpusFiles,
    out: str | os.PathLike[str],
    *,
    device: str = "cpu",
    epochs: int = 20,
    tokens: int = 16_384,
    learning_rate: float = 1e-3,
    steps: int = 5,
    decay: float = 0.8,
    drafted: int = 8192,
    intermediate: int | None = None,
    layers: Sequence[int] = (),
    held_out: float = 0.05,
    longest: int = 1024,
    seed: int = 0,
    progress: Progress = silent,
) -> Trained:
    """Train a head and write it to a folder.

    steps         on the head's own features; the loss of each counts `decay` times the one before
    drafted       how many tokens it can draft, the most frequent of the corpus
    intermediate  width of its MLP; None: the target's
    layers        the target's layers whose inputs are the features; (): its last hidden state
    For the others see `foresay.train.model.train`.

    Raises: InputError, ModelError, TraceError, OSError.
    """
    began = perf_counter()
    settings = check_settings(
        epochs=epochs,
        tokens=tokens,
        steps=steps,
        drafted=drafted,
        longest=longest,
        learning_rate=learning_rate,
        decay=decay,
        held_out=held_out,
        seed=seed,
    )
    if intermediate is not None:
        check_settings(intermediate=intermediate)
    settings |= {"intermediate": intermediate, "layers": [*layers], "target": str(target)}
    folder = out_folder(out, "LlamaForCausalLMEagle3")
    lesson = open_lesson(target, corpus, settings, device=device, progress=progress)
    teacher, facts = lesson.teacher, lesson.facts
    ids, coverage = frequent(lesson.traces, facts.vocabulary, min(drafted, facts.vocabulary))
    head = _new_head(teacher, ids, tuple(layers), intermediate, seed).to(device)

    run = _Training(head, teacher, settings, device)
    folder.mkdir(parents=True, exist_ok=True)
    unfinished = folder / "training.safetensors"
    losses = update_all(
        head, lesson.learned, run.loss, settings, unfinished, progress, prepare=run.scale_output
    )
    held_out_loss, agreement = run.measure(lesson.measured)
    sha256 = save_head(head, folder, TargetName(lesson.target, facts))
    unfinished.unlink(missing_ok=True)
    return Trained(
        str(folder),
        lesson.target,
        sha256,
        (folder / "model.safetensors").stat().st_size,
        len(losses),
        len(lesson.learned),
        last_loss(losses),
        held_out_loss,
        agreement,
        len(ids),
        coverage,
        perf_counter() - began,
    )


class _Training:
    """What the head learns, and how well."""

    def __init__(
        self, head: EagleHead, teacher: Teacher, settings: dict[str, Any], device: str
    ) -> None:
        self.head, self.teacher = head, teacher
        self.settings, self.device = settings, device

    def loss(self, traces: Sequence[Trace]) -> Tensor:
        """Of a batch, per token and step."""
        return self._loss(traces, learn=True)[0]

    @torch.no_grad()
    def measure(self, traces: Sequence[Trace]) -> tuple[float, list[float]]:
        """The loss on other answers, and the agreement in each step."""
        losses, hits, rows = 0.0, *torch.zeros(2, self.settings["steps"])
        for batch in batches_of(traces, self.settings["tokens"], np.random.default_rng(0)):
            loss, hit, row = self._loss(batch, learn=False)
            losses += float(loss) * float(row[0])
            hits, rows = hits + hit.cpu(), rows + row.cpu()
        return losses / float(rows[0]), (hits / rows.clamp(min=1)).tolist()

    def _loss(self, traces: Sequence[Trace], *, learn: bool) -> tuple[Tensor, Tensor, Tensor]:
        """The loss per token and step, and in each step hits and rows."""
        head, steps = self.head, self.settings["steps"]
        batch = padded(traces, self.device)
        features, last = self.teacher.states(batch.tokens, batch.is_text, head.shape.layers)
        features, ids, last = _pairs(batch, features, last)
        valid, places = batch.valid, torch.arange(batch.valid.shape[1], device=self.device)
        probs, likeliest = self._probs(last, valid)
        wide = self.device.startswith("cuda")
        with torch.set_grad_enabled(learn), torch.autocast("cuda", torch.bfloat16, enabled=wide):
            total, weight, hits, rows = torch.zeros((), device=self.device), 0.0, [], []
            for step, output in enumerate(unrolled(head, features, ids, steps)):
                counted = valid & (places >= step)
                logits = head.logits(output[counted])
                wanted = probs[counted[valid]]
                if len(wanted):
                    losses = -(wanted.float() * logits.log_softmax(-1)).sum(-1)
                    share = self.settings["decay"] ** step
                    total, weight = total + share * losses.mean(), weight + share
                hits.append((head.tokens[logits.argmax(-1)] == likeliest[counted[valid]]).sum())
                rows.append(counted.sum())
        return total / max(weight, 1e-9), torch.stack(hits), torch.stack(rows)

    @torch.no_grad()
    def _probs(self, last: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """The target's probabilities of the tokens that the head drafts, for each valid row, and
        its likeliest token of all."""
        probs, likeliest = [], []
        for rows in torch.split(last[valid], _ROWS):
            prob = (rows @ self.teacher.output.T).float().softmax(-1)
            probs.append(prob[:, self.head.tokens].to(rows.dtype))
            likeliest.append(prob.argmax(-1))
        return torch.cat(probs), torch.cat(likeliest)

    @torch.no_grad()
    def scale_output(self, traces: Sequence[Trace]) -> None:
        """Begin with outputs of the size of the target's own last hidden states."""
        batch = padded(traces, self.device)
        last = self.teacher.states(batch.tokens, batch.is_text)[1]
        rows = last[batch.is_text.bool()].float()
        self.head.norm.weight.copy_(rows.square().mean(0).sqrt())


def _pairs(batch: Padded, features: Tensor, last: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """For each token of an answer the feature before it, the token, and the last hidden state after
    it, which says what the target expects next."""
    after = batch.before + batch.valid
    return _taken(features, batch.before), batch.tokens.gather(1, after), _taken(last, after)


def _taken(states: Tensor, places: Tensor) -> Tensor:
    return states.gather(1, places[..., None].expand(-1, -1, states.shape[2]))


def _new_head(
    teacher: Teacher, ids: Tensor, layers: tuple[int, ...], intermediate: int | None, seed: int
) -> EagleHead:
    config = teacher.config
    heads, hidden = int(config.num_attention_heads), int(config.hidden_size)
    depth = int(config.num_hidden_layers)
    if any(type(layer) is not int or not 0 <= layer < depth for layer in layers):
        raise InputError(f"layers are {list(layers)}; expected numbers from 0 to {depth - 1}")
    shape = HeadShape(
        features=hidden * max(len(layers), 1),
        hidden=hidden,
        intermediate=intermediate or int(config.intermediate_size),
        heads=heads,
        kv_heads=int(getattr(config, "num_key_value_heads", None) or heads),
        head_dim=int(getattr(config, "head_dim", None) or hidden // heads),
        vocabulary=len(teacher.embedding),
        drafted=len(ids),
        layers=layers,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        head = EagleHead(shape)
    head.tokens = ids
    head.embedding = teacher.embedding.detach()
    head.output = teacher.output.detach()[ids.to(teacher.output.device)].float()
    return head
