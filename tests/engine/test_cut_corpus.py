"""A corpus file that is cut while an engine drafts from it: every answer stays the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from core.frozen_files import corpus_of
from engine.asking import ASKED, STOPS, answers, prompts, wanted
from foresay.budget.policy import Fixed
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.models.target import Target
from models import zoo


def test_answers_go_on_without_it(target: Target, tmp_path: Path) -> None:
    asked = list(zip(prompts(8), ASKED, strict=True))
    expected = wanted(target, asked)
    random = np.random.default_rng(0)
    noise = random.integers(0, zoo.VOCABULARY, 60_000).tolist()  # so that the file has many pages
    path = corpus_of(tmp_path / "index", *expected, noise)
    drafter = SuffixDrafter(corpus=path)
    engine = Engine(target, drafter, policy=Fixed(k=4))
    requests = [
        engine.add(prompt, params, seed=seed, stops=STOPS)
        for seed, (prompt, params) in enumerate(asked)
    ]
    for _ in range(3):
        engine.step()
    assert sum(request.stats.accepted for request in requests)
    os.truncate(path, 0)
    with pytest.warns(UserWarning, match="it was truncated while it was open"):
        engine.run()
    engine.check_integrity()
    assert [request.token_ids for request in requests] == expected
    assert [request.token_ids for request in answers(engine, asked)] == expected  # and later ones


def test_between_two_requests(target: Target, tmp_path: Path) -> None:
    """The next request begins with the file as it is now."""
    asked = list(zip(prompts(8), ASKED, strict=True))
    expected = wanted(target, asked)
    noise = np.random.default_rng(0).integers(0, zoo.VOCABULARY, 60_000).tolist()
    path = corpus_of(tmp_path / "index", *expected, noise)
    engine = Engine(target, SuffixDrafter(corpus=path), policy=Fixed(k=4))
    assert [request.token_ids for request in answers(engine, asked)] == expected
    os.truncate(path, 0)
    with pytest.warns(UserWarning, match="it was truncated while it was open"):
        again = answers(engine, asked)
    assert [request.token_ids for request in again] == expected
    assert not any(request.error for request in again)
