"""The two rules of verification, one request and one token at a time: the readable twins of those
in `acceptance/`, and the ones whose exactness is proved with rational numbers.

    match      the target samples its token with its keyed noise; a drafted token is accepted
               exactly where it equals that token. The text does not depend on the draft.
    rejection  a token sampled from q is accepted with chance min(1, p / q); after a rejection the
               target's distribution is the residual. The text's distribution does not depend on q.

`follow_match` and `follow_rejection` know neither logits nor noise: probs are sequences of numbers
of any kind, floats or fractions, and randomness is an argument (`Coins`).

Mutates: nothing. Valid until: for ever. Raises: LogitsError, InputError. GIL: held.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from fractions import Fraction
from itertools import accumulate
from typing import Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from foresay.arrays import Floats
from foresay.draft import Draft
from foresay.errors import InputError, LogitsError
from foresay.sampling.noise import Stream, gumbel, uniform
from foresay.sampling.processors import probabilities, scores
from foresay.sampling.verification import VerificationInput
from foresay.verdict import Verdict

__all__ = ["Coins", "follow_match", "follow_rejection", "match", "rejection", "residual", "without"]

N = TypeVar("N", float, Fraction)
M = TypeVar("M", float, Fraction, contravariant=True)
Probs: TypeAlias = Sequence[N]
Found: TypeAlias = tuple[list[int], list[int]]
"""The accepted nodes, and the tokens: theirs and one more."""


class Coins(Protocol[M]):
    """The source of randomness. Each position and attempt may be asked for only once."""

    def accept(self, chance: M, position: int, attempt: int) -> bool:
        """True with this chance (which may exceed 1)."""
        ...

    def draw(self, weights: Sequence[M], position: int) -> int:
        """A token with chance proportional to its weight."""
        ...


def match(draft: Draft, logits: Floats, request: VerificationInput) -> Verdict:
    """Rule match. `logits` has n + 1 rows: after the text so far, and after each node."""
    _check(draft, logits)

    def choose(node: int) -> int:
        path = path_to(draft, node)
        mask = _mask(request, node)
        row = scores(logits[node + 1], request, draft.tokens[path], mask).astype(np.float64)
        if not request.params.greedy:
            row += gumbel(
                request.seed, request.position + len(path), range(len(row)), Stream.TARGET
            )
        return int(np.argmax(row))

    path, tokens = follow_match(draft.tokens.tolist(), draft.parents.tolist(), choose)
    return _verdict(path, tokens, request)


def rejection(draft: Draft, logits: Floats, request: VerificationInput) -> Verdict:
    """Rule rejection. `draft.probs` says what each token was sampled from; None: it was chosen."""
    _check(draft, logits)

    def probs(node: int) -> Probs[float]:
        path, mask = draft.tokens[path_to(draft, node)], _mask(request, node)
        row = scores(logits[node + 1], request, path, mask)
        return list(map(float, probabilities(row, request.params.greedy)))

    def draft_probs(node: int) -> Probs[float] | None:
        if draft.probs is None:
            return None
        weights = draft.probs[node].astype(np.float64)
        if not (weights >= 0).all() or not 0 < weights.sum() < np.inf:
            raise InputError(
                "a drafted token has invalid probs; expected none below 0, and a finite sum above 0"
            )
        return list(map(float, weights / weights.sum()))

    coins = _KeyedCoins(request.seed)
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    path, emitted = follow_rejection(tokens, parents, probs, draft_probs, coins, request.position)
    return _verdict(path, emitted, request)


def follow_match(
    tokens: Sequence[int], parents: Sequence[int], choose: Callable[[int], int]
) -> Found:
    """Walks down the tree along the target's own tokens; `choose(node)` is the one after a node.

    Of siblings with the same token the one with the longest accepted path is followed, and of
    equals the one that ends in the first node. Invalid logits end the walk before them: the next
    step begins with them, as plain decoding would.
    """
    found: list[Found] = []
    alive: list[Found] = [([], [])]
    while alive:
        path, emitted = alive.pop(0)
        node = path[-1] if path else -1
        try:
            token = choose(node)
        except LogitsError:
            if not path:
                raise
            continue
        found.append((path, [*emitted, token]))
        heirs = [child for child in _children(parents, node) if tokens[child] == token]
        alive += [([*path, child], [*emitted, token]) for child in heirs]
    return max(found, key=lambda walk: (len(walk[0]), -walk[0][-1] if walk[0] else 0))


def follow_rejection(
    tokens: Sequence[int],
    parents: Sequence[int],
    probs: Callable[[int], Probs[N]],
    draft_probs: Callable[[int], Probs[N] | None],
    coins: Coins[N],
    position: int,
) -> Found:
    """Multi-step speculative sampling; on a chain, the classical rule.

    At every node its children are tried in order, each against the residual that its earlier
    siblings left. This is exact for tokens sampled independently and for tokens sampled without
    replacement, since `draft_probs` are those given the earlier siblings; and for chosen tokens,
    whose probs have all mass on one token. Equal tokens from different sources stay siblings, each
    with the probs it was sampled from. The order of sampled siblings must depend neither on the
    target nor on what was sampled (sorting or pruning them by score changes the distribution);
    chosen ones may have any order. Invalid logits end the walk as in `follow_match`.
    """
    node = -1
    path: list[int] = []
    emitted: list[int] = []
    while True:
        try:
            p, accepted = probs(node), None
        except LogitsError:
            if not path:
                raise
            return path[:-1], emitted
        for attempt, child in enumerate(_children(parents, node)):
            q, token = draft_probs(child), tokens[child]
            if q is None:
                chance, rest = p[token], without(p, token)
            else:
                if not q[token] > 0:
                    raise InputError(
                        "a drafted token has probability 0 in its probs; expected more"
                    )
                chance, rest = p[token] / q[token], residual(p, q)
            if coins.accept(chance, position, attempt):
                accepted = child
                break
            p = rest
        if accepted is None:
            return path, [*emitted, coins.draw(p, position)]
        node, position = accepted, position + 1
        path.append(node)
        emitted.append(tokens[node])


def residual(p: Probs[N], q: Probs[N]) -> Probs[N]:
    """The residual after a rejection: max(0, p - q), normalised; p itself where that is all 0."""
    return _normalised([max(a - b, 0 * a) for a, b in zip(p, q, strict=True)], p)


def without(p: Probs[N], token: int) -> Probs[N]:
    """The residual after a chosen token was rejected: the others, normalised."""
    return _normalised([0 * a if v == token else a for v, a in enumerate(p)], p)


def path_to(draft: Draft, node: int) -> list[int]:
    """The nodes from the root to this one."""
    path = []
    while node >= 0:
        path.append(node)
        node = int(draft.parents[node])
    return path[::-1]


def _mask(request: VerificationInput, node: int) -> NDArray[np.int32] | None:
    """Which tokens may come after a node; None: all of them."""
    return None if request.masks is None else request.masks[node + 1]


def _normalised(weights: Probs[N], otherwise: Probs[N]) -> Probs[N]:
    total = sum(weights, start=0 * otherwise[0])
    return [w / total for w in weights] if total else otherwise


def _children(parents: Sequence[int], node: int) -> list[int]:
    return [child for child, parent in enumerate(parents) if parent == node]


def _verdict(path: list[int], tokens: list[int], request: VerificationInput) -> Verdict:
    """The verdict, cut where the answer ends: at the first stop token, or at max_tokens."""
    ends = [i + 1 for i, token in enumerate(tokens) if token in request.stops]
    length = min([len(tokens), request.room, *ends])
    return Verdict(path[: length - 1], tokens[:length])


def _check(draft: Draft, logits: Floats) -> None:
    if logits.ndim != 2 or len(logits) != len(draft) + 1:
        raise InputError(
            f"logits have shape {logits.shape}; expected {len(draft) + 1} rows, one more than nodes"
        )
    vocabulary = logits.shape[1]
    if len(draft) and int(draft.tokens.max()) >= vocabulary:
        raise InputError(f"a draft has token {draft.tokens.max()}; expected 0 to {vocabulary - 1}")
    if draft.probs is not None and draft.probs.shape != (len(draft), vocabulary):
        raise InputError(
            f"probs have shape {draft.probs.shape}; expected {(len(draft), vocabulary)}"
        )


class _KeyedCoins:
    """Randomness from the keyed noise, so that a repeated step has the same result."""

    def __init__(self, seed: int) -> None:
        self.seed = seed

    def accept(self, chance: float, position: int, attempt: int) -> bool:
        # Strict, and the uniform is never 0: a token with chance 0 is never accepted.
        return bool(uniform(self.seed, position, attempt, Stream.ACCEPT) < chance)

    def draw(self, weights: Sequence[float], position: int) -> int:
        sums = list(accumulate(weights))
        return bisect_right(sums, uniform(self.seed, position, 0, Stream.RESIDUAL) * sums[-1])
