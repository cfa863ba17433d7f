"""One tiny model and one server for most tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from foresay.engine.llm import LLM
from serve.running import MEMORY, Running, running, tiny_llm
from tiny import one_thread, save_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def plain(folder: Path) -> LLM:
    """The same model without a server and without speculation."""
    return LLM(folder, None, dtype="float32", memory=MEMORY)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with one_thread(), running(*tiny_llm(folder)) as found:
        yield found
