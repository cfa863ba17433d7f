# ruff: noqa: RUF001 (full-width and typographic signs are meant)
"""Hard spans in English and Chinese, with what must not be marked; tokens by their offsets."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foresay.corpus import build_from, open_corpus
from foresay.edge.text_rules import (
    KINDS,
    CorpusWords,
    Kind,
    Rules,
    count_tokens,
    hard_spans,
    rare_words,
    read_tokens,
    tokens_in,
)
from foresay.errors import InputError

CASES: dict[Kind, list[tuple[str, list[str]]]] = {
    "number": [
        ("from 3 to 1,234.56 and -7", ["3", "1,234.56", "-7"]),
        ("at 14:30, 6.02e23, the 21st", ["14:30", "6.02e23", "21st"]),
        ("version A-1 of GPT4", ["1", "4"]),  # no sign behind a letter
        ("twenty-one of two hundred and five", ["twenty-one", "two hundred and five"]),
        ("one of them, no one, someone, often, tent", []),
        ("共有３２０个，约10万人", ["３２０", "10万"]),
        ("三百二十人，二〇二四，十五", ["三百二十", "二〇二四", "十五"]),
        ("第一，三点一四，三个，五 个", ["第一", "三点一四", "三"]),
        ("一个人一起吃三明治，十分高兴，万一下雨，千万不要", []),
        ("十分钟，两天，一年", ["十", "两", "一"]),
        ("四川、百姓、千里、一一介绍", []),
        ("", []),
    ],
    "date": [
        ("on March 5, 2024 or Mar. 5th", ["March 5, 2024", "Mar. 5th"]),
        ("5 March 2024, the 5th of May", ["5 March 2024", "5th of May"]),
        ("in March 2024 on Monday", ["March 2024", "Monday"]),
        ("2024-03-05, 2024/3/5, 3/5/2024", ["2024-03-05", "2024/3/5", "3/5/2024"]),
        ("you may 5 times march; Marching 5", []),
        ("2024-0305, 1/2, 12024-03-05, 1.2.3", []),
        ("于2024年3月5日，2024 年 3 月", ["2024年3月5日", "2024 年 3 月"]),
        ("二〇二四年三月五日，十二月", ["二〇二四年三月五日", "十二月"]),
        ("２０２４年，98年3月，星期三", ["２０２４年", "98年3月", "星期三"]),
        ("在March 5去", ["March 5"]),
        ("三十年来，三个月，年月，周末", []),
    ],
    "money": [
        ("$5, US$ 20, €3.50, £7", ["$5", "US$ 20", "€3.50", "£7"]),
        ("$3.5 million, 20 dollars, 7 EUR", ["$3.5 million", "20 dollars", "7 EUR"]),
        ("twenty-one dollars", ["twenty-one dollars"]),
        ("$ and dollars, 5 dollarish, 20 metres", []),
        ("¥20，￥１００，RMB 300", ["¥20", "￥１００", "RMB 300"]),
        ("三百二十元，10万美元，五块钱", ["三百二十元", "10万美元", "五块钱"]),
        ("3.5 亿元，人民币50", ["3.5 亿元", "人民币50"]),
        ("元旦有3人，2元素，三块蛋糕", []),
    ],
    "percentage": [
        ("12%, 3.5 %, 7 percent, 7 per cent", ["12%", "3.5 %", "7 percent", "7 per cent"]),
        ("five percent, 2 percentage points", ["five percent", "2 percentage points"]),
        ("a percentage, 100 percentile, % alone", []),
        ("１２％，百分之三十，百分之五", ["１２％", "百分之三十", "百分之五"]),
        ("三成，2个百分点，5‰", ["三成", "2个百分点", "5‰"]),
        ("百分之多少，2成功，百分百", []),
    ],
    "name": [
        ("Then Angela Merkel flew to New York.", ["Angela Merkel", "New York"]),
        ("I met Mr. Smith and J. R. Tolkien", ["Mr. Smith", "J. R. Tolkien"]),
        ("the work of NASA and José Álvarez", ["NASA", "José Álvarez"]),
        ("Dogs bark. Cats sleep! Birds?\nFish swim.", []),
        ('He said, "Come here." “Then go.” 1. First', []),
        ("and I think I'm late on Monday in March", []),
        ("- Item\n* Other\n# Heading", []),
        ("王小明和张伟很高兴", ["王小明", "张伟"]),
        ("我请李娜去北京，欧阳修写诗", ["李娜", "欧阳修"]),
        ("张先生问刘老师", ["张先生", "刘老师"]),
        ("周末任务的程序，提高效率，任何方法", []),
        ("谢谢，韩国，非常高兴，经常，地方", []),
    ],
}


@pytest.mark.parametrize(
    ("kind", "text", "wanted"),
    [(kind, text, wanted) for kind, cases in CASES.items() for text, wanted in cases],
)
def test_spans(kind: Kind, text: str, wanted: list[str]) -> None:
    found = hard_spans(text, [kind])
    assert [text[start:end] for start, end, _ in found] == wanted
    assert {span.kind for span in found} <= {kind}


def test_every_rule_has_cases_with_and_without_spans_in_both_languages() -> None:
    assert CASES.keys() == set(KINDS)
    for cases in CASES.values():
        seen = {(bool(wanted), max(text, default="a") >= "\u4e00") for text, wanted in cases}
        assert len(seen) == 4


def test_spans_of_all_rules_come_in_order_and_may_overlap() -> None:
    found = hard_spans("It is $5 on March 5.")
    assert found == [(6, 8, "money"), (7, 8, "number"), (12, 19, "date"), (18, 19, "number")]


# -- rare words --------------------------------------------------------------------------------


def test_rare_english_words() -> None:
    counts = Counter({"the": 90, "dog": 5, "zygote": 4})
    text = "The dog, the zygote and a dog's"
    found = [text[s:e] for s, e, _ in rare_words(text, counts)]
    assert found == ["zygote", "and", "a", "dog's"]
    assert rare_words(text, counts, least=1)[0][:2] == (20, 23)  # `and`: not in the table


def test_rare_chinese_words_are_the_longest_of_the_table() -> None:
    counts = {"我们": 50, "喜欢": 20, "饕餮": 1, "我": 90, "们": 1}
    text = "我们喜欢饕餮，魑"
    assert [text[s:e] for s, e, _ in rare_words(text, counts)] == ["饕餮", "魑"]


# -- tokens ------------------------------------------------------------------------------------


def test_tokens_that_share_a_character_with_a_span_are_hard() -> None:
    pieces = ["It", " cost", " $", "12", "34", ".", " Then"]
    text = "".join(pieces)
    hard = Rules().mask(text, [[0, 2], [2, 7], [7, 9], [9, 11], [11, 13], [13, 14], [14, 19]])
    assert [piece for piece, h in zip(pieces, hard, strict=True) if h] == [" $", "12", "34"]


def test_a_token_beside_a_span_is_not_hard() -> None:
    spans = [(2, 4, "number")]
    offsets = [[0, 2], [1, 3], [2, 4], [3, 4], [4, 6]]
    assert tokens_in(spans, offsets, 6).tolist() == [False, True, True, True, False]


def test_tokens_that_complete_no_character_stand_for_the_next_one() -> None:
    texts = ["", "5", "5\ufffd", "5元", "5元\ufffd", "5元的"]  # after so many tokens
    text, offsets = read_tokens(lambda ids: texts[len(ids)], [], [1, 2, 3, 4, 5])
    assert offsets.tolist() == [[0, 1], [1, 1], [1, 2], [2, 2], [2, 3]]
    assert Rules().mask(text, offsets).tolist() == [True, True, True, False, False]


def test_the_text_before_the_draft_decides() -> None:
    """A draft that goes on with a number, or with a sentence."""
    before = "The year is 20"
    assert Rules().mask(before + "24", [[14, 16]]).tolist() == [True]
    assert Rules().mask("He ended. Then", [[9, 14]]).tolist() == [False]
    assert Rules().mask("He met Then", [[6, 11]]).tolist() == [True]


def test_rules_with_tables() -> None:
    counts = count_tokens([[1] * 9, np.array([2], np.int32), []], 4)
    assert counts.tolist() == [0, 9, 1, 0]
    offsets = [[0, 3], [3, 7]]
    for tokens, hard in (([1, 2], [False, True]), ([1, 7], [False, True]), ([3, 1], [True, False])):
        assert Rules((), token_counts=counts).mask("the cat", offsets, tokens).tolist() == hard
    rules = Rules((), word_counts={"cat": 9}, least=5)
    assert rules.mask("the cat", offsets).tolist() == [True, False]


@given(
    st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), max_size=6),
    st.lists(st.tuples(st.integers(0, 20), st.integers(0, 6)), max_size=8),
)
def test_tokens_against_characters(
    spans: list[tuple[int, int]], tokens: list[tuple[int, int]]
) -> None:
    hard = {c for start, size in spans for c in range(start, start + size)}
    found = tokens_in(
        [(start, start + size, "number") for start, size in spans],
        [[start, start + size] for start, size in tokens],
        30,
    )
    wanted = [bool(hard & set(range(start, start + max(size, 1)))) for start, size in tokens]
    assert found.tolist() == wanted


LONG = [
    *("1", "1,", "1.", "-", "- ", "1e", "$1", "2024-", "3/", "%", "．", " ", "\n "),
    *("一", "第", "三点", "百分之", "年月", "2024年", "周", "王", "张王", "1 百分"),
    *("A ", "A. ", "a-", "a'", "two ", "two and ", "March ", "Mon", "'", "“A", "Mr. "),
]


@pytest.mark.parametrize("piece", LONG)
def test_rules_take_linear_time(piece: str) -> None:
    """50 000 characters in 1.5 seconds of processor time. The slowest takes 0.3 on a quiet Xeon;
    of three quadratic patterns the quickest took 3."""
    text = (piece * 50_000)[:50_000]
    begun = time.thread_time()  # other threads of this process may be at work, too
    hard_spans(text)
    assert time.thread_time() - begun < 1.5


@given(st.text(alphabet="1２一三十百万点第年月日元%$ .,-:'\"AMarch5 王张的\n两tweny", max_size=60))
def test_spans_of_any_text_are_not_empty_and_inside(text: str) -> None:
    for start, end, _ in hard_spans(text):
        assert 0 <= start < end <= len(text)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: hard_spans("a", ["verb"]), "kind is 'verb'; expected some of number, date"),  # type: ignore[list-item]
        (lambda: Rules(("verb",)), "kind is 'verb'"),  # type: ignore[arg-type]
        (lambda: Rules(least=0), "least is 0"),
        (lambda: Rules().mask("abc", [[0, 1], [3, 2]]), r"offsets\[1\] is \[3, 2\]"),
        (lambda: Rules().mask("abc", [[0, 4]]), r"offsets\[0\] is \[0, 4\]; .* from 0 to 3"),
        (lambda: Rules().mask("abc", [0, 1, 2]), r"expected whole numbers \[n, 2\]"),
        (lambda: count_tokens([[5]], 5), "token 5; expected token ids below 5"),
        (
            lambda: Rules(token_counts=np.ones(3, np.int64)).mask("abc", [[0, 3]]),
            "0 tokens and 1 offsets",
        ),
    ],
)
def test_input_that_is_not_valid(call: Callable[[], object], said: str) -> None:
    with pytest.raises(InputError, match=said):
        call()


# -- words of a corpus file --------------------------------------------------------------------

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
