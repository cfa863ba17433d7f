"""A user's verify function, put to the same proof.

    verify(p, q, tokens, parents, coins)   proved exactly: probs are rational, chance is enumerated
    verify(p, q, tokens, parents, rng)     tested: probs are float64 arrays, chance is a Generator

p has the target's n + 1 rows of probs (after the text, and after each node), q the probs that each
of the n nodes was sampled from (None: it was chosen), and the function returns the tokens that the
step emits.

Mutates: nothing. Valid until: for ever. Raises: InputError for what is no such function; what the
function itself raises is a failed check. GIL: held.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from foresay.errors import InputError
from foresay.lossless import exact
from foresay.lossless.chance import Dice, outcomes
from foresay.lossless.check import Check
from foresay.lossless.gtest import confirmed
from foresay.lossless.schemes import Scheme, UserVerify, step_of, user_scheme
from foresay.lossless.worlds import World, world_of

__all__ = ["load", "prove_function"]

Function: TypeAlias = Callable[..., Any]
TRIED_WORLDS = 4
_NEEDED = "expected p, q, tokens, parents and then coins (to be proved) or rng (to be tested)"


def load(name: str) -> Function:
    """The function `module:function` or `path/to/file.py:function`.

    A file's folder, for a module the current one, comes first on sys.path while it is imported.

    Raises: InputError.
    """
    home, _, function = name.rpartition(":")
    if not home or not function:
        raise InputError(f"{name!r} is no function; expected module:function or file.py:function")
    try:
        module = _file(Path(home)) if home.endswith(".py") else _module(home)
        there = hasattr(module, function)
        found = getattr(module, function, None)
    except (Exception, SystemExit) as error:  # whatever a user's module raises, or that it exits
        raise InputError(f"{home!r} cannot be imported: {exact.said_by(error)}") from error
    if not there:
        raise InputError(f"{home!r} has no function {function!r}")
    if not callable(found):
        raise InputError(
            f"{function!r} in {home!r} is a value of type {type(found).__name__}; "
            "expected a function"
        )
    return found  # type: ignore[no-any-return]


def prove_function(
    verify: Function,
    cases: int = 300,
    trees: bool = False,
    seed: int = 0,
    total_variation: float = 0.05,
) -> Iterator[Check]:
    """The checks of a user's function: with drafts that were all sampled, and with chosen ones too.
    With `coins` in so many cases; with `rng` so that a bias of this total variation is found.

    Raises: InputError if its fifth parameter is neither `coins` nor `rng`.
    """
    proves = _fifth(verify) == "coins"
    shape = "trees" if trees else "chains"
    for chosen in (False, True):
        name = f"{shape}, sampled and chosen" if chosen else f"{shape}, sampled"
        if proves:
            found = _prove(user_scheme(verify, trees, chosen), cases, seed)
        else:
            found = _test(verify, trees, chosen, seed, total_variation)
        yield Check("user", name, *found, kind="proof" if proves else "test")


def _file(path: Path) -> ModuleType:
    """The module in a file, by its stem, unless another module has that name already."""
    path, name = path.resolve(), path.stem
    if name in sys.modules and getattr(sys.modules[name], "__file__", None) != str(path):
        name = f"{name}_to_be_proved"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError("it is no Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for the module that they are in
    try:
        with _first_on_path(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def _module(name: str) -> ModuleType:
    with _first_on_path(Path.cwd()):
        return importlib.import_module(name)


@contextmanager
def _first_on_path(folder: Path) -> Iterator[None]:
    importlib.invalidate_caches()
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        with suppress(ValueError):  # a module may change the path itself
            sys.path.remove(str(folder))


def _fifth(verify: Function) -> str:
    """The name of the parameter that chance comes in."""
    try:
        parameters = list(inspect.signature(verify).parameters.values())
    except Exception as error:  # of builtins, and of objects that claim a signature
        raise InputError(f"the function's parameters cannot be read; {_NEEDED}") from error
    places = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    optional = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    five, more = parameters[:5], parameters[5:]
    valid = (
        len(five) == 5
        and all(one.kind in places for one in five)
        and five[-1].name in ("coins", "rng")
        and all(one.kind in optional or one.default is not one.empty for one in more)
    )
    if not valid:
        listed = ", ".join(map(str, parameters)) or "none"
        raise InputError(
            f"the function has the parameters {listed}; {_NEEDED}, and more only with defaults"
        )
    return five[-1].name


def _prove(scheme: Scheme, cases: int, seed: int) -> tuple[bool, str]:
    result = exact.run(scheme, cases, seed)
    said = f"{result.differences} differences in {result.cases} cases"
    said += f" ({_limits(scheme, [world_of(seed, index) for index in range(cases)])})"
    if result.first_error is not None:
        said += f", {result.errors} errors, the first in {result.first_error}"
    elif result.worst is not None:
        worst = result.worst
        said += (
            f"; the worst is case {worst.case}: the text {list(worst.text)} has chance "
            f"{worst.target}, the function gives it {worst.emitted}"
        )
    return result.exact, said


def _test(
    verify: Function, trees: bool, chosen: bool, seed: int, total_variation: float
) -> tuple[bool, str]:
    """The same with floats and a generator: sampled texts against their exact distribution, in
    some worlds."""
    worlds = (world_of(seed, index) for index in range(1000))
    varied = (w for w in worlds if len(set(exact.target_distribution(w).values())) > 2)
    tried = list(islice(varied, TRIED_WORLDS))
    for world in tried:
        chances = exact.target_distribution(world)
        texts = sorted(chances)
        counts = partial(_counts, verify, trees, chosen, world, texts)
        try:
            outcome = confirmed(
                counts,
                [float(chances[text]) for text in texts],
                total_variation=total_variation,
                family=2 * TRIED_WORLDS,
                seed=seed,
            )
        except (Exception, SystemExit) as error:  # a user's: whatever it raises is a result
            return False, f"case {world.name}: {exact.said_by(error)}"
        if not outcome.equal:
            return False, f"case {world.name}: {outcome}"
    limits = _limits(user_scheme(verify, trees, chosen), tried)
    return True, f"{len(tried)} worlds ({limits}), the last: {outcome}"


def _limits(scheme: Scheme, worlds: list[World]) -> str:
    """How large the cases were: what is larger was not looked at."""
    drafts = [tree for world in worlds for tree, _ in outcomes(partial(scheme.draft, world, ()))]
    vocabulary, length = (
        max((getattr(world, name) for world in worlds), default=0)
        for name in ("vocabulary", "length")
    )
    nodes = max((len(tree.tokens) for tree in drafts), default=0)
    deep = max((_deep(tree.parents) for tree in drafts), default=0)
    return (
        f"worlds of up to {vocabulary} tokens, drafts of up to {nodes} nodes and {deep} deep, "
        f"texts of up to {length} tokens"
    )


def _deep(parents: Sequence[int]) -> int:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 + (depths[parent] if parent >= 0 else 0))
    return max(depths, default=0)


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
    tables = (world.p, *world.q)
    known = {id(row): np.array(row, np.float64) for table in tables for row in table.values()}

    def floats(row: Any) -> Any:
        """An array of the function's own; converting a row of fractions takes long."""
        found = known.get(id(row))
        return np.array(row, np.float64) if found is None else found.copy()

    def with_floats(p: Any, q: Any, tokens: Any, parents: Any, coins: object) -> Any:
        probs = [floats(row) for row in p]
        draft_probs = [None if row is None else floats(row) for row in q]
        return verify(probs, draft_probs, tokens, parents, rng)

    typed: UserVerify = with_floats
    scheme = user_scheme(typed, trees, chosen)
    place, counts = {text: i for i, text in enumerate(texts)}, [0] * (len(texts) + 1)
    for _ in range(n):
        text: tuple[int, ...] = ()
        while len(text) < world.length:
            step = step_of(world, text, scheme.draft(world, text, dice))
            text = (*text, *scheme.verify(step, dice))[: world.length]
        counts[place.get(text, -1)] += 1
    if counts[-1]:
        raise InputError(f"{counts[-1]} texts of {n} cannot be written by the target at all")
    return counts[:-1]
