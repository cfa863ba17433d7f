"""A drafter gets what the boundary promises: how tokens are chosen, and what it wants to see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

from doubles import Scripted, tokens
from engine.asking import Asked, check, known
from engine.drafters import Coupled, Recycling, State, Watching, near
from foresay import Draft, DraftBatch, SamplingParams
from foresay.budget.load import Load, within_max_tokens
from foresay.budget.policy import Fixed, Policy
from foresay.budget.selected import SelectedNodes
from foresay.drafter import SeededParams
from foresay.drafters import (
    CorpusDrafter,
    MergeDrafter,
    NgramDrafter,
    RecycleDrafter,
    SuffixDrafter,
)
from foresay.drafters.merge.gating import _Enabled
from foresay.engine import compute
from foresay.engine.engine import Engine
from foresay.engine.plain import logits_of
from foresay.engine.request import Request
from foresay.errors import InputError
from foresay.models.target import Target
from foresay.sampling.reference import path_to
from models import zoo
from models.targets import zoo_target

ASKED = [
    SamplingParams(temperature=1.0, max_tokens=24),
    SamplingParams(temperature=0.7, top_p=0.9, max_tokens=24),
    SamplingParams(temperature=1.0, repetition_penalty=1.3, max_tokens=24),
    SamplingParams(temperature=0, max_tokens=24),
]
PROMPTS = [[5, 6, 7], [8], [9, 10, 11, 12, 13], [20, 21, 20, 21]]
ASK = list(zip(PROMPTS, ASKED, strict=True))


@pytest.fixture(scope="module")
def target() -> Target:
    """Of torch's modules: its hidden states are compared with those of transformers."""
    return zoo_target("llama")


def answered(
    target: Target, drafter: Any, policy: str | Policy = "fixed", asked: Asked | None = None
) -> list[Request]:
    """The requests, answered as by the plain loop."""
    return check(Engine(target, drafter, policy=policy), asked or ASK, stops=())


def rate(requests: Sequence[Request]) -> float:
    drafted = sum(request.stats.drafted for request in requests)
    return sum(request.stats.accepted for request in requests) / drafted


def test_a_coupled_drafter_agrees_more_often(target: Target) -> None:
    """With the request's own noise slightly wrong logits choose the same token nearly
    always; with another noise it is another sample. The text is the same with both."""
    rows = near(logits_of(target), 0.2)
    coupled, foreign = (answered(target, Coupled(rows, foreign)) for foreign in (0, 1))
    sampled = slice(0, 3)  # greedy has no noise
    assert rate(coupled[sampled]) > 0.6 > 3 * rate(foreign[sampled])


def test_known_noise_helps_a_drafter_of_likely_tokens(target: Target) -> None:
    """Samples of one prompt: with the request's noise more of the same nodes are accepted."""
    params = SamplingParams(temperature=1.5, max_tokens=40)

    class Deaf(RecycleDrafter):
        def begin(self, prompt: Any, /, **about: Any) -> Any:
            return super().begin(prompt, **about | {"sampling": None})

    accepted = []
    for drafter in (RecycleDrafter(context=2, k=16), Deaf(context=2, k=16)):
        engine = Engine(target, drafter, policy="fixed")
        requests = [engine.add([5, 6, 7], params, seed=seed) for seed in range(24)]
        engine.run()
        accepted.append(sum(request.stats.accepted for request in requests))
    assert accepted[0] > 1.2 * accepted[1]


def test_every_drafter_is_told_how_tokens_are_chosen(target: Target) -> None:
    first, second = Scripted(), Scripted()
    requests = answered(target, MergeDrafter(first, MergeDrafter(second)))
    expected = [SeededParams(request.params, request.seed) for request in requests]
    assert first.sampling == second.sampling == expected
    assert [seeded.seed for seeded in expected] == [0, 1, 2, 3]


def test_those_who_need_not_know_draft_the_same() -> None:
    from conformance import corpus_file

    text, known = tokens(1, 2, 3, 1, 2), SeededParams(SamplingParams(), 7)
    for make in (NgramDrafter, SuffixDrafter, lambda: CorpusDrafter(corpus_file())):
        drafts = []
        for sampling in (None, known):
            drafter: Any = make()
            drafts.append(drafter.propose([drafter.begin(text, sampling=sampling)], [4]))
        assert drafts[0] == drafts[1]


def test_seeded_params_are_checked() -> None:
    with pytest.raises(InputError, match="params is 1; expected SamplingParams"):
        SeededParams(1, 0)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="seed is -1; expected a whole number from 0"):
        SeededParams(SamplingParams(), -1)


class Odd(Fixed):
    """Leaves out every third node, and what hangs from it."""

    def choose(self, drafts: DraftBatch, load: Load) -> SelectedNodes:
        good = np.ones(len(drafts.tokens) + 1, bool)
        good[:-1:3] = False
        good = drafts.along_paths(good, np.minimum)[:-1]
        return SelectedNodes(drafts, good & within_max_tokens(drafts, load))


@pytest.mark.parametrize("policy", [Fixed(), Odd()])
def test_likely_tokens_after_every_verified_row(target: Target, policy: Policy) -> None:
    """A drafter that lives on the likeliest tokens: it gets them, in its own nodes' numbers, and
    they are the model's own, before temperature and penalties."""
    drafter = Recycling()
    requests = answered(target, drafter, policy)
    assert sum(request.stats.accepted for request in requests) > 0
    rows, verified, dropped = logits_of(target), 0, 0
    for past, draft, verdict in drafter.told:
        assert verdict.topk is not None and verdict.topk.k == 3
        for node in range(-1, len(draft)):
            found = verdict.topk.tokens[node + 1].tolist()
            if found == [-1, -1, -1]:
                assert node >= 0 and node not in verdict.path
                dropped += 1
                continue
            verified += 1
            if verified % 7 == 0:  # a plain pass for some of them
                text = [*past.prompt, *draft.tokens[path_to(draft, node)].tolist()]
                plain = rows(np.array(text, np.int32), len(text)).log_softmax(-1)
                best = plain.topk(3)
                assert found == best.indices.tolist()
                said = verdict.topk.logprobs[node + 1]
                assert np.allclose(said, best.values.numpy(), atol=1e-4)
    assert verified > 200
    assert (dropped > 50) == isinstance(policy, Odd)  # what is left out is said to be so


def test_hidden_states_of_committed_tokens(target: Target) -> None:
    """What each committed token was predicted from: the model's own last hidden states."""
    texts = known(target, ASK, stops=())
    drafter = Watching(texts, wrong=0.3)
    requests = answered(target, drafter)
    assert any(request.stats.accepted for request in requests)
    model = zoo.make("llama")
    for prompt, text in texts.items():
        found = np.concatenate(drafter.hidden[prompt])
        assert found.dtype == np.float32 and len(found) == len(text)
        with torch.inference_mode():
            ids = torch.tensor([[*prompt, *text]])
            states = model.model(input_ids=ids, use_cache=False).last_hidden_state[0]
        own = states[len(prompt) - 1 : -1].numpy()
        assert np.allclose(found, own, atol=1e-4)
        assert not np.allclose(found[1:], own[:-1], atol=1e-1)  # the next row is another


def test_only_what_the_drafter_wants_is_computed(
    target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[bool, bool]] = []
    kind: Any = type(target)
    step: Any = compute  # where the drafter's likeliest tokens are computed
    forward, topk_of = kind.forward, step.topk_of

    def spy(self: Target, parts: Any, *, hidden: bool = False) -> Any:
        asked.append((hidden, False))
        return forward(self, parts, hidden=hidden)

    def likely(logits: Any, k: int) -> Any:
        found = topk_of(logits, k)
        asked[-1] = (asked[-1][0], found is not None)
        return found

    monkeypatch.setattr(kind, "forward", spy)
    monkeypatch.setattr(compute, "topk_of", likely)
    texts = known(target, ASK, stops=())
    for drafter, expected in (
        (None, (False, False)),
        (NgramDrafter(), (False, False)),
        (MergeDrafter(SuffixDrafter(), NgramDrafter()), (False, False)),
        (Recycling(), (False, True)),
        (Watching(texts, 0.3), (True, False)),
        (MergeDrafter(Recycling(), Watching(texts, 0.3)), (True, True)),
    ):
        asked.clear()
        answered(target, drafter)
        assert set(asked) == {expected}


def test_drafted_tokens_outside_the_vocabulary_have_no_row(target: Target) -> None:
    """The drafter still hears of its own nodes by their own numbers."""

    class Strange(Recycling):
        def _tree(self, state: State, budget: int) -> Draft:
            draft = super()._tree(state, budget - 2)
            tokens = [zoo.VOCABULARY + 5, 3, *draft.tokens.tolist()]
            parents = np.where(draft.parents < 0, -1, draft.parents + 2)
            return Draft(tokens[:budget], [-1, 0, *parents.tolist()][:budget])

    drafter = Strange()
    answered(target, drafter)
    accepted = 0
    for _, draft, verdict in drafter.told:
        if len(draft) and verdict.topk is not None:
            assert verdict.topk.tokens[1:3].tolist() == [[-1] * 3] * 2
            assert verdict.topk.tokens[0].min() >= 0
            assert draft.tokens[verdict.path].tolist() == verdict.tokens[:-1].tolist()
            accepted += len(verdict.path)
    assert accepted > 0


def test_likely_tokens_beside_prompt_logprobs(target: Target) -> None:
    """The rows of prompts come after the others, and are not taken for them."""
    drafter = Recycling()
    engine = Engine(target, drafter, policy="fixed")
    for seed, prompt in enumerate(PROMPTS):
        engine.add(prompt, ASKED[3], seed=seed)
    engine.step()
    long = np.random.default_rng(3).integers(0, zoo.VOCABULARY, 60).tolist()
    engine.add(long, ASKED[3], seed=9, prompt_logprobs=2)
    engine.run()
    rows = logits_of(target)
    for past, _, verdict in drafter.told[4:20]:
        plain = rows(np.array(past.prompt, np.int32), len(past.prompt)).topk(3).indices.tolist()
        assert verdict.topk is not None and verdict.topk.tokens[0].tolist() == plain


def test_a_drafter_cannot_write_to_the_parameters(target: Target) -> None:
    params = SamplingParams(temperature=0, max_tokens=8, logit_bias={7: -1.0})

    class Biased(NgramDrafter):
        def begin(self, prompt: Any, /, **about: Any) -> Any:
            about["sampling"].params.logit_bias[3] = 1e4
            return super().begin(prompt, **about)

    answered(target, Biased(), asked=[(prompt, params) for prompt in PROMPTS])


@pytest.mark.parametrize("policy", ["fixed", "adaptive"])
def test_drafters_that_rest_now_and_then_change_no_text(
    target: Target, policy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[bool] = set()

    def by_turns(self: _Enabled, net: float) -> None:
        self.now = not self.now

    class Looking(RecycleDrafter):
        def observe(self, states: Any, verdicts: Any, /) -> None:
            seen.add(verdicts.topk is not None)
            super().observe(states, verdicts)

    monkeypatch.setattr(_Enabled, "observe", by_turns)
    answered(target, MergeDrafter(SuffixDrafter(), Looking(k=2), Looking(k=2)), policy)
    assert seen == ({True} if policy == "fixed" else {True, False})
