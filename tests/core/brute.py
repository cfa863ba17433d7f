"""Slow twins of the core over several texts that grow at once: every answer by looking at strings.

`Growing` keeps the texts and when each token came. `inner_states` is the definition of a state:
strings that end at the same places are one, and an inner state is one that ends at two places or
more. `Novelties` is the update exclusion of PPM on these strings.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from foresay.arrays import Int32s

String = tuple[int, ...]
Steps = Sequence[tuple[int, int]]  # (sequence, token), in the order in which they come
End = tuple[int, int]  # (sequence, tokens up to the end of the occurrence)


def int32s(values: Iterable[int]) -> Int32s:
    return np.array(list(values), np.int32)


def fibonacci(n: int) -> list[int]:
    a, b = [0], [0, 1]
    while len(b) < n:
        a, b = b, b + a
    return b[:n]


def alone(text: list[int]) -> Steps:
    return [(0, token) for token in text]


def interleaved(rng: random.Random, sequences: int, length: int, alphabet: int) -> Steps:
    """Random texts that repeat earlier ones now and then, growing in random order."""
    texts: list[list[int]] = [[] for _ in range(sequences)]
    steps: list[tuple[int, int]] = []
    while len(steps) < length:
        s = rng.randrange(sequences)
        source = rng.choice(texts)
        if len(source) > 2 and rng.random() < 0.4:
            at = rng.randrange(len(source))
            new = source[at : at + rng.randrange(1, 30)]
        else:
            new = [rng.randrange(alphabet) for _ in range(rng.randrange(1, 4))]
        for token in new:
            texts[s].append(token)
            steps.append((s, token))
            if rng.random() < 0.3:  # somebody else goes in between
                break
    return steps[:length]


def copied_while_resting() -> Steps:
    """A text stands still while others copy its end, longer and shorter than what is counted of a
    context, and go on; then it goes on as they did."""
    text = [39, *range(40)]  # its last token has been there: that much of it matches
    steps = [(0, token) for token in text]
    for s, length in enumerate((30, 20, 16, 12, 5), 1):
        steps += [(s, token) for token in (100 + s, *text[-length:], 200)]
    return [*steps, *((s, 201) for s in range(1, 6)), (0, 200), (0, 201)]


@dataclass(frozen=True)
class Inner:
    """An inner state by its longest string: what the automaton has to say of it."""

    shortest: int
    link: int  # length of the longest proper suffix that ends at more places
    first: End
    occurrences: int
    counts: Counter[int]  # of what followed


class Growing:
    """Texts, and the clock at which each token was appended."""

    def __init__(self, steps: Steps = ()) -> None:
        self.texts: list[list[int]] = []
        self.times: list[list[int]] = []
        self.clock = 0
        for sequence, token in steps:
            self.extend(sequence, token)

    def extend(self, sequence: int, token: int) -> None:
        while len(self.texts) <= sequence:
            self.texts.append([])
            self.times.append([])
        self.texts[sequence].append(token)
        self.times[sequence].append(self.clock)
        self.clock += 1

    def time(self, end: End) -> int:
        """When the token before this end came."""
        return self.times[end[0]][end[1] - 1]

    def follower(self, end: End) -> int | None:
        text = self.texts[end[0]]
        return text[end[1]] if end[1] < len(text) else None

    def ends(self, string: Sequence[int]) -> list[End]:
        """Every place where the string ends, oldest first."""
        n, wanted = len(string), list(string)
        found = [
            (s, end)
            for s, text in enumerate(self.texts)
            for end in range(max(n, 1), len(text) + 1)
            if text[end - n : end] == wanted
        ]
        return sorted(found, key=self.time)

    def continuations(self, ends: Iterable[End]) -> tuple[Counter[int], End | None]:
        """What followed these places, and the place that was followed last."""
        followed = [end for end in ends if end[1] < len(self.texts[end[0]])]
        counts = Counter(self.texts[s][end] for s, end in followed)
        latest = max(followed, key=lambda e: self.time((e[0], e[1] + 1)), default=None)
        return counts, latest

    def substrings(self) -> dict[String, list[End]]:
        """Every string that occurs, and where it ends, oldest first."""
        places: dict[String, list[End]] = defaultdict(list)
        for s, text in enumerate(self.texts):
            for start in range(len(text)):
                for end in range(start + 1, len(text) + 1):
                    places[tuple(text[start:end])].append((s, end))
        return {string: sorted(ends, key=self.time) for string, ends in places.items()}

    def inner_states(self) -> dict[String, Inner]:
        places = self.substrings()
        classes: dict[tuple[End, ...], list[String]] = defaultdict(list)
        for string, ends in places.items():
            classes[tuple(ends)].append(string)
        out: dict[String, Inner] = {}
        for ends_of, strings in classes.items():
            if len(ends_of) == 1:
                continue
            longest = max(strings, key=len)
            link = next(
                (n for n in range(len(longest) - 1, 0, -1)
                 if len(places[longest[-n:]]) > len(ends_of)), 0
            )  # fmt: skip
            counts, _ = self.continuations(ends_of)
            out[longest] = Inner(min(map(len, strings)), link, ends_of[0], len(ends_of), counts)
        return out

    def branching(self) -> set[String]:
        """The definition from the outside: strings with two predecessors or more, where the start
        of each sequence counts as one that no other place has."""
        return {
            string
            for string, ends in self.substrings().items()
            if len({
                self.texts[s][end - len(string) - 1] if end > len(string) else ("start", s)
                for s, end in ends
            }) > 1
        }  # fmt: skip


class Novelties:
    """Update exclusion, string by string; the order of events is that of automaton.cpp.

    When c is appended, the inner states that end the text (and the empty one) are visited from the
    longest down. Those that c never followed get it with count 1. The first that it had followed,
    w, ends the walk: w + c is now known to occur twice. If that is not an inner state yet it
    becomes one, with all that was counted for the state that it was part of until now (which the
    walk may just have given c); of a state that occurred once that is its one follower, which may
    be the very token that was just appended. Then c is counted once more at w.
    """

    def __init__(self) -> None:
        self.growing = Growing()
        self.counts: dict[String, Counter[int]] = {(): Counter()}
        self.latest: dict[String, int] = {}

    def extend(self, sequence: int, token: int) -> None:
        old = Growing()
        old.texts = [list(text) for text in self.growing.texts]
        old.times = [list(times) for times in self.growing.times]
        before = tuple(old.texts[sequence]) if sequence < len(old.texts) else ()
        self.growing.extend(sequence, token)
        chain = [w for w in self.counts if w == before[len(before) - len(w) :]]
        for state in sorted(chain, key=len, reverse=True):
            self.latest[state] = token
            if token not in self.counts[state]:
                self.counts[state][token] = 1
                continue
            self._split(old, (*state, token))
            self.counts[state][token] += 1
            return

    def _split(self, old: Growing, string: String) -> None:
        if string in self.counts:
            return
        ends = old.ends(string)
        if len(ends) == 1:
            follower = self.growing.follower(ends[0])
            self.counts[string] = Counter() if follower is None else Counter([follower])
            if follower is not None:
                self.latest[string] = follower
            return
        longest = string
        while longest not in self.counts:  # all its occurrences have the same predecessor
            s, end = ends[0]
            longest = (old.texts[s][end - len(longest) - 1], *longest)
        self.counts[string] = Counter(self.counts[longest])
        if longest in self.latest:
            self.latest[string] = self.latest[longest]
