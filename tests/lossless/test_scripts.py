"""Random scripts: the readable rule equals plain decoding, and every wrong one is found."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from foresay.arrays import Floats
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError
from foresay.lossless.script_controls import CONTROLS
from foresay.lossless.scripts import SCHEDULES, Verified, Verify, reference_match, replay, run
from foresay.lossless.toy import DRAFTS, DraftPlan, Toy, plain, random_inputs
from foresay.sampling import SamplingParams, VerificationInput
from foresay.verdict import Verdict, VerdictBatch

QUICK = 120


def test_the_rule_equals_plain_decoding() -> None:
    seen: list[tuple[int, int]] = []
    result = run(reference_match, QUICK, progress=lambda done, of: seen.append((done, of)))
    assert result.differences == () and result.equal
    counts = result.counts
    assert seen == [(i + 1, QUICK) for i in range(QUICK)] and counts["scripts"] == QUICK
    # What was proved is not empty: most tokens had been drafted, and some requests failed.
    assert counts["accepted"] > counts["tokens"] / 3 and counts["failed"] > QUICK / 20
    assert counts["tokens"] > 20 * QUICK and counts["steps"] < counts["tokens"]


@pytest.mark.parametrize("name", CONTROLS)
def test_a_wrong_verification_is_found(name: str) -> None:
    verify, sentence = CONTROLS[name]
    result = run(verify, QUICK, enough=1)
    assert result.differences, f"not found in {result}: {sentence}"


def test_a_batch_of_verdicts_does_as_well() -> None:
    def packed(drafts: DraftBatch, logits: Floats, inputs: Sequence[VerificationInput]) -> Verified:
        verdicts, failures = reference_match(drafts, logits, inputs)
        return VerdictBatch.of(verdicts), failures

    assert run(packed, 8, seed=5) == run(reference_match, 8, seed=5)


def test_a_script_can_be_played_again() -> None:
    verify, _ = CONTROLS["room"]
    found = run(verify, 8, seed=3).differences[-1]
    expected = re.fullmatch(
        r"script (\d+), request \d+, token \d+: expected the end of the answer, got token \d+",
        found,
    )
    assert expected is not None
    assert found in replay(verify, int(expected[1]), 3).differences


def tampered(path: list[int] | None, tokens: list[int] | None) -> Verify:
    """Every verdict with a path of two nodes, with another path or other tokens."""

    def verify(drafts: DraftBatch, logits: Floats, inputs: Sequence[VerificationInput]) -> Verified:
        verdicts, failures = reference_match(drafts, logits, inputs)
        given = []
        for v in verdicts:
            other = np.array(v.path if path is None else path, np.int32)
            said = np.array(v.tokens if tokens is None else tokens, np.int32)
            given.append(Verdict._trusted(other, said) if len(v.path) == 2 else v)
        return given, failures

    return verify


@pytest.mark.parametrize(
    ("verify", "expected"),
    [
        (tampered([0], None), "2 nodes for 3 tokens"),
        (tampered([0, 99], None), "nodes 0 to"),
        (tampered([0, -1], None), "nodes 0 to"),
        (tampered([0, 0], None), "a path from the root"),
        (tampered(None, []), "token "),
    ],
)
def test_a_verdict_that_contradicts_itself_is_found(verify: Verify, expected: str) -> None:
    result = run(verify, 12)
    assert result.differences
    assert all(f": expected {expected}" in difference for difference in result.differences)


def test_a_verdict_is_due_to_every_request() -> None:
    def forgetful(
        drafts: DraftBatch, logits: Floats, inputs: Sequence[VerificationInput]
    ) -> Verified:
        return [], {}

    with pytest.raises(InputError, match="0 verdicts came back for"):
        run(forgetful, 1)


def test_scripts_are_varied() -> None:
    """Everything that a script can do is done in the first of them."""
    steps: list[tuple[DraftBatch, Sequence[VerificationInput]]] = []

    def watched(
        drafts: DraftBatch, logits: Floats, inputs: Sequence[VerificationInput]
    ) -> Verified:
        steps.append((drafts, inputs))
        return reference_match(drafts, logits, inputs)

    for index in range(0, 30 * SCHEDULES, SCHEDULES):
        replay(watched, index)
    params = [one.params for _, inputs in steps for one in inputs]
    for name in SamplingParams.__dataclass_fields__:
        # Scripts prove rule match, whoever decided what is drafted; worlds prove masked laws.
        if name not in ("logprobs", "rule", "speculative", "structured_outputs"):
            assert len({str(getattr(p, name)) for p in params}) > 1, name
    assert {len(inputs) for _, inputs in steps} >= set(range(1, 6))
    assert any(len({one.seed for one in inputs}) < len(inputs) for _, inputs in steps)
    drafts = [pair for step in steps for pair in zip(*step, strict=True)]
    assert any(len(d) == 0 for d, _ in drafts) and any(len(d) > one.room for d, one in drafts)
    assert any(set(d.tokens.tolist()) & set(one.stops) for d, one in drafts)


def test_the_rows_of_a_tree_are_the_rows_of_its_paths() -> None:
    toy, draft = Toy(16, 1), Draft([3, 5, 3, 7, 3], [-1, 0, -1, 1, -1])
    rows = toy.rows([1, 2], draft)
    for row, path in zip(rows, [[], [3], [3, 5], [3], [3, 5, 7], [3]], strict=True):
        np.testing.assert_array_equal(row, toy.logits([1, 2, *path]))
    np.testing.assert_array_equal(rows, Toy(16, 1).rows(np.array([1, 2], np.int32), draft))
    assert not np.array_equal(rows, Toy(16, 2).rows([1, 2], draft))


def test_a_toy_has_rows_of_all_kinds() -> None:
    pool = Toy(16, 0).pool
    assert pool.dtype == np.float32 and not np.isnan(pool).any() and np.isfinite(pool.max(1)).all()
    assert (pool == -np.inf).any()
    top = np.sort(pool, axis=1)[:, -2:]
    assert (top[:, 0] == top[:, 1]).any() and (top[:, 1] - top[:, 0] > 15).any()
    bad = Toy(16, 0, bad=0.5).pool
    assert np.isnan(bad).any() and (bad == np.inf).any() and (bad == -np.inf).all(axis=1).any()
    same = (bad == pool) | np.isnan(bad)
    assert 0.4 < same.all(axis=1).mean() < 0.9  # the other rows are as before
    near = Toy(16, 0, disturbed=0.1).pool
    finite = np.isfinite(pool)
    np.testing.assert_array_equal(finite, np.isfinite(near))
    assert 0 < np.abs(near[finite] - pool[finite]).max() < 1
    with pytest.raises(InputError, match="at least 4"):
        Toy(3, 0)


def test_plain_decoding_ends_where_it_should() -> None:
    toy, prompt = Toy(16, 3), np.array([1, 2], np.int32)
    request = VerificationInput(SamplingParams(max_tokens=12), 7, prompt)
    whole = plain(toy.logits, request)
    assert len(whole.tokens) == 12 and whole.error is None
    rest = plain(toy.logits, replace(request, output=list(whole.tokens[:5])))
    assert rest.tokens == whole.tokens[5:]
    stop = whole.tokens[6]
    ended = plain(toy.logits, replace(request, stops=(stop,)))
    assert ended.tokens == whole.tokens[: whole.tokens.index(stop) + 1]
    failed = plain(Toy(16, 3, bad=1.0).logits, request)
    assert failed.tokens == () and "position 2" in str(failed.error)


def test_every_drafter_makes_trees() -> None:
    rng, alike = random.Random(0), Toy(16, 4, disturbed=0.3)
    for drafter in DRAFTS:
        for request in random_inputs(rng, 16) + random_inputs(rng, 16):
            for rest in ((), (3, 1, 4, 1, 5)):
                draft = Draft(*drafter(rng, DraftPlan(request, rest, alike)))
                assert not len(draft) or int(draft.tokens.max()) < 16
