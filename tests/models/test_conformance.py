"""What every target must do, whatever it runs on: one table for all of them.

The truth is the model's own plain pass over each path of a text and its draft tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from foresay._core import Kv
from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.errors import InputError
from foresay.models.cpu import linears
from foresay.models.load_transformers import plain_target_of, target_of
from foresay.models.options import LoadOptions
from foresay.models.target import Outputs, SequenceInput, Target, TextKv
from models import zoo
from models.targets import CLOSE, assert_close, plain_of, ragged_step, stored, zoo_target

TARGETS: dict[str, Callable[[PreTrainedModel], Target]] = {
    "cpu": target_of,
    "plain": plain_target_of,
}
# Of these weights are replaced; whether they are exact is not asked, which takes most of the time.
CHANGING: dict[str, Callable[[PreTrainedModel], Target]] = {
    **TARGETS,
    "cpu": partial(target_of, try_exact=False),
}
GPU = ["llama", "qwen2", "qwen3", "mistral", "gemma2", "gemma3_text", "phi3"]
"""That the kernels run; the others are run by the plain target there."""


def on_gpu(model: PreTrainedModel) -> Target:
    """With what it gives brought to the CPU."""
    from foresay.models.gpu.load import make_target

    moving: Any = model
    target = make_target(moving.to("cuda"), LoadOptions(memory=1 << 26), try_exact=False)
    forward = target.forward

    def given(parts: Sequence[SequenceInput], **asked: Any) -> Outputs:
        found = forward(parts, **asked)
        return Outputs(found.logits.cpu(), None if found.hidden is None else found.hidden.cpu())

    target.forward = given  # type: ignore[method-assign]
    return target


if torch.cuda.is_available():
    TARGETS["gpu"] = CHANGING["gpu"] = on_gpu
every_target = pytest.mark.parametrize("kind", TARGETS)
every_model = pytest.mark.parametrize("name", zoo.SUPPORTED)
every_pair = pytest.mark.parametrize(
    ("kind", "name"),
    [(kind, name) for kind in TARGETS for name in (GPU if kind == "gpu" else zoo.SUPPORTED)],
)


@cache
def made(kind: str, name: str) -> Target:
    return zoo_target(name) if kind == "cpu" else TARGETS[kind](zoo.make(name))


def logits(target: Target, kv: TextKv, tokens: Int32s, draft: Draft | None = None) -> Tensor:
    return target.forward([SequenceInput.of(target, kv, tokens, draft)]).logits


@every_model
@pytest.mark.parametrize(("kind", "prefill"), [("cpu", True), ("plain", True), ("cpu", False)])
def test_a_ragged_step_of_trees(kind: str, name: str, prefill: bool) -> None:
    """A prompt's piece, a lone token, and trees, beyond windows and chunks, in one step; prefill
    rows are multiplied in another way."""
    assert_close(*ragged_step(made(kind, name), plain_of(name), int(prefill), prefill=prefill))


@every_pair
def test_an_accepted_path_is_stored_and_the_rest_is_forgotten(kind: str, name: str) -> None:
    target, random = made(kind, name), np.random.default_rng(1)
    text = zoo.tokens(random, 30)
    kv = stored(target, text[:20])
    for _ in range(3):
        more = zoo.tokens(random, 4)
        wrong = zoo.tokens(random, 4)
        # Each right node has a wrong sibling before it.
        draft = Draft(np.stack([wrong, more], 1).reshape(-1), [-1, -1, 1, 1, 3, 3, 5, 5])
        part = SequenceInput.of(target, kv, text[kv.length :], draft)
        target.forward([part])
        part.keep([1, 3, 5])
        kv.check_integrity()
        text = np.concatenate([text, more[:3]])
        assert kv.length == len(text)
        text = np.append(text, zoo.tokens(random, 1))
        given = logits(target, kv, text[-1:])
        assert_close(given, zoo.plain_logits(plain_of(name), text)[-1:])


@every_target
def test_a_prefix_is_copied_and_cut(kind: str) -> None:
    target, random = made(kind, "mistral"), np.random.default_rng(2)
    text, other = zoo.tokens(random, 40), zoo.tokens(random, 12)
    first = stored(target, text)
    begun = target.open()
    begun.copy_from(first, 25)
    begun.check_integrity()
    assert (begun.length, first.length) == (25, 40)
    both = np.concatenate([text[:25], other])
    assert_close(logits(target, begun, both[25:]), zoo.plain_logits(plain_of("mistral"), both)[-1:])
    # The copy leaves its origin as it was, and the other way round.
    first.cut(30)
    assert_close(logits(target, first, text[30:]), zoo.plain_logits(plain_of("mistral"), text)[-1:])
    with pytest.raises(InputError):
        target.open().copy_from(first, 41)
    with pytest.raises(InputError):
        first.cut(41)


@every_target
def test_only_what_is_needed_has_logits(kind: str) -> None:
    target, random = made(kind, "qwen3"), np.random.default_rng(3)
    texts = [zoo.tokens(random, size) for size in (6, 9, 7)]
    parts = [
        SequenceInput.of(target, target.open(), texts[0], prefill=5, prefill_logits=5),
        SequenceInput.of(target, target.open(), texts[1], needs_logits=False, prefill=9),
        SequenceInput.of(target, target.open(), texts[2], zoo.tree(random, 3)),
    ]
    given = target.forward(parts).logits
    wanted = [zoo.plain_logits(plain_of("qwen3"), text) for text in texts]
    assert_close(given[:1], wanted[0][-1:])
    assert_close(given[1:5], zoo.expected(plain_of("qwen3"), texts[2], parts[2].draft))
    assert_close(given[5:], wanted[0][:5])
    alone = SequenceInput.of(target, target.open(), texts[1], needs_logits=False)
    assert target.forward([alone]).logits.shape == (0, zoo.VOCABULARY)
    alone.keep()
    assert alone.kv.length == len(texts[1])


@every_pair
def test_hidden_states_are_the_model_s_own(kind: str, name: str) -> None:
    target, random = made(kind, name), np.random.default_rng(4)
    text = zoo.tokens(random, 21)
    part = SequenceInput.of(target, target.open(), text, prefill=20, prefill_logits=4)
    assert target.forward([part]).hidden is None
    found = target.forward([part], hidden=True)
    with torch.inference_mode():
        ids = torch.from_numpy(text.astype(np.int64))[None]
        out = plain_of(name)(input_ids=ids, use_cache=False, output_hidden_states=True)
    states = out.hidden_states[-1][0]
    assert found.hidden is not None
    wanted = torch.cat([states[-1:], states[16:20]])
    assert found.hidden.shape == wanted.shape
    assert float((found.hidden - wanted).abs().max()) < CLOSE * max(1, float(wanted.abs().max()))


@every_pair
def test_weights_are_replaced(kind: str, name: str) -> None:
    target, other = CHANGING[kind](zoo.make(name)), zoo.make(name)
    generator = torch.Generator().manual_seed(5)
    for weight in other.parameters():
        weight.data += 0.05 * weight.std() * torch.randn(weight.shape, generator=generator)
    other.set_attn_implementation("eager")
    text = zoo.tokens(np.random.default_rng(5), 30)
    wanted = zoo.plain_logits(other, text)[-1:]
    assert float((logits(target, target.open(), text) - wanted).abs().max()) > 100 * CLOSE
    given = dict(other.named_parameters())
    target.replace_weights(given)
    assert target.version == 1
    for weight in other.parameters():  # they were copied
        weight.data.zero_()
    assert_close(logits(target, target.open(), text), wanted)


@every_target
def test_weights_that_do_not_fit_are_refused_and_nothing_has_changed(kind: str) -> None:
    target = made(kind, "llama")
    text = zoo.tokens(np.random.default_rng(6), 9)
    before = logits(target, target.open(), text)
    weight = "model.layers.0.mlp.up_proj.weight"
    good = torch.zeros(48, 32)
    first = "model.layers.0.mlp.gate_proj.weight"
    for wrong, said in (
        ({"nothing": good}, "the model has no weight 'nothing'"),
        ({weight: good.t()}, r"has shape \[32, 48\]; expected \[48, 32\]"),
        ({weight: "x"}, "is 'x'; expected a tensor"),
        ({weight: good.to("meta")}, "is on meta; expected a dense tensor with values"),
        ({weight: good.to_sparse()}, "has layout torch.sparse_coo"),
        ({weight: good.bool()}, "is of torch.bool; expected torch.float32"),
        ({weight: good.to(torch.complex64)}, "is of torch.complex64; expected torch.float32"),
    ):
        with pytest.raises(InputError, match=said):
            target.replace_weights({first: good, **wrong})  # type: ignore[dict-item]
    for nothing in (None, [good], "x"):
        with pytest.raises(InputError, match="expected tensors by name"):
            target.replace_weights(nothing)  # type: ignore[arg-type]
    assert target.version == 0
    assert torch.equal(logits(target, target.open(), text), before)


@pytest.mark.parametrize(
    ("kind", "owner", "function", "part"),
    [
        ("cpu", linears.PackedLinear, "__init__", ""),
        ("cpu", Tensor, "to", "norm"),
        ("plain", Tensor, "to", "norm"),
    ],
    ids=["laid out", "moved", "moved by the plain one"],
)
def test_what_fails_while_weights_are_prepared_changes_nothing(
    kind: str, owner: Any, function: str, part: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a device that is out of memory."""
    target, text = CHANGING[kind](zoo.make("llama")), zoo.tokens(np.random.default_rng(8), 9)
    before, own = logits(target, target.open(), text), getattr(owner, function)
    weights = {n: w + 1 for n, w in zoo.make("llama").named_parameters() if part in n}
    calls: list[int] = []

    def failing(*given: Any, **named: Any) -> Any:
        calls.append(1)
        if len(calls) == 3:
            raise MemoryError
        return own(*given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(owner, function, failing)
        with pytest.raises(MemoryError):
            target.replace_weights(weights)
    assert target.version == 0 and len(calls) == 3
    assert torch.equal(logits(target, target.open(), text), before)


@every_pair
def test_the_names_of_weights_can_be_listed(kind: str, name: str) -> None:
    target, own = made(kind, name), zoo.make(name).state_dict()
    shapes = target.weight_shapes()
    missing = {name for name in own if name not in shapes}
    assert not missing
    for name, tensor in own.items():
        assert shapes[name] == tuple(tensor.shape), name


@every_target
def test_a_tied_weight_is_one_tensor(kind: str) -> None:
    model = zoo.make("llama", tie_word_embeddings=True)
    target, name = TARGETS[kind](model), "model.embed_tokens.weight"
    table = torch.randn(zoo.VOCABULARY, 32, generator=torch.Generator().manual_seed(7))
    target.replace_weights({name: table})
    other = zoo.make("llama", tie_word_embeddings=True)
    dict(other.named_parameters())[name].data.copy_(table)
    text = zoo.tokens(np.random.default_rng(7), 12)
    given = logits(target, target.open(), text)
    assert_close(given, zoo.plain_logits(other, text)[-1:])
    with pytest.raises(InputError, match="are one tensor, and two values are given"):
        target.replace_weights({name: table, "lm_head.weight": table + 1})


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@every_target
def test_what_is_no_step_is_refused(kind: str, name: str) -> None:
    target, text = made(kind, name), np.array([5, 6], np.int32)
    kv, beyond = target.open(), zoo.VOCABULARY
    with pytest.raises(InputError, match="no tokens"):
        SequenceInput.of(target, kv, text[:0])
    for token, said in (
        (-1, r"tokens\[1\] is -1; expected a token id from 0"),
        (beyond, f"token {beyond} is not in the vocabulary"),
    ):
        with pytest.raises(InputError, match=said):
            SequenceInput.of(target, kv, np.array([3, token], np.int32))
    with pytest.raises(InputError, match=f"token {beyond} is not"):
        SequenceInput.of(target, kv, text, Draft.chain([beyond]))
    for prefill in (-1, 3):
        with pytest.raises(InputError, match=f"prefill is {prefill}; expected 0 to the part's 2"):
            SequenceInput.of(target, kv, text, prefill=prefill)
    with pytest.raises(InputError, match="no parts"):
        target.forward([])
    part = SequenceInput.of(target, kv, text)
    with pytest.raises(InputError, match="twice"):
        target.forward([part, SequenceInput.of(target, kv, text)])
    target.forward([part])
    with pytest.raises(InputError):
        part.keep([0])  # it has no draft
    part.keep()
    with pytest.raises(InputError, match="expected no change before keep"):
        part.keep()
    tree = SequenceInput.of(target, kv, text, Draft([1, 2, 3, 4], [-1, 0, 1, -1]))
    target.forward([tree])
    for path in ([3, 0], [0, 3], [1], [0, 2], [0, 0], [4], [-1]):
        with pytest.raises(InputError, match="from its root from parent to child"):
            tree.keep(path)
    for odd in ([0.7], ["0"], np.array([0.0])):
        with pytest.raises(InputError):
            tree.keep(odd)  # type: ignore[arg-type]
    tree.keep([0, 1])
    kv.cut(2)
    with pytest.raises(InputError, match="make a new one for each step"):
        target.forward([part])
    with pytest.raises(InputError):
        kv.cut(3)
    with pytest.raises(InputError):
        target.open().copy_from(kv, 3)
    if kind == "plain":  # the core writes over what is stored
        full = stored(target, text)
        with pytest.raises(InputError, match="and an empty text"):
            full.copy_from(kv, 1)
    if kind == "cpu":  # whose texts know their shapes
        with pytest.raises(InputError):
            target.open().copy_from(Kv([(1, 8, 8)], "float32"), 0)


@pytest.mark.parametrize("kind", ["cpu", "plain"])  # for a GPU see test_gpu.py
def test_rows_of_a_step_are_gone_when_another_has_failed(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, text = made(kind, "llama"), np.array([5, 6], np.int32)
    kv = target.open()
    first, second = (
        SequenceInput.of(target, kv, text),
        SequenceInput.of(target, kv, text[::-1].copy()),
    )
    target.forward([first])
    layer: Any = target.model.model.layers[-1]  # type: ignore[attr-defined]

    def failing(*_: Any, **__: Any) -> Any:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(layer, "forward", failing)
        with pytest.raises(MemoryError):
            target.forward([second])
    with pytest.raises(InputError):
        first.keep()
    assert kv.length == 0
    assert_close(logits(target, kv, text), zoo.plain_logits(plain_of("llama"), text)[-1:])


@every_target
def test_what_a_filled_text_takes(kind: str) -> None:
    target = made(kind, "llama")
    kv = target.open_filled(70)
    kv.check_integrity()
    assert kv.length == 70 <= kv.capacity
    assert logits(target, kv, np.array([3], np.int32)).isfinite().all()
    assert target.bytes_per_token >= 2 * 2 * 2 * 16 * 4  # layers, keys and values, heads, width
