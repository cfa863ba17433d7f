"""The exact proof: the right schemes never differ, the wrong ones are found, and why to believe it.

The long form (1,000 worlds for each scheme) is `foresay lossless`; this is the short one.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import pytest

from foresay.errors import InputError
from foresay.lossless.chance import Chance, outcomes
from foresay.lossless.drafts import merged, mixed, sampled, tree_of
from foresay.lossless.exact import check, emitted_distribution, run, run_many, target_distribution
from foresay.lossless.schemes import RIGHT, Scheme, SchemeStep, rejection, step_of, user_scheme
from foresay.lossless.worlds import Probs, World, world_of
from foresay.lossless.wrong import WRONG, _walk
from lossless.example import example

F = Fraction
HALF = F(1, 2)


def distribution_of(function: Callable[[Chance], Any]) -> dict[Any, Fraction]:
    """The exact distribution of what `function` returns."""
    found: dict[Any, Fraction] = {}
    for result, probability in outcomes(function):
        found[result] = found.get(result, F(0)) + probability
    return found


# The schemes.


@pytest.mark.parametrize("name", RIGHT)
def test_right(name: str) -> None:
    result = run(RIGHT[name], cases=32)
    assert result.exact, result
    assert result.cases == 32
    assert not run(RIGHT[name], cases=0).exact  # no cases prove nothing


@pytest.mark.parametrize("name", WRONG)
def test_wrong_is_found(name: str) -> None:
    result = run(WRONG[name], cases=32)
    assert not result.exact
    assert result.errors == 0, result.first_error  # found by its distribution, not by an accident
    assert result.differences > 0
    assert result.worst is not None
    distribution_is_right = name == "noise-used-up"
    assert (result.worst.total_variation == 0) == distribution_is_right
    assert (result.worst.changed > 0) == (WRONG[name].rule == "match")


def test_the_wrong_walk_is_right_but_for_what_is_changed() -> None:
    assert run(Scheme("walk", "rejection", "", tree_of(mixed), _walk()), 50).exact


def test_names_are_unique_and_every_scheme_says_what_it_is() -> None:
    assert not RIGHT.keys() & WRONG.keys()
    assert len(WRONG) >= 14
    assert all(s.says.endswith(".") for s in [*RIGHT.values(), *WRONG.values()])


def test_a_difference_can_be_made_again() -> None:
    result = run(WRONG["lenient"], cases=30, seed=3)
    assert result.worst is not None
    seed, index = map(int, result.worst.case.split("/"))
    world = world_of(seed, index)
    assert check(WRONG["lenient"], world) == result.worst
    emitted, _ = emitted_distribution(WRONG["lenient"], world)
    target = target_distribution(world)
    assert emitted.get(result.worst.text, 0) == result.worst.emitted
    assert target.get(result.worst.text, 0) == result.worst.target
    gaps = [abs(emitted.get(t, F(0)) - target.get(t, F(0))) for t in target | emitted]
    assert result.worst.total_variation == sum(gaps) / 2
    assert abs(result.worst.emitted - result.worst.target) == max(gaps)


def test_processes_change_nothing() -> None:
    names = ["tree-distinct", "dropped", "match-chain-coupled"]
    done: list[int] = []
    many = run_many(names, 30, 1, 2, done.append)
    assert many == run_many(names, 30, 1, workers=1)
    assert sum(done) == 90
    assert many["dropped"].differences > 0
    with pytest.raises(InputError, match="no scheme has the name x"):
        run_many(["x"], 1)


# The two ways to compute a distribution: by steps, and all at once.


def whole_text(scheme: Scheme, world: World, chance: Chance) -> tuple[int, ...]:
    text: tuple[int, ...] = ()
    while len(text) < world.length:
        step = step_of(world, text, scheme.draft(world, text, chance))
        text = (*text, *scheme.verify(step, chance))
    return text[: world.length]


@pytest.mark.parametrize("name", ["chain-sampled", "tree-mixed", "dropped", "bonus-raw"])
def test_steps_combine_as_whole_texts_would(name: str) -> None:
    scheme = RIGHT.get(name) or WRONG[name]
    small = [world for index in range(12) if len((world := world_of(5, index)).p) < 8]
    assert len(small) > 5
    for world in small:
        whole = distribution_of(partial(whole_text, scheme, world))
        assert (whole, {}) == emitted_distribution(scheme, world)


def test_a_step_uses_only_coins_of_the_positions_it_emits() -> None:
    """So coins keyed by position are fresh in every step, as the combination of steps assumes."""

    class Watched(Chance):
        def accept(self, chance: Fraction, position: int | None = None, attempt: int = 0) -> bool:
            tossed.add(position)
            return super().accept(chance, position, attempt)

        def draw(self, weights: Sequence[Fraction], position: int | None = None) -> int:
            tossed.add(position)
            return super().draw(weights, position)

    tossed: set[int | None] = set()
    for index in range(30):
        world = world_of(6, index)
        for text in world.p:
            for tree, _ in outcomes(partial(tree_of(merged), world, text)):
                tossed.clear()
                emitted = rejection(step_of(world, text, tree), Watched())
                assert tossed == set(range(len(text), len(text) + len(emitted)))


# A user's function.


def classical(
    p: list[Probs], q: list[Probs | None], tokens: list[int], parents: list[int], coins: Chance
) -> list[int]:
    for i, token in enumerate(tokens):
        draft_probs = q[i]
        assert draft_probs is not None
        if not coins.accept(p[i][token] / draft_probs[token]):
            rest = [max(a - b, F(0)) for a, b in zip(p[i], draft_probs, strict=True)]
            return [*tokens[:i], coins.draw(rest)]
    return [*tokens, coins.draw(p[-1])]


def test_a_function_of_the_user() -> None:
    assert run(user_scheme(classical, chosen=False), 60).exact
    on_trees = run(user_scheme(classical, trees=True, chosen=False), 60)
    assert on_trees.differences > 0  # it takes a tree for a chain
    assert run(user_scheme(classical), 60).first_error is not None  # it knows no chosen tokens


def test_the_example_of_the_docstring() -> None:
    space: dict[str, Any] = {}
    exec(example(), space)
    assert run(user_scheme(space["verify"]), 100).exact


def test_what_a_scheme_raises_is_reported() -> None:
    def fails(step: SchemeStep, chance: Chance) -> list[int]:
        if step.tree.tokens:
            raise ZeroDivisionError("no draft is welcome")
        return [chance.draw(step.p[0])]

    scheme = Scheme("fails", "rejection", "", tree_of(sampled), fails)
    result = run(scheme, 10, seed=2)
    assert (result.cases, result.errors, result.differences) == (10, 10, 0)
    assert result.first_error == "case 2/0: ZeroDivisionError: no draft is welcome"
    assert not result.exact
    with pytest.raises(ZeroDivisionError):
        check(scheme, world_of(2, 0))
    silent = Scheme("silent", "rejection", "", tree_of(sampled), lambda step, chance: [])
    assert "emitted []" in str(run(silent, 1).first_error)


@pytest.mark.parametrize(
    ("emit", "says"),
    [
        (lambda coins: [], "returned []; expected at least one token id"),
        (lambda coins: [99], "returned [99]; expected token ids from 0 to 1"),
        (lambda coins: [-1], "returned [-1]; expected token ids from 0 to 1"),
        (lambda coins: None, "returned None; expected a list of token ids"),
        (lambda coins: 0.5, "returned 0.5; expected a list of token ids"),
        (lambda coins: "0", "returned '0'; expected a list of token ids"),
        (lambda coins: np.int64(0), "; expected a list of token ids"),
        (lambda coins: np.array(0), "; expected a list of token ids"),
        (lambda coins: [0.0], "[0.0]; expected a list of token ids, which are whole"),
        (lambda coins: [True], "[True]; expected a list of token ids, which are"),
        (lambda coins: np.array([0.5]), "a list of token ids, which are"),
        (lambda coins: np.array([[0]]), "a list of token ids, which are"),
        (lambda coins: sys.exit(), "case 0/0: SystemExit:"),
        (lambda coins: [coins.draw([-1, 2])], "expected none below 0"),
        (lambda coins: [int(coins.accept(0.5))], "0.5 is a float"),
        (lambda coins: [coins.draw([0.5, 0.5])], "0.5 is a float"),
        (lambda coins: [coins.accept(HALF, i // 2) for i in (0, 1)], "twice"),
    ],
)
def test_what_is_no_verifier_is_reported(emit: Any, says: str) -> None:
    result = run(user_scheme(lambda p, q, tokens, parents, coins: emit(coins)), 5)
    assert result.errors == 5
    assert says in str(result.first_error)


@pytest.mark.parametrize("kind", [tuple, np.array, lambda tokens: list(np.array(tokens))])
def test_token_ids_may_come_in_any_sequence(kind: Any) -> None:
    def verify(*given: Any) -> Any:
        return kind(classical(*given))

    assert run(user_scheme(verify, chosen=False), 20).exact


# The enumeration.


def test_known_distributions() -> None:
    third = F(1, 3)
    assert distribution_of(lambda c: c.accept(third)) == {True: third, False: 1 - third}
    assert distribution_of(lambda c: c.accept(F(7, 2))) == {True: 1}
    assert distribution_of(lambda c: c.accept(F(0))) == {False: 1}
    assert distribution_of(lambda c: c.draw([F(1), F(0), F(3)])) == {0: F(1, 4), 2: F(3, 4)}
    assert distribution_of(lambda c: 7) == {7: 1}
    heads = distribution_of(lambda c: sum(c.accept(HALF) for _ in range(4)))
    assert heads == {0: F(1, 16), 1: F(1, 4), 2: F(3, 8), 3: F(1, 4), 4: F(1, 16)}
    # The number of draws until the first success, at most three: a function that asks more or less.
    tries = distribution_of(lambda c: next((i for i in range(3) if c.accept(third)), 3))
    assert tries == {0: third, 1: F(2, 9), 2: F(4, 27), 3: F(8, 27)}


def test_all_ways_together_have_chance_one() -> None:
    world = world_of(0, 1)
    ways = list(outcomes(lambda c: tree_of(mixed)(world, (), c)))
    assert sum(chance for _, chance in ways) == 1
    assert all(chance > 0 for _, chance in ways)


def test_noise_is_one_uniform_for_each_position() -> None:
    a, b = (F(1, 3), F(2, 3)), (HALF, HALF)
    both = distribution_of(lambda c: (c.choose(a, 0), c.choose(b, 0), c.choose(a, 0)))
    assert both == {(0, 0, 0): F(1, 3), (1, 0, 1): F(1, 6), (1, 1, 1): HALF}
    apart = distribution_of(lambda c: (c.choose(a, 0), c.choose(b, 1)))
    assert apart == {(i, j): a[i] * b[j] for i, j in product(range(2), range(2))}
    zeros = distribution_of(lambda c: c.choose((F(0), F(1), F(0)), 4))
    assert zeros == {1: 1}
    with pytest.raises(InputError, match="sum to 3/2; expected"):
        distribution_of(lambda c: c.choose((HALF, F(1)), 0))


@pytest.mark.parametrize("later", [(1, 0, 1), (0, 1, 2)])
def test_a_function_with_chances_of_its_own_is_refused(later: tuple[int, ...]) -> None:
    weights = iter([(1, 1, 2)])
    with pytest.raises(InputError, match="not the same from call to call"):
        distribution_of(lambda chance: chance.draw([F(w) for w in next(weights, later)]))


# The worlds.


def test_worlds_have_what_breaks_rules() -> None:
    worlds = [world_of(0, index) for index in range(50)]
    pairs = [(w.p[t], q[t]) for w in worlds for t in w.p for q in w.q]
    rows = [probs for w in worlds for table in (w.p, w.raw, *w.q) for probs in table.values()]
    assert all(sum(probs) == 1 and min(probs) >= 0 for probs in rows)
    seen = {
        "zeros": any(0 in probs for probs in rows),
        "certainty": any(1 in probs for probs in rows),
        "ties": any(len(set(probs)) < len(probs) for probs in rows),
        "equal": any(p == q for p, q in pairs),
        "disjoint": any(not any(map(min, p, q)) for p, q in pairs),
        "outside": any(b and not a for p, q in pairs for a, b in zip(p, q, strict=True)),
        "large denominators": any(a.denominator > 500 for probs in rows for a in probs),
        "processors": any(w.p[t] != w.raw[t] for w in worlds for t in w.p),
        "equal siblings": any(len(set(c)) < len(c) for w in worlds for c in w.chosen.values()),
    }
    assert all(seen.values()), seen
    assert {w.vocabulary for w in worlds} == {2, 3, 4, 5}
    assert {w.length for w in worlds} == {2, 3, 4}
    assert {len(w.parents) for w in worlds} == {1, 2, 3, 4, 5, 6}
    assert world_of(0, 3) == world_of(0, 3) != world_of(1, 3)
