"""The online automaton against brute force."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.brute import (
    Growing,
    Novelties,
    Steps,
    String,
    alone,
    copied_while_resting,
    fibonacci,
    int32s,
    interleaved,
)
from explore import tries
from foresay._core import COUNTED, Automaton
from foresay.errors import InputError

MAX_TOKEN = 2**31 - 2


def build(steps: Steps, occurrences: bool = False, check_every: int = 0) -> Automaton:
    automaton = Automaton(occurrences)
    sequences: dict[int, int] = {}
    for i, (sequence, token) in enumerate(steps):
        while len(sequences) <= sequence:
            sequences[len(sequences)] = automaton.begin()
        automaton.extend(sequences[sequence], int32s([token]))
        if check_every and i % check_every == 0:
            automaton.check_integrity()
    return automaton


SHAPES: dict[str, Steps] = {
    "empty": [],
    "one token": [(0, 0)],
    "ends of the range": alone([0, MAX_TOKEN, 0, MAX_TOKEN, MAX_TOKEN, 0, 0, MAX_TOKEN, 0]),
    "ABCBC": alone([1, 2, 3, 2, 3]),
    "a^n": alone([7] * 90),
    "two a^n": [(i % 2, 7) for i in range(80)],
    "a^n b a^n": alone([7] * 40 + [8] + [7] * 45),
    "Fibonacci": alone(fibonacci(120)),
    "periodic": alone([1, 2, 3, 4, 5] * 24),
    "periodic twice": [(i // 60, i % 3) for i in range(120)],
    "same text, one behind": [(i % 2, (i // 2) ** 2 % 7) for i in range(120)],
    "nothing repeats": alone(list(range(60))),
    "copied while it rests": copied_while_resting(),
    "32 sequences": [(i % 32, (i // 32) * 5 % 3) for i in range(160)],
}
for seed in range(6):
    rng = random.Random(seed)
    SHAPES[f"interleaved {seed}"] = interleaved(rng, 1 + seed * 2, 160, 1 + seed % 4)

one_by_one = st.lists(st.tuples(st.integers(0, 2), st.integers(0, 2)), max_size=60)
mixed = st.builds(
    interleaved,
    st.builds(random.Random, st.integers(0, 10**6)),
    st.integers(1, 6),
    st.integers(1, 100),
    st.integers(1, 4),
)
steps_strategy = one_by_one | mixed
every_shape = pytest.mark.parametrize("steps", SHAPES.values(), ids=list(SHAPES))


def states_of(automaton: Automaton, texts: list[list[int]]) -> dict[String, tuple[Any, ...]]:
    """The inner states by their longest string."""
    out: dict[String, tuple[Any, ...]] = {}
    for length, shortest, link, (s, offset), occurrences, counts in automaton.inner_states():
        string = tuple(texts[s][offset + 1 - length : offset + 1])
        assert len(string) == length
        assert string not in out, "two states for one string"
        out[string] = (shortest, link, (s, offset + 1), occurrences, counts)
    return out


def check_states(steps: Steps, occurrences: bool) -> None:
    growing = Growing(steps)
    automaton = build(steps, occurrences, check_every=7)
    automaton.check_integrity()
    expected = growing.inner_states()
    assert set(expected) == growing.branching()
    found = states_of(automaton, growing.texts)
    assert set(found) == set(expected)
    for string, inner in expected.items():
        shortest, link, first, count, counts = found[string]
        assert (shortest, link, first) == (inner.shortest, inner.link, inner.first)
        assert count == inner.occurrences
        assert counts.keys() == inner.counts.keys(), "edges are exact whatever is counted"
        if occurrences and shortest <= COUNTED:
            assert counts == inner.counts
        else:
            assert all(1 <= n <= inner.counts[token] for token, n in counts.items())
    n = len(steps)
    assert automaton.size == n
    assert automaton.num_inner_states == len(expected) + 1
    # A position is a state with one edge; the empty string is the root.
    assert automaton.num_inner_states + n <= max(2 * n, 1)
    edges = sum(len(counts) for *_, counts in found.values()) + len({t for _, t in steps})
    assert edges + n <= max(4 * n, 1)
    if len(growing.texts) == 1 and n >= 3:
        check_the_classical_bounds(growing.texts[0], set(found), edges)


def check_the_classical_bounds(text: list[int], inner: set[String], edges: int) -> None:
    """The automaton of one text without a separator before it has at most 2 n - 1 states and
    3 n - 4 edges. There a prefix that is an inner state too is one state with it."""
    n = len(text)
    alone = [tuple(text[:end]) not in inner for end in range(1, n + 1)]
    assert 1 + len(inner) + sum(alone) <= 2 * n - 1
    assert edges + sum(alone[:-1]) <= 3 * n - 4  # nothing follows the whole text


@every_shape
@pytest.mark.parametrize("occurrences", [False, True], ids=["novelties", "occurrences"])
def test_states(steps: Steps, occurrences: bool) -> None:
    check_states(steps, occurrences)


@given(steps=steps_strategy, occurrences=st.booleans())
@settings(max_examples=tries(200))
def test_states_of_anything(steps: Steps, occurrences: bool) -> None:
    check_states(steps, occurrences)


def check_contexts(steps: Steps) -> None:
    """Counting occurrences: what is said of every string that occurs."""
    growing = Growing(steps)
    automaton = build(steps, occurrences=True)
    for string, ends in growing.substrings().items():
        if len(string) > COUNTED and len(string) % 11:
            continue  # a sample of the long ones
        counts, latest = growing.continuations(ends)
        found = automaton.find(int32s(string))
        assert found["length"] == len(string)
        assert found["shortest"] <= len(string) <= found["longest"]
        assert found["first"] == (ends[0][0], ends[0][1] - 1)
        contexts = automaton.contexts(int32s(string))
        if not counts:
            assert found["total"] == 0 and found["latest"] is None
            assert all(length < len(string) for length, *_ in contexts)
            continue
        length, total, latest_token, edges = contexts[0]
        assert length == len(string)
        assert found["total"] == total == sum(n for _, n in edges)
        assert [n for _, n in edges] == sorted((n for _, n in edges), reverse=True)
        assert latest is not None
        if len(string) <= COUNTED or len(growing.texts) == 1:
            assert found["latest"] == (latest[0], latest[1] - 1)
        if len(string) <= COUNTED:
            assert dict(edges) == counts
            assert latest_token == growing.follower(latest)
        else:
            assert dict(edges).keys() == counts.keys()
            assert all(1 <= n <= counts[token] for token, n in edges)
    length, total, _, edges = automaton.contexts(int32s([]))[-1]
    assert (length, total) == (0, len(steps))
    assert dict(edges) == Counter(token for _, token in steps)


@every_shape
def test_occurrences(steps: Steps) -> None:
    check_contexts(steps[:110])


@given(steps=steps_strategy)
@settings(max_examples=tries(100))
def test_occurrences_of_anything(steps: Steps) -> None:
    check_contexts(steps)


def check_novelties(steps: Steps) -> None:
    twin = Novelties()
    for sequence, token in steps:
        twin.extend(sequence, token)
    automaton = build(steps)
    found = states_of(automaton, twin.growing.texts)
    assert {string: state[-1] for string, state in found.items()} == {
        string: dict(counts) for string, counts in twin.counts.items() if string
    }
    for string, counts in twin.counts.items():
        if counts:
            length, total, latest, edges = automaton.contexts(int32s(string))[0]
            assert (length, total) == (len(string), sum(counts.values()))
            assert dict(edges) == counts
            assert latest == twin.latest[string]


@every_shape
def test_novelties(steps: Steps) -> None:
    check_novelties(steps[:110])


@given(steps=steps_strategy)
@settings(max_examples=tries(150))
def test_novelties_of_anything(steps: Steps) -> None:
    check_novelties(steps)


def longest_suffix(query: bytes, texts: bytes) -> int:
    """Length of the longest suffix of the query that occurs in the texts, which 255 separates."""
    length = 0
    while length < len(query) and query[len(query) - length - 1 :] in texts:
        length += 1
    return length


@pytest.mark.parametrize("seed", range(10))
def test_matches_of_ten_thousand_contexts(seed: int) -> None:
    """The match after every extend, and of random queries; texts are bytes because `in` is fast."""
    rng = random.Random(seed)
    contexts = 0
    while contexts < 10_000:
        many, alphabet = rng.choice([1, 1, 2, 5]), rng.randrange(1, 5)
        steps = interleaved(rng, many, rng.randrange(1, 200), alphabet)
        automaton = Automaton(rng.random() < 0.5)
        texts = [bytearray() for _ in range(many)]
        for _ in range(many):
            automaton.begin()
        for sequence, token in steps:
            elsewhere = b"\xff".join(texts)  # what occurs without the newest token occurs elsewhere
            automaton.extend(sequence, int32s([token]))
            texts[sequence].append(token)
            expected = longest_suffix(bytes(texts[sequence]), elsewhere)
            assert automaton.match_length(sequence) == expected
            contexts += 1
        everything = b"\xff".join(texts)
        for _ in range(20):
            query = [rng.randrange(alphabet + 1) for _ in range(rng.randrange(1, 12))]
            found = automaton.find(int32s(query))
            assert found["length"] == longest_suffix(bytes(query), everything)
            contexts += 1


def test_the_example_of_the_seed() -> None:
    automaton = Automaton(True)
    sequence = automaton.begin()
    automaton.extend(sequence, int32s([1, 2, 3, 2, 3]))  # A B C B C
    assert automaton.match_length(sequence) == 2
    found = automaton.find(int32s([2, 3]))
    assert found["first"] == found["latest"] == (0, 2)  # and the text goes on with B C there
    assert automaton.contexts(int32s([2, 3]))[0] == (2, 1, 2, [(2, 1)])


@pytest.mark.parametrize("occurrences", [False, True], ids=["novelties", "occurrences"])
@pytest.mark.parametrize("seed", range(4))
def test_after_k_extends_as_if_built_at_once(seed: int, occurrences: bool) -> None:
    """Neither the order in which texts grow nor the size of the pieces changes the states."""
    steps = interleaved(random.Random(seed), 4, 400, 3)
    online = Automaton(occurrences)
    for _ in range(4):
        online.begin()
    for k, (sequence, token) in enumerate(steps, 1):
        online.extend(sequence, int32s([token]))
        if k % 80:
            continue
        texts = (Growing(steps[:k]).texts + [[]] * 4)[:4]
        batch = Automaton(occurrences)
        for text in texts:
            batch.extend(batch.begin(), int32s(text))
        a, b = states_of(online, texts), states_of(batch, texts)
        assert a.keys() == b.keys()
        for string in a:
            shortest, link, _, count, counts = a[string]
            assert (shortest, link, count) == (b[string][0], b[string][1], b[string][3])
            assert counts.keys() == b[string][4].keys()
            if occurrences and shortest <= COUNTED:
                assert counts == b[string][4]


def test_a_context_with_many_continuations() -> None:
    """Long edge lists have an index; it has to survive growing, copying and reordering."""
    automaton = Automaton(True)
    rng = random.Random(5)
    followers = [rng.randrange(3000) + 10 for _ in range(12_000)]
    text = [t for f in followers for t in ((1, f) if rng.random() < 0.5 else (2, 1, f))]
    automaton.extend(automaton.begin(), int32s(text))
    automaton.check_integrity()
    length, total, latest, edges = automaton.contexts(int32s([1]))[0]
    assert (length, total, latest) == (1, len(followers), followers[-1])
    assert dict(edges) == Counter(followers)


def test_memory_of_a_million_tokens() -> None:
    rng = np.random.default_rng(7)
    words = rng.zipf(1.2, 400_000) % 30_000
    phrases = [rng.integers(0, 30_000, rng.integers(2, 12)) for _ in range(3000)]
    parts: list[Any] = []
    for at in range(0, len(words), 10):
        parts += [words[at : at + 10], phrases[int(rng.zipf(1.3)) % len(phrases)]]
    text = np.concatenate(parts * 2)[:1_000_000].astype(np.int32)
    automaton = Automaton()
    sequence = automaton.begin()
    for piece in np.array_split(text, 100):
        automaton.extend(sequence, piece)
    assert automaton.size == len(text)
    assert automaton.bytes / len(text) <= 64


@pytest.mark.parametrize(
    ("tokens", "error"),
    [
        (np.array([1, 2]), TypeError),
        (np.array([1.0], np.float32), TypeError),
        (np.array([[1]], np.int32), TypeError),
        (np.arange(8, dtype=np.int32)[::2], TypeError),
        ([1, 2], TypeError),
        (None, TypeError),
        (np.array([3, -1], np.int32), InputError),
        (np.array([3, 2**31 - 1], np.int32), InputError),
    ],
    ids=["int64", "floats", "2-D", "strided", "list", "None", "negative", "huge"],
)
def test_bad_tokens_change_nothing(tokens: Any, error: type[Exception]) -> None:
    automaton = build(alone([1, 2, 3, 1, 2]))
    before = automaton.inner_states()
    with pytest.raises(error):
        automaton.extend(0, tokens)
    assert automaton.inner_states() == before and automaton.size == 5
    automaton.extend(0, int32s([3]))
    assert automaton.match_length(0) == 3


def test_unknown_sequences() -> None:
    automaton = build(alone([1, 2]))
    with pytest.raises(InputError, match=r"sequence 1 .* 1 sequences"):
        automaton.extend(1, int32s([3]))
    with pytest.raises(InputError, match="sequence 7"):
        automaton.match_length(7)
    assert automaton.size == 2
    assert automaton.find(int32s([9])) == {"length": 0}
    assert automaton.find(int32s([-5, 2]))["length"] == 1  # asking for what cannot occur is fine
