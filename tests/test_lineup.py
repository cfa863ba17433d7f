"""The drafters of the lab by name: what each makes of the one setting that all of them get."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from conformance import corpus_file
from core.brute import int32s
from core.frozen_files import corpus_of
from foresay.drafters import MergeDrafter
from foresay.drafters.lineup import NAMES, make_drafter
from foresay.errors import InputError, ModelError

TEXTS = [n for n in NAMES if ":" not in n and n not in ("self", "recycle", "mtp")]
"""Drafters that need nothing of a model."""


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
        ("model", {}, "no drafter 'model'; expected one of suffix, .*, model:NAME"),
        ("self", {"corpus": "c.foresay"}, "'self' uses no corpus; leave --corpus out"),
        ("model:", {}, "'model:' names no model; expected model:NAME with a folder"),
        ("model:small", {"corpus": "c.foresay"}, "'model:small' uses no corpus; leave --corpus"),
        ("eagle", {}, "no drafter 'eagle'; expected one of suffix, .*, eagle:FOLDER"),
        ("suffix+oak", {}, "no drafter 'oak'; expected one of"),
        ("recycle", {"corpus": "c.foresay"}, "'recycle' uses no corpus; leave --corpus out"),
        ("eagle:", {}, "'eagle:' names no folder; expected eagle:FOLDER"),
        ("mtp", {}, "'mtp' is in the target's own files, but no target is given; expected --model"),
        ("mtp", {"corpus": "c.foresay"}, "'mtp' uses no corpus; leave --corpus out"),
        ("worker:mtp", {}, "'worker:mtp' cannot be a process of its own; expected one that"),
        ("worker:self", {}, "'worker:self' cannot be a process of its own; expected one that"),
        ("worker:worker:ngram", {}, "'worker:worker:ngram' cannot be a process of its own"),
        ("worker:", {}, "'worker:' cannot be a process of its own; expected one that drafts"),
        ("worker:oak", {}, "no drafter 'oak'; expected one of"),
        ("eagle:head", {"corpus": "c.foresay"}, "'eagle:head' uses no corpus; leave --corpus"),
    ],
)
def test_refused(name: str, setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        make_drafter(name, **setting)


def test_a_drafter_without_its_target() -> None:
    drafter = make_drafter("self")
    with pytest.raises(InputError, match="SelfDrafter has no model yet; expected a Target, or an"):
        drafter.begin(int32s([1]))


def test_a_draft_model_that_is_not_there() -> None:
    with pytest.raises(ModelError, match="no/folder"):
        make_drafter("model:no/folder/here")


def test_several_in_one_tree() -> None:
    drafter = make_drafter("suffix+recycle+ngram")
    assert isinstance(drafter, MergeDrafter)
    assert [type(each).__name__ for each in drafter.drafters] == [
        "SuffixDrafter",
        "RecycleDrafter",
        "NgramDrafter",
    ]
    assert drafter.wants.topk == 8
    workers = make_drafter("worker:ngram+worker:corpus+suffix", corpus=corpus_file())
    assert isinstance(workers, MergeDrafter)  # the corpus is for two
    assert [getattr(each, "name", "") for each in workers.drafters] == ["ngram", "corpus", ""]
    with_corpus = make_drafter("recycle+corpus", corpus=corpus_file())  # the corpus is for one
    assert isinstance(with_corpus, MergeDrafter)
