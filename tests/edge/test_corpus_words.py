"""Which words a corpus file has, and how often; rare words by it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from foresay.corpus import build_from, open_corpus
from foresay.edge.gating import CorpusWords, Rules, read_tokens

TEXT = "The cat saw the cat. A catalogue of dogs; dogs, the Zebra"


def encode(text: str) -> list[int]:
    return [ord(letter) for letter in text]


@pytest.fixture
def words(tmp_path: Path) -> CorpusWords:
    file = tmp_path / "words.corpus"
    build_from([np.array(encode(TEXT), np.int32)], file, vocabulary=128)
    return CorpusWords(open_corpus(file), encode)


def test_counts_by_spaces_and_capitals(words: CorpusWords) -> None:
    assert words["zebra"] == 1 and words["the"] == 3
    assert words["cat"] == 3  # with the one that begins "catalogue"
    assert "dogs" in words and "wolves" not in words
    assert words.get("wolves", 0) == 0
    with pytest.raises(KeyError):
        words["wolves"]
    with pytest.raises(TypeError, match="no list of its words"):
        list(words)
    with pytest.raises(TypeError, match="no list of its words"):
        len(words)


def test_a_space_may_be_part_of_a_token(tmp_path: Path) -> None:
    """As in byte-pair encodings: " cat" is one token and "cat" is another."""

    def encode_words(text: str) -> list[int]:
        return [["cat", " cat", "Cat", " Cat"].index(text)]

    file = tmp_path / "words.corpus"
    build_from([np.array([0, 1, 1, 3], np.int32)], file, vocabulary=4)
    assert CorpusWords(open_corpus(file), encode_words)["cat"] == 4


def test_rare_words_are_hard(words: CorpusWords) -> None:
    rules = Rules((), word_counts=words, least=2)
    text, offsets = read_tokens(
        lambda ids: "".join(map(chr, ids)), encode("the "), encode("cat wolf")
    )
    assert text == "the cat wolf"
    assert rules.mask(text, offsets).tolist() == [False] * 4 + [True] * 4
