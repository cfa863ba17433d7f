"""The vLLM that this process runs in: its version, its settings, its log."""

from __future__ import annotations

import re
import sys
from dataclasses import fields
from typing import Any

from foresay import __version__
from foresay.errors import InputError
from foresay.integrations.vllm.meter import log
from foresay.integrations.vllm.sampler_patch import patch_sampler
from foresay.integrations.vllm.settings import VllmSettings, read_settings
from foresay.integrations.vllm.versions import run_hooks

__all__ = ["drafts_by_rows", "register", "set_up"]

_OLDEST, _NEWEST = (0, 22), (0, 32)
_warned = False


def register() -> None:
    """The plugin that vLLM calls in each of its processes, for every command: calls what was given
    to `when_vllm_starts`. A setting that is not valid is only logged here; the error is raised when
    a drafter is made.
    """
    run_hooks()
    try:
        read_settings()
    except InputError as error:
        log.warning("foresay: %s", error)


def set_up(settings: VllmSettings, threads: int) -> bool:
    """A drafter of ours starts: log one line, check vLLM's version, patch its sampler.

    Returns whether it may draft; if not, the log says why.
    """
    version = str(getattr(sys.modules.get("vllm"), "__version__", "?"))
    changed = [
        f"{item.name}={getattr(settings, item.name)!r}"
        for item in fields(settings)
        if getattr(settings, item.name) != item.default
    ]
    log.info(
        "foresay %s in vLLM %s: custom_class, threads: %d, settings: %s",
        __version__,
        version,
        threads,
        ", ".join(changed) or "as by default",
    )
    _warn_of(version)
    run_hooks()
    return patch_sampler()


def _warn_of(version: str) -> None:
    global _warned
    found = re.match(r"(\d+)\.(\d+)", version)
    number = (int(found[1]), int(found[2])) if found else None
    if not _warned and (number is None or not _OLDEST <= number <= _NEWEST):
        _warned = True
        log.warning(
            "foresay: vLLM %s is not supported by foresay %s; expected 0.22 to 0.32. Compare its "
            "answers with `foresay lossless --servers`",
            version,
            __version__,
        )


def drafts_by_rows(speculative_config: Any) -> list[tuple[int, int]]:
    """(from how many requests on, how many tokens), in order, as vLLM's key
    num_speculative_tokens_per_batch_size asks for; empty without it.
    """
    given = getattr(speculative_config, "num_speculative_tokens_per_batch_size", None) or []
    return sorted((int(first), int(most)) for first, _, most in given)
