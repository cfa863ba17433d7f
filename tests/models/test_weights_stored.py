"""Weights as they are stored: which bytes of a file are which tensor of the target."""

from __future__ import annotations

import json
import os
import random
import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from gguf import GGMLQuantizationType as Kind

from explore import tries
from foresay.errors import ModelError
from foresay.models import weights
from foresay.models.weights.gguf_header import GgmlType
from models import gguf_files
from models.weight_files import printed, small_file, visible

TEXTS = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]


def test_the_types_are_those_of_ggml() -> None:
    theirs = {kind.name: (int(kind), *gguf.GGML_QUANT_SIZES[kind]) for kind in Kind}
    ours = {kind.name: (int(kind), kind.block, kind.block_bytes) for kind in GgmlType}
    assert ours == theirs


def test_a_user_s_file_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is copied or hashed; its config and tokenizer are those of `find`."""
    small_file(tmp_path / "a.gguf")
    converted = weights.find(tmp_path / "a.gguf", convert=True, cache=tmp_path / "c")

    def never(*given: object) -> str:
        raise AssertionError

    monkeypatch.setattr(weights, "sha256_of", never)
    monkeypatch.chdir(tmp_path)
    found = weights.find_stored("a.gguf", cache=tmp_path / "c")
    assert found.gguf == tmp_path / "a.gguf" and found.folder != converted
    assert visible(found.folder) == [*TEXTS[:1], "foresay.json", *TEXTS[1:]]
    for name in TEXTS:
        assert (found.folder / name).read_text() == (converted / name).read_text(), name
    assert weights.find_stored("a.gguf", cache=tmp_path / "c") == found


def test_a_folder_and_its_identity(small: Path, tmp_path: Path) -> None:
    found = weights.find_stored(small)
    assert (found.folder, found.gguf, found.plan, found.tensors) == (small, None, None, {})
    with pytest.raises(ModelError, match=r"stores no tensor for 'lm_head.weight'"):
        found.bytes_of("lm_head.weight")
    with pytest.raises(ModelError, match=r"no such file or folder"):
        weights.find_stored("/nowhere")
    small_file(tmp_path / "a.gguf")
    stored = weights.find_stored(tmp_path / "a.gguf", cache=tmp_path / "c")
    assert stored.identity != found.identity
    with pytest.raises(ModelError, match=r"stores no tensor for 'lm_head.bias'"):
        stored.bytes_of("lm_head.bias")
    with pytest.raises(ModelError, match=r"but no \.gguf"):
        weights.find_stored(small / "config.json")


def test_what_a_folder_is_kept_by(tmp_path: Path) -> None:
    """Other values share the config; another header does not, nor other RoPE factors."""

    def found(name: str, **options: Any) -> weights.StoredModel:
        seed = options.pop("seed", 0)
        gguf_files.export(
            gguf_files.tiny("llama", seed), tmp_path / f"{name}.gguf", "llama", **options
        )
        return weights.find_stored(tmp_path / f"{name}.gguf", cache=tmp_path / "c")

    first = found("a")
    assert found("b", seed=1).folder == first.folder
    named = found("c", extra={"general.name": "another"})
    assert named.folder != first.folder and named.identity != first.identity
    ones = np.ones(8, np.float32)
    waves = 2 * np.pi * 5000.0 ** (np.arange(8) / 8)
    smooth = (8192 / waves - 1) / 3
    scaled = np.where(waves < 2048, 1, np.where(waves > 8192, 8, 1 / ((1 - smooth) / 8 + smooth)))
    both = [
        found(name, tensors={"rope_freqs.weight": factors.astype(np.float32)})
        for name, factors in (("d", ones), ("e", scaled))
    ]
    assert both[0].folder != both[1].folder
    kinds = [json.loads((one.folder / "config.json").read_text())["rope_scaling"] for one in both]
    assert kinds[0] is None and kinds[1]["rope_type"] == "llama3"
    assert [one.plan.config["rope_scaling"] for one in both if one.plan] == kinds


def test_bytes_are_read_and_not_mapped(tmp_path: Path) -> None:
    """A file that is cut in place would end a process that has mapped it."""
    small_file(tmp_path / "a.gguf")
    found = weights.find_stored(tmp_path / "a.gguf", cache=tmp_path / "c")
    read = {name: found.bytes_of(name) for name in found.tensors}
    sums = {name: int(raw.sum()) for name, raw in read.items()}
    os.truncate(tmp_path / "a.gguf", 100)
    assert {name: int(raw.sum()) for name, raw in read.items()} == sums and any(sums.values())


# --- damage ----------------------------------------------------------------------------------


def test_a_file_that_was_truncated_since(tmp_path: Path) -> None:
    small_file(tmp_path / "a.gguf")
    found = weights.find_stored(tmp_path / "a.gguf", cache=tmp_path / "c")
    last = max(found.tensors.values(), key=lambda stored: stored.tensor.start).tensor
    os.truncate(tmp_path / "a.gguf", last.start + last.size - 1)
    wrong = rf"the tensor '{last.name}' should have {last.size} bytes at {last.start}"
    with pytest.raises(ModelError, match=wrong):
        weights.tensor_bytes(tmp_path / "a.gguf", last)
    with pytest.raises(ModelError, match=wrong):
        weights.find_stored(tmp_path / "a.gguf", cache=tmp_path / "c")
    (tmp_path / "a.gguf").unlink()
    with pytest.raises(ModelError, match=rf"the tensor '{last.name}' cannot be read: .*No such"):
        weights.tensor_bytes(tmp_path / "a.gguf", last)


@pytest.mark.parametrize("change", [{"start": -1}, {"start": 2**62}, {"size": 0}, {"size": 2**62}])
def test_bytes_that_the_file_does_not_have(change: dict[str, Any], tmp_path: Path) -> None:
    small_file(tmp_path / "a.gguf")
    found = weights.find_stored(tmp_path / "a.gguf", cache=tmp_path / "c")
    tensor = replace(found.tensors["model.norm.weight"].tensor, **change)
    with pytest.raises(ModelError, match=r"the tensor 'output_norm.weight'"):
        weights.tensor_bytes(tmp_path / "a.gguf", tensor)


def test_damaged_headers(tmp_path: Path) -> None:
    """A model whose bytes can all be read, or a sentence that names the file."""
    path = tmp_path / "a.gguf"
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    gguf_files.export(gguf_files.tiny("qwen3", **small), path, "qwen3", Kind.Q8_0)
    sound = path.read_bytes()
    found = weights.find_stored(path, cache=tmp_path / "c")
    end = min(stored.tensor.start for stored in found.tensors.values())
    chosen, refused = random.Random(3), 0
    cases = tries(240)
    for case in range(cases):
        damaged = bytearray(sound)
        if case % 3 == 2:  # in the table of tensors, at the end of the header
            at = chosen.randrange(end - 1200, end - 8)
            huge = chosen.choice([2**64 - 1, 2**63, 2**63 - 1, 2**32, 2**61, 1, 0])
            damaged[at : at + 8] = struct.pack("<Q", huge)
        else:
            for _ in range(chosen.choice([1, 1, 4])):
                damaged[chosen.randrange(end)] = chosen.choice([0, 1, 0x7F, 0x80, 0xFF])
        path.write_bytes(damaged[: chosen.choice([len(sound), len(sound), end + 5])])
        try:
            found = weights.find_stored(path, cache=tmp_path / "c")
        except ModelError as error:
            assert "a.gguf" in str(error)
            refused += 1
        else:
            assert all(len(found.bytes_of(name)) for name in found.tensors)
    assert cases // 6 < refused < cases


def test_without_the_packages_that_decode(tmp_path: Path) -> None:
    """Neither gguf nor torch nor transformers is needed, and nothing that takes long is imported
    where the model is known already."""
    small_file(tmp_path / "a.gguf")
    code = """
        import sys
        for name in ("gguf", "torch", "transformers", "huggingface_hub"):
            sys.modules[name] = None
        from foresay.models import weights
        found = weights.find_stored(sys.argv[1], cache=sys.argv[2])
        print(len(found.tensors), "tokenizers" in sys.modules)
    """
    said = [printed(code, tmp_path / "a.gguf", tmp_path / "c").split() for _ in range(2)]
    assert said == [["21", "True"], ["21", "False"]]
