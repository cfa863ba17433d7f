"""Log probabilities of committed tokens equal those of a teacher-forced forward."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foresay import Draft
from foresay.errors import InputError
from foresay.sampling import SamplingParams, VerificationInput
from foresay.sampling.acceptance.match import match
from foresay.sampling.acceptance.rejection import rejection
from foresay.sampling.logprobs import likeliest, logprobs_of, topk_of
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
        request = VerificationInput(params, seed, prompt, [9, 2])
        text = [*prompt, 9, 2]
        likely = int(model(text)[-1].argmax())
        second = int(model([*text, likely])[-1].argmax())
        draft = Draft([likely, 7, second, 8], [-1, -1, 0, 1])
        rows = [model([*text, *draft.tokens[path_to(draft, node)]])[-1] for node in range(-1, 4)]
        logits = torch.stack(rows)
        verified = rule([draft], logits, [request])  # type: ignore[operator]
        tokens = verified.verdicts[0].tokens.tolist()
        committed += len(tokens)
        got = logprobs_of(verified, [draft], logits, [request], top=3)

        forced = model([*text, *tokens])[len(text) - 1 : -1]
        raw = torch.log_softmax(forced.double(), dim=-1).numpy()
        np.testing.assert_allclose(got.raw, raw[np.arange(len(tokens)), tokens], atol=2e-5)
        for i, token in enumerate(tokens):
            row = scores(forced[i].numpy(), request, tokens[:i])
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
    inputs = [VerificationInput(SamplingParams(temperature=0), 0, [1])] * 2
    drafts = [Draft.empty()] * 2
    verified = match(drafts, logits, inputs)
    few = logprobs_of(verified, drafts, logits, inputs, top=2)
    for top in (3, 9, 40, 300):
        more = logprobs_of(verified, drafts, logits, inputs, top=top)
        np.testing.assert_array_equal(few.top_tokens, more.top_tokens[:, :2])


def test_a_top_larger_than_the_vocabulary() -> None:
    request, draft = VerificationInput(SamplingParams(), 0, [1]), Draft.empty()
    verified = match([draft], torch.zeros(1, 4), [request])
    with pytest.raises(InputError, match="top is 5; expected 0 to the vocabulary's 4"):
        logprobs_of(verified, [draft], torch.zeros(1, 4), [request], top=5)


PARAMS = (
    SamplingParams(),
    SamplingParams(temperature=0.7),
    SamplingParams(temperature=0),
    SamplingParams(temperature=1.3, top_p=0.9, top_k=40),
    SamplingParams(frequency_penalty=0.5, temperature=0.8),
    SamplingParams(min_tokens=1, max_tokens=20),
)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_core_and_torch_agree(dtype: torch.dtype) -> None:
    logits = (torch.randn(2 * len(PARAMS), 900, generator=torch.Generator().manual_seed(5)) * 3).to(
        dtype
    )
    inputs = [VerificationInput(params, seed, [1, 2]) for seed, params in enumerate(PARAMS)]
    for some in (inputs, inputs[:3]):
        rows = logits[: 2 * len(some)]
        drafts = [Draft.chain([int(row.argmax())]) for row in rows[::2]]
        verified = match(drafts, rows, some)
        found = logprobs_of(verified, drafts, rows, some, top=4)
        twin = logprobs_of(verified, drafts, rows, some, top=4, kernel="torch")
        for name in ("processed", "raw", "top_raw"):
            np.testing.assert_allclose(
                getattr(found, name), getattr(twin, name), rtol=0, atol=1e-13, err_msg=name
            )
        np.testing.assert_array_equal(found.top_tokens, twin.top_tokens)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_a_request_has_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    """Alone, beside others that request for other processors, and with drafts or without."""
    draw = torch.Generator().manual_seed(6)
    logits = (torch.randn(len(PARAMS), 49_152, generator=draw) * 3).to(dtype)
    inputs = [VerificationInput(params, seed, [1, 2]) for seed, params in enumerate(PARAMS)]
    none = [Draft.empty()] * len(inputs)
    together = logprobs_of(match(none, logits, inputs), none, logits, inputs, top=3)
    for i, request in enumerate(inputs):
        row = logits[i : i + 1]
        alone = logprobs_of(match(none[:1], row, [request]), none[:1], row, [request], top=3)
        drafted, rows = [Draft.chain([5])], torch.cat([row, row])
        verified = match(drafted, rows, [request])
        beside = logprobs_of(verified, drafted, rows, [request], top=3)
        for name in ("processed", "raw", "top_tokens", "top_raw"):
            bits = getattr(together, name)[i].tobytes()
            assert getattr(alone, name)[0].tobytes() == bits
            assert getattr(beside, name)[0].tobytes() == bits


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_the_likeliest_by_the_core_and_by_torch(dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(7)
    logits = torch.randint(-4, 4, (9, 400), generator=draw).to(dtype)
    logits[1, 3], logits[2, 399], logits[3], logits[4, 5:] = torch.nan, torch.inf, -torch.inf, -70
    for given in (logits, logits.t().contiguous().t(), logits.clone().requires_grad_()):
        for k in (1, 8, 400):
            found, twin = topk_of(given, k), topk_of(given, k, kernel="torch")
            assert found is not None and twin is not None
            np.testing.assert_array_equal(found.tokens, twin.tokens)
            np.testing.assert_allclose(found.logprobs, twin.logprobs, rtol=2e-7, atol=1e-6)
    assert topk_of(logits, 0) is None
    with pytest.raises(InputError, match="k is 401; expected 0 to the vocabulary's 400"):
        topk_of(logits, 401)
    with pytest.raises(InputError, match="kernel is 'triton'; expected core, torch"):
        topk_of(logits, 1, kernel="triton")  # type: ignore[arg-type]
