"""Rule match over a packed batch: a token is sampled after each text and node, paths are accepted.

On the CPU the core does all of it, and leaves out rows that no walk reaches. Elsewhere rows are
sampled where their logits are, by Triton kernels on a GPU or by torch, without a wait before the
one for what was chosen; the core walks the drafts along that. All have the same uniforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal

import numpy as np
from torch import Tensor

from foresay import _core
from foresay.arrays import sizes_of
from foresay.draft import Draft, DraftBatch
from foresay.sampling.acceptance import noise, processors
from foresay.sampling.acceptance import planned as planning
from foresay.sampling.acceptance.inputs import (
    best_for,
    checked,
    known_kernel,
    readable,
    refused,
    threads_of,
)
from foresay.sampling.acceptance.noise import Choice
from foresay.sampling.acceptance.rows import Longs, Rows
from foresay.sampling.acceptance.upload import download, upload
from foresay.sampling.acceptance.verdicts import Verified, failures_of, without
from foresay.sampling.noise import Stream
from foresay.sampling.verification import VerificationBatch, VerificationInput
from foresay.verdict import VerdictBatch

__all__ = ["Kernel", "chosen_on_device", "followed", "match"]

Kernel = Literal["core", "triton", "torch"]
DeviceKernel = planning.Kernel


def match(
    drafts: Sequence[Draft],
    logits: Tensor,
    inputs: Sequence[VerificationInput],
    *,
    kernel: Kernel | None = None,
    threads: int = 0,
    every_row: bool = False,
) -> Verified:
    """Accepts each drafted token that the target would have sampled, and adds the target's next.

    logits   [N + B, V], on any device: for each request its rows, after its text and each node
    kernel   what samples: by default the best one for the logits' device
    threads  of the core; 0: as many as torch uses
    every_row  let the core sample in all rows, also in those that no walk reaches. The verdicts
             are the same

    Raises: InputError for arguments that do not fit each other; invalid logits fail only their own
    request.
    """
    drafts, logits, inputs = checked(drafts, logits, inputs)
    refusals = refused(drafts, inputs, logits.shape[1])
    if refusals:
        rule = partial(match, kernel=kernel, threads=threads, every_row=every_row)
        return without(refusals, rule, drafts, logits, inputs)
    kernel = known_kernel(kernel or best_for(logits), logits, ("core", "triton", "torch"))
    if kernel != "core":
        return _on_the_device(drafts, logits, inputs, kernel)
    return _in_the_core(drafts, logits, inputs, threads_of(threads), every_row)


def _on_the_device(
    drafts: DraftBatch, logits: Tensor, inputs: VerificationBatch, kernel: DeviceKernel
) -> Verified:
    """All rows sampled where their logits are: one copy there, no wait, one copy back; the walks
    in the core."""
    codes = chosen_on_device(drafts, logits, inputs, kernel)
    _ = inputs.room, inputs.stops  # made while the device works, like all that the host has to
    return followed(download(codes), drafts, inputs)


def chosen_on_device(
    drafts: DraftBatch,
    logits: Tensor,
    inputs: VerificationBatch,
    kernel: DeviceKernel | None = None,
) -> Tensor:
    """What is sampled in each row: its token, or -1 - its status, int64[R] on the device. Does not
    wait. `kernel`: None is the best one for the device."""
    best = best_for(logits)
    kernel = kernel or ("torch" if best == "core" else best)
    rows = Rows.of(drafts)
    planned = planning.plan(rows, inputs, logits.shape[1])
    arrays = {
        **planned.arrays,
        "seeds": inputs.seeds.view(np.int64)[rows.request],
        "positions": inputs.positions[rows.request] + rows.depth,
    }
    sent = upload(arrays, logits.device)
    given = planning.scores(planned, logits, sent, kernel)
    choose: Callable[..., Choice] = noise.choose
    if kernel == "triton":  # imported only where it is used: it may not be installed
        from foresay.sampling.acceptance import triton

        choose = triton.choose
    choice = choose(given.values, given.temperatures, sent["seeds"], sent["positions"])
    codes: Tensor = choice.tokens - choice.status
    return codes


def followed(codes: Longs, drafts: DraftBatch, inputs: VerificationBatch) -> Verified:
    """The verdicts of the walks along what was chosen in each row (see `chosen_on_device`)."""
    owners, stops = inputs.stops
    tokens, offsets, path, path_offsets, places, status = _core.follow(
        codes,
        offsets=drafts.offsets,
        tokens=drafts.tokens,
        parents=drafts.parents,
        room=inputs.room,
        stop_owners=owners,
        stops=stops,
    )
    failures = failures_of(status, inputs) if status.any() else {}
    return Verified(VerdictBatch._trusted(tokens, offsets, path, path_offsets), failures, places)


def _in_the_core(
    drafts: DraftBatch, logits: Tensor, inputs: VerificationBatch, threads: int, every_row: bool
) -> Verified:
    """All of it in one call of the core, which samples only in the rows that a walk reaches; or in
    every row, and the walks in a call of their own."""
    if inputs.processed:
        given = processors.scores(logits, Rows.of(drafts), inputs)
        values, temperatures = given.values, given.temperatures.numpy()
    else:
        values, temperatures = logits, inputs.temperatures
        if len(drafts.tokens):
            temperatures = temperatures.repeat(sizes_of(drafts.offsets) + 1)
    owners, stops = inputs.stops
    if every_row:
        rows = Rows.of(drafts)
        chosen, _, status = _core.choose(
            readable(values.contiguous()),
            temperatures=temperatures,
            seeds=inputs.seeds[rows.request],
            positions=(inputs.positions[rows.request] + rows.depth).astype(np.uint32),
            stream=Stream.TARGET,
            threads=threads,
        )
        codes = chosen.astype(np.int64) - status
        return followed(codes, drafts, inputs)
    tokens, offsets, path, path_offsets, places, status = _core.match(
        readable(values.contiguous()),
        offsets=drafts.offsets,
        tokens=drafts.tokens,
        parents=drafts.parents,
        temperatures=temperatures,
        seeds=inputs.seeds,
        positions=inputs.positions,
        room=inputs.room,
        stop_owners=owners,
        stops=stops,
        stream=Stream.TARGET,
        threads=threads,
    )
    failures = failures_of(status, inputs) if status.any() else {}
    return Verified(VerdictBatch._trusted(tokens, offsets, path, path_offsets), failures, places)
