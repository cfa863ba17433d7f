"""One tiny model for the tests of this folder, for each test anew: weights are replaced."""

from __future__ import annotations

import pytest

from foresay.models.load_transformers import target_of
from foresay.models.target import Target
from models import zoo


@pytest.fixture
def target() -> Target:
    return target_of(zoo.make("llama"))
