"""Decoders made from GGUF files as they are stored give the logits of transformers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind

from engine.asking import ASKED, answers, prompts
from engine.asking import wanted as plainly
from engine.drafters import Scripted
from foresay.drafters import SuffixDrafter
from foresay.engine.engine import Engine
from foresay.models import weights
from foresay.models.cpu import stored_decoder
from foresay.models.cpu.stored_decoder import FORMATS, decoder_of, runs_as_stored
from foresay.models.cpu.stored_target import StoredTarget
from foresay.models.decoder_config import DecoderConfig, read_config
from foresay.models.invariance import is_batch_invariant
from foresay.models.target import SequenceInput
from models import gguf_files, zoo
from models.core_reference import difference, found, least_difference, text_of, wanted
from models.targets import ragged_step, stored

CLOSE, ROUNDED, WRONG = 0.002, 0.03, 0.01
"""Differences: of the same sums, of bfloat16 against float32, of another model."""

QUANTISED = sorted(FORMATS - {"F32", "F16", "BF16"})
TEXT = text_of(gguf_files.VOCABULARY)


def target_of(
    model: Any, folder: Path, architecture: str, kind: Kind = Kind.F32, **how: Any
) -> StoredTarget:
    """The model from a file; it keeps what the file's format leaves of its weights."""
    gguf_files.export(model, folder / "a.gguf", architecture, kind, narrow=False, **how)
    model_file = weights.find_stored(folder / "a.gguf", cache=folder / "cache")
    assert runs_as_stored(model_file)
    return StoredTarget(decoder_of(model_file), context=128, threads=1)


@pytest.mark.parametrize("architecture", gguf_files.CONFIGS)
def test_logits_are_those_of_transformers(architecture: str, tmp_path: Path) -> None:
    """Also beyond windows, which are of 6 tokens where there are any."""
    model = gguf_files.tiny(architecture)
    logits = found(target_of(model, tmp_path, architecture), TEXT)
    assert difference(logits, wanted(model, TEXT)) < CLOSE
    plain = zoo.plain_logits(model, TEXT)
    assert CLOSE < difference(logits, plain) < ROUNDED  # or the reference would round nothing


@pytest.mark.parametrize("name", gguf_files.SCALINGS)
def test_scaled_rope(name: str, tmp_path: Path) -> None:
    model, architecture, more = gguf_files.scaled(name)
    target = target_of(model, tmp_path, architecture, **more)
    text = text_of(gguf_files.VOCABULARY, 120)
    logits = found(target, text)
    assert difference(logits, wanted(model, text)) < CLOSE
    assert difference(logits, wanted(gguf_files.tiny(architecture), text)) > WRONG


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_a_tied_head_is_the_embedding(architecture: str, tmp_path: Path) -> None:
    model = gguf_files.tiny(architecture, tie_word_embeddings=True)
    target = target_of(model, tmp_path, architecture)
    assert difference(found(target, TEXT), wanted(model, TEXT)) < CLOSE


def _kind(**changes: Any) -> Callable[[DecoderConfig], DecoderConfig]:
    return lambda config: replace(config, kind=replace(config.kind, **changes))


def _config(**changes: Any) -> Callable[[DecoderConfig], DecoderConfig]:
    return lambda config: replace(config, **changes)


WRONG_VARIANTS: dict[str, tuple[str, Callable[[DecoderConfig], DecoderConfig]]] = {
    "another base of rope": ("llama", _config(frequencies=((1.0,) * 8,))),
    "a scaled rope": ("llama", _config(rope_scale=1.1)),
    "scores of another size": ("llama", _config(scaling=0.3)),
    "no biases": ("qwen2", _config(query_bias=False)),
    "no norms of heads": ("qwen3", _kind(head_norms=False)),
    "another activation": ("gemma", _kind(gelu=False)),
    "an embedding that is not scaled": ("gemma", _kind(scaled=False)),
    "no norms of results": ("gemma2", _kind(after_norms=False)),
    "no cap of scores": ("gemma2", _config(score_cap=0.0)),
    "no cap of logits": ("gemma2", _config(logit_cap=0.0)),
    "no windows": ("gemma2", _config(windows=(0,) * 3)),
    "windows that are wider by one": ("gemma2", _config(windows=(7, 0, 7))),
    "windows in all layers": ("gemma2", _config(windows=(6,) * 3)),
    "one rope for all layers": ("gemma3", _config(ropes=(0,) * 7)),
    "a window missing": ("gemma3", _config(windows=(6, 6, 6, 0, 6, 0, 6))),
}


@pytest.mark.parametrize("name", WRONG_VARIANTS)
def test_a_wrong_decoder_is_found(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    architecture, change = WRONG_VARIANTS[name]
    monkeypatch.setattr(
        stored_decoder, "read_config", lambda config, where: change(read_config(config, where))
    )
    model = gguf_files.tiny(architecture)
    target = target_of(model, tmp_path, architecture)
    assert difference(found(target, TEXT), wanted(model, TEXT)) > WRONG


def test_rows_in_a_wrong_order_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """llama.cpp stores the rows of queries and keys of this architecture in another order."""
    as_stored: Callable[[int, int], Any] = lambda rows, heads: np.arange(rows, dtype=np.int32)  # noqa: E731
    monkeypatch.setattr(stored_decoder, "_order", as_stored)
    model = gguf_files.tiny("llama")
    target = target_of(model, tmp_path, "llama")
    assert difference(found(target, TEXT), wanted(model, TEXT)) > WRONG


@pytest.mark.parametrize(
    ("architecture", "kind"),
    [
        *(("llama", kind) for kind in [*QUANTISED, "F16", "BF16"]),
        *(("gemma2", kind) for kind in ("Q4_K", "Q8_0", "BF16")),
    ],
)
def test_formats(architecture: str, kind: str, tmp_path: Path) -> None:
    """Against the values that gguf reads from the same bytes."""
    wide = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64} if "K" in kind else {}
    if architecture == "gemma2" and wide:
        wide["query_pre_attn_scalar"] = 64
    model = gguf_files.tiny(architecture, **wide)
    target = target_of(model, tmp_path, architecture, Kind[kind])
    assert least_difference(target, model, quantised=kind in QUANTISED) < CLOSE / 10


@pytest.fixture(scope="module", params=["llama", "gemma2", "gemma3"])
def both(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[StoredTarget, Any]:
    """A target of quantised weights, and the model with the same weights."""
    model = gguf_files.tiny(request.param)
    folder = tmp_path_factory.mktemp(request.param)
    return target_of(model, folder, request.param, Kind.Q4_1), model


def test_ragged_steps_with_trees(both: tuple[StoredTarget, Any]) -> None:
    target, model = both
    logits, expected = ragged_step(target, model, 1)
    assert logits.shape == expected.shape
    assert difference(logits, expected) < 0.1  # integers against none
    assert float((logits.argmax(-1) == expected.argmax(-1)).float().mean()) > 0.8


def test_it_is_batch_invariant(both: tuple[StoredTarget, Any]) -> None:
    assert is_batch_invariant(both[0])


def test_hidden_states_and_logits_of_a_prompt(both: tuple[StoredTarget, Any]) -> None:
    """In any chunks, with and without a need for them."""
    target, model = both
    whole = found(target, TEXT)
    kv = stored(target, TEXT[:30], 7, 19)
    rest = SequenceInput.of(
        target, kv, TEXT[30:], zoo.tree(np.random.default_rng(2), 5), prefill=17
    )
    given = target.forward([replace(rest, prefill_logits=11)], hidden=True)
    assert given.hidden is not None and given.hidden.shape == (6 + 11, 64)
    assert torch.equal(given.logits[0], whole[-1])
    assert torch.equal(given.logits[6:], whole[36:47])
    head = model.lm_head.weight.detach()
    made = given.hidden @ head.t()
    cap = getattr(model.config, "final_logit_softcapping", None)
    made = cap * torch.tanh(made / cap) if cap else made
    assert difference(given.logits, made) < ROUNDED
    nothing = target.forward([SequenceInput.of(target, target.open(), TEXT, needs_logits=False)])
    assert nothing.logits.shape == (0, gguf_files.VOCABULARY) and nothing.hidden is None


def test_the_engine_s_text_is_the_plain_loop_s(both: tuple[StoredTarget, Any]) -> None:
    target, _ = both
    asked = list(zip(prompts(len(ASKED), seed=5), ASKED, strict=True))
    expected = plainly(target, asked)
    known = {tuple(p): text for (p, _), text in zip(asked, expected, strict=True)}
    drafters = (None, Scripted(known, wrong=0.3), SuffixDrafter(), Scripted(known, wrong=0.3))
    for drafter, policy in zip(drafters, ("fixed", "fixed", "fixed", "adaptive"), strict=True):
        engine = Engine(target, drafter, policy=policy, max_rows=40)
        assert [request.token_ids for request in answers(engine, asked)] == expected
