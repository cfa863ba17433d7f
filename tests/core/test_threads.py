"""The three ways in which the core uses threads (csrc/threads.hpp), and what threads of Python
share. `make tsan` runs this file under the thread sanitizer.

1. A team for attention, linear layers and decoder layers: OpenMP's if the process has one, else the
   pool's threads, which are kept.
2. The pool for the steps of a drafter, whose threads take pieces.
3. Threads that live for one call, for choices, the residual and corpus files.

And whoever calls has released the GIL: layers and corpora may be shared by threads that do,
drafters lock themselves.
"""

from __future__ import annotations

import ctypes
import ctypes.util
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from core.attention_twin import shortened
from core.brute import int32s
from core.frozen_files import build
from core.kernels import choose, draw, softmax_into, subtract_rows, sums_of
from foresay import Verdict, _core
from foresay.drafters import SuffixDrafter

on_each_level = pytest.mark.parametrize("level", _core.cpu_levels())
WIDTH, HEAD = 128, 32


def bits(seed: int, *shape: int) -> NDArray[np.uint16]:
    rng = np.random.default_rng(seed)
    return shortened(rng.standard_normal(shape).astype(np.float32))


def at_once(count: int, work: Callable[[int], object]) -> list[Any]:
    """What as many threads of Python find, all of which work at the same time."""
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


# ---- the team ------------------------------------------------------------------------------------


@pytest.fixture(scope="module", params=["threads of our own", "OpenMP"])
def team(request: pytest.FixtureRequest) -> None:
    """Once a team is found it stays. (Where torch was imported before, it is OpenMP both times.)"""
    if request.param == "OpenMP":
        found = ctypes.util.find_library("gomp")
        if found is None:
            pytest.skip("there is no libgomp here")
        ctypes.CDLL(found, ctypes.RTLD_GLOBAL)


def block(level: str) -> _core.DecoderLayer:
    square = [_core.Linear(bits(i, WIDTH, WIDTH), None, level) for i in range(4)]
    up, down = _core.Linear(bits(8, 512, WIDTH), None, level), bits(9, WIDTH, 512)
    norm = (bits(10, WIDTH), 1e-5)
    return _core.DecoderLayer(*square, up, up, _core.Linear(down, None, level), norm, norm, HEAD)  # type: ignore[call-arg, arg-type]


def layer(block: _core.DecoderLayer, level: str, threads: int) -> bytes:
    """Two steps of two texts through a block: many rows, then few rows that see many."""
    kvs = [_core.Kv([(WIDTH // HEAD, HEAD, HEAD)], "bfloat16") for _ in range(2)]
    found = []
    for rows in (300, 3):
        parents, offsets = [*range(-1, rows - 1)] * 2, [0, rows, 2 * rows]
        step = _core.AttentionStep(kvs, int32s(offsets), int32s(parents), level)
        x, turns = bits(rows, 2 * rows, WIDTH), bits(11, 2 * rows, HEAD)
        block.forward(step, 0, x, turns, turns, 0.2, threads=threads)
        for kv in kvs:
            kv.keep(int32s(range(rows)))
        found.append(x.tobytes())
    return b"".join(found)


@on_each_level
@pytest.mark.usefixtures("team")
def test_a_team_computes_what_one_thread_does(level: str) -> None:
    made = block(level)
    alone = layer(made, level, 1)
    for threads in (2, 5):
        assert layer(made, level, threads) == alone
    weight, x = _core.Linear(bits(1, 2048, 256), bits(2, 2048), level), bits(3, 40, 256)
    outs = []
    for threads in (1, 2, 4):
        outs.append(np.empty((40, 2048), np.uint16))
        weight.multiply(x, outs[-1], threads)
    assert all(np.array_equal(out, outs[0]) for out in outs)


@pytest.mark.usefixtures("team")
def test_threads_of_python_share_layers() -> None:
    level = _core.cpu_level()
    made = block(level)
    alone = layer(made, level, 1)
    assert at_once(3, lambda i: layer(made, level, 1 + i)) == [alone] * 3


# ---- the pool ------------------------------------------------------------------------------------


def drafted(threads: int, requests: int = 80) -> list[tuple[list[int], list[int]]]:
    """Every draft of some requests that step together, of several groups and a shared history."""
    rng, drafter = random.Random(5), SuffixDrafter(threads=threads)
    words = [[rng.randrange(50) for _ in range(5)] for _ in range(12)]

    def text() -> list[int]:
        return [token for word in rng.choices(words, k=8) for token in word]

    seen: list[tuple[list[int], list[int]]] = []
    for _ in range(2):
        states = [drafter.begin(int32s(text()), group=str(i % 5)) for i in range(requests)]
        for _ in range(4):
            for draft in drafter.propose(states, [8] * requests):
                seen.append((draft.tokens.tolist(), draft.parents.tolist()))
            drafter.observe(states, [Verdict([], rng.choice(words)) for _ in states])
        for state in states:
            drafter.finish(state)
    return seen


def test_the_pool_drafts_what_one_thread_does() -> None:
    alone = drafted(1)
    assert any(tokens for tokens, _ in alone)
    for threads in (2, 4):
        assert drafted(threads) == alone


def test_threads_of_python_share_the_pool() -> None:
    assert at_once(3, lambda i: drafted(1 + i)) == [drafted(1)] * 3


# ---- threads for one call ------------------------------------------------------------------------


def chosen(threads: int) -> list[bytes]:
    rng, rows = np.random.default_rng(2), 30
    logits = rng.standard_normal((rows, 3000)).astype(np.float32)
    numbers, warm = np.arange(rows), np.full(rows, 0.8, np.float32)
    found = choose(shortened(logits), warm * (numbers % 3), numbers, numbers, threads=threads)
    residual, probs = np.empty(logits.shape), np.abs(logits)
    totals, statuses = softmax_into(residual, numbers, logits, numbers, warm, threads)
    of, least = sums_of(probs, numbers, threads)
    left = subtract_rows(residual, numbers, probs, numbers, totals, of, threads)
    drawn = draw(residual, np.linspace(0, 0.99, rows), threads)
    arrays: Sequence[Any] = [*found, totals, np.array(statuses), of, least, left, drawn, residual]
    return [array.tobytes() for array in arrays]


def test_threads_choose_and_weigh_what_one_does() -> None:
    alone = chosen(1)
    for threads in (2, 5):
        assert chosen(threads) == alone


def test_threads_build_the_file_that_one_does(tmp_path: Path) -> None:
    rng = random.Random(3)
    words = [[rng.randrange(200) for _ in range(6)] for _ in range(30)]
    documents = [[t for word in rng.choices(words, k=60) for t in word] for _ in range(40)]
    files = []
    for threads in (1, 2, 4):
        path = tmp_path / f"{threads}.foresay"
        build(path, documents, threads=threads)
        files.append(path.read_bytes())
    assert files[0] == files[1] == files[2]


def test_threads_of_python_call_at_once(tmp_path: Path) -> None:
    def work(i: int) -> list[bytes]:
        build(tmp_path / f"{i}.foresay", [[1, 2, 3, i] * 50] * 3)
        return chosen(1 + i)

    assert at_once(3, work) == [chosen(1)] * 3


# ---- arrays of other libraries -------------------------------------------------------------------


class Exchange(ctypes.Structure):
    """csrc/bind/borrowed.hpp has the same."""

    _fields_ = (
        ("version", ctypes.c_uint32 * 2),
        ("others", ctypes.c_void_p * 4),
        ("borrow", ctypes.c_void_p),
    )


def test_threads_that_ask_many_types_for_their_exchange() -> None:
    """Each type is asked through its own functions, whoever else asks for another just then."""
    asked: list[tuple[int, int]] = []
    kept: list[object] = []
    capsule = ctypes.pythonapi.PyCapsule_New
    capsule.restype = ctypes.py_object
    capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]
    name = b"dlpack_exchange_api"
    signature = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.c_void_p)

    def offering(number: int) -> type:
        def borrow(given: Any, _: object) -> int:
            asked.append((number, given.number))
            return -1  # a tensor without memory

        function = signature(borrow)
        table = Exchange((1, 3), (None,) * 4, ctypes.cast(function, ctypes.c_void_p))
        kept.extend([function, table])
        offer = capsule(ctypes.addressof(table), name, None)
        members = {"number": number, "__dlpack_c_exchange_api__": offer}
        return type(f"Tensor{number}", (), members)

    types = [offering(number) for number in range(24)]
    kept.append(name)

    def ask(thread: int) -> None:
        for turn in range(200):
            tensor = types[(turn * (thread + 1)) % len(types)]()
            with pytest.raises(TypeError, match="not on the CPU"):
                _core.rms_norm(tensor, tensor, 1e-5, tensor)

    at_once(8, ask)
    assert len(asked) == 1600 and all(table == given for table, given in asked)
