"""What is installed, what will be used, what is missing and how to get it."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from foresay import __version__

__all__ = ["examine"]

_LIBRARIES = [
    ("numpy", "everything", "foresay"),
    ("typer", "the command line", "foresay[cli]"),
    ("rich", "the command line", "foresay[cli]"),
    ("torch", "running a model", "foresay[engine]"),
    ("transformers", "running a model", "foresay[engine]"),
    ("safetensors", "running a model", "foresay[engine]"),
    ("tokenizers", "running a model", "foresay[engine]"),
    ("starlette", "the server", "foresay[serve]"),
    ("uvicorn", "the server", "foresay[serve]"),
    ("msgspec", "the server", "foresay[serve]"),
    ("prometheus-client", "the server", "foresay[serve]"),
    ("websockets", "edge and cloud", "foresay[edge]"),
    ("trl", "training", "foresay[rl]"),
    ("datasets", "training", "foresay[rl]"),
]


def examine() -> dict[str, Any]:
    """Look at this installation; `ok` is False if the core does not load.

    Mutates: nothing. Valid until: something is installed. Raises: nothing. GIL: held.
    """
    core, ok = _core()
    model = [name for name in ("torch", "transformers") if _version(name) is None]
    return {
        "foresay": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "core": core,
        "ok": ok,
        "drafting": "in the native core" if ok else "by NgramDrafter alone, without the core",
        "models": f"cannot run: {' and '.join(model)} missing" if model else "run in torch",
        "libraries": [
            {"name": name, "version": _version(name), "use": use, "get": f"pip install '{extra}'"}
            for name, use, extra in _LIBRARIES
        ],
    }


def _core() -> tuple[str, bool]:
    try:
        from foresay import _core
    except ImportError as error:
        return (
            f"does not load ({error}); reinstall with: pip install --force-reinstall foresay",
            False,
        )
    info = getattr(_core, "build_info", None)
    return str(info()) if info is not None else "loads", True


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
