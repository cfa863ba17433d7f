"""Packed ids and prefix hashes."""

from __future__ import annotations

import time
import zlib
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.messages import vocabularies
from foresay.draft import Draft
from foresay.edge.ids import bits_of, count_of, pack, unpack
from foresay.edge.prefix import Prefix, hash_after, hashes_along
from foresay.errors import InputError, TokenTypeError


@given(st.data())
def test_ids_and_back(data: st.DataObject) -> None:
    vocabulary = data.draw(vocabularies)
    ids = data.draw(st.lists(st.integers(0, vocabulary - 1), max_size=70))
    packed, bits = pack(ids, vocabulary), bits_of(vocabulary)
    # The definition, as one large number.
    number = sum(token << (at * bits) for at, token in enumerate(ids))
    assert packed == number.to_bytes((len(ids) * bits + 7) // 8, "little")
    assert count_of(packed, vocabulary) == len(ids)
    found = unpack(packed, vocabulary)
    assert found.dtype == np.int32 and found.tolist() == ids


def test_bits() -> None:
    cases = {1: 8, 2: 8, 256: 8, 257: 9, 49152: 16, 65536: 16, 65537: 17, 151936: 18, 2**31 - 1: 31}
    assert {vocabulary: bits_of(vocabulary) for vocabulary in cases} == cases
    for wrong in (0, -1, 2**31, True, 5.0, None):
        with pytest.raises(InputError, match=f"^vocabulary is {wrong}; expected"):
            bits_of(wrong)  # type: ignore[arg-type]


def test_wrong_ids() -> None:
    with pytest.raises(InputError, match=r"^tokens\[1\] is 300; expected a token id below 300"):
        pack([299, 300], 300)
    with pytest.raises(InputError, match=r"^tokens\[0\] is -1"):
        pack([-1], 300)
    with pytest.raises(TokenTypeError):
        pack(np.zeros(3), 300)  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"^tokens\[0\] is 511; expected a token id below 300"):
        unpack(b"\xff\x01", 300)
    with pytest.raises(InputError, match=r"byte 0x02; expected its last 7 bits to be zero"):
        unpack(b"\x00\x02", 300)
    with pytest.raises(
        InputError, match="have 1 bytes; expected 0 for 0 ids of 9 bits, or 2 for 1"
    ):
        unpack(b"\x00", 300)
    with pytest.raises(InputError, match="have 3 bytes; expected 2 for 1 ids of 16 bits, or 4"):
        unpack(bytes(3), 49152)


def test_lengths_are_unambiguous() -> None:
    """Every number of bytes is that of one number of ids, or refused."""
    for vocabulary in (256, 257, 65536, 151936, 2**31 - 1):
        valid = {len(pack([0] * count, vocabulary)): count for count in range(60)}
        for size in range(max(valid)):
            if size in valid:
                assert count_of(bytes(size), vocabulary) == valid[size]
            else:
                with pytest.raises(InputError):
                    count_of(bytes(size), vocabulary)


def best(call: Callable[[], object]) -> float:
    """Seconds of the fastest of many calls."""
    times = []
    for _ in range(200):
        started = time.perf_counter()
        call()
        times.append(time.perf_counter() - started)
    return min(times)


def test_packing_is_fast() -> None:
    few = np.arange(8, dtype=np.int32)
    many = np.arange(8192, dtype=np.int32)
    assert best(lambda: pack(few, 151936)) < 30e-6
    assert best(lambda: unpack(pack(few, 151936), 151936)) < 60e-6
    assert best(lambda: unpack(pack(many, 151936), 151936)) < 5e-3


def test_the_hash_is_the_crc_of_the_ids() -> None:
    assert hash_after([]) == 0
    ids = [1, 2, 151935]
    assert hash_after(ids) == zlib.crc32(np.array(ids, "<i4").tobytes())
    assert hash_after([1, 2, 3]) == 0xB0E02293, "the hash of the protocol: a change is a version"


@given(st.lists(st.integers(0, 2**31 - 2), max_size=12), st.integers(0, 12), st.integers(0, 12))
def test_the_hash_rolls(ids: list[int], start: int, cut: int) -> None:
    start, cut = sorted((min(start, len(ids)), min(cut, len(ids))))
    assert hash_after(ids[cut:], hash_after(ids[:cut])) == hash_after(ids)
    prefix = Prefix(ids[:start])
    prefix.extend(ids[start:cut])
    prefix.extend(ids[cut:])
    assert prefix.position == len(ids)
    for at in range(start, len(ids) + 1):
        assert prefix.at(at) == hash_after(ids[:at])
        assert prefix.agrees(at, hash_after(ids[:at]))
        assert not prefix.agrees(at, hash_after(ids[:at]) ^ 1)
    assert not prefix.agrees(len(ids) + 1, 0) and not prefix.agrees(start - 1, 0)


def test_positions_without_a_hash() -> None:
    prefix = Prefix([1, 2])
    prefix.extend([3])
    for wrong in (1, 4, -1):
        with pytest.raises(InputError, match=f"position is {wrong}; expected one from 2, .* to 3"):
            prefix.at(wrong)
    with pytest.raises(InputError):
        prefix.extend([4, -1])
    assert prefix.position == 3


def test_the_hash_along_a_tree() -> None:
    draft = Draft([5, 6, 7, 8, 9], [-1, -1, 1, 0, 2])
    before = hash_after([1, 2])
    paths = [[5], [6], [6, 7], [5, 8], [6, 7, 9]]
    assert hashes_along(draft, before) == [hash_after([1, 2, *path]) for path in paths]
    assert hashes_along(Draft.empty(), before) == []
