"""One tiny target for most tests of this folder."""

from __future__ import annotations

import pytest

from foresay.models.target import Target
from models.quick import quick_target


@pytest.fixture(scope="session")
def target() -> Target:
    return quick_target()
