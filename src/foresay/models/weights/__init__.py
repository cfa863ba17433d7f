"""Getting weights: from a name to a local folder that transformers can read (`find`), or to the
file whose tensors are used as they are stored (`find_stored`).

A name is a folder, a .gguf file, an alias, or a model of the hub. What is fetched is kept; what is
in the cache is complete.
"""

from __future__ import annotations

import difflib
import os
import re
from os import PathLike
from pathlib import Path
from types import ModuleType
from typing import Literal, TypeAlias

from foresay.arrays import as_path, check_flag, user_path
from foresay.errors import InputError, ModelError
from foresay.models.progress import Progress, silent
from foresay.models.weights.aliases import (
    ALIASES,
    DEFAULT_MODEL,
    Alias,
    converted_folder,
    stored_alias,
)
from foresay.models.weights.cache import FORMAT, cache_folder, place
from foresay.models.weights.folder import check
from foresay.models.weights.gguf_header import read_header
from foresay.models.weights.gguf_values import not_installed, tensor_bytes
from foresay.models.weights.hashes import readable, sha256_of
from foresay.models.weights.hub import fetch_snapshot
from foresay.models.weights.stored import StoredModel, in_folder, in_gguf

__all__ = [
    "ALIASES",
    "DEFAULT_MODEL",
    "Alias",
    "Progress",
    "StoredModel",
    "find",
    "find_stored",
    "tensor_bytes",
]

_Kind: TypeAlias = Literal["folder", "file", "alias", "hub"]


def find(
    name: str | PathLike[str],
    *,
    convert: bool = False,
    revision: str | None = None,
    cache: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> Path:
    """A local folder with config.json, *.safetensors and the tokenizer of a model.

    name        a folder, a .gguf file, an alias ("smollm2-135m"), or a hub model "org/name"
    convert     write a copy of a GGUF file in bfloat16 to the cache, 2 bytes for each weight; once
                it is there, it is found without
    revision    of a hub model: a branch, tag or commit
    cache       where models are kept; None: $FORESAY_CACHE, or the user's cache folder
    progress    see `foresay.models.progress`

    Mutates: adds to the cache what is not there yet. Raises: ModelError naming what is missing,
    damaged or cannot be fetched or kept, and what was expected; UnsupportedModel for a file that
    cannot be converted exactly; InputError for a revision of what has none, or for a GGUF file that
    was not converted before and is not to be.
    """
    check_flag(convert, "convert")
    kind, text = _kind_of(name, revision)
    folder, report = cache_folder(cache), progress or silent
    if kind == "file":
        return _converted(Path(text), folder, report, convert)
    if kind == "alias" and converted_folder(text, folder).is_dir():
        return check(converted_folder(text, folder))
    found = _stored(kind, text, revision, cache, report)
    if found.gguf is None:
        return found.folder
    note = {"source": ALIASES[text].requirement, "sha256": ALIASES[text].sha256}
    return _write(found.gguf, converted_folder(text, folder), note, report, convert)


def find_stored(
    name: str | PathLike[str],
    *,
    revision: str | None = None,
    cache: str | PathLike[str] | None = None,
    progress: Progress | None = None,
) -> StoredModel:
    """A model with its weights as they are stored: a GGUF file is not converted. The other
    arguments are those of `find`.

    Mutates: adds to the cache what is not there yet. Raises: as `find`, and ModelError naming the
    tensor that a GGUF file has no room for.
    """
    kind, text = _kind_of(name, revision)
    return _stored(kind, text, revision, cache, progress or silent)


def _stored(
    kind: _Kind,
    text: str,
    revision: str | None,
    cache: str | PathLike[str] | None,
    progress: Progress,
) -> StoredModel:
    if kind == "folder":
        return in_folder(Path(text))
    if kind == "hub":
        where = None if cache is None else cache_folder(cache) / "hub"
        return in_folder(fetch_snapshot(text, revision=revision, cache=where, progress=progress))
    if kind == "file":
        return in_gguf(Path(text), cache_folder(cache), progress)
    return stored_alias(text, cache_folder(cache), progress)


def _kind_of(name: str | PathLike[str], revision: str | None) -> tuple[_Kind, str]:
    """What a name means, and its path or text."""
    if isinstance(name, str) and not name:  # whose path would be the current folder
        raise _no_model("")
    text = as_path(name, "the model")
    path = user_path(text, "the model")
    hub = re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", text) is not None and isinstance(name, str)
    local = os.path.exists(path) or not (hub or text in ALIASES)
    if revision is not None and (local or text in ALIASES):
        raise InputError(
            f"revision is '{revision}', but '{text}' is no hub model; expected 'org/name'"
        )
    if os.path.isdir(path):
        return "folder", str(path)
    if os.path.isfile(path) or text.endswith(".gguf"):
        if not text.endswith(".gguf"):
            raise ModelError(f"'{path}' is a file, but no .gguf; give the folder that it is in")
        return "file", str(path)
    if text in ALIASES:
        return "alias", text
    if hub:
        return "hub", text
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


def _converted(path: Path, cache: Path, progress: Progress, convert: bool) -> Path:
    _converter()
    read_header(path)  # an invalid file is found before it is hashed
    with readable(path):
        digest = sha256_of(path, progress)
    folder = cache / "models" / f"gguf-{digest[:32]}.{FORMAT}"
    return _write(path, folder, {"source": path.name, "sha256": digest}, progress, convert)


def _write(
    file: Path, folder: Path, note: dict[str, str], progress: Progress, convert: bool
) -> Path:
    """The folder of safetensors of a GGUF file, made if it is not there yet."""
    if folder.is_dir():
        return check(folder)
    gguf = _converter()
    needed = gguf.size_of(read_header(file))
    if not convert:
        raise InputError(
            f"'{file}' is a GGUF file, and no copy of it in bfloat16 is in the cache; expected "
            f"convert=True to write one ({needed / 1e9:.1f} GB in '{folder.parent}'), or "
            "find_stored, which uses the file as it is"
        )
    return check(
        place(
            folder,
            lambda empty: gguf.write_model(file, empty, progress, note=note),
            needed=needed,
            progress=progress,
        )
    )


def _converter() -> ModuleType:
    """The module that decodes values, with a package that may not be installed."""
    try:
        import gguf  # noqa: F401 (before the file is hashed)

        from foresay.models.weights import gguf as converter
    except ImportError as error:
        raise not_installed(error) from error
    return converter
