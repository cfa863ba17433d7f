"""What speculation can gain: acceptance rates, tokens per step, the best draft length.

    p, q   the target's probs of the next token, and the probs the drafted token was sampled from
    beta   the chance that a drafted token is accepted, given that the step came so far
    k      the draft length: a step drafts k tokens, and the target checks them in k + 1 rows

Shortcuts that are wrong: 1 + k beta tokens per step (a rejection ends the step), beta >= 1/(1 + KL)
(p = (.5, .5), q = (.6, .4) have beta .90, not .98), best lengths that do not depend on beta.

Probs are divided by their sum, which may miss 1 by `TOLERANCE`. Logarithms are natural. Mutates:
nothing. Valid until: for ever. Raises: InputError for a value that is not valid. GIL: held.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from statistics import NormalDist
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from foresay.errors import InputError

__all__ = [
    "TOLERANCE",
    "BetaByDepth",
    "CostByLength",
    "acceptance",
    "acceptance_chosen",
    "acceptance_coupled_bound",
    "acceptance_floor",
    "best_length",
    "beta_by_depth",
    "bretagnolle_huber",
    "expected_tokens",
    "expected_tokens_of_tree",
    "kl",
    "pinsker",
    "speedup",
    "total_variation",
]

Doubles: TypeAlias = NDArray[np.float64]
Numbers: TypeAlias = Sequence[float] | NDArray[Any]
Wholes: TypeAlias = Sequence[int] | NDArray[Any]
Growth: TypeAlias = Callable[[int], float]

TOLERANCE = 1e-4
"""How far chances may miss the sum 1: room for rows of float32, none for logits or bfloat16."""
_CHANCE, _COUNT = ("chances from 0 to 1", 0, 1), ("whole numbers from 0", 0, 2**53)


def acceptance(p: Numbers, q: Numbers) -> float:
    """beta = sum_x min(p, q) = 1 - TV. Holds if x ~ q is accepted with chance min(1, p/q)."""
    return min(1.0, float(np.minimum(*_probs(p, q)).sum()))


def acceptance_chosen(p: Numbers, tokens: Wholes) -> float:
    """beta = sum of p over the distinct tokens of siblings. Holds for rule match, chosen drafts."""
    (probs,) = _probs(p)
    ids = _row(tokens, "tokens", f"token ids below {probs.size}", 0, probs.size - 1, int)
    return min(1.0, float(probs[np.unique(ids)].sum()))


def acceptance_coupled_bound(p: Numbers, q: Numbers) -> float:
    """beta >= (1 - TV) / (1 + TV). Holds if both choose by argmax with the *same* Gumbel noise."""
    tv = total_variation(p, q)
    return (1.0 - tv) / (1.0 + tv)


def total_variation(p: Numbers, q: Numbers) -> float:
    """TV(p, q) = 1/2 sum_x |p(x) - q(x)|. Holds for all probs over the same tokens."""
    a, b = _probs(p, q)
    return min(1.0, float(np.abs(a - b).sum()) / 2)


def kl(p: Numbers, q: Numbers) -> float:
    """KL(p, q) = sum_x p log(p/q), inf if q = 0 < p somewhere. Holds for probs over the same x."""
    a, b = _probs(p, q)
    a, b = a[a > 0], b[a > 0]
    return max(0.0, float((a * (np.log(a) - np.log(b))).sum())) if b.all() else math.inf


def pinsker(kl: float) -> float:
    """beta >= 1 - sqrt(KL / 2), and >= 0. Holds for `acceptance`; says nothing for KL >= 2."""
    return max(0.0, 1.0 - math.sqrt(_divergence(kl) / 2))


def bretagnolle_huber(kl: float, *, tight: bool = False) -> float:
    """beta >= exp(-KL) / 2, or tight: 1 - sqrt(1 - exp(-KL)). Holds for `acceptance`."""
    x = math.exp(-_divergence(kl))
    return x / (1.0 + math.sqrt(1.0 - x)) if tight else x / 2  # does not cancel for small x


def acceptance_floor(kl: float) -> float:
    """beta >= the best of the above. Holds for `acceptance`, KL(p, q) and KL(q, p)."""
    return max(pinsker(kl), bretagnolle_huber(kl, tight=True))


def expected_tokens(acceptances: Numbers) -> float:
    """E = 1 + sum_i prod_{j <= i} beta_j, with the target's own token.

    Always holds for a chain if beta_i is the chance at depth i *given* that depth i is reached.
    For [alpha] * k it is (1 - alpha^(k + 1)) / (1 - alpha): right only if all depths are alike.
    """
    return 1.0 + float(np.cumprod(_row(acceptances, "acceptances", *_CHANCE)).sum())


def expected_tokens_of_tree(parents: Wholes, acceptances: Numbers) -> float:
    """E = 1 + sum over nodes of the product of beta on the way from the root to the node.

    Always holds if beta is the chance that of its siblings this node is accepted, given the parent.
    """
    above = _row(parents, "parents", "earlier nodes or -1", -1, 2**31, kind=int)
    chances = _row(acceptances, "acceptances", *_CHANCE, size=above.size)
    reach = np.ones(above.size + 1)  # the last is the root, where parent -1 points
    for node, parent in enumerate(above):
        if parent >= node:
            raise InputError(f"parents[{node}] is {parent}; expected -1 to {node - 1}")
        reach[node] = reach[parent] * chances[node]
    for parent, total in enumerate(np.bincount(above + 1, chances), -1):
        if total > 1 + TOLERANCE:
            raise InputError(f"the chances below node {parent} sum to {total}; expected at most 1")
    return float(reach.sum())


class CostByLength:
    """cost(k) = verify(k) + draft(k): the seconds of a step as measured, for lengths 0 to K.

    verify    of the target's pass over k + 1 rows; verify(0) is the plain step
    draft     of drafting k tokens (a tree: k nodes); draft(0) = 0
    lengths   the k of each entry, rising from 0; None: 0, 1, 2, ...

    Linear between measured lengths, refused beyond. Holds for one model, batch size and machine.
    """

    def __init__(self, verify: Numbers, draft: Numbers, lengths: Wholes | None = None) -> None:
        passes = _row(verify, "verify", "finite times above 0", 1e-300, 1e300)
        drafts = _row(draft, "draft", "finite times from 0", 0, 1e300, size=passes.size)
        ks = range(passes.size) if lengths is None else lengths
        at = _row(ks, "lengths", *_COUNT, kind=int, size=passes.size)
        if not at.size or at[0] or drafts[0] or (np.diff(at) <= 0).any():
            raise InputError(
                f"lengths {at}, draft {drafts}; expected both to begin with 0, and rising lengths"
            )
        self.seconds: Doubles = np.interp(np.arange(at[-1] + 1), at, passes + drafts)

    @classmethod
    def constant(
        cls, rho: float, verify: Growth | None = None, longest: int = 1024
    ) -> CostByLength:
        """cost(k) = k rho + v(k) in plain steps. Holds with v = 1 (None) at small batches only."""
        v = [verify(k) if verify else 1.0 for k in range(longest + 1)]
        if v and v[0] != 1:
            raise InputError(f"verify(0) is {v[0]}; expected 1, the plain step that rho counts in")
        return cls(v, [rho * k for k in range(longest + 1)])

    def relative(self, k: int) -> float:
        """cost(k) / cost(0): the plain steps that a step with k drafted tokens takes."""
        if not 0 <= k < self.seconds.size:
            raise InputError(f"k is {k}; expected 0 to {self.seconds.size - 1}, the known costs")
        return float(self.seconds[k] / self.seconds[0])


def speedup(acceptances: float | Numbers, cost: CostByLength, k: int) -> float:
    """S = E(k) cost(0) / cost(k), for a row or one alpha. Holds if every step drafts k tokens."""
    relative, chances = cost.relative(k), _depths(acceptances, k)
    if chances.size < k:
        raise InputError(f"k is {k}; expected at most {chances.size}, the depth of the acceptances")
    return expected_tokens(chances) / relative


def best_length(acceptances: float | Numbers, cost: CostByLength) -> tuple[int, float]:
    """(k, speed-up) with k = argmax E(k) cost(0) / cost(k); k = 0, to draft nothing, brings 1.

    Holds for one k in all steps. If it is the last k that is known, the best may lie beyond.
    """
    reach = np.cumprod(np.append(1.0, _depths(acceptances, cost.seconds.size - 1)))
    gains = np.cumsum(reach) / (cost.seconds[: reach.size] / cost.seconds[0])
    return int(gains.argmax()), float(gains.max())


class BetaByDepth(NamedTuple):
    """beta at each depth with its interval; `overall` is (rate, low, high) of all depths pooled."""

    rate: Doubles
    low: Doubles
    high: Doubles
    overall: tuple[float, float, float]


def beta_by_depth(reached: Wholes, accepted: Wholes, level: float = 0.95) -> BetaByDepth:
    """beta_i = a / n; Wilson's interval (a + z²/2 ± z sqrt(a (n - a) / n + z²/4)) / (n + z²).

    n = reached[i] counts the tokens at depth i + 1 that were *examined*, all before them accepted:
    those behind a rejection say nothing, and accepted / drafted is too small. n = 0: NaN, [0, 1].
    Holds for independent outcomes; within one text they are not, and the interval is too narrow.
    """
    n = _row(reached, "reached", *_COUNT, kind=int)
    a = _row(accepted, "accepted", *_COUNT, kind=int, size=n.size)
    in_turn = np.column_stack([n, a]).ravel()
    if (np.diff(in_turn) > 0).any():
        raise InputError(
            f"reached and accepted in turn are {in_turn.tolist()}; expected numbers that never rise"
        )
    if not 0 < level < 1:
        raise InputError(f"level is {level}; expected a number between 0 and 1")
    n, a = np.append(n, n.sum()), np.append(a, a.sum())
    rate = np.divide(a, n, out=np.full(n.size, np.nan), where=n > 0)
    z = NormalDist().inv_cdf((1 + level) / 2)
    half = z * np.sqrt(a * ((n - a) / np.maximum(n, 1)) + z * z / 4)
    low, high = np.clip((a + z * z / 2 + np.outer([-1, 1], half)) / (n + z * z), 0, 1)
    low, high = np.fmin(low, rate), np.fmax(high, rate)  # rounding must not leave the rate outside
    return BetaByDepth(rate[:-1], low[:-1], high[:-1], (rate[-1], low[-1], high[-1]))


def _row(
    values: Any, name: str, rule: str, low: float, high: float, kind: type = float, size: int = -1
) -> NDArray[Any]:
    """`values` as a row of `kind`, all from `low` to `high`; `rule` says so in the errors."""
    try:
        row = np.asarray(values)
    except (TypeError, ValueError):  # rows of different lengths, a bfloat16 tensor
        row = np.empty((0, 0))
    if row.ndim != 1 or (row.size and row.dtype.kind not in ("iu" if kind is int else "iuf")):
        raise InputError(f"{name} is {values!r}; expected a row of {rule}")
    if size not in (-1, row.size):
        raise InputError(f"{name} has {row.size} entries; expected {size}")
    for at in np.flatnonzero(~((row >= low) & (row <= high))):
        raise InputError(f"{name}[{at}] is {row[at]}; expected {rule}")
    return row.astype(np.int64 if kind is int else np.float64)


def _probs(*rows: Numbers) -> list[Doubles]:
    """`rows` as probs over the same tokens; the first is named p, the second q."""
    found: list[Doubles] = []
    for name, values in zip("pq", rows, strict=False):
        probs = _row(
            values, name, _CHANCE[0], 0, 1 + TOLERANCE, size=found[0].size if found else -1
        )
        if abs(probs.sum() - 1) > TOLERANCE:
            raise InputError(f"{name} sums to {probs.sum()}; expected 1, within {TOLERANCE}")
        found.append(probs / probs.sum())
    return found


def _depths(acceptances: float | Numbers, most: int) -> Doubles:
    """The chances at the first `most` depths, or as many as are given."""
    row = np.full(max(most, 1), acceptances) if np.isscalar(acceptances) else acceptances
    return _row(row, "acceptances", *_CHANCE)[:most]


def _divergence(kl: float) -> float:
    if not kl >= 0:
        raise InputError(f"kl is {kl}; expected 0 to inf")
    return kl
