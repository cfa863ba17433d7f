"""The target against the models' own plain passes, on a zoo of tiny models.

The checks of a loaded model are small; these are the ones that trust nothing.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from foresay._core import AttentionStep, Kv
from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.errors import InputError, ModelError, UnsupportedModel
from foresay.models import checks, passes
from foresay.models.cpu import target as target_module
from foresay.models.cpu.linears import ANY_ROWS, PackedLinear
from foresay.models.cpu.target import CpuTarget
from foresay.models.load import load
from foresay.models.load_transformers import plain_target_of, target_of
from foresay.models.target import SequenceInput
from foresay.models.visibility import Visible
from models import zoo
from models.targets import (
    NAMES,
    after,
    assert_close,
    cpu_target,
    plain_of,
    ragged_step,
    stored,
    zoo_target,
)


@pytest.mark.parametrize("name", NAMES)
def test_the_zoo_is_fit_to_find_mistakes(name: str) -> None:
    text = zoo.tokens(np.random.default_rng(0), 40)
    other, early = text.copy(), text.copy()
    other[-10], early[0] = 5, 5
    last, changed, first = (zoo.plain_logits(plain_of(name), t)[-1] for t in (text, other, early))
    assert float(last.std()) > 2
    assert float((last - changed).abs().max()) > 0.2
    if name == "mistral":  # two windows do not reach as far
        assert torch.equal(last, first)
    else:
        assert float((last - first).abs().max()) > 0.2


class Altered:
    """A step that is wrong in one way."""

    def __init__(self, kvs: list[Kv], offsets: Int32s, parents: Int32s, kept: Any = ()) -> None:
        self.given = parents
        self.step = AttentionStep(kvs, offsets, self.parents(offsets, parents), kept=kept)
        lengths = np.repeat([kv.length for kv in kvs], np.diff(offsets))
        self.positions = self.places(offsets, lengths)

    def parents(self, offsets: Int32s, parents: Int32s) -> Int32s:
        return parents

    def places(self, offsets: Int32s, lengths: Any) -> Any:
        return self.step.positions

    def attend(self, *given: Any, **named: Any) -> None:
        self.step.attend(*given, **named)


class Slots(Altered):
    """A row's position is its place in memory."""

    def places(self, offsets: Int32s, lengths: Any) -> Any:
        rows = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        return (rows + lengths).astype(np.int64)


class Chains(Altered):
    """Every row sees all rows of its text before it; positions are right."""

    def parents(self, offsets: Int32s, parents: Int32s) -> Int32s:
        rows = np.arange(offsets[-1]) - np.repeat(offsets[:-1], np.diff(offsets))
        return (rows - 1).astype(np.int32)

    def places(self, offsets: Int32s, lengths: Any) -> Any:
        return lengths + depths_of(self.given, offsets)


def depths_of(parents: Int32s, offsets: Int32s) -> Any:
    depths = np.zeros(len(parents), np.int64)
    for first, end in pairwise(offsets):
        for row in range(first, end):
            depths[row] = depths[first + parents[row]] + 1 if parents[row] >= 0 else 0
    return depths


@pytest.mark.parametrize("wrong", [Slots, Chains])
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_the_comparison_finds_wrong_positions_and_wrong_masks(
    name: str, wrong: type[Altered], monkeypatch: pytest.MonkeyPatch
) -> None:
    target, plain = zoo_target(name), plain_of(name)
    monkeypatch.setattr(target_module, "AttentionStep", Altered)
    assert_close(*ragged_step(target, plain, 0))
    monkeypatch.setattr(target_module, "AttentionStep", wrong)
    given, wanted = ragged_step(target, plain, 0)
    assert float((given - wanted).abs().max()) > 0.1
    with pytest.raises(UnsupportedModel, match=f"{name} gives other logits"):
        checks.check_logits(target)


@pytest.mark.parametrize("name", NAMES)
def test_a_text_does_not_see_the_texts_beside_it(name: str) -> None:
    target, random = zoo_target(name), np.random.default_rng(4)
    text, draft = zoo.tokens(random, 35), zoo.tree(random, 6)
    alone = after(target, text, draft)
    for others in ([40], [1, 1, 90], [3, 60, 5, 17]):
        parts = [
            SequenceInput.of(
                target, target.open(), zoo.tokens(random, size), zoo.tree(random, size % 7)
            )
            for size in others
        ]
        mine = SequenceInput.of(target, target.open(), text, draft)
        for place in range(len(parts) + 1):
            rows = target.forward([*parts[:place], mine, *parts[place:]]).logits
            first = sum(1 + len(part.draft) for part in parts[:place])
            given = rows[first : first + 1 + len(draft)]
            assert_close(given, alone)
            assert not target.exact or torch.equal(given, alone)


@pytest.mark.parametrize("name", NAMES)
def test_decoding_and_verifying_have_the_same_logprobs(name: str) -> None:
    target, random = zoo_target(name), np.random.default_rng(6)
    text, size = zoo.tokens(random, 30), 6
    kv, rows = stored(target, text[:-size], prefill=False), []
    for token in text[-size:]:
        part = SequenceInput.of(target, kv, np.array([token], np.int32))
        rows.append(target.forward([part]).logits)
        part.keep()
    one_by_one = torch.cat(rows).log_softmax(-1)

    start = text[: -size + 1]
    chain = after(target, start, Draft.chain(text[-size + 1 :])).log_softmax(-1)
    wrong = zoo.tokens(random, size - 1)
    both = np.stack([wrong, text[-size + 1 :]], 1).reshape(-1)
    parents = np.repeat(np.arange(-1, 2 * size - 4, 2, dtype=np.int32), 2)
    tree = after(target, start, Draft(both, parents)).log_softmax(-1)
    tree = torch.cat([tree[:1], tree[2::2]])
    assert float((chain - one_by_one).abs().max()) < 1e-5
    assert float((tree - one_by_one).abs().max()) < 1e-5


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        *((name, torch.float32) for name in NAMES),
        *((name, torch.bfloat16) for name in ("llama", "gpt2", "deepseek_v3")),
    ],
)
def test_memory_is_what_the_formula_says(name: str, dtype: torch.dtype) -> None:
    target = zoo_target(name, dtype)
    kv = target.open()
    assert kv.length == kv.capacity == kv.bytes == 0
    for size in (1, 100, 300):
        kv.reserve(size)
        assert kv.capacity >= size
        assert kv.bytes == target.bytes_per_token * kv.capacity
    numbers = sum(heads * (key + value) for heads, key, value in target.shapes)
    assert target.bytes_per_token >= numbers * dtype.itemsize
    if all(key % 2 == 0 and value % 32 == 0 for _, key, value in target.shapes):
        assert target.bytes_per_token == numbers * dtype.itemsize


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("heads", [4, 2, 1], ids=["MHA", "GQA", "MQA"])
def test_memory_of_a_token_of_each_target(heads: int, dtype: torch.dtype) -> None:
    """2 x layers x KV heads x head size x bytes of a number: the core pads to whole vectors, which
    32 numbers are."""
    model = zoo.make("llama", num_key_value_heads=heads, head_dim=32, dtype=dtype)
    size = 2 * 2 * heads * 32 * dtype.itemsize
    assert plain_target_of(model).bytes_per_token == size
    assert target_of(model, deterministic=False).bytes_per_token == size


def test_layers_see_what_the_models_say() -> None:
    window, chunk, full = Visible(zoo.WINDOW), Visible(0, zoo.WINDOW), Visible()
    assert zoo_target("llama").layers == [full, full]
    assert zoo_target("mistral").layers == [window, window]
    assert zoo_target("gemma2").layers == [window, full, window]
    assert zoo_target("gpt_oss").layers == [window, full]
    assert zoo_target("llama4_text").layers == [chunk, chunk, chunk, full]


def test_a_model_that_cannot_pick_rows_is_sliced(monkeypatch: pytest.MonkeyPatch) -> None:
    target, random = zoo_target("llama"), np.random.default_rng(9)
    text, draft = zoo.tokens(random, 9), zoo.tree(random, 5)
    wanted = after(target, text, draft)
    monkeypatch.setattr(passes, "_picks_rows", lambda kind: False)
    assert_close(after(target, text, draft), wanted)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_a_text_ends_where_the_context_does(name: str) -> None:
    target, random = zoo_target(name), np.random.default_rng(10)
    text = zoo.tokens(random, zoo.CONTEXT)
    assert target.context == zoo.CONTEXT
    assert_close(after(target, text), zoo.plain_logits(plain_of(name), text)[-1:])
    with pytest.raises(InputError, match=f"{zoo.CONTEXT + 1} tokens; expected at most"):
        SequenceInput.of(target, target.open(), zoo.tokens(random, zoo.CONTEXT + 1))
    kv = stored(target, text[:-3], prefill=False)
    wide = Draft(zoo.tokens(random, 5), [-1, -1, 0, 0, 1])
    rows = target.forward([SequenceInput.of(target, kv, text[-3:-2], wide)]).logits
    assert_close(rows, zoo.expected(plain_of(name), text[:-2], wide))
    deep = Draft(zoo.tokens(random, 4), [-1, 0, 1, 0])
    with pytest.raises(InputError, match=f"the draft reaches {zoo.CONTEXT + 1} tokens"):
        SequenceInput.of(target, kv, text[-3:-2], deep)


def test_far_queries_of_llama4_are_not_scaled_by_their_row() -> None:
    """Its own plain pass scales from position floor_scale - 1 on, so texts must end before."""
    model = zoo.make("llama4_text", floor_scale=40)
    plain = zoo.make("llama4_text", floor_scale=40)
    target, random = target_of(model), np.random.default_rng(11)
    assert target.context == 39
    parts, wanted = [], []
    for size in (30, 39, 20):  # more rows in all than floor_scale
        text = zoo.tokens(random, size)
        parts.append(SequenceInput.of(target, target.open(), text))
        wanted.append(zoo.plain_logits(plain, text)[-1:])
    assert_close(target.forward(parts).logits, torch.cat(wanted))


def test_threads_may_share_a_target() -> None:
    target, random = zoo_target("gemma3_text"), np.random.default_rng(12)
    texts = [zoo.tokens(random, 30) for _ in range(4)]
    wanted = [after(target, text) for text in texts]
    with ThreadPoolExecutor(4) as pool:
        for _ in range(3):
            for given, right in zip(
                pool.map(lambda text: after(target, text), texts), wanted, strict=True
            ):
                assert_close(given, right)


def test_without_care_the_logits_are_close() -> None:
    target = cpu_target(zoo.make("qwen3"), deterministic=False)
    assert target.exact is None
    for module in target.model.modules():
        assert not isinstance(module, PackedLinear) or module.decode == module.prefill == ANY_ROWS
    assert_close(*ragged_step(target, plain_of("qwen3"), 0))


def test_the_model_belongs_to_the_target() -> None:
    with pytest.raises(UnsupportedModel, match=r"call Target\.forward"):
        zoo_target("llama").model(input_ids=torch.tensor([[1, 2]]), use_cache=False)


def test_load(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"has no config\.json, so it is no folder"):
        load(tmp_path)
    zoo.make("llama").save_pretrained(tmp_path)
    text = zoo.tokens(np.random.default_rng(0), 9)
    target = load(tmp_path, dtype="float32", threads=1)
    assert isinstance(target, CpuTarget)
    assert_close(after(target, text), zoo.plain_logits(plain_of("llama"), text)[-1:])
    half = load(tmp_path, dtype="bfloat16")
    assert half.dtype == torch.bfloat16 and half.bytes_per_token < target.bytes_per_token
    assert load(tmp_path).dtype in (torch.bfloat16, torch.float32)
    with pytest.raises(InputError, match="dtype is 'float16' and device is 'cpu'; expected b"):
        load(tmp_path, dtype="float16", device="cpu")


def test_threads_and_models_are_checked() -> None:
    for threads in (-3, 257, 1.0, "2"):
        with pytest.raises(InputError, match=r"threads is .*; expected 0 to 256"):
            target_of(zoo.make("llama"), threads=threads)  # type: ignore[arg-type]
    for make in (target_of, plain_target_of):
        for wrong in (None, "x"):
            with pytest.raises(InputError, match="expected a model of transformers"):
                make(wrong)  # type: ignore[arg-type]


def test_hidden_states_of_another_thread_are_not_taken() -> None:
    model: Any = zoo.make("llama")
    head = passes._Inputs([model.lm_head])
    with head, ThreadPoolExecutor(1) as pool:
        pool.submit(model.lm_head, torch.ones(3, 32)).result()
        assert not len(head.rows[0])
        model.lm_head(torch.ones(2, 32))
        assert len(head.rows[0]) == 2
