"""A step that fails after drafting: the drafter goes on, and the text is the plain one."""

from __future__ import annotations

from typing import Any

import pytest

from foresay import SamplingParams
from foresay.budget.load import Load
from foresay.budget.policy import Fixed
from foresay.drafters import MergeDrafter, RecycleDrafter, SuffixDrafter
from foresay.engine.compute import forward_and_verify
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.models.target import Target


class Sometimes(Fixed):
    """Asks for nothing after a step that failed."""

    asks = True

    def budgets(self, load: Load) -> list[int]:
        return super().budgets(load) if self.asks else [0] * len(load)


@pytest.mark.parametrize("merged", [False, True])
def test_drafts_of_a_failed_step_are_forgotten(target: Target, merged: bool) -> None:
    compute, fails = forward_and_verify(target), [False]

    def sometimes(*arguments: Any) -> Any:
        if fails[0]:
            raise RuntimeError("the machine stumbled")
        return compute(*arguments)

    policy = Sometimes()
    drafter: Any = RecycleDrafter()
    engine = Engine(
        target,
        MergeDrafter(SuffixDrafter(), drafter) if merged else drafter,
        policy=policy,
        compute=sometimes,
    )
    params = SamplingParams(temperature=0, max_tokens=24)
    for _ in range(2):  # the second time there is much to draft
        request = engine.add([5, 6, 7], params, seed=1)
        for step in range(100):
            fails[0] = step % 3 == 2
            policy.asks = step % 3 != 0
            if fails[0]:
                with pytest.raises(RuntimeError, match="stumbled"):
                    engine.step()
            else:
                engine.step()
            if request.finished:
                break
            fails[0] = False
    assert request.token_ids == plain(logits_of(target), [5, 6, 7], params, 1)
    assert engine.drafter.active
    assert request.stats.accepted > 0
