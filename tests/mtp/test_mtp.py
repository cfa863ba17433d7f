"""MtpDrafter: its module is transformers' own, its trees are those of the definition."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.cache_utils import MtpCache
from transformers.modeling_layers import MtpModel

from eagle.heads import HeadRequest, assert_same, commit, reference_tree
from foresay.arrays import Floats
from foresay.drafters import MtpDrafter
from foresay.drafters.head import drafter as head_drafter
from foresay.sampling.noise import gumbel
from models import zoo
from mtp import modules


@dataclass
class Pair:
    """A folder's drafter, and what transformers makes of the same folder."""

    drafter: MtpDrafter
    model: PreTrainedModel
    theirs: Any

    def draft_logits(self, hidden: Tensor, tokens: Sequence[int], first: int) -> Tensor:
        """Their logits after the last of these rows, whose first position is `first`."""
        positions = torch.arange(first, first + len(tokens))[None]
        with torch.inference_mode():
            _, logits, _ = self.theirs(
                input_ids=torch.tensor([list(tokens)]),
                last_hidden_states=hidden[None],
                attention_mask=None,
                position_ids=positions,
                mtp_cache=MtpCache(config=self.model.config.get_mtp_config()),
            )
        found: Tensor = logits[0, -1]
        return found

    def outputs(self, hidden: Tensor, tokens: Sequence[int]) -> Tensor:
        """Their output after each row."""
        with torch.inference_mode():
            found: Tensor = self.theirs.forward_layer(
                0,
                hidden[None],
                torch.arange(len(tokens))[None],
                MtpCache(config=self.model.config.get_mtp_config()),
                input_ids=torch.tensor([list(tokens)]),
            )
        return found[0]

    def law(self, asked: HeadRequest) -> Callable[[Sequence[int]], Floats]:
        """Log probabilities after a path: the module is applied to its own outputs, each time over
        all rows from the first on."""

        def law(path: Sequence[int]) -> Floats:
            rows, tokens = torch.from_numpy(asked.features), [*asked.tokens, *path]
            for end in range(len(asked.tokens), len(tokens) + 1):
                output = self.outputs(rows, tokens[:end])[-1:]
                rows = torch.cat([rows, output])
            with torch.inference_mode():
                logits = self.theirs.shared_head(output)[0].double().numpy()
            if asked.temperature:
                at = len(asked.prompt) + len(tokens)
                noise = gumbel(asked.seed, at, np.arange(zoo.VOCABULARY))
                logits = logits + asked.temperature * noise
            found: Floats = logits - np.logaddexp.reduce(logits)
            return found

        return law


def ask(pair: Pair, seed: int, temperature: float = 0.0) -> HeadRequest:
    """A request with features of the target itself: what its output embedding gets."""
    text = zoo.tokens(np.random.default_rng(seed), 60)
    with torch.inference_mode():
        ids = torch.from_numpy(text)[None].long()
        out = pair.model(input_ids=ids, output_hidden_states=True, use_cache=False)
    hidden = out.hidden_states[-1][0].numpy()
    return HeadRequest(pair.drafter, seed, temperature, text=text, hidden=hidden)


WITHOUT_WINDOW = {"mtp_layer_types": ["full_attention"]}
"""Of mellum, whose module has a window by default."""


@pytest.fixture(scope="module", params=[*modules.SHAPES, "mellum without window"])
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Pair:
    family, _, rest = request.param.partition(" ")
    model = modules.make(family, **(WITHOUT_WINDOW if rest else {}))
    folder = modules.save(tmp_path_factory.mktemp("mtp"), model, modules.random_module(model))
    found = _pair(folder)
    assert found.drafter.head.window == (zoo.WINDOW if request.param == "mellum" else 0)
    return found


def _pair(folder: Path) -> Pair:
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).train(False)
    # transformers knows these names for the depths of the published models only.
    model._keys_to_ignore_on_load_unexpected = [r"model\.layers\.2\.", r"^mtp\."]
    theirs = MtpModel.from_pretrained(model).train(False)
    return Pair(MtpDrafter(folder, topk=3, depth=3), model, theirs)


def test_the_weights_are_those_that_transformers_reads(pair: Pair) -> None:
    own, theirs = pair.drafter.head.module.layer.state_dict(), pair.theirs.layers[0].state_dict()
    assert own.keys() == theirs.keys() and len(own) > 10
    for name, weight in theirs.items():
        assert torch.equal(own[name], weight), name


@pytest.mark.parametrize("piece", [4, 64])
def test_the_logits_are_those_of_transformers(
    pair: Pair, piece: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beyond the window, read in pieces, and beside others; theirs have positions in the text."""
    monkeypatch.setattr(head_drafter, "_PIECE", piece)
    asked = [ask(pair, seed) for seed in range(3)]
    states = [one.state for one in asked]
    commit(asked, 1, 9, 30)
    for counts in ((1, 1, 1), (4, 2, 1), (21, 3, 5)):
        drafts = pair.drafter.propose(states, [1, 1, 1])
        for one, draft in zip(asked, drafts, strict=True):
            wanted = pair.draft_logits(torch.from_numpy(one.features), one.tokens, len(one.prompt))
            assert one.state.hidden is not None
            given = pair.drafter.head.logits(one.state.hidden)
            assert (given - wanted).abs().max() < 1e-3 * wanted.abs().max()
            assert draft.tokens.tolist() == [int(wanted.argmax())]
            assert draft.scores is not None
            chance = wanted.double().softmax(-1).max()
            np.testing.assert_allclose(draft.scores, [chance], rtol=1e-3)
        commit(asked, *counts)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_the_tree_is_that_of_the_definition(pair: Pair, temperature: float) -> None:
    asked = [ask(pair, seed, temperature if seed else 0.0) for seed in range(3)]
    commit(asked, 3, 1, 20)
    budgets = (9, 4, 12)
    drafts = pair.drafter.propose([one.state for one in asked], budgets)
    for one, budget, draft in zip(asked, budgets, drafts, strict=True):
        assert_same(draft, reference_tree(pair.law(one), budget, 3, 3), rtol=2e-3)


def test_a_window_narrower_than_a_tree_makes_it_shallow(tmp_path: Path) -> None:
    model = modules.make("mellum", sliding_window=2)
    found = _pair(modules.save(tmp_path, model, modules.random_module(model)))
    assert found.drafter.head.window == 2
    drafter = MtpDrafter(tmp_path, topk=1, depth=6)
    one = ask(Pair(drafter, found.model, found.theirs), 1)
    commit([one], 8)
    (draft,) = drafter.propose([one.state], [6])
    assert draft.tokens.tolist() == reference_tree(found.law(one), 2, 1, 2).tokens.tolist()


# Of torch, on processors that have no product of bfloat16.
@pytest.mark.filterwarnings("ignore:mkldnn_matmul failed")
def test_bfloat16(pair: Pair) -> None:
    folder = str(pair.model.config.name_or_path)
    drafter = MtpDrafter(folder, dtype="bfloat16")
    layer = drafter.head.module.layer
    assert layer.eh_proj.weight.dtype == torch.bfloat16
    one = ask(Pair(drafter, pair.model, pair.theirs), 2)
    commit([one], 7)
    (draft,) = drafter.propose([one.state], [8])
    assert len(draft) == 8
