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
    ("torch", "verification in batches; running a model, in later versions", "foresay[engine]"),
    ("scipy", "foresay lossless", "foresay[lossless]"),
    ("transformers", "running a model, in later versions", "foresay[engine]"),
    ("safetensors", "running a model, in later versions", "foresay[engine]"),
    ("tokenizers", "running a model, in later versions", "foresay[engine]"),
    ("starlette", "the server, in later versions", "foresay[serve]"),
    ("uvicorn", "the server, in later versions", "foresay[serve]"),
    ("msgspec", "the server, in later versions", "foresay[serve]"),
    ("prometheus-client", "the server, in later versions", "foresay[serve]"),
    ("websockets", "edge and cloud, in later versions", "foresay[edge]"),
    ("trl", "training, in later versions", "foresay[rl]"),
    ("datasets", "training, in later versions", "foresay[rl]"),
]


def examine() -> dict[str, Any]:
    """Look at this installation; `ok` is False if the core does not load.

    Mutates: nothing. Valid until: something is installed. Raises: nothing. GIL: held.
    """
    core, ok = _core()
    return {
        "foresay": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "core": core,
        "ok": ok,
        "drafting": "in the native core" if ok else "by NgramDrafter alone, without the core",
        "models": "not run by this version itself yet: it drafts and verifies",
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
    info = _core.build_info()
    sanitized = ", with sanitizers" if info["sanitized"] else ""
    return f"loads, built with compiler {info['compiler']}{sanitized}", True


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
