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
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import cache, partial
from itertools import accumulate, islice
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias

import numpy as np

from foresay.errors import InputError
from foresay.lossless import Check, exact
from foresay.lossless.chance import outcomes
from foresay.lossless.gtest import Outcome, confirmed
from foresay.lossless.schemes import Scheme, SchemeStep, step_of, user_scheme
from foresay.lossless.worlds import Text, World, world_of

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
        exists = hasattr(module, function)
        found = getattr(module, function, None)
    except (Exception, SystemExit) as error:  # whatever a user's module raises, or that it exits
        raise InputError(f"{home!r} cannot be imported: {exact.message_of(error)}") from error
    if not exists:
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
    With `coins` in that number of cases; with `rng` so that a bias of `total_variation` is found.

    Raises: InputError if its fifth parameter is neither `coins` nor `rng`.
    """
    proves = _fifth(verify) == "coins"
    for chosen in (False, True):
        name = f"{'trees' if trees else 'chains'}, sampled{' and chosen' if chosen else ''}"
        scheme = user_scheme(verify, trees, chosen)
        if proves:
            result = exact.run(scheme, cases, seed)
            limits = _limits(scheme, [world_of(seed, index) for index in range(cases)])
            yield Check("user", name, result.exact, f"{result} ({limits})")
        else:
            yield Check("user", name, *_test(scheme, seed, total_variation), kind="test")


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
    needed, more = parameters[:5], parameters[5:]
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    others = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    valid = [one.kind in positional for one in needed] == [True] * 5
    optional = all(one.kind in others or one.default is not one.empty for one in more)
    if not (valid and optional and needed[-1].name in ("coins", "rng")):
        listed = ", ".join(map(str, parameters)) or "none"
        raise InputError(
            f"the function has the parameters {listed}; {_NEEDED}, and more only with defaults"
        )
    return needed[-1].name


def _test(scheme: Scheme, seed: int, total_variation: float) -> tuple[bool, str]:
    """The same with floats and a generator: sampled texts against their exact distribution, in
    some worlds."""
    worlds = (world_of(seed, index) for index in range(1000))
    varied = (w for w in worlds if len(set(exact.target_distribution(w).values())) > 2)
    tried = list(islice(varied, TRIED_WORLDS))
    outcome: Outcome | None = None
    for world in tried:
        chances = exact.target_distribution(world)
        try:
            outcome = confirmed(
                partial(_counts, scheme, world, list(chances)),
                [float(chance) for chance in chances.values()],
                total_variation=total_variation,
                family=2 * TRIED_WORLDS,
                seed=seed,
            )
        except (Exception, SystemExit) as error:  # a user's: whatever it raises is a result
            return False, f"case {world.name}: {exact.message_of(error)}"
        if not outcome.equal:
            return False, f"case {world.name}: {outcome}"
    return True, f"{len(tried)} worlds ({_limits(scheme, tried)}), the last: {outcome}"


def _limits(scheme: Scheme, worlds: list[World]) -> str:
    """How large the cases were: what is larger was not looked at."""
    drafts = [tree for world in worlds for tree, _ in outcomes(partial(scheme.draft, world, ()))]
    vocabulary = max((world.vocabulary for world in worlds), default=0)
    length = max((world.length for world in worlds), default=0)
    nodes = max((len(tree.tokens) for tree in drafts), default=0)
    deep = max((depth for tree in drafts for depth in tree.depths), default=0)
    return (
        f"worlds of up to {vocabulary} tokens, drafts of up to {nodes} nodes and {deep} deep, "
        f"texts of up to {length} tokens"
    )


def _counts(scheme: Scheme, world: World, texts: list[Text], seed: int, n: int) -> list[int]:
    """How often the function writes each text, of n; its probs are arrays, its chance a generator.

    Raises: InputError for texts that the target cannot write; what the function raises.
    """
    rng = np.random.default_rng(seed)

    @cache
    def steps(text: Text) -> tuple[list[SchemeStep], list[float]]:
        """The possible steps after a text, and their cumulative chances."""
        ways = list(outcomes(partial(scheme.draft, world, text)))
        some = [_map_probs(step_of(world, text, tree), _as_array) for tree, _ in ways]
        return some, list(accumulate(float(chance) for _, chance in ways))

    counts: Counter[Text] = Counter()
    for _ in range(n):
        text: Text = ()
        while len(text) < world.length:
            some, edges = steps(text)
            step = some[min(bisect(edges, rng.random()), len(some) - 1)]
            # A copy: the function may write into its arguments.
            tokens = scheme.verify(_map_probs(step, np.copy), rng)  # type: ignore[arg-type]
            text = (*text, *tokens)[: world.length]
        counts[text] += 1
    possible = [counts.pop(text, 0) for text in texts]
    if counts:
        raise InputError(f"{counts.total()} texts of {n} cannot be written by the target at all")
    return possible


def _as_array(row: Any) -> Any:
    return np.array(row, np.float64)


def _map_probs(step: SchemeStep, change: Callable[[Any], Any]) -> SchemeStep:
    q = tuple(None if row is None else change(row) for row in step.tree.q)
    return replace(step, p=tuple(map(change, step.p)), tree=step.tree._replace(q=q))
