"""The proof by enumeration: the distribution of the emitted text, compared with the target's, as
fractions.

Rule rejection claims a distribution. Its steps use coins of their own, so that of one step is found
once for every text, and steps are combined by the law of total probability. Rule match claims more:
for every noise the text is the one of plain decoding. Its steps share the noise, so whole texts are
enumerated, speculative and plain decoding side by side.

A case is a world, made from (seed, index); a result says which case was worst.

Mutates: nothing. Valid until: for ever. Raises: `check` and what it calls, what a scheme raises,
and InputError for one that emits no tokens; `run` and `run_many` count it instead. GIL: held.
"""

from __future__ import annotations

import multiprocessing
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from typing import TypeAlias

from foresay.errors import ForesayError, InputError
from foresay.lossless.chance import Chance, outcomes
from foresay.lossless.schemes import RIGHT, Scheme, step_of
from foresay.lossless.worlds import Text, World, world_of
from foresay.lossless.wrong import WRONG

Texts: TypeAlias = dict[Text, Fraction]
Progress: TypeAlias = Callable[[int], None]
"""Called with the number of cases just done."""

_SHARE = 25
"""Cases that a process takes at a time."""


@dataclass(frozen=True)
class Difference:
    """A case in which a scheme is not what it claims."""

    case: str
    """seed/index of the world."""
    total_variation: Fraction
    """Between the distribution of the emitted text and the target's."""
    changed: Fraction
    """Of all noise, the part under which the text is not plain decoding's; 0 for rule rejection."""
    text: Text
    """The text whose chance differs most; where none does, the likeliest one that was changed."""
    target: Fraction
    """Its chance in plain decoding."""
    emitted: Fraction
    """Its chance in the scheme."""


@dataclass(frozen=True)
class ExactResult:
    """The outcome of a number of cases of a scheme; results of other cases can be added."""

    scheme: str
    cases: int = 0
    differences: int = 0
    errors: int = 0
    """Cases in which the scheme raised."""
    worst: Difference | None = None
    first_error: str | None = None

    @property
    def exact(self) -> bool:
        """Whether every case was tried and none differed."""
        return self.cases > 0 and not self.differences and not self.errors

    def __add__(self, other: ExactResult) -> ExactResult:
        # Of equally bad cases the first stays the worst.
        both = [r.worst for r in (self, other) if r.worst is not None]
        return ExactResult(
            self.scheme,
            self.cases + other.cases,
            self.differences + other.differences,
            self.errors + other.errors,
            max(both, key=lambda worst: (worst.total_variation, worst.changed), default=None),
            self.first_error or other.first_error,
        )

    def __str__(self) -> str:
        text = f"{self.differences} differences in {self.cases} cases"
        if self.first_error is not None:
            return f"{text}, {self.errors} errors, the first in {self.first_error}"
        if self.worst is None:
            return text
        worst = self.worst
        return (
            f"{text}; the worst is case {worst.case} of total variation "
            f"{float(worst.total_variation):.4f}: the text {list(worst.text)} has chance "
            f"{worst.target}, and here {worst.emitted}"
        )


def target_distribution(world: World) -> Texts:
    """The distribution of plain decoding: the product of p."""
    texts: Texts = {(): Fraction(1)}
    for _ in range(world.length):
        texts = {
            (*text, token): chance * p
            for text, chance in texts.items()
            for token, p in enumerate(world.p[text])
            if p
        }
    return texts


def emitted_distribution(scheme: Scheme, world: World) -> tuple[Texts, Texts]:
    """The distribution of the first `world.length` tokens that a scheme emits, step after step; and
    of rule match, by text of plain decoding, the noise under which the text is another one."""
    found: Texts = defaultdict(Fraction)
    changed: Texts = defaultdict(Fraction)
    if scheme.rule == "match":
        for (plain, text), chance in outcomes(partial(_side_by_side, scheme, world)):
            found[text] += chance
            if plain != text:
                changed[plain] += chance
        return found, changed
    alive: list[Texts] = [defaultdict(Fraction) for _ in range(world.length)]
    alive[0][()] = Fraction(1)
    for texts in alive:
        for text, chance in texts.items():
            for after, share in _one_step(scheme, world, text):
                there = alive[len(after)] if len(after) < world.length else found
                there[after] += chance * share
    return found, changed


def check(scheme: Scheme, world: World) -> Difference | None:
    """None if the scheme is, in this world, exactly what it claims."""
    zero, target = Fraction(0), target_distribution(world)
    emitted, changed = emitted_distribution(scheme, world)
    gaps = {t: emitted.get(t, zero) - target.get(t, zero) for t in target | emitted}
    distance = sum(map(abs, gaps.values()), start=zero) / 2
    if not distance and not changed:
        return None
    text = max(gaps, key=lambda t: (abs(gaps[t]), changed.get(t, zero), t))
    both = target.get(text, zero), emitted.get(text, zero)
    return Difference(world.name, distance, sum(changed.values(), zero), text, *both)


def run(
    scheme: Scheme, cases: int, seed: int = 0, progress: Progress | None = None, start: int = 0
) -> ExactResult:
    """Checks a scheme in `cases` worlds, from index `start` on."""
    result = ExactResult(scheme.name)
    for index in range(start, start + cases):
        try:
            found = check(scheme, world_of(seed, index))
            result += ExactResult(scheme.name, 1, int(found is not None), 0, found)
        except (Exception, SystemExit) as error:
            # A scheme may be a user's function: whatever it raises is a result, with its case.
            message = f"case {seed}/{index}: {message_of(error)}"
            result += ExactResult(scheme.name, 1, errors=1, first_error=message)
        if progress is not None:
            progress(1)
    return result


def message_of(error: BaseException) -> str:
    """An error in one line; our own are sentences, others need their name."""
    message = " ".join(str(error).split())
    return message if isinstance(error, ForesayError) else f"{type(error).__name__}: {message}"


def run_many(
    names: Sequence[str],
    cases: int,
    seed: int = 0,
    workers: int = 2,
    progress: Progress | None = None,
) -> dict[str, ExactResult]:
    """Runs schemes of `RIGHT` and `WRONG` by name; the result does not depend on `workers`.

    More than one worker are processes of their own, started afresh (spawn: a fork copies locks
    that threads hold), so a script that calls this needs the guard `if __name__ == "__main__"`.
    """
    for name in names:
        if name not in RIGHT | WRONG:
            raise InputError(f"no scheme has the name {name}; there are {[*RIGHT, *WRONG]}")
    results = {name: ExactResult(name) for name in names}
    shares = [
        (name, min(_SHARE, cases - start), seed, start)
        for name in names
        for start in range(0, cases, _SHARE)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        try:
            for result in (pool.map if workers > 1 else map)(_run_share, shares):
                results[result.scheme] += result
                if progress is not None:
                    progress(result.cases)
        except BaseException:
            pool.shutdown(cancel_futures=True)  # an interrupted proof does not run to its end
            raise
    return results


def _run_share(share: tuple[str, int, int, int]) -> ExactResult:
    name, cases, seed, start = share
    return run((RIGHT | WRONG)[name], cases, seed, start=start)


def _one_step(scheme: Scheme, world: World, text: Text) -> Iterator[tuple[Text, Fraction]]:
    """The texts after one step, cut to the world's length, with their chances.

    Drafts are enumerated first and each one's verification by itself: no rule can let its coins
    reach back into the draft, and the draft is not sampled again for every coin.
    """
    for tree, chance in outcomes(partial(scheme.draft, world, text)):
        step = step_of(world, text, tree)
        for emitted, share in outcomes(partial(scheme.verify, step)):
            yield _extended(scheme, world, text, emitted), chance * share


def _side_by_side(scheme: Scheme, world: World, noise: Chance) -> tuple[Text, Text]:
    """The texts of plain decoding and of the scheme under the same noise."""
    plain: Text = ()
    while len(plain) < world.length:
        plain = (*plain, noise.choose(world.p[plain], len(plain)))
    text: Text = ()
    while len(text) < world.length:
        step = step_of(world, text, scheme.draft(world, text, noise))
        text = _extended(scheme, world, text, scheme.verify(step, noise))
    return plain, text


def _extended(scheme: Scheme, world: World, text: Text, emitted: Sequence[int]) -> Text:
    if not len(emitted) or not all(0 <= token < world.vocabulary for token in emitted):
        raise InputError(
            f"scheme {scheme.name} emitted {list(emitted)} after {text}; expected at least one "
            f"token from 0 to {world.vocabulary - 1}"
        )
    return (*text, *map(int, emitted))[: world.length]
