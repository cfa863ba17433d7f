"""The drafters of the lab by name: what each makes of the one setting that all of them get."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from conformance import corpus_file
from core.brute import int32s
from core.frozen_files import corpus_of
from foresay import TopK, Verdict, drafters
from foresay.drafters import MergeDrafter
from foresay.drafters.lineup import NAMES, Room, make_drafter, parts_of, with_external_drafts
from foresay.errors import InputError, ModelError

TEXTS = [n for n in NAMES if ":" not in n and n not in ("self", "recycle", "mtp", "grammar")]
"""Drafters that need nothing of a model."""
PLUSES = ["suffix+", "+suffix", "suffix++recycle"]
STRANGERS = ["model:~nosuchuser/x", "eagle:~nosuchuser", "model:~nosuchuser/a+suffix"]


@pytest.mark.parametrize("name", TEXTS)
def test_chain_reaches_every_drafter(name: str, tmp_path: Path) -> None:
    path = corpus_of(tmp_path / "c.foresay", [7, 8, 1, 2], [7, 8, 3, 4], [7, 8, 5, 6])
    drafter = make_drafter(name, corpus=None if name == "ngram" else path, chain=True)
    state = drafter.begin(int32s([9, 10, 11, 7, 8, 3, 9, 10, 11, 7, 8]))
    (draft,) = drafter.propose([state], [8])
    if name != "merge":  # a union of two chains may fork
        assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    assert len(draft)


def test_chain_reaches_recycle() -> None:
    for chain, room in ((True, None), (True, Room(1 << 20, 1 << 20, 4)), (False, None)):
        drafter = make_drafter("recycle", chain=chain, room=room)
        state = drafter.begin(int32s([1, 1]))
        likely = TopK(
            np.array([[1, 2, *[-1] * 6]], np.int32),
            np.log([[0.5, 0.4, *[1e-9] * 6]], dtype=np.float32),
        )
        drafter.observe([state], [Verdict([], [1], likely)])
        (draft,) = drafter.propose([state], [8])
        forks = len(draft) - len(set(draft.parents.tolist()))
        assert len(draft) > 2 and (forks == 0) == chain


ROOM = Room(history_bytes=1, tenant_bytes=2, max_tenants=3)
KEPT = {"history_bytes": 1, "tenant_bytes": 2, "max_tenants": 3}
"""The same, as SuffixDrafter is told."""


@pytest.mark.parametrize(
    ("name", "kind", "wanted"),
    [
        ("suffix", "SuffixDrafter", {"chain": True, "history": True, **KEPT}),
        ("sam", "SuffixDrafter", {"rule": "sam", "history": True, **KEPT}),
        ("recycle", "RecycleDrafter", {"chain": True, "memory": 1, "max_tenants": 3}),
        ("worker:suffix", "WorkerDrafter", {"chain": True, "share": "all", "room": ROOM}),
    ],
)
def test_settings_reach_each_drafter(
    name: str, kind: str, wanted: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    given = dict[str, Any]()
    monkeypatch.setattr(drafters, kind, lambda *_, **all_: given.update(all_), raising=False)
    make_drafter(name, share="all", chain=True, room=ROOM)
    assert given | wanted == given


def test_drafts_from_outside_join_one_tree() -> None:
    """But not the choice of the first that has a draft, which stays what it is."""
    both: Any = with_external_drafts(make_drafter("sam+ngram"))
    first: Any = with_external_drafts(make_drafter("first:sam+ngram"))
    assert [type(one).__name__ for one in both.drafters] == [
        *("SuffixDrafter", "NgramDrafter", "ExternalDrafter"),
    ]
    own, _ = first.drafters
    assert (first.rule, own.rule, len(own.drafters)) == ("union", "first", 2)


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
        ("recycle:", {}, "'recycle:' names no file; expected recycle:FILE"),
        ("worker:recycle:a", {}, "'worker:recycle:a' cannot be a process of its own"),
        ("first:sam", {}, r"'first:sam' is one; expected several, as in first:sam\+recycle"),
        ("first:", {}, "'first:' is one; expected several"),
        ("first:sam+", {}, r"'first:sam\+' has a \+ too many"),
        ("sam+first:recycle", {}, "no drafter 'first:recycle'; expected one of"),
        ("worker:", {}, "'worker:' names no drafter; expected worker:model:NAME"),
        ("worker:oak", {}, "no drafter 'oak'; expected one of"),
        ("eagle:head", {"corpus": "c.foresay"}, "'eagle:head' uses no corpus; leave --corpus"),
        *((name, {}, r"has a \+ too many; expected names with one") for name in PLUSES),
        *((name, {}, "there is no such user") for name in STRANGERS),
        ("model:no/folder/here", {}, "no/folder"),
        ("model:" + "a" * 300 + "+suffix", {}, "is no model"),
    ],
)
def test_refused(name: str, setting: dict[str, Any], sentence: str) -> None:
    with pytest.raises((InputError, ModelError), match=sentence):
        make_drafter(name, **setting)


def test_a_drafter_without_its_target() -> None:
    drafter: Any = make_drafter("self", shape=7)
    assert drafter.needs_target and drafter.shape.branches == (1,) * 7
    with pytest.raises(InputError, match="SelfDrafter has no model yet; expected a Target, or an"):
        drafter.begin(int32s([1]))


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("suffix+model:./a+b", ["suffix", "model:./a+b"]),
        ("model:./a+b+suffix", ["model:./a+b", "suffix"]),
        ("eagle:c+++worker:model:x+y+eagle:z", ["eagle:c++", "worker:model:x+y", "eagle:z"]),
        ("suffix+oak", ["suffix", "oak"]),
        ("worker:ngram+oak", ["worker:ngram", "oak"]),
        ("model:a+", ["model:a+"]),
        ("first:sam+recycle:./a+b", ["sam", "recycle:./a+b"]),
    ],
)
def test_folders_with_a_plus(name: str, parts: list[str]) -> None:
    assert parts_of(name) == parts


def test_a_folder_that_reads_like_two_drafters(tmp_path: Path) -> None:
    for folder in ("a+b", "a+suffix", "c+ngram+suffix"):
        (tmp_path / folder).mkdir()
    with pytest.raises(ModelError, match=r"a\+b"):  # it is looked for, and is no model
        make_drafter(f"suffix+model:{tmp_path}/a+b")
    with pytest.raises(InputError, match=r"a\+suffix', which is there, or 2 drafters; expected"):
        make_drafter(f"model:{tmp_path}/a+suffix")
    with pytest.raises(InputError, match=r"expected 'ngram\+suffix\+worker:model:.*/c' for the"):
        make_drafter(f"worker:model:{tmp_path}/c+ngram+suffix")


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


def test_the_first_that_has_a_draft() -> None:
    """SAM-Decoding's choice: the suffix where there is a long match, else the auxiliary drafter."""
    drafter: Any = make_drafter("first:sam+recycle")
    assert isinstance(drafter, MergeDrafter)
    assert [type(each).__name__ for each in drafter.drafters] == ["SuffixDrafter", "RecycleDrafter"]
    likely = TopK(np.array([[5, *[-1] * 7]], np.int32), np.zeros((1, 8), np.float32))
    text = [*range(11, 20), 3, 4, 9, 9, *range(11, 20), 3]
    state = drafter.begin(int32s(text))
    drafter.observe([state], [Verdict([], [4], likely)])  # after 3 the target found 5 likely
    (long,) = drafter.propose([state], [4])
    assert long.tokens.tolist()[:2] == [9, 9]  # the match alone
    drafter.observe([state], [Verdict([], [3])])
    (short,) = drafter.propose([state], [4])
    assert short.tokens.tolist() == [5]
    drafter.finish(state)


def test_recycle_from_a_file(tmp_path: Path) -> None:
    taught: Any = make_drafter("recycle")
    taught.fit(SimpleNamespace(vocabulary=128))
    state = taught.begin(int32s([1, 2]))
    likely = TopK(np.array([[7, *[-1] * 7]], np.int32), np.zeros((1, 8), np.float32))
    taught.observe([state], [Verdict([], [3], likely)])
    taught.save(tmp_path / "table+1")
    for room in (None, Room(1 << 20, 1 << 20, 4)):
        warm: Any = make_drafter(f"recycle:{tmp_path}/table+1", room=room)
        (draft,) = warm.propose([warm.begin(int32s([1, 2]))], [1])
        assert draft.tokens.tolist() == [7]
    assert isinstance(make_drafter(f"suffix+recycle:{tmp_path}/table+1"), MergeDrafter)
    with pytest.raises(InputError, match="none"):
        make_drafter(f"recycle:{tmp_path}/none")
