"""Two threads, which may add numbers up in another order than one.
A small model and a small disk for the tests of weights."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from foresay.models import weights
from models.weight_files import small_file


@pytest.fixture(autouse=True, scope="module")
def _two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of a model, and beside it the GGUF file it comes from."""
    root = tmp_path_factory.mktemp("small")
    small_file(root / "a.gguf")
    return weights.find(root / "a.gguf", convert=True, cache=root)


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    try:
        mounting = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(folder)]
        done = subprocess.run(mounting, capture_output=True, check=False)
    except OSError:
        pytest.skip("there is no mount")
    if done.returncode:
        pytest.skip("mounting is not permitted")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)
