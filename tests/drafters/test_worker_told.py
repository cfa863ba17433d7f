"""What a WorkerDrafter tells its process beside texts: groups, tenants, new questions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from foresay import Draft, Verdict
from foresay.drafters import WorkerDrafter
from foresay.errors import InputError


@pytest.fixture(scope="module")
def suffix() -> Iterator[WorkerDrafter]:
    drafter = WorkerDrafter("suffix", timeout=20, environ={"OMP_NUM_THREADS": "1"})
    assert drafter.ready(20)
    yield drafter
    drafter.close()


def test_groups_reach_the_worker(suffix: WorkerDrafter) -> None:
    suffix.add_to_group("g", [1, 2], [3, 4, 5, 6, 7])
    state = suffix.begin([1, 2, 3, 4], group="g")
    assert suffix.propose([state], [2])[0].tokens.tolist() == [5, 6]
    suffix.drop_group("g")
    suffix.drop_group("never")
    suffix.new_version(0)
    suffix.finish(state)
    assert suffix.restarts == 0


def test_a_tenant_is_forgotten_in_the_worker() -> None:
    """Its history is in the other process; other tenants keep theirs."""
    drafter = WorkerDrafter("suffix", share="all", timeout=20)
    for tenant in ("a", "b"):
        state = drafter.begin([1, 2], tenant=tenant)
        drafter.observe([state], [Verdict([], [3, 4, 5, 6, 7])])
        drafter.finish(state)
    found = {}
    for dropped in (False, True):
        if dropped:
            drafter.drop_tenant("a")
            drafter.drop_tenant("never")
        for tenant in ("a", "b"):
            state = drafter.begin([1, 2, 3, 4], tenant=tenant)
            found[tenant, dropped] = drafter.propose([state], [2])[0].tokens.tolist()
            drafter.finish(state)
    assert found == {
        ("a", False): [5, 6],
        ("b", False): [5, 6],
        ("a", True): [1, 2],  # of its own text
        ("b", True): [5, 6],
    }
    wrong: Any = None
    with pytest.raises(InputError, match="the tenant is None; expected a str"):
        drafter.drop_tenant(wrong)
    assert drafter.restarts == 0
    drafter.close()


def test_an_answer_that_nobody_collected(suffix: WorkerDrafter) -> None:
    """After an interrupted step the next question may have no budget."""
    state = suffix.begin([1, 2, 3, 4, 1, 2, 3])
    suffix.start([state], [4])
    assert suffix.propose([state], [0]) == [Draft.empty()]
    assert suffix.propose([state], [1])[0].tokens.tolist() == [4]
    suffix.finish(state)
    assert suffix.restarts == 0
