"""A model from the Hugging Face hub, or from what the hub's own cache holds of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foresay.errors import ModelError
from foresay.models.progress import Progress, silent
from foresay.models.weights.folder import check

__all__ = ["fetch_snapshot"]

# Nothing that could run: no pickles, no Python. Folders inside a repository hold other formats.
_WANTED = [
    *("*.json", "*.safetensors", "*.jinja", "*.model", "*.tiktoken", "merges.txt", "vocab.txt"),
]
_UNWANTED = ["*/*", "consolidated*.safetensors"]
_SECONDS = 10.0


def fetch_snapshot(
    name: str,
    *,
    revision: str | None = None,
    cache: Path | None = None,
    progress: Progress = silent,
) -> Path:
    """The folder of a hub model `org/name`; the cached one where the hub does not answer.

    cache     a folder; None: where the hub's own library keeps models
    progress  called with bytes, in place of that library's bars

    Raises: ModelError naming the model, what was tried and what the hub said.
    """
    from huggingface_hub import snapshot_download  # takes a second, and most callers do not need it

    at = "" if revision is None else f" at revision '{revision}'"
    where = None if cache is None else str(cache)
    progress("download", 0, None)
    try:
        folder = snapshot_download(
            name,
            revision=revision,
            cache_dir=where,
            allow_patterns=_WANTED,
            ignore_patterns=_UNWANTED,
            etag_timeout=_SECONDS,
            tqdm_class=_bars(progress),
        )
    except Exception as error:  # each transport has its own kinds, and all of them end here
        said = " ".join(str(error).split()).split(". ")[0][:200]
        raise ModelError(
            f"the model '{name}'{at} could not be fetched: the hub said '{type(error).__name__}: "
            f"{said}', and no copy is in its cache; check the name, the network and "
            "HF_HUB_OFFLINE, or give a local folder or a .gguf file"
        ) from error
    return check(Path(folder))


def _bars(progress: Progress) -> Any:
    """A bar class for that library that shows nothing and reports bytes."""
    from tqdm.auto import tqdm  # type: ignore[import-untyped]

    class Bar(tqdm):  # type: ignore[misc,type-arg,unused-ignore]
        def __init__(self, *given: Any, **options: Any) -> None:
            self.counts_bytes = options.get("unit") == "B"
            super().__init__(*given, **{**options, "disable": True})  # it only has n and total then

        def update(self, n: float | None = 1) -> None:
            self.n += n or 0
            if self.counts_bytes:
                progress("download", int(self.n), int(self.total) if self.total else None)

    return Bar
