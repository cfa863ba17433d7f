"""TRL without vLLM, and quietly."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from real_trl import import_trl
from tiny import one_thread

os.environ["TRL_EXPERIMENTAL_SILENCE"] = "1"  # it warns of every rollout_func

import_trl()


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    with one_thread():
        yield
