"""What model.generate with foresay inside refuses, by its name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    DynamicCache,
    LogitsProcessor,
    LogitsProcessorList,
    MaxTimeCriteria,
    StoppingCriteriaList,
    TemperatureLogitsWarper,
)
from transformers.generation.streamers import BaseStreamer

from foresay.errors import InputError, UnsupportedModel
from foresay.integrations.transformers import generate
from integrations.generating import config, make, padded
from models import zoo


class _Nothing(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Any) -> Any:
        return scores


class _Deaf(BaseStreamer):
    def put(self, value: Tensor) -> None:
        pass


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 3}, "num_beams is 3; expected 1 with custom_generate=generate"),
    "ngrams": ({"no_repeat_ngram_size": 2}, "no_repeat_ngram_size is 2"),
    "typical": ({"typical_p": 0.5, "do_sample": True}, "typical_p is 0.5"),
    "scores": ({"output_scores": True, "return_dict_in_generate": True}, "output_scores is True"),
    "dict": ({"return_dict_in_generate": True}, "return_dict_in_generate is True"),
    "lookup": ({"prompt_lookup_num_tokens": 3}, "prompt_lookup_num_tokens is 3"),
    "bias": ({"sequence_bias": [[[5], 1.0]]}, "sequence_bias is"),
    "words": ({"bad_words_ids": [[5]]}, "bad_words_ids is"),
    "time": ({"max_time": 1.0}, "max_time is 1.0"),
    "cold": ({"temperature": 1e-5, "do_sample": True}, "temperature is 1e-05"),
    "processor": ({"logits_processor": LogitsProcessorList([_Nothing()])}, "_Nothing is among"),
    "allowed": ({"prefix_allowed_tokens_fn": lambda *_: [5]}, "PrefixConstrainedLogitsProcessor"),
    "other temperature": (
        {
            "logits_processor": LogitsProcessorList([TemperatureLogitsWarper(0.5)]),
            "temperature": 0.7,
            "do_sample": True,
        },
        "TemperatureLogitsWarper is among",
    ),
    "criterion": (
        {"stopping_criteria": StoppingCriteriaList([MaxTimeCriteria(1.0)])},
        "MaxTimeCriteria is among",
    ),
    "streamer": ({"streamer": _Deaf()}, "streamer was given"),
    "long": ({"max_new_tokens": zoo.CONTEXT}, f"expected at most {zoo.CONTEXT}"),
    "policy": ({"policy": "nonsense"}, "nonsense"),
    "drafter": ({"drafter": "nonsense"}, "nonsense"),
    "right": ({"attention_mask": torch.tensor([[1] * 8 + [0]])}, "row 0 of attention_mask"),
    "gap": ({"attention_mask": torch.tensor([[1, 0] + [1] * 7])}, "row 0 of attention_mask"),
    "positions": (
        {"position_ids": torch.arange(1, 10)[None]},
        "position_ids do not fit the attention_mask",
    ),
    "embeds": ({"inputs_embeds": torch.zeros(1, 9, 32)}, "inputs_embeds"),
}


@pytest.mark.parametrize("why", list(REFUSED))
def test_what_is_refused_by_its_name(model: Any, why: str) -> None:
    asked, said = REFUSED[why]
    inputs = {**padded(9), "do_sample": False, "max_new_tokens": 4, **asked}
    with pytest.raises(InputError) as refused:
        model.generate(**inputs, custom_generate=generate)
    assert said in str(refused.value)


def test_more_that_is_refused(model: Any) -> None:
    asked: dict[str, Any] = {**padded(9), "max_new_tokens": 4, "custom_generate": generate}
    with pytest.raises(InputError, match="assistant_model was given"):
        model.generate(**asked, assistant_model=make("llama"))
    cache = DynamicCache()
    model(padded(9)["input_ids"], past_key_values=cache, use_cache=True)
    asked["attention_mask"] = torch.ones(1, 18, dtype=torch.long)
    asked["input_ids"] = asked["input_ids"].repeat(1, 2)
    with pytest.raises(InputError, match="past_key_values hold 9 tokens"):
        model.generate(**asked, past_key_values=cache)


def test_every_field_is_done_idle_or_refused(model: Any) -> None:
    """Also one that transformers will only have tomorrow."""
    names = [*vars(config()), "field_of_tomorrow"]
    ids, taken = padded(9)["input_ids"], []
    for name in names:
        asked = config(max_length=12)
        setattr(asked, name, object())
        try:
            generate(model, ids, [], [], asked)
        except InputError as error:
            assert name in str(error)
        except (TypeError, ValueError, RuntimeError):
            taken.append(name)  # it was looked at, and is no number
        else:
            taken.append(name)
    assert "field_of_tomorrow" not in taken and "num_beams" not in taken
    unknown = {"use_mtp", "top_h", "watermarking_config", "speculation_type", "constraints"}
    assert not unknown & set(taken)


def test_models_that_are_refused() -> None:
    asked: dict[str, Any] = {"max_new_tokens": 4, "custom_generate": generate}
    ids = padded(9)["input_ids"]
    with pytest.raises(UnsupportedModel, match=r"is on meta; expected the CPU"):
        generate(make("llama").to("meta"), ids, [], [], config(max_length=12))
    with pytest.raises(UnsupportedModel, match=r"has torch.float16; expected float32 or bfloat16"):
        make("llama", dtype=torch.float16).generate(ids, **asked)
    hooked: Any = make("llama")
    hooked.model.layers[0].register_forward_hook(lambda *_: None)
    with pytest.raises(UnsupportedModel, match=r"'model.layers.0' has a forward hook"):
        hooked.generate(ids, **asked)
