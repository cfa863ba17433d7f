"""Streamed layers: every kernel reads its own layer, however far the device is behind the host.

The device is simulated by two queues, of kernels and of copies, of which any that may run is run at
any time; a copy takes two steps, so that what reads or writes meanwhile is seen.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from torch import Tensor

from foresay.errors import InputError, ModelError
from foresay.models import weights
from foresay.models.gpu.streaming import StreamedLayers, read_streamed, resident_layers
from foresay.models.gpu.weights import read_weights
from models import gguf_files

CPU = torch.device("cpu")
DEVICES = [torch.device(name) for name in ("cpu", "cuda")[: 1 + torch.cuda.is_available()]]
SIZE = 768  # bytes of a layer of `some`


def some(count: int) -> list[dict[str, Tensor]]:
    """Layers whose values say which they are."""
    return [
        {"a": torch.full((8, 10), float(at)), "b": torch.full((3,), at + 0.5).bfloat16()}
        for at in range(count)
    ]


class Simulated:
    """`Copies` and kernels of a device that is slow at random."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._kernels: deque[Callable[[], None] | list[bool]] = deque()
        self._copies: deque[tuple[int, Callable[[], object]]] = deque()
        self._launched = self._ended = 0
        self.log: list[str] = []

    def start(self, to: Tensor, block: Tensor) -> list[bool]:
        event, half = [False], len(to) // 2
        after = self.kernels_before()

        def second() -> None:
            to[half:] = block[half:]
            event[0] = True

        self._copies.append((after, lambda: to[:half].copy_(block[:half])))
        self._copies.append((after, second))
        self.log.append(f"copy {int(block[:4].view(torch.float32))}")
        self._run(self._random.randrange(3))
        return event

    def kernels_before(self) -> int:
        """How many have to end before a copy that is started now."""
        return self._launched

    def wait(self, event: list[bool]) -> None:
        self._launch(event)
        self.log.append("wait")

    def finish(self, event: list[bool]) -> None:
        while not event[0]:
            self._run(1)

    def kernel(self, layer: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
        expected = {name: tensor.clone() for name, tensor in expected.items()}

        def check() -> None:
            assert all(torch.equal(layer[name], tensor) for name, tensor in expected.items())

        self._launch(check)
        self.log.append(f"kernel {int(expected['a'][0, 0])}")

    def end(self) -> None:
        while self._kernels or self._copies:
            self._run(1)

    def _launch(self, what: Callable[[], None] | list[bool]) -> None:
        self._kernels.append(what)
        self._launched += 1
        self._run(self._random.randrange(3))

    def _run(self, steps: int) -> None:
        for _ in range(steps):
            ready: list[Callable[[], object]] = []
            if self._kernels:
                first = self._kernels[0]
                if not isinstance(first, list) or first[0]:
                    ready.append(self._run_kernel)
            if self._copies and self._copies[0][0] <= self._ended:
                ready.append(lambda: self._copies.popleft()[1]())
            if ready:
                self._random.choice(ready)()

    def _run_kernel(self) -> None:
        what = self._kernels.popleft()
        self._ended += 1
        if not isinstance(what, list):
            what()


def played(order: Sequence[int], count: int, fit: int, device: Simulated, *, replaced: int) -> None:
    """Kernels of layers in that order; now and then a layer is replaced, or released early."""
    layers, choice = some(count), random.Random(len(order))
    streamed = StreamedLayers(some(count), count=count, device=CPU, limit=fit * SIZE, copies=device)
    for step, index in enumerate(order):
        device.kernel(streamed.layer(index), layers[index])
        if choice.random() < 0.2:
            streamed.release()
        if replaced and step % replaced == 0:
            other = choice.randrange(count)
            layers[other]["a"][2:5] = float(1000 * step + other)
            if other in streamed.resident:
                device.end()  # torch writes to them in the order of kernels
            streamed.replace(other, "a", layers[other]["a"][2:5].clone(), 2)
    device.end()


def orders(count: int) -> list[list[int]]:
    passes = list(range(count)) * 4
    kept = [at for at in range(count) if at % 3 != 1] * 3
    return [passes, kept, random.Random(1).choices(range(count), k=40), [2, 2, 0, 2, 1, 1]]


@pytest.mark.parametrize(("count", "fit"), [(4, 2), (5, 3), (5, 4), (8, 5), (9, 4), (6, 6)])
def test_every_kernel_reads_its_layer(count: int, fit: int) -> None:
    for seed in range(12):
        for order in orders(count):
            for replaced in (0, 3):
                played(order, count, fit, Simulated(seed), replaced=replaced)


class _NoBufferIsWaitedFor(Simulated):
    def kernels_before(self) -> int:
        return 0


class _NoCopyIsWaitedFor(Simulated):
    def wait(self, event: list[bool]) -> None:
        pass


class _TheHostDoesNotWait(Simulated):
    def finish(self, event: list[bool]) -> None:
        pass


@pytest.mark.parametrize("wrong", [_NoBufferIsWaitedFor, _NoCopyIsWaitedFor, _TheHostDoesNotWait])
def test_a_wrong_order_is_found(wrong: type[Simulated]) -> None:
    with pytest.raises(AssertionError):
        for seed in range(40):
            played(orders(8)[0], 8, 4, wrong(seed), replaced=2)


def test_the_next_layer_is_copied_while_one_is_computed() -> None:
    """Over the end of a pass, and without waiting for anything else."""
    device = Simulated(0)
    layers = some(4)
    streamed = StreamedLayers(some(4), count=4, device=CPU, limit=3 * SIZE, copies=device)
    for at in (0, 1, 2, 3, 0):
        device.kernel(streamed.layer(at), layers[at])
    streamed.release()
    assert device.log == [
        *("copy 0", "copy 1", "wait", "kernel 0", "copy 2", "wait", "kernel 1"),
        *("copy 3", "wait", "kernel 2", "copy 0", "wait", "kernel 3", "copy 1"),
        *("wait", "kernel 0", "copy 2"),
    ]


def test_layers_that_stay_cause_no_copies() -> None:
    device = Simulated(0)
    streamed = StreamedLayers(some(5), count=5, device=CPU, limit=3 * SIZE, copies=device)
    assert streamed.resident == [4] and len(streamed) == 5
    assert streamed.device_bytes == 3 * SIZE
    whole = StreamedLayers(some(5), count=5, device=CPU, limit=5 * SIZE, copies=device)
    assert whole.resident == [0, 1, 2, 3, 4] and whole.device_bytes == 5 * SIZE
    device.log.clear()
    for at in (*range(5), *range(5)):
        assert float(whole.layer(at)["a"][7, 9]) == at
    assert device.log == []


def test_a_layer_is_at_the_same_place_in_every_pass() -> None:
    streamed = StreamedLayers(some(7), count=7, device=CPU, limit=4 * SIZE)
    first = [streamed.layer(at)["b"].data_ptr() for at in range(7)]
    assert [streamed.layer(at)["b"].data_ptr() for at in range(7)] == first
    assert len(set(first)) == 1 + 2 and all(each % 64 == 0 for each in first)


def test_how_many_layers_stay() -> None:
    for count in range(1, 12):
        for fit in range(count + 3):
            limit = fit * SIZE + 7
            try:
                stays = resident_layers(count, SIZE, limit)
            except ModelError as error:
                least = int(str(error).split("at least ")[1].split(",")[0])
                assert limit < least and resident_layers(count, SIZE, least)
                continue
            assert len(stays) == count
            copied = count - sum(stays)
            assert copied % 2 == 0 and (sum(stays) + 2 * (copied > 0)) * SIZE <= limit
            assert sum(stays) >= min(count, fit - 3)
            runs = "".join(".x"[stay] for stay in stays).split(".")
            if copied:  # evenly among the others
                inner = [len(run) for run in runs[1:-1]] or [0]
                assert max(inner) - min(inner) <= 1
    with pytest.raises(ModelError, match="is 1000 bytes; expected at least 2304, for 3 of 5"):
        resident_layers(5, SIZE, 1000)


def test_replaced_weights() -> None:
    streamed = StreamedLayers(some(5), count=5, device=CPU, limit=3 * SIZE)
    for index in range(5):
        streamed.replace(index, "b", torch.tensor([7.0 + index]), 1)
    for index in range(5):
        assert streamed.layer(index)["b"].tolist() == [index + 0.5, 7.0 + index, index + 0.5]
    for index, name, tensor, first in (
        (5, "b", torch.zeros(3), 0),
        (-1, "b", torch.zeros(3), 0),
        (0, "c", torch.zeros(3), 0),
    ):
        with pytest.raises(InputError, match=f"layer {index} has no tensor '{name}'"):
            streamed.replace(index, name, tensor, first)
    for tensor, first in ((torch.zeros(4), 0), (torch.zeros(2), 2), (torch.zeros(1), -1)):
        with pytest.raises(InputError, match=r"b of layer 3 has the shape \[3\]; expected one"):
            streamed.replace(3, "b", tensor, first)


def test_layers_that_differ_or_are_of_another_number() -> None:
    def made(layers: Any) -> StreamedLayers:
        return StreamedLayers(iter(layers), count=4, device=CPU, limit=2 * SIZE)

    with pytest.raises(InputError, match="layer 3 is missing or unlike layer 0; expected 4 alike"):
        made(some(3))
    with pytest.raises(InputError, match="more layers are given than 4"):
        made(some(5))
    with pytest.raises(InputError, match="layer 2 is missing or unlike"):
        made([*some(2), {"a": torch.zeros(8, 10)}, *some(1)])
    with pytest.raises(ModelError, match="the memory for layers is 1536 bytes"):
        StreamedLayers(some(3), count=3, device=CPU, limit=2 * SIZE)


@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_a_model_s_layers(device: torch.device, architecture: str, tmp_path: Path) -> None:
    model = gguf_files.tiny(architecture, num_hidden_layers=7)
    gguf_files.export(model, tmp_path / "a.gguf", architecture, Kind.Q8_0)
    stored = weights.find_stored(tmp_path / "a.gguf", cache=tmp_path / "cache")
    expected = read_weights(stored, device, torch.bfloat16)
    own = sum(each.nbytes for name, each in expected.items() if ".layers." not in name)
    one = sum(-(-each.nbytes // 256) * 256 for name, each in expected.items() if ".3." in name)

    def turned(layer: dict[str, Tensor]) -> dict[str, Tensor]:
        fused = torch.cat([layer.pop(f"self_attn.{part}_proj.weight") for part in "qkv"])
        return {"qkv": fused, **layer}

    bound = own + 4 * one
    others, layers = read_streamed(stored, device, torch.bfloat16, bound, prepare=turned)
    assert list(others) == [name for name in expected if ".layers." not in name]
    assert len(layers.resident) == 1 and layers.device_bytes <= 4 * one
    for index in [*range(7), *range(7)]:
        here = f"model.layers.{index}."
        wanted = {name: each for name, each in expected.items() if name.startswith(here)}
        short = {name.removeprefix(here): each for name, each in wanted.items()}
        found = layers.layer(index)
        prepared = turned(short)
        assert found.keys() == prepared.keys()
        assert all(torch.equal(found[name], each) for name, each in prepared.items())
    with pytest.raises(ModelError, match="the memory for layers is"):
        read_streamed(stored, CPU, torch.bfloat16, own + 2 * one)


def test_damage_is_found_when_the_last_layer_has_been_read(tmp_path: Path) -> None:
    model = gguf_files.tiny("llama", num_hidden_layers=4)
    gguf_files.export(model, tmp_path / "a.gguf", "llama")
    stored = weights.find_stored(tmp_path / "a.gguf", cache=tmp_path / "cache")
    with open(tmp_path / "a.gguf", "r+b") as file:
        file.seek(stored.tensors["model.layers.3.mlp.down_proj.weight"].tensor.start)
        file.write(b"\x00\x00\xc0\x7f")
    with pytest.raises(ModelError, match=r"'blk.3.ffn_down.weight' holds values that are no"):
        read_streamed(stored, CPU, torch.bfloat16, 1 << 30)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_whose_kernels_are_far_behind() -> None:
    """The sums of large layers, of which the host has launched all before the first has ended; and
    a layer that is replaced meanwhile.
    """
    device, rows = torch.device("cuda"), 4096
    layers = [{"a": torch.full((rows, rows), float(at), device=device)} for at in range(8)]
    size = layers[0]["a"].nbytes
    streamed = StreamedLayers(layers, count=8, device=device, limit=4 * size)
    assert len(streamed.resident) == 2
    found: list[Tensor] = []
    for turn in range(6):
        for at in range(8):
            found.append(streamed.layer(at)["a"].double().sum())
        streamed.release()
        streamed.replace(turn, "a", torch.full((1, rows), 100.0), 7)
    expected: list[float] = []
    for turn in range(6):
        more = [(100.0 - at) * rows if at < turn else 0.0 for at in range(8)]
        expected += [at * float(rows * rows) + more[at] for at in range(8)]
    assert torch.stack(found).tolist() == expected
