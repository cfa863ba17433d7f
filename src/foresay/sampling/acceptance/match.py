"""Rule match over a packed batch: a token is sampled after each text and node, paths are accepted.

On the CPU the core does all of it, and leaves out rows that no walk reaches. Elsewhere rows are
sampled where their logits are, by the Triton kernel on a GPU or by torch, and the paths are found
here. All have the same uniforms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from importlib.util import find_spec
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay import _core
from foresay.arrays import sizes_of
from foresay.draft import Draft, DraftBatch
from foresay.sampling.acceptance import noise, processors
from foresay.sampling.acceptance.inputs import checked, known_kernel, readable, refused, threads_of
from foresay.sampling.acceptance.noise import Choice
from foresay.sampling.acceptance.rows import Longs, Rows
from foresay.sampling.acceptance.verdicts import Verified, failures_of, one_each, verdicts, without
from foresay.sampling.noise import Stream
from foresay.sampling.processors import RowStatus
from foresay.sampling.verification import VerificationBatch, VerificationInput
from foresay.verdict import VerdictBatch

__all__ = ["Kernel", "match"]

Kernel = Literal["core", "triton", "torch"]


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
    every_row  let the core sample in all rows, also in those that no walk reaches, and find the
             paths here. The verdicts are the same

    Raises: InputError for arguments that do not fit each other; invalid logits fail only their own
    request.
    """
    drafts, logits, inputs = checked(drafts, logits, inputs)
    refusals = refused(drafts, inputs, logits.shape[1])
    if refusals:
        rule = partial(match, kernel=kernel, threads=threads, every_row=every_row)
        return without(refusals, rule, drafts, logits, inputs)
    kernel = known_kernel(kernel or _best_for(logits), logits, ("core", "triton", "torch"))
    if kernel == "core" and not every_row:
        return _in_the_core(drafts, logits, inputs, threads)
    rows = Rows.of(drafts)
    given = processors.scores(logits, rows, inputs)
    chosen, status = _choose(given, rows, inputs, kernel, threads)

    failures = failures_of(status[rows.starts[:-1]], inputs)
    if not len(drafts.tokens):
        return one_each(chosen, failures)

    # A row is reached if its parent is, and chose its token.
    agrees, reached = _agrees(rows, chosen), rows.parent < 0
    for _ in range(int(rows.depth.max(initial=0))):
        reached = reached | (agrees & reached[rows.parent] & (rows.parent >= 0))
    ends = reached & (status == RowStatus.GOOD)

    # Of the rows where a walk can end the deepest; of equals (below equal siblings) the first.
    last = rows.starts[:-1].copy()
    order = np.lexsort((-np.arange(len(rows)), rows.depth))
    order = order[ends[order]]
    last[rows.request[order]] = order  # of several writes the last one stays
    return verdicts(rows, inputs, last, chosen[last], failures)


def _in_the_core(
    drafts: DraftBatch, logits: Tensor, inputs: VerificationBatch, threads: int
) -> Verified:
    """All of it in one call of the core, which samples only in the rows that a walk reaches."""
    if inputs.processed:
        given = processors.scores(logits, Rows.of(drafts), inputs)
        values, temperatures = given.values, given.temperatures.numpy()
    else:
        values, temperatures = logits, inputs.temperatures
        if len(drafts.tokens):
            temperatures = temperatures.repeat(sizes_of(drafts.offsets) + 1)
    owners, stops = inputs.stops
    tokens, offsets, path, path_offsets, rows, status = _core.match(
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
        threads=threads_of(threads),
    )
    failures = failures_of(status, inputs) if status.any() else {}
    return Verified(VerdictBatch._trusted(tokens, offsets, path, path_offsets), failures, rows)


def _agrees(rows: Rows, chosen: Longs) -> NDArray[np.bool_]:
    """Whether the row's parent chose its token; a row without a parent agrees."""
    found: NDArray[np.bool_] = (rows.parent < 0) | (chosen[rows.parent] == rows.token)
    return found


def _best_for(logits: Tensor) -> Kernel:
    if logits.device.type == "cpu":
        return "core"
    return "triton" if logits.device.type == "cuda" and find_spec("triton") else "torch"


def _choose(
    given: processors.Scores,
    rows: Rows,
    inputs: VerificationBatch,
    kernel: Kernel,
    threads: int,
) -> tuple[Longs, NDArray[np.uint8]]:
    """The token of each row, and the row's status, by the kernel of that name."""
    seeds, positions = inputs.seeds[rows.request], inputs.positions[rows.request] + rows.depth
    if kernel == "core":
        chosen, _, status = _core.choose(
            readable(given.values.contiguous()),
            temperatures=given.temperatures.numpy(),
            seeds=seeds,
            positions=positions.astype(np.uint32),
            stream=Stream.TARGET,
            threads=threads_of(threads),
        )
        return chosen.astype(np.int64), status
    choose: Callable[..., Choice] = noise.choose
    if kernel == "triton":  # imported only where it is used: it may not be installed
        from foresay.sampling.acceptance import triton

        choose = triton.choose
    device = given.values.device
    choice = choose(
        given.values,
        given.temperatures,
        torch.as_tensor(seeds.view(np.int64), device=device),
        torch.as_tensor(positions, device=device),
    )
    return choice.tokens.cpu().numpy(), choice.status.cpu().numpy()
