"""One tiny target for most tests of this folder."""

from __future__ import annotations

from typing import Any

import pytest

from engine.on_device import OnDevice
from foresay.models.target import RunsAhead, Target
from models.quick import quick_target


@pytest.fixture(scope="session")
def target() -> Target:
    return quick_target()


@pytest.fixture
def device(target: Target) -> Any:
    made = OnDevice(target)
    assert isinstance(made, RunsAhead) and not isinstance(target, RunsAhead)
    return made
