"""Linear layers that are read from a file: those from memory, and errors where it is damaged."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.block_twin import FORMATS, Format, weights
from core.test_block_linear import multiply, name_of, on_each_level, rows_of
from foresay import _core
from foresay.errors import InputError

INS = 512


def file_of(path: Path, tensors: list[Any]) -> list[int]:
    """Tensors in a file, each aligned to 32 bytes; where they begin."""
    starts, raw = [], b"GGUF"
    for tensor in tensors:
        raw += bytes(-len(raw) % 32)
        starts.append(len(raw))
        raw += tensor.tobytes()
    path.write_bytes(raw)
    return starts


@on_each_level
@pytest.mark.parametrize("form", FORMATS, ids=name_of)
def test_a_layer_from_a_file_is_the_layer_from_memory(
    form: Format, level: str, tmp_path: Path
) -> None:
    """Several at once, in another order of rows, with a bias, of one piece and of many."""
    rng = np.random.default_rng(4)
    shapes = [(1, INS), (37, INS), (400, 2 * INS), (64, INS)]
    stored = [weights(rng, form, outs, ins) for outs, ins in shapes]
    starts = file_of(tmp_path / "a", stored)
    order = rng.permutation(400).astype(np.int32)
    bias = rng.standard_normal(37).astype(np.float32)
    others: list[tuple[Any, Any]] = [(None, None), (None, bias), (order, None), (None, None)]
    wanted = [
        (f"tensor {start}", form.name, start, *shape, *other)
        for start, shape, other in zip(starts, shapes, others, strict=True)
    ]
    for threads in (1, 3):
        layers = _core.read_linears(str(tmp_path / "a"), wanted, threads, level)
        for layer, raw, (outs, ins), other in zip(layers, stored, shapes, others, strict=True):
            same = _core.BlockLinear(form.name, raw.reshape(-1), outs, ins, *other, level)
            x = rows_of(rng, 3, ins)
            assert np.array_equal(multiply(layer, x), multiply(same, x))
            assert layer.bytes == same.bytes and layer.stored_bytes == same.stored_bytes
            assert np.array_equal(layer.row(outs - 1), same.row(outs - 1))


def test_no_layer_is_read_of_none(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    assert _core.read_linears(str(tmp_path / "a"), []) == []


def place(**changes: Any) -> tuple[Any, ...]:
    given = {"name": "x", "format": "F32", "start": 0, "outs": 4, "ins": 4}
    given |= {"order": None, "bias": None, **changes}
    return tuple(given.values())


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "beyond its end": ({"start": 1}, "it should have 64 bytes at 1, but the file has 64"),
    "far beyond": ({"start": 2**64 - 8}, "it should have 64 bytes at 18446744073709551608, but"),
    "huge": ({"outs": 1 << 24, "ins": 1 << 24}, "should have 1125899906842624 bytes at 0, but"),
    "too huge": ({"outs": 1 << 40}, r"weight has the shape \[1099511627776, 4\]; both are from 1"),
    "nothing": ({"outs": 0}, r"weight has the shape \[0, 4\]; both are from 1"),
    "half a block": ({"format": "Q8_0"}, "weight has rows of 4 numbers; Q8_0 has blocks of 32"),
    "order": ({"order": np.array([0, 1, 2, 4], np.int32)}, "order has the row 4; expected 0 to 3"),
    "short order": ({"order": np.arange(3, dtype=np.int32)}, "order has 3 rows; expected 4"),
    "bias": ({"bias": np.ones(5, np.float32)}, "bias has 5 numbers; expected 4"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_does_not_fit_is_refused_by_name(name: str, tmp_path: Path) -> None:
    """Also sizes for which there is no memory: they are compared with the file's before."""
    changes, said = WRONG[name]
    (tmp_path / "a").write_bytes(np.ones(16, np.float32).tobytes())
    given = [place(), place(name="the second", **changes)]
    with pytest.raises(InputError, match=f"^the tensor 'the second' cannot be used: .*{said}"):
        _core.read_linears(str(tmp_path / "a"), given, 2)


def test_wrong_threads_and_formats(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    for threads in (0, 257):
        with pytest.raises(InputError, match=rf"^threads is {threads}; expected 1 to 256$"):
            _core.read_linears(str(tmp_path / "a"), [], threads)
    with pytest.raises(InputError, match=r'^the format is "Q9"; expected F32'):
        _core.read_linears(str(tmp_path / "a"), [place(format="Q9")])
    with pytest.raises(InputError, match=r"nowhere' cannot be read: No such file"):
        _core.read_linears(str(tmp_path / "nowhere"), [])


@pytest.mark.parametrize("form", FORMATS, ids=name_of)
def test_what_is_no_number_is_found(form: Format, tmp_path: Path) -> None:
    """In any row, with the tensor's name, on several threads."""
    rng = np.random.default_rng(5)
    sound, raw = weights(rng, form, 40, INS), weights(rng, form, 40, INS)
    raw[29] = 0xFF  # all scales and numbers
    starts = file_of(tmp_path / "a", [sound, raw])
    given = [
        place(name=f"tensor {number}", format=form.name, start=start, outs=40, ins=INS)
        for number, start in enumerate(starts)
    ]
    what = "has a scale that is no number" if form.quantised else "is none"
    said = rf"^the tensor 'tensor 1' cannot be used: (block|number) 0 of output 29 {what}"
    with pytest.raises(InputError, match=said):
        _core.read_linears(str(tmp_path / "a"), given, 2)


def test_a_file_that_ends_before_its_size_is_an_error() -> None:
    """As one does that is cut while it is read: the system says 4096 bytes of this one."""
    file = "/sys/devices/system/cpu/online"
    if not os.path.exists(file) or os.stat(file).st_size < 64:
        pytest.skip("there is no such file here")
    said = r"^the tensor 'x' cannot be used: the file became shorter: it ends at byte \d+$"
    with pytest.raises(InputError, match=said):
        _core.read_linears(file, [place()])
