"""The logits processors on a device, in two parts: what the host knows of a step is planned first,
and can be sent together with everything else; then all is computed there without a wait.

A twin of `acceptance/processors.py`, which looks at what it has computed and so must wait for it.
Where one row has more than a temperature, all rows are copied.

Mutates: nothing; the scores may be the logits themselves. Valid until: the logits are written to.
Raises: nothing. GIL: held while the work is handed to the device.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from foresay.sampling.acceptance.masks import forbid_on_device, masks_of
from foresay.sampling.acceptance.processors import Scores, entries_of, mass_of
from foresay.sampling.acceptance.rows import Longs, Rows
from foresay.sampling.processors import parts
from foresay.sampling.verification import VerificationBatch

__all__ = ["Kernel", "Plan", "plan", "scores"]

Kernel = Literal["triton", "torch"]
Sent = Mapping[str, Tensor]
IN_TEXT = 1 << 30
"""In the table of a text: the token occurs in it. Below it is how often the answer has it."""
# How a row's limits follow each other, as bits.
K_DIVIDED, P_DIVIDED, MIN_DIVIDED, K_BEFORE_P, MIN_BEFORE_P = (1 << bit for bit in range(5))


class Limits(NamedTuple):
    """Which limits a step has, and in which orders."""

    most: int
    """The largest k of top-k; 0 if none."""
    by_p: bool
    by_min_p: bool
    orders: list[Sequence[str]]


class Plan(NamedTuple):
    """What the host knows of a step's processors."""

    arrays: dict[str, NDArray[Any]]
    """To be sent to the device before `scores`; all names begin with "p."."""
    gathers: bool = False
    """Some rows, not all."""
    texts: int = 0
    """How many texts are counted for penalties."""
    limits: Limits | None = None


def plan(
    rows: Rows, inputs: VerificationBatch, vocabulary: int, which: Longs | None = None
) -> Plan:
    """What `scores` will need of the rows `which` (of all, if None)."""
    at = np.arange(len(rows)) if which is None else which
    request, arrays = rows.request[at], dict[str, NDArray[Any]]()
    if which is not None:
        arrays["p.which"] = at
    arrays["p.temperatures"] = inputs.temperatures[request]
    if not inputs.processed or not len(at):
        return Plan(arrays, which is not None)
    masked, masks = masks_of(rows, inputs, at)
    if len(masked):
        arrays["p.masked"], arrays["p.masks"] = masked, masks
    row, entry = entries_of(inputs.bias[0], request)
    if len(row):
        arrays["p.bias_at"] = row * vocabulary + inputs.bias[1][entry]
        arrays["p.bias"] = inputs.bias[2][entry]
    texts = _plan_penalties(arrays, at, rows, inputs, vocabulary)
    silent = inputs.silent[request] > rows.depth[at]
    row, entry = entries_of(inputs.stops[0], np.where(silent, request, -1))
    known = inputs.stops[1][entry] < vocabulary
    if known.any():
        arrays["p.stops_at"] = row[known] * vocabulary + inputs.stops[1][entry][known]
    limits = _plan_limits(arrays, request, inputs, vocabulary)
    return Plan(arrays, which is not None, texts, limits)


def _plan_penalties(
    arrays: dict[str, NDArray[Any]],
    at: Longs,
    rows: Rows,
    inputs: VerificationBatch,
    vocabulary: int,
) -> int:
    """Adds to the arrays what penalties need; returns how many texts there are."""
    request = rows.request[at]
    mine = np.flatnonzero(inputs.penalised[request])
    if not len(mine):
        return 0
    whose = np.flatnonzero(inputs.penalised)
    table = np.full(len(at), -1, np.int32)
    table[mine] = np.searchsorted(whose, request[mine])
    arrays["p.table"], arrays["p.penalised"] = table, mine
    arrays["p.context"] = inputs.context
    arrays["p.lengths"] = np.diff(inputs.context_offsets)[whose]
    arrays["p.answers_from"] = inputs.outputs_from[whose]
    columns = (inputs.repetition, inputs.presence, inputs.frequency)
    arrays["p.penalties"] = np.stack([column[request] for column in columns])
    # Of the drafted tokens before each row, how often each occurs there.
    paths = rows.paths(at[mine])[:, 1:]
    tokens = np.where(paths >= 0, rows.token[paths], -1)
    row, place = np.nonzero(tokens >= 0)
    if len(row):
        own = tokens[row, place]
        arrays["p.path_row"] = mine[row]
        arrays["p.path_at"] = mine[row] * vocabulary + own
        arrays["p.path_table_at"] = table[mine[row]].astype(np.int64) * vocabulary + own
        arrays["p.path_counts"] = (tokens[row] == own[:, None]).sum(axis=1).astype(np.int32)
    return len(whose)


def _plan_limits(
    arrays: dict[str, NDArray[Any]], request: Longs, inputs: VerificationBatch, vocabulary: int
) -> Limits | None:
    """Adds to the arrays what the limits need."""
    k = np.where(inputs.top_k < vocabulary, inputs.top_k, 0)
    cut = ((inputs.top_k > 0) | (inputs.top_p < 1) | (inputs.min_p > 0)) & (inputs.temperatures > 0)
    if not cut[request].any():
        return None
    k, p = np.where(cut, k, 0).astype(np.int32), np.where(cut, inputs.top_p, 1.0)
    least = np.where(cut, inputs.min_p, 0.0)
    orders, chosen = inputs.orders
    flags = np.array([_flags(order) for order in orders], np.int32)[chosen]
    one = np.float32(1)
    arrays["p.temperatures"] = np.where(cut, one, inputs.temperatures)[request]
    arrays["p.divisors"] = np.where(cut, inputs.temperatures, one)[request]
    arrays["p.top_k"], arrays["p.top_p"], arrays["p.min_p"] = k[request], p[request], least[request]
    arrays["p.flags"] = flags[request]
    for number in range(len(orders)):
        arrays[f"p.order{number}"] = np.flatnonzero((cut & (chosen == number))[request])
    there = np.unique(request)
    by_p, by_min_p = bool((p[there] < 1).any()), bool((least[there] > 0).any())
    return Limits(int(k[there].max()), by_p, by_min_p, orders)


def _flags(order: Sequence[str]) -> int:
    place = {name: at for at, name in enumerate(order)}
    bits = (
        place["temperature"] < place["top_k"],
        place["temperature"] < place["top_p"],
        place["temperature"] < place["min_p"],
        place["top_k"] < place["top_p"],
        place["min_p"] < place["top_p"],
    )
    return sum(bit << number for number, bit in enumerate(bits))


def scores(planned: Plan, logits: Tensor, sent: Sent, kernel: Kernel) -> Scores:
    """The scores of the planned rows, with `planned.arrays` on the device. A bad row stays bad in
    the same way."""
    if planned.gathers:
        logits = logits[sent["p.which"]]
    temperatures = sent["p.temperatures"]
    edited = (
        any(name in sent for name in ("p.masks", "p.bias_at", "p.stops_at")) or planned.texts > 0
    )
    if not (edited or planned.limits):
        return Scores(logits, temperatures)
    worst = logits.amax(dim=-1).float()  # NaN if there is one
    part = logits
    if edited:
        part = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
        _edit(part, planned, sent, kernel)
    if planned.limits is None:
        # One bad number spoils a row, whatever became of the others.
        bad = worst.isnan() | worst.isposinf()
        part[:, 0] = torch.where(bad, worst, part[:, 0])
        return Scores(part, temperatures)
    if kernel == "triton":  # imported only where it is used: it may not be installed
        from foresay.sampling.acceptance import triton_limits

        top = part.amax(dim=-1) if edited else worst
        return Scores(triton_limits.limited(part, top, worst, sent, planned.limits), temperatures)
    if part is logits:
        part = logits.to(torch.float32, copy=True, memory_format=torch.contiguous_format)
    for number, order in enumerate(planned.limits.orders):
        mine = sent[f"p.order{number}"]
        part.index_copy_(0, mine, _cut(part[mine], mine, sent, planned.limits, order))
    part.masked_fill_(worst.isposinf()[:, None], torch.inf)
    return Scores(part.masked_fill_(worst.isnan()[:, None], torch.nan), temperatures)


def _edit(part: Tensor, planned: Plan, sent: Sent, kernel: Kernel) -> None:
    """Writes masks, bias, penalties and forbidden stops into the rows."""
    flat = part.view(-1)
    if "p.masks" in sent:
        forbid_on_device(part, sent["p.masked"], sent["p.masks"])
    if "p.bias_at" in sent:
        flat.index_add_(0, sent["p.bias_at"], sent["p.bias"])
    if planned.texts:
        _penalise(part, planned.texts, sent, kernel)
    if "p.stops_at" in sent:
        flat.index_fill_(0, sent["p.stops_at"], -torch.inf)


def _penalise(part: Tensor, texts: int, sent: Sent, kernel: Kernel) -> None:
    vocabulary, flat, context = part.shape[1], part.view(-1), sent["p.context"]
    owner = torch.repeat_interleave(sent["p.lengths"], output_size=len(context))
    at = owner * vocabulary + context
    answered = torch.arange(len(context), device=part.device) >= sent["p.answers_from"][owner]
    table = torch.zeros(texts * vocabulary, dtype=torch.int32, device=part.device)
    table.index_fill_(0, at, IN_TEXT).index_add_(0, at, answered.int())

    drafted = None
    if "p.path_at" in sent:  # from what they are before the text is penalised
        counts = (table[sent["p.path_table_at"]] & (IN_TEXT - 1)) + sent["p.path_counts"]
        columns = sent["p.penalties"][:, sent["p.path_row"]]
        drafted = _penalised(flat[sent["p.path_at"]], counts, counts | IN_TEXT, columns)
    if kernel == "triton":
        from foresay.sampling.acceptance import triton_penalties

        triton_penalties.penalise(part, table, sent["p.table"], sent["p.penalties"])
    else:
        mine = sent["p.penalised"]
        seen = table.view(texts, vocabulary)[sent["p.table"][mine]]
        columns = sent["p.penalties"][:, mine, None]
        part.index_copy_(0, mine, _penalised(part[mine], seen & (IN_TEXT - 1), seen, columns))
    if drafted is not None:
        flat.index_copy_(0, sent["p.path_at"], drafted)  # equal places get equal values


def _penalised(values: Tensor, counts: Tensor, seen: Tensor, columns: Tensor) -> Tensor:
    repetition, presence, frequency = columns[0], columns[1], columns[2]
    repeated = torch.where(values < 0, values * repetition, values / repetition)
    values = torch.where(seen > 0, repeated, values)
    # Twice, not once with a sum: the order of roundings is part of the definition.
    values = torch.where(counts > 0, values - presence, values)
    return torch.sub(values, frequency * counts)


def _cut(few: Tensor, mine: Tensor, sent: Sent, limits: Limits, order: Sequence[str]) -> Tensor:
    """The rows `mine`, divided by the temperature and limited, in this order."""
    for processor in order:
        if processor == "temperature":
            few = few / sent["p.divisors"][mine, None]
        elif processor == "top_k" and limits.most:
            k = sent["p.top_k"][mine, None].long()
            least = few.topk(limits.most).values.gather(1, (k - 1).clamp_(min=0))
            few = few.masked_fill((few < least) & (k > 0), -torch.inf)
        elif processor == "top_p" and limits.by_p:
            few = _within_top_p(few, sent["p.top_p"][mine, None])
        elif processor == "min_p" and limits.by_min_p:
            top = few.amax(dim=-1, keepdim=True)
            least = torch.where(top.isfinite(), sent["p.min_p"][mine, None], 0.0)
            few = few.masked_fill((few.double() - top.double()).exp() < least, -torch.inf)
    return few


def _within_top_p(few: Tensor, p: Tensor) -> Tensor:
    """All tokens are sorted: whether fewer would do cannot be seen without a wait."""
    top, scale = few.amax(dim=-1, keepdim=True), parts(few.shape[1])
    highest = few.sort(dim=-1, descending=True).values
    mass = mass_of(highest, top, scale)
    reached = mass.cumsum(dim=-1)
    goal = p * reached[:, -1:].double()
    count = ((reached - mass) < goal).sum(dim=-1, keepdim=True).clamp_(min=1)
    last = highest.gather(1, count - 1)
    # Of those that tie with the last one within, the lowest ids.
    ties = count - (highest > last).sum(dim=-1, keepdim=True)
    equal = few == last
    within = (few > last) | (equal & (equal.cumsum(dim=-1) <= ties))
    return few.masked_fill(~within & (p < 1) & top.isfinite(), -torch.inf)
