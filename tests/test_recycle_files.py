"""What a RecycleDrafter knows, as a file: whole, checked, and for one tokenizer."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from foresay.drafters import RecycleDrafter
from foresay.drafters.recycle.table_file import Tokens, TopKTable, write_table
from foresay.errors import InputError, TokenizerMismatch
from test_recycle import drafted, taught


def test_damaged_and_foreign_files(tmp_path: Path) -> None:
    cold = RecycleDrafter()
    taught(cold, [1, 2], {5: 0.6})
    good = tmp_path / "recycled.table"
    cold.save(good)
    with pytest.raises(InputError, match=r"has the 8 likeliest tokens; expected k = 4"):
        RecycleDrafter(k=4, warm=good)
    with pytest.raises(InputError, match=r"missing\.table is no file of RecycleDrafter"):
        RecycleDrafter(warm=tmp_path / "missing.table")
    os.mkfifo(tmp_path / "pipe")
    for endless in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(InputError, match="it is no plain file"):
            RecycleDrafter(warm=endless)
    content = good.read_bytes()
    random = np.random.default_rng(0)
    bad = tmp_path / "bad.table"
    for at in random.integers(0, len(content), 150).tolist():
        spoiled = bytearray(content)
        spoiled[at] ^= int(random.integers(1, 256))
        bad.write_bytes(bytes(spoiled) if at % 2 else content[:at])
        with pytest.raises(InputError, match=r"bad\.table is no file of RecycleDrafter"):
            RecycleDrafter(warm=bad)
    with pytest.raises(InputError, match="does not begin with 'foresay laws 2'"):
        bad.write_bytes(b"PK" + content)
        RecycleDrafter(warm=bad)
    with pytest.raises(InputError, match="of version 1, which names no tokenizer; save it again"):
        bad.write_bytes(content.replace(b"laws 2", b"laws 1"))
        RecycleDrafter(warm=bad)


@pytest.mark.parametrize(
    ("token", "vocabulary", "said"),
    [(2**31 - 1, None, "a token is 2147483647"), (500, 3, "token 500 of a vocabulary of 3")],
)
def test_tokens_that_are_none(
    token: int, vocabulary: int | None, said: str, tmp_path: Path
) -> None:
    """In a file that is whole, and names itself in the error."""
    row = np.array([token, *[-1] * 7], np.int32)
    of = None if vocabulary is None else Tokens(vocabulary, None)
    table = TopKTable(np.array([1], np.uint64), row, np.zeros(8, np.uint8), of)
    write_table(tmp_path / "odd.table", table, 8)
    with pytest.raises(InputError, match=rf"odd\.table is no file of .*{said}"):
        RecycleDrafter(warm=tmp_path / "odd.table")


def told(vocabulary: int) -> Any:
    return SimpleNamespace(vocabulary=vocabulary)


def test_a_file_is_for_its_tokenizer(tmp_path: Path) -> None:
    file, a, b = tmp_path / "recycled.table", bytes([10] * 32), bytes([11] * 32)
    taught_by = RecycleDrafter()
    taught_by.fit(told(100), a)
    taught_by.fit(told(100))  # an engine that does not know the tokenizer
    taught(taught_by, [1, 2], {5: 0.6})
    taught_by.save(file)
    for accepted in (a, None):
        warm = RecycleDrafter(warm=file)
        warm.fit(told(100), accepted)
        assert len(drafted(warm, [1, 2], 1)) == 1
    with pytest.raises(TokenizerMismatch, match="taught with 100 tokens and the tokenizer 0a0a0a"):
        RecycleDrafter(warm=file).fit(told(100), b)
    with pytest.raises(TokenizerMismatch, match=r"the target has 120 tokens and .* 0a0a0a"):
        RecycleDrafter(warm=file).fit(told(120), a)
    with pytest.raises(TokenizerMismatch, match="the drafter was taught with 100 tokens"):
        taught_by.fit(told(100), b)
    RecycleDrafter(warm=file).save(file)  # what was read stays named
    with pytest.raises(TokenizerMismatch, match="taught with 100 tokens"):
        RecycleDrafter(warm=file).fit(told(100), b)


def test_a_file_that_names_no_tokenizer(tmp_path: Path) -> None:
    file = tmp_path / "recycled.table"
    RecycleDrafter().save(file)
    with pytest.raises(TokenizerMismatch, match="names no vocabulary, and the target has 100"):
        RecycleDrafter(warm=file).fit(told(100))
    untold = RecycleDrafter()
    untold.fit(told(100))
    untold.save(file)
    RecycleDrafter(warm=file).fit(told(100))
    with pytest.raises(TokenizerMismatch, match="100 tokens and the tokenizer unknown"):
        RecycleDrafter(warm=file).fit(told(100), bytes(32))
    untold.fit(told(100), bytes(32))  # it learns the tokenizer's name later


def test_two_save_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, write = tmp_path / "recycled.table", Path.write_bytes
    first, second = RecycleDrafter(), RecycleDrafter()
    taught(first, [1, 2], {5: 0.6})
    names: list[str] = []

    def slow(path: Path, content: bytes) -> int:
        written = write(path, content)
        names.append(path.name)
        if len(names) == 1:
            second.save(file)  # begins and ends while the first writes
        return written

    monkeypatch.setattr(Path, "write_bytes", slow)
    first.save(file)
    assert len(set(names)) == 2
    assert len(drafted(RecycleDrafter(warm=file), [1, 2], 1)) == 1
    monkeypatch.setattr(Path, "write_bytes", lambda *_: (_ for _ in ()).throw(OSError("full")))
    with pytest.raises(OSError, match="full"):
        first.save(file)
    assert [path.name for path in tmp_path.iterdir()] == ["recycled.table"]
