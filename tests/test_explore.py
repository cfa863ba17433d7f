"""A property has as many cases as it asks for, and ten times as many where new ones are sought."""

from __future__ import annotations

import pytest

import explore


def test_examples(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explore, "TIMES", 1)
    assert explore.examples(7).max_examples == 7
    monkeypatch.setattr(explore, "TIMES", 10)
    assert explore.examples(7).max_examples == 70
