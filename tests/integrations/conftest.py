"""One tiny model of transformers for most tests of model.generate; one thread is enough for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from integrations.generating import make
from tiny import one_thread


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    with one_thread():
        yield


@pytest.fixture(scope="module")
def model() -> Any:
    return make("llama")
