"""RMS norms in one pass: transformers' own take eight small operations each, and a model has two
in every layer.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from foresay import _core

__all__ = ["CoreNorm", "fuse_norms"]


class CoreNorm(nn.Module):
    """A norm that the core computes, batch-invariant.

    Raises: InputError for rows of another width or dtype.
    """

    def __init__(self, weight: Tensor, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        rows = x.contiguous()
        out = torch.empty_like(rows)
        _core.rms_norm(rows, self.weight.detach(), self.eps, out)
        return out


def fuse_norms(model: nn.Module) -> int:
    """Replace the model's norms by the core's where they compute the same; how many."""
    found = 0
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            fused = _fused(child)
            if fused is not None:
                setattr(parent, name, fused)
                found += 1
    return found


@torch.inference_mode()
def _fused(norm: nn.Module) -> CoreNorm | None:
    """None for what is no such norm, or scales in another way (Gemma's add 1 to the weight)."""
    weight, eps = getattr(norm, "weight", None), getattr(norm, "variance_epsilon", None)
    if not type(norm).__name__.endswith("RMSNorm") or not isinstance(eps, float):
        return None
    if not isinstance(weight, Tensor) or weight.ndim != 1 or weight.dtype != torch.bfloat16:
        return None
    fused = CoreNorm(weight, eps)
    x = torch.randn(4, len(weight), generator=torch.Generator().manual_seed(2)).to(weight.dtype)
    given, wanted = fused(x).float(), norm(x).float()
    # Of the two roundings to bfloat16 either may fall to the other side.
    same = (given - wanted).abs() <= 2**-6 * wanted.abs() + 1e-30
    return fused if bool(same.all()) and torch.equal(given.isnan(), wanted.isnan()) else None
