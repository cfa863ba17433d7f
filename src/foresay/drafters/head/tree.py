"""Draft trees that grow where the head is confident (EAGLE-2).

Of each level the `topk` nodes with the largest path probabilities are expanded, all requests in
one pass of the head; each gets its `topk` likeliest children. In the end the best nodes of all
levels are kept, as many as the budget. A node is never likelier than its parent, so what is kept
is a tree.

Under rule `match` the target takes the argmax of z / T + g, with the noise g that the seed gives
to each position and token. The head knows g, too. If its own z is off by errors that are Gumbel
distributed with scale 1 (which is what the softmax says in greedy decoding), the chance of a token
is softmax(z + T g). With T = 0 this is the usual confidence.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from foresay.draft import Draft
from foresay.drafters.head.head import Head, Kept

__all__ = ["Context", "Noise", "Process", "grow"]

Noise = Callable[[int, Tensor], Tensor | None]
"""noise(depth, tokens): what is added to the logits of the token ids [B, R, S] that stand
`depth` tokens behind the text; None: nothing."""
Process = Callable[[Tensor, Tensor], Tensor]
"""process(logits, paths): the processed logits [B, R, drafted], after the drafted token ids
[B, R, depth] that lead to each row. Impossible tokens are -inf."""


@dataclass(slots=True)
class Context:
    """What a batch of trees hangs from.

    hidden   [B, hidden]: the head's output after each text, which predicts the first nodes
    kept     of each text, padded on the right to T, then room for the nodes that are expanded
    lengths  int64[B]: rows of each text
    """

    hidden: Tensor
    kept: Kept
    lengths: Tensor

    @property
    def longest(self) -> int:
        return int(self.lengths.max())


def grow(
    head: Head,
    context: Context,
    budgets: Sequence[int],
    *,
    topk: int,
    depth: int,
    shortlist: int,
    noise: Noise,
    process: Process | None = None,
) -> list[Draft]:
    """A draft for each text, the likeliest node first.

    topk       nodes of a level that are expanded, and children of each
    depth      levels, at most; needs room for topk * (depth - 1) nodes in the context
    shortlist  how many of the head's likeliest tokens get noise: the others are not drafted
    """
    batch, device = len(context.hidden), context.hidden.device
    topk = min(topk, len(head.tokens), max(budgets))
    depth = min(depth, max(budgets), head.window or depth)  # so that a node sees all above it
    base, most = context.longest, torch.tensor(budgets, device=device)
    places = torch.arange(context.kept.keys.shape[2], device=device)
    text = (places < context.lengths[:, None])[:, None]  # [B, 1, T + room]: visible to all nodes
    seen = text  # [B, R, T + room]: what each node of the last expanded level sees
    rows = context.hidden[:, None]  # the head's output after each of them
    paths = torch.zeros(batch, 1, device=device)  # the log of its path probability
    above = torch.full((batch, 1), -1, device=device)  # its number among all nodes
    taken = torch.zeros(batch, 1, 0, dtype=torch.int64, device=device)  # the tokens of its path
    levels: list[tuple[Tensor, Tensor, Tensor]] = []
    count = 0
    for level in range(depth):
        # 1) The likeliest children of each node that was expanded.
        logits = head.logits(rows)
        if process is not None:
            logits = process(logits, taken)
        tokens, logprobs = _children(head, logits, level, topk, shortlist, noise)
        scores = (paths[..., None] + logprobs).flatten(1)
        scores = scores.masked_fill(scores.isnan(), -torch.inf)
        levels.append((tokens.flatten(1), above.repeat_interleave(topk, 1), scores))
        if level == depth - 1:
            break
        # 2) The best of them are expanded, in one pass of the head; but none whose descendants
        # could not be kept, being less likely than the last one that would be kept now.
        paths, best = scores.topk(min(topk, scores.shape[1]), 1)
        useful = int((paths >= _last_kept(levels, most)).sum(1).max())
        if not useful:
            break
        paths, best = paths[:, :useful], best[:, :useful]
        parent = best // topk
        tokens = tokens.flatten(1).gather(1, best)
        taken = taken.gather(1, parent[..., None].expand(-1, -1, level))
        taken = torch.cat([taken, tokens[..., None]], -1)
        above, count = best + count, count + scores.shape[1]
        rows = rows.gather(1, parent[..., None].expand(-1, -1, rows.shape[2]))
        seen = seen.gather(1, parent[..., None].expand(-1, -1, seen.shape[2])).clone()
        first, nodes = base + level * topk, best.shape[1]
        own = torch.arange(nodes, device=device)
        seen[:, own, first + own] = True
        end = first + nodes
        positions = (context.lengths + level)[:, None].expand(-1, nodes)
        visible = seen
        if head.window:
            near = places > positions[..., None] - head.window
            visible = seen & (near | (places >= base))
        context.kept.next_at((first + own).expand(batch, -1), end)
        rows = head.read(rows, tokens, positions, context.kept, visible[:, None, :, :end])
    return _best(levels, budgets)


def _children(
    head: Head, logits: Tensor, level: int, topk: int, shortlist: int, noise: Noise
) -> tuple[Tensor, Tensor]:
    """Tokens [B, R, topk] and the logs of their probabilities."""
    best, places = logits.topk(min(max(shortlist, topk), logits.shape[-1]), -1)
    added, total = noise(level, head.tokens[places]), logits.logsumexp(-1, keepdim=True)
    if added is None:
        found, chosen = best[..., :topk], places[..., :topk]
    else:
        part = best.logsumexp(-1, keepdim=True)
        rest = total + torch.log1p(-(part - total).exp().clamp(max=1))  # of all other tokens
        found, ranks = (best + added).topk(topk, -1)
        total = (best + added).logsumexp(-1, keepdim=True).logaddexp(rest)
        chosen = places.gather(-1, ranks)
    return head.tokens[chosen], (found - total).clamp(max=0)


def _last_kept(levels: Sequence[tuple[Tensor, Tensor, Tensor]], budgets: Tensor) -> Tensor:
    """The score [B, 1] of the last node that is kept if the trees end here; -inf if all are."""
    scores = torch.cat([level[2] for level in levels], 1)
    spare = max(int(budgets.max()) - scores.shape[1], 0)
    scores = torch.nn.functional.pad(scores, (0, spare), value=-torch.inf)
    return scores.sort(1, descending=True).values.gather(1, (budgets - 1)[:, None])


def _best(levels: Sequence[tuple[Tensor, Tensor, Tensor]], budgets: Sequence[int]) -> list[Draft]:
    tokens, parents, scores = (
        torch.cat([level[part] for level in levels], 1).cpu().numpy() for part in range(3)
    )
    drafts = []
    for at, budget in enumerate(budgets):
        # Stable: of equals the earlier one, and a parent is always earlier than its child.
        order = np.argsort(-scores[at], kind="stable")[:budget]
        order = order[np.isfinite(scores[at][order])]
        place = np.full(tokens.shape[1] + 1, -1, np.int32)  # the last entry is for parent -1
        place[order] = np.arange(len(order), dtype=np.int32)
        drafts.append(
            Draft._trusted(
                tokens[at][order].astype(np.int32),
                place[parents[at][order]],
                # Rounding must not make a child likelier than its parent.
                np.minimum.accumulate(np.exp(scores[at][order]).astype(np.float32)),
            )
        )
    return drafts
