"""The logits processors over many rows, in torch: the twin of `sampling/processors.py`.

Rows that need nothing but a temperature are left as they are and divided where the noise is
added, so that plain sampling does not copy its logits.

Mutates: nothing; the scores may be the logits themselves. Valid until: the logits are written to.
Raises: nothing. GIL: held but for torch's own work.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.sampling.acceptance.masks import forbid, masks_of
from foresay.sampling.acceptance.rows import Longs, Rows
from foresay.sampling.processors import parts
from foresay.sampling.verification import VerificationBatch

__all__ = ["Scores", "scores", "unnormalised_softmax"]

_FIRST_TRY = 1024
"""So many likely tokens are sorted to find top-p, and all of them where these do not suffice."""


class Scores(NamedTuple):
    """Processed logits but for a division by the temperature, which is 0 for greedy rows."""

    values: Tensor  # [R, V], or more rows than R; in float32 where they are not the logits
    temperatures: Tensor  # float32 [R]
    places: Longs | None = None  # [R] where in the values each row is; None: they are in order


def scores(
    logits: Tensor,
    rows: Rows,
    inputs: VerificationBatch,
    which: Longs | None = None,
    *,
    gather: bool = True,
) -> Scores:
    """The scores of the rows `which` (of all, if None). A bad row stays bad in the same way.

    gather   False: where the logits are the scores, they come as they are, with the places
    """
    everything = which is None
    which = np.arange(len(rows)) if which is None else which
    device, request = logits.device, rows.request[which]
    temperatures = torch.as_tensor(inputs.temperatures[request], device=device)

    if not inputs.processed and everything:
        return Scores(logits, temperatures)

    masked, masks = masks_of(rows, inputs, which)
    silent = (inputs.silent[request] > rows.depth[which]) & np.isin(request, inputs.stops[0])
    edited = silent | inputs.penalised[request] | np.isin(request, inputs.bias[0])
    edited[masked] = True
    cut = (inputs.top_k > 0) | (inputs.top_p < 1) | (inputs.min_p > 0)
    cut = cut[request] & (inputs.temperatures[request] > 0)
    touched = np.flatnonzero(edited | cut)
    if not (gather or len(touched)) and logits.dtype == torch.float32:
        return Scores(logits, temperatures, which)
    values = logits if everything else logits[torch.as_tensor(which, device=device)]
    if not len(touched):
        return Scores(values, temperatures)

    there = torch.as_tensor(touched, device=device)
    part = values[there].float()  # a copy, so that the caller's logits stay as they are
    worst = part.amax(dim=-1)  # NaN if there is one
    if len(masked):
        forbid(part, np.searchsorted(touched, masked), masks)
    _add_bias(part, request[touched], inputs)
    _penalise(part, which[touched], rows, inputs)
    _forbid_stops(part, np.where(silent, request, -1)[touched], inputs)
    if cut.any():
        orders, chosen = inputs.orders
        for at, order in enumerate(orders):
            mine = cut[touched] & (chosen[request[touched]] == at)
            sampled = torch.as_tensor(np.flatnonzero(mine), device=device)
            part[sampled] = _cut(part[sampled], request[touched][mine], inputs, order)
            temperatures[there[sampled]] = 1
    part[worst.isposinf()] = torch.inf  # what was bad must not be hidden by a limit
    part[worst.isnan()] = torch.nan
    if len(touched) == len(which):
        return Scores(part, temperatures)
    return Scores(values.float().index_copy(0, there, part), temperatures)


def _cut(few: Tensor, request: Longs, inputs: VerificationBatch, order: Sequence[str]) -> Tensor:
    """Rows of sampling requests, divided by the temperature and limited, in this order."""
    for processor in order:
        if processor == "temperature":
            few = few / torch.as_tensor(inputs.temperatures[request], device=few.device)[:, None]
        elif processor == "top_k":
            _apply_top_k(few, inputs.top_k[request])
        elif processor == "top_p":
            _apply_top_p(few, inputs.top_p[request])
        else:
            _apply_min_p(few, inputs.min_p[request])
    return few


def unnormalised_softmax(given: Scores, top: Tensor) -> Tensor:
    """The probabilities, float64 [R, V], as shares of the likeliest token's; `top` is the highest
    score of each row. Of a greedy row, all on one token."""
    greedy = given.temperatures == 0
    divisor = torch.where(greedy, 1, given.temperatures)[:, None]
    shares = given.values if (divisor == 1).all() else given.values / divisor
    shares = shares.double().sub_((top / divisor[:, 0]).double()[:, None]).exp_()
    if greedy.any():
        which = greedy.nonzero()[:, 0]
        shares[which] = 0
        shares[which, _first_highest(given.values[which])] = 1
    return shares


def _first_highest(values: Tensor) -> Tensor:
    # argmax alone does not promise the first of equals
    ids = torch.arange(values.shape[-1], device=values.device)
    highest = values == values.amax(dim=-1, keepdim=True)
    return torch.where(highest, ids, values.shape[-1]).amin(dim=-1) % values.shape[-1]


def entries_of(owners: Longs, request: Longs) -> tuple[Longs, Longs]:
    """For entries that belong to requests (whose numbers rise): all (row, entry) where the row is
    of that request."""
    first, end = (np.searchsorted(owners, request, side) for side in ("left", "right"))
    row = np.repeat(np.arange(len(request)), end - first)
    before = np.cumsum(end - first) - (end - first)
    return row, np.arange(len(row)) - np.repeat(before - first, end - first)


def _add_bias(part: Tensor, request: Longs, inputs: VerificationBatch) -> None:
    row, entry = entries_of(inputs.bias[0], request)
    if len(row):
        there = tuple(torch.as_tensor(a, device=part.device) for a in (row, inputs.bias[1][entry]))
        part[there] += torch.as_tensor(inputs.bias[2][entry], device=part.device)


def _forbid_stops(part: Tensor, request: Longs, inputs: VerificationBatch) -> None:
    row, entry = entries_of(inputs.stops[0], request)
    token = inputs.stops[1][entry]
    known = token < part.shape[1]
    if known.any():
        there = (row[known], token[known])
        part[tuple(torch.as_tensor(a, device=part.device) for a in there)] = -torch.inf


def _penalise(part: Tensor, which: Longs, rows: Rows, inputs: VerificationBatch) -> None:
    mine = np.flatnonzero(inputs.penalised[rows.request[which]])
    if not len(mine):
        return
    device, request = part.device, rows.request[which[mine]]
    there = torch.as_tensor(mine, device=device)
    values = part[there]

    # The texts, once for each request, then the drafted tokens on the way to each row.
    whose, mine_of = np.unique(request, return_inverse=True)
    lengths = inputs.context_offsets[whose + 1] - inputs.context_offsets[whose]
    owner = np.repeat(np.arange(len(whose)), lengths)
    begin = np.cumsum(lengths) - lengths
    place = np.arange(len(owner)) - np.repeat(begin - inputs.context_offsets[whose], lengths)
    token = inputs.context[place].astype(np.int64)
    answered = place >= inputs.outputs_from[whose[owner]]
    shape = (len(whose), values.shape[1])
    texts, answers = (torch.zeros(shape, dtype=torch.int32, device=device) for _ in range(2))
    _count(texts, owner, token)
    _count(answers, owner[answered], token[answered])
    spread = torch.as_tensor(mine_of, device=device)
    in_text, in_answer = texts[spread], answers[spread]
    row, owner = which[mine], np.arange(len(mine))
    while len(row):
        drafted = rows.parent[row] >= 0
        row, owner = row[drafted], owner[drafted]
        _count(in_text, owner, rows.token[row])
        _count(in_answer, owner, rows.token[row])
        row = rows.parent[row]

    def column(values: NDArray[np.float32]) -> Tensor:
        return torch.as_tensor(values[request], device=device)[:, None]

    repetition = column(inputs.repetition)
    repeated = torch.where(values < 0, values * repetition, values / repetition)
    values = torch.where(in_text > 0, repeated, values)
    # Twice, not once with a sum: the order of roundings is part of the definition.
    values = torch.where(in_answer > 0, values - column(inputs.presence), values)
    part[there] = values - column(inputs.frequency) * in_answer


def _count(table: Tensor, row: Longs, token: Longs) -> None:
    there = torch.as_tensor(row * table.shape[1] + token, device=table.device)
    table.view(-1).index_add_(0, there, torch.ones_like(there, dtype=table.dtype))


def _apply_top_k(part: Tensor, k: Longs) -> None:
    vocabulary = part.shape[1]
    limited = np.flatnonzero((k > 0) & (k < vocabulary))
    if len(limited):
        there = torch.as_tensor(limited, device=part.device)
        values, last = part[there], torch.as_tensor(k[limited], device=part.device)[:, None] - 1
        highest = values.topk(int(k[limited].max())).values
        part[there] = values.masked_fill(values < highest.gather(1, last), -torch.inf)


def _apply_top_p(part: Tensor, p: NDArray[np.float64]) -> None:
    top = part.amax(dim=-1)
    limited = torch.as_tensor(p < 1, device=part.device) & torch.isfinite(top)
    if not limited.any():
        return
    there = limited.nonzero()[:, 0]
    values, share = part[there], torch.as_tensor(p, device=part.device)[there, None]
    scale = parts(values.shape[1])
    goal = share * mass_of(values, top[there, None], scale).sum(dim=-1, keepdim=True).double()
    size = min(_FIRST_TRY, values.shape[1])
    while True:
        highest = values.topk(size).values
        reached = mass_of(highest, top[there, None], scale).cumsum(dim=-1)
        if size == values.shape[1] or (reached[:, -1:] >= goal).all():
            break
        size = values.shape[1]
    before = reached - mass_of(highest, top[there, None], scale)
    count = (before < goal).sum(dim=-1, keepdim=True)
    last = highest.gather(1, count - 1)
    # Of those that tie with the last one within, the lowest ids.
    ties = count - (highest > last).sum(dim=-1, keepdim=True)
    equal = values == last
    within = (values > last) | (equal & (equal.cumsum(dim=-1) <= ties))
    part[there] = values.masked_fill(~within, -torch.inf)


def mass_of(values: Tensor, top: Tensor, scale: float) -> Tensor:
    return ((values.double() - top.double()).exp() * scale).floor().long()


def _apply_min_p(part: Tensor, p: NDArray[np.float64]) -> None:
    limit = torch.as_tensor(p, device=part.device)[:, None]
    if (limit > 0).any():
        top = part.amax(dim=-1, keepdim=True)
        least = torch.where(torch.isfinite(top), limit, 0)
        part[(part.double() - top.double()).exp() < least] = -torch.inf
