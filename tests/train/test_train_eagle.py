"""Training a head: it learns, goes on after an interrupt, and what it writes can be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from eagle.heads import random_head
from foresay import SamplingParams, Verdict, Wants
from foresay.drafters import NgramDrafter
from foresay.drafters.eagle import EagleDrafter
from foresay.drafters.eagle.head import EagleHead
from foresay.engine.engine import Engine
from foresay.errors import InputError, ModelError
from foresay.models.target import Target
from foresay.models.teacher import Teacher
from foresay.traces import Trace
from foresay.train.eagle import _pairs, train
from foresay.train.lesson import padded
from foresay.train.unroll import unrolled
from models import zoo
from tiny import call, one_thread
from train.accepting import accepted

QUICK: dict[str, Any] = {
    "epochs": 12,
    "tokens": 1024,
    "learning_rate": 4e-3,
    "steps": 3,
    "drafted": 100,
    "held_out": 0.1,
}


@pytest.fixture(scope="module")
def trained(folder: Path, corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("head")
    with one_thread():
        done = train(folder, corpus, out, **QUICK)
    assert done.updates > 50 and done.held_out_loss < 4.0 and len(done.agreement) == 3
    assert done.agreement[0] > 0.2 > 3 / zoo.VOCABULARY
    assert done.drafted == 100 and 0.9 < done.coverage <= 1
    assert sorted(path.name for path in out.iterdir()) == ["config.json", "model.safetensors"]
    return out


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_trained_head_accepts_more(
    target: Target, folder: Path, trained: Path, temperature: float
) -> None:
    untrained = random_head(AutoModelForCausalLM.from_pretrained(folder), drafted=100)
    own = accepted(target, EagleDrafter(trained, folder), temperature)
    assert own > 1.5 * accepted(target, EagleDrafter(untrained), temperature)


def test_knowing_the_noise_makes_sampled_tokens_likelier(
    target: Target, folder: Path, trained: Path
) -> None:
    coupled, blind = (EagleDrafter(trained, folder, topk=1) for _ in range(2))
    begin = blind.begin
    blind.begin = lambda prompt, **about: begin(prompt)  # type: ignore[method-assign]
    # Hot, so that the likeliest token is seldom the one that is sampled.
    seen = accepted(target, coupled, 1.5), accepted(target, blind, 1.5)
    assert seen[0] > 1.5 * seen[1]


def test_the_steps_are_those_of_drafting() -> None:
    """Row i of step j is the j-th node of a chain behind row i - j."""
    head, random = random_head(), np.random.default_rng(2)
    features = random.standard_normal((2, 9, 32)).astype(np.float32)
    tokens = torch.from_numpy(random.integers(0, 128, (2, 9)))
    for step, output in enumerate(unrolled(head, torch.from_numpy(features), tokens, 4)):
        for row in range(2):
            for at in range(step, 9):
                wanted = _chain(head, features[row], tokens[row], at - step + 1, step)
                np.testing.assert_allclose(output[row, at], wanted, atol=1e-4)


def _chain(head: EagleHead, features: Any, tokens: Any, read: int, steps: int) -> Any:
    """The head's output after `read` rows of the target and `steps` of its own."""
    drafter = EagleDrafter(head)
    state = drafter.begin([1])
    drafter.observe(
        [state], [Verdict([], tokens[:read].numpy().astype(np.int32), hidden=features[:read])]
    )
    drafter.propose([state], [1])
    assert state.hidden is not None and state.keys is not None and state.values is not None
    rows, keys, values = state.hidden, state.keys, state.values
    for step in range(steps):
        place = torch.tensor([[read + step]])
        query, key, value = head.project(
            rows[None, None], head.embedded(tokens[None, place[0]]), place
        )
        keys, values = torch.cat([keys, key[0]], 1), torch.cat([values, value[0]], 1)
        visible = torch.ones(1, 1, 1, keys.shape[1], dtype=torch.bool)
        rows = head.complete(
            rows[None, None], head.attend(query, keys[None], values[None], visible)
        )[0, 0]
    return rows.numpy()


def test_the_pairs_are_those_that_the_engine_reports(folder: Path, target: Target) -> None:
    """For each token of an answer the hidden state that it was predicted from."""
    drafter = Noting()
    engine = Engine(target, drafter, policy="none")
    params = SamplingParams(temperature=0.7, max_tokens=9)
    requests = [engine.add([3, 5, 7][:size], params, seed=size) for size in (1, 3, 2)]
    engine.run()
    traces = [Trace("", "", r.prompt, np.array(r.token_ids, np.int32)) for r in requests]
    batch = padded(traces, "cpu")
    states = Teacher(folder, device="cpu").states(batch.tokens, batch.is_text)
    features, ids, after = _pairs(batch, *states)
    for at, request in enumerate(requests):
        size = len(request.token_ids)
        assert batch.valid[at].tolist() == [True] * size + [False] * (len(ids[at]) - size)
        assert ids[at, :size].tolist() == request.token_ids
        told = np.concatenate(drafter.told[request.prompt.tobytes()])
        np.testing.assert_allclose(features[at, :size], told, atol=1e-4)
        np.testing.assert_allclose(after[at, : size - 1], told[1:], atol=1e-4)


class Noting(NgramDrafter):
    """Notes the hidden states of each request."""

    wants = Wants(hidden=True)

    def __init__(self) -> None:
        super().__init__()
        self.told: dict[bytes, list[Any]] = {}

    def observe(self, states: Any, verdicts: Any, /) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            prompt = self.told.setdefault(self._prompts[id(state)], [])
            prompt.append(verdict.hidden)
        super().observe(states, verdicts)

    def begin(self, prompt: Any, /, **about: Any) -> Any:
        state = super().begin(prompt, **about)
        self._prompts = {**getattr(self, "_prompts", {}), id(state): prompt.tobytes()}
        return state


def test_an_interrupt_costs_nothing(folder: Path, corpus: Path, tmp_path: Path) -> None:
    short = {**QUICK, "epochs": 2}

    def interrupt(stage: str, done: int, total: int | None) -> None:
        if stage == "train" and done == 5:
            raise KeyboardInterrupt

    with one_thread():
        whole = train(folder, corpus, tmp_path / "whole", **short)
        with pytest.raises(KeyboardInterrupt):
            train(folder, corpus, tmp_path / "parts", **short, progress=interrupt)
        assert not (tmp_path / "parts" / "model.safetensors").exists()
        with pytest.raises(InputError, match="begun with another `steps`; expected the same"):
            train(folder, corpus, tmp_path / "parts", **{**short, "steps": 2})
        stages: list[tuple[str, int]] = []
        parts = train(
            folder,
            corpus,
            tmp_path / "parts",
            **short,
            progress=lambda stage, done, total: stages.append((stage, done)),
        )
    assert next(done for stage, done in stages if stage == "train") == 5
    assert parts.sha256 == whole.sha256 and parts.held_out_loss == whole.held_out_loss
    damaged = tmp_path / "whole" / "training.safetensors"
    damaged.write_bytes(b"\x10")
    with pytest.raises(ModelError, match=r"training.safetensors' is damaged"):
        train(folder, corpus, tmp_path / "whole", **short)


def test_the_command(folder: Path, corpus: Path, tmp_path: Path) -> None:
    out = tmp_path / "head"
    options = ["--epochs", 1, "--steps", 2, "--tokens", 2048, "--drafted", 64, "--layer", 1]
    command = ["train", "eagle", "--target", folder, "--corpus", corpus, "--out", out, *options]
    with one_thread():
        done = call(*command, "--json")
    assert done.status == 0, done.err
    found = json.loads(done.out)
    assert found["drafted"] == 64 and len(found["sha256"]) == 64 and found["updates"] >= 1
    assert '"event": "train"' in done.err
    drafter = EagleDrafter(out)  # which knows its target
    assert drafter.wants.hidden_layers == (1,)
    missing = call("train", "eagle", "--corpus", tmp_path / "no.jsonl", "--out", out)
    assert missing.status == 1 and "no.jsonl cannot be read" in missing.complaints


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"epochs": 0}, "epochs is 0"),
        ({"learning_rate": 2.0}, "learning_rate is 2.0; expected a number above 0, at most 1"),
        ({"held_out": 0.9}, "held_out is 0.9; expected at most 0.5"),
        ({"layers": (2,)}, r"layers are \[2\]; expected numbers from 0 to 1"),
        ({"longest": 5}, "0 answers of at most 5 tokens"),
    ],
)
def test_refused(
    folder: Path, corpus: Path, tmp_path: Path, changes: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(InputError, match=sentence):
        train(folder, corpus, tmp_path, **{**QUICK, **changes})
