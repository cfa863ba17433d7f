"""Log probabilities of the rollouts against the trainer's own, under TRL's names.

TRL computes its own as log softmax(logits / temperature) over the whole vocabulary. The rollouts'
are of the distribution that was sampled from, as TRL asks of vLLM (`processed_logprobs`): after
temperature, and also after top-k, top-p, min-p and penalties where they are on. With the defaults
(all off) the two are one law, and a difference is rounding, or an error. With them the difference
holds the probability of what was cut off.

What is logged is `foresay.rl.mismatch.difference` over all processes, on the trainer's device. A
value that is not finite is not refused: a process that raises would leave the others in `gather`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

__all__ = ["DIFFERENCE", "RATIO", "note_difference", "trainers_own"]

DIFFERENCE = "sampling/sampling_logp_difference"
RATIO = "sampling/importance_sampling_ratio"


def note_difference(trainer: Any, own: Tensor, rolled: Tensor, mask: Tensor) -> None:
    """Log how far the rollouts' log probabilities are from the trainer's own: the absolute
    difference, and the ratio of probabilities, trainer's by rollouts', before any truncation.

    own     [B, T], the trainer's
    rolled  [B, T]
    mask    [B, T], not 0 where the policy chose a token
    """
    apart = (own.detach().float() - rolled.to(own.device).float())[mask.bool()]
    if not apart.numel():  # all masked in this process; the others wait for it in `gather`
        apart = apart.new_zeros(1)
    ratio, size = apart.exp(), apart.abs()
    mode = "train" if trainer.model.training else "eval"
    metrics, gather = trainer._metrics[mode], trainer.accelerator.gather
    metrics[f"{DIFFERENCE}/mean"].append(gather(size.mean()).mean().item())
    metrics[f"{DIFFERENCE}/max"].append(gather(size.max()).max().item())
    metrics[f"{RATIO}/min"].append(gather(ratio.min()).min().item())
    metrics[f"{RATIO}/mean"].append(gather(ratio.mean()).mean().item())
    metrics[f"{RATIO}/max"].append(gather(ratio.max()).max().item())


def trainers_own(
    trainer: Any,
    prompts: Sequence[Sequence[int]],
    answers: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
) -> tuple[Tensor, Tensor, Tensor]:
    """The trainer's log probabilities of the answers, the given ones, and the mask of both: one
    more forward pass over them all, without dropout; the model is put back into its mode.
    """
    pad = trainer._tokenizer.pad_token_id
    width, longest = max(map(len, prompts)), max(map(len, answers))
    rows = [
        [*[pad] * (width - len(p)), *p, *a, *[pad] * (longest - len(a))]
        for p, a in zip(prompts, answers, strict=True)
    ]
    seen = [
        [*[0] * (width - len(p)), *[1] * (len(p) + len(a)), *[0] * (longest - len(a))]
        for p, a in zip(prompts, answers, strict=True)
    ]
    device, training = trainer.accelerator.device, trainer.model.training
    args = trainer.args
    size = args.per_device_train_batch_size if training else args.per_device_eval_batch_size
    attention = torch.tensor(seen, device=device)
    trainer.model.eval()
    try:
        with torch.no_grad():
            own = trainer._get_per_token_logps_and_entropies(
                trainer.model,
                torch.tensor(rows, device=device),
                attention,
                longest,
                batch_size=size,
            )[0]
    finally:
        trainer.model.train(training)
    rolled = [[*row, *[0.0] * (longest - len(row))] for row in logprobs]
    return own, torch.tensor(rolled), attention[:, width:]
