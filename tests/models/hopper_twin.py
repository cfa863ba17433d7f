"""A twin of what `hopper_kernels.py` runs on: shared memory, the copy engine and products that are
under way at the same time, on the CPU. What may happen later happens later, in random order, and
what is not there yet is NaN: so a kernel that does not wait gives wrong numbers, and one that waits
for what never comes fails."""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np

import foresay.models.gpu

__all__ = ["SOURCE", "Machine", "Never", "TwinDescriptor", "kernels_of"]

SOURCE = (Path(foresay.models.gpu.__file__).parent / "hopper_kernels.py").read_text()


class Never(Exception):
    """What is waited for does not come."""


class Values(np.ndarray[Any, Any]):
    """A tensor in registers."""

    def to(self, _: object) -> Any:
        return self


def values(given: Any) -> Any:
    return np.asarray(given).view(Values)


class Number(int):
    """A scalar."""

    def to(self, _: object) -> Number:
        return self


@dataclass
class Pointer:
    """Addresses: an array that is written, and places in it."""

    memory: np.ndarray[Any, Any]
    places: Any = 0

    def __add__(self, more: Any) -> Pointer:
        return Pointer(self.memory, self.places + more)

    @property
    def dtype(self) -> Any:
        return SimpleNamespace(element_ty=None)


@dataclass
class Slot:
    """A piece of shared memory, or of one that is seen transposed."""

    memory: np.ndarray[Any, Any]

    def index(self, at: int) -> Slot:
        assert 0 <= at < len(self.memory)
        return Slot(self.memory[at])

    def permute(self, order: tuple[int, int]) -> Slot:
        return Slot(self.memory.transpose(order))


class TwinDescriptor:
    """A matrix for the copy engine. `rows`: nobody may read it before the kernel has waited."""

    dtype = "bfloat16"
    layout = None

    def __init__(self, matrix: np.ndarray[Any, Any], block: tuple[int, int], *, rows: bool) -> None:
        self.matrix, self.rows = matrix, rows
        self.block_type = SimpleNamespace(shape=block, nbytes=2 * block[0] * block[1])

    def block(self, first: int, at: int) -> np.ndarray[Any, Any]:
        """Behind the edge it is 0."""
        height, width = self.block_type.shape
        found = np.zeros((height, width), np.float32)
        there = self.matrix[first : first + height, at : at + width]
        found[: there.shape[0], : there.shape[1]] = there
        return found


class Machine:
    """One program after another. `place`: of the one that runs."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.place = (0, 0, 0)
        self.waited = False
        self.began = 0
        self._copies: list[Callable[[], None]] = []
        self._products: deque[Any] = deque()

    def something_happens(self) -> None:
        """Some of what is under way is done."""
        while self._copies and self._random.random() < 0.3:
            self._copies.pop(self._random.randrange(len(self._copies)))()
        while self._products and self._random.random() < 0.3:
            self._products.popleft().run()

    def start(self, place: tuple[int, int, int]) -> None:
        self.place, self.waited, self.began = place, False, 0

    def end(self) -> None:
        assert self.began == 1, "the next kernel is let begin once"
        assert not self._copies and not self._products

    # What the kernel calls

    def program_id(self, axis: int) -> Number:
        return Number(self.place[axis])

    def assembly(self, code: str, *_: object, **__: object) -> None:
        if "griddepcontrol.wait" in code:
            self.waited = True
        else:
            assert "launch_dependents" in code
            self.began += 1

    def copy(
        self, matrix: TwinDescriptor, at: Sequence[int], ready: Slot, to: Slot, there: bool = True
    ) -> None:
        if not there:
            return
        assert matrix.rows or not self.began, "more weights, though the next kernel may begin"
        early = matrix.rows and not self.waited

        def arrive() -> None:
            to.memory[...] = np.nan if early else matrix.block(*at)
            self._arrived(ready, matrix.block_type.nbytes)

        to.memory[...] = np.nan  # while it is written
        self._copies.append(arrive)
        self.something_happens()

    def init(self, barrier: Slot, count: int) -> None:
        assert count == 1
        barrier.memory[:] = 1, 0, 0  # arrivals that are missing, bytes, phases that are over

    def expect(self, barrier: Slot, size: int, there: bool = True) -> None:
        if there:
            barrier.memory[0] -= 1
            assert barrier.memory[0] >= 0
            self._arrived(barrier, -size)

    def _arrived(self, barrier: Slot, size: int) -> None:
        barrier.memory[1] -= size
        if not barrier.memory[0] and not barrier.memory[1]:
            barrier.memory[:] = 1, 0, barrier.memory[2] + 1

    def wait(self, barrier: Slot, phase: int) -> None:
        while barrier.memory[2] & 1 == phase:
            if not self._copies:
                raise Never
            self._copies.pop(self._random.randrange(len(self._copies)))()
        self.something_happens()

    def multiply(self, left: Slot, right: Slot, sums: Any, *, is_async: bool) -> Any:
        assert is_async
        self._products.append(product := Product(left, right, sums))
        self.something_happens()
        return product

    def multiplied(self, left: int, sums: list[Any]) -> Any:
        while len(self._products) > left:
            self._products.popleft().run()
        return sums[0] if len(sums) == 1 else sums

    def store(self, to: Pointer, found: Any, there: Any) -> None:
        found = found.value() if isinstance(found, Product) else found
        there = np.broadcast_to(there, found.shape)
        to.memory[np.broadcast_to(to.places, found.shape)[there]] = found[there]


class Product:
    """A product that is added to sums, some time until it is waited for; as a number, its sums."""

    __array_ufunc__ = None  # numpy leaves arithmetic with it to it

    def __init__(self, left: Slot, right: Slot, sums: Any) -> None:
        self._given = left, right, sums
        self._found: Any = None
        self.shape = sums.shape

    def run(self) -> None:
        left, right, sums = self._given
        before = sums.value() if isinstance(sums, Product) else sums
        self._found = before + left.memory @ right.memory

    def value(self) -> Any:
        assert self._found is not None, "sums are read before they are done"
        return values(self._found)

    def to(self, _: object) -> Any:
        return self.value()

    def __neg__(self) -> Any:
        return -self.value()

    def __mul__(self, other: Any) -> Any:
        return self.value() * (other.value() if isinstance(other, Product) else other)

    __rmul__ = __mul__

    def __add__(self, other: Any) -> Any:
        return self.value() + other

    def __truediv__(self, other: Any) -> Any:
        return self.value() / other


def kernels_of(machine: Machine, source: str = SOURCE) -> Any:
    """The kernels of this source, on that machine."""

    def jit(function: Any = None, **_: object) -> Any:
        return function if function is not None else jit

    gluon, language, hopper = (ModuleType(name) for name in ("gluon", "language", "hopper"))
    gluon.jit, gluon.language = jit, language  # type: ignore[attr-defined]
    vars(language).update(
        constexpr=None, int64=None, int32=None, float32=None, program_id=machine.program_id,
        inline_asm_elementwise=machine.assembly, static_range=range, store=machine.store,
        cdiv=lambda a, b: -(-a // b), minimum=min, exp=np.exp,
        zeros=lambda shape, *_: values(np.zeros(shape, np.float32)),
        arange=lambda begin, end, _: values(np.arange(begin, end)),
        SliceLayout=lambda *_: None, NVMMADistributedLayout=lambda *_: None,
        allocate_shared_memory=lambda kind, shape, _: Slot(
            np.full(shape, np.nan, np.float32)
            if kind == "bfloat16"
            else np.zeros((shape[0], 3), np.int64)
        ),
    )  # fmt: skip
    vars(hopper).update(
        mbarrier=SimpleNamespace(
            init=machine.init, expect=machine.expect, wait=machine.wait, MBarrierLayout=object
        ),
        tma=SimpleNamespace(async_load=machine.copy),
        warpgroup_mma=machine.multiply,
        warpgroup_mma_wait=machine.multiplied,
    )
    mine = {
        "triton.experimental": SimpleNamespace(gluon=gluon),
        "triton.experimental.gluon": gluon,
        "triton.experimental.gluon.language.nvidia.hopper": hopper,
    }
    with replaced(mine):
        made: dict[str, Any] = {"__name__": "hopper_kernels"}
        exec(compile(source, "hopper_kernels.py", "exec"), made)
    return SimpleNamespace(**made)


class replaced:  # noqa: N801 (used as a function)
    """These modules instead of the real ones."""

    def __init__(self, mine: dict[str, Any]) -> None:
        self._mine = mine

    def __enter__(self) -> None:
        self._before = {name: sys.modules.get(name) for name in self._mine}
        sys.modules.update(self._mine)

    def __exit__(self, *_: object) -> None:
        for name, module in self._before.items():
            if module is None:
                del sys.modules[name]
            else:
                sys.modules[name] = module


def places(grid: tuple[int, int, int]) -> Iterator[tuple[int, int, int]]:
    yield from np.ndindex(grid)
