"""The kernel of few rows for Hopper, on a twin of the copy engine; on a GPU it is in
test_gpu_kernels.py."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from models.hopper_twin import SOURCE, Machine, Never, Pointer, TwinDescriptor, kernels_of, places


class Case(NamedTuple):
    """`sizes`: outputs of one matrix or three; of gate and up, where it is gated."""

    rows: int
    inputs: int
    sizes: tuple[int, ...]
    parts: int = 1
    outputs: int = 8
    tiles: tuple[int, int] = (4, 0)
    step: int = 4
    stages: int = 3
    gated: bool = False
    lag: int = 0


CASES = {
    "all at once": Case(3, 8, (16,)),
    "more steps than memory": Case(4, 40, (13,)),
    "parts, groups of rows": Case(7, 48, (8,), parts=2, stages=2),
    "three matrices": Case(5, 24, (9, 8, 3), parts=3),
    "two tiles": Case(11, 28, (9,), tiles=(4, 2)),
    "two tiles, with a lag": Case(5, 44, (9,), tiles=(4, 2), stages=4, lag=1),
    "gated": Case(4, 36, (20, 20), gated=True),
    "gated, two tiles, with a lag": Case(6, 36, (10, 10), tiles=(4, 2), gated=True, lag=1),
}


def computed(case: Case, seed: int, source: str = SOURCE) -> tuple[Any, Any]:
    """By the kernel on its twin, and by numpy: [parts, rows, outputs], or [rows, outputs]."""
    random = np.random.default_rng(seed)
    rows = random.integers(-3, 4, (case.rows, case.inputs)).astype(np.float32)
    weights = [random.integers(-3, 4, (n, case.inputs)).astype(np.float32) for n in case.sizes]
    part, more = case.inputs // case.parts, case.tiles[1] > 0
    every = sum(case.sizes[:1] if case.gated else case.sizes)
    out = np.full(case.parts * case.rows * every, np.nan, np.float32)
    machine = Machine(seed)
    run = kernels_of(machine, source).multiply_early
    three = [*weights, *weights[:1] * 2][:3]
    sizes = [*case.sizes[: 1 if case.gated else 3], 0, 0][:3]
    tiles = [(tile or case.tiles[0], case.step) for tile in case.tiles]
    grid = -(-case.rows // sum(case.tiles)), sum(-(-n // case.outputs) for n in sizes), case.parts
    for place in places(grid):
        machine.start(place)
        run(
            *(TwinDescriptor(each, (case.outputs, case.step), rows=False) for each in three),
            *(TwinDescriptor(rows, tile, rows=True) for tile in tiles), Pointer(out), case.rows,
            case.inputs, part, every, *sizes, stages=case.stages,
            many=1 if case.gated else len(case.sizes), gated=case.gated, more=more, lag=case.lag,
            gelu=False, num_warps=4,
        )  # fmt: skip
        machine.end()
    if case.gated:
        gates, ups = (rows @ each.T for each in weights)
        return out.reshape(case.rows, every), gates / (1.0 + np.exp(-gates)) * ups
    split = rows.reshape(case.rows, case.parts, part).swapaxes(0, 1)
    both = np.concatenate(weights).reshape(every, case.parts, part)
    wanted = np.einsum("prk,opk->pro", split, both)
    return out.reshape(case.parts, case.rows, every), wanted


@pytest.mark.parametrize("name", CASES)
def test_it_is_the_product(name: str) -> None:
    for seed in range(5):
        found, wanted = computed(CASES[name], seed)
        assert np.array_equal(found, wanted), seed


WRONG = {
    "rows before the wait": ("    wait_for_kernel_before()\n    for at", "    for at"),
    "weights that are not waited for": ("        mbarrier.wait(ready.index(slot), turn)\n", ""),
    "rows that are not waited for": ("        mbarrier.wait(rows_ready.index(slot), turn)\n", ""),
    "the wrong turn": ("at // stages & 1", "at // stages & 1 ^ 1"),
    "a slot that is still read": ("* lag\n", "* lag + 1\n"),
    "sums that are not done": ("ups2, 0, gated", "ups2, 4, gated"),
    "a step too few": ("steps = gl.cdiv(", "steps = -1 + gl.cdiv("),
    "nobody may begin": ("        if later == steps - 1:\n            begin_early()\n", ""),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_kernel_is_noticed(name: str) -> None:
    right, wrong = WRONG[name]
    assert SOURCE.count(right) == 1
    noticed = 0
    for case in CASES.values():
        for seed in range(5):
            try:
                found, wanted = computed(case, seed, SOURCE.replace(right, wrong))
                noticed += not np.array_equal(found, wanted)
            except (AssertionError, Never):
                noticed += 1
    assert noticed
