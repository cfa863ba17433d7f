"""SelfDrafter: the text is that of the plain loop, whichever layers are kept."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from drafters.self_targets import KINDS, LAYERS, MANY, SAMPLED, made
from engine.asking import answers, prompts, wanted
from foresay import LLM, SamplingParams, Verdict
from foresay.arrays import Int32s
from foresay.budget.policy import Fixed
from foresay.drafters import MergeDrafter, NgramDrafter, SelfDrafter
from foresay.drafters.model import Dynamic
from foresay.drafters.self_draft import best_layers
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of, plain
from foresay.errors import InputError, UnsupportedModel
from foresay.models.load import load
from foresay.models.load_transformers import plain_target_of, target_of
from foresay.models.skipping import SkippingTarget
from foresay.models.target import SequenceInput, Target
from models import zoo
from models.quick import quickened
from models.targets import zoo_target
from pairs import pairs
from tiny import call, save_model


def shares(requests: list[Any]) -> tuple[int, int]:
    drafted = sum(request.stats.drafted for request in requests)
    return drafted, sum(request.stats.accepted for request in requests)


@pytest.mark.parametrize(
    ("kind", "kept", "shape"),
    pairs(KINDS, [(0,), (0, 1, 3), (1, 2), None], [4, (2, 2), Dynamic(width=2, depth=3)]),
)
def test_the_text_is_that_of_the_plain_loop(
    targets: dict[str, Target], kind: str, kept: Any, shape: Any
) -> None:
    target = targets[kind]
    drafter = SelfDrafter(target, layers=kept, shape=shape)
    engine = Engine(target, drafter, policy="fixed", max_running=5, max_rows=48)
    requests = answers(engine, MANY)
    assert [request.token_ids for request in requests] == wanted(target, MANY)
    assert shares(requests)[0] > 0 and drafter.bytes_used() == 0
    assert drafter.layers == ((0, 2, 3) if kept is None else kept)


@pytest.mark.parametrize("kind", KINDS)
def test_all_layers_draft_what_the_target_samples(targets: dict[str, Target], kind: str) -> None:
    target = targets[kind]
    engine = Engine(target, SelfDrafter(layers=range(LAYERS)), policy=Fixed(k=5))
    requests = [engine.add(p, SAMPLED, seed=i) for i, p in enumerate(prompts(6, seed=3))]
    engine.run()
    drafted, accepted = shares(requests)
    assert drafted == accepted > 100


@pytest.mark.parametrize("kind", KINDS)
def test_a_skipped_layer_is_not_computed(
    targets: dict[str, Target], kind: str, tmp_path: Path
) -> None:
    """The logits are those of a model that has the kept layers only."""
    target, text = targets[kind], np.array([5, 9, 33, 12, 70, 5], np.int32)
    few = SkippingTarget(target, [1, 3])
    found = few.forward([SequenceInput.of(few, few.open(), text)]).logits.float()
    wide: dict[str, Any] = {}
    if kind == "q8_0":
        wide = {"hidden_size": 64, "intermediate_size": 96}
    model = made(dtype=torch.bfloat16 if kind == "bfloat16" else torch.float32, **wide)
    model.model.layers = torch.nn.ModuleList([model.model.layers[1], model.model.layers[3]])
    for at, layer in enumerate(model.model.layers):
        layer.self_attn.layer_idx = at
    model.config.num_hidden_layers = 2
    if kind == "q8_0":  # by integers: to the bit
        model.save_pretrained(tmp_path)
        other = load(tmp_path, quantize="q8_0", threads=1)
        assert torch.equal(
            other.forward([SequenceInput.of(other, other.open(), text)]).logits, found
        )
        return
    with torch.inference_mode():
        expected = model(torch.from_numpy(text.astype(np.int64))[None]).logits[0, -1:].float()
    close = 1e-4 if kind == "float32" else 0.3
    assert (found - expected).abs().max() < close * expected.std()


@pytest.mark.parametrize("name", ["gpt2", "gemma3_text", "qwen3_moe", "gpt_oss", "gemma2"])
def test_other_architectures(name: str) -> None:
    count = zoo.SUPPORTED[name].get("num_hidden_layers", 2)
    target = zoo_target(name)
    asked = MANY[:3]
    for kept in ([0], list(range(count))):
        engine = Engine(target, SelfDrafter(layers=kept), policy=Fixed(k=5))
        requests = answers(engine, asked)
        assert [request.token_ids for request in requests] == wanted(target, asked)
    params = replace(SAMPLED, max_tokens=20)
    requests = [engine.add(prompt, params, seed=i) for i, (prompt, _) in enumerate(asked)]
    engine.run()
    drafted, accepted = shares(requests)
    assert accepted == drafted > 40  # all layers


def test_the_readable_twin() -> None:
    target = plain_target_of(made())
    engine = Engine(target, SelfDrafter(layers=[0, 3]), policy=Fixed(k=3))
    request = engine.add([5, 6, 7], SamplingParams(temperature=0, max_tokens=12), seed=0)
    engine.run()
    assert request.token_ids == plain(logits_of(target), [5, 6, 7], request.params, 0)


def test_the_weights_are_not_copied(targets: dict[str, Target]) -> None:
    for kind in ("float32", "bfloat16"):
        whole: Any = targets[kind]
        few: Any = SkippingTarget(whole, [0, 2])
        own = {tensor.data_ptr() for tensor in whole.model.parameters()}
        assert {tensor.data_ptr() for tensor in few._made.model.parameters()} <= own
        assert len(whole.model.model.layers) == LAYERS  # which is as it was
    whole = targets["q8_0"]
    every, two = (SkippingTarget(whole, kept) for kept in (range(LAYERS), [0, 2]))
    assert every._made.decoder.bytes == whole.decoder.bytes > two._made.decoder.bytes  # type: ignore[attr-defined]


def test_weights_that_are_replaced(targets: dict[str, Target]) -> None:
    """The drafter follows: with all layers it drafts what the new weights sample."""
    for dtype in (torch.float32, torch.bfloat16):
        target = target_of(made(dtype=dtype, seed=1))
        engine = Engine(target, SelfDrafter(layers=range(LAYERS)), policy=Fixed(k=5))
        request = engine.add(prompts(1, seed=31)[0], replace(SAMPLED, max_tokens=60), seed=2)
        for _ in range(3):
            engine.step()
        engine.replace_weights(dict(made(dtype=dtype).named_parameters()))
        engine.run()
        assert request.stats.accepted == request.stats.drafted > 20
    few = SkippingTarget(target, [0])
    assert few.weight_shapes() == {} and few.version == 1
    with pytest.raises(InputError, match="are those of the whole target"):
        few.replace_weights({})


def test_rule_rejection_and_other_drafters(targets: dict[str, Target]) -> None:
    target = targets["float32"]
    drafter = MergeDrafter(SelfDrafter(layers=[0, 1]), NgramDrafter())
    engine = Engine(target, drafter, policy="fixed")
    expected = wanted(target, MANY)
    assert [request.token_ids for request in answers(engine, MANY)] == expected
    engine = Engine(target, SelfDrafter(layers=range(LAYERS)), policy=Fixed(k=4))
    params = replace(SAMPLED, rule="rejection")
    requests = [engine.add(p, params, seed=i) for i, p in enumerate(prompts(4, seed=3))]
    engine.run()
    drafted, accepted = shares(requests)
    assert drafted == accepted > 50  # q is p


@pytest.mark.parametrize("layers", [[], [4], [-1], [1, 0], [0, 0], [True], [0.0], "01", 3])
def test_bad_layers(targets: dict[str, Target], layers: Any) -> None:
    with pytest.raises(InputError, match=r"layers are .*; expected numbers from 0 to 3, rising"):
        SelfDrafter(targets["float32"], layers=layers)
    with pytest.raises(InputError, match=r"layers are .*; expected numbers from 0 to 3, rising"):
        Engine(targets["float32"], SelfDrafter(layers=layers))


def test_bad_targets(targets: dict[str, Target]) -> None:
    class Closed:
        bytes_per_token = vocabulary = context = 1

        def forward(self) -> None: ...

    wrong: Any = Closed()
    with pytest.raises(UnsupportedModel, match="layers of a Closed are not known"):
        SelfDrafter(wrong)
    with pytest.raises(InputError, match="SelfDrafter has no model yet"):
        SelfDrafter().begin([1, 2])
    other = target_of(zoo.make("llama", vocab_size=64))
    with pytest.raises(InputError, match="has 128 tokens and the target's has 64"):
        Engine(other, SelfDrafter(targets["float32"]))


@cache
def idle_layers(*idle: int) -> Target:
    """A target of which these layers add nothing."""
    model = made(hidden_size=64, intermediate_size=96)
    with torch.no_grad():
        for at in idle:
            model.model.layers[at].self_attn.o_proj.weight.zero_()
            model.model.layers[at].mlp.down_proj.weight.zero_()
    return quickened(model)


def test_the_best_layers() -> None:
    texts: list[Int32s] = [np.array(p, np.int32) for p in prompts(6, seed=1)]
    for idle, kept in (((1, 2), (0, 3)), ((0,), (1, 2, 3)), ((0, 2, 3), (1,))):
        assert best_layers(idle_layers(*idle), texts, seconds=(0.1, 1.0)) == kept
        # Where layers cost nothing, none is worth its tokens; idle ones may stay.
        found = best_layers(idle_layers(*idle), texts, seconds=(1.0, 0.0))
        assert set(kept) <= set(found)
    found = best_layers(idle_layers(1), texts, length=3, tries=1, tokens=100)  # measured
    assert found == tuple(sorted(found)) and found
    drafter = SelfDrafter(idle_layers(1, 2), layers=(0, 3), shape=4)
    state = drafter.begin(texts[0])
    (draft,) = drafter.propose([state], [4])
    text = [*texts[0].tolist(), *draft.tokens.tolist()]
    params = SamplingParams(temperature=0, max_tokens=4)
    assert text[-4:] == plain(logits_of(idle_layers(1, 2)), texts[0].tolist(), params, 0)
    drafter.observe([state], [Verdict([0], [*draft.tokens[:1].tolist(), 3])])
    drafter.finish(state)


def test_bad_input_of_the_search(targets: dict[str, Target]) -> None:
    target = targets["float32"]
    for texts in ([], [[1]], [[1], [2]]):
        with pytest.raises(InputError, match=f"there are {len(texts)} texts; expected at least"):
            best_layers(target, texts)
    with pytest.raises(InputError, match="tries is 0; expected a whole number from 1"):
        best_layers(target, [[1, 2, 3]], tries=0)


def test_the_name(tmp_path: Path) -> None:
    folder = save_model(tmp_path / "model")
    llm = LLM(folder, "self", "fixed", dtype="float32", memory=1 << 24)
    prompt = ["Hello, hello", "a b c"]
    params = SamplingParams(temperature=0.8, seed=1, max_tokens=20)
    found, expected = llm.generate(prompt, params), llm.beside(None).generate(prompt, params)
    assert [r.token_ids for r in found] == [r.token_ids for r in expected]
    assert sum(r.stats.accepted for r in found) > 0
    command = ["generate", "Hello", "--model", folder, "--dtype", "float32", "--json", "--raw"]
    done = call(*command, "--max-tokens", 8, "--policy", "fixed", "--drafter", "self")
    assert done.status == 0 and json.loads(done.out)["stats"]["drafted"] > 0, done.err
