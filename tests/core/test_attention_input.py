"""What the Kv and the attention step refuse, and that nothing is touched then."""

from __future__ import annotations

import gc
import os
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from core.attention_twin import shortened
from core.brute import int32s
from foresay import _core
from foresay.errors import InputError, StateError

LAYERS = [(2, 8, 6), (1, 3, 5)]
Arguments = dict[str, Any]


def new_step(dtype: str = "float32") -> tuple[_core.Kv, _core.AttentionStep]:
    kv = _core.Kv(LAYERS, dtype)
    return kv, _core.AttentionStep([kv], int32s([0, 3]), int32s([-1, 0, 0]))


def arguments(layer: int = 0, rows: int = 4) -> Arguments:
    rng = np.random.default_rng(0)
    heads, key_dim, value_dim = LAYERS[layer]

    def normal(*shape: int) -> NDArray[np.float32]:
        return rng.standard_normal(shape).astype(np.float32)

    return {
        "layer": layer,
        "query": normal(1, 2 * heads, rows, key_dim),
        "key": normal(1, heads, rows, key_dim),
        "value": normal(1, heads, rows, value_dim),
        "out": np.full((1, rows, 2 * heads, value_dim), 7, np.float32),
        "scaling": 0.5,
    }


def both_layers(step: _core.AttentionStep) -> None:
    for layer in range(2):
        step.attend(**arguments(layer))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_views_are_read_where_they_are(dtype: str) -> None:
    """Transposed projections, as models give them; negative strides too."""
    plain = arguments(rows=3)
    if dtype == "bfloat16":
        plain |= {k: shortened(v) for k, v in plain.items() if isinstance(v, np.ndarray)}
    views = dict(plain, out=np.empty_like(plain["out"]))
    for name in ("query", "key"):
        views[name] = np.ascontiguousarray(plain[name].transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3)
    views["value"] = np.ascontiguousarray(plain["value"][:, ::-1])[:, ::-1]
    for given in (plain, views):
        new_step(dtype)[1].attend(**given)
    assert plain["out"].tobytes() == views["out"].tobytes()


@pytest.mark.skipif("FORESAY_SANITIZE" in os.environ, reason="torch under the sanitizers")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_tensors_are_read_where_they_are(dtype: str) -> None:
    torch = pytest.importorskip("torch")
    arrays = arguments(rows=3)
    tensors: Arguments = {}
    for name, array in arrays.items():
        if isinstance(array, np.ndarray):
            tensors[name] = torch.from_numpy(array.copy()).to(getattr(torch, dtype))
            tensors[name] = tensors[name].transpose(1, 2).contiguous().transpose(1, 2)
            bits = tensors[name].contiguous()
            arrays[name] = (bits.view(torch.uint16) if dtype == "bfloat16" else bits).numpy().copy()
    tensors["out"] = tensors["out"].contiguous()
    for given in (arrays, arrays | tensors):
        new_step(dtype)[1].attend(**given)
    found = tensors["out"].view(torch.uint16) if dtype == "bfloat16" else tensors["out"]
    assert found.numpy().tobytes() == arrays["out"].tobytes()
    with pytest.raises(InputError, match=r"^query has 3 dimensions"):
        new_step(dtype)[1].attend(**(arrays | tensors | {"query": tensors["query"][0]}))
    with pytest.raises(InputError, match=r"^out is of another dtype"):
        new_step(dtype)[1].attend(**(arrays | {"out": tensors["out"].double()}))
    with pytest.raises(TypeError, match=r"^key is not on the CPU"):
        new_step(dtype)[1].attend(**(arrays | {"key": tensors["key"].to("meta")}))


def test_kvs_of_a_step_are_distinct_and_alike() -> None:
    kv = _core.Kv(LAYERS, "float32")
    with pytest.raises(InputError, match="one Kv twice"):
        _core.AttentionStep([kv, kv], int32s([0, 1, 2]), int32s([-1, -1]))
    for other in (_core.Kv(LAYERS, "bfloat16"), _core.Kv(LAYERS[:1], "float32")):
        with pytest.raises(InputError, match=r"^kvs\[1\] has another layout"):
            _core.AttentionStep([kv, other], int32s([0, 1, 2]), int32s([-1, -1]))
        with pytest.raises(InputError, match="another layout"):
            kv.copy_from(other, 0)
    with pytest.raises(InputError, match=r'^level "fast" cannot be run here; expected .*plain'):
        _core.AttentionStep([kv], int32s([0, 0]), int32s([]), "fast")
    with pytest.raises((TypeError, InputError)):
        _core.AttentionStep([None], int32s([0, 0]), int32s([]))  # type: ignore[list-item]


def test_paths_and_lengths_are_checked() -> None:
    kv, step = new_step()
    for path in ([0], [-1], [3]):
        with pytest.raises(InputError, match=r"^path\[0\] is -?\d, but layer 0 has 0 rows"):
            kv.keep(int32s(path))
    step.attend(**arguments(0))
    with pytest.raises(InputError, match=r"^path\[0\] is 0, but layer 1 has 0 rows"):
        kv.keep(int32s([0]))
    step.attend(**arguments(1))
    for path in ([0, 0], [2, 1]):
        with pytest.raises(InputError, match=r"^path\[1\] is \d after \d; a path's rows increase"):
            kv.keep(int32s(path))
    with pytest.raises(InputError, match=r"^path\[2\] is 3, but layer"):
        kv.keep(int32s([0, 2, 3]))
    kv.keep(int32s([0, 2]))
    assert kv.length == 2
    with pytest.raises(InputError, match=r"^cannot cut to 3 tokens; there are 2$"):
        kv.cut(3)
    other = _core.Kv(LAYERS, "float32")
    with pytest.raises(InputError, match=r"^cannot copy 3 tokens; the other Kv has 2$"):
        other.copy_from(kv, 3)
    other.copy_from(kv, 2)
    other.copy_from(other, 1)
    assert (other.length, kv.length) == (1, 2)
    assert (other.keys(1) == kv.keys(1)[:, :1]).all()
    with pytest.raises(InputError, match=r"^layer 2 does not exist"):
        kv.keys(2)


def test_a_step_ends_when_its_kv_changes() -> None:
    changes: list[Callable[[_core.Kv], object]] = [
        lambda kv: kv.keep(int32s([0])),
        lambda kv: kv.keep(int32s([])),
        lambda kv: kv.cut(0),
        lambda kv: kv.copy_from(_core.Kv(LAYERS, "float32"), 0),
        lambda kv: _core.AttentionStep([kv], int32s([0, 0]), int32s([])),
    ]
    for change in changes:
        kv, step = new_step()
        both_layers(step)
        change(kv)
        with pytest.raises(StateError, match=r"^the Kv of request 0 has changed since"):
            step.attend(**arguments())
        with pytest.raises(InputError, match="has 0 rows of the last step"):
            kv.keep(int32s([0]))


def test_memory_grows_by_doubling_and_moves_what_it_holds() -> None:
    kv, step = new_step()
    assert (kv.length, kv.capacity) == (0, 64) and kv.bytes == 64 * 4 * (2 * (8 + 16) + 3 + 16)
    both_layers(step)
    before = kv.keys(0), kv.values(0), kv.keys(1), kv.values(1)
    kv.reserve(65)
    assert kv.capacity == 128
    kv.reserve(1000)
    assert kv.capacity == 1024
    kv.check_integrity()
    for old, new in zip(before, (kv.keys(0), kv.values(0), kv.keys(1), kv.values(1)), strict=True):
        assert (old == new).all()
    both_layers(step)  # more room ends no step
    kv.keep(int32s([1]))
    assert (kv.keys(0)[:, 0] == arguments()["key"][0, :, 1]).all()


def test_more_than_there_is() -> None:
    kv = _core.Kv([(4096, 4096, 4096)] * 64, "float32")
    with pytest.raises(InputError, match=r"^room for 1073741825 tokens is too much"):
        kv.reserve(2**30 + 1)
    with pytest.raises(MemoryError):
        kv.reserve(2**30)
    assert (kv.length, kv.capacity, kv.bytes) == (0, 0, 0)
    kv.check_integrity()


def test_a_step_keeps_its_kvs() -> None:
    step = new_step()[1]
    gc.collect()
    both_layers(step)


def test_no_rows() -> None:
    kv = _core.Kv(LAYERS, "float32")
    step = _core.AttentionStep([kv], int32s([0, 0]), int32s([]))
    given = arguments()
    step.attend(**given)
    assert (
        (given["out"] == 0).all()
        and step.positions.tolist() == []
        and kv.keys(0).shape == (2, 0, 8)
    )
    kv.keep(int32s([]))
    assert kv.length == 0


def test_threads_that_share_a_kv_do_not_crash() -> None:
    """One of them is told that it has to wait."""
    kv = _core.Kv([(4, 64, 64)], "float32")
    rows = 300
    big = np.ones((1, 4, rows, 64), np.float32)
    refused: list[str] = []

    def work() -> None:
        for _ in range(20):
            try:
                step = _core.AttentionStep([kv], int32s([0, rows]), int32s(range(-1, rows - 1)))
                step.attend(0, big, big, big, np.empty((1, rows, 4, 64), np.float32), 0.1)
                kv.keep(int32s([0]))
                kv.cut(0)
            except InputError as error:
                refused.append(str(error))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    kv.check_integrity()
    assert all("in use" in text or "has changed" in text or "rows of" in text for text in refused)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_pass_that_skips_layers(dtype: str) -> None:
    """Layer 0 of the pass is layer 1 of the Kv; what was stored before stays in both layers."""

    def given(layer: int) -> Arguments:
        found = arguments(layer)
        if dtype == "bfloat16":
            found |= {k: shortened(v) for k, v in found.items() if isinstance(v, np.ndarray)}
        return found

    def stored(kv: _core.Kv) -> list[Any]:
        return [part(layer)[:, :3] for layer in (0, 1) for part in (kv.keys, kv.values)]

    kv, step = new_step(dtype)
    for layer in range(2):
        step.attend(**given(layer))
    kv.keep(int32s(range(3)))
    before = stored(kv)
    step = _core.AttentionStep([kv], int32s([0, 3]), int32s([-1, 0, 0]), kept=[1])
    with pytest.raises(InputError, match=r"^layer 1 does not exist; there are 1$"):
        step.attend(**given(1))
    with pytest.raises(InputError, match=r"^path\[0\] is 0, but layer 0 has 0 rows"):
        kv.keep(int32s([0]))
    step.attend(**{**given(1), "layer": 0})
    kv.keep(int32s([0, 2]))
    assert kv.length == 5
    assert np.array_equal(kv.keys(1)[:, 3:], kv.keys(1)[:, [0, 2]])
    kv.cut(3)
    assert all(np.array_equal(a, b) for a, b in zip(before, stored(kv), strict=True))
    kv.check_integrity()


def test_a_pass_that_skips_layers_and_ends_early() -> None:
    kv = _core.Kv([LAYERS[1]] * 3, "float32")
    step = _core.AttentionStep([kv], int32s([0, 3]), int32s([-1, 0, 0]), kept=[0, 2])
    step.attend(**{**arguments(1), "layer": 0})
    with pytest.raises(InputError, match=r"^path\[0\] is 0, but layer 1 has 0 rows"):
        kv.keep(int32s([0]))
