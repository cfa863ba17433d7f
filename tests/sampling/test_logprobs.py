"""Log probabilities of committed tokens equal those of a teacher-forced forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foresay import Draft
from foresay.errors import InputError
from foresay.sampling import Ask, SamplingParams
from foresay.sampling.acceptance.match import match
from foresay.sampling.acceptance.rejection import rejection
from foresay.sampling.logprobs import likeliest, logprobs_of
from foresay.sampling.processors import probabilities, scores
from foresay.sampling.reference import path_to

V = 30


class Reader(torch.nn.Module):
    """A small recurrent language model: the logits of a text, one row after each token."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(1)
        self.embed = torch.nn.Embedding(V, 16)
        self.read = torch.nn.GRU(16, 32, batch_first=True)
        self.head = torch.nn.Linear(32, V)

    @torch.no_grad()
    def forward(self, text: list[int]) -> torch.Tensor:
        hidden, _ = self.read(self.embed(torch.tensor([text])))
        logits: torch.Tensor = self.head(hidden)[0] * 16
        return logits


@pytest.mark.parametrize("rule", [match, rejection])
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0),
        SamplingParams(),
        SamplingParams(temperature=0.7, top_k=8, top_p=0.9, min_p=0.01),
        SamplingParams(repetition_penalty=1.4, presence_penalty=0.3, frequency_penalty=0.2),
    ],
    ids=["greedy", "plain", "limits", "penalties"],
)
def test_teacher_forced(rule: object, params: SamplingParams) -> None:
    model, prompt = Reader(), [3, 1, 4, 1, 5]
    committed = 0
    for seed in range(40):
        ask = Ask(params, seed, prompt, [9, 2])
        text = [*prompt, 9, 2]
        likely = int(model(text)[-1].argmax())
        second = int(model([*text, likely])[-1].argmax())
        draft = Draft([likely, 7, second, 8], [-1, -1, 0, 1])
        rows = [model([*text, *draft.tokens[path_to(draft, node)]])[-1] for node in range(-1, 4)]
        logits = torch.stack(rows)
        verified = rule([draft], logits, [ask])  # type: ignore[operator]
        tokens = verified.verdicts[0].tokens.tolist()
        committed += len(tokens)
        got = logprobs_of(verified, [draft], logits, [ask], top=3)

        forced = model([*text, *tokens])[len(text) - 1 : -1]
        raw = torch.log_softmax(forced.double(), dim=-1).numpy()
        np.testing.assert_allclose(got.raw, raw[np.arange(len(tokens)), tokens], atol=2e-5)
        for i, token in enumerate(tokens):
            row = scores(forced[i].numpy(), ask, tokens[:i])
            expected = np.log(probabilities(row, params.greedy)[token])
            np.testing.assert_allclose(got.processed[i], expected, atol=2e-5)
        own = torch.log_softmax(logits[verified.rows].double(), dim=-1).numpy()
        np.testing.assert_allclose(got.raw, own[np.arange(len(tokens)), tokens], rtol=1e-12)
        np.testing.assert_array_equal(got.top_tokens, np.argsort(-raw, axis=1)[:, :3])
        np.testing.assert_allclose(got.top_raw, -np.sort(-raw, axis=1)[:, :3], atol=2e-5)
    assert committed > 45, "the drafts must be accepted at times"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_equal_ones_come_by_their_id(dtype: torch.dtype) -> None:
    """Whatever else is asked: a smaller top is the beginning of a larger one."""
    draw = torch.Generator().manual_seed(3)
    raw = torch.randint(-4, 4, (60, 500), generator=draw).to(dtype).double()
    raw[0], raw[1, 7:] = 0.0, -torch.inf
    wanted = np.lexsort((np.broadcast_to(np.arange(500), (60, 500)), -raw.numpy()))
    for top in (0, 1, 2, 5, 20, 100, 499, 500):
        tokens, values = likeliest(raw, top)
        np.testing.assert_array_equal(tokens.numpy(), wanted[:, :top])
        np.testing.assert_array_equal(
            values.numpy(), np.take_along_axis(raw.numpy(), wanted, 1)[:, :top]
        )


def test_a_neighbour_that_asks_for_more_changes_nothing() -> None:
    draw = torch.Generator().manual_seed(4)
    logits = torch.randint(0, 6, (2, 300), generator=draw).float()
    asks = [Ask(SamplingParams(temperature=0), 0, [1])] * 2
    drafts = [Draft.empty()] * 2
    verified = match(drafts, logits, asks)
    few = logprobs_of(verified, drafts, logits, asks, top=2)
    for top in (3, 9, 40, 300):
        more = logprobs_of(verified, drafts, logits, asks, top=top)
        np.testing.assert_array_equal(few.top_tokens, more.top_tokens[:, :2])


def test_a_top_larger_than_the_vocabulary() -> None:
    ask, draft = Ask(SamplingParams(), 0, [1]), Draft.empty()
    verified = match([draft], torch.zeros(1, 4), [ask])
    with pytest.raises(InputError, match="top is 5; expected 0 to the vocabulary's 4"):
        logprobs_of(verified, [draft], torch.zeros(1, 4), [ask], top=5)
