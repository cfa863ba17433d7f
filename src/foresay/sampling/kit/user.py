"""Somebody else's verify function, put to the same proof.

    verify(p, q, tokens, parents, coins)   proved exactly: laws are rational, chance is enumerated
    verify(p, q, tokens, parents, rng)     tested: laws are float64 arrays, chance is a Generator

p has the target's n + 1 laws (after the text, and after each node), q the law that each of the n
nodes was drawn from (None: it was chosen), and the function returns the tokens that the step emits.

Mutates: nothing. Valid until: for ever. Raises: InputError for what is no such function; what the
function itself raises is a failed check. GIL: held.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from foresay.errors import InputError
from foresay.sampling.kit import exact
from foresay.sampling.kit.chance import Dice
from foresay.sampling.kit.gtest import confirmed
from foresay.sampling.kit.prove import Check
from foresay.sampling.kit.schemes import Scheme, UserVerify, step_of, user_scheme
from foresay.sampling.kit.worlds import World, world_of

__all__ = ["load", "prove_function"]

Function: TypeAlias = Callable[..., Any]
TRIED_WORLDS = 4


def load(name: str) -> Function:
    """The function `module:function` or `path/to/file.py:function`.

    Mutates: imports the module. Raises: InputError.
    """
    home, _, function = name.rpartition(":")
    if not home or not function:
        raise InputError(f"{name!r} is no function; module:function or file.py:function is one")
    try:
        if home.endswith(".py"):
            spec = importlib.util.spec_from_file_location(Path(home).stem, home)
            assert spec is not None and spec.loader is not None
            module = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(module)
        else:
            module = importlib.import_module(home)
    except Exception as error:  # whatever a user's module raises while it is imported
        raise InputError(f"{home!r} cannot be imported: {type(error).__name__}: {error}") from error
    found = getattr(module, function, None)
    if not callable(found):
        raise InputError(f"{home!r} has no function {function!r}")
    return found  # type: ignore[no-any-return]


def prove_function(
    verify: Function, cases: int = 300, trees: bool = False, seed: int = 0
) -> Iterator[Check]:
    """The checks of a user's function: with drafts that were all drawn, and with chosen ones too.

    Raises: InputError if its last parameter is neither `coins` nor `rng`.
    """
    parameters = list(inspect.signature(verify).parameters)
    if len(parameters) != 5 or parameters[-1] not in ("coins", "rng"):
        raise InputError(
            f"the function has the parameters {', '.join(parameters)}; p, q, tokens, parents and "
            "then coins (to be proved) or rng (to be tested) are needed"
        )
    shape = "trees" if trees else "chains"
    for chosen in (False, True):
        name = f"{shape}, drawn and chosen" if chosen else f"{shape}, drawn"
        scheme = user_scheme(verify, trees, chosen)
        check = _prove(scheme, cases, seed) if parameters[-1] == "coins" else None
        yield Check("user", name, *(check or _test(verify, trees, chosen, seed)))


def _prove(scheme: Scheme, cases: int, seed: int) -> tuple[bool, str]:
    result = exact.run(scheme, cases, seed)
    said = f"{result.differences} differences in {result.cases} cases"
    if result.first_error is not None:
        said += f", {result.errors} errors, the first in {result.first_error}"
    elif result.worst is not None:
        worst = result.worst
        said += (
            f"; the worst is case {worst.case}: the text {list(worst.text)} has chance "
            f"{worst.target}, the function gives it {worst.emitted}"
        )
    return result.exact, said


def _test(verify: Function, trees: bool, chosen: bool, seed: int) -> tuple[bool, str]:
    """The same with floats and a generator: sampled texts against the exact law, in some worlds."""
    worlds = (world_of(seed, index) for index in range(1000))
    tried = [w for w in worlds if len(set(exact.target_law(w).values())) > 2][:TRIED_WORLDS]
    for world in tried:
        law = exact.target_law(world)
        texts = sorted(law)
        counts = partial(_counts, verify, trees, chosen, world, texts)
        try:
            outcome = confirmed(
                counts,
                [float(law[text]) for text in texts],
                total_variation=0.05,
                family=2 * TRIED_WORLDS,
                seed=seed,
            )
        except Exception as error:  # the function is a user's: whatever it raises is a result
            return False, f"case {world.name}: {type(error).__name__}: {error}"
        if not outcome.equal:
            return False, f"case {world.name}: {outcome}"
    return True, f"{len(tried)} worlds, the last: {outcome}"


def _counts(
    verify: Function,
    trees: bool,
    chosen: bool,
    world: World,
    texts: list[tuple[int, ...]],
    seed: int,
    n: int,
) -> list[int]:
    rng = np.random.default_rng(seed)
    dice = Dice(rng)

    def with_floats(p: Any, q: Any, tokens: Any, parents: Any, coins: object) -> Any:
        laws = [np.array(law, np.float64) for law in p]
        drawn = [None if law is None else np.array(law, np.float64) for law in q]
        return verify(laws, drawn, tokens, parents, rng)

    typed: UserVerify = with_floats
    scheme = user_scheme(typed, trees, chosen)
    place, counts = {text: i for i, text in enumerate(texts)}, [0] * (len(texts) + 1)
    for _ in range(n):
        text: tuple[int, ...] = ()
        while len(text) < world.length:
            step = step_of(world, text, scheme.draft(world, text, dice))
            emitted = scheme.verify(step, dice)
            if not len(emitted):
                raise InputError("a step emitted no token; it emits at least one")
            text = (*text, *(int(token) for token in emitted))[: world.length]
        counts[place.get(text, -1)] += 1
    if counts[-1]:
        raise InputError(f"{counts[-1]} texts of {n} cannot be written by the target at all")
    return counts[:-1]
