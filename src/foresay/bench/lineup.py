"""The drafters of the lab, by name."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from foresay.bench.replay import Share
from foresay.drafter import Drafter
from foresay.errors import InputError

__all__ = ["NAMES", "make_drafter"]

NAMES = {
    "suffix": "our default: all sources, scored and calibrated",
    "sam": "SAM-Decoding's rule on our automaton",
    "ngram": "prompt lookup: the longest repeated n-gram up to 3, latest occurrence",
    "corpus": "a frozen corpus alone",
    "merge": "suffix and ngram in one tree",
}


def make_drafter(
    name: str,
    *,
    share: Share = "none",
    corpus: str | Path | None = None,
    tokenizer_hash: bytes | None = None,
    chain: bool = False,
) -> Drafter[Any]:
    """A fresh drafter of the line-up; finished requests feed its history only if `share` is "all".

    With `chain` a drafter that can grow its tree without branches does so, which makes the chain
    longer than the likeliest path of a tree of the same size.

    Mutates: nothing. Valid until: for ever. Raises: InputError for an unknown name or a corpus that
    is missing or of no use, CorpusError for a bad corpus file, TokenizerMismatch for one of another
    tokenizer. GIL: held.
    """
    if name not in NAMES:
        raise InputError(f"there is no drafter {name!r}; choose from {', '.join(NAMES)}")
    if name == "ngram" and corpus is not None:
        raise InputError("the drafter 'ngram' uses the request's own text only; leave --corpus out")
    if tokenizer_hash is not None and corpus is None:
        raise InputError(
            "a tokenizer binds a corpus file and none is given; give one with --corpus"
        )
    history = share == "all"
    if name == "ngram":
        from foresay.drafters.ngram import NgramDrafter

        return NgramDrafter()
    if name == "corpus":
        if corpus is None:
            raise InputError("the drafter 'corpus' needs a corpus file; give one with --corpus")
        from foresay.drafters.corpus import CorpusDrafter

        alone: Drafter[Any] = CorpusDrafter(corpus, tokenizer_hash=tokenizer_hash)
        return alone
    from foresay.drafters.suffix import SuffixDrafter

    suffix: Drafter[Any] = SuffixDrafter(
        history=history,
        corpus=corpus,
        tokenizer_hash=tokenizer_hash,
        chain=chain and name != "sam",
        rule="sam" if name == "sam" else "blend",
    )
    if name == "merge":
        from foresay.drafters.merge import MergeDrafter
        from foresay.drafters.ngram import NgramDrafter

        return MergeDrafter(suffix, NgramDrafter())
    return suffix
