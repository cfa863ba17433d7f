"""The attention kernels against their twin, and their promise: bits of a row depend on its text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from core.attention_twin import Numbers, Rule, attend, doubles, path_to, shortened
from core.brute import int32s
from foresay import _core

LEVELS = _core.cpu_levels()
DTYPES = ("float32", "bfloat16")
Shape = tuple[int, int, int, int]  # query heads, key heads, key_dim, value_dim
SHAPES: list[Shape] = [
    (9, 3, 64, 64),
    (4, 4, 24, 80),
    (6, 1, 96, 24),
    (2, 1, 5, 3),
    (16, 2, 33, 130),
    (3, 3, 1, 1),
]
RULES = [
    Rule(),
    Rule(window=1),
    Rule(window=7, softcap=2.0),
    Rule(window=300),
    Rule(chunk=5),
    Rule(chunk=270, window=263),
    Rule(scaling=-0.7, softcap=30.0),
    Rule(scaling=0.0),
    Rule(scaling=1.0, window=40),
]


def rows(rng: np.random.Generator, dtype: str, *shape: int) -> Numbers:
    values = rng.standard_normal(shape).astype(np.float32)
    return values if dtype == "float32" else shortened(values)


@dataclasses.dataclass
class Text:
    """What a model would compute for each token of a text: [layer][heads, tokens, dim]."""

    query: list[Numbers]
    key: list[Numbers]
    value: list[Numbers]

    @classmethod
    def random(cls, seed: int, tokens: int, shapes: Sequence[Shape], dtype: str) -> Text:
        rng = np.random.default_rng(seed)
        return cls(
            [rows(rng, dtype, heads, tokens, dim) for heads, _, dim, _ in shapes],
            [rows(rng, dtype, heads, tokens, dim) for _, heads, dim, _ in shapes],
            [rows(rng, dtype, heads, tokens, dim) for _, heads, _, dim in shapes],
        )

    def __getitem__(self, tokens: Any) -> Text:
        parts = ([a[:, tokens] for a in part] for part in (self.query, self.key, self.value))
        return Text(*parts)

    def __add__(self, other: Text) -> Text:
        pairs = ((self.query, other.query), (self.key, other.key), (self.value, other.value))
        joined = ([np.concatenate(two, 1) for two in zip(*pair, strict=True)] for pair in pairs)
        return Text(*joined)


def new_kv(shapes: Sequence[Shape], dtype: str) -> _core.Kv:
    return _core.Kv([shape[1:] for shape in shapes], dtype)


def chain(count: int) -> list[int]:
    return list(range(-1, count - 1))


def forward(
    kvs: Sequence[_core.Kv],
    texts: Sequence[Text],
    trees: Sequence[Sequence[int]],
    rules: Sequence[Rule],
    *,
    level: str = "",
    threads: int = 1,
    padding: int = 0,
) -> list[list[Numbers]]:
    """One step: for each request, the outputs of each layer, [rows, heads, dim]."""
    offsets = np.concatenate([[0], np.cumsum([len(tree) for tree in trees])])
    step = _core.AttentionStep(
        list(kvs), int32s(offsets), int32s([p for tree in trees for p in tree]), level
    )
    whole = texts[0]
    for text in texts[1:]:
        whole = whole + text
    if padding:
        whole = whole + whole[[0] * padding]
    found: list[list[Numbers]] = [[] for _ in texts]
    for layer, rule in enumerate(rules):
        given = [part[layer][None] for part in (whole.query, whole.key, whole.value)]
        count, heads, dim = given[0].shape[2], given[0].shape[1], given[2].shape[3]
        out = np.full((1, count, heads, dim), 77, given[0].dtype)
        step.attend(
            layer,
            given[0],
            given[1],
            given[2],
            out,
            rule.scaling,
            window=rule.window,
            chunk=rule.chunk,
            softcap=rule.softcap,
            sinks=rule.sinks,
            threads=threads,
        )
        assert (out[0, offsets[-1] :] == 0).all(), "padding is zeroed"
        for i in range(len(texts)):
            found[i].append(out[0, offsets[i] : offsets[i + 1]])
    return found


def random_tree(rng: np.random.Generator, count: int, run: int = 0) -> list[int]:
    """The first `run` rows are a chain, as a prefill's are."""
    return [i - 1 if i < run else int(rng.integers(min(run, i) - 1, i)) for i in range(count)]


def assert_close(found: Numbers, expected: NDArray[np.float64]) -> None:
    if found.dtype == np.uint16:  # half a unit in the last place, and what float32 sums lose
        np.testing.assert_allclose(doubles(found), expected, rtol=2**-8 * 1.01, atol=2e-5)
    else:
        np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)


def same(a: Sequence[Numbers], b: Sequence[Numbers]) -> bool:
    return all(x.tobytes() == y.tobytes() for x, y in zip(a, b, strict=True))


# ---- against the twin ----------------------------------------------------------------------------


LENGTHS, SIZES = (0, 250, 13, 600), ((25, 20), (6, 0), (20, 3), (7, 2))


@dataclasses.dataclass
class Case:
    """Stored texts, a tree of new rows after each, and what the twin makes of them by layer."""

    rules: list[Rule]
    stored: list[Text]
    trees: list[list[int]]
    texts: list[Text]
    expected: list[list[NDArray[np.float64]]]


@lru_cache(maxsize=1)  # the twin is slow, and one for all levels
def case_of(dtype: str, shape: Shape) -> Case:
    rng = np.random.default_rng(hash(shape) % 1000)
    sinks = rng.standard_normal(shape[0]).astype(np.float32)
    rules = [*RULES, Rule(sinks=sinks), Rule(window=3, sinks=10 * sinks)]
    shapes = [shape] * len(rules)
    stored = [Text.random(i, n, shapes, dtype) for i, n in enumerate(LENGTHS)]
    trees = [random_tree(rng, count, run) for count, run in SIZES]
    texts = [Text.random(9 + i, len(tree), shapes, dtype) for i, tree in enumerate(trees)]
    expected = [
        [
            attend(
                (old.key[layer], old.value[layer]),
                tree,
                (new.query[layer], new.key[layer], new.value[layer]),
                rule,
            )
            for layer, rule in enumerate(rules)
        ]
        for old, tree, new in zip(stored, trees, texts, strict=True)
    ]
    return Case(rules, stored, trees, texts, expected)


@pytest.mark.parametrize("level", LEVELS)  # changes first
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_the_twins(level: str, dtype: str, shape: Shape) -> None:
    case = case_of(dtype, shape)
    kvs = [new_kv([shape] * len(case.rules), dtype) for _ in LENGTHS]
    for kv, text, length in zip(kvs[1:], case.stored[1:], LENGTHS[1:], strict=True):
        forward([kv], [text], [chain(length)], case.rules, level=level)
        kv.keep(int32s(range(length)))
    found = forward(kvs, case.texts, case.trees, case.rules, level=level, threads=2, padding=3)
    for kv, length, old, new, given, expected in zip(
        kvs, LENGTHS, case.stored, case.texts, found, case.expected, strict=True
    ):
        kv.check_integrity()
        for layer in range(len(case.rules)):
            assert_close(given[layer], expected[layer])
            assert same([kv.keys(layer)[:, :length]], [old.key[layer]])
            assert same([kv.values(layer)[:, length:]], [new.value[layer]])


def test_a_wrong_twin_is_noticed() -> None:
    shapes = [SHAPES[0]]
    tree, rule = [-1, 0, 0, 1, 2], Rule(window=3)
    text = Text.random(0, 5, shapes, "float32")
    found = forward([new_kv(shapes, "float32")], [text], [tree], [rule])[0][0]
    none = text.key[0][:, :0], text.value[0][:, :0]
    new = text.query[0], text.key[0], text.value[0]
    assert_close(found, attend(none, tree, new, rule))
    with pytest.raises(AssertionError):
        assert_close(found, attend(none, tree, new, rule, by_slot=True))


def test_positions_are_those_of_the_text() -> None:
    kvs = [new_kv(SHAPES[:1], "float32") for _ in range(3)]
    forward(kvs[:1], [Text.random(0, 5, SHAPES[:1], "float32")], [chain(5)], [Rule()])
    kvs[0].keep(int32s([0, 1, 2]))
    step = _core.AttentionStep(kvs, int32s([0, 4, 4, 6]), int32s([-1, 0, -1, 1, -1, -1]))
    assert step.positions.tolist() == [3, 4, 3, 5, 0, 0] and step.positions.dtype == np.int64


def test_scores_beyond_all_bounds() -> None:
    """One key outweighs all, on both sides of a segment's edge; nothing overflows."""
    shape = [(1, 1, 16, 16)]
    text = Text.random(3, 600, shape, "float32")
    for place in (0, 255, 256, 599):
        text.key[0][:] = -1e18
        text.key[0][0, place] = 1e18
        text.query[0][:] = 1e18
        out = forward([new_kv(shape, "float32")], [text], [chain(600)], [Rule()])[0][0]
        assert (out[599, 0] == text.value[0][0, place]).all()


@pytest.mark.parametrize("level", LEVELS)
def test_a_spoilt_row_spoils_no_other(level: str) -> None:
    """What a row does not see is not even multiplied by 0."""
    shapes = [SHAPES[0]]
    text = Text.random(4, 30, shapes, "float32")
    tree = [*chain(20), 9, 20, 21, 19, 23, 24, 25, 26, 27, 28]
    good = forward([new_kv(shapes, "float32")], [text], [tree], [Rule()], level=level)[0][0]
    for bad in (5, 19, 21, 25):
        spoilt = text[list(range(30))]  # a copy
        spoilt.key[0][:, bad], spoilt.value[0][:, bad] = np.nan, np.inf
        out = forward([new_kv(shapes, "float32")], [spoilt], [tree], [Rule()], level=level)[0][0]
        for row in range(30):
            sees = bad in path_to(row, tree)
            assert np.isnan(out[row]).any() if sees else same([out[row]], [good[row]])


# ---- bits ----------------------------------------------------------------------------------------

BIT_SHAPES = [SHAPES[0], SHAPES[1], SHAPES[4], SHAPES[2]]
BIT_RULES = [
    Rule(),
    Rule(window=100),
    Rule(chunk=90, softcap=5.0),
    Rule(sinks=np.ones(6, np.float32)),
]
TOKENS = 530


def token_by_token(text: Text, dtype: str, level: str) -> tuple[list[Numbers], _core.Kv]:
    """The outputs of each layer, [tokens, heads, dim]."""
    kv = new_kv(BIT_SHAPES, dtype)
    found = []
    for i in range(TOKENS):
        found.append(forward([kv], [text[i : i + 1]], [[-1]], BIT_RULES, level=level)[0])
        kv.keep(int32s([0]))
    return [np.concatenate(layer) for layer in zip(*found, strict=True)], kv


@pytest.fixture(scope="module", params=[(d, v) for d in DTYPES for v in LEVELS], ids=str)
def known(
    request: pytest.FixtureRequest,
) -> Iterator[tuple[Text, str, str, list[Numbers], _core.Kv]]:
    dtype, level = request.param
    text = Text.random(7, TOKENS, BIT_SHAPES, dtype)
    yield text, dtype, level, *token_by_token(text, dtype, level)


Known = tuple[Text, str, str, list[Numbers], _core.Kv]


def assert_equal_kvs(kv: _core.Kv, other: _core.Kv, length: int) -> None:
    kv.check_integrity()
    for layer in range(len(BIT_SHAPES)):
        assert same([kv.keys(layer)[:, :length]], [other.keys(layer)[:, :length]])
        assert same([kv.values(layer)[:, :length]], [other.values(layer)[:, :length]])


@pytest.mark.parametrize("sizes", [[1, 2, 3, 5, 8, 16, 17], [64], [100, 1], [TOKENS]], ids=str)
def test_chunks_change_no_bit(known: Known, sizes: list[int]) -> None:
    text, dtype, level, expected, reference = known
    kv, at, turn = new_kv(BIT_SHAPES, dtype), 0, 0
    while at < TOKENS:
        size = min(sizes[turn % len(sizes)], TOKENS - at)
        part = text[at : at + size]
        out = forward([kv], [part], [chain(size)], BIT_RULES, level=level, threads=1 + turn % 3)[0]
        assert same(out, [layer[at : at + size] for layer in expected]), at
        kv.keep(int32s(range(size)))
        at, turn = at + size, turn + 1
    assert kv.length == TOKENS
    assert_equal_kvs(kv, reference, TOKENS)


def test_drafts_neighbours_and_threads_change_no_bit(known: Known) -> None:
    """Trees in which the true tokens stand anywhere, beside other requests that do the same."""
    text, dtype, level, expected, reference = known
    rng = np.random.default_rng(11)
    wrong = Text.random(12, 400, BIT_SHAPES, dtype)
    kvs = [new_kv(BIT_SHAPES, dtype) for _ in range(4)]
    for i, kv in enumerate(kvs[1:]):
        kv.copy_from(reference, (100, 250, 37)[i])
    while kvs[0].length < TOKENS:
        trees, texts, paths = [], [], []
        for kv in kvs:
            left = TOKENS - kv.length
            count = min(int(rng.choice([1, 2, 8, 20, 45])), left)
            tree = random_tree(rng, count, int(rng.integers(0, count + 1)))
            path = path_to(int(rng.integers(count)), tree) if count else []
            rows_ = wrong[rng.integers(0, 400, count)]
            for depth, node in enumerate(path):
                true = text[[kv.length + depth]]
                for part in range(3):
                    for layer in range(len(BIT_SHAPES)):
                        old = (rows_.query, rows_.key, rows_.value)[part][layer]
                        old[:, node] = (true.query, true.key, true.value)[part][layer][:, 0]
            trees.append(tree)
            texts.append(rows_)
            paths.append(path)
        found = forward(
            kvs, texts, trees, BIT_RULES, level=level, threads=int(rng.integers(1, 5)), padding=2
        )
        for kv, path, out in zip(kvs, paths, found, strict=True):
            at = kv.length
            assert same([a[path] for a in out], [e[at : at + len(path)] for e in expected])
            kv.keep(int32s(path))
    for kv in kvs:
        assert_equal_kvs(kv, reference, kv.length)


@pytest.mark.parametrize("before", [0, 3, 30, 200])
def test_two_texts_zipped_in_one_tree(known: Known, before: int) -> None:
    """No row stands where its position says, for longer than a segment."""
    text, dtype, level, expected, reference = known
    count = min(300, TOKENS - before)
    kv = new_kv(BIT_SHAPES, dtype)
    kv.copy_from(reference, before)
    order = [before + i // 2 if i % 2 else 7 for i in range(2 * count)]
    tree = [-1, -1, *range(2 * count - 2)]
    out = forward([kv], [text[order]], [tree], BIT_RULES, level=level, threads=2)[0]
    odd = slice(1, None, 2)
    assert same([a[odd] for a in out], [e[before : before + count] for e in expected])
    kv.keep(int32s(range(1, 2 * count, 2)))
    assert_equal_kvs(kv, reference, before + count)


def test_what_was_cut_or_copied_is_as_if_never_there(known: Known) -> None:
    text, dtype, level, expected, reference = known
    rng = np.random.default_rng(13)
    kv = new_kv(BIT_SHAPES, dtype)
    for _ in range(12):
        length = int(rng.integers(0, TOKENS - 30))
        if rng.random() < 0.5 or kv.length < length:
            kv.copy_from(reference, length)
        kv.cut(length)
        kv.reserve(int(rng.integers(0, 1500)))
        count = int(rng.integers(1, 30))
        part = text[length : length + count]
        out = forward([kv], [part], [chain(count)], BIT_RULES, level=level)[0]
        assert same(out, [layer[length : length + count] for layer in expected])
        kv.keep(int32s(range(int(rng.integers(0, count + 1)))))
        assert_equal_kvs(kv, reference, kv.length)
