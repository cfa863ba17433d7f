"""The frozen index against its slow twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.brute import fibonacci, int32s
from core.frozen_files import HASH, build, corpus_of
from core.frozen_twin import Documents, contexts
from explore import tries
from foresay._core import FrozenBuilder, FrozenIndex
from foresay.errors import InputError


def agrees(index: FrozenIndex, documents: Documents, text: list[int], max_context: int) -> None:
    """Every prefix of the text is asked, so the cursor also passes through every failure."""
    for end in range(len(text) + 1):
        asked = text[:end]
        expected = contexts(documents, asked, max_context, 8)
        longest = expected[0][0] if expected else 0
        assert index.advance(int32s(asked))[0] == longest
        assert index.contexts(int32s(asked), 8) == expected, asked
        fewer = [(*context[:4], context[4][:2]) for context in expected]
        assert index.contexts(int32s(asked), 2) == fewer, asked
        for length in (0, 1, 3):
            expected = contexts(documents, asked[len(asked) - length :], max_context, 8)
            if longest >= length:
                assert index.contexts_shortened(int32s(asked), length) == expected, asked


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("corpus")


def corpora(alphabet: int) -> st.SearchStrategy[Documents]:
    document = st.lists(st.integers(0, alphabet - 1), min_size=1, max_size=40)
    return st.lists(document, min_size=1, max_size=8).map(lambda ds: ds + ds[: len(ds) // 3])


@settings(max_examples=tries(150))
@given(
    st.integers(1, 4).flatmap(
        lambda a: st.tuples(corpora(a), st.lists(st.integers(0, a), max_size=25))
    ),
    st.sampled_from([1, 2, 3, 5, 32]),
    st.sampled_from([16, 64, 1000, 1 << 20]),
    st.sampled_from([1, 2, 3]),
)
def test_agrees_with_brute_force(
    folder: Path, case: tuple[Documents, list[int]], max_context: int, memory: int, threads: int
) -> None:
    documents, text = case
    path = folder / "index"
    index = build(path, documents, max_context=max_context, memory_bytes=memory, threads=threads)
    agrees(index, documents, text, max_context)
    agrees(index, documents, documents[-1][:12], max_context)


NAMED: dict[str, Documents] = {
    "one token": [[7]],
    "a^n": [[0] * 300],
    "a^n in many documents": [[0] * n for n in range(1, 40)],
    "fibonacci": [fibonacci(400)],
    "tiny documents": [[n % 3] for n in range(200)] + [[0, 1]] * 90,
    "duplicates": [[1, 2, 3, 4, 5, 6, 7, 8] * 6] * 80,
    "all different": [list(range(250))],
    "heavy": [np.random.default_rng(n).integers(0, 3, 30).tolist() for n in range(60)],
    "wide": [[5, n % 90, 5, n * n % 97] for n in range(300)],
    "ends of vocabulary": [[0, 299, 0, 299, 299]],
}


@pytest.mark.parametrize("max_context", [1, 4, 32])
@pytest.mark.parametrize("name", NAMED)
def test_named_corpora(tmp_path: Path, name: str, max_context: int) -> None:
    documents = NAMED[name]
    index = build(tmp_path / "index", documents, max_context=max_context)
    rng = np.random.default_rng(0)
    agrees(index, documents, documents[-1][:50], max_context)
    agrees(index, documents, [0] * 40 + [1] + [0] * 5, max_context)
    agrees(
        index, documents, rng.integers(0, 4, 30).tolist() + documents[0][:5] + [298], max_context
    )


@pytest.mark.parametrize("name", NAMED)
def test_the_file_depends_on_nothing_but_the_documents(tmp_path: Path, name: str) -> None:
    files = set()
    for i, (memory, threads) in enumerate(
        [(1 << 30, 2), (1 << 30, 1), (16, 1), (1600, 2), (3000, 3)]
    ):
        build(tmp_path / str(i), NAMED[name], memory_bytes=memory, threads=threads)
        files.add((tmp_path / str(i)).read_bytes())
    assert len(files) == 1


def large_corpora() -> dict[str, Documents]:
    rng = np.random.default_rng(3)
    template = rng.integers(0, 250, 200).tolist()
    return {
        "a^n": [[0] * 50_000],
        "two letters": [rng.integers(0, 2, 50_000).tolist()],
        "letters of all ranks": [(rng.integers(0, 17, 5000) ** 2).tolist() for _ in range(10)],
        "one template": [[*template[:n], n] for n in rng.integers(1, 200, 600).tolist()],
        "fibonacci": [fibonacci(50_000)],
        "periods": [([0] * n + [1]) * (1000 // n) for n in range(1, 60)],
    }


@pytest.mark.parametrize("name", large_corpora())
def test_larger_corpora_are_sound_and_small(tmp_path: Path, name: str) -> None:
    """verify() holds each file against the definition; memory for 150 ranks changes nothing."""
    documents = large_corpora()[name]
    build(tmp_path / "index", documents)
    build(tmp_path / "small", documents, memory_bytes=4800)
    assert (tmp_path / "index").read_bytes() == (tmp_path / "small").read_bytes()
    fixed = 512 + 4 * 301 + 10 * 64
    assert (tmp_path / "index").stat().st_size - fixed <= 24 * sum(map(len, documents))


def test_no_match_and_no_draft_crosses_a_document(tmp_path: Path) -> None:
    index = build(tmp_path / "index", [[1, 2], [3, 4]])
    assert index.advance(int32s([1, 2, 3]))[0] == 1
    assert index.contexts(int32s([1, 2])) == [(2, 0, -1, -1, [])]
    assert index.continuation(int32s([1]), 10).tolist() == [2]
    assert index.continuation(int32s([2]), 10).tolist() == []


def test_continuation_of_the_first_and_last_occurrence(tmp_path: Path) -> None:
    index = build(tmp_path / "index", [[1, 2, 3, 4], [1, 2, 5, 6, 7], [9, 2]])
    assert index.continuation(int32s([1, 2]), 10, latest=False).tolist() == [3, 4]
    assert index.continuation(int32s([1, 2]), 10).tolist() == [5, 6, 7]
    assert index.continuation(int32s([1, 2]), 2).tolist() == [5, 6]
    assert index.continuation(int32s([2]), 10).tolist() == [5, 6, 7]  # the last that is followed
    assert index.continuation(int32s([8]), 10).tolist() == []


def test_unknown_tokens_match_nothing(tmp_path: Path) -> None:
    index = build(tmp_path / "index", [[1, 2, 3]])
    for token in (-1, -(2**31), 299, 300, 2**31 - 1):
        assert index.advance(int32s([1, 2, token])) == (0, 0, 0)
        assert index.advance(int32s([token, 1, 2]))[0] == 2
    assert index.contexts(int32s([])) == []


def test_match_lengths_follow_the_cursor(tmp_path: Path) -> None:
    index = build(tmp_path / "index", [[1, 2, 3], [2, 3, 1]])
    assert index.match_lengths(int32s([1, 2, 3, 1, 2, 9])).tolist() == [1, 2, 3, 3, 2, 0]


def test_tokens_are_int32_and_never_converted(tmp_path: Path) -> None:
    index = build(tmp_path / "index", [[1, 2, 3]])
    wrongs: list[Any] = [np.array([1.5]), np.array([1]), [1], np.zeros((2, 2), np.int32)]
    for wrong in wrongs:
        with pytest.raises(TypeError):
            index.advance(wrong)


@pytest.mark.parametrize(
    "options",
    [
        {"vocabulary": 0},
        {"vocabulary": 2**24 + 1},
        {"max_context": 0},
        {"max_context": 255},
        {"threads": 0},
    ],
)
def test_options_out_of_range(tmp_path: Path, options: dict[str, int]) -> None:
    with pytest.raises(InputError, match="expected 1 to"):
        build(tmp_path / "index", [[1]], **options)
    assert not list(tmp_path.iterdir())


def test_misuse_of_the_builder(tmp_path: Path) -> None:
    builder = FrozenBuilder(str(tmp_path / "index"), vocabulary=10, tokenizer_hash=HASH)
    for token in (-1, 10):
        with pytest.raises(InputError, match=f"token {token}; expected 0 to 9"):
            builder.add_document(int32s([1, token]))
    builder.add_document(int32s([]))
    assert (builder.tokens, builder.documents) == (0, 0)
    with pytest.raises(InputError, match="empty"):
        builder.finish()
    with pytest.raises(InputError, match="finished"):
        builder.add_document(int32s([1]))
    assert not list(tmp_path.iterdir())
    with pytest.raises(InputError, match="32"):
        FrozenBuilder(str(tmp_path / "index"), vocabulary=10, tokenizer_hash=b"short")
    with pytest.raises(FileNotFoundError):
        FrozenBuilder(str(tmp_path / "missing/index"), vocabulary=10, tokenizer_hash=HASH)


def test_following_a_text_takes_the_logarithm_of_the_corpus(tmp_path: Path) -> None:
    """Entries that are searched for a token: ten times the corpus adds a constant."""
    random = np.random.default_rng(3)
    words = [random.integers(0, 500, random.integers(2, 9)) for _ in range(300)]
    median = []
    for tokens in (3_000, 30_000, 300_000):
        parts: list[int] = []
        while len(parts) < tokens:
            parts += words[int(random.zipf(1.3)) % len(words)].tolist()
        index = FrozenIndex.open(str(corpus_of(tmp_path / str(tokens), parts)))
        steps = index.advance_steps(int32s(parts[-2000:] + random.integers(0, 500, 500).tolist()))
        assert np.mean(steps) <= 8 * np.log2(tokens)
        median.append(float(np.median(steps)))
    assert median[2] - median[1] <= median[1] - median[0] + 4
