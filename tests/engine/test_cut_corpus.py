"""A corpus file that is cut while an engine drafts from it: every answer stays the same."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from core.frozen_files import corpus_of
from engine.asking import ASKED, added, check, prompts, tokens_of, wanted
from foresay.budget.policy import Fixed
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.models.target import Target
from models import zoo


@pytest.mark.parametrize("during", [True, False], ids=["during requests", "between them"])
def test_answers_go_on_without_it(target: Target, tmp_path: Path, during: bool) -> None:
    """And the next request begins with the file as it is now."""
    asked = list(zip(prompts(8), ASKED, strict=True))
    expected = wanted(target, asked)
    random = np.random.default_rng(0)
    noise = random.integers(0, zoo.VOCABULARY, 60_000).tolist()  # so that the file has many pages
    path = corpus_of(tmp_path / "index", *expected, noise)
    engine = Engine(target, SuffixDrafter(corpus=path), policy=Fixed(k=4))
    requests = added(engine, asked)
    for _ in range(3):
        engine.step()
    assert sum(request.stats.accepted for request in requests)
    if not during:
        engine.run()
    os.truncate(path, 0)
    with pytest.warns(UserWarning, match="it was truncated while it was open"):
        engine.run()
        check(engine, asked)
    assert tokens_of(requests) == expected and not any(request.error for request in requests)
