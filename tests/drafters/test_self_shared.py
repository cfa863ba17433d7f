"""SelfDrafter and the keys and values that it shares: they are the target's own afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np
import pytest

from drafters.self_targets import KINDS, LAYERS, MANY, SAMPLED, made
from engine.asking import STOPS, answers, wanted
from foresay.budget.policy import Fixed
from foresay.drafters import MergeDrafter, NgramDrafter, SelfDrafter
from foresay.engine.drafting import CheckedDrafter
from foresay.engine.engine import Engine
from foresay.errors import InputError
from foresay.models.skipping import SkippingTarget
from foresay.models.target import SequenceInput, Target
from models.quick import quickened


def texts_of(kv: Any) -> list[Any]:
    """The keys and values of each layer."""
    return [part(layer) for layer in range(LAYERS) for part in (kv.keys, kv.values)]


@pytest.mark.parametrize("kind", KINDS)
def test_shared_keys_and_values_are_as_before(targets: dict[str, Target], kind: str) -> None:
    """The drafter stores drafted tokens behind the target's own, and nothing of its own."""
    target = targets[kind]
    seen = []

    class Watched(SelfDrafter):
        def propose(self, states: Any, budgets: Any, /) -> Any:
            kvs = list((self._shared or {}).values())
            before = [(kv.length, texts_of(kv)) for kv in kvs]
            found = super().propose(states, budgets)
            for kv, (length, layers) in zip(kvs, before, strict=True):
                seen.append(kv.length - length)
                kv.cut(length)
                same = zip(layers, texts_of(kv), strict=True)
                assert all(np.array_equal(old, new) for old, new in same)
            assert self.bytes_used() == 4 * self.tokens_held()
            return found

    drafter = Watched(layers=[0, 2], shape=4)
    engine = Engine(target, drafter, policy=Fixed(k=4), max_running=3)
    assert [r.token_ids for r in answers(engine, MANY)] == wanted(target, MANY)
    assert max(seen) >= 3


def test_tokens_that_a_drafter_leaves_behind_are_cut(
    targets: dict[str, Target], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without that the step would be refused: never a text that skipped layers have written."""
    target = targets["float32"]

    def texts() -> list[list[int]]:
        drafter = SelfDrafter(layers=[0, 2], shape=4)
        engine = Engine(target, drafter, policy=Fixed(k=4), max_running=3)
        return [request.token_ids for request in answers(engine, MANY)]

    assert texts() == wanted(target, MANY)

    @contextmanager
    def careless(self: CheckedDrafter, requests: Any) -> Iterator[None]:
        drafter: Any = self._drafter
        drafter.share_kv_cache(target, [r.state for r in requests], [r.kv for r in requests])
        yield

    monkeypatch.setattr(CheckedDrafter, "_sharing_kv", careless)
    with pytest.raises(InputError, match="76 tokens were stored, and now there are 80"):
        texts()


def test_another_target_shares_nothing() -> None:
    """A drafter of one model for a target of the same shape: it has keys and values of its own."""
    target, other = (
        quickened(made(seed=seed, hidden_size=64, intermediate_size=96)) for seed in (1, 2)
    )
    drafter = SelfDrafter(other, layers=range(LAYERS))
    engine = Engine(target, drafter, policy=Fixed(k=4))
    for prompt, _ in MANY[:3]:
        engine.add(prompt, SAMPLED, seed=0)
    engine.step()
    engine.step()
    assert drafter.bytes_used() > 4 * drafter.tokens_held()
    engine.run()
    assert [r.token_ids for r in answers(engine, MANY)] == wanted(target, MANY)


def test_a_text_that_is_not_stored_gets_no_draft(targets: dict[str, Target]) -> None:
    """Nor are its tokens computed with the layers that are kept: that is the target's work."""
    target, text = targets["float32"], np.arange(1, 9, dtype=np.int32)
    drafter = SelfDrafter(target, layers=[0, 2], shape=4)
    state, kv = drafter.begin(text), target.open()
    for end, drafted in ((3, 0), (7, 4)):
        part = SequenceInput.of(target, kv, text[kv.length : end])
        target.forward([part])
        part.keep()
        drafter.share_kv_cache(target, [state], [kv])
        (draft,) = drafter.propose([state], [4])
        assert len(draft) == drafted and (kv.length > end) == (drafted > 0)
        kv.cut(end)


def test_shared_for_several_proposals(targets: dict[str, Target]) -> None:
    """Two drafters of a merge share the same, and each is asked twice: all of them draft."""
    drafted: list[list[int]] = [[], []]

    class Asked(SelfDrafter):
        def propose(self, states: Any, budgets: Any, /) -> Any:
            found, again = (super(Asked, self).propose(states, budgets) for _ in range(2))
            assert [d.tokens.tolist() for d in found] == [d.tokens.tolist() for d in again]
            drafted[self is drafters[1]] += [len(draft) for draft in found]
            return again

    drafters = Asked(layers=[0, 2], shape=4), Asked(layers=[0, 1, 3], shape=4, memory=1)
    target = targets["q8_0"]
    engine = Engine(target, MergeDrafter(*drafters), policy=Fixed(k=4), max_running=3)
    assert [r.token_ids for r in answers(engine, MANY)] == wanted(target, MANY)
    assert drafted[0] == drafted[1] and sum(drafted[0]) > 100


@pytest.mark.parametrize("merged", [False, True])
def test_sharing_ends(targets: dict[str, Target], merged: bool) -> None:
    """Also where a member of a merge was not asked: nothing keeps the memory of a request."""
    target = targets["q8_0"]
    own = SelfDrafter(layers=[0, 2])
    drafter: Any = MergeDrafter(NgramDrafter(), own) if merged else own
    engine = Engine(target, drafter, policy="fixed")
    answers(engine, MANY)
    assert own._shared is None
    request = engine.add(MANY[0][0], SAMPLED, seed=0)
    engine.step()
    assert request.kv is not None
    engine.run()
    assert own._shared is None and own.bytes_used() == 0


@pytest.mark.parametrize("kind", KINDS)
def test_sharing_that_is_interrupted(targets: dict[str, Target], kind: str) -> None:
    """Drafted tokens that nobody could cut: the requests go on, and their texts are the same."""
    target = targets[kind]
    few = SkippingTarget(target, [0, 2])
    engine = Engine(target, SelfDrafter(layers=[0, 2], shape=4), policy=Fixed(k=4), max_running=3)
    requests = [
        engine.add(prompt, params, seed=seed, stops=STOPS)
        for seed, (prompt, params) in enumerate(MANY)
    ]
    left = 0
    while engine.busy:
        engine.step()
        for request in engine.scheduler.running:
            if request.kv is not None and len(request.pending) == 1:
                part = SequenceInput.of(few, request.kv, np.array([7, 9], np.int32))
                few.forward([part])
                part.keep()
                left += 1
    assert left > 20
    assert [request.token_ids for request in requests] == wanted(target, MANY)


def test_an_interrupt_while_it_drafts(targets: dict[str, Target]) -> None:
    target = targets["q8_0"]

    class Interrupted(SelfDrafter):
        calls = 0

        def propose(self, states: Any, budgets: Any, /) -> Any:
            found = super().propose(states, budgets)
            self.calls += 1
            if self.calls % 3 == 0:
                raise KeyboardInterrupt
            return found

    drafter = Interrupted(layers=[0, 2], shape=4)
    engine = Engine(target, drafter, policy=Fixed(k=4), max_running=3)
    requests = [
        engine.add(prompt, params, seed=seed, stops=STOPS)
        for seed, (prompt, params) in enumerate(MANY)
    ]
    while engine.busy:
        with suppress(KeyboardInterrupt):
            engine.step()
        assert drafter._shared is None
    assert [request.token_ids for request in requests] == wanted(target, MANY)
