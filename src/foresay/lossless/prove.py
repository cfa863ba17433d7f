"""The whole proof, as a list of checks: what must be equal is, and what is wrong is found.

    exact     every outcome of small worlds with rational numbers, compared with ==
    scripts   equality with plain decoding over random drafts, batches, preemptions, stops
    engine    the whole engine likewise: stop strings, both rules in one batch, log probabilities
    sampled   the batched code and the keyed noise put to statistical tests
    wrong     every wrong rule must be found by the layer that is there to find it

Mutates: nothing. Valid until: for ever. Raises: nothing; what a check raises is its failure, but
for KeyboardInterrupt. GIL: held but for torch's own work.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import torch

from foresay import _core
from foresay.draft import DraftBatch
from foresay.lossless import Check, exact, noise_quality, sampled, scripts
from foresay.lossless.engine_controls import ENGINE_CONTROLS
from foresay.lossless.engine_scripts import run_engine
from foresay.lossless.schemes import RIGHT
from foresay.lossless.script_controls import CONTROLS
from foresay.lossless.wrong import WRONG
from foresay.sampling.acceptance.match import Kernel, match
from foresay.sampling.verification import VerificationInput

__all__ = ["FULL", "QUICK", "Effort", "batched_match", "prove"]

Progress: TypeAlias = Callable[[str, float], None]


@dataclass(frozen=True)
class Effort:
    """How much is tried; what a proof with less of it would have found is stated in its lines."""

    cases: int
    wrong_cases: int
    scripts: int
    engine: int
    total_variation: float
    noise: float


FULL = Effort(1000, wrong_cases=60, scripts=2000, engine=400, total_variation=0.005, noise=1.0)
QUICK = Effort(40, wrong_cases=60, scripts=200, engine=40, total_variation=0.03, noise=0.002)


def prove(
    effort: Effort = FULL, seed: int = 0, progress: Progress | None = None
) -> Iterator[Check]:
    """The checks, one after the other as they are done; `progress` is called with the name of what
    runs and the part of it that is done."""
    report: Progress = progress or (lambda name, done: None)
    for layer in (_exact, _scripts, _engine, _sampled, _noise):
        before = time.perf_counter()
        try:
            for check in layer(effort, seed, report):
                yield replace(check, seconds=time.perf_counter() - before)
                before = time.perf_counter()
        except Exception as error:  # ends the layer, and is a failed check
            result, seconds = exact.message_of(error), time.perf_counter() - before
            yield Check("error", "a layer of the proof", False, result, seconds)


def _exact(effort: Effort, seed: int, report: Progress) -> Iterator[Check]:
    total = len(RIGHT) * effort.cases + len(WRONG) * effort.wrong_cases
    done = 0

    def advance(cases: int) -> None:
        nonlocal done
        done += cases
        report("exact", done / total)

    for name, result in exact.run_many(list(RIGHT), effort.cases, seed, 2, advance).items():
        yield Check("exact", name, result.exact, str(result))
    for name, result in exact.run_many(list(WRONG), effort.wrong_cases, seed, 2, advance).items():
        found = f"found in {result.differences} of {result.cases} cases: {WRONG[name].says}"
        yield Check("wrong", name, result.differences > 0 and not result.errors, found)


def _scripts(effort: Effort, seed: int, report: Progress) -> Iterator[Check]:
    subjects: list[tuple[str, scripts.Verify, int]] = [
        ("match, readable", scripts.reference_match, effort.scripts // 10),
        ("match, batched, core", batched_match("core"), effort.scripts),
        ("match, batched, torch", batched_match("torch"), effort.scripts // 8),
    ]
    for name, verify, number in subjects:
        result = scripts.run(verify, number, seed, _stage(report, name))
        yield Check("scripts", name, result.equal, str(result))
    for name, (verify, says) in CONTROLS.items():
        yield _found(name, scripts.run(verify, 200, seed, enough=1), says)


def _engine(effort: Effort, seed: int, report: Progress) -> Iterator[Check]:
    result = run_engine(effort.engine, seed, progress=_stage(report, "engine"))
    yield Check("engine", "the whole engine", result.equal, str(result))
    for name, (wrong, says) in ENGINE_CONTROLS.items():
        yield _found(name, run_engine(40, seed, enough=1, **wrong), says)


def _found(name: str, result: scripts.ScriptsResult, says: str) -> Check:
    ok = bool(result.differences)
    found = "found after" if ok else "not found in"
    return Check("wrong", name, ok, f"{found} {result.counts['scripts']} scripts: {says}")


def _sampled(effort: Effort, seed: int, report: Progress) -> Iterator[Check]:
    family = len(sampled.SUBJECTS)
    for done, (name, subject) in enumerate(sampled.SUBJECTS.items()):
        report("sampled", done / family)
        outcome = sampled.test(subject, effort.total_variation, seed, family)
        yield Check("sampled", name, outcome.equal, str(outcome), kind="test")
    for name, subject in sampled.WRONG_SUBJECTS.items():
        outcome = sampled.test(subject, 0.02, seed)
        yield Check("wrong", name, not outcome.equal, str(outcome))


def _noise(effort: Effort, seed: int, report: Progress) -> Iterator[Check]:
    for check in noise_quality.noise_quality(_core_sampler, effort=effort.noise, seed=seed):
        result = f"p = {check.p_value:.2g} from {check.n} draws"
        yield Check("sampled", f"noise: {check.name}", check.ok, result, kind="test")
    for name, (sampler, finder, says) in noise_quality.NOISE_CONTROLS.items():
        found = noise_quality.choices(sampler, effort=1.0, seed=seed, only=finder)
        ok = any(not check.ok for check in found)
        result = ", ".join(f"p = {check.p_value:.2g}" for check in found)
        result = f"{'found' if ok else 'not found'} with {result}: {says}"
        yield Check("wrong", f"noise: {name}", ok, result)


def batched_match(kernel: Kernel) -> scripts.Verify:
    """`acceptance.match` as the scripts call it. In half of the steps the core first chooses from
    every row and then walks, as on other devices: both are tried.
    """

    def verify(drafts: DraftBatch, logits: Any, inputs: Sequence[VerificationInput]) -> Any:
        rows = torch.from_numpy(logits)
        every_row = len(rows) % 2 == 0  # half of the steps, the same in every run
        verified = match(drafts, rows, inputs, kernel=kernel, threads=1, every_row=every_row)
        return verified.verdicts, verified.failures

    return verify


def _core_sampler(logits: Any, seeds: Any, positions: Any) -> Any:
    rows = len(logits)
    return _core.choose(
        np.ascontiguousarray(logits),
        temperatures=np.ones(rows, np.float32),
        seeds=seeds,
        positions=np.asarray(positions).astype(np.uint32),
        stream=0,
        threads=torch.get_num_threads(),
    )[0]


def _stage(report: Progress, name: str) -> Callable[[int, int], None]:
    return lambda done, total: report(name, done / total)
