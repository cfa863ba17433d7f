"""The draft values: what they accept, what they refuse and in which words."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay import Draft, DraftBatch, TopK, Verdict, VerdictBatch, Wants
from foresay.errors import ForesayError, InputError, TokenTypeError, UnknownGroup

i32 = np.int32


@st.composite
def drafts(draw: st.DrawFn) -> Draft:
    n = draw(st.integers(0, 8))
    tokens = draw(st.lists(st.integers(0, 2**31 - 2), min_size=n, max_size=n))
    parents = [draw(st.integers(-1, i - 1)) for i in range(n)]
    scores: list[float] = []
    for parent in parents:
        top = scores[parent] if parent >= 0 else 1.0
        scores.append(draw(st.floats(0, top, width=32)))
    return Draft(tokens, parents, scores)


@st.composite
def verdicts(draw: st.DrawFn) -> Verdict:
    path = sorted(draw(st.sets(st.integers(0, 20), max_size=6)))
    n = len(path) + 1
    return Verdict(path, draw(st.lists(st.integers(0, 2**31 - 2), min_size=n, max_size=n)))


@given(st.lists(drafts(), max_size=6))
def test_packing_drafts_round_trips(items: list[Draft]) -> None:
    batch = DraftBatch.of(items)
    assert len(batch) == len(items)
    assert [d.tokens.tolist() for d in batch] == [d.tokens.tolist() for d in items]
    assert all(a == b for a, b in zip(batch, items, strict=True) if len(b))
    assert DraftBatch.of(batch) is batch
    assert (
        DraftBatch(batch.tokens, batch.parents, batch.offsets, batch.scores, batch.probs) == batch
    )
    assert all(batch[i] == batch[i - len(batch)] for i in range(len(batch)))
    assert list(batch[1:3]) == list(batch)[1:3]


@given(st.lists(verdicts(), max_size=6))
def test_packing_verdicts_round_trips(items: list[Verdict]) -> None:
    batch = VerdictBatch.of(items)
    assert list(batch) == items
    assert VerdictBatch.of(batch) is batch
    assert VerdictBatch(batch.tokens, batch.offsets, batch.path, batch.path_offsets) == batch
    assert list(batch[::-1]) == items[::-1]


def test_a_chain_is_a_tree() -> None:
    chain = Draft.chain([7, 8, 9], scores=[0.5, 0.25, 0.25])
    assert chain == Draft([7, 8, 9], [-1, 0, 1], [0.5, 0.25, 0.25])
    assert chain != Draft.chain([7, 8, 9])
    assert len(Draft.chain([])) == 0 and Draft.chain([]) == Draft.empty()
    assert chain.tokens.dtype == chain.parents.dtype == np.int32


def test_int32_arrays_are_kept_without_a_copy() -> None:
    tokens = np.array([1, 2], i32)
    assert Draft.chain(tokens).tokens is tokens
    strided = np.arange(6, dtype=i32)[::2]
    assert Draft.chain(strided).tokens.flags.c_contiguous


def test_probs_and_wants_travel() -> None:
    probs = np.full((2, 5), 0.2, np.float32)
    batch = DraftBatch.of([Draft.chain([1, 2], probs=probs), Draft.empty()])
    assert batch.probs is not None and batch.probs.shape == (2, 5)
    assert batch[1].probs is not None and batch[1].probs.shape == (0, 5)
    topk = TopK(np.zeros((3, 4), i32), np.zeros((3, 4), np.float32))
    hidden = np.zeros((2, 6), np.float32)
    one = Verdict([0], [1, 5], topk, hidden)
    packed = VerdictBatch.of([one, one])
    assert packed.topk is not None and packed.topk.tokens.shape == (6, 4)
    assert packed.hidden is not None and packed.hidden.shape == (4, 6)
    assert packed[1] == one != Verdict([0], [1, 5], topk.first(3), hidden)
    assert one != Verdict([0], [1, 5], topk.take(np.array([0, -1, 2])), hidden)
    assert Wants() == Wants(topk=0, hidden=False)


def test_reprs_are_short() -> None:
    assert repr(Draft.chain([1, 2])) == "Draft(tokens=[1, 2], parents=[-1, 0])"
    assert len(repr(Draft.chain(range(1000)))) < 150
    assert repr(DraftBatch.of([Draft.chain([1])])) == "DraftBatch(1 drafts, 1 nodes)"
    assert repr(Verdict([], [3])) == "Verdict(path=[], tokens=[3])"
    assert repr(VerdictBatch.of([Verdict([], [3])])) == "VerdictBatch(1 verdicts, 1 tokens)"


# Untyped on purpose: a type checker would refuse most of this before it runs.
chain: Any = Draft.chain
draft: Any = Draft
draft_batch: Any = DraftBatch
verdict: Any = Verdict
verdict_batch: Any = VerdictBatch
topk: Any = TopK


def floats(*shape: int) -> Any:
    return np.zeros(shape, np.float32)


def rows(count: int) -> TopK:
    return TopK(np.zeros((count, 2), i32), floats(count, 2))


REFUSED: list[tuple[str, Callable[[], Any], type[ForesayError], str]] = [
    ("float array", lambda: chain(np.array([1.0])), TokenTypeError, "float64"),
    ("float list", lambda: chain([1, 2.5]), TokenTypeError, r"tokens\[1\] is 2.5"),
    ("string", lambda: chain(["a"]), TokenTypeError, "'a'"),
    ("int64 array", lambda: chain(np.array([1])), TokenTypeError, "int64"),
    ("two dimensions", lambda: draft([[1]], [-1]), TokenTypeError, "expected an int"),
    ("negative token", lambda: chain([3, -4]), InputError, r"tokens\[1\] is -4.*0 to 2147483646"),
    ("huge token", lambda: chain([2**31 - 1]), InputError, "2147483647"),
    ("wider than 64 bit", lambda: chain([2**70]), InputError, "0 to 2147483646"),
    (
        "parent is a child",
        lambda: draft([1, 2], [-1, 1]),
        InputError,
        r"parents\[1\] is 1.*-1 to 0",
    ),
    ("parent too low", lambda: draft([1], [-2]), InputError, "-2"),
    ("missing parent", lambda: draft([1, 2], [-1]), InputError, "2 tokens but 1 parents"),
    ("missing score", lambda: draft([1], [-1], []), InputError, "0 scores"),
    ("score above 1", lambda: draft([1], [-1], [1.5]), InputError, "1.5.*0 to 1"),
    ("score nan", lambda: draft([1], [-1], [float("nan")]), InputError, "nan"),
    ("score rises", lambda: chain([1, 2], [0.25, 0.5]), InputError, "expected at most its parent"),
    ("float64 scores", lambda: draft([1], [-1], np.array([0.5])), TokenTypeError, "float64"),
    ("nested scores", lambda: draft([1], [-1], [[0.5]]), TokenTypeError, r"scores\[0\] is \[0.5"),
    ("score is a string", lambda: draft([1], [-1], ["a"]), TokenTypeError, "'a'; expected a num"),
    ("score is a bool", lambda: draft([1], [-1], [True]), TokenTypeError, "True; expected a num"),
    ("huge score", lambda: draft([1], [-1], [1e300]), InputError, "inf.*0 to 1"),
    ("huge int score", lambda: draft([1], [-1], [10**400]), InputError, "too large"),
    ("ragged tokens", lambda: chain([[1], [1, 2]]), TokenTypeError, r"tokens\[0\] is \[1\]"),
    ("probs list", lambda: draft([1], [-1], probs=[[0.5]]), TokenTypeError, r"a list; .*\[1, voc"),
    (
        "probs of a batch",
        lambda: draft_batch([1], [-1], [0, 1], probs="x"),
        TokenTypeError,
        "probs is a str",
    ),
    (
        "probs shape",
        lambda: draft([1], [-1], probs=np.zeros((2, 3), np.float32)),
        InputError,
        r"\[2, 3\].*\[1, vocab",
    ),
    ("offsets start", lambda: draft_batch([1], [-1], [1, 1]), InputError, "expected 0 to 1"),
    ("offsets end", lambda: draft_batch([1], [-1], [0, 2]), InputError, "expected 0 to 1"),
    ("offsets fall", lambda: draft_batch([1, 2], [-1, 0], [0, 2, 1, 2]), InputError, "fall"),
    ("offsets empty", lambda: draft_batch([], [], []), InputError, "empty"),
    (
        "parent in another draft",
        lambda: draft_batch([1, 2], [-1, 0], [0, 1, 2]),
        InputError,
        "parents",
    ),
    (
        "some have scores",
        lambda: DraftBatch.of([chain([1]), chain([1], [0.5])]),
        InputError,
        "all or none",
    ),
    ("nothing committed", lambda: verdict([], []), InputError, "at least one token more"),
    ("path without own token", lambda: verdict([0], [1]), InputError, "path of 1"),
    ("path not rising", lambda: verdict([1, 1], [1, 2, 3]), InputError, "expected rising"),
    ("path below 0", lambda: verdict([-1], [1, 2]), InputError, "-1"),
    ("path int64", lambda: verdict(np.array([0]), [1, 2]), TokenTypeError, "path has dtype int64"),
    ("path offsets", lambda: verdict_batch([1], [0, 1], [], [0]), InputError, "path_offsets"),
    (
        "topk alone",
        lambda: verdict_batch([1], [0, 1], [], [0, 0], topk=rows(1)),
        InputError,
        "together",
    ),
    ("topk string", lambda: verdict([], [1], topk="x"), TokenTypeError, "topk is a str"),
    ("topk flat", lambda: topk(np.zeros(3, i32), floats(3)), TokenTypeError, r"int32\[3\]; "),
    ("topk int64", lambda: topk(np.zeros((1, 2), int), floats(1, 2)), TokenTypeError, "int64"),
    ("topk double", lambda: topk(rows(1).tokens, np.zeros((1, 2))), TokenTypeError, "float64"),
    ("topk of two", lambda: topk(rows(1).tokens, floats(2, 2)), TokenTypeError, r"float32\[1, k"),
    ("topk too wide", lambda: topk(rows(1).tokens, floats(1, 3)), InputError, "expected the same"),
    ("topk below -1", lambda: topk(rows(1).tokens - 2, floats(1, 2)), InputError, "a token is -2"),
    (
        "hidden of others",
        lambda: verdict([0], [1, 2], None, floats(3, 4)),
        TokenTypeError,
        r"float32\[3, 4\]; expected an array float32\[2, width\]",
    ),
    (
        "hidden of a batch",
        lambda: verdict_batch([1], [0, 1], [], [0, 0], hidden=np.zeros((1, 4))),
        TokenTypeError,
        "hidden is float64",
    ),
    ("wants of -1", lambda: Wants(topk=-1), InputError, "topk is -1"),
    ("wants of much", lambda: Wants(hidden=3), InputError, "hidden is 3"),  # type: ignore[arg-type]
    (
        "topk of a batch",
        lambda: verdict_batch([1], [0, 1], [], [0, 0], topk=[[1]], topk_offsets=[0, 1]),
        TokenTypeError,
        "topk is a list",
    ),
    (
        "topk offsets",
        lambda: verdict_batch([1], [0, 1], [], [0, 0], rows(0), topk_offsets=[0]),
        InputError,
        "2 offsets and 1 topk_offsets",
    ),
]


@pytest.mark.parametrize(
    ("make", "error", "sentence"), [r[1:] for r in REFUSED], ids=[r[0] for r in REFUSED]
)
def test_refused(make: Callable[[], Any], error: type[ForesayError], sentence: str) -> None:
    with pytest.raises(error, match=sentence):
        make()


def test_index_errors() -> None:
    with pytest.raises(IndexError, match="index 1"):
        DraftBatch.of([Draft.empty()])[1]
    with pytest.raises(IndexError, match="index -2"):
        VerdictBatch.of([Verdict([], [1])])[-2]


def test_error_tree() -> None:
    assert issubclass(TokenTypeError, TypeError) and issubclass(InputError, ValueError)
    assert str(UnknownGroup("there is no group 'x'")) == "there is no group 'x'"
