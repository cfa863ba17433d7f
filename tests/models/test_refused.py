"""Models that cannot be run exactly are refused by name, whatever they do when they are tried."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import AutoConfig, PreTrainedModel
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from foresay.errors import UnsupportedModel
from foresay.models import visibility
from foresay.models.load_transformers import target_of
from foresay.models.target import SequenceInput
from models import zoo

_SIZES = {
    key: value
    for key, value in zoo._COMMON.items()
    if key not in ("head_dim", "tie_word_embeddings")
}
_LINEAR = {
    "linear_num_value_heads": 2,
    "linear_num_key_heads": 2,
    "linear_key_head_dim": 8,
    "linear_value_head_dim": 8,
    "num_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16,
}
_LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0] * 4,
    "long_factor": [2.0] * 4,
    "original_max_position_embeddings": 64,
}
_BART = {
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "decoder_ffn_dim": 48,
    "encoder_ffn_dim": 48,
}
_IGNORES, _STATE, _OTHER = "does not let its attention", "state is not keys", "gives other logits"

REFUSED: list[tuple[str, str, dict[str, Any]]] = [
    # The attention function is not used.
    ("bloom", _IGNORES, {}),
    ("gptj", _IGNORES, {"rotary_dim": 8}),
    ("falcon", _IGNORES, {"alibi": False}),
    ("gpt_neo", _IGNORES, {"attention_types": [[["global", "local"], 1]]}),
    ("mpt", _IGNORES, {}),
    ("xglm", _IGNORES, {"ffn_dim": 48}),
    # There is more to remember than keys and values.
    ("mamba", _STATE, {"state_size": 8}),
    ("qwen3_next", _STATE, {"layer_types": ["linear_attention", "full_attention"], **_LINEAR}),
    ("lfm2", _STATE, {"layer_types": ["conv", "full_attention"]}),
    ("jamba", _STATE, {"num_experts": 2, "attn_layer_period": 2, "attn_layer_offset": 1}),
    ("zaya", "of type hybrid", {"head_dim": 8}),
    (
        "recurrent_gemma",
        r"for the layers \[1\]|of type linear_attention",  # the second from transformers 5.23 on
        {"lru_width": 32, "block_types": ["recurrent", "attention"], "num_key_value_heads": 1},
    ),
    # Attention is called in another way.
    ("diffllama", r"for the layers \[0, 0, 1, 1\]", {}),
    ("doge", "AttributeError", {}),
    # Positions come from elsewhere, or depend on the texts beside.
    ("roberta", _OTHER, {"is_decoder": True, "pad_token_id": 1}),
    ("electra", _OTHER, {"embedding_size": 32}),
    ("bart", _OTHER, _BART),
    ("mbart", _OTHER, _BART),
    ("phi3", "longrope", {"rope_parameters": _LONGROPE}),
    (
        "llama",
        "dynamic",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}},
    ),
]


def make(name: str, changes: dict[str, Any]) -> PreTrainedModel:
    if name not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        pytest.skip(f"this transformers has no {name}")
    return zoo.from_config(AutoConfig.for_model(name, **{**_SIZES, **changes}))


@pytest.mark.parametrize(("name", "reason", "changes"), REFUSED, ids=[row[0] for row in REFUSED])
def test_refused_by_name(name: str, reason: str, changes: dict[str, Any]) -> None:
    model = make(name, changes)
    with pytest.raises(UnsupportedModel, match=reason) as refusal:
        target_of(model)
    said = str(refusal.value)
    assert name in said
    assert "\n" not in said


def test_encoders_are_refused() -> None:
    config = AutoConfig.for_model("bart", vocab_size=zoo.VOCABULARY, **_BART)
    model = zoo.make("llama")
    model.config = config
    with pytest.raises(UnsupportedModel, match="bart has an encoder"):
        target_of(model)


def test_another_dtype_is_refused() -> None:
    with pytest.raises(UnsupportedModel, match="float16"):
        target_of(zoo.make("llama", dtype=torch.float16))


@pytest.mark.parametrize("error", [KeyError("rows"), ZeroDivisionError(), TypeError("a\nb")])
def test_whatever_a_model_raises_is_a_reason(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = zoo.make("llama")
    attention = model.model.layers[1].self_attn

    def fail(*_: Any, **__: Any) -> None:
        raise error

    monkeypatch.setattr(attention, "forward", fail)
    with pytest.raises(UnsupportedModel, match=f"llama cannot be run .*{type(error).__name__}"):
        target_of(model)


def test_a_lack_of_memory_is_no_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(MemoryError), visibility.as_unsupported(zoo.make("llama")):
        raise MemoryError


def test_an_unknown_rule_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def every_other(batch: Any, head: Any, query: Any, key: Any) -> Any:
        return (key <= query) & ((query - key) % 2 == 0)

    class Mask(visibility._Mask):
        def __init__(self, **given: Any) -> None:
            super().__init__(**{**given, "mask_function": every_other})

    monkeypatch.setattr(visibility, "_Mask", Mask)
    with pytest.raises(UnsupportedModel, match="layer 0 of mistral has an unknown attention mask"):
        target_of(zoo.make("mistral"))


def test_a_good_model_is_not_harmed_by_a_refused_one() -> None:
    plain = zoo.make("llama")
    plain.set_attn_implementation("eager")
    before = zoo.plain_logits(plain, range(3, 40))
    for name in ("doge", "gpt_neo", "diffllama"):
        changes = next(row[2] for row in REFUSED if row[0] == name)
        with pytest.raises(UnsupportedModel):
            target_of(make(name, changes))
    assert torch.equal(zoo.plain_logits(plain, range(3, 40)), before)
    target = target_of(zoo.make("llama"))
    text = torch.arange(3, 40, dtype=torch.int32).numpy()
    given = target.forward([SequenceInput.of(target, target.open(), text)]).logits
    torch.testing.assert_close(given, before[-1:], rtol=0, atol=1e-4)
