"""Wrong verifications that `scripts.run` must find: a test that never rejected proves nothing.

Each is rule `match` with one mistake that a real engine could make, and right in all the rest.

Mutates: nothing. Valid until: for ever. Raises: as `reference.match`. GIL: held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

import numpy as np

from foresay.arrays import Floats, Int32s
from foresay.draft import Draft, DraftBatch
from foresay.errors import LogitsError
from foresay.lossless.scripts import NO_VERDICT, Verified, Verify, reference_match
from foresay.sampling.noise import Doubles, gumbel
from foresay.sampling.params import SamplingParams
from foresay.sampling.processors import scores
from foresay.sampling.reference import follow_match, path_to
from foresay.sampling.verification import VerificationInput
from foresay.verdict import Verdict

Walk: TypeAlias = tuple[list[int], list[int]]


@dataclass(frozen=True, slots=True, eq=False)
class _Slot:
    """One request in a step, as its mistaken verification sees it."""

    draft: Draft
    rows: Floats
    request: VerificationInput
    width: int  # of the longest draft in the batch

    def score(self, row: int, path: list[int]) -> Floats:
        return scores(self.rows[row], self.request, self.draft.tokens[path])

    def noise(self, place: int) -> Doubles:
        size = self.rows.shape[1]
        greedy = self.request.params.greedy
        return np.zeros(size) if greedy else gumbel(self.request.seed, place, range(size))

    def choose(
        self,
        node: int,
        place: Callable[[VerificationInput, int], int] = lambda request, depth: (
            request.position + depth
        ),
    ) -> int:
        path = path_to(self.draft, node)
        row = self.score(node + 1, path)
        return int(np.argmax(row + self.noise(place(self.request, len(path)))))

    def walk(self, choose: Callable[[int], int]) -> Walk:
        return follow_match(self.draft.tokens.tolist(), self.draft.parents.tolist(), choose)


def _right(slot: _Slot) -> Walk:
    return slot.walk(slot.choose)


def _keyed(place: Callable[[VerificationInput, int], int]) -> Callable[[_Slot], Walk]:
    """Noise that is keyed by something else than the place in the text."""
    return lambda slot: slot.walk(partial(slot.choose, place=place))


def _bonus_from_the_last_row(slot: _Slot) -> Walk:
    path, tokens = _right(slot)
    try:
        row = slot.score(len(slot.draft), path)
    except LogitsError:
        return path, tokens
    return path, [*tokens[:-1], int(np.argmax(row + slot.noise(slot.request.position + len(path))))]


def _bonus_unprocessed(slot: _Slot) -> Walk:
    path, tokens = _right(slot)
    params = slot.request.params
    bare = SamplingParams(temperature=params.temperature, max_tokens=params.max_tokens)
    plain = replace(slot, request=replace(slot.request, params=bare))
    return (path, [*tokens[:-1], plain.choose(path[-1])]) if path else (path, tokens)


def _path_unpenalised(slot: _Slot) -> Walk:
    def choose(node: int) -> int:
        path, params = path_to(slot.draft, node), slot.request.params
        # min_tokens still counts the path: the mistake is the penalties' alone.
        silent = max(0, params.min_tokens - len(path))
        request = replace(slot.request, params=replace(params, min_tokens=silent))
        row = scores(slot.rows[node + 1], request)
        return int(np.argmax(row + slot.noise(request.position + len(path))))

    return slot.walk(choose)


def _padding_accepted(slot: _Slot) -> Walk:
    """Drafts are padded to one width with token 0, and a chosen 0 agrees with the padding."""
    path, tokens = _right(slot)
    if len(path) == len(slot.draft) < slot.width and tokens[-1] == 0:
        row = slot.score(len(slot.draft), path)
        place = slot.request.position + len(path) + 1
        return [*path, len(path)], [*tokens, int(np.argmax(row + slot.noise(place)))]
    return path, tokens


def _some_are_always_right(slot: _Slot) -> Walk:
    """Drafted tokens of some ids are accepted, whatever the target chose."""
    nodes = list(zip(slot.draft.parents.tolist(), slot.draft.tokens.tolist(), strict=True))

    def choose(node: int) -> int:
        own = slot.choose(node)
        always = [token for parent, token in nodes if parent == node and token % 7 == 3]
        return own if (node, own) in nodes or not always else always[0]

    return slot.walk(choose)


def _first_twin(slot: _Slot) -> Walk:
    """Of equal siblings always the first is named, also where the path went through another."""
    path, tokens = _right(slot)
    nodes = list(zip(slot.draft.parents.tolist(), slot.draft.tokens.tolist(), strict=True))
    return [nodes.index(nodes[node]) for node in path], tokens


def _verify(
    walk: Callable[[_Slot], Walk], stops: bool = True, room: bool = True, neighbour: bool = False
) -> Verify:
    """A Verify around a walk; it may forget to end answers, or take the next request's seed."""

    def verify(drafts: DraftBatch, logits: Floats, inputs: Sequence[VerificationInput]) -> Verified:
        verdicts, failures = [], {}
        for i, draft in enumerate(drafts):
            start = int(drafts.offsets[i]) + i
            request = replace(inputs[i], seed=inputs[(i + neighbour) % len(inputs)].seed)
            rows = logits[start : start + len(draft) + 1]
            try:
                path, tokens = walk(_Slot(draft, rows, request, max(map(len, drafts))))
            except LogitsError as error:
                failures[i], path, tokens = error, [], []
            ends = [at + 1 for at, token in enumerate(tokens) if stops and token in request.stops]
            length = min([len(tokens), *ends, *([request.room] if room else [])])
            verdicts.append(
                Verdict._trusted(_ints(path[: max(0, length - 1)]), _ints(tokens[:length]))
            )
        return verdicts, failures

    return verify


def _ints(values: list[int]) -> Int32s:
    return np.array(values, np.int32)


def _all_fail_together(
    drafts: DraftBatch, logits: Floats, inputs: Sequence[VerificationInput]
) -> Verified:
    verdicts, failures = reference_match(drafts, logits, inputs)
    if not failures:
        return verdicts, failures
    error = next(iter(failures.values()))
    return [NO_VERDICT] * len(inputs), dict.fromkeys(range(len(inputs)), error)


def _fails_off_the_path(slot: _Slot) -> Walk:
    for node in range(-1, len(slot.draft)):
        slot.choose(node)
    return _right(slot)


_WALKS: dict[str, tuple[Callable[[_Slot], Walk], str]] = {
    "no position": (_keyed(lambda request, depth: 0), "the noise is the same at every position"),
    "slot for position": (
        _keyed(lambda request, depth: depth),
        "the noise is keyed by the place in the draft, not by the place in the text",
    ),
    "position early": (
        _keyed(lambda request, depth: request.position + max(0, depth - 1)),
        "the noise of drafted rows is keyed one position too early",
    ),
    "bonus row": (
        _bonus_from_the_last_row,
        "the token after the path comes from the last row of the draft",
    ),
    "bonus processors": (
        _bonus_unprocessed,
        "the token after the path is chosen from unprocessed logits",
    ),
    "path penalties": (_path_unpenalised, "penalties do not count the drafted tokens before a row"),
    "padding": (
        _padding_accepted,
        "drafts are padded with token 0, and the padding can be accepted",
    ),
    "some always": (
        _some_are_always_right,
        "drafted tokens of some ids (3, 10, 17, ...) are accepted without a look",
    ),
    "twins": (
        _first_twin,
        "of equal siblings the first is named where the path went through another",
    ),
    "distant failure": (
        _fails_off_the_path,
        "bad logits after a node that was not accepted fail the request",
    ),
}
_OTHERS: dict[str, tuple[Verify, str]] = {
    "stop in path": (
        _verify(_right, stops=False),
        "a token that ends the answer does not end the path",
    ),
    "room": (_verify(_right, room=False), "a path goes on when max_tokens is reached"),
    "neighbour": (
        _verify(_right, neighbour=True),
        "a request takes the seed of the next one in the batch",
    ),
    "shared failure": (_all_fail_together, "one request's bad logits fail the whole batch"),
}
CONTROLS = {name: (_verify(walk), says) for name, (walk, says) in _WALKS.items()} | _OTHERS
"""Name, wrong Verify, and what is wrong with it."""
