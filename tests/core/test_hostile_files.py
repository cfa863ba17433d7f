"""Hostile GGUF files, from the file to the logits: they work, or an error says what is wrong with
them. Nothing else is raised, and nothing crashes (`make sanitize` runs this too)."""

from __future__ import annotations

import shutil
from collections import Counter
from pathlib import Path
from random import Random

import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from core import hostile_files
from foresay import _core
from foresay.errors import ForesayError
from foresay.models import weights
from foresay.models.cpu.stored_decoder import decoder_of, runs_as_stored

ARCHITECTURES = ("llama", "gemma3", "qwen2")


def logits(file: Path, cache: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float32]] | None:
    """After one step of four tokens; None: it would run through transformers."""
    found = weights.find_stored(file, cache=cache)
    if not runs_as_stored(found):
        return None
    decoder = decoder_of(found)
    kv = _core.Kv(decoder.shapes, "bfloat16")
    parents = np.arange(-1, 3, dtype=np.int32)
    step = _core.AttentionStep([kv], np.array([0, 4], np.int32), parents)
    out = np.empty((4, decoder.vocabulary), np.float32)
    tokens = np.array([0, 1, 2, 0], np.int32) % decoder.vocabulary
    decoder.forward(step, tokens, np.arange(4), out)
    return out


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sound_files_work(architecture: str, tmp_path: Path) -> None:
    file = tmp_path / "a.gguf"
    file.write_bytes(b"".join(field.raw for field in hostile_files.sound(architecture)))
    found = logits(file, tmp_path / "c")
    assert found is not None and found.shape == (4, hostile_files.ROWS)
    assert np.isfinite(found).all() and np.unique(found).size > 100


def with_key(fields: list[hostile_files.Field], name: str, value: float) -> None:
    """The number of a key replaced. Mutates: fields."""
    at = next(i for i, field in enumerate(fields) if field.raw == name.encode()) + 2
    fields[at] = hostile_files.number(fields[at].code, value)


@pytest.mark.parametrize("factor", [1e-45, 1e-38])
def test_frequencies_that_are_too_large(factor: float, tmp_path: Path) -> None:
    fields = hostile_files.sound("llama")
    with_key(fields, "llama.rope.scaling.factor", factor)
    (tmp_path / "a.gguf").write_bytes(b"".join(field.raw for field in fields))
    with pytest.raises(ForesayError, match=r"a.gguf': RoPE has a frequency of .*; expected"):
        logits(tmp_path / "a.gguf", tmp_path / "c")


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_more_layers_than_tensors(architecture: str, tmp_path: Path) -> None:
    """Refused before a list is made as long."""
    fields = hostile_files.sound(architecture)
    with_key(fields, f"{architecture}.block_count", 2**31 - 1)
    (tmp_path / "a.gguf").write_bytes(b"".join(field.raw for field in fields))
    with pytest.raises(ForesayError, match=r"a.gguf' says it has 2147483647 layers, but has \d+"):
        logits(tmp_path / "a.gguf", tmp_path / "c")


def test_heads_that_are_too_wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though the tensors are as wide."""
    monkeypatch.setattr(hostile_files, "HEAD", 4128)
    fields = hostile_files.sound("llama")
    (tmp_path / "a.gguf").write_bytes(b"".join(field.raw for field in fields))
    with pytest.raises(ForesayError, match=r"a.gguf' has heads 4128 wide; expected at most 4096"):
        logits(tmp_path / "a.gguf", tmp_path / "c")


@pytest.mark.parametrize("name", ["ffn_gate", "ffn_up"])
def test_gate_and_up_of_two_formats(name: str, tmp_path: Path) -> None:
    """Which are multiplied together: transformers runs such a model."""
    fields = hostile_files.sound("gemma3")
    at = next(i for i, one in enumerate(fields) if one.raw == f"blk.0.{name}.weight".encode())
    fields[at + 4] = hostile_files.number("I", Kind.F16)  # was BF16
    (tmp_path / "a.gguf").write_bytes(b"".join(field.raw for field in fields))
    assert logits(tmp_path / "a.gguf", tmp_path / "c") is None


def try_out(cases: range, folder: Path) -> Counter[str]:
    sound = {name: hostile_files.sound(name) for name in ARCHITECTURES}
    file, counts = folder / "a.gguf", Counter[str]()
    for case in cases:
        chosen = Random(case)
        file.write_bytes(hostile_files.mutated(sound[chosen.choice(ARCHITECTURES)], chosen))
        try:
            found = logits(file, folder / "c")
            counts["works" if found is not None else "not ours"] += 1
        except ForesayError as error:
            said = str(error)
            named = ("tensor", "key", "token", "sound GGUF file", " sets ", "; expected ")
            assert "a.gguf'" in said and any(word in said for word in named), (case, said)
            counts["refused"] += 1
        except Exception as error:
            raise AssertionError(f"case {case}: {error!r}") from error
        shutil.rmtree(folder / "c", ignore_errors=True)
    return counts


def test_hostile_files(tmp_path: Path) -> None:
    counts = try_out(range(400), tmp_path)
    assert counts["works"] > 40 and counts["refused"] > 100 and counts["not ours"] > 0, counts


@pytest.mark.slow
def test_more_hostile_files(tmp_path: Path) -> None:
    try_out(range(400, 10_000), tmp_path)
