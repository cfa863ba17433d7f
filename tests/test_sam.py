"""SAM-Decoding's rule: its truth table, its draft lengths, and a twin that looks at every place."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from core.brute import int32s
from core.frozen_files import corpus_of
from doubles import in_order
from foresay import Draft, Verdict, oracle
from foresay._core import COUNTED
from foresay.drafters.suffix import SamRule, SuffixDrafter
from foresay.errors import InputError

TAIL = list(range(1, 13))  # what the text ends with
OWN, CORPUS = 700, 800  # what follows an earlier occurrence of its end


def draft(drafter: SuffixDrafter, text: Sequence[int], budget: int = 16) -> list[int]:
    state = drafter.begin(int32s(text))
    (draft,) = drafter.propose([state], [budget])
    assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
    return [int(token) for token in draft.tokens]


# ---- the twin ------------------------------------------------------------------------------------


def occurrence(text: list[int], length: int, rule: SamRule) -> int:
    """The end of the earlier place that is continued."""
    earlier = oracle.ends(text, text[len(text) - length :])[:-1]
    return earlier[0] if rule.occurrence == "first" else earlier[-1]


def twin(text: list[int], rule: SamRule, budget: int) -> list[int]:
    """The dynamic rule for a chain: the longest earlier match decides."""
    match = oracle.longest_match(text)
    if match == 0 or match < rule.l_threshold:
        return []
    most = min(budget, rule.max_predicts)
    if rule.length_factor:
        most = min(most, 1 + math.floor(rule.length_factor * match))
    length, end = match, occurrence(text, match, rule)
    matched = text[end : end + most]
    while rule.to_anc and length and len(text) - end < most:
        places = len(oracle.ends(text, text[len(text) - length :]))
        while length and len(oracle.ends(text, text[len(text) - length :])) == places:
            length -= 1  # to the longest suffix that occurs more often: the suffix link
        if length == 0:
            return matched  # no ancestor is followed by enough
        end = occurrence(text, length, rule)
    return text[end : end + most]


PLACES: tuple[Literal["first", "latest"], ...] = ("first", "latest")
RULES = [
    SamRule(l_threshold=t, occurrence=o, length_factor=f, max_predicts=m, to_anc=a)
    for t, o, (f, m), a in itertools.product(
        (0, 2, 5), PLACES, ((0.0, 60), (4.0, 60), (0.7, 7)), (False, True)
    )
]


def repetitive(rng: random.Random, length: int, words: int) -> list[int]:
    text: list[int] = []
    while len(text) < length:
        if text and rng.random() < 0.25:
            at = rng.randrange(len(text))
            text += text[at : at + rng.randrange(1, 30)]
        else:
            text.append(rng.randrange(words))
    return text[:length]


@pytest.mark.parametrize("rule", RULES, ids=lambda r: f"{r.l_threshold}{r.occurrence}{r.to_anc}")
def test_equals_the_twin(rule: SamRule) -> None:
    rng = random.Random(repr(rule))
    for words in (2, 30):
        drafter = SuffixDrafter(history=False, rule=rule)
        text = repetitive(rng, rng.randrange(1, 40), words)
        state = drafter.begin(int32s(text))
        for _ in range(20):
            budget = rng.choice([1, 4, 16, 64])
            (draft,) = drafter.propose([state], [budget])
            assert draft.tokens.tolist() == twin(text, rule, budget)
            assert draft.parents.tolist() == list(range(-1, len(draft) - 1))
            assert draft.scores is None
            new = repetitive(rng, rng.randrange(1, 4), words)
            if len(text) > 4 and rng.random() < 0.5:
                at = rng.randrange(len(text))
                new = text[at : at + 9]
            drafter.observe([state], [Verdict([], new)])
            text += new


def test_the_example_of_the_seed() -> None:
    rule = SamRule(l_threshold=1)
    assert draft(SuffixDrafter(rule=rule), [1, 2, 3, 2, 3]) == [2, 3]
    assert draft(SuffixDrafter(rule=SamRule(l_threshold=3)), [1, 2, 3, 2, 3]) == []


def test_first_and_latest() -> None:
    text = [1, 2, 50, 1, 2, 51, 1, 2, 52, 1, 2]
    first = SuffixDrafter(rule=SamRule(l_threshold=2, occurrence="first"))
    latest = SuffixDrafter(rule=SamRule(l_threshold=2, occurrence="latest"))
    assert draft(first, text, 3) == [50, 1, 2]
    assert draft(latest, text, 3) == [52, 1, 2]
    assert draft(latest, text, 9) == [52, 1, 2]  # up to the end of the text


def test_to_anc_shortens_until_enough_follows() -> None:
    text = [3, 4, 60, 61, 62, 9, 2, 3, 4, 1, 2, 3, 4]
    near = SuffixDrafter(rule=SamRule(l_threshold=2))
    far = SuffixDrafter(rule=SamRule(l_threshold=2, to_anc=True))
    assert draft(near, text, 6) == [1, 2, 3, 4]
    assert draft(far, text, 4) == [1, 2, 3, 4]
    assert draft(far, text, 6) == [60, 61, 62, 9, 2, 3]


# ---- selection and length ------------------------------------------------------------------------


@pytest.mark.parametrize("l_bias", [0, 1, 3])
@pytest.mark.parametrize("l_threshold", [0, 1, 4])
def test_selection(tmp_path: Path, l_threshold: int, l_bias: int) -> None:
    """Every pair of match lengths: the corpus iff it matches more than l_bias longer, and nothing
    when the chosen match is shorter than l_threshold."""
    rule = SamRule(l_threshold=l_threshold, l_bias=l_bias)
    for corpus_match in range(8):
        document = [902, *TAIL[12 - corpus_match :], CORPUS, 903]
        path = corpus_of(tmp_path / f"{corpus_match}.foresay", document)
        drafter = SuffixDrafter(rule=rule, corpus=str(path))
        for own_match in range(8):
            text = [900, *TAIL[12 - own_match :], OWN, 901, *TAIL]
            use_corpus = corpus_match - l_bias > own_match
            match = corpus_match if use_corpus else own_match
            expected = [CORPUS, 903] if use_corpus else [OWN, 901]
            state = drafter.begin(int32s(text))
            found = drafter.propose([state], [2])[0].tokens.tolist()
            assert found == (expected if match and match >= l_threshold else [])
            if found:
                assert drafter.sources(state) == [("corpus" if use_corpus else "own",)] * 2


def test_the_longest_of_several_corpora(tmp_path: Path) -> None:
    paths = [
        str(corpus_of(tmp_path / f"{n}.foresay", [902, *TAIL[12 - n :], CORPUS + n, 903]))
        for n in (3, 7, 5)
    ]
    drafter = SuffixDrafter(rule=SamRule(l_threshold=1, l_bias=0), corpus=paths)
    assert draft(drafter, TAIL, 1) == [CORPUS + 7]


@pytest.mark.parametrize("latest", [False, True])
def test_first_and_latest_of_a_corpus(tmp_path: Path, latest: bool) -> None:
    documents = [[1, 2, 3, 500 + i, 600 + i] for i in range(4)]
    path = corpus_of(tmp_path / "c.foresay", *documents)
    rule = SamRule(l_threshold=1, l_bias=0, occurrence="latest" if latest else "first")
    drafter = SuffixDrafter(rule=rule, corpus=str(path))
    # A draft never goes on into the next document.
    assert draft(drafter, [9, 1, 2, 3]) == ([503, 603] if latest else [500, 600])


@pytest.mark.parametrize("factor", [0.0, 0.3, 0.5, 1.0, 4.0, 1000.0])
@pytest.mark.parametrize("max_predicts", [0, 1, 5, 60])
@pytest.mark.parametrize("budget", [0, 1, 16, 100])
def test_draft_length(factor: float, max_predicts: int, budget: int) -> None:
    rule = SamRule(l_threshold=0, length_factor=factor, max_predicts=max_predicts)
    drafter = SuffixDrafter(rule=rule)
    for match in (1, 2, 6, 11):
        text = [900, *TAIL[12 - match :], *range(100, 300), *TAIL]
        wanted = 1 + math.floor(factor * match) if factor else budget
        assert len(draft(drafter, text, budget)) == min(wanted, max_predicts, budget)


# ---- the tree of most probable paths -------------------------------------------------------------


def continuations(texts: list[list[int]], context: tuple[int, ...]) -> Counter[int]:
    """What follows the longest suffix of the context that anything follows."""
    while context:
        if found := oracle.continuations(texts, context):
            return found
        context = context[1:]
    return Counter()


def best_paths(texts: list[list[int]], context: tuple[int, ...], budget: int) -> list[float]:
    """The chances of the most probable paths after the context, falling."""
    out: list[float] = []
    waiting: list[tuple[float, tuple[int, ...]]] = [(-1.0, ())]
    while waiting and len(out) <= budget:
        chance, path = heapq.heappop(waiting)
        out.append(-chance)
        found = continuations(texts, context + path)
        for token, count in found.items():
            heapq.heappush(waiting, (chance * count / found.total(), (*path, token)))
    return out[1:]  # without the empty path


def tree_of(drafter: SuffixDrafter, text: list[int], budget: int) -> dict[tuple[int, ...], float]:
    state = drafter.begin(int32s(text))
    tokens, parents, _, scores = drafter._core.propose([state], [budget])
    paths = in_order(Draft(tokens, parents))
    assert len(set(paths)) == len(paths)
    return dict(zip(paths, scores.tolist(), strict=True))


def check_paths(
    found: dict[tuple[int, ...], float],
    texts: list[list[int]],
    context: tuple[int, ...],
    budget: int,
) -> None:
    """Paths of equal chance may stand for each other; the chances may not differ."""
    assert list(found.values()) == pytest.approx(best_paths(texts, context, budget), rel=1e-4)
    for path, chance in found.items():
        expected = 1.0
        for depth, token in enumerate(path):
            counts = continuations(texts, context + path[:depth])
            expected *= counts[token] / counts.total()
        assert chance == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("seed", range(40))
def test_the_most_probable_paths_of_the_own_text(seed: int) -> None:
    rng = random.Random(seed)
    text = [rng.choice([0, 0, 1, 2]) for _ in range(rng.randrange(4, 60))]
    match = oracle.longest_match(text)
    budget = rng.choice([1, 3, COUNTED - match - 1])
    found = tree_of(SuffixDrafter(rule=SamRule(l_threshold=0, topk_succ=8)), text, budget)
    if match == 0:
        assert not found
        return
    check_paths(found, [text], tuple(text[len(text) - match :]), budget)


@pytest.mark.parametrize("seed", range(10))
def test_the_most_probable_paths_of_a_corpus(seed: int, tmp_path: Path) -> None:
    rng = random.Random(seed)
    documents = [[rng.choice([0, 0, 1, 2]) for _ in range(20)] for _ in range(5)]
    path = corpus_of(tmp_path / "c.foresay", *documents)
    drafter = SuffixDrafter(rule=SamRule(l_threshold=0, l_bias=0, topk_succ=8), corpus=str(path))
    text = [9, *documents[seed % 5][3 : 5 + rng.randrange(4)]]
    context = tuple(text[1:])
    assert oracle.occurrences(documents, context)
    check_paths(tree_of(drafter, text, 12), documents, context, 12)


@pytest.mark.parametrize("topk_succ", [1, 2, 3])
def test_at_most_topk_successors(topk_succ: int) -> None:
    text = [t for n, f in ((5, 10), (4, 11), (3, 12), (2, 13)) for t in [1, f, 90 + f] * n]
    text += [50, 1]
    found = tree_of(SuffixDrafter(rule=SamRule(l_threshold=1, topk_succ=topk_succ)), text, 40)
    assert {p for p in found if len(p) == 1} == {(10 + i,) for i in range(topk_succ)}
    assert found[(10,)] == pytest.approx(5 / 14)
    children = Counter(path[:-1] for path in found)
    assert max(children.values()) <= topk_succ


# ---- bad settings --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"l_threshold": -1}, "l_threshold is -1; expected a whole number from 0 to 4096"),
        ({"l_bias": 4097}, "l_bias is 4097; expected a whole number from 0 to 4096"),
        ({"topk_succ": -3}, "topk_succ is -3"),
        ({"max_predicts": 2**40}, "max_predicts is 1099511627776"),
        ({"length_factor": -0.1}, "length_factor is -0.1"),
        ({"length_factor": math.nan}, "length_factor is nan"),
        ({"length_factor": math.inf}, "length_factor is inf"),
        ({"occurrence": "last"}, "occurrence is 'last'; expected 'first' or 'latest'"),
    ],
)
def test_bad_settings(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        SamRule(**settings)


def test_the_latest_place_of_a_long_match_is_found_in_one_pass() -> None:
    """A search that climbs suffix links at every place would take minutes here."""
    n = 200_000
    text = [2, *[1] * 20, 3, *[1] * n, 4, 2, *[1] * 20]
    latest = SuffixDrafter(rule=SamRule(l_threshold=2, occurrence="latest"))
    assert draft(latest, text, 3) == [3, 1, 1]
