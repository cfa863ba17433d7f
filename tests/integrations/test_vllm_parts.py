"""The parts of the vLLM adapter: keys of texts, the settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from foresay.errors import InputError
from foresay.integrations.vllm import VllmSettings, describe, read_settings
from foresay.integrations.vllm.rows import Rows, Texts

# ---- rows ------------------------------------------------------------------------------------


def rows_of(ids: NDArray[np.int32], lengths: list[int]) -> Rows:
    """Rows that got one token each."""
    return Rows([[0]] * len(lengths), np.array(lengths, np.int32), ids)


def test_keys_tell_texts_apart_and_depend_on_nothing_else() -> None:
    chance = np.random.default_rng(0)
    ids = chance.integers(0, 50000, (8, 600), np.int32)
    lengths = [1, 2, 5, 17, 100, 300, 599, 600]
    rows = rows_of(ids, lengths)
    keys = rows.after.tolist()
    assert len({*keys, *rows.before.tolist()}) == 16
    assert rows_of(ids[::-1], lengths[::-1]).after.tolist() == keys[::-1]
    assert rows_of(np.hstack((ids, ids))[:, :600], lengths).after.tolist() == keys
    other = ids.copy()
    for row, length in enumerate(lengths):
        other[row, length:] = 0  # what comes later does not count
    assert rows_of(other, lengths).after.tolist() == keys
    following = rows_of(ids[:, :], [length + 1 for length in lengths[:7]])
    assert following.before.tolist() == keys[:7]  # so a text is recognised in its next step
    for back in (1, 2, 9, 60):
        other = ids.copy()
        other[range(4, 8), np.array(lengths[4:]) - back] += 1
        assert not set(rows_of(other, lengths).after[4:].tolist()) & set(keys)


def test_rows_have_what_is_new() -> None:
    ids = np.arange(40, dtype=np.int32).reshape(4, 10)
    rows = Rows([[7, 8, 9], [], [21]], np.array([10, 4, 2, 0]), ids)
    assert len(rows) == 2 and rows.numbers.tolist() == [0, 2] and rows.lengths.tolist() == [10, 2]
    assert rows.tokens.tolist() == [7, 8, 9, 21] and rows.offsets.tolist() == [0, 3, 4]
    assert len(Rows([], np.array([]), ids)) == 0


@pytest.mark.parametrize(
    ("counts", "lengths", "says"),
    [
        ([1], [0], "row 0 has 0 tokens, of which 1 are new; there is room for 10"),
        ([0, 3], [9, 2], "row 1 has 2 tokens, of which 3 are new"),
        ([1], [11], "row 0 has 11 tokens"),
        ([1], [-5], "row 0 has -5 tokens"),
        ([1] * 5, [5] * 5, "5 rows got tokens or none; there are 5 lengths and 4 texts"),
        ([1] * 4, [5] * 3, "4 rows got tokens or none; there are 3 lengths and 4 texts"),
    ],
)
def test_rows_that_cannot_be_are_refused(counts: list[int], lengths: list[int], says: str) -> None:
    ids = np.zeros((4, 10), np.int32)
    with pytest.raises(InputError, match=says):
        Rows([[1] * count for count in counts], np.array(lengths), ids)


def test_rows_of_another_kind_are_refused() -> None:
    ids, lengths = np.zeros((4, 10), np.int32), np.array([5])
    with pytest.raises(InputError, match="not next to each other"):
        Rows([[1]], lengths, ids[:, ::2])
    for other in (ids.astype(np.int64), ids[0], None):
        with pytest.raises(TypeError):
            Rows([[1]], lengths, other)  # type: ignore[arg-type]


def known(*keys: int) -> NDArray[np.int64]:
    return np.array(keys, np.int64)


def test_texts_are_found_by_their_keys_for_a_while() -> None:
    texts: Texts[str] = Texts(grace=3)
    assert texts.claim(known(1, 2)) == [None, None]
    assert texts.store(known(1, 2), ["a", "b"]) == []
    assert texts.claim(known(2)) == ["b"]
    assert texts.store(known(3), ["b"]) == [] and len(texts) == 2
    assert texts.claim(known(3, 1)) == ["b", "a"] and texts.returned == 1
    assert texts.store(known(4, 5), ["b", "a"]) == []
    assert texts.claim(known(4, 5)) == ["b", "a"] and texts.unmoved
    assert texts.store(known(6, 7), ["b", "a"]) == []
    assert texts.claim(known(7)) == ["a"]
    over = [texts.store(known(7), ["a"])]
    for _ in range(3):
        assert texts.claim(known(7)) == ["a"]
        over.append(texts.store(known(7), ["a"]))
    assert over == [[], [], [], ["b"]] and len(texts) == 1
    assert texts.claim(known(6)) == [None]


def test_equal_texts_are_all_kept() -> None:
    texts: Texts[str] = Texts(grace=8)
    texts.store(known(1, 1, 1, 2), ["a", "b", "c", "d"])
    assert len(texts) == 4
    assert sorted(map(str, texts.claim(known(1, 2, 1)))) == ["b", "c", "d"]
    texts.store(known(3, 4, 3), ["b", "d", "c"])
    assert len(texts) == 4
    assert texts.claim(known(1)) == ["a"]


# ---- settings --------------------------------------------------------------------------------


def test_settings_come_from_variables_and_a_file(tmp_path: Path) -> None:
    assert read_settings({}) == VllmSettings()
    path = tmp_path / "foresay.json"
    path.write_text(json.dumps({"vllm": {"max_requests": 32, "history": False}, "serve": {"x": 1}}))
    given = {
        "FORESAY_CONFIG": str(path),
        "FORESAY_VLLM_MAX_REQUESTS": "16",
        "FORESAY_VLLM_LEAST_CHANCE": "0.25",
        "FORESAY_VLLM_GROUPS": "off",
        "PATH": "/bin",
    }
    expected = VllmSettings(max_requests=16, history=False, least_chance=0.25, groups=False)
    assert read_settings(given) == expected
    assert all(f"FORESAY_VLLM_{n.upper()}" in describe() for n in VllmSettings.__dataclass_fields__)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"FORESAY_VLLM_MAXROWS": "1"}, "FORESAY_VLLM_MAXROWS is set; expected one of"),
        ({"FORESAY_VLLM_GRACE": "many"}, "FORESAY_VLLM_GRACE is 'many'; expected a whole number"),
        (
            {"FORESAY_VLLM_GRACE": "-1"},
            "FORESAY_VLLM_GRACE is -1; expected a whole number from 0 to 4096",
        ),
        (
            {"FORESAY_VLLM_LEAST_CHANCE": "nan"},
            "FORESAY_VLLM_LEAST_CHANCE is nan; expected a number from 0 to 1",
        ),
        ({"FORESAY_VLLM_HISTORY": "maybe"}, "FORESAY_VLLM_HISTORY is 'maybe'; expected one of 1"),
        ({"FORESAY_CONFIG": "nowhere.json"}, "nowhere.json, which cannot be read as JSON"),
    ],
)
def test_bad_settings_are_refused_with_a_sentence(given: dict[str, str], says: str) -> None:
    with pytest.raises(InputError, match=says):
        read_settings(given)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("[1]", 'expected a JSON object with an object "vllm"'),
        ('{"vllm": 3}', 'expected a JSON object with an object "vllm"'),
        ('{"vllm": {"rows": 3}}', "has 'rows'; expected history"),
        (
            '{"vllm": {"grace": true}}',
            "grace in .*foresay.json, which FORESAY_CONFIG names, is True; expected a whole number",
        ),
        (
            '{"vllm": {"history": 1}}',
            "history in .*foresay.json, which FORESAY_CONFIG names, is 1; expected true or false",
        ),
        (
            '{"vllm": {"corpus": 1}}',
            "corpus in .*foresay.json, which FORESAY_CONFIG names, is 1; expected a string",
        ),
    ],
)
def test_bad_files_are_refused_with_a_sentence(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "foresay.json"
    path.write_text(content)
    with pytest.raises(InputError, match=says):
        read_settings({"FORESAY_CONFIG": str(path)})


def test_texts_that_end_alike_again_and_again_are_over_in_their_turn() -> None:
    texts: Texts[str] = Texts(grace=3)
    over: list[str] = []
    for step in range(100):
        texts.claim(np.array([1000 + step], np.int64))  # nobody's words so far
        over += texts.store(np.array([7], np.int64), [str(step)])
        assert len(texts) <= 5
    assert over == [str(step) for step in range(len(over))] and len(over) >= 95


def test_a_list_that_changes_while_it_is_read_does_no_harm() -> None:
    rows: list[Any] = []

    class Clears(list[int]):
        def __len__(self) -> int:
            rows.clear()
            return 1

    rows += [Clears([1]), *([[1]] * 5000)]
    read = Rows(rows, np.ones(6000, np.int32), np.zeros((6000, 4), np.int32))
    assert len(read) == 5001
