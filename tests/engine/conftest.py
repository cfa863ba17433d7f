"""One tiny target for most tests of this folder."""

from __future__ import annotations

import pytest

from foresay.models.load_transformers import target_of
from foresay.models.target import Target
from models import zoo


@pytest.fixture(scope="module")
def target() -> Target:
    return target_of(zoo.make("llama"))
