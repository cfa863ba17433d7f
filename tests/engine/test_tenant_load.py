"""The policy is told whose request each is."""

from __future__ import annotations

import numpy as np

from foresay import SamplingParams
from foresay.engine.request import Request
from foresay.engine.scheduler import ScheduledRequest
from foresay.engine.step import load_of


def test_the_load_names_the_tenants_of_decoding_requests() -> None:
    tokens = np.array([1], np.int32)
    turns = [
        ScheduledRequest(
            Request(number, tokens, SamplingParams(), 0, (), None, tenant, None), 1, whole
        )
        for number, (tenant, whole) in enumerate([("a", True), ("b", False), (None, True)])
    ]
    assert load_of(turns, requests_wait=False).tenants == ["a", None]
