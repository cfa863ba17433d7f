"""The target on a GPU: on a GPU where there is one, else in Triton's interpreter on the CPU.

What every target must do is in `test_conformance.py`, on a GPU for this one as well; its kernels
are in `test_gpu_kernels.py`.
"""

from __future__ import annotations

from contextlib import suppress
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from engine.drafters import Scripted
from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.drafters import NgramDrafter
from foresay.engine.engine import Engine
from foresay.errors import InputError, UnsupportedModel
from foresay.models.decoder_config import read_config
from foresay.models.gpu.decoder import heads_of
from foresay.models.gpu.graphs import item_size, row_size
from foresay.models.gpu.target import GpuTarget
from foresay.models.invariance import is_batch_invariant
from foresay.models.target import SequenceInput
from foresay.sampling.params import SamplingParams
from models import zoo
from models.on_gpu import gpu_target, needs_cuda, needs_kernels
from models.targets import CLOSE, assert_close, plain_of, ragged_step

pytestmark = needs_kernels
FAMILIES = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3"]
CHANGES: dict[str, dict[str, Any]] = {
    "gemma2": {"sliding_window": 5},
    "gemma3_text": {"sliding_window": 5},
    "mistral": {"sliding_window": 5, "num_hidden_layers": 1},
}
SMALL: dict[str, Any] = {"num_attention_heads": 2, "num_key_value_heads": 1}


def both(name: str, **changes: Any) -> tuple[GpuTarget, PreTrainedModel]:
    """The target, and the same weights with the model's own attention on the CPU."""
    plain = zoo.make(name, **changes)
    plain.set_attn_implementation("eager")
    return gpu_target(zoo.make(name, **changes)), plain


@cache
def made(name: str) -> GpuTarget:
    return gpu_target(zoo.make(name))


def of(target: GpuTarget, text: Int32s, draft: Draft | None = None, **given: Any) -> SequenceInput:
    return SequenceInput.of(target, target.open(), text, draft, **given)


def logits(target: GpuTarget, parts: list[SequenceInput]) -> Tensor:
    return target.forward(parts).logits.cpu()


def steps_of(target: GpuTarget, plain: PreTrainedModel) -> None:
    """Two steps of 16 rows: a prompt's piece and a tree, whose path is kept; then trees after what
    was stored, moved and copied from another text."""
    random = np.random.default_rng(1)
    first, second = zoo.tokens(random, 12), zoo.tokens(random, 4)
    tree = Draft(zoo.tokens(random, 4), [-1, 0, 0, 2])
    read, grown = of(target, first[:7], prefill=6), of(target, second, tree)
    found = logits(target, [read, grown])
    right = zoo.plain_logits(plain, first[:7])[-1:], zoo.expected(plain, second, tree)
    assert_close(found, torch.cat(right))
    read.keep()
    grown.keep([0, 2, 3])
    second = np.append(np.concatenate([second, tree.tokens[[0, 2, 3]]]), zoo.tokens(random, 1))
    copied: Any = target.open()
    copied.copy_from(read.kv, 5)
    other = np.concatenate([first[:5], zoo.tokens(random, 2)])
    trees = [zoo.tree(random, nodes) for nodes in (3, 4, 0)]
    parts = [
        SequenceInput.of(target, kv, text[kv.length :], draft)
        for kv, text, draft in zip(
            (read.kv, grown.kv, copied), (first[:9], second, other), trees, strict=True
        )
    ]
    texts = zip((first[:9], second, other), trees, strict=True)
    wanted = torch.cat([zoo.expected(plain, text, draft) for text, draft in texts])
    assert_close(logits(target, parts), wanted)


def test_a_model_in_steps() -> None:
    steps_of(*both("llama", num_hidden_layers=1, **SMALL))


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES[1:])
def test_a_family_in_steps(name: str) -> None:
    steps_of(*both(name, **CHANGES.get(name, {"num_hidden_layers": 1})))


@needs_cuda
@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("prefill", [False, True])
def test_a_ragged_step_of_trees(name: str, prefill: bool) -> None:
    given, wanted = ragged_step(made(name), plain_of(name), 1, prefill)
    assert_close(given.cpu(), wanted)


@needs_cuda
@pytest.mark.parametrize("name", FAMILIES)
def test_batches_change_nothing(name: str) -> None:
    assert is_batch_invariant(made(name), hidden=True)


@pytest.mark.slow
def test_weights_that_change_and_layers_that_are_left_out() -> None:
    target, made = both("qwen3", **SMALL)
    plain: Any = made
    text = zoo.tokens(np.random.default_rng(5), 6)
    states = target.forward([of(target, text)], hidden=(0, 1)).hidden
    with torch.inference_mode():
        ids = torch.from_numpy(text.astype(np.int64))[None]
        wanted = plain(input_ids=ids, output_hidden_states=True).hidden_states
    right = torch.cat([wanted[0][0, -1:], wanted[1][0, -1:]], 1)
    assert states is not None and float((states.cpu() - right).abs().max()) < CLOSE
    for wrong in ((2,), (-1,)):
        with pytest.raises(InputError, match="expected 0 to 1"):
            target.forward([of(target, text)], hidden=wrong)

    part = target.only([1])
    layers = plain.model.layers
    kept, plain.model.layers = layers, layers[1:]
    assert_close(logits(part, [of(part, text)]), zoo.plain_logits(plain, text)[-1:])
    plain.model.layers = kept

    name = "model.layers.0.self_attn.q_norm.weight"
    changed = {name: torch.linspace(-2, 2, 16)}
    target.replace_weights(changed)
    plain.load_state_dict(changed, strict=False)
    assert target.version == 1
    assert_close(logits(target, [of(target, text)]), zoo.plain_logits(plain, text)[-1:])
    own, new = target.model.get_parameter(name), torch.linspace(2, -2, 16)
    own.data.copy_(new)  # as the owner of the model does
    target.weights_changed()
    plain.load_state_dict({name: new}, strict=False)
    assert target.version == 2
    assert_close(logits(target, [of(target, text)]), zoo.plain_logits(plain, text)[-1:])


@pytest.mark.slow
def test_answers_with_drafts_are_those_without() -> None:
    target = gpu_target(zoo.make("llama", num_hidden_layers=1, **SMALL))
    prompts = [[5, 6, 7, 5, 6, 7, 5, 6], [9, 9, 9, 9, 9, 9]]
    found = []
    for drafter in (None, NgramDrafter()):
        engine = Engine(target, drafter, policy="fixed", memory=1 << 22)
        params = SamplingParams(temperature=0.7, max_tokens=8)
        requests = [engine.add(prompt, params, seed=3) for prompt in prompts]
        engine.run()
        engine.check_integrity()
        found.append([list(request.tokens) for request in requests])
    assert found[0] == found[1] and [len(text) for text in found[0]] == [16, 14]


def test_steps_that_are_started_before_the_one_before_is_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    target = gpu_target(zoo.make("llama", num_hidden_layers=1, **SMALL))
    ahead = list[list[int]]()
    forward_next = GpuTarget.forward_next

    def counted(self: GpuTarget, parts: Any, tokens: Tensor) -> Any:
        assert not parts.tokens.any()
        ahead.append(tokens.tolist())
        return forward_next(self, parts, tokens)

    monkeypatch.setattr(GpuTarget, "forward_next", counted)
    found = []
    for enabled in (True, False):
        engine = Engine(target, memory=1 << 22)
        assert engine._ahead.enabled
        engine._ahead.enabled = enabled
        asked = [([5, 6, 7, 5], 5), ([9, 8], 3)]  # one ends while the other goes on
        requests = [
            engine.add(prompt, SamplingParams(temperature=0.7, max_tokens=tokens), seed=3)
            for prompt, tokens in asked
        ]
        engine.run()
        engine.check_integrity()
        found.append([list(request.tokens) for request in requests])
    assert found[0] == found[1] and [len(text) for text in found[0]] == [9, 5]
    assert len(ahead) >= 3 and ahead[0] == [found[0][0][5], found[0][1][3]]


@pytest.mark.slow
@pytest.mark.parametrize("after", [False, True])
def test_copies_that_are_interrupted(monkeypatch: pytest.MonkeyPatch, after: bool) -> None:
    """Whether they were started is not known then: what was stored is computed again."""
    target = gpu_target(zoo.make("llama", num_hidden_layers=1, **SMALL))
    prompt, params = [5, 6, 7, 5, 6, 7, 5, 6], SamplingParams(temperature=0, max_tokens=16)
    engine = Engine(target, memory=1 << 22)
    request = engine.add(prompt, params, seed=1)
    engine.run()
    answer, copy, interrupts = request.token_ids, GpuTarget._copy_slots, 0

    def interrupted(self: GpuTarget, *batch: Int32s) -> None:
        nonlocal interrupts
        interrupts += len(batch[0]) > 1  # one moves, and the next into its place
        if interrupts != 1 or after:
            copy(self, *batch)
        if interrupts == 1:
            interrupts += 1
            raise KeyboardInterrupt

    monkeypatch.setattr(GpuTarget, "_copy_slots", interrupted)
    drafter = Scripted({tuple(prompt): answer}, wrong=0.5, seed=2)
    engine = Engine(target, drafter, policy="fixed", memory=1 << 22)
    request, version = engine.add(prompt, params, seed=1), target.version
    while engine.busy:
        with suppress(KeyboardInterrupt):
            engine.step()
    engine.check_integrity()
    assert request.token_ids == answer and interrupts > 1 and target.version == version + 1


def test_what_does_not_fit_into_memory_leaves_the_texts_as_they_were() -> None:
    target = made("llama")
    full = target.open_filled(target.memory // target.bytes_per_token - 64)
    parts = [of(target, np.full(rows, 5, np.int32)) for rows in (1, 64)]
    with pytest.raises(MemoryError):
        target.forward(parts)
    assert [part.kv.capacity for part in parts] == [0, 0]
    del full
    filled = target.open_filled(70)
    assert filled.length == 70 and filled.capacity == 128
    assert target.bytes_per_token == 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, width


def test_rows_of_a_step_are_gone_when_another_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    target, text = made("llama"), np.array([5, 6], np.int32)
    monkeypatch.setattr(target.decoder, "run", lambda *_: None)
    first = of(target, text)
    target.forward([first])

    def fails(*_: object) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(target.decoder, "run", fails)
    with pytest.raises(torch.OutOfMemoryError):
        target.forward([SequenceInput.of(target, first.kv, text[::-1].copy())])
    with pytest.raises(InputError):
        first.keep()
    assert first.kv.length == 0


def test_sizes_that_steps_are_filled_up_to() -> None:
    assert [row_size(rows) for rows in (1, 16, 17, 64, 65, 81, 97, 256)] == [
        *(16, 16, 32, 64, 80, 96, 128, 256)
    ]
    for rows in range(1, 5000, 7):
        assert rows <= row_size(rows) <= max(16, 32 + rows * 3 // 2)
        assert row_size(row_size(rows)) == row_size(rows)
    assert [item_size(items) for items in (1, 16, 17, 33)] == [16, 16, 32, 64]


@pytest.mark.parametrize(
    "changes",
    [
        {"num_attention_heads": 34, "num_key_value_heads": 2},
        {"num_attention_heads": 3, "num_key_value_heads": 2},
        {"head_dim": 258},
    ],
)
def test_heads_that_the_kernels_do_not_take(changes: dict[str, Any]) -> None:
    config = read_config(zoo.make("qwen3").config.to_dict() | changes, "it")
    with pytest.raises(UnsupportedModel, match=r"^it has .* expected 1 to 16 query heads"):
        heads_of(config, "it")
