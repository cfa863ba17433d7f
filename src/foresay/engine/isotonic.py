"""The best rising fit to values that should rise: neighbours that do not are pooled."""

from __future__ import annotations

from collections.abc import Sequence

__all__ = ["isotonic"]


def isotonic(values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """The non-decreasing values nearest to `values` in weighted squares.

    Mutates: nothing. Valid until: for ever. Raises: nothing. GIL: held.
    """
    fits: list[float] = []
    heavy: list[float] = []
    sizes: list[int] = []
    for fit, weight in zip(values, weights, strict=True):
        size = 1
        while fits and fits[-1] > fit:
            last = heavy.pop()
            fit = (fits.pop() * last + fit * weight) / (last + weight)
            weight += last
            size += sizes.pop()
        fits.append(fit)
        heavy.append(weight)
        sizes.append(size)
    if len(fits) == len(values):
        return fits
    return [fit for fit, size in zip(fits, sizes, strict=True) for _ in range(size)]
