"""What is installed, what will be used, what is missing and how to get it."""

from __future__ import annotations

import platform
from importlib import metadata
from typing import Any

from foresay import __version__

__all__ = ["examine"]

_LIBRARIES = [
    ("numpy", "everything", "."),
    ("typer", "the command line", ".[cli]"),
    ("rich", "the command line", ".[cli]"),
    ("torch", "running a model; verification in batches", ".[engine]"),
    ("scipy", "foresay lossless", ".[lossless]"),
    ("transformers", "running a model", ".[engine]"),
    ("safetensors", "running a model", ".[engine]"),
    ("tokenizers", "running a model; foresay edge", ".[engine]"),
    ("gguf", "reading GGUF files, as the default model comes in", ".[engine]"),
    ("huggingface_hub", "getting models from the hub", ".[engine]"),
    ("jinja2", "chat templates", ".[engine]"),
    ("llguidance", "structured answers", ".[engine]"),
    ("starlette", "foresay serve", ".[serve]"),
    ("uvicorn", "foresay serve", ".[serve]"),
    ("msgspec", "foresay serve, foresay edge", ".[edge]"),
    ("websockets", "foresay serve, foresay edge", ".[edge]"),
    ("prometheus-client", "foresay serve", ".[serve]"),
]


_ENGINE = ("torch", "transformers", "safetensors", "tokenizers")


def examine() -> dict[str, Any]:
    """Look at this installation; `ok` is False if the core does not load, or if FORESAY_CPU names a
    level that this processor does not have.
    """
    core, ok = _core()
    cpu = (
        _cpu()
        if ok
        else {"level": None, "levels": [], "better": [], "said": "none, without the core"}
    )
    ok = ok and cpu["level"] is not None
    return {
        "foresay": __version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "core": core,
        "ok": ok,
        "cpu": cpu,
        "device": _device(),
        "drafting": "in the native core"
        if core.startswith("loads")
        else "by NgramDrafter alone, without the core",
        "models": _models(),
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
            f"does not load ({error}); reinstall with: pip install --force-reinstall . in "
            "foresay's checkout",
            False,
        )
    info = _core.build_info()
    sanitized = f", with sanitizers ({info['sanitized']})" if info["sanitized"] else ""
    return f"loads, built with compiler {info['compiler']}{sanitized}", True


def _models() -> str:
    missing = [name for name in _ENGINE if _version(name) is None]
    if missing:
        return (
            f"cannot be run without {', '.join(missing)}; install with: pip install '.[engine]' in "
            "foresay's checkout"
        )
    return "any causal LM of transformers that passes its checks"


def _cpu() -> dict[str, Any]:
    """The processor level that the core uses, the levels of this machine, and the better ones with
    the reasons why they are not used; `said` is all of it as text."""
    from foresay import _core
    from foresay.errors import InputError

    levels = _core.cpu_levels()
    try:
        level, better = _core.cpu_level(), _core.better_cpu_levels()
    except InputError as error:
        return {"level": None, "levels": levels, "better": [], "said": str(error)}
    said = [level if level in levels[1:] else f"{level}, the best that this machine can run"]
    said += [f"{name} would be faster, but {why}" for name, why in better]
    reasons = [{"level": name, "why": why} for name, why in better]
    return {"level": level, "levels": levels, "better": reasons, "said": "; ".join(said)}


def _device() -> dict[str, Any]:
    """Where models run with device auto, the CUDA devices with their names and bytes of memory, and
    what they miss; `said` is all of it as text. torch is imported only where a driver is."""
    from foresay.models.device import cuda_devices, has_driver

    if not has_driver():
        return _found("cpu", [], None, "cpu; no driver of NVIDIA is installed")
    usable = cuda_devices()
    gpus = _gpus(usable.usable)
    named = ", ".join(f"{gpu['name']} ({gpu['memory'] / 2**30:.0f} GiB)" for gpu in gpus)
    if usable.missing is not None:
        there = f", so not on {named}" if gpus else ""
        return _found("cpu", gpus, usable.missing, f"cpu; {usable.missing}{there}")
    return _found("cuda", gpus, None, f"cuda: {named}")


def _found(
    device: str, gpus: list[dict[str, Any]], missing: str | None, said: str
) -> dict[str, Any]:
    return {"device": device, "gpus": gpus, "missing": missing, "said": said}


def _gpus(count: int) -> list[dict[str, Any]]:
    if not count:
        return []
    import torch

    found = map(torch.cuda.get_device_properties, range(count))
    return [{"name": one.name, "memory": one.total_memory} for one in found]


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None
