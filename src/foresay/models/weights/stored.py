"""A model with its weights as its file stores them: where each tensor is, and its bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from foresay.errors import ModelError
from foresay.models.progress import Progress, silent
from foresay.models.weights.cache import FORMAT, place
from foresay.models.weights.folder import check
from foresay.models.weights.gguf_config import Plan, StoredTensor, plan, rope_bytes
from foresay.models.weights.gguf_header import Header, read_header
from foresay.models.weights.gguf_values import not_installed, tensor_bytes
from foresay.models.weights.hashes import readable

if TYPE_CHECKING:
    from foresay.models.weights.gguf_tokenizer import Words

__all__ = ["StoredModel", "in_folder", "in_gguf", "write_folder", "write_texts"]


@dataclass(frozen=True)
class StoredModel:
    """A model found on this machine.

    folder     config.json, generation_config.json and the tokenizer's files
    gguf       the file whose tensors are used as they are stored; None: the folder holds
               safetensors
    plan       of that file, checked against its size when the model was found; None without one
    identity   names the shapes and types of its weights: two models of one identity take the same
               time
    decoder    what a thread makes of the file meanwhile (see `models.reading`); None: nothing
    """

    folder: Path
    gguf: Path | None
    plan: Plan | None
    identity: str
    decoder: Future[Any] | None = field(default=None, compare=False, repr=False)

    @property
    def tensors(self) -> dict[str, StoredTensor]:
        """The file's tensors by the names of transformers; none if there is no such file.

        Without `lm_head.weight` the output is the embedding.
        """
        return {} if self.plan is None else self.plan.tensors

    def bytes_of(self, name: str) -> NDArray[np.uint8]:
        """The bytes of the tensor of that name, as `tensor_bytes` gives them.

        Raises: ModelError, also for a name that is not there.
        """
        if self.gguf is None or name not in self.tensors:
            raise ModelError(f"'{self.gguf or self.folder}' stores no tensor for '{name}'")
        return tensor_bytes(self.gguf, self.tensors[name].tensor)


def in_gguf(file: Path, cache: Path, progress: Progress = silent) -> StoredModel:
    """The model of a GGUF file, which stays where it is.

    Its config and tokenizer follow from its header, so they are kept in the cache by the header's
    hash; the tensors' values are not read.

    Raises: ModelError, UnsupportedModel naming what is damaged or unknown.
    """
    header = read_header(file)
    made = plan(header, file)
    mark = _mark_of(header, file)
    folder = place(
        cache / "models" / f"gguf-header-{mark[:32]}.{FORMAT}",
        lambda empty: write_folder(file, empty, {"source": file.name}, progress),
        needed=4 * header.end + (1 << 20),
        progress=progress,
    )
    return StoredModel(folder, file.absolute(), made, f"gguf-{mark[:32]}")


def write_folder(
    file: Path, folder: Path, note: Mapping[str, Any], progress: Progress = silent
) -> None:
    """Write the config and the tokenizer of a GGUF file into a folder that exists.

    Raises: ModelError, UnsupportedModel, OSError.
    """
    try:
        from foresay.models.weights.gguf_tokenizer import words_of  # takes long, is needed once
    except ImportError as error:
        raise not_installed(error) from error
    progress("words", 0, None)
    header = read_header(file)
    made = plan(header, file)
    words = words_of(header, made.config["vocab_size"], str(file))
    write_texts(made, words, folder, note=note)


def write_texts(made: Plan, words: Words, folder: Path, *, note: Mapping[str, Any]) -> None:
    """Write config, generation_config, tokenizer and foresay.json, as transformers names them, into
    a folder that exists. They follow from a file's header and its table of RoPE factors alone.

    note    goes into foresay.json

    Raises: OSError.
    """
    ids = {f"{name}_token_id": token for name, token in words.ids.items() if name != "unk"}
    ends = words.ends[0] if len(words.ends) == 1 else list(words.ends) or None
    generation = {**ids, "eos_token_id": ends}
    tied = "lm_head.weight" not in made.tensors
    texts: dict[str, dict[str, Any]] = {
        "config.json": {**made.config, "tie_word_embeddings": tied, **ids},
        "generation_config.json": {
            k: value for k, value in generation.items() if value is not None
        },
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "clean_up_tokenization_spaces": False,
            "model_max_length": made.config["max_position_embeddings"],
            **words.config,
        },
        "foresay.json": {"format": FORMAT, **note},
    }
    for name, content in texts.items():
        written = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        (folder / name).write_text(written, encoding="utf-8")
    (folder / "tokenizer.json").write_text(words.tokenizer, encoding="utf-8")


def in_folder(folder: Path) -> StoredModel:
    """The model of a folder of safetensors, checked.

    Raises: ModelError naming what is missing or damaged.
    """
    mark = hashlib.sha256((check(folder) / "config.json").read_bytes())
    for path in sorted(folder.glob("*.safetensors")):
        mark.update(f"\0{path.name}\0{path.stat().st_size}".encode())
    return StoredModel(folder, None, None, f"safetensors-{mark.hexdigest()[:32]}")


def _mark_of(header: Header, file: Path) -> str:
    """A hash of all that the config and the tokenizer follow from."""
    with readable(file), open(file, "rb") as opened:
        mark = hashlib.sha256(opened.read(header.end))
    mark.update(rope_bytes(header, file))
    mark.update(f"\0{header.file_size}".encode())
    return mark.hexdigest()
