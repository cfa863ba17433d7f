"""How the answers of two servers differ.

Mutates: nothing. Valid until: for ever. Raises: `GreedyResult.faults`, InputError. GIL: held.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from foresay.errors import InputError

__all__ = ["FINE", "POWER", "Comparison", "Difference", "GreedyResult", "SampledResult"]

POWER = 0.99
FINE = 0.25  # the total variation that a comparison must be able to find to prove anything


@dataclass(frozen=True, slots=True)
class Difference:
    """A prompt to which the servers give different greedy answers."""

    prompt: int
    at: int  # the first character that differs
    a: str  # what is around it in the answer of each
    b: str
    margin: float | None  # between the two likeliest tokens at the first that differs, in nats;
    # None where that is not known, or not these two are what the servers wrote
    asked: str = ""  # the beginning of the prompt

    def __str__(self) -> str:
        margin = "of unknown margin" if self.margin is None else f"of margin {self.margin:.3g} nats"
        return (
            f"prompt {self.prompt} ({self.asked!r}): A writes {self.a!r} and B {self.b!r}, "
            f"different from character {self.at} on, {margin}"
        )


@dataclass(frozen=True, slots=True)
class GreedyResult:
    """All differences between greedy answers."""

    prompts: int
    differences: tuple[Difference, ...]

    @property
    def equal(self) -> bool:
        return not self.differences

    def faults(self, tie: float = 0.01) -> tuple[Difference, ...]:
        """The differences that are no ties, which floating point breaks one way or the other.

        One of unknown margin counts. Half precision needs a larger tie, up to 0.25 for bfloat16.
        Raises: InputError.
        """
        if not 0 <= tie < math.inf:
            raise InputError(f"tie is {tie}; expected a margin in nats, finite and at least 0")
        # Not `>`: a margin that is no number is no tie.
        return tuple(d for d in self.differences if d.margin is None or not d.margin <= tie)

    def __str__(self) -> str:
        found = f"different in {len(self.differences)}" if self.differences else "equal in all"
        return "\n".join(
            [f"greedy: {found} of {self.prompts} prompts", *map(str, self.differences)]
        )


@dataclass(frozen=True, slots=True)
class Comparison:
    """One test of the answers of A and B to all prompts."""

    p_value: float  # by permutation: exact, at least 1e-4; it decides
    chi_square: float  # the p-value by approximation, which can be smaller
    df: int
    filled: int  # prompts with more than one answer that is frequent enough to count
    shift: tuple[int, str, int, int]  # what moved most: prompt, answer, how often by A and by B


@dataclass(frozen=True, slots=True)
class SampledResult:
    """Whether sampled answers have one distribution, and how small a difference would have been
    found."""

    equal: bool
    prompts: int
    n: int  # answers per prompt and server in the first test
    tests: tuple[Comparison, ...]  # the first, and its confirmation with 4 n if it rejected
    false_alarm: float
    each: float | None  # the total variation found with 99 % if all prompts have it; None: not one
    alone: float | None  # and if a single prompt has it

    @property
    def proved(self) -> bool:
        """Equal, and a difference of total variation 0.25 would have been found."""
        return self.equal and self.each is not None and self.each <= FINE

    def __str__(self) -> str:
        prompt, text, a, b = self.tests[-1].shift
        if not self.equal:
            end = f"most of all, A answers {text!r} to prompt {prompt} {a} times and B {b} times"
        elif self.each is None:
            end = "which says nothing: answers are all one, or hardly two alike, or too few"
        else:
            end = f"a total variation of {self.each:.2g} in all prompts"
            end += f" or {self.alone:.2g} in one" if self.alone else ""
            end += f" would have been found with chance {POWER:g}"
            if not self.proved:
                end += f", too few answers to prove anything: {FINE:g} in all prompts is needed"
        return (
            f"sampled: {'equal' if self.equal else 'different'} with p = "
            f"{', '.join(f'{test.p_value:.2g}' for test in self.tests)} from {self.n} answers of "
            f"each server to each of {self.prompts} prompts; {end}; a false alarm has chance "
            f"{self.false_alarm:.2g}"
        )
