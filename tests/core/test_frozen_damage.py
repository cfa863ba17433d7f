"""A damaged, foreign or half-written corpus file: a typed error or a wrong answer, no crash."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import textwrap
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.alone import python
from core.brute import int32s
from core.frozen_files import HASH, HEADER_BYTES, SECTIONS, build, forged, section_ranges
from explore import tries
from foresay._core import FrozenBuilder, FrozenIndex
from foresay.errors import CorpusError, TokenizerMismatch


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Small, with nodes of several depths, all of max_context reached."""
    rng = np.random.default_rng(7)
    documents = [rng.integers(0, 3, 25).tolist() for _ in range(30)] + [[1, 2] * 20] * 40
    path = tmp_path_factory.mktemp("sound") / "index"
    index = build(path, documents, vocabulary=5, max_context=6)
    assert index.summary()["section_bytes"]["nodes"] > 160
    return path


def ask_everything(index: FrozenIndex) -> None:
    rng = np.random.default_rng(1)
    for text in (rng.integers(0, 4, 60), np.array([1, 2] * 20 + [0, 0, 1]), rng.integers(0, 2, 40)):
        tokens = text.astype(np.int32)
        survives(index.match_lengths, tokens)
        survives(index.count_contexts, tokens)
        for end in range(0, len(tokens), 5):
            survives(index.contexts, tokens[:end], 8)
            survives(index.contexts_shortened, tokens[:end], 2)
            survives(index.continuation, tokens[:end], 50, True)
            survives(index.continuation, tokens[:end], 50, False)


def survives(ask: Callable[..., object], *arguments: object) -> None:
    with contextlib.suppress(CorpusError):
        ask(*arguments)


def test_every_bit_of_the_header_matters(sound: Path, tmp_path: Path) -> None:
    data = bytearray(sound.read_bytes())
    path = tmp_path / "index"
    path.write_bytes(data)
    with path.open("r+b", buffering=0) as file:
        for bit in range(8 * HEADER_BYTES):
            os.pwrite(file.fileno(), bytes([data[bit // 8] ^ 1 << bit % 8]), bit // 8)
            with pytest.raises(
                CorpusError, match=r"^'.*/index' cannot be used as a corpus file: .*\.$"
            ):
                FrozenIndex.open(str(path))
            os.pwrite(file.fileno(), data[bit // 8 : bit // 8 + 1], bit // 8)
    FrozenIndex.open(str(path))  # as it was


@settings(max_examples=tries(300))
@given(st.data())
def test_random_damage_is_found_by_verify_and_survived_without(
    sound: Path, data: st.DataObject
) -> None:
    content = bytearray(sound.read_bytes())
    offset, length = section_ranges(content)[data.draw(st.sampled_from(SECTIONS))]
    for _ in range(data.draw(st.integers(1, 8))):
        at = offset + data.draw(st.integers(0, length - 1))
        content[at] = (content[at] + data.draw(st.integers(1, 255))) % 256
    check_damaged(sound, content)


@pytest.mark.parametrize("filling", [0x00, 0x01, 0x40, 0x7F, 0x80, 0xFF])
@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_overwritten(sound: Path, name: str, filling: int) -> None:
    content = bytearray(sound.read_bytes())
    offset, length = section_ranges(content)[name]
    content[offset : offset + length] = bytes([filling]) * length
    check_damaged(sound, content)


@pytest.mark.parametrize("name", SECTIONS)
def test_a_section_of_noise(sound: Path, name: str) -> None:
    for seed in range(20):
        rng = np.random.default_rng(seed)
        content = bytearray(sound.read_bytes())
        offset, length = section_ranges(content)[name]
        small = rng.integers(0, 4096, length // 4 + 1).astype(np.uint32).tobytes()
        content[offset : offset + length] = (small if seed % 2 else rng.bytes(length))[:length]
        check_damaged(sound, content)


def check_damaged(sound: Path, content: bytearray) -> None:
    if content == sound.read_bytes():
        return
    path = sound.parent / "damaged"
    path.write_bytes(content)
    index = FrozenIndex.open(str(path))
    ask_everything(index)
    with pytest.raises(CorpusError, match="damaged"):
        index.verify()


def test_the_checksum_is_xxh64(sound: Path) -> None:
    data = sound.read_bytes()
    assert forged(bytearray(data)) == data


@pytest.mark.parametrize("name", SECTIONS)
def test_verify_sees_what_the_checksums_cannot(sound: Path, name: str) -> None:
    for seed in range(30):
        rng = np.random.default_rng(seed)
        content = bytearray(sound.read_bytes())
        offset, length = section_ranges(content)[name]
        at = offset + int(rng.integers(length))
        content[at] ^= 1 << int(rng.integers(8))
        check_damaged(sound, forged(content))


def test_truncated_or_extended(sound: Path, tmp_path: Path) -> None:
    data = sound.read_bytes()
    path = tmp_path / "index"
    for size in [0, 1, 7, 8, 511, 512, 513, 1000, len(data) // 2, len(data) - 1]:
        path.write_bytes(data[:size])
        with pytest.raises(CorpusError):
            FrozenIndex.open(str(path))
    path.write_bytes(data + b"\0")
    with pytest.raises(CorpusError, match="truncated or extended"):
        FrozenIndex.open(str(path))


def test_not_a_corpus_file(tmp_path: Path) -> None:
    (tmp_path / "foreign").write_bytes(b"PK\x03\x04" * 1000)
    for name, why in [
        ("foreign", "begins with the bytes 504b"),
        ("missing", "No such file"),
        ("", "not a regular"),
    ]:
        with pytest.raises(CorpusError, match=why):
            FrozenIndex.open(str(tmp_path / name))


def test_another_tokenizer(sound: Path) -> None:
    with pytest.raises(TokenizerMismatch, match="built with the tokenizer 000102"):
        FrozenIndex.open(str(sound), bytes(32))
    assert issubclass(TokenizerMismatch, CorpusError)
    FrozenIndex.open(str(sound), HASH)
    FrozenIndex.open(str(sound))


def test_the_file_is_private(sound: Path) -> None:
    assert stat.S_IMODE(sound.stat().st_mode) == 0o600


def test_an_abandoned_build_leaves_nothing(tmp_path: Path) -> None:
    builder = FrozenBuilder(str(tmp_path / "index"), vocabulary=10, tokenizer_hash=HASH)
    builder.add_document(int32s([1, 2, 3]))
    assert [path.suffix for path in tmp_path.iterdir()] == [".tmp"]
    builder.abandon()
    assert not list(tmp_path.iterdir())
    builder = FrozenBuilder(str(tmp_path / "index"), vocabulary=10, tokenizer_hash=HASH)
    del builder
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("last", ["sort", "origins", "nodes", "count", "write"])
def test_a_failing_progress_callback_stops_the_build(tmp_path: Path, last: str) -> None:
    (tmp_path / "index").write_bytes(b"old")
    builder = FrozenBuilder(str(tmp_path / "index"), vocabulary=10, tokenizer_hash=HASH)
    for _ in range(100):
        builder.add_document(int32s([1, 2, 3]))

    def progress(stage: str, fraction: float) -> None:
        assert 0 <= fraction <= 1
        if stage == last:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        builder.finish(progress)
    assert [path.name for path in tmp_path.iterdir()] == ["index"]
    assert (tmp_path / "index").read_bytes() == b"old"


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    code = f"""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (300_000, 300_000))
        import numpy as np
        from foresay._core import FrozenBuilder
        path = {str(tmp_path / "index")!r}
        builder = FrozenBuilder(path, vocabulary=10, tokenizer_hash=bytes(32))
        builder.add_document(np.ones(50_000, np.int32))
        try:
            builder.finish()
        except OSError as error:
            print(error.errno)
    """
    done = python(textwrap.dedent(code))
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "27"  # EFBIG
    assert not list(tmp_path.iterdir())


def test_a_killed_build_leaves_no_corpus_file(tmp_path: Path) -> None:
    code = f"""
        import os, signal
        import numpy as np
        from foresay._core import FrozenBuilder
        path = {str(tmp_path / "index")!r}
        builder = FrozenBuilder(path, vocabulary=10, tokenizer_hash=bytes(32))
        builder.add_document(np.ones(50_000, np.int32))
        builder.finish(lambda stage, _: stage == "count" and os.kill(os.getpid(), signal.SIGKILL))
    """
    done = python(textwrap.dedent(code))
    assert done.returncode == -signal.SIGKILL
    assert not os.path.exists(tmp_path / "index")
