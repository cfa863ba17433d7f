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
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial, reduce
from typing import TypeAlias

from foresay.errors import ForesayError, InputError
from foresay.lossless.chance import Enumeration, distribution_of, outcomes
from foresay.lossless.schemes import RIGHT, Scheme, step_of
from foresay.lossless.worlds import Text, World, world_of
from foresay.lossless.wrong import WRONG

__all__ = [
    "Difference",
    "ExactResult",
    "check",
    "emitted_distribution",
    "run",
    "run_many",
    "said_by",
    "target_distribution",
]

Texts: TypeAlias = dict[Text, Fraction]
Progress: TypeAlias = Callable[[str, int], None]
"""Called with the name of a scheme and the number of cases just done."""

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
    """What a number of cases said about a scheme."""

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


def target_distribution(world: World) -> Texts:
    """The distribution of plain decoding: the product of p."""
    found: Texts = {(): Fraction(1)}
    for _ in range(world.length):
        found = {
            (*text, token): chance * p
            for text, chance in found.items()
            for token, p in enumerate(world.p[text])
            if p
        }
    return found


def emitted_distribution(scheme: Scheme, world: World) -> Texts:
    """The distribution of the first `world.length` tokens that a scheme emits, step after step."""
    if scheme.rule == "match":
        return _sums((text, chance) for (_, text), chance in _side_by_side(scheme, world).items())
    found: Texts = {}
    alive: list[Texts] = [{} for _ in range(world.length)]
    alive[0][()] = Fraction(1)
    for texts in alive:
        for text, chance in texts.items():
            for after, share in _step_distribution(scheme, world, text).items():
                there = alive[len(after)] if len(after) < world.length else found
                there[after] = there.get(after, Fraction(0)) + chance * share
    return found


def check(scheme: Scheme, world: World) -> Difference | None:
    """None if the scheme is, in this world, exactly what it claims."""
    target = target_distribution(world)
    changed: Texts = {}
    if scheme.rule == "match":
        pairs = _side_by_side(scheme, world)
        emitted = _sums((text, chance) for (_, text), chance in pairs.items())
        changed = _sums((plain, chance) for (plain, t), chance in pairs.items() if plain != t)
    else:
        emitted = emitted_distribution(scheme, world)
    gaps = {t: emitted.get(t, Fraction(0)) - target.get(t, Fraction(0)) for t in target | emitted}
    distance = sum(map(abs, gaps.values()), start=Fraction(0)) / 2
    if not distance and not changed:
        return None
    text = max(gaps, key=lambda t: (abs(gaps[t]), changed.get(t, Fraction(0)), t))
    both = target.get(text, Fraction(0)), emitted.get(text, Fraction(0))
    return Difference(world.name, distance, sum(changed.values(), Fraction(0)), text, *both)


def run(
    scheme: Scheme, cases: int, seed: int = 0, progress: Progress | None = None, start: int = 0
) -> ExactResult:
    """Checks a scheme in `cases` worlds, from index `start` on."""
    result = ExactResult(scheme.name)
    for index in range(start, start + cases):
        try:
            found = check(scheme, world_of(seed, index))
            one = ExactResult(scheme.name, 1, int(found is not None), 0, found)
        except (Exception, SystemExit) as error:
            # A scheme may be a user's function: whatever it raises is a result, with its case.
            said = f"case {seed}/{index}: {said_by(error)}"
            one = ExactResult(scheme.name, 1, errors=1, first_error=said)
        result = _together(result, one)
        if progress is not None:
            progress(scheme.name, 1)
    return result


def said_by(error: BaseException) -> str:
    """An error in one line; our own are sentences, others need their name."""
    said = " ".join(str(error).split())
    return said if isinstance(error, ForesayError) else f"{type(error).__name__}: {said}"


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
    unknown = sorted(set(names) - set(RIGHT) - set(WRONG))
    if unknown:
        raise InputError(f"no scheme has the name {unknown[0]}; there are {[*RIGHT, *WRONG]}")
    if workers < 2:
        return {name: run(_named(name), cases, seed, progress) for name in names}
    shares = [
        (name, min(_SHARE, cases - start), seed, start)
        for name in names
        for start in range(0, cases, _SHARE)
    ]
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        futures = {pool.submit(_run_share, share): share for share in shares}
        try:
            for future in as_completed(futures):
                if progress is not None:
                    progress(*futures[future][:2])
        except BaseException:
            pool.shutdown(cancel_futures=True)  # an interrupted proof does not run to its end
            raise
        done = [future.result() for future in futures]
    return {
        name: reduce(_together, (r for r in done if r.scheme == name), ExactResult(name))
        for name in names
    }


def _named(name: str) -> Scheme:
    return RIGHT[name] if name in RIGHT else WRONG[name]


def _run_share(share: tuple[str, int, int, int]) -> ExactResult:
    name, cases, seed, start = share
    return run(_named(name), cases, seed, start=start)


def _step_distribution(scheme: Scheme, world: World, text: Text) -> Texts:
    """The distribution of the text after one step, cut to the world's length.

    Drafts are enumerated first and each one's verification by itself: no rule can let its coins
    reach back into the draft, and the draft is not sampled again for every coin.
    """
    found: Texts = {}
    for tree, chance in outcomes(partial(scheme.draft, world, text)):
        step = step_of(world, text, tree)
        for emitted, share in outcomes(partial(scheme.verify, step)):
            after = _extended(scheme, world, text, emitted)
            found[after] = found.get(after, Fraction(0)) + chance * share
    return found


def _side_by_side(scheme: Scheme, world: World) -> dict[tuple[Text, Text], Fraction]:
    """The distribution of (text of plain decoding, text of the scheme) under the same noise."""

    def both(noise: Enumeration) -> tuple[Text, Text]:
        plain: Text = ()
        while len(plain) < world.length:
            plain = (*plain, noise.choose(world.p[plain], len(plain)))
        text: Text = ()
        while len(text) < world.length:
            step = step_of(world, text, scheme.draft(world, text, noise))
            text = _extended(scheme, world, text, scheme.verify(step, noise))
        return plain, text

    return distribution_of(both)


def _extended(scheme: Scheme, world: World, text: Text, emitted: Sequence[int]) -> Text:
    if not len(emitted) or not all(0 <= token < world.vocabulary for token in emitted):
        raise InputError(
            f"scheme {scheme.name} emitted {list(emitted)} after {text}; expected at least one "
            f"token from 0 to {world.vocabulary - 1}"
        )
    return (*text, *map(int, emitted))[: world.length]


def _sums(items: Iterable[tuple[Text, Fraction]]) -> Texts:
    found: Texts = {}
    for text, chance in items:
        found[text] = found.get(text, Fraction(0)) + chance
    return found


def _together(a: ExactResult, b: ExactResult) -> ExactResult:
    """Both results in one; of equally bad cases the first stays the worst."""
    worst = max((r.worst for r in (a, b) if r.worst), key=_badness, default=None)
    return replace(
        a,
        cases=a.cases + b.cases,
        differences=a.differences + b.differences,
        errors=a.errors + b.errors,
        worst=worst,
        first_error=a.first_error or b.first_error,
    )


def _badness(difference: Difference) -> tuple[Fraction, Fraction]:
    return difference.total_variation, difference.changed
