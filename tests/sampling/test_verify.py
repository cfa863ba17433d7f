"""Both rules, in their readable and their batched form, over one table of cases."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import pytest
import torch

from foresay import Draft, DraftBatch, Verdict
from foresay.arrays import Floats
from foresay.errors import ForesayError, InputError, LogitsError
from foresay.lossless.toy import DRAFTS, DraftPlan, Toy, random_inputs
from foresay.sampling import SamplingParams, VerificationBatch, VerificationInput, reference
from foresay.sampling.acceptance.match import match
from foresay.sampling.acceptance.rejection import rejection
from foresay.sampling.acceptance.verdicts import Verified
from foresay.sampling.acceptance.verify import verify
from sampling.cases import Case, one_input, random_input, random_rows, sampled_draft, table

CASES = table()
RULES: dict[str, Any] = {"match": match, "rejection": rejection}


def one_by_one(case: Case, rule: str) -> list[Verdict | ForesayError]:
    results: list[Verdict | ForesayError] = []
    for draft, logits, asked in zip(case.drafts, case.logits, case.inputs, strict=True):
        try:
            results.append(getattr(reference, rule)(draft, logits, asked))
        except ForesayError as error:
            results.append(error)
    return results


def packed(case: Case) -> torch.Tensor:
    width = case.logits[0].shape[1] if case.logits else 5
    return torch.from_numpy(np.concatenate([np.empty((0, width), np.float32), *case.logits]))


def assert_alike(verified: Verified, expected: list[Verdict | ForesayError]) -> None:
    assert len(verified.verdicts) == len(expected)
    for i, (verdict, wanted) in enumerate(zip(verified.verdicts, expected, strict=True)):
        if isinstance(wanted, ForesayError):
            assert type(verified.failures[i]) is type(wanted)
            assert str(verified.failures[i]) == str(wanted)
            assert not len(verdict.tokens) and not len(verdict.path)
        else:
            assert i not in verified.failures
            assert verdict == wanted


@pytest.mark.parametrize("rule", ["match", "rejection"])
@pytest.mark.parametrize("kernel", ["core", "torch"])
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_chosen_drafts(case: Case, kernel: Any, rule: str) -> None:
    logits = packed(case)
    before, expected = logits.clone(), one_by_one(case, rule)
    verified = RULES[rule](case.drafts, logits, case.inputs, kernel=kernel)
    assert_alike(verified, expected)
    assert {i for i, e in enumerate(expected) if isinstance(e, ForesayError)} >= case.failing
    assert torch.equal(logits.nan_to_num(7), before.nan_to_num(7)), "the logits were written to"


@pytest.mark.parametrize("kernel", ["core", "torch"])
@pytest.mark.parametrize("seed", range(40))
def test_rejection_of_sampled_drafts(seed: int, kernel: Literal["core", "torch"]) -> None:
    rng = np.random.default_rng(seed)
    vocabulary = int(rng.choice([1, 2, 4, 12, 300]))
    drafts = [sampled_draft(rng, vocabulary, bool(seed % 2)) for _ in range(6)]
    logits = [random_rows(rng, len(d) + 1, vocabulary) for d in drafts]
    inputs = [random_input(rng, vocabulary) for _ in drafts]
    if seed % 4 == 0:  # p == q in every row that is tried first
        for draft, rows in zip(drafts, logits, strict=True):
            assert draft.probs is not None
            with np.errstate(divide="ignore"):
                rows[:] = 0
                rows[draft.parents + 1] = np.log(draft.probs)
    if seed % 3 == 0:  # weights that do not sum to 1 are the probs that they are proportional to
        drafts = [Draft(d.tokens, d.parents, probs=d.probs * np.float32(3)) for d in drafts]
    case = Case("sampled", drafts, logits, inputs)
    verified = rejection(drafts, packed(case), inputs, kernel=kernel)
    assert_alike(verified, one_by_one(case, "rejection"))


@pytest.mark.parametrize("kernel", ["core", "torch"])
def test_logits_are_judged_after_the_division(kernel: Literal["core", "torch"]) -> None:
    drafts = [Draft.chain([1])] * 3
    logits = [np.full((2, 4), value, np.float32) for value in (3e38, -3e38, 1)]
    inputs = [one_input(seed, temperature=1e-3) for seed in range(3)]
    case = Case("too large when divided", drafts, logits, inputs)
    verified = rejection(drafts, packed(case), inputs, kernel=kernel)
    assert list(verified.failures) == [0, 1]
    assert_alike(verified, one_by_one(case, "rejection"))


@pytest.mark.parametrize("kernel", ["core", "torch"])
def test_invalid_probs_fail_their_request_alone(kernel: Literal["core", "torch"]) -> None:
    good = np.full((2, 5), 0.2, np.float32)
    drafts, bad = [], [("zero", 0.0), ("negative", -0.1), ("nan", np.nan), ("inf", np.inf)]
    for _, value in bad:
        probs = good.copy()
        probs[0, 3] = value
        drafts += [Draft.chain([3, 1], probs=good), Draft.chain([3, 1], probs=probs)]
    logits = [np.zeros((3, 5), np.float32)] * len(drafts)
    inputs = [one_input(seed) for seed in range(len(drafts))]
    verified = rejection(drafts, torch.zeros(3 * len(drafts), 5), inputs, kernel=kernel)
    assert list(verified.failures) == [1, 3, 5, 7]
    expected = one_by_one(Case("bad probs", drafts, logits, inputs), "rejection")
    for i, wanted in enumerate(expected):
        if isinstance(wanted, ForesayError):
            assert isinstance(verified.failures[i], InputError) and isinstance(wanted, InputError)
        else:
            assert verified.verdicts[i] == wanted


def test_arguments_that_do_not_fit() -> None:
    one = [VerificationInput(SamplingParams(), 0, [1])]
    rows = torch.zeros(2, 5)
    wrong: list[tuple[list[Draft], torch.Tensor, list[VerificationInput], str]] = [
        ([Draft.chain([1])], rows, [], "there are 1 drafts and 0 inputs"),
        ([Draft.chain([1])], torch.zeros(3, 5), one, "1 requests with 1 nodes need 2 rows"),
        ([Draft.chain([1])], torch.zeros(2, 5, dtype=torch.int64), one, "rows of floats"),
        ([Draft.chain([1])], torch.zeros(2, 0), one, "expected at least 1"),
        (
            [Draft.chain([1], probs=np.ones((1, 4), np.float32))],
            rows,
            one,
            r"probs have shape \(1, 4\); expected \(1, 5\)",
        ),
    ]
    for drafts, logits, inputs, sentence in wrong:
        for rule in (match, rejection):
            with pytest.raises(InputError, match=sentence):
                rule(drafts, logits, inputs)


def test_batches_are_taken_as_they_are() -> None:
    drafts, inputs = [Draft.chain([1, 2])] * 2, [one_input(seed) for seed in range(2)]
    logits = torch.randn(6, 9, generator=torch.Generator().manual_seed(0))
    packed_up = match(DraftBatch.of(drafts), logits, VerificationBatch.of(inputs))
    assert packed_up.verdicts == match(drafts, logits, inputs).verdicts
    assert (
        VerificationBatch.of(inputs)[1] is inputs[1] and len(VerificationBatch.of(inputs)[:1]) == 1
    )


def test_what_is_left_of_probs() -> None:
    p, q = [0.5, 0.25, 0.25], [0.25, 0.5, 0.25]
    assert reference.residual(p, q) == [1, 0, 0]
    assert reference.residual(p, p) == p, "nothing is left: p itself"
    assert reference.without(p, 0) == [0, 0.5, 0.5]
    assert reference.without([0.0, 1.0], 1) == [0.0, 1.0]


def test_a_kernel_that_is_none() -> None:
    asked, logits = [one_input()], torch.zeros(1, 5)
    with pytest.raises(InputError, match="kernel is 'Triton'; expected core, triton, torch"):
        match([Draft.empty()], logits, asked, kernel="Triton")  # type: ignore[arg-type]
    with pytest.raises(InputError, match="kernel is 'numpy'; expected core, triton, torch"):
        rejection([Draft.empty()], logits, asked, kernel="numpy")  # type: ignore[arg-type]
    with pytest.raises(
        InputError, match="logits are on meta; kernel 'core' reads those on the cpu"
    ):
        match([Draft.empty()], logits.to("meta"), asked, kernel="core")


def test_many_requests_with_many_biases() -> None:
    rng = np.random.default_rng(0)
    inputs = []
    for i in range(40):
        bias = {int(token): float(rng.normal()) for token in rng.permutation(30)[:9]}
        inputs.append(VerificationInput(SamplingParams(logit_bias=bias, stop=[i % 30]), i, [1]))
    case = Case("biased", [Draft.chain([1, 2])] * 40, [random_rows(rng, 3, 30)] * 40, inputs)
    assert_alike(match(case.drafts, packed(case), inputs), one_by_one(case, "match"))


@pytest.mark.parametrize("rule", [match, rejection])
def test_token_ids_beyond_the_vocabulary_fail_their_request_alone(rule: Any) -> None:
    good, draft = one_input(5), Draft.chain([1, 2])
    drafts = [draft, Draft.chain([1, 5]), draft, draft, draft]
    inputs = [
        good,
        one_input(6),
        VerificationInput(SamplingParams(repetition_penalty=2.0), 7, [9], [1]),
        one_input(8, logit_bias={5: 1.0}),
        good,
    ]
    logits = torch.randn(15, 5, generator=torch.Generator().manual_seed(0))
    logits[9] = torch.nan  # the fourth's own failure comes later than its refusal
    verified = rule(drafts, logits, inputs)
    assert {i: str(error) for i, error in verified.failures.items()} == {
        1: "the draft has token 5; the logits have 5 columns",
        2: "the text has token 9; the logits have 5 columns",
        3: "logit_bias names token 5; the logits have 5 columns",
    }
    for i, rows in ((0, logits[:3]), (4, logits[12:])):
        alone = rule([drafts[i]], rows, [inputs[i]])
        assert verified.verdicts[i] == alone.verdicts[0]
        start = int(verified.verdicts.offsets[i])
        own = verified.rows[start : start + len(alone.rows)]
        np.testing.assert_array_equal(own, alone.rows + 3 * i)
    bad = logits.clone()
    bad[12] = torch.nan
    failures = rule(drafts, bad, inputs).failures
    assert list(failures) == [1, 2, 3, 4] and str(failures[4]).startswith("the logits")


def test_logits_with_gradients_and_what_is_no_tensor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    drafts, inputs = [Draft.chain([1])], [one_input()]
    rules: list[Any] = [match, rejection]
    for rule in rules:
        rule(drafts, torch.zeros(2, 5, requires_grad=True), inputs)
        for wrong in (np.zeros((2, 5), np.float32), None, torch.zeros(2, 5).to_sparse()):
            with pytest.raises(InputError, match="expected a dense torch tensor"):
                rule(drafts, wrong, inputs)
        with pytest.raises(InputError, match="expected lists of them"):
            rule(drafts[0], torch.zeros(2, 5), inputs[0])
        with pytest.raises(InputError, match="threads is -1; expected 0 to 256"):
            rule(drafts, torch.zeros(2, 5), inputs, threads=-1)
    with pytest.raises(InputError, match="kernel 'triton' reads those on cuda"):
        match(drafts, torch.zeros(2, 5), inputs, kernel="triton")


@pytest.mark.parametrize("kernel", ["core", "torch"])
@pytest.mark.parametrize(("dtype", "scale"), [(torch.float64, 1e6), (torch.bfloat16, 1)])
def test_logits_of_other_precision_are_those_of_float32(
    kernel: Any, dtype: torch.dtype, scale: float
) -> None:
    """At 1e6 float64 and float32 differ in whole units."""
    rng = np.random.default_rng(0)
    logits = torch.from_numpy(rng.normal(size=(30, 40)) * scale).to(dtype)
    drafts, inputs = [Draft.chain([1, 2])] * 10, [one_input(seed, top_k=30) for seed in range(10)]
    for rule in RULES.values():
        short = rule(drafts, logits.float(), inputs, kernel=kernel)
        assert rule(drafts, logits, inputs, kernel=kernel).verdicts == short.verdicts


def test_each_request_is_verified_by_its_own_rule() -> None:
    """Both rules, sampled and chosen, in one batch: each verdict is that of the readable rule."""
    rng, toy = random.Random(5), Toy(12, 1, bad=0.05)
    for _ in range(30):
        inputs, drafts, logits = list[VerificationInput](), list[Draft](), list[Floats]()
        draft_probs: dict[int, Floats] = {}
        for asked in random_inputs(rng, toy.vocabulary):
            rule: Literal["match", "rejection"] = rng.choice(["match", "rejection"])
            one = replace(asked, params=replace(asked.params, rule=rule))
            tokens, parents = DRAFTS[rng.randrange(6)](rng, DraftPlan(one, (1, 2, 3), toy))
            draft = Draft(tokens, parents)
            if rule == "rejection" and len(draft) and rng.random() < 0.5:
                some = np.random.default_rng(rng.randrange(99))
                probs = some.dirichlet(np.ones(toy.vocabulary), len(draft))
                draft_probs[len(inputs)] = probs.astype(np.float32)
            inputs.append(one)
            drafts.append(draft)
            logits.append(toy.rows(np.asarray(one.prompt), draft))
        batch, rows = DraftBatch.of(drafts), np.concatenate(logits)
        found = verify(batch, torch.from_numpy(rows), VerificationBatch.of(inputs), draft_probs)
        begin = 0
        for at, (one, draft, own) in enumerate(zip(inputs, drafts, logits, strict=True)):
            rule_of = reference.match if one.params.rule == "match" else reference.rejection
            sampled = Draft(draft.tokens, draft.parents, None, draft_probs.get(at))
            try:
                expected = rule_of(sampled, own, one)
            except LogitsError as error:
                assert str(found.failures[at]) == str(error)
                assert not len(found.verdicts[at].tokens)
                begin += len(own)
                continue
            assert at not in found.failures
            assert found.verdicts[at] == expected
            nodes = [-1, *expected.path.tolist()][: len(expected.tokens)]
            place = slice(found.verdicts.offsets[at], found.verdicts.offsets[at + 1])
            assert found.rows[place].tolist() == [begin + node + 1 for node in nodes]
            begin += len(own)
