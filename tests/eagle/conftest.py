"""One thread: tiny matrices are not worth more."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tiny import one_thread


@pytest.fixture(autouse=True, scope="module")
def _alone() -> Iterator[None]:
    with one_thread():
        yield
