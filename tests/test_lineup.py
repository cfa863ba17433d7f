"""The drafters of the lab by name: what each makes of the one setting that all of them get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance import corpus_file
from core.brute import int32s
from core.frozen_files import corpus_of
from foresay.drafters.lineup import NAMES, make_drafter
from foresay.errors import InputError

TEXTS = [name for name in NAMES if ":" not in name]
"""Drafters that need no weights."""


@pytest.mark.parametrize("name", TEXTS)
def test_chain_reaches_every_drafter(name: str, tmp_path: Path) -> None:
    path = corpus_of(tmp_path / "c.foresay", [7, 8, 1, 2], [7, 8, 3, 4], [7, 8, 5, 6])
    drafter = make_drafter(name, corpus=None if name == "ngram" else path, chain=True)
    state = drafter.begin(int32s([9, 10, 11, 7, 8, 3, 9, 10, 11, 7, 8]))
    (draft,) = drafter.propose([state], [8])
    if name != "merge":  # a union of two chains may fork
        assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    assert len(draft)


@pytest.mark.parametrize("share", ["none", "group", "all"])
@pytest.mark.parametrize("name", TEXTS)
def test_every_share_suits_every_drafter(name: str, share: Any) -> None:
    make_drafter(name, share=share, corpus=corpus_file() if name == "corpus" else None)


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("best", {}, "no drafter 'best'; expected one of suffix, sam"),
        ("ngram", {"corpus": "c.foresay"}, "own text only; leave --corpus out"),
        (
            "corpus",
            {},
            r"no corpus file; expected --corpus FILE, or in Python CorpusDrafter\(",
        ),
        ("suffix", {"tokenizer_hash": bytes(32)}, "without a corpus file"),
        ("eagle", {}, "no drafter 'eagle'; expected one of suffix, .*, eagle:FOLDER"),
        ("eagle:", {}, "'eagle:' names no folder; expected eagle:FOLDER"),
        ("eagle:head", {"corpus": "c.foresay"}, "'eagle:head' uses no corpus; leave --corpus"),
    ],
)
def test_refused(name: str, setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_drafter(name, **setting)
