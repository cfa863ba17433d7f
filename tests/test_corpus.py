"""Corpus files from trace files and arrays."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foresay import corpus
from foresay.arrays import Int32s, IntsLike
from foresay.drafters import CorpusDrafter, SuffixDrafter
from foresay.errors import (
    CorpusError,
    InputError,
    TokenizerMismatch,
    TokenTypeError,
    TraceError,
    UnknownGroup,
)
from foresay.traces import read_texts
from trace_files import good_trace, names, write_trace

HASH = bytes(range(32))


def as_lists(texts: Iterator[Int32s]) -> list[list[int]]:
    return [text.tolist() for text in texts]


def save(folder: Path, tokens: Any, offsets: Any) -> Path:
    np.save(folder / "t.npy", tokens)
    np.save(folder / "t.offsets.npy", offsets)
    return folder / "t.npy"


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz"])
def test_trace_files(tmp_path: Path, name: str) -> None:
    path = good_trace(tmp_path / name)
    assert as_lists(read_texts(path)) == [[1, 2, 3, 4], [5, 6], [1, 2, 3, 7]]
    assert as_lists(read_texts(path, "output")) == [[3, 4], [5, 6], [3, 7]]
    corpus.build([path], tmp_path / "both")
    corpus.build([path, path], tmp_path / "outputs", field="output")
    index = corpus.open_corpus(tmp_path / "both")
    assert index.contexts(np.array([1, 2, 3], np.int32), 8)[0] == (3, 2, 7, 4, [(4, 1), (7, 1)])
    assert corpus.verify(tmp_path / "both")["tokens"] == 10
    assert corpus.verify(tmp_path / "outputs")["documents"] == 6


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "is a list"),
        ("3", "is a int"),
        ('{"prompt": [1]}', "has no 'output'; expected prompt and output, or tokens"),
        ('{"output": [1]}', "has no 'prompt'"),
        ('{"tokens": 3}', "'tokens' is a int; expected a list"),
        ('{"tokens": [1.5]}', r"tokens\[0\] is 1.5"),
        ('{"tokens": [true]}', r"tokens\[0\] is True"),
        ('{"tokens": ["1"]}', r"tokens\[0\] is '1'"),
        ('{"tokens": [-1]}', r"tokens\[0\] is -1"),
        ('{"tokens": [4294967296]}', "4294967296"),
        ('{"prompt": 1, "output": [2]}', "'prompt' is a int"),
    ],
)
@pytest.mark.parametrize("vocabulary", [None, 10])
def test_a_bad_line_is_named(
    tmp_path: Path, line: str, sentence: str, vocabulary: int | None
) -> None:
    path = write_trace(tmp_path / "t.jsonl", ['{"tokens": [1]}', line])
    with pytest.raises(TraceError, match=rf"t\.jsonl, line 2:? .*{sentence}"):
        corpus.build([path], tmp_path / "index", vocabulary=vocabulary)
    assert names(tmp_path) == ["t.jsonl"]


def test_bad_sources(tmp_path: Path) -> None:
    out = tmp_path / "index"
    with pytest.raises(TraceError, match="No such file"):
        corpus.build([tmp_path / "missing.jsonl"], out)
    with pytest.raises(InputError, match="0 files"):
        corpus.build([], out)
    wrong: Any = "prompt"
    with pytest.raises(InputError, match="field is 'prompt'; expected 'both' or 'output'"):
        corpus.build([good_trace(tmp_path / "t.jsonl")], out, field=wrong)
    with pytest.raises(InputError, match="empty; expected at least one token"):
        corpus.build([write_trace(tmp_path / "t.jsonl", ['{"tokens": []}'])], out)
    assert names(tmp_path) == ["t.jsonl"]


def test_arrays(tmp_path: Path) -> None:
    path = save(tmp_path, np.arange(9, dtype=np.int32), np.array([0, 4, 4, 9]))
    corpus.build([path], tmp_path / "index")
    summary = corpus.verify(tmp_path / "index")
    assert (summary["documents"], summary["tokens"], summary["vocabulary"]) == (2, 9, 9)
    index = corpus.open_corpus(tmp_path / "index")
    assert index.continuation(np.array([4], np.int32), 9).tolist() == [5, 6, 7, 8]
    assert index.continuation(np.array([3], np.int32), 9).tolist() == []


@pytest.mark.parametrize(
    ("tokens", "offsets", "sentence"),
    [
        (np.arange(9), [0, 9], r"t\.npy is int64\[9\]; expected int32\[tokens\]"),
        (np.zeros((3, 3), np.int32), [0, 9], r"t\.npy is int32\[3, 3\]"),
        (np.array([{}]), [0, 1], r"t\.npy is not an array of numbers"),
        (np.zeros(9, np.int32), [1, 9], r"t\.offsets\.npy holds wrong offsets; expected"),
        (np.zeros(9, np.int32), [0, 8], "expected them to rise from 0 to 9"),
        (np.zeros(9, np.int32), [0, 5, 4, 9], "expected them to rise from 0 to 9"),
        (np.zeros(9, np.int32), np.array([], np.int64), r"t\.offsets\.npy is int64\[0\]"),
        (np.zeros(9, np.int32), [0.0, 9.0], r"t\.offsets\.npy is float64\[2\]"),
    ],
)
def test_bad_arrays(tmp_path: Path, tokens: Any, offsets: Any, sentence: str) -> None:
    path = save(tmp_path, tokens, offsets)
    with pytest.raises(TraceError, match=sentence):
        corpus.build([path], tmp_path / "index")


def test_damaged_arrays(tmp_path: Path) -> None:
    path = save(tmp_path, np.zeros(9, np.int32), [0, 9])
    data = path.read_bytes()
    for damaged in (
        b"",
        data[:20],
        data[:-1],
        b"PK\x03\x04" * 50,
        data.replace(b"shape", b"shap("),
    ):
        path.write_bytes(damaged)
        with pytest.raises(TraceError, match=r"t\.npy"):
            corpus.build([path], tmp_path / "index")
    path.write_bytes(data)
    path.with_suffix(".offsets.npy").unlink()
    with pytest.raises(TraceError, match=r"t\.offsets\.npy cannot be read: No such file"):
        corpus.build([path], tmp_path / "index")


def test_documents_in_memory(tmp_path: Path) -> None:
    documents: list[IntsLike] = [np.array([1, 2, 3], np.int32), [2, 3, 9]]
    corpus.build_from(documents, tmp_path / "index")
    assert corpus.inspect(tmp_path / "index")["vocabulary"] == 10
    corpus.build_from(iter(documents), tmp_path / "index", vocabulary=100)
    assert corpus.inspect(tmp_path / "index")["vocabulary"] == 100
    with pytest.raises(InputError, match="an iterator, which can be read only once"):
        corpus.build_from(iter(documents), tmp_path / "index")
    with pytest.raises(InputError, match="token 9; expected 0 to 8"):
        corpus.build_from(documents, tmp_path / "index", vocabulary=9)
    wrong: Any = [[1], np.array([1.5])]
    with pytest.raises(TokenTypeError, match=r"documents\[1\] has dtype float64"):
        corpus.build_from(wrong, tmp_path / "index")
    assert corpus.verify(tmp_path / "index")["vocabulary"] == 100


@pytest.mark.parametrize("option", ["vocabulary", "max_context", "memory_bytes", "threads"])
@pytest.mark.parametrize("value", [-1, 0, 1 << 60])
def test_options_out_of_range(tmp_path: Path, option: str, value: int) -> None:
    options: Any = {option: value}
    with pytest.raises(InputError, match=f"{option} is {value}; expected a whole number from 1 to"):
        corpus.build_from([[1, 2]], tmp_path / "index", **options)
    assert not names(tmp_path)


def test_inspect_and_verify(tmp_path: Path) -> None:
    path, seen = tmp_path / "index", list[str]()
    corpus.build_from(
        [[1, 2, 3]],
        path,
        tokenizer_hash=HASH,
        max_context=5,
        progress=lambda stage, fraction: seen.append(stage),
    )
    assert list(dict.fromkeys(seen)) == [
        "scan",
        "read",
        "sort",
        "origins",
        "nodes",
        "count",
        "write",
    ]
    summary = corpus.inspect(path)
    assert summary == corpus.verify(path, tokenizer_hash=HASH)
    assert json.loads(json.dumps(summary)) == summary
    sections = summary.pop("section_bytes")
    assert sections["text"] >= 12 and sum(sections.values()) < path.stat().st_size
    assert summary == {
        "path": str(path),
        "version": 1,
        "file_bytes": path.stat().st_size,
        "tokens": 3,
        "documents": 1,
        "vocabulary": 4,
        "max_context": 5,
        "tokenizer_hash": HASH.hex(),
        "bytes_per_token": path.stat().st_size / 3,
    }
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(CorpusError):
        corpus.inspect(path)


def test_tokenizers(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(b"words")
    mine = corpus.tokenizer_hash_of(tmp_path / "tokenizer.json")
    assert mine == corpus.tokenizer_hash_of(b"words") == hashlib.sha256(b"words").digest()
    with pytest.raises(FileNotFoundError):
        corpus.tokenizer_hash_of(str(tmp_path / "missing.json"))
    bound, unbound = tmp_path / "bound", tmp_path / "unbound"
    corpus.build_from([[1, 2, 3]], bound, tokenizer_hash=mine)
    corpus.build_from([[1, 2, 3]], unbound)
    assert corpus.inspect(unbound)["tokenizer_hash"] is None
    users: list[Callable[[Path, bytes | None], object]] = [
        lambda path, hash_: corpus.open_corpus(path, tokenizer_hash=hash_),
        lambda path, hash_: corpus.verify(path, tokenizer_hash=hash_),
        lambda path, hash_: CorpusDrafter(path, tokenizer_hash=hash_),
        lambda path, hash_: SuffixDrafter(corpus=path, tokenizer_hash=hash_),
        lambda path, hash_: SuffixDrafter(corpus=[str(path)], tokenizer_hash=hash_),
    ]
    for use in users:
        use(bound, mine)
        use(bound, None)
        use(unbound, None)
        with pytest.raises(TokenizerMismatch, match=mine.hex()):
            use(bound, HASH)
        with pytest.raises(TokenizerMismatch, match="not bound to a tokenizer"):
            use(unbound, mine)
        with pytest.raises(InputError, match="32"):
            use(bound, b"short")
    with pytest.raises(InputError, match="32"):
        corpus.build_from([[1]], tmp_path / "index", tokenizer_hash=b"short")


def test_a_corpus_drafter_knows_no_groups(tmp_path: Path) -> None:
    corpus.build_from([[1, 2, 3]], tmp_path / "index")
    drafter = CorpusDrafter(tmp_path / "index")
    drafter.begin([7, 8, 9], group="g")
    state = drafter.begin([7, 8], group="g")
    assert 9 not in drafter.propose([state], [8])[0].tokens
    with pytest.raises(UnknownGroup, match="'g'"):
        drafter.drop_group("g")


def test_the_bytes_depend_on_the_documents_alone(tmp_path: Path) -> None:
    trace = good_trace(tmp_path / "t.jsonl.gz")
    for name, options in enumerate([{}, {"threads": 1}, {"memory_bytes": 16}, {"vocabulary": 8}]):
        given: Any = options
        corpus.build([trace], tmp_path / str(name), **given)
    assert len({(tmp_path / str(name)).read_bytes() for name in range(4)}) == 1


def test_a_failing_iterator_leaves_the_old_file(tmp_path: Path) -> None:
    def documents() -> Iterator[Int32s]:
        yield np.ones(100, np.int32)
        raise RuntimeError("lost")

    (tmp_path / "index").write_bytes(b"old")
    with pytest.raises(RuntimeError, match="lost"):
        corpus.build_from(documents(), tmp_path / "index", vocabulary=4)
    assert names(tmp_path) == ["index"]
    assert (tmp_path / "index").read_bytes() == b"old"


MEASURED = """
import sys, threading
from pathlib import Path
import numpy as np
from foresay import corpus

def anonymous():
    return int(Path("/proc/self/status").read_text().split("RssAnon:")[1].split()[0]) * 1024

rng = np.random.default_rng(0)
documents = [(rng.integers(0, 50, 30_000) ** 2 % 997).astype(np.int32) for _ in range(100)]
before, most, done = anonymous(), 0, threading.Event()

def sample():
    global most
    while not done.wait(0.001):
        most = max(most, anonymous() - before)

sampler = threading.Thread(target=sample)
sampler.start()
corpus.build_from(documents, Path(sys.argv[1]), vocabulary=1000, memory_bytes=int(sys.argv[2]))
done.set()
sampler.join()
print(most)
"""


def test_memory_is_bounded(tmp_path: Path) -> None:
    """While 3M tokens are sorted memory stays near the bound of 4 MiB. Takes a few seconds.

    In processes of their own: here, memory that other tests gave back would be used again.
    """

    def peak(name: str, memory_bytes: int) -> int:
        command = [sys.executable, "-c", MEASURED, str(tmp_path / name), str(memory_bytes)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    bounded, unbounded = peak("a", 4 << 20), peak("b", 1 << 30)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    assert bounded < 12 << 20 < unbounded


def test_an_array_that_is_cut_meanwhile(tmp_path: Path) -> None:
    """It is not mapped: reading what is gone would end the process."""
    documents = 100
    path = save(tmp_path, np.zeros(1000 * documents, np.int32), 1000 * np.arange(documents + 1))

    def cut(*_: object) -> None:
        os.truncate(path, 50_000)

    with pytest.raises(TraceError, match=r"t\.npy ended at token \d+; expected 100000 tokens"):
        corpus.build([path], tmp_path / "index", progress=cut)
    assert not (tmp_path / "index").exists()


def test_a_link_is_written_through(tmp_path: Path) -> None:
    link, file = tmp_path / "link", tmp_path / "index"
    link.symlink_to(file)
    corpus.build_from([[1, 2, 3]], link)
    assert link.is_symlink() and file.is_file() and not file.is_symlink()
