"""How much of what a trained drafter drafts is accepted."""

from __future__ import annotations

from typing import Any

import numpy as np

from foresay import SamplingParams
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.models.target import Target
from models import zoo


def accepted(target: Target, drafter: Any, temperature: float) -> float:
    """Accepted tokens per step; the texts are those of the plain loop."""
    random = np.random.default_rng(9)
    params = SamplingParams(temperature=temperature, max_tokens=30)
    engine = Engine(target, drafter, policy="fixed")
    requests = [
        engine.add(random.integers(0, zoo.VOCABULARY, 6).tolist(), params, seed=seed)
        for seed in range(20)
    ]
    engine.run()
    for seed in (0, 7):
        prompt = requests[seed].prompt.tolist()
        assert requests[seed].token_ids == plain(logits_of(target), prompt, params, seed)
    return sum(r.stats.accepted for r in requests) / sum(r.stats.steps for r in requests)
