"""The drafts of ModelDrafter themselves: their shapes, scores and tokens, and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch

import conformance
import test_drafters as table
from conformance import SCENARIOS, drive
from doubles import in_order
from drafters.small_models import Watched, draft_model
from engine.asking import prompts
from foresay import Draft, DraftBatch, SamplingParams, SeededParams, Verdict
from foresay.drafters import ModelDrafter
from foresay.drafters.decoding.next_tokens import Row, Way, next_tokens
from foresay.drafters.decoding.noise_weight import WEIGHTS, NoiseWeight
from foresay.drafters.decoding.shapes import as_shape
from foresay.drafters.decoding.state import RequestState
from foresay.drafters.model import Dynamic
from foresay.engine.plain import logits_of
from foresay.errors import InputError, TokenizerMismatch
from foresay.models.target import Target
from foresay.sampling.noise import gumbel
from foresay.sampling.verification import VerificationInput
from models import zoo

PROMPT = np.array([5, 9, 33, 12, 70, 5, 9], np.int32)
GREEDY = SeededParams(SamplingParams(temperature=0), 1)
WARM = SeededParams(SamplingParams(temperature=0.9, top_p=0.95), 1)
SHAPES: dict[str, Any] = {"chain": 5, "tree": (3, 2, 2), "dynamic": Dynamic(width=3, depth=4)}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=list(SHAPES))


@pytest.fixture(scope="module")
def model() -> Target:
    return draft_model("same")


@pytest.mark.parametrize(
    ("shape", "nodes"),
    [(1, 1), (7, 7), ((1, 1, 3), 5), ((4,), 4), ((3, 2, 1), 15), ((2, 2, 2), 14), ((5, 1, 2), 20)],
)
def test_nodes_of_expansion_trees(model: Target, shape: Any, nodes: int) -> None:
    drafter = ModelDrafter(model, shape=shape)
    hot = SeededParams(SamplingParams(temperature=1.5), 1)  # top-p may leave a node fewer children
    for sampling in (None, GREEDY, hot):
        (draft,) = drafter.propose([drafter.begin(PROMPT, sampling=sampling)], [64])
        assert len(draft) == as_shape(shape).nodes == nodes
        children = [int((draft.parents == node).sum()) for node in range(-1, len(draft))]
        sizes = [shape] if isinstance(shape, int) else shape
        assert children[0] == (1 if isinstance(shape, int) else sizes[0])
        assert len(set(in_order(draft))) == nodes


def likeliest(model: Target, text: Sequence[int], many: int) -> list[tuple[int, float]]:
    row = logits_of(model)(np.array(text, np.int32), len(PROMPT)).double().softmax(-1).numpy()
    return [(int(token), float(row[token])) for token in np.argsort(-row, kind="stable")[:many]]


@pytest.mark.parametrize("budget", [1, 2, 5, 9, 17, 64])
@pytest.mark.parametrize("shape", [(3, 2, 2), (2, 4), Dynamic(width=3, depth=4)], ids=str)
def test_the_likeliest_nodes_of_a_tree(model: Target, shape: Any, budget: int) -> None:
    """As a plain search finds them, one text at a time."""
    made = as_shape(shape)
    known: dict[tuple[int, ...], float] = {(): 1.0}
    level: list[tuple[int, ...]] = [()]
    for branch in made.branches:
        new = {
            (*path, token): known[path] * chance
            for path in level
            for token, chance in likeliest(model, [*PROMPT.tolist(), *path], branch)
        }
        known |= new
        level = sorted(new, key=lambda path: -new[path])[: made.width]
    del known[()]
    best = sorted(known, key=lambda path: -known[path])[:budget]
    drafter = ModelDrafter(model, shape=shape)
    (draft,) = drafter.propose([drafter.begin(PROMPT)], [budget])
    assert set(in_order(draft)) == set(best)
    assert draft.scores is not None
    expected = [known[path] for path in in_order(draft)]
    np.testing.assert_allclose(draft.scores, expected, rtol=1e-4)


@every_shape
@pytest.mark.parametrize("sampling", [None, GREEDY, WARM], ids=["unknown", "greedy", "warm"])
def test_drafts_are_valid_and_repeat(model: Target, shape: Any, sampling: Any) -> None:
    drafter = ModelDrafter(model, shape=shape)
    states = [drafter.begin(np.array(p, np.int32), sampling=sampling) for p in prompts(4, seed=5)]
    first = DraftBatch.of(drafter.propose(states, [9, 3, 0, 1]))
    conformance.check_drafts(first, [9, 3, 0, 1])  # scores never rise along a path
    drafter.propose(states[:2], [2, 8])  # other budgets in between
    assert DraftBatch.of(drafter.propose(states, [9, 3, 0, 1])) == first
    assert DraftBatch.of(drafter.propose(states[::-1], [1, 0, 3, 9]))[3] == first[0]


@every_shape
@pytest.mark.parametrize("kind", ["right", "no cut", "cut too far ahead"])
def test_drafts_depend_on_the_text_only(
    model: Target, shape: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After any history the drafts are those of a new request with the same text. Both mutations
    of what stays stored after a verdict are found."""
    commit = RequestState.commit

    def wrong(state: RequestState, tokens: Any) -> None:
        kept, state._ahead = state._ahead, tokens.tolist()
        if kind == "cut too far ahead" and kept[:1] == tokens.tolist()[:1]:
            state._ahead = kept
        commit(state, tokens)

    if kind != "right":
        monkeypatch.setattr(RequestState, "commit", wrong)
    random, differ = np.random.default_rng(7), 0
    drafter = ModelDrafter(model, shape=shape)
    states = [drafter.begin(np.array(p, np.int32), sampling=WARM) for p in prompts(4, seed=6)]
    for _ in range(12):
        asked = [state for state in states if random.random() < 0.7]
        budgets = random.integers(0, 12, len(asked)).tolist()
        drafts = dict(zip(map(id, asked), drafter.propose(asked, budgets), strict=True))
        for state, budget in zip(asked, budgets, strict=True):
            fresh = ModelDrafter(model, shape=shape)
            (expected,) = fresh.propose([fresh.begin(drafter.text(state), sampling=WARM)], [budget])
            differ += in_order(drafts[id(state)]) != in_order(expected)
        for state in states:
            # Some of a drafted path, and then tokens that were not drafted: of another drafter.
            draft = drafts.get(id(state), Draft.empty())
            path = zoo.path(draft, int(random.integers(-1, len(draft)))) if len(draft) else []
            path = path[: random.integers(0, len(path) + 1)]
            more = random.integers(3, 128, random.integers(1, 4))
            drafter.observe(
                [state], [Verdict(path, [*draft.tokens[path].tolist(), *more.tolist()])]
            )
            assert state.stored <= len(state.text)
            if state._kv is not None:
                state._kv.check_integrity()
    assert (differ == 0) == (kind == "right")


def test_one_pass_per_level(model: Target) -> None:
    watched: Any = Watched(model)
    drafter = ModelDrafter(watched, shape=4)
    states = [drafter.begin(np.array(p, np.int32)) for p in prompts(3, seed=2)]
    drafter.propose(states, [4, 4, 2])
    sizes = [len(state.text) for state in states]
    assert watched.passes == [sizes, [1, 1, 1], [1, 1], [1, 1]]
    # All drafted tokens were accepted: only what was not run yet is run.
    watched.passes.clear()
    drafts = drafter.propose(states, [4, 4, 2])
    verdicts = [Verdict(range(len(d)), [*d.tokens.tolist(), 7]) for d in drafts]
    drafter.observe(states, verdicts)
    assert watched.passes == []
    drafter.propose(states[:2], [4, 4])  # the third sits out, and costs nothing
    assert watched.passes == [[2, 2], [1, 1], [1, 1], [1, 1]]


def test_trees_compute_their_branches_again(model: Target) -> None:
    watched: Any = Watched(model)
    drafter = ModelDrafter(watched, shape=(1, 2, 2))
    drafter.propose([drafter.begin(PROMPT)], [64])
    # The text; its one child; that and its two children.
    assert watched.passes == [[len(PROMPT)], [1], [3]]


def test_long_prompts_are_read_in_pieces() -> None:
    watched: Any = Watched(draft_model("same", max_position_embeddings=4096))
    drafter = ModelDrafter(watched, shape=2)
    texts = [np.full(size, 5, np.int32) for size in (1300, 3, 700)]
    states = [drafter.begin(text) for text in texts]
    assert not watched.passes and drafter.bytes_used() == 4 * 2003
    drafts = drafter.propose(states, [2, 2, 2])
    assert all(sum(rows) <= 512 for rows in watched.passes) and len(watched.passes) == 5
    for text, draft in zip(texts, drafts, strict=True):
        alone = ModelDrafter(draft_model("same", max_position_embeddings=4096), shape=2)
        assert in_order(alone.propose([alone.begin(text)], [2])[0]) == in_order(draft)
    held = drafter.bytes_used()
    assert held > 2003 * watched.bytes_per_token
    drafter.finish(states[0])
    assert drafter.bytes_used() < held - 1300 * watched.bytes_per_token
    assert drafter.tokens_held() == 703


@every_shape
def test_an_interrupt_leaves_the_texts_as_they_were(model: Target, shape: Any) -> None:
    expected = ModelDrafter(model, shape=shape)
    right = expected.propose([expected.begin(PROMPT), expected.begin(PROMPT[:3])], [8, 8])
    for passes in range(3):
        watched: Any = Watched(model)
        drafter = ModelDrafter(watched, shape=shape)
        states = [drafter.begin(PROMPT), drafter.begin(PROMPT[:3])]
        watched.fails_after = passes
        with pytest.raises(KeyboardInterrupt):
            drafter.propose(states, [8, 8])
        watched.fails_after = None
        assert list(map(in_order, drafter.propose(states, [8, 8]))) == list(map(in_order, right))


def test_what_the_model_cannot_read_gets_no_drafts(model: Target) -> None:
    drafter = ModelDrafter(model)
    long, foreign, good = (
        drafter.begin(np.full(300, 5, np.int32)),
        drafter.begin(np.array([5, 128], np.int32)),
        drafter.begin(PROMPT),
    )
    assert [len(d) for d in drafter.propose([long, foreign, good], [4, 4, 4])] == [0, 0, 4]
    drafter.observe([good], [Verdict([], [2**31 - 2])])
    assert [len(d) for d in drafter.propose([good], [4])] == [0]
    assert drafter.bytes_used() == 4 * (300 + 2 + 8)


def test_no_drafts_beyond_max_tokens(model: Target) -> None:
    drafter = ModelDrafter(model, shape=8)
    state = drafter.begin(PROMPT, sampling=SeededParams(SamplingParams(max_tokens=6), 0))
    assert len(drafter.propose([state], [8])[0]) == 5
    drafter.observe([state], [Verdict([], [7, 7, 7, 7, 7])])
    assert len(drafter.propose([state], [8])[0]) == 0


def test_logits_that_are_no_numbers() -> None:
    """A row of them has no children; nothing is raised."""
    ways: list[tuple[float, Way]] = [(0.0, "likeliest"), (1.0, "coupled"), (1.0, "sampled")]
    rows = [
        Row(VerificationInput(SamplingParams(temperature=heat), 3, [1]), way, 3)
        for heat, way in ways
        for _ in range(4)
    ]
    logits = torch.zeros(len(rows), 9)
    logits[0::4, 4], logits[1::4, 4], logits[2::4] = torch.nan, torch.inf, -torch.inf
    logits[3::4, 2:] = -torch.inf  # two tokens are left
    found = next_tokens(logits, rows)
    assert [len(f.tokens) for f in found] == [0, 0, 0, 2] * 3
    assert all(set(f.tokens) == {0, 1} for f in found[3::4])
    assert found[3].tokens == [0, 1]  # of equals the lowest id first


def test_the_contract(model: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "visible", lambda scenario: set(range(128)))
    for shape in (3, (2, 2)):
        drafter = ModelDrafter(model, shape=shape)
        drive(drafter, SCENARIOS)
        assert drafter.tokens_held() == drafter.bytes_used() == 0


def test_bad_input(model: Target) -> None:
    table.refuses_what_is_wrong(lambda: ModelDrafter(model))
    foreign = ModelDrafter(model).begin([1, 2])
    table.test_what_is_no_state_of_the_drafter(lambda: ModelDrafter(model), lambda _: foreign)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"shape": 0}, "shape is 0; expected a whole number from 1 to 64"),
        ({"shape": True}, "shape is True; expected the length of a chain"),
        ({"shape": ()}, r"shape is \(\); expected the length"),
        ({"shape": "tree"}, "shape is 'tree'; expected the length"),
        ({"shape": (3, 0)}, r"shape\[1\] is 0; expected a whole number"),
        ({"shape": (16, 16, 16, 16)}, "has 69904 nodes in 4 levels; expected at most 4096"),
        ({"choice": "best"}, "choice is 'best'; expected 'coupled' or 'likeliest'"),
        ({"memory": 0}, "memory is 0; expected"),
        ({"tokenizer_hash": b"short"}, "tokenizer_hash is b'short'; expected None or the 32"),
    ],
)
def test_bad_options(model: Target, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        ModelDrafter(model, **options)


def test_what_is_no_model() -> None:
    wrong: Any = 7
    with pytest.raises(InputError, match="the target is of type int; expected a Target"):
        ModelDrafter(wrong)
    with pytest.raises(InputError, match="depth is 0; expected a whole number from 1"):
        Dynamic(depth=0)


def test_targets_that_do_not_fit(model: Target) -> None:
    other = draft_model("same", vocab_size=120)
    a, b = bytes(32), bytes(31) + b"\1"
    with pytest.raises(InputError, match="vocabulary has 128 tokens and the target's has 120"):
        ModelDrafter(model).fit(other)
    with pytest.raises(InputError, match="128 tokens and the target's has 120"):
        ModelDrafter(model, tokenizer_hash=a).fit(other)
    with pytest.raises(TokenizerMismatch, match=r"hash 0000000000000000… and the target's has"):
        ModelDrafter(model, tokenizer_hash=a).fit(model, b)
    drafter = ModelDrafter(model, tokenizer_hash=a)
    drafter.fit(model, a)
    state = drafter.begin(PROMPT)
    with pytest.raises(InputError, match=r"drafts for a vocabulary of 128 tokens.*has 120"):
        drafter.fit(other, a)
    drafter.finish(state)
    drafter.fit(other, a)  # of one tokenizer: the model is padded
    drafter.fit(other)
    assert drafter.vocabulary == 120


def test_the_weight_of_the_noise_is_learned() -> None:
    """A model that knows nothing but what is usual drafts that, and not what noise alone makes of
    it; a model that is the target follows all of its noise."""
    weight = NoiseWeight()
    assert weight.value == 1.0
    for _ in range(100):
        weight.learn([1, 2, 2, 2, 3], 1)
    assert weight.value == 1.0
    for _ in range(150):
        weight.learn([1, 2, 3, 3, 3], 3)
    assert weight.value == 0.7  # of equals the largest
    for _ in range(20_000):
        weight.learn([1, 2, 3, 4, 5], 3)
    for _ in range(4096):  # what was long ago counts for little
        weight.learn([1, 2, 3, 4, 5], 5)
    assert weight.value == 0.4


def test_each_weight_of_the_noise() -> None:
    """The token for each weight is the best of log probability / temperature + weight * noise."""
    rng = np.random.default_rng(3)
    logits = torch.from_numpy(rng.normal(0, 2, (24, 64)).astype(np.float32))
    params = SamplingParams(temperature=0.8)
    asks = [VerificationInput(params, at, np.arange(at + 1, dtype=np.int32)) for at in range(24)]
    seen = set()
    for weight in WEIGHTS:
        found = next_tokens(logits, [Row(ask, "coupled", 3, weight) for ask in asks])
        for at, one in enumerate(found):
            noise = gumbel(at, asks[at].position, np.arange(64))
            values = logits[at].double().numpy() / 0.8
            expected = tuple(int((values + each * noise).argmax()) for each in WEIGHTS)
            assert one.by_weight == expected
            ranked = np.argsort(-(values + weight * noise), kind="stable")[:3]
            assert one.tokens == ranked.tolist()
            assert sorted(one.chances, reverse=True) == one.chances
            seen.add(len(set(expected)))
    assert max(seen) > 1
