"""Assisted generation with foresay's candidates: the same text, and the same law."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from foresay.drafters import SuffixDrafter
from foresay.errors import InputError
from foresay.integrations.transformers import SuffixCandidates, assisted
from integrations.generating import make, padded
from models import zoo


class _Counted(SuffixCandidates):
    steps = 0

    def get_candidates(self, input_ids: Tensor, **given: Any) -> Any:
        self.steps += 1
        found, law = super().get_candidates(input_ids, **given)
        assert law is None  # so that transformers draws from its own law at every place
        return found, law


@pytest.mark.parametrize(
    ("name", "chain"),
    [("llama", True), ("llama", False), ("gpt2", True), ("qwen3_moe", False), ("olmo2", True)],
)
def test_assisted_is_greedy_and_faster(name: str, chain: bool) -> None:
    model, ids = make(name), padded(30)["input_ids"]
    asked: dict[str, Any] = {"do_sample": False, "max_new_tokens": 120}
    plain = model.generate(ids, **asked)
    candidates = _Counted(drafter=SuffixDrafter(chain=chain))
    steps = []
    for _ in range(2):  # the second time all of it has been seen
        candidates.steps = 0
        ours = model.generate(
            ids, **asked, custom_generate=assisted, candidate_generator=candidates
        )
        assert torch.equal(plain, ours)
        steps.append(candidates.steps)
    assert steps[1] < 60 and steps[1] <= steps[0] <= 120
    assert not hasattr(model, "candidates") and "_get_candidate_generator" not in vars(model)


def test_assisted_ends_where_it_must(model: Any) -> None:
    """At the end of the context learned positions have no more rows, also not for a guess."""
    learned, ids = make("gpt2"), padded(30)["input_ids"]
    asked: dict[str, Any] = {"do_sample": False, "max_length": zoo.CONTEXT}
    plain = learned.generate(ids, **asked)
    assert torch.equal(plain, learned.generate(ids, **asked, custom_generate=assisted))
    end = int(plain[0, 50])
    plain = learned.generate(ids, **asked, eos_token_id=end)
    assert torch.equal(
        plain, learned.generate(ids, **asked, eos_token_id=end, custom_generate=assisted)
    )
    with pytest.raises(InputError, match="there are 2 texts; expected 1"):
        model.generate(**padded(9, 9), max_new_tokens=4, custom_generate=assisted)
    with pytest.raises(InputError, match="MaxTimeCriteria is among the stopping criteria"):
        model.generate(ids, max_new_tokens=4, max_time=1.0, custom_generate=assisted)
    with pytest.raises(InputError, match="most is -1"):
        SuffixCandidates(-1)


def test_assisted_samples_from_the_law_of_the_model(model: Any) -> None:
    """Also with guesses of the likeliest tokens: they come as often as they should."""
    ids, count = padded(12)["input_ids"], 400
    law = (zoo.plain_logits(model, ids[0].tolist())[-1].double() / 1.8).softmax(0)
    candidates = SuffixCandidates()
    torch.manual_seed(2)
    asked: dict[str, Any] = {"do_sample": True, "top_k": 0, "temperature": 1.8}
    drawn = [
        int(
            model.generate(
                ids,
                **asked,
                max_new_tokens=2,
                custom_generate=assisted,
                candidate_generator=candidates,
            )[0, 12]
        )
        for _ in range(count)
    ]
    token = int(law.argmax())
    share = float(law[token])
    assert abs(drawn.count(token) - share * count) < 4.5 * (share * (1 - share) * count) ** 0.5
