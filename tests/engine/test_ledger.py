"""The ledger adds up what requests took, whoever decodes with whom and whenever it is read."""

from __future__ import annotations

from typing import Any

import numpy as np

from foresay import SamplingParams
from foresay.engine.ledger import PHASES, Ledger
from foresay.engine.request import Request


def request(number: int) -> Request:
    params = SamplingParams(max_tokens=9)
    return Request(number, np.ones(3, np.int32), params, 1, (), None, None, None)


def test_each_request_gets_the_steps_that_it_was_in() -> None:
    rng, ledger = np.random.default_rng(0), Ledger()
    requests = [request(at) for at in range(9)]
    held = [one.stats for one in requests]
    wanted: list[Any] = [np.zeros(len(PHASES) + 2) for _ in requests]

    def said(at: int) -> list[float]:
        stats = requests[at].stats
        assert stats is held[at]
        return [*stats.seconds.values(), stats.drafted, stats.accepted]

    for _ in range(60):
        some = rng.permutation(9)[: rng.integers(1, 10)]
        if rng.random() < 0.5:
            some.sort()
        seconds = dict(zip(PHASES, rng.random(len(PHASES)).tolist(), strict=True))
        drafted, accepted = rng.integers(0, 9, (2, len(some)))
        ledger.note([requests[at] for at in some], seconds, drafted, accepted)
        for place, at in enumerate(some):
            wanted[at] += [*seconds.values(), drafted[place], accepted[place]]
        for at in np.flatnonzero(rng.random(9) < 0.2):
            np.testing.assert_allclose(said(int(at)), wanted[at])
    for at in range(9):
        np.testing.assert_allclose(said(at), wanted[at])


def test_statistics_that_are_held_are_complete_when_the_request_has_ended() -> None:
    ledger, ended = Ledger(), request(0)
    held = ended.stats
    ended.finish_reason = "stop"
    some = [ended, *(request(at) for at in range(1, 6))]
    ledger.note(some, dict.fromkeys(PHASES, 1.0), np.full(6, 4), np.full(6, 3))
    assert (held.drafted, held.accepted, held.seconds["draft"]) == (4, 3, 1.0)
    assert ended.stats.drafted == 4  # once
