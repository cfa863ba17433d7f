"""Chance: every outcome of a function of coins, with its exact chance.

`outcomes` calls a function again and again, once for every way its chances can fall, and says how
likely each way is. With fractions nothing is rounded and nothing is sampled: two distributions
are equal or they are not.

A coin that is tossed for a position is keyed, as in an engine: tossed again it would fall the same
way, so that raises. Without a position a coin is always fresh.

Mutates: a Chance remembers its coins. Valid until: a Chance, for one call of the function. Raises:
InputError for what is no chance. GIL: held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import TypeVar

from foresay.errors import InputError

__all__ = ["Chance", "outcomes"]

T = TypeVar("T")

ZERO, ONE = Fraction(0), Fraction(1)
_FICKLE = "the function is not the same from call to call"


def outcomes(function: Callable[[Chance], T]) -> Iterator[tuple[T, Fraction]]:
    """Every way through `function`, depth first, with its chance; the same result may come twice.

    The function must depend on nothing that changes from call to call but its Chance; raises
    InputError, at the latest after the last way, where it visibly does.
    """
    script: list[int] = []
    total = ZERO
    while True:
        chance = Chance(script)
        result = function(chance)
        total += chance.probability
        yield result, chance.probability
        trail = chance.trail
        while trail and len(trail[-1]) == 1:
            trail.pop()
        if not trail:
            break
        trail[-1].pop(0)
        script = [possible[0] for possible in trail]
    if total != 1:
        raise InputError(f"{_FICKLE}: the chances of its ways sum to {total}")


class Chance:
    """One way through a function: the first outcomes are fixed, every later one is the first
    possible. `probability` is the chance of this way; `trail` has for each branch the outcome taken
    and the possible ones after it. Its `accept` and `draw` are `Coins[Fraction]`.
    """

    def __init__(self, script: Sequence[int] = ()) -> None:
        self.probability = ONE
        self.trail: list[list[int]] = []
        self._script = script
        self._tossed: set[tuple[str, int, int]] = set()
        self._noise: dict[int, tuple[Fraction, Fraction]] = {}

    def accept(self, chance: Fraction, position: int | None = None, attempt: int = 0) -> bool:
        """True with this chance; above 1 counts as 1, below 0 as 0."""
        self._once("accept", position, attempt)
        _refuse_floats(chance)
        yes = min(max(chance, ZERO), ONE)
        return self._branch((ONE - yes, yes)) == 1

    def draw(self, weights: Sequence[Fraction], position: int | None = None) -> int:
        """A token with chance proportional to its weight."""
        self._once("draw", position, 0)
        return self.pick(weights)

    def pick(self, weights: Sequence[Fraction]) -> int:
        """The same for the drafter, always fresh."""
        _refuse_floats(*weights)
        total = sum(weights, start=ZERO)
        if total <= 0 or min(weights) < 0:
            raise InputError(
                f"weights are {[str(w) for w in weights]}; expected none below 0, and a sum above 0"
            )
        return self._branch(weights if total == 1 else [w / total for w in weights])

    def choose(self, probs: Sequence[Fraction], position: int) -> int:
        """The token under the noise of this position, a uniform that is the same for all probs: the
        inverse of the cumulative distribution at it."""
        # The uniform of a position is known only as far as it was needed: it lies in an interval,
        # and probs split the interval at the borders of their own cells. So a leaf of the
        # enumeration is a box of noise on which no choice changes, and the boxes cover all noise.
        low, high = self._noise.get(position, (ZERO, ONE))
        edges = [ZERO, *accumulate(probs)]
        if edges[-1] != 1:
            raise InputError(
                f"probs {[str(w) for w in probs]} sum to {edges[-1]}; expected a sum of 1"
            )
        cells = [(max(low, a), min(high, b)) for a, b in pairwise(edges)]
        width = high - low
        token = self._branch([(b - a) / width if a < b else ZERO for a, b in cells])
        self._noise[position] = cells[token]
        return token

    def _branch(self, chances: Sequence[Fraction]) -> int:
        possible = [outcome for outcome, chance in enumerate(chances) if chance]
        if len(possible) == 1:
            return possible[0]
        if len(self.trail) < len(self._script):
            outcome = self._script[len(self.trail)]
            if outcome not in possible:
                raise InputError(f"{_FICKLE}: what it did has no chance now")
            possible = possible[possible.index(outcome) :]
        self.trail.append(possible)
        self.probability *= chances[possible[0]]
        return possible[0]

    def _once(self, kind: str, position: int | None, attempt: int) -> None:
        if position is not None:
            coin = (kind, position, attempt)
            if coin in self._tossed:
                raise InputError(f"the coin {coin} was asked for twice; keyed, both are the same")
            self._tossed.add(coin)


def _refuse_floats(*numbers: object) -> None:
    for number in numbers:
        if isinstance(number, float):
            raise InputError(f"{number} is a float; expected a Fraction")
