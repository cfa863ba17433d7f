"""Opening, inspecting and verifying corpus files."""

from __future__ import annotations

from os import PathLike
from typing import Any

from foresay._core import FrozenIndex
from foresay.arrays import as_path, check_flag, check_hash
from foresay.corpus.tokenizer import UNBOUND
from foresay.errors import CorpusError, TokenizerMismatch

__all__ = ["inspect", "open_corpus", "verify"]

_MAGIC = b"FORESAY\x1a"


def open_corpus(
    path: str | PathLike[str], *, tokenizer_hash: bytes | None = None, verify: bool = False
) -> FrozenIndex:
    """Map a corpus file, in time that does not depend on its size; checks only the header. Damage
    after the header never crashes, but gives worse drafts, or an error while drafting. With
    `verify` the whole file is checked first (see `foresay.corpus.verify`); all commands do so.

    Valid until: the last reference is gone, also after the file was replaced or deleted. Of a
    file that is truncated while it is open, a page that is gone raises CorpusError when it is read;
    what is gone of the last page reads as zeros, which gives worse drafts. Raises:
    CorpusError if it is missing, damaged, foreign or of another version; TokenizerMismatch if a
    hash is given and the file has another or none; InputError for a wrong path, hash or flag.
    """
    check_hash(tokenizer_hash, "tokenizer_hash")
    check_flag(verify, "verify")
    try:
        index = FrozenIndex.open(as_path(path, "the corpus file"), tokenizer_hash)
    except TokenizerMismatch:
        if inspect(path)["tokenizer_hash"] is not None:
            raise
        raise TokenizerMismatch(
            f"'{path}' is not bound to a tokenizer; expected the one that is given: build it "
            "again with that tokenizer"
        ) from None
    except CorpusError as error:
        if not _foreign(path):
            raise
        raise CorpusError(
            f"'{path}' is no corpus file; expected one that `foresay corpus build` has written"
        ) from error
    if verify:
        index.verify()
    return index


def _foreign(path: str | PathLike[str]) -> bool:
    """Whether a file begins as no corpus file does."""
    try:
        with open(path, "rb") as file:
            begin = file.read(len(_MAGIC))
    except OSError:
        return False
    return len(begin) == len(_MAGIC) and begin != _MAGIC


def inspect(path: str | PathLike[str]) -> dict[str, Any]:
    """The header, ready for JSON: `tokenizer_hash` in hex, None if it is not bound.

    Raises: CorpusError.
    """
    return _described(open_corpus(path))


def verify(path: str | PathLike[str], *, tokenizer_hash: bytes | None = None) -> dict[str, Any]:
    """Check every byte of a corpus file and that it is the index of its own text; then `inspect`.

    Takes about a second per 6M tokens and one bit of memory per token.

    Raises: CorpusError with the first fault, TokenizerMismatch.
    """
    return _described(open_corpus(path, tokenizer_hash=tokenizer_hash, verify=True))


def _described(index: FrozenIndex) -> dict[str, Any]:
    summary = index.summary()
    bound = summary["tokenizer_hash"] != UNBOUND
    return summary | {
        "tokenizer_hash": summary["tokenizer_hash"].hex() if bound else None,
        "bytes_per_token": summary["file_bytes"] / summary["tokens"],
    }
