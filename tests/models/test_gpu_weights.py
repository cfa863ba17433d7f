"""The weights on a device are those of the model, from every kind of file."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from safetensors.torch import load_file, save_file
from torch import Tensor

from foresay.errors import ModelError, UnsupportedModel
from foresay.models import weights
from foresay.models.decoder_config import ARCHITECTURES
from foresay.models.gpu import pieces
from foresay.models.gpu import weights as module
from foresay.models.gpu.blocks import WORKING_BYTES
from foresay.models.gpu.weights import decoder_config, needed_bytes, read_weights, weight_shapes
from foresay.models.weights import StoredModel
from foresay.models.weights.folder import tensors_of
from foresay.models.weights.gguf_header import GgmlType
from foresay.models.weights.stored import in_folder
from models import gguf_files, zoo

CPU = torch.device("cpu")
DEVICES = [torch.device(name) for name in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]]
BF16 = torch.bfloat16


def in_file(folder: Path, architecture: str, kind: Kind = Kind.F32, **how: Any) -> StoredModel:
    wide = (
        {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64} if "K" in kind.name else {}
    )
    model = gguf_files.tiny(architecture, **wide)
    gguf_files.export(model, folder / "a.gguf", architecture, kind, **how)
    return weights.find_stored(folder / "a.gguf", cache=folder / "cache")


def folder_of(name: str, folder: Path, dtype: torch.dtype = torch.float32, **how: Any) -> Any:
    changes = how.pop("changes", {})
    model: Any = zoo.make(name, hidden_size=64, intermediate_size=96, **changes)
    model = model.to(dtype)
    model.save_pretrained(folder, **how)
    return model


def same(found: dict[str, Tensor], expected: dict[str, Tensor], dtype: torch.dtype) -> None:
    assert found.keys() == expected.keys()
    for name, tensor in found.items():
        assert tensor.dtype == dtype and tensor.is_contiguous(), name
        assert torch.equal(tensor.cpu(), expected[name].to(dtype)), name


@pytest.mark.parametrize("architecture", gguf_files.CONFIGS)
@pytest.mark.parametrize("kind", ["F32", "Q8_0"])
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_file_s_weights_are_those_of_its_copy(
    device: torch.device,
    architecture: str,
    kind: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In pieces of a few blocks; norms of Gemma and turned rows of Llama are put back."""
    monkeypatch.setattr(module, "PIECE_BYTES", 5000)
    sizes: list[int] = []
    read = pieces.Pieces.read

    def counted(self: pieces.Pieces, file: Path, start: int, count: int, name: str) -> Tensor:
        sizes.append(count)
        return read(self, file, start, count, name)

    monkeypatch.setattr(pieces.Pieces, "read", counted)
    model = in_file(tmp_path, architecture, Kind[kind])
    gguf_files.convert(tmp_path / "a.gguf", tmp_path / "copy")
    copy = {name: _values(one) for name, one in tensors_of(tmp_path / "copy").items()}
    same(read_weights(model, device, BF16), copy, BF16)
    assert 4000 < max(sizes) <= 5000


def _values(tensor: Any) -> Tensor:
    return torch.from_numpy(tensor.rows(0, tensor.shape[0]).copy())


@pytest.mark.parametrize("kind", ["F16", "BF16", "Q4_0", "Q5_1", "Q4_K", "Q6_K"])
def test_kinds_of_files(kind: str, tmp_path: Path) -> None:
    """Against the model whose weights are what the file leaves of them; also in float32."""
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64} if "K" in kind else {}
    exported = gguf_files.tiny("llama", **wide)
    gguf_files.export(exported, tmp_path / "a.gguf", "llama", Kind[kind], narrow=False)
    model = weights.find_stored(tmp_path / "a.gguf", cache=tmp_path / "cache")
    for dtype in (torch.float32, BF16):
        same(read_weights(model, CPU, dtype), exported.state_dict(), dtype)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_folders_of_every_architecture(device: torch.device, name: str, tmp_path: Path) -> None:
    model = folder_of(name, tmp_path)
    stored = in_folder(tmp_path)
    expected = dict(model.state_dict())
    if model.config.tie_word_embeddings:
        del expected["lm_head.weight"]
    same(read_weights(stored, device, torch.float32), expected, torch.float32)
    same(read_weights(stored, device, BF16), expected, BF16)
    shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
    assert weight_shapes(decoder_config(stored)) == shapes


@pytest.mark.parametrize("dtype", [torch.float16, BF16])
def test_several_files_biases_and_a_tied_head(dtype: torch.dtype, tmp_path: Path) -> None:
    changes = {"attention_bias": True, "mlp_bias": True, "tie_word_embeddings": True}
    model = folder_of("llama", tmp_path, dtype, changes=changes, max_shard_size="40KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    found = read_weights(in_folder(tmp_path), CPU, dtype)
    assert "model.layers.1.mlp.down_proj.bias" in found and "lm_head.weight" not in found
    same(found, {name: model.state_dict()[name] for name in found}, dtype)


def test_an_output_beside_the_embedding_that_it_is(tmp_path: Path) -> None:
    folder_of("llama", tmp_path, changes={"tie_word_embeddings": True})
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    save_file({**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()}, file)
    assert "lm_head.weight" not in read_weights(in_folder(tmp_path), CPU, BF16)


def test_no_layer_comes_before_those_that_belong_to_none(tmp_path: Path) -> None:
    names = list(read_weights(in_file(tmp_path, "gemma2"), CPU, BF16))
    places = [name.startswith("model.layers.") for name in names]
    assert places == sorted(places) and places[3]
    layers = [int(name.split(".")[2]) for name in names if name.startswith("model.layers.")]
    assert layers == sorted(layers)


def test_pieces_are_read_by_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = np.random.default_rng(0).integers(0, 256, 100_003, np.uint8)
    content.tofile(tmp_path / "file")
    monkeypatch.setattr(pieces, "_PART_BYTES", 1000)
    monkeypatch.setattr(pieces, "usable_processors", lambda: 4)
    with pieces.reading_pieces(CPU) as reading:
        first = reading.read(tmp_path / "file", 3, 50_000, "a")
        second = reading.read(tmp_path / "file", 50_003, 50_000, "b")
        assert (first.numpy() == content[3:50_003]).all()
        assert (second.numpy() == content[50_003:]).all()
        with pytest.raises(ModelError, match="became shorter: it ends inside the tensor 'c'"):
            reading.read(tmp_path / "file", 50_004, 50_000, "c")
        with pytest.raises(ModelError, match="none' cannot be read: No such file"):
            reading.read(tmp_path / "none", 0, 5, "d")


def test_the_memory_that_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All weights in whole segments, and what is there for a while."""
    model = in_file(tmp_path, "llama", Kind.Q4_0)
    values = sum(tensor.numel() for tensor in read_weights(model, CPU, BF16).values())
    for dtype, size in ((BF16, 2), (torch.float32, 4)):
        more = needed_bytes(model, dtype) - values * size
        assert 0 < more - WORKING_BYTES - 2 * pieces.PIECE_BYTES < 40_000
    assert module._taken((1000, 1000), torch.float32) == 4 << 20
    assert module._taken((3,), BF16) == 512
    monkeypatch.setattr(module, "reading_pieces", None)
    needed_bytes(model, BF16)  # reads no values


def test_progress_and_its_end(tmp_path: Path) -> None:
    model = in_file(tmp_path, "llama")
    calls: list[tuple[str, int, int | None]] = []
    read_weights(model, CPU, BF16, lambda *call: calls.append(call))
    total = sum(one.tensor.size for one in model.tensors.values())
    assert calls[0] == ("read", 0, total) and calls[-1] == ("read", total, total)
    assert calls == sorted(calls, key=lambda call: call[1])

    def ended(stage: str, done: int, total: int | None) -> None:
        if done:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        read_weights(model, CPU, BF16, ended)


def test_values_that_are_no_numbers_or_too_large(tmp_path: Path) -> None:
    model = folder_of("qwen2", tmp_path)
    name = "model.layers.1.self_attn.k_proj.bias"
    for value, dtypes in (
        (float("nan"), (torch.float16, BF16, torch.float32)),
        (float("-inf"), (torch.float16, BF16, torch.float32)),
        (-7e4, (torch.float16,)),
    ):
        with torch.no_grad():
            model.get_parameter(name)[5] = value
        model.save_pretrained(tmp_path)
        for dtype in dtypes:
            with pytest.raises(ModelError, match=rf"'{name}' holds values that are no numbers, or"):
                read_weights(in_folder(tmp_path), CPU, dtype)
    assert read_weights(in_folder(tmp_path), CPU, BF16)[name][5] == -7e4


def test_a_scale_that_is_no_number(tmp_path: Path) -> None:
    model = in_file(tmp_path, "llama", Kind.Q8_0)
    tensor = model.tensors["model.layers.0.mlp.up_proj.weight"].tensor
    with open(tmp_path / "a.gguf", "r+b") as file:
        file.seek(tensor.start + 34)
        file.write(b"\x00\x7e")
    with pytest.raises(ModelError, match=r"'blk.0.ffn_up.weight' holds values that are no numbers"):
        read_weights(model, CPU, BF16)


def _cut(folder: Path) -> None:
    file = folder / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)


def _without(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.0.mlp.up_proj.weight"]
    save_file(tensors, folder / "model.safetensors")


def _reshaped(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.norm.weight": torch.ones(63)}, folder / "model.safetensors")


def _more(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file({**tensors, "model.layers.2.a": torch.ones(3)}, folder / "model.safetensors")


def _eight_bits(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    norm = torch.ones(64).to(torch.float8_e4m3fn)
    save_file({**tensors, "model.norm.weight": norm}, folder / "model.safetensors")


def _other_architecture(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "gpt2"}))


DAMAGE: dict[str, tuple[Callable[[Path], None], type[Exception], str]] = {
    "cut": (_cut, ModelError, "it should have"),
    "without": (_without, ModelError, "lacks the tensor 'model.layers.0.mlp.up_proj.weight'"),
    "reshaped": (_reshaped, ModelError, r"the shape \[63\], but its config.json says \[64\]"),
    "more": (_more, UnsupportedModel, "has the tensor 'model.layers.2.a'"),
    "of eight bits": (_eight_bits, UnsupportedModel, "is of type F8_E4M3; expected F32, F16, BF16"),
    "of another architecture": (_other_architecture, UnsupportedModel, "architecture 'gpt2'"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_damaged_folders(name: str, tmp_path: Path) -> None:
    """Before the values are read, also when the memory is counted."""
    folder_of("llama", tmp_path)
    damage, error, match = DAMAGE[name]
    model = in_folder(tmp_path)
    damage(tmp_path)
    for call in (lambda: read_weights(model, CPU, BF16), lambda: needed_bytes(model, BF16)):
        with pytest.raises(error, match=match):
            call()


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    model = in_file(tmp_path, "llama")
    os.truncate(tmp_path / "a.gguf", (tmp_path / "a.gguf").stat().st_size - 40_000)
    with pytest.raises(ModelError, match="became shorter: it ends inside the tensor '"):
        read_weights(model, CPU, BF16)
    (tmp_path / "a.gguf").unlink()
    with pytest.raises(ModelError, match="cannot be read"):
        read_weights(model, CPU, BF16)


def test_kinds_that_nobody_decodes_are_found_before(tmp_path: Path) -> None:
    model = in_file(tmp_path, "llama")
    assert model.plan is not None
    name = "model.layers.1.mlp.up_proj.weight"
    stored = model.tensors[name]
    changed = replace(stored, tensor=replace(stored.tensor, kind=GgmlType.Q8_K))
    plan = replace(model.plan, tensors={**model.tensors, name: changed})
    with pytest.raises(UnsupportedModel, match=r"'blk.1.ffn_up.weight' is of type Q8_K, which"):
        needed_bytes(replace(model, plan=plan), BF16)
    del plan.tensors[name]
    with pytest.raises(ModelError, match=rf"the tensor for '{name}' is not there; expected \[96, "):
        needed_bytes(replace(model, plan=plan), BF16)


def test_a_device_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = in_file(tmp_path, "llama")

    def full(*_: object, **__: object) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(module, "widen", full)
    with pytest.raises(ModelError, match=r"'token_embd.weight' does not fit on cpu, with 0 of"):
        read_weights(model, CPU, BF16)
