"""Log probabilities of committed tokens equal those of a teacher-forced forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foresay import Draft
from foresay.errors import InputError
from foresay.sampling import Ask, SamplingParams
from foresay.sampling.batched.match import match
from foresay.sampling.batched.rejection import rejection
from foresay.sampling.law import probabilities, scores
from foresay.sampling.logprobs import logprobs_of
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


def test_a_top_larger_than_the_vocabulary() -> None:
    ask, draft = Ask(SamplingParams(), 0, [1]), Draft.empty()
    verified = match([draft], torch.zeros(1, 4), [ask])
    with pytest.raises(InputError, match="top is 5; valid are 0 to the vocabulary's 4"):
        logprobs_of(verified, [draft], torch.zeros(1, 4), [ask], top=5)
