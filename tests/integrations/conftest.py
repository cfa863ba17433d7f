"""One tiny model of transformers for most tests of model.generate."""

from __future__ import annotations

from typing import Any

import pytest

from integrations.generating import make


@pytest.fixture(scope="module")
def model() -> Any:
    return make("llama")
