"""How uncertain a model was of its drafts: against its own distribution, also with dropout."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from drafters.small_models import draft_model
from foresay import SamplingParams, SeededParams, Verdict
from foresay.drafters import ModelDrafter
from foresay.drafters.decoding.dropout import Dropout
from foresay.engine.plain import logits_of
from foresay.errors import InputError
from foresay.models.target import SequenceInput, Target
from foresay.sampling.signals import signals_of
from models import zoo

PROMPT = np.array([5, 9, 33, 12, 70, 5, 9], np.int32)
GREEDY = SeededParams(SamplingParams(temperature=0), 1)
WARM = SeededParams(SamplingParams(temperature=0.7), 1)
EVERY = (None, GREEDY, WARM)


@pytest.fixture(scope="module")
def model() -> Target:
    return draft_model("same")


def width_of(model: Target) -> int:
    part = SequenceInput.of(model, model.open(), PROMPT)
    with torch.inference_mode():
        hidden = model.forward([part], hidden=True).hidden
    assert hidden is not None
    return int(hidden.shape[1])


def table(model: Target) -> torch.Tensor:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(model.vocabulary, width_of(model), generator=generator)


@pytest.mark.parametrize("sampling", EVERY, ids=["unknown", "greedy", "warm"])
@pytest.mark.parametrize("shape", [4, (2, 2)], ids=str)
def test_signals_are_those_of_the_model(model: Target, sampling: Any, shape: Any) -> None:
    drafter = ModelDrafter(model, shape=shape)
    drafter.keep_signals()
    state = drafter.begin(PROMPT, sampling=sampling)
    (draft,) = drafter.propose([state], [5])
    found = drafter.signals(state)
    assert found is not None and found.variance is None and len(found) == len(draft) > 2
    temperature = 0.7 if sampling is WARM else 1.0
    for node in range(len(draft)):
        text = draft.tokens[zoo.path(draft, node)].tolist()
        before = np.array([*PROMPT, *text[:-1]], np.int32)
        row = (logits_of(model)(before, len(PROMPT)).double() / temperature).softmax(-1).numpy()
        right = signals_of(row, text[-1:])
        for name in ("nll", "entropy_bits", "margin"):
            wanted = getattr(right, name)[0]
            assert getattr(found, name)[node] == pytest.approx(wanted, abs=1e-4)


def test_drafts_are_the_same_with_signals(model: Target) -> None:
    for sampling in EVERY:
        drafts = []
        for kept in (False, True):
            drafter = ModelDrafter(model, shape=6)
            if kept:
                drafter.keep_signals(Dropout(table(model), 2))
            state = drafter.begin(PROMPT, sampling=sampling)
            drafts += drafter.propose([state], [6])
            assert (drafter.signals(state) is not None) == kept
        assert drafts[0] == drafts[1]


def test_signals_end_with_the_proposal(model: Target) -> None:
    drafter = ModelDrafter(model, shape=3)
    drafter.keep_signals()
    state = drafter.begin(PROMPT)
    assert drafter.signals(state) is None
    (draft,) = drafter.propose([state], [3])
    drafter.observe([state], [Verdict(np.empty(0, np.int32), draft.tokens[:1])])
    assert drafter.signals(state) is None
    drafter.propose([state], [2])
    found = drafter.signals(state)
    assert found is not None and len(found) == 2


def test_the_variance_is_that_of_thinned_models(model: Target) -> None:
    output, passes, rate = table(model), 4, 0.25
    dropout = Dropout(output, passes, rate)
    hidden = torch.ones(1, output.shape[1])
    thinned = dropout.logits(hidden)
    assert thinned.shape == (passes, 1, model.vocabulary)
    # The masks by what they leave of a unit table: scaled up, or nothing.
    unit = Dropout(torch.eye(output.shape[1]), passes, rate).logits(hidden)[:, 0]
    assert sorted(set(unit.flatten().tolist())) == pytest.approx([0, 1 / (1 - rate)])
    assert torch.allclose(thinned[:, 0], unit @ output.T, atol=1e-4)
    assert len({tuple(mask) for mask in unit.tolist()}) == passes

    drafter = ModelDrafter(model, shape=1)
    drafter.keep_signals(dropout)
    state = drafter.begin(PROMPT)
    (draft,) = drafter.propose([state], [1])
    found = drafter.signals(state)
    with torch.inference_mode():
        part = SequenceInput.of(model, model.open(), PROMPT, prefill=len(PROMPT) - 1)
        states = model.forward([part], hidden=True).hidden
    assert states is not None and found is not None and found.variance is not None
    chances = (dropout.logits(states[:1])[:, 0]).double().softmax(-1)[:, int(draft.tokens[0])]
    assert found.variance[0] == pytest.approx(float(chances.var()), rel=1e-3)
    assert found.variance[0] > 0


def test_dropout_that_cannot_be(model: Target) -> None:
    for passes in (1, 0, True, 2.5, 257):
        with pytest.raises(InputError, match=r"passes is .*; expected a whole number from 2"):
            Dropout(torch.eye(3), passes)  # type: ignore[arg-type]
    for rate in (0, 1, float("nan")):
        with pytest.raises(InputError, match="rate is"):
            Dropout(torch.eye(3), 2, rate)
    with pytest.raises(InputError, match=r"output has the shape \[3\]"):
        Dropout(torch.ones(3))
    drafter = ModelDrafter(model)
    drafter.keep_signals(Dropout(torch.ones(model.vocabulary, 3)))
    state = drafter.begin(PROMPT)
    with pytest.raises(InputError, match="expected the tables of the model that drafts"):
        drafter.propose([state], [2])
