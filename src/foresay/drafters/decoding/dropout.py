"""MC dropout: a model's logits over several passes, each without some of its last hidden values.

Each pass is one thinned model: the same values are left out in all of its rows, and always the
same ones in pass i. So what is found for a text does not depend on other texts or on earlier calls.
Dropout stands before the output layer alone: a pass costs one product with the output's weights
and nothing of the layers below.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from foresay.arrays import check_whole
from foresay.errors import InputError

__all__ = ["Dropout"]

_SEED = 1


@dataclass(frozen=True, eq=False)
class Dropout:
    """Passes of one model.

    output   [vocabulary, width]: what the logits are computed with (`models.tables`)
    passes   how many, 2 or more
    rate     the share of values that are left out; the others are scaled up

    Raises: InputError when constructed.
    """

    output: Tensor
    passes: int = 8
    rate: float = 0.1
    _masks: Tensor = field(init=False, repr=False)

    def __post_init__(self) -> None:
        check_whole(self.passes, "passes", 2, 256)
        if not 0 < self.rate < 1:
            raise InputError(f"rate is {self.rate!r}; expected more than 0 and less than 1")
        if self.output.ndim != 2:
            raise InputError(
                f"output has the shape {list(self.output.shape)}; expected [vocabulary, width]"
            )
        drawn = torch.rand(
            self.passes, self.output.shape[1], generator=torch.Generator().manual_seed(_SEED)
        )
        masks = (drawn >= self.rate).float() / (1 - self.rate)
        object.__setattr__(self, "_masks", masks)
        object.__setattr__(self, "output", self.output.float())

    def logits(self, hidden: Tensor) -> Tensor:
        """[passes, R, vocabulary] for the last hidden states [R, width].

        Raises: InputError for another width.
        """
        if hidden.shape[-1] != self.output.shape[1]:
            raise InputError(
                f"the hidden states have {hidden.shape[-1]} values and the output's rows "
                f"{self.output.shape[1]}; expected the tables of the model that drafts"
            )
        thinned = hidden.float().cpu()[None] * self._masks[:, None]
        return thinned @ self.output.T
