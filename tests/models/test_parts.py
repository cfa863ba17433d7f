"""The packed parts of a step give what the parts give one by one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from explore import examples
from foresay import Draft, DraftBatch, Verdict, VerdictBatch
from foresay.arrays import offsets_of
from foresay.bench.recorded import CountedKv, CountedTarget
from foresay.errors import InputError
from foresay.models.parts import StepParts
from foresay.models.rows import StepRows
from foresay.models.target import KeepsTogether


class _Kv(CountedKv):
    """Remembers which rows were kept."""

    def __init__(self, length: int) -> None:
        super().__init__(length)
        self.kept: list[int] | None = None

    def keep(self, path: Any, /) -> None:
        self.kept = path.tolist()


class _Together(CountedTarget):
    def keep_together(self, kvs: Any, rows: Any, offsets: Any, /) -> None:
        for at, kv in enumerate(kvs):
            kv.keep(rows[offsets[at] : offsets[at + 1]])


TARGET = CountedTarget(vocabulary=50, context=40)


def parts_of(texts: list[Any]) -> StepParts:
    """texts: (stored, tokens, prefill, prefill_logits, needs_logits, draft)."""
    stored, tokens, prefill, logits, needs, drafts = zip(*texts, strict=True)
    return StepParts(
        TARGET,
        [_Kv(length) for length in stored],
        np.concatenate([np.array(each, np.int32) for each in tokens]),
        offsets_of([len(each) for each in tokens]),
        DraftBatch.of(list(drafts)),
        needs_logits=np.array(needs),
        prefill=np.array(prefill, np.int32),
        prefill_logits=np.array(logits, np.int32),
        stored=np.array(stored, np.int32),
    )


@st.composite
def _text(draw: st.DrawFn) -> Any:
    tokens = draw(st.lists(st.integers(0, 49), min_size=1, max_size=5))
    prefill = draw(st.integers(0, len(tokens)))
    needs = draw(st.booleans())
    size = draw(st.integers(0, 6)) if needs else 0
    parents = [draw(st.integers(-1, at - 1)) for at in range(size)]
    draft = Draft([draw(st.integers(0, 49)) for _ in parents], parents)
    logits = draw(st.integers(0, prefill))
    return draw(st.integers(0, 9)), tokens, prefill, logits, needs, draft


def _path(draft: Draft, leaf: int) -> list[int]:
    path: list[int] = []
    while leaf >= 0:
        path.insert(0, leaf)
        leaf = int(draft.parents[leaf])
    return path


@examples(100)
@given(st.lists(_text(), min_size=1, max_size=4), st.integers(0, 1 << 30), st.booleans())
def test_packed_and_one_by_one_are_the_same(texts: Any, seed: int, together: bool) -> None:
    packed = parts_of(texts)
    each, draw = list(packed), np.random.default_rng(seed)
    rows, twin = StepRows.of(packed), StepRows.of(each)
    for name in ("tokens", "parents", "offsets", "needed", "prefill"):
        found, wanted = getattr(rows, name), getattr(twin, name)
        assert found.dtype == wanted.dtype and found.tolist() == wanted.tolist(), name
    paths = [_path(part.draft, int(draw.integers(-1, len(part.draft)))) for part in each]
    for part, path in zip(each, paths, strict=True):
        part.keep(path)
    wanted = [part.kv.kept for part in each]  # type: ignore[attr-defined]
    for part in each:
        part.kv.kept = None  # type: ignore[attr-defined]
    verdicts = VerdictBatch.of([Verdict(path, [0] * (len(path) + 1)) for path in paths])
    packed.keep(verdicts, _Together(vocabulary=50, context=40) if together else None)
    assert [kv.kept for kv in packed.kvs] == wanted  # type: ignore[attr-defined]


def test_who_keeps_together() -> None:
    assert isinstance(_Together(vocabulary=5, context=9), KeepsTogether)
    assert not isinstance(TARGET, KeepsTogether)


DRAFT = Draft([1, 2, 3], [-1, 0, -1])


@pytest.mark.parametrize("path", [[1], [0, 2], [0, 1, 2], [3]])
def test_a_path_that_is_none_is_refused(path: list[int]) -> None:
    parts = parts_of([(0, [1], 0, 0, True, DRAFT)] * 2)
    verdicts = VerdictBatch.of([Verdict([], [1]), Verdict(path, [0] * (len(path) + 1))])
    with pytest.raises(InputError, match="from its root from parent to child"):
        parts.keep(verdicts)


def test_a_draft_beyond_the_context_is_refused() -> None:
    parts_of([(37, [1], 0, 0, True, DRAFT)])  # its depth counts, not its nodes
    with pytest.raises(InputError, match="have 41 tokens; expected at most 40, the context"):
        parts_of([(38, [1], 0, 0, True, DRAFT)])


def test_a_text_that_has_changed_is_refused() -> None:
    parts = parts_of([(3, [1], 0, 0, True, Draft.empty())])
    parts.kvs[0].cut(2)
    with pytest.raises(InputError, match="when 3 tokens were stored, and now there are 2"):
        StepRows.of(parts)
