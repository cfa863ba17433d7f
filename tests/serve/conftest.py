"""One tiny model and one server for most tests of this folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, sync_playwright

from foresay.engine.llm import LLM
from serve.running import MEMORY, Running, served
from tiny import save_model


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("served"))


@pytest.fixture(scope="session")
def plain(folder: Path) -> LLM:
    """The same model without a server and without speculation."""
    return LLM(folder, None, dtype="float32", memory=MEMORY)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with served(folder) as found:
        yield found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next(filter(None, map(shutil.which, names)), None)
    if found is None:
        pytest.skip("there is no Chromium; `apt-get install -y chromium` gets it")
    with sync_playwright() as playwright:
        # No name leads anywhere: what is not on this machine cannot be reached at all.
        rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
        browser = playwright.chromium.launch(executable_path=found, args=[rules])
        yield browser
        browser.close()
