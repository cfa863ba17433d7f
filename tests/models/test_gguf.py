"""GGUF files become the models they were made from; damaged and foreign ones become sentences."""

from __future__ import annotations

import json
import random
import struct
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from transformers import AutoModelForCausalLM, AutoTokenizer

from foresay.errors import ModelError, UnsupportedModel
from foresay.models.weights import folder as folders
from foresay.models.weights.gguf_header import read_header
from foresay.models.weights.shards import LARGEST, bf16_of, write_shards
from models import gguf_files
from models.gguf_files import convert

TEXT = torch.arange(24)[None] * 7 % gguf_files.VOCABULARY


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        found: torch.Tensor = model(input_ids=TEXT, use_cache=False).logits
    return found


def loaded(folder: Path) -> Any:
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    return model.eval()


def converted(model: Any, root: Path, architecture: str = "llama", *kind: Kind, **how: Any) -> Path:
    """The folder of safetensors of a model that was written as a GGUF file."""
    gguf_files.export(model, root / "a.gguf", architecture, *kind, **how)
    convert(root / "a.gguf", root / "a")
    return root / "a"


@pytest.mark.parametrize("kind", [Kind.F32, Kind.F16, Kind.BF16, Kind.Q8_0], ids=lambda k: k.name)
@pytest.mark.parametrize("architecture", gguf_files.CONFIGS)
def test_logits_are_those_of_the_model(architecture: str, kind: Kind, tmp_path: Path) -> None:
    model = gguf_files.tiny(architecture)
    found = loaded(folders.check(converted(model, tmp_path, architecture, kind)))
    assert not found.config.tie_word_embeddings
    expected = logits(model)
    assert torch.equal(logits(found), expected)
    # The first token must matter for the last, or nothing above was tested.
    assert float(expected.std()) > 0.1


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("written", ["absent", "equal"])
def test_tied_embeddings(architecture: str, written: str, tmp_path: Path) -> None:
    model = gguf_files.tiny(architecture, tie_word_embeddings=True)
    embedding = model.get_input_embeddings().weight.detach().numpy()
    tensors = {"output.weight": embedding} if written == "equal" else {}
    found = loaded(converted(model, tmp_path, architecture, tensors=tensors))
    assert found.config.tie_word_embeddings
    assert torch.equal(logits(found), logits(model))
    assert b"lm_head" not in (tmp_path / "a" / "model.safetensors").read_bytes()


@pytest.mark.parametrize("name", gguf_files.SCALINGS)
def test_rope_scaling(name: str, tmp_path: Path) -> None:
    model, architecture, more = gguf_files.scaled(name)
    assert not torch.equal(logits(model), logits(gguf_files.tiny(architecture)))
    assert torch.equal(
        logits(loaded(converted(model, tmp_path, architecture, **more))), logits(model)
    )


def test_large_tensors_go_in_parts_and_several_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = gguf_files.tiny("llama")
    gguf_files.export(model, tmp_path / "a.gguf", "llama", Kind.Q8_0)
    seen: list[tuple[str, int, int | None]] = []
    monkeypatch.setattr("foresay.models.weights.gguf._VALUES_AT_A_TIME", 1500)
    monkeypatch.setattr(
        "foresay.models.weights.gguf.write_shards",
        lambda folder, tensors: write_shards(folder, tensors, limit=50_000),
    )
    convert(tmp_path / "a.gguf", tmp_path / "a", lambda *step: seen.append(step))
    files = sorted((tmp_path / "a").glob("*.safetensors"))
    assert len(files) > 2 and all(file.stat().st_size < 60_000 for file in files)
    assert torch.equal(logits(loaded(folders.check(tmp_path / "a"))), logits(model))
    assert seen[-1][0] == "convert" and seen[-1][1] == seen[-1][2]
    files[1].unlink()
    with pytest.raises(ModelError, match=files[1].name):
        folders.check(tmp_path / "a")


def test_bfloat16_is_rounded_as_torch_rounds() -> None:
    values = torch.randn(4096) * torch.logspace(-38, 37, 4096)
    ties = torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, -1 - 2**-8, 0.0, -0.0, LARGEST])
    both = torch.cat([values, ties])
    expected = both.to(torch.bfloat16).view(torch.uint16).numpy()
    assert np.array_equal(bf16_of(both.numpy()), expected)


# --- what is refused -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("extra", "match"),
    [
        ({"llama.expert_count": 8}, "llama.expert_count to 8"),
        ({"llama.logit_scale": 0.5}, "llama.logit_scale"),
        ({"llama.rope.scaling.type": "longrope", "llama.rope.scaling.factor": 2.0}, "longrope"),
        ({"llama.rope.dimension_count": 8}, "rope.dimension_count is 8"),
        ({"llama.attention.sliding_window": 16}, "sliding window of 16"),
        ({"llama.attention.head_count_kv": [1, 2]}, "every layer"),
        ({"llama.final_logit_softcapping": 30.0}, "softcapping"),
        ({"split.count": 3}, "one of 3 parts"),
    ],
)
def test_unknown_keys_are_refused(extra: dict[str, Any], match: str, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModel, match=match):
        converted(gguf_files.tiny("llama"), tmp_path, extra=extra)
    assert not (tmp_path / "a").exists()


def test_other_architectures_tensors_and_factors_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    writer = gguf.GGUFWriter(path, "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UnsupportedModel, match=r"'mamba'; expected llama, qwen2, qwen3, gemma"):
        convert(path, tmp_path / "a")
    model = gguf_files.tiny("llama")
    for name in ("blk.0.attn_q.bias", "v.patch_embd.weight"):
        with pytest.raises(UnsupportedModel, match=name):
            converted(model, tmp_path, tensors={name: np.ones(64, np.float32)})
    strange = np.linspace(1, 5, 8, dtype=np.float32)
    with pytest.raises(UnsupportedModel, match="not those of Llama 3"):
        converted(model, tmp_path, tensors={"rope_freqs.weight": strange})
    with pytest.raises(ModelError, match=r"lacks the tensor 'blk.1.ffn_up.weight'"):
        converted(model, tmp_path, without=("blk.1.ffn_up.weight",))


def test_values_that_are_no_numbers(tmp_path: Path) -> None:
    model = gguf_files.tiny("llama")
    with torch.no_grad():
        model.get_parameter("model.layers.1.mlp.up_proj.weight")[3, 5] = float("nan")
    with pytest.raises(ModelError, match=r"blk.1.ffn_up.weight.*no numbers"):
        converted(model, tmp_path)
    assert [p.name for p in tmp_path.iterdir() if not p.name.endswith(".lock")] == ["a.gguf"]


# --- damage ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("sound") / "a.gguf"
    small = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1}
    gguf_files.export(gguf_files.tiny("qwen3", **small), path, "qwen3", Kind.Q8_0)
    return path.read_bytes()


def outcome(raw: bytes, tmp_path: Path) -> str:
    """Convert damaged bytes: a model or a sentence, and never anything else."""
    path = tmp_path / "a.gguf"
    path.write_bytes(raw)
    number = len(list(tmp_path.iterdir()))
    try:
        convert(path, tmp_path / f"out{number}")
    except ModelError as error:
        assert "a.gguf" in str(error)
        return str(error)
    return ""


def header_end(raw: bytes, tmp_path: Path) -> int:
    (tmp_path / "whole.gguf").write_bytes(raw)
    return min(t.start for t in read_header(tmp_path / "whole.gguf").tensors.values())


def test_truncated_files(sound: bytes, tmp_path: Path) -> None:
    end = header_end(sound, tmp_path)
    chosen = random.Random(1)
    cuts = [0, 3, 4, 7, 8, 20, end, len(sound) - 1, *chosen.sample(range(end), 40)]
    for cut in cuts:
        assert outcome(sound[:cut], tmp_path), cut


@pytest.mark.parametrize(
    ("tensors", "match"),
    [
        ([("a", 0), ("b", 128)], ""),
        ([("a", 0), ("b", 96)], "the tensors 'a' and 'b' overlap"),
        ([("b", 64), ("a", 0)], "the tensors 'a' and 'b' overlap"),
        ([("a", 0), ("b", 132)], r"the tensor 'b' should have 128 bytes at \d+, but"),
        ([("a", 0), ("b", 256)], r"the tensor 'b' should have 128 bytes at \d+, but"),
        ([("a", 0), ("a", 128)], "the tensor 'a' occurs twice"),
    ],
)
def test_where_tensors_are(tensors: list[tuple[str, int]], match: str, tmp_path: Path) -> None:
    """Each of 32 numbers in float32, in a file with room for two of them."""
    raw = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), 0)
    for name, offset in tensors:
        raw += struct.pack("<Q", len(name)) + name.encode()
        raw += struct.pack("<IQIQ", 1, 32, 0, offset)
    path = tmp_path / "a.gguf"
    path.write_bytes(raw + bytes(-len(raw) % 32 + 256))
    if match:
        with pytest.raises(ModelError, match=match):
            read_header(path)
    else:
        assert list(read_header(path).tensors) == ["a", "b"]


def test_counts_are_believed_only_if_the_file_has_room(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    start = b"GGUF" + struct.pack("<I", 3)
    key = struct.pack("<Q", 1) + b"k"
    for rest in (
        struct.pack("<QQ", 2**62, 0),
        struct.pack("<QQ", 0, 2**62),
        struct.pack("<QQ", 0, 1) + struct.pack("<Q", 2**62),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 0, 2**62) + bytes(64),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IIQ", 9, 9, 4) + bytes(64),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<IQ", 8, 2**62) + bytes(64),
        struct.pack("<QQ", 0, 1) + key + struct.pack("<I", 77) + bytes(64),
    ):
        path.write_bytes(start + rest)
        with pytest.raises(ModelError, match="no sound GGUF file"):
            read_header(path)
    path.write_bytes(b"GGUF" + struct.pack(">I", 3) + bytes(64))
    with pytest.raises(ModelError, match="little-endian"):
        read_header(path)


# --- tokenizers ------------------------------------------------------------------------------


def tokenizer_of(path: Path, words: dict[str, Any]) -> Any:
    """What transformers makes of a llama whose tokenizer has these keys, after its conversion."""
    gguf_files.export(gguf_files.tiny("llama"), path, "llama", words=words)
    convert(path, path.with_suffix(""))
    return AutoTokenizer.from_pretrained(path.with_suffix(""))


def byte_level(path: Path, pre: str, **keys: Any) -> Any:
    return tokenizer_of(path, gguf_files.byte_words(pre, **keys))


def test_byte_level_words(tmp_path: Path) -> None:
    tokenizer: Any = AutoTokenizer.from_pretrained(converted(gguf_files.tiny("llama"), tmp_path))
    text = "<|im_start|>hello world 12<think>é\n\t🙂<|im_end|>"
    ids = tokenizer(text)["input_ids"]
    assert tokenizer.decode(ids) == text
    pieces = tokenizer.convert_ids_to_tokens(ids)
    # Digits are cut before merges see them; the user's own token stays whole.
    assert pieces[:10] == [
        *("<|im_start|>", "hello", "Ġw", "o", "r", "l", "d", "Ġ", "1", "2"),
    ]
    assert "<think>" in pieces
    assert len(tokenizer) == len(gguf_files.WORDS)  # not the empty places
    chat = tokenizer.apply_chat_template([{"role": "user", "content": "hello"}], tokenize=False)
    assert chat == "<|im_start|>hello<|im_end|>"
    told = json.loads((tmp_path / "a" / "generation_config.json").read_text())
    assert told["eos_token_id"] == [2, 0] and told["bos_token_id"] == 1


def test_pre_tokenizers(tmp_path: Path) -> None:
    def cut(pre: str, text: str, **keys: Any) -> list[str]:
        tokenizer = byte_level(tmp_path / f"{pre}.gguf", pre, **keys)
        found: list[str] = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
        return found

    assert cut("gpt-2", "12") == ["12"]
    assert cut("qwen2", "12e\u0301") == ["1", "2", "Ã", "©"]  # single digits, NFC
    assert cut("llama-bpe", "12") == ["<|im_start|>", "12"]  # groups of digits, and BOS by default
    assert cut("llama3", "12", add_bos_token=False, add_eos_token=True) == ["12", "<|im_end|>"]
    with pytest.raises(UnsupportedModel, match=r"'mystery'.*gpt-2"):
        cut("mystery", "")
    with pytest.raises(ModelError, match=r"merge 'h q'"):
        byte_level(tmp_path / "m.gguf", "gpt-2", merges=["h q"])
    with pytest.raises(ModelError, match="occurs twice"):
        byte_level(tmp_path / "t.gguf", "gpt-2", tokens=[*gguf_files.WORDS[:-1], "h"])
    with pytest.raises(ModelError, match="bos_token_id is 999"):
        byte_level(tmp_path / "b.gguf", "gpt-2", bos_token_id=999)
    with pytest.raises(UnsupportedModel, match="'bert'"):
        tokenizer_of(tmp_path / "k.gguf", {"model": "bert", "tokens": ["a"]})


def sentencepiece(path: Path, **keys: Any) -> Any:
    pieces = ["<unk>", "<s>", "</s>", "<end_of_turn>", *(f"<0x{n:02X}>" for n in range(256))]
    kinds = [2, 3, 3, 3, *([6] * 256)]
    normal = ["▁", "a", "b", "c", "ab", "bc", "▁a"]
    # "bc" is better than "ab": "abc" is a + bc.
    scores = [0.0] * len(pieces) + [-9.0, -9.0, -9.0, -9.0, -3.0, -1.0, -2.0]
    common: dict[str, Any] = {
        "model": "llama",
        "tokens": [*pieces, *normal],
        "token_type": kinds + [1] * len(normal),
        "scores": scores,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }
    return tokenizer_of(path, {**common, **keys})


def test_sentencepiece_words(tmp_path: Path) -> None:
    tokenizer = sentencepiece(tmp_path / "a.gguf")

    def cut(text: str) -> list[str]:
        found: list[str] = tokenizer.convert_ids_to_tokens(tokenizer(text)["input_ids"])
        return found

    assert cut("ab") == ["<s>", "▁a", "b"]  # a prefix of space and BOS, as by default
    assert cut("abc") == ["<s>", "▁a", "bc"]
    assert cut(" é") == ["<s>", "▁", "▁", "<0xC3>", "<0xA9>"]
    ids = tokenizer("abc é ab🙂", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids) == "abc é ab🙂"
    plain = sentencepiece(tmp_path / "b.gguf", add_space_prefix=False, add_bos_token=False)
    assert plain.convert_ids_to_tokens(plain("abc ab")["input_ids"]) == ["a", "bc", "▁a", "b"]
    with pytest.raises(ModelError, match="scores"):
        sentencepiece(tmp_path / "c.gguf", scores=[1.0, 2.0])
