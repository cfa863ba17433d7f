"""Rule match in the core against its twin over arrays, and that it refuses what does not fit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from core.arrays import longs
from core.kernels import bits
from foresay import _core
from foresay.draft import Draft, DraftBatch
from foresay.errors import InputError, LogitsError
from foresay.sampling.acceptance.match import match
from foresay.sampling.params import SamplingParams
from foresay.sampling.reference import follow_match
from foresay.sampling.verification import VerificationInput

WIDTH = 5


def draft(rng: np.random.Generator) -> Draft:
    """Siblings may be equal; a path may be anything."""
    size = int(rng.integers(0, 9))
    parents = [int(rng.integers(-1, node)) for node in range(size)]
    return Draft(rng.integers(0, WIDTH, size).astype(np.int32), parents)


def one_input(rng: np.random.Generator) -> VerificationInput:
    params = SamplingParams(
        temperature=float(rng.choice([0.0, 0.0, 0.7])),
        max_tokens=int(rng.integers(3, 8)),
        top_k=int(rng.choice([0, 0, 0, 2])),
    )
    prompt, output = (np.zeros(int(rng.integers(1, most)), np.int32) for most in (9, 3))
    stops = rng.integers(0, 2 * WIDTH, int(rng.integers(0, 3)))
    return VerificationInput(
        params, int(rng.integers(2**63)), prompt, output, tuple(stops.tolist())
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", range(120))
def test_equals_the_twin(seed: int, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(seed)
    count = int(rng.integers(0, 6))
    drafts = DraftBatch.of([draft(rng) for _ in range(count)])
    inputs = [one_input(rng) for _ in range(count)]
    logits = torch.from_numpy(rng.standard_normal((count + len(drafts.tokens), WIDTH)) * 2)
    for row in np.flatnonzero(rng.random(len(logits)) < 0.15):
        where = slice(None) if rng.random() < 0.3 else int(rng.integers(WIDTH))
        logits[row, where] = float(rng.choice([np.nan, np.inf, -np.inf]))
    given = logits.to(dtype)
    found = match(drafts, given, inputs, kernel="core", threads=2)
    twin = match(drafts, given, inputs, kernel="core", every_row=True)
    assert found.verdicts == twin.verdicts
    assert np.array_equal(found.rows, twin.rows)
    assert {at: str(e) for at, e in found.failures.items()} == {
        at: str(e) for at, e in twin.failures.items()
    }


def arrays_of(drafts: DraftBatch) -> dict[str, Any]:
    of = {"offsets": drafts.offsets, "tokens": drafts.tokens, "parents": drafts.parents}
    return {**of, "stream": 0}


@pytest.mark.parametrize("level", _core.cpu_levels())
@pytest.mark.parametrize("dtype", [np.float32, np.uint16])
def test_levels_and_threads_change_nothing(level: str, dtype: type) -> None:
    rng = np.random.default_rng(7)
    drafts = DraftBatch.of([draft(rng) for _ in range(100)])
    wide = rng.standard_normal((100 + len(drafts.tokens), 300)).astype(np.float32)
    wide[:, :WIDTH] += 6  # so that drafted tokens are chosen
    logits = wide if dtype is np.float32 else bits(wide)
    given = arrays_of(drafts) | {
        "temperatures": rng.choice(np.array([0, 0.5, 1], np.float32), len(logits)),
        "seeds": np.arange(100, dtype=np.uint64),
        "positions": np.arange(100),
        "room": np.full(100, 5),
        "stop_owners": longs(2, 3),
        "stops": longs(1, 4),
    }
    wanted: tuple[Any, ...] = _core.match(logits, **given, threads=1, level="plain")
    assert len(wanted[2]) > 9  # accepted nodes
    for threads in (1, 2, 5):
        found: tuple[Any, ...] = _core.match(logits, **given, threads=threads, level=level)
        assert all(np.array_equal(one, other) for one, other in zip(found, wanted, strict=True))


def test_the_last_position_that_noise_is_keyed_by() -> None:
    """Each request by its own nodes, whatever others draft."""
    drafts = DraftBatch.of([Draft([0], [-1]), Draft.chain([0] * 9)])
    given = arrays_of(drafts) | {
        "temperatures": np.ones(12, np.float32),
        "seeds": np.zeros(2, np.uint64),
        "room": longs(9, 9),
        "stop_owners": longs(),
        "stops": longs(),
        "threads": 1,
    }
    logits = np.zeros((12, WIDTH), np.float32)
    _core.match(logits, **given, positions=longs(2**32 - 2, 0))
    with pytest.raises(InputError, match=r"^positions\[0\] is 4294967295; expected 0 to"):
        _core.match(logits, **given, positions=longs(2**32 - 1, 0))
    falling = given | {"stop_owners": longs(1, 0), "stops": longs(2, 2)}
    with pytest.raises(InputError, match=r"^stop 1 is of request 0; expected requests that rise"):
        _core.match(logits, **falling, positions=longs(5, 5))


@pytest.mark.parametrize("seed", range(60))
def test_walks_along_what_was_chosen_elsewhere(seed: int) -> None:
    """Against the readable walk, which knows what a row's choice is when it asks for it."""
    rng = np.random.default_rng(seed)
    drafts = [draft(rng) for _ in range(int(rng.integers(0, 5)))]
    batch = DraftBatch.of(drafts)
    codes = rng.integers(0, WIDTH, len(drafts) + len(batch.tokens))
    codes[rng.random(len(codes)) < 0.2] = -1 - int(rng.integers(2, 5))
    room, owners = rng.integers(1, 6, len(drafts)), np.arange(len(drafts))
    stops = rng.integers(0, WIDTH, len(drafts))
    found = _core.follow(
        codes,
        **{name: value for name, value in arrays_of(batch).items() if name != "stream"},
        room=room,
        stop_owners=owners,
        stops=stops,
    )
    tokens, offsets, path, path_offsets, rows, statuses = found
    begin = 0
    for at, one in enumerate(drafts):
        own = codes[begin : begin + len(one) + 1].tolist()

        def choose(node: int, own: list[int] = own) -> int:
            if own[node + 1] < 0:
                raise LogitsError("bad")
            return own[node + 1]

        got = tokens[offsets[at] : offsets[at + 1]].tolist()
        if own[0] < 0:
            assert statuses[at] == -1 - own[0] and not got
        else:
            nodes, wanted = follow_match(one.tokens.tolist(), one.parents.tolist(), choose)
            ends = [place + 1 for place, token in enumerate(wanted) if token == stops[at]]
            size = min([len(wanted), int(room[at]), *ends])
            assert statuses[at] == 0 and got == wanted[:size]
            assert path[path_offsets[at] : path_offsets[at + 1]].tolist() == nodes[: size - 1]
            reached = [begin, *(begin + node + 1 for node in nodes)][:size]
            assert rows[offsets[at] : offsets[at + 1]].tolist() == reached
        begin += len(one) + 1
