"""A damaged corpus file is refused by every command, in the same words."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from core.frozen_files import SECTIONS, section_ranges
from foresay import corpus
from foresay.drafters import CorpusDrafter, SuffixDrafter
from foresay.errors import CorpusError
from tiny import call


def damaged(path: Path, seed: int) -> None:
    """One bit of some section is another, without which a file may still be opened."""
    random = np.random.default_rng(seed)
    content = bytearray(path.read_bytes())
    sections = section_ranges(content)
    offset, length = sections[SECTIONS[seed % len(SECTIONS)]]
    content[offset + int(random.integers(length))] ^= 1 << int(random.integers(8))
    path.write_bytes(content)


def test_every_command_refuses_what_verify_refuses(tmp_path: Path) -> None:
    trace, path = tmp_path / "traces.jsonl", tmp_path / "index"
    random = np.random.default_rng(0)
    texts = [random.integers(0, 9, 60).tolist() for _ in range(20)]
    lines = [
        {"id": str(i), "group": "g", "prompt": t[:9], "output": t} for i, t in enumerate(texts)
    ]
    trace.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert call("corpus", "build", trace, "-o", path).status == 0
    sound = path.read_bytes()
    asks: list[list[object]] = [
        ["replay", trace, "--corpus", path],
        ["replay", trace, "--corpus", path, "--drafter", "corpus", "--json"],
        ["generate", "x", "--model", tmp_path, "--corpus", path],
        ["serve", tmp_path, "--port", "0", "--corpus", path],
    ]
    for seed in range(2 * len(SECTIONS)):
        path.write_bytes(sound)
        damaged(path, seed)
        corpus.open_corpus(path)  # in a moment, whatever is inside
        wanted = call("corpus", "verify", path)
        assert wanted.status == 1 and "damaged" in wanted.err
        for ask in asks if seed < 2 else asks[:2]:
            given = call(*ask)
            assert (given.status, given.complaints) == (1, wanted.err), ask
        for make in (CorpusDrafter, lambda file, verify: SuffixDrafter(corpus=file, verify=verify)):
            make(path, verify=False)
            with pytest.raises(CorpusError, match="damaged"):
                make(path, verify=True)
