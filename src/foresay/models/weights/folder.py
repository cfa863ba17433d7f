"""A folder of weights, checked before loading: its files exist and are complete."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights.hashes import readable
from foresay.models.weights.safetensors import SafeTensor, read_tensors

__all__ = ["ExpectedTensors", "check", "config_of", "tensors_of"]

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_INDEX = "model.safetensors.index.json"


def check(folder: Path) -> Path:
    """The folder itself, if it has a config and complete weights in safetensors.

    The header of every file is compared with the file's size, so a partial download is found here.
    The values are not checked.

    Raises: ModelError naming the file and what is wrong, or what is missing.
    """
    if not folder.is_dir():
        raise ModelError(
            f"there is no folder '{folder}'; expected one with config.json and *.safetensors"
        )
    config = folder / "config.json"
    if not config.is_file():
        others = sorted(folder.glob("*.gguf"))
        hint = f"; give the file itself: '{others[0]}'" if others else ""
        raise ModelError(f"'{folder}' has no config.json, so it is no folder of a model{hint}")
    config_of(folder)
    if (folder / _INDEX).is_file():
        files = [folder / name for name in sorted(set(_index(folder).values()))]
    else:
        files = sorted(folder.glob("*.safetensors"))
    if not files:
        pickles = sorted(p.name for p in folder.iterdir() if p.suffix in _PICKLES)
        if pickles:
            raise ModelError(
                f"'{folder}' has its weights only in '{pickles[0]}', a pickle, which can run any "
                "code when it is opened; expected *.safetensors"
            )
        raise ModelError(f"'{folder}' has no weights; expected *.safetensors")
    for path in files:
        read_tensors(path)
    return folder


def config_of(folder: Path) -> dict[str, Any]:
    """What its config.json says.

    Raises: ModelError.
    """
    return _object(folder / "config.json")


def tensors_of(folder: Path) -> dict[str, SafeTensor]:
    """The tensors of a folder by name, as transformers finds them: in model.safetensors, or in the
    files that the index names.

    Raises: ModelError naming the file or tensor that is missing or damaged.
    """
    whole = folder / "model.safetensors"
    if whole.is_file() or not (folder / _INDEX).is_file():
        return read_tensors(whole)
    places = _index(folder)
    files = {name: read_tensors(folder / name) for name in sorted(set(places.values()))}
    for tensor, name in places.items():
        if tensor not in files[name]:
            raise ModelError(
                f"'{folder / name}' lacks the tensor '{tensor:.80}', which '{_INDEX}' names"
            )
    return {tensor: files[name][tensor] for tensor, name in places.items()}


class ExpectedTensors:
    """Tensors of a folder, compared with what a model expects.

    what    has these tensors, such as "an MTP head"
    prefix  how their names begin in the folder, which is left out in `found`
    """

    def __init__(
        self, folder: Path, found: Mapping[str, SafeTensor], what: str, prefix: str = ""
    ) -> None:
        self.folder, self.found = folder, found
        self._what, self._prefix = what, prefix
        self._used = set[str]()

    def take(self, name: str, shape: Sequence[int]) -> SafeTensor:
        """The tensor of that name and shape.

        Raises: ModelError.
        """
        if name not in self.found:
            raise ModelError(
                f"'{self.folder}' lacks the tensor '{self._prefix}{name}' of {self._what}"
            )
        self._used.add(name)
        found = self.found[name]
        if found.shape != tuple(shape):
            raise ModelError(
                f"'{self.folder}': the tensor '{self._prefix}{name}' of {self._what} has the shape "
                f"{list(found.shape)}, but its config.json says {list(shape)}"
            )
        return found

    def refuse_others(self, idle: Iterable[str], expected: str) -> None:
        """Refuse a tensor that was not taken, but for names that end as those in `idle`: the folder
        may be of another model.

        Raises: UnsupportedModel.
        """
        for name in sorted(self.found):
            ignored = any(f".{name}".endswith(f".{each}") for each in idle)
            if name not in self._used and not ignored:
                raise UnsupportedModel(
                    f"'{self.folder}' has the tensor '{self._prefix}{name:.80}', which "
                    f"{self._what} has not; expected {expected}"
                )


def _index(folder: Path) -> dict[str, str]:
    """The file of each tensor."""
    index = folder / _INDEX
    names = _object(index).get("weight_map")
    if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
        raise ModelError(f"'{index}' has no 'weight_map' of tensors and their files")
    for name in sorted(set(names.values())):
        path = folder / name
        if path.parent != folder or path.name in ("", "..") or "\0" in name:
            raise ModelError(f"'{index}' names {str(path)!r}, which is not in its folder")
    return names


def _object(path: Path) -> dict[str, Any]:
    try:
        with readable(path):
            found = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{path}' is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"'{path}' is JSON, but no object")
    return found
