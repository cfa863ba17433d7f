"""Drafts from the target's own features, with a small head (EAGLE)."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from foresay.arrays import user_path
from foresay.drafters.eagle.files import load_head, target_name
from foresay.drafters.eagle.head import EagleHead
from foresay.drafters.head.drafter import HeadDrafter, check_settings
from foresay.errors import InputError
from foresay.models.load import find_model
from foresay.models.weights import StoredModel
from foresay.verdict import Wants

__all__ = ["EagleDrafter"]


class EagleDrafter(HeadDrafter):
    """Drafts trees with a head that was trained for the target.

    head       a folder, as `foresay train eagle` writes it or as heads are published
    model      the target, as `foresay.models.load.find_model` finds it; None: the one that the head
               was trained for
    topk       nodes of a level that are expanded, and children of each
    depth      levels of a tree, at most
    shortlist  of how many of the head's likeliest tokens a sampled request drafts
    device     where the head runs
    dtype      of its weights, "float32" or "bfloat16"

    Raises: ModelError for a head that is damaged or does not fit the model, InputError.
    """

    def __init__(
        self,
        head: str | os.PathLike[str] | EagleHead,
        model: str | os.PathLike[str] | StoredModel | None = None,
        *,
        topk: int = 4,
        depth: int = 6,
        shortlist: int = 128,
        device: str = "cpu",
        dtype: str = "float32",
    ) -> None:
        made = check_settings(topk, depth, shortlist, dtype)
        if not isinstance(head, EagleHead):
            folder = user_path(head, "the head")
            model = _model_for(folder, model, device)
            head = load_head(folder, model, dtype=made, device=device)
        wants = Wants(hidden=True, hidden_layers=head.shape.layers)
        super().__init__(head, wants, topk=topk, depth=depth, shortlist=shortlist)
        self.head = head


def _model_for(folder: Path, model: Any, device: str) -> StoredModel:
    if isinstance(model, StoredModel):
        return model
    name = target_name(folder) if model is None else model
    if name is None:
        raise InputError(
            f"the head in '{folder}' does not say for which model it was trained; expected the "
            "model beside it: EagleDrafter(head, model)"
        )
    return find_model(name, device=device)
