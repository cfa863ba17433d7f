"""A folder of weights, checked before loading: its files exist and are complete."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from foresay.errors import ModelError

__all__ = ["check"]

_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HEADER_LIMIT = 100_000_000  # of the format itself
_BITS = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E5M2", "F8_E4M3", "F8_E8M0"), 8),
    **dict.fromkeys(("I16", "U16", "F16", "BF16"), 16),
    **dict.fromkeys(("I32", "U32", "F32"), 32),
    **dict.fromkeys(("I64", "U64", "F64"), 64),
}


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
    _object(config)
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        names = _object(index).get("weight_map")
        if not isinstance(names, dict) or not all(isinstance(n, str) for n in names.values()):
            raise ModelError(f"'{index}' has no 'weight_map' of tensors and their files")
        files = [folder / name for name in sorted(set(names.values()))]
        for path in files:
            if path.parent != folder or path.name in ("", ".."):
                raise ModelError(f"'{index}' names '{path}', which is not in its folder")
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
        _check_safetensors(path)
    return folder


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{path}' is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelError(f"'{path}' is JSON, but no object")
    return found


def _check_safetensors(path: Path) -> None:
    def damaged(why: str) -> ModelError:
        return ModelError(f"'{path}' is damaged or was not downloaded to its end: {why}")

    try:
        with open(path, "rb") as file:
            size = path.stat().st_size
            first = file.read(8)
            if len(first) < 8:
                raise damaged(f"it has {len(first)} bytes")
            length: int = struct.unpack("<Q", first)[0]
            if length > min(size - 8, _HEADER_LIMIT):
                raise damaged(f"its header should have {length} bytes, but the file has {size}")
            raw = file.read(length)
    except OSError as error:
        raise ModelError(f"'{path}' cannot be read: {error.strerror or error}") from error
    try:
        header = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise damaged(f"its header is no JSON: {error}") from error
    if not isinstance(header, dict):
        raise damaged("its header is JSON, but no object")
    spans = []
    for name, entry in header.items():
        if name != "__metadata__":
            span = _span(entry)
            if span is None:
                raise damaged(f"the tensor '{name:.80}' has no sound entry in the header")
            spans.append(span)
    end = 0
    for begin, stop in sorted(spans):
        if begin != end:
            raise damaged(f"its tensors overlap or leave a hole at byte {end} of the data")
        end = stop
    if 8 + length + end != size:
        raise damaged(f"it should have {8 + length + end} bytes, but has {size}")


def _span(entry: object) -> tuple[int, int] | None:
    """Begin and end of a tensor's data, if they fit its shape and type."""
    if not isinstance(entry, dict):
        return None
    span, shape, kind = entry.get("data_offsets"), entry.get("shape"), entry.get("dtype")
    if not isinstance(span, list) or not isinstance(shape, list) or not isinstance(kind, str):
        return None
    if len(span) != 2 or not all(type(n) is int and n >= 0 for n in (*span, *shape)):
        return None
    begin, end = span
    if kind in _BITS:
        bits = _BITS[kind]
        for dim in shape:
            bits *= dim
        if bits != 8 * (end - begin):
            return None
    return (begin, end) if begin <= end else None
