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
from foresay.lossless import exact, noise_quality, sampled, scripts
from foresay.lossless.check import Check
from foresay.lossless.engine_controls import ENGINE_CONTROLS
from foresay.lossless.engine_scripts import run_engine
from foresay.lossless.schemes import RIGHT
from foresay.lossless.script_controls import CONTROLS
from foresay.lossless.wrong import WRONG
from foresay.sampling.acceptance.match import Kernel, match
from foresay.sampling.ask import Ask

__all__ = ["FULL", "QUICK", "Check", "Effort", "batched_match", "prove"]

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
    """The checks, one after the other as they are done."""
    yield from _timed(_exact(effort, seed, progress))
    yield from _timed(_scripts(effort, seed, progress))
    yield from _timed(_engine(effort, seed, progress))
    yield from _timed(_sampled(effort, seed, progress))
    yield from _timed(_noise(effort, seed))


def _timed(checks: Iterator[Check]) -> Iterator[Check]:
    """The checks with their times; what a layer raises ends it, and is a failed check."""
    before = time.perf_counter()
    try:
        for check in checks:
            yield replace(check, seconds=time.perf_counter() - before)
            before = time.perf_counter()
    except Exception as error:
        said = f"{type(error).__name__}: {error}"
        yield Check("error", "a layer of the proof", False, said, time.perf_counter() - before)


def _exact(effort: Effort, seed: int, progress: Progress | None) -> Iterator[Check]:
    total = len(RIGHT) * effort.cases + len(WRONG) * effort.wrong_cases
    done = 0

    def advance(_: str, cases: int) -> None:
        nonlocal done
        done += cases
        if progress is not None:
            progress("exact", done / total)

    for name, result in exact.run_many(list(RIGHT), effort.cases, seed, 2, advance).items():
        said = f"{result.differences} differences in {result.cases} cases"
        if result.errors:
            said += f", {result.errors} errors, the first: {result.first_error}"
        elif result.worst is not None:
            said += f", the worst of total variation {float(result.worst.total_variation):.4f}"
        yield Check("exact", name, result.exact, said)
    for name, result in exact.run_many(list(WRONG), effort.wrong_cases, seed, 2, advance).items():
        ok = result.differences > 0 and not result.errors
        said = f"found in {result.differences} of {result.cases} cases"
        yield Check("wrong", name, ok, f"{said}: {WRONG[name].says}")


def _scripts(effort: Effort, seed: int, progress: Progress | None) -> Iterator[Check]:
    subjects: list[tuple[str, scripts.Verify, int]] = [
        ("match, readable", scripts.reference_match, effort.scripts // 10),
        ("match, batched, core", batched_match("core"), effort.scripts),
        ("match, batched, torch", batched_match("torch"), effort.scripts // 8),
    ]
    for name, verify, number in subjects:
        result = scripts.run(verify, number, seed, _stage(progress, name))
        said = (
            f"{len(result.differences)} differences in {result.tokens} tokens of {result.scripts} "
            f"scripts, {result.accepted} of them drafted"
        )
        if result.differences:
            said += f"; the first: {result.differences[0]}"
        yield Check("scripts", name, not result.differences and result.accepted > 0, said)
    for name, (verify, says) in CONTROLS.items():
        found = scripts.run(verify, 200, seed, enough=1)
        ok = bool(found.differences)
        said = f"found after {found.scripts} scripts" if ok else f"not found in {found.scripts}"
        yield Check("wrong", name, ok, f"{said}: {says}")


def _engine(effort: Effort, seed: int, progress: Progress | None) -> Iterator[Check]:
    found = run_engine(effort.engine, seed, progress=_stage(progress, "engine"))
    said = (
        f"{len(found.differences)} differences in {found.tokens} tokens of {found.scripts} "
        f"scripts, {found.stopped} answers ended by stop strings, {found.mixed} steps of both "
        f"rules, {found.logprobs} log probabilities, {found.preempted} preemptions"
    )
    if found.differences:
        said += f"; the first: {found.differences[0]}"
    yield Check("engine", "the whole engine", not found.differences and found.complete, said)
    for name, (run, says) in ENGINE_CONTROLS.items():
        wrong = run(40, seed, enough=1)
        ok = bool(wrong.differences)
        said = f"found after {wrong.scripts} scripts" if ok else f"not found in {wrong.scripts}"
        yield Check("wrong", name, ok, f"{said}: {says}")


def _sampled(effort: Effort, seed: int, progress: Progress | None) -> Iterator[Check]:
    family = len(sampled.SUBJECTS)
    for done, (name, subject) in enumerate(sampled.SUBJECTS.items()):
        if progress is not None:
            progress("sampled", done / family)
        outcome = sampled.test(subject, effort.total_variation, seed, family)
        yield Check("sampled", name, outcome.equal, str(outcome), kind="test")
    for name, subject in sampled.WRONG_SUBJECTS.items():
        outcome = sampled.test(subject, 0.02, seed)
        yield Check("wrong", name, not outcome.equal, str(outcome))


def _noise(effort: Effort, seed: int) -> Iterator[Check]:
    for check in noise_quality.noise_quality(_core_sampler, effort=effort.noise, seed=seed):
        said = f"p = {check.p_value:.2g} from {check.n} draws"
        yield Check("sampled", f"noise: {check.name}", check.ok, said, kind="test")
    for name, (sampler, finder, says) in noise_quality.NOISE_CONTROLS.items():
        found = noise_quality.choices(sampler, effort=1.0, seed=seed, only=finder)
        ok = any(not check.ok for check in found)
        said = ", ".join(f"p = {check.p_value:.2g}" for check in found)
        said = f"{'found' if ok else 'not found'} with {said}: {says}"
        yield Check("wrong", f"noise: {name}", ok, said)


def batched_match(kernel: Kernel) -> scripts.Verify:
    """`acceptance.match` as the scripts call it. In half of the steps the core only chooses, from
    every row, and the paths are found over arrays as on other devices: both are tried.
    """

    def verify(drafts: DraftBatch, logits: Any, asks: Sequence[Ask]) -> Any:
        rows = torch.from_numpy(logits)
        every_row = len(rows) % 2 == 0  # half of the steps, the same in every run
        verified = match(drafts, rows, asks, kernel=kernel, threads=1, every_row=every_row)
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


def _stage(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    return None if progress is None else lambda done, total: progress(name, done / total)
