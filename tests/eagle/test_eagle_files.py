"""Heads in folders: ours and published ones are read, others are refused in a sentence."""

from __future__ import annotations

import json
import tracemalloc
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eagle.heads import FACTS, random_head, save_target, saved
from engine.asking import GREEDY, answers, prompts, wanted
from foresay import LLM, SamplingParams, Wants
from foresay.drafters.eagle import EagleDrafter
from foresay.drafters.eagle.files import load_head
from foresay.drafters.eagle.head import EagleHead
from foresay.drafters.eagle.head import weights_of as head_weights
from foresay.drafters.lineup import make_drafter
from foresay.engine.engine import Engine
from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models.load_transformers import target_of
from foresay.models.tables import facts_of, tables_of
from foresay.models.weights.stored import in_folder
from models import zoo
from tiny import call, save_model


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_target(tmp_path_factory.mktemp("target"), zoo.make("llama"))


def test_what_is_written_is_read(target: Path, tmp_path: Path) -> None:
    model = zoo.make("llama")
    head = random_head(model, drafted=60)
    folder = saved(head, tmp_path / "own")
    modes = {path.stat().st_mode for path in folder.iterdir()}
    assert len(modes) == 1  # who may read the config may read the weights
    stored = load_file(folder / "model.safetensors")
    assert "lm_head.weight" in stored  # its own, since the shape says so
    found = load_head(folder, in_folder(target))
    assert found.shape == head.shape
    for name, weight in found.named_parameters():
        assert torch.equal(weight, head.get_parameter(name).bfloat16().float())
    assert torch.equal(found.tokens, head.tokens)
    assert torch.equal(found.embedding, head.embedding)
    assert not any(weight.requires_grad for weight in found.parameters())


# Published heads


def published(
    *, hidden: int, heads: int, kv: int, head_dim: int, wide: int, vocabulary: int, drafted: int
) -> tuple[dict[str, Any], dict[str, tuple[int, ...]]]:
    """The config and the shapes of an EAGLE-3 head, as they are published."""
    config = {
        "architectures": ["LlamaForCausalLMEagle3"],
        "bos_token_id": 1,
        "draft_vocab_size": drafted,
        "head_dim": head_dim,
        "hidden_act": "silu",
        "hidden_size": hidden,
        "intermediate_size": wide,
        "max_position_embeddings": 2048,
        "model_type": "llama",
        "num_attention_heads": heads,
        "num_hidden_layers": 1,
        "num_key_value_heads": kv,
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "vocab_size": vocabulary,
    }
    shapes: dict[str, tuple[int, ...]] = {
        "d2t": (drafted,),
        "t2d": (vocabulary,),
        "fc.weight": (hidden, 3 * hidden),
        "lm_head.weight": (drafted, hidden),
        "norm.weight": (hidden,),
        "midlayer.hidden_norm.weight": (hidden,),
        "midlayer.input_layernorm.weight": (hidden,),
        "midlayer.post_attention_layernorm.weight": (hidden,),
        "midlayer.self_attn.q_proj.weight": (heads * head_dim, 2 * hidden),
        "midlayer.self_attn.k_proj.weight": (kv * head_dim, 2 * hidden),
        "midlayer.self_attn.v_proj.weight": (kv * head_dim, 2 * hidden),
        "midlayer.self_attn.o_proj.weight": (hidden, heads * head_dim),
        "midlayer.mlp.gate_proj.weight": (wide, hidden),
        "midlayer.mlp.up_proj.weight": (wide, hidden),
        "midlayer.mlp.down_proj.weight": (hidden, wide),
    }
    return config, shapes


def weights_of(shapes: dict[str, tuple[int, ...]]) -> dict[str, Tensor]:
    draw = torch.Generator().manual_seed(3)
    vocabulary, drafted = shapes["t2d"][0], shapes["d2t"][0]
    tokens = torch.randperm(vocabulary, generator=draw)[:drafted].sort().values
    given = {
        name: torch.randn(shape, generator=draw).mul_(0.1).bfloat16()
        for name, shape in shapes.items()
    }
    given["d2t"] = tokens - torch.arange(drafted)
    given["t2d"] = torch.zeros(vocabulary, dtype=torch.bool).index_fill(0, tokens, True)
    return given


def write(folder: Path, config: dict[str, Any], weights: dict[str, Tensor]) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(weights, folder / "model.safetensors")
    return folder


LAYERS = 8


def small() -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and weights of a published head for tiny targets."""
    size = {"hidden": 32, "heads": 4, "kv": 2, "head_dim": 16, "wide": 48}
    config, shapes = published(**size, vocabulary=128, drafted=40)
    return config, weights_of(shapes)


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        name: save_target(tmp_path_factory.mktemp(name), zoo.make(name, num_hidden_layers=LAYERS))
        for name in ("llama", "qwen3")
    }


@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_a_published_head_drafts(deep: dict[str, Path], name: str, tmp_path: Path) -> None:
    config, weights = small()
    drafter = EagleDrafter(write(tmp_path / "head", config, weights), deep[name])
    assert drafter.wants == Wants(hidden=True, hidden_layers=(2, LAYERS // 2, LAYERS - 3))
    assert torch.equal(drafter.head.output, weights["lm_head.weight"].float())
    tokens = torch.arange(40) + weights["d2t"]
    assert torch.equal(drafter.head.tokens, tokens)
    target = target_of(zoo.make(name, num_hidden_layers=LAYERS))
    asked = [(p, GREEDY) for p in prompts(2)]
    asked += [(p, SamplingParams(temperature=0.8, max_tokens=20)) for p in prompts(1, seed=5)]
    requests = answers(Engine(target, drafter, policy="fixed"), asked)
    assert [request.token_ids for request in requests] == wanted(target, asked)
    assert sum(request.stats.drafted for request in requests) > 50


def test_other_spellings(deep: dict[str, Path], tmp_path: Path) -> None:
    config, weights = small()
    named = {name.replace("midlayer.", "layers.0."): value for name, value in weights.items()}
    config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [1, 3, 4]}
    drafter = EagleDrafter(write(tmp_path / "sglang", config, named), deep["llama"])
    assert drafter.wants.hidden_layers == (2, 4, 5)  # SGLang names layers by their output
    del config["eagle_config"]
    config["eagle_aux_hidden_state_layer_ids"] = [1, 3, 4]
    weights["embed_tokens.weight"] = torch.ones(128, 32)
    drafter = EagleDrafter(write(tmp_path / "vllm", config, weights), deep["llama"])
    assert drafter.wants.hidden_layers == (1, 3, 4)
    assert torch.equal(drafter.head.embedding, torch.ones(128, 32))


def _without(name: str) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    return lambda config, weights: weights.__delitem__(name)


def _with(name: str, value: Tensor) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    return lambda config, weights: weights.update({name: value})


def _says(**changes: Any) -> Callable[[dict[str, Any], dict[str, Tensor]], None]:
    return lambda config, weights: config.update(changes)


WRONG: list[tuple[Callable[[dict[str, Any], dict[str, Tensor]], None], str]] = [
    (_without("fc.weight"), "lacks the tensor 'fc.weight' of an EAGLE-3 head"),
    (_without("lm_head.weight"), "lacks the tensor 'lm_head.weight' of an EAGLE-3 head"),
    (_without("midlayer.hidden_norm.weight"), "lacks the tensor 'midlayer.hidden_norm.weight'"),
    (_without("d2t"), "lacks the tensor 'd2t', which says which 40 of 128 tokens"),
    (_with("medusa.weight", torch.ones(2)), "has the tensor 'medusa.weight', which an EAGLE-3"),
    (
        _with("midlayer.mlp.up_proj.weight", torch.ones(47, 32)),
        r"'midlayer.mlp.up_proj.weight' of an EAGLE-3 head has the shape \[47, 32\], but its "
        r"config.json says \[48, 32\]",
    ),
    (
        _with("fc.weight", torch.ones(32, 64)),
        "takes features of width 64, but 3 hidden states of width 32 are 96 wide",
    ),
    (_with("d2t", torch.full((40,), 127)), "'d2t' does not name 40 different tokens"),
    (_with("d2t", torch.zeros(40, dtype=torch.long)), "'d2t' and 't2d' name different tokens"),
    (_with("d2t", torch.ones(40)), r"'d2t' is F32\[40\]; expected I64 or I32 or BOOL"),
    (_with("norm.weight", torch.full((32,), torch.nan)), "'norm.weight' holds what is no number"),
    (_with("norm.weight", torch.ones(32, dtype=torch.int8)), "'norm.weight' is of type I8"),
    (_says(vocab_size=129), "made for a vocabulary of 129, but '.*' has 128"),
    (_says(target_hidden_size=64), "made for a target's hidden size of 64, but '.*' has 32"),
    (_says(draft_vocab_size=300), "drafts 300 tokens of a vocabulary of 128"),
    (_says(hidden_size="wide"), "'hidden_size' of config.json is 'wide'; expected a whole number"),
    (_says(rms_norm_eps=-1), "'rms_norm_eps' of config.json is -1; expected a number above 0"),
    (_says(num_key_value_heads=3), "4 heads of width 16 for 3 heads of keys"),
    (
        _says(eagle_aux_hidden_state_layer_ids=[1, 3, 8]),
        r"layers \[1, 3, 8\], but its target has 8",
    ),
    (_says(eagle_aux_hidden_state_layer_ids="all"), "names the layers 'all'; expected numbers"),
    (_says(rope_scaling={"rope_type": "odd"}), "RoPE of type 'odd'"),
    (_says(norm_before_residual=True), "has norm_before_residual"),
    (_says(foresay={"format": 9}), "is a head of format 9; expected 1"),
]


@pytest.mark.parametrize(("spoil", "sentence"), WRONG, ids=[s[:40] for _, s in WRONG])
def test_refused(
    deep: dict[str, Path],
    tmp_path: Path,
    spoil: Callable[[dict[str, Any], dict[str, Tensor]], None],
    sentence: str,
) -> None:
    config, weights = small()
    spoil(config, weights)
    folder = write(tmp_path / "head", config, weights)
    with pytest.raises(ModelError, match=sentence):
        EagleDrafter(folder, deep["llama"])


@pytest.mark.parametrize("size", ["head_dim", "intermediate_size", "num_attention_heads"])
def test_sizes_are_checked_before_memory_is_taken(
    deep: dict[str, Path], tmp_path: Path, size: str
) -> None:
    config, weights = small()
    folder = write(tmp_path / "head", {**config, size: 1 << 24}, weights)
    tracemalloc.start()
    with pytest.raises(ModelError, match=r"has the shape .*, but its config.json says \[\d{8,}"):
        EagleDrafter(folder, deep["llama"])
    assert tracemalloc.get_traced_memory()[1] < 1 << 24
    tracemalloc.stop()


def test_the_names_and_shapes_of_weights() -> None:
    head = random_head(layers=(0, 1))
    assert {name: tuple(w.shape) for name, w in head.named_parameters()} == head_weights(head.shape)


def test_a_head_is_no_model_and_a_model_no_head(deep: dict[str, Path], tmp_path: Path) -> None:
    for head in (write(tmp_path / "head", *small()), saved(random_head(), tmp_path / "ours")):
        with pytest.raises(ModelError, match=f"is a head, no model; .* --drafter eagle:{head}"):
            make_drafter(f"model:{head}")
    model = save_target(tmp_path / "small", zoo.make("llama"))
    for noted in ({}, {"foresay": {"target": {"name": "tiny"}}}):  # as `foresay train model` does
        told = json.loads((model / "config.json").read_text()) | noted
        (model / "config.json").write_text(json.dumps(told))
        with pytest.raises(ModelError, match=f"is no head; .* --drafter model:{model}"):
            EagleDrafter(model, deep["llama"])


def test_files_that_are_no_heads(deep: dict[str, Path], tmp_path: Path) -> None:
    folder = write(tmp_path / "head", *small())
    with pytest.raises(InputError, match=r"does not say for which model .* EagleDrafter\(head, mo"):
        EagleDrafter(folder)
    whole = (folder / "model.safetensors").read_bytes()
    for size in (0, 5, 200, len(whole) - 1):
        (folder / "model.safetensors").write_bytes(whole[:size])
        with pytest.raises(ModelError, match=r"model.safetensors' is damaged"):
            EagleDrafter(folder, deep["llama"])
    (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"only in 'pytorch_model.bin', a pickle"):
        EagleDrafter(folder, deep["llama"])
    (folder / "config.json").write_text("{")
    with pytest.raises(ModelError, match=r"config.json' is no JSON"):
        EagleDrafter(folder, deep["llama"])
    with pytest.raises(ModelError, match="there is no folder"):
        EagleDrafter(tmp_path / "nowhere", deep["llama"])


def test_any_damage_of_bytes_is_a_sentence(deep: dict[str, Path], tmp_path: Path) -> None:
    folder = write(tmp_path / "head", *small())
    path, model = folder / "model.safetensors", in_folder(deep["llama"])
    whole, random = path.read_bytes(), np.random.default_rng(0)
    for _ in range(60):
        spoiled = bytearray(whole)
        for at in random.integers(0, 2000, 3):
            spoiled[at] = int(random.integers(256))
        path.write_bytes(spoiled)
        with suppress(ModelError):  # and nothing else
            assert isinstance(load_head(folder, model), EagleHead)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hidden", "heads", "wide", "vocabulary"),
    [(4096, 32, 14336, 128256), (4096, 32, 12288, 151936)],
)
def test_full_published_shapes(
    hidden: int, heads: int, wide: int, vocabulary: int, tmp_path: Path
) -> None:
    """Those of Llama-3.1-8B and Qwen3-8B; the embedding is the head's own here."""
    size = {"hidden": hidden, "heads": heads, "kv": 8, "head_dim": 128, "wide": wide}
    config, shapes = published(**size, vocabulary=vocabulary, drafted=32000)
    config["rope_theta"] = 500000.0
    weights = weights_of(shapes)
    weights["embed_tokens.weight"] = torch.zeros(vocabulary, hidden, dtype=torch.bfloat16)
    folder = write(tmp_path / "head", config, weights)
    target = tmp_path / "target"
    model = {"hidden_size": hidden, "vocab_size": vocabulary, "num_hidden_layers": 36}
    write(target, model, {"model.embed_tokens.weight": torch.zeros(1, 1)})
    del weights
    drafter = EagleDrafter(folder, target, dtype="bfloat16")
    assert drafter.wants.hidden_layers == (2, 18, 33)
    assert drafter.head.tokens.shape == (32000,)


# What a head takes from its target


def test_tables_and_facts(target: Path) -> None:
    named = dict(zoo.make("llama").named_parameters())
    tables, facts = tables_of(in_folder(target)), facts_of(in_folder(target))
    assert torch.equal(tables.embedding, named["model.embed_tokens.weight"])
    assert torch.equal(tables.output, named["lm_head.weight"])
    assert facts == FACTS


def test_another_architecture_has_no_such_table(tmp_path: Path) -> None:
    folder = save_target(tmp_path / "gpt2", zoo.make("gpt2"))
    with pytest.raises(UnsupportedModel, match=r"no tensor 'model.embed_tokens.weight'"):
        tables_of(in_folder(folder))


def test_by_name(tmp_path: Path) -> None:
    """As on the command line, with a whole model; a head of another tokenizer is refused."""
    model = save_model(tmp_path / "model")
    facts = facts_of(in_folder(model))
    head = random_head()
    with pytest.raises(ModelError, match=r"made for a vocabulary of 128, but '.*' has 257"):
        make_drafter(f"eagle:{saved(head, tmp_path / 'other')}", model=model)
    own = _head_for(facts.vocabulary)
    folder = saved(own, tmp_path / "head", facts, str(model))
    assert make_drafter(f"eagle:{folder}").wants.hidden  # it names its target
    llm = LLM(model, drafter=f"eagle:{folder}", policy="fixed")
    (answer,) = llm.generate("abc", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True))
    assert answer.stats.drafted > 0
    (same,) = llm.beside("none").generate(
        "abc", SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    )
    assert answer.token_ids == same.token_ids
    options = ("--model", model, "--max-tokens", 8, "--json", "--raw")
    done = call("generate", "abc", "--drafter", f"eagle:{folder}", "--policy", "fixed", *options)
    assert done.status == 0 and json.loads(done.out)["stats"]["drafted"] > 0
    config = json.loads((folder / "config.json").read_text())
    config["foresay"]["target"]["tokenizer_sha256"] = "0" * 64
    (folder / "config.json").write_text(json.dumps(config))
    done = call("generate", "abc", "--drafter", f"eagle:{folder}", *options)
    assert done.status == 1 and "trained with the tokenizer 000000000000…" in done.complaints
    wrong = call("generate", "abc", "--drafter", "eagle", *options)
    assert wrong.status == 1 and "drafter is 'eagle'" in wrong.complaints


def _head_for(vocabulary: int) -> EagleHead:
    head = EagleHead(replace(random_head().shape, vocabulary=vocabulary, drafted=vocabulary))
    head.output = torch.randn(vocabulary, 32, generator=torch.Generator().manual_seed(1))
    return head
