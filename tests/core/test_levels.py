"""Levels of processors: which one is used, that everything follows it, and what is the same on all
of them. The tests of the kernels themselves run on every level, each in its own file."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import numpy as np
import pytest

from core.alone import python
from core.arrays import ints
from core.attention_twin import shortened
from core.kernels import choose, softmax_into
from foresay import _core
from foresay.errors import InputError

LEVELS = _core.cpu_levels()
KNOWN = ("amx", "vnni", "avx512", "avx2", "i8mm", "dotprod", "neon", "plain")  # the best first


def results(level: str = "") -> dict[str, str]:
    """What each kind of kernel computes, as hashes: of sums whose order and roundings show."""
    rng = np.random.default_rng(1)
    floats = rng.standard_normal((8, 1000)).astype(np.float32)
    bits, rows = shortened(floats[:, :192]), np.arange(8)
    found: dict[str, Any] = {}
    # Products that cancel each other: what is left is rounding, in the order of the sums.
    layer = _core.Linear(np.concatenate([bits, bits], axis=1), None, level)
    left = np.empty((8, 8), np.uint16)
    layer.multiply(np.concatenate([bits[::-1], bits[::-1] ^ 0x8000], axis=1), left)
    found["linear"] = (left,)
    stored = np.arange(8 * 6 * 34, dtype=np.uint8).reshape(48, 34)
    stored[:, :2] = np.linspace(1, 2, 48).astype(np.float16)[:, None].view(np.uint8)
    blocks = _core.BlockLinear("Q8_0", stored.reshape(-1), 8, 192, level=level)
    blocks.multiply(np.ascontiguousarray(floats[:, :192]), product := np.empty((8, 8), np.float32))
    found["blocks"] = (product,)
    residual = np.empty(floats.shape)
    totals, statuses = softmax_into(residual, rows, floats, rows, 0.7, level=level)
    found["residual"] = residual, totals, np.array(statuses)
    kv, out = _core.Kv([(1, 64, 64)], "float32"), np.empty((1, 40, 2, 64), np.float32)
    step = _core.AttentionStep([kv], ints(0, 40), ints(*range(-1, 39)), level)
    shape = rng.standard_normal((1, 2, 40, 64)).astype(np.float32)
    step.attend(0, shape, shape[:, :1], shape[:, 1:], out, 0.125)
    found["attention"] = (out,)
    normed = np.empty_like(bits)
    _core.rms_norm(bits, bits[0].copy(), 1e-5, normed, level)
    found["norm"] = (normed,)
    found["choices"] = choose(floats, (0, 0.3, 1, 1, 2, 5, 0, 1), rows, rows, level=level)
    return {
        name: hashlib.sha256(
            b"".join(np.ascontiguousarray(a).tobytes() for a in arrays)
        ).hexdigest()
        for name, arrays in found.items()
    }


def test_the_levels_are_known_and_the_best_comes_first() -> None:
    assert LEVELS[-1] == "plain"
    assert [level for level in KNOWN if level in LEVELS] == LEVELS


@pytest.mark.parametrize("level", LEVELS)
def test_everything_follows_the_variable(level: str) -> None:
    code = (
        "import json; from core.test_levels import _core, results;"
        "print(json.dumps([_core.cpu_level(), _core.better_cpu_levels(), results()]))"
    )
    done = python(code, FORESAY_CPU=level)
    assert done.returncode == 0, done.stderr
    used, better, found = json.loads(done.stdout)
    assert used == level
    assert found == results(level)
    offered = [name for name, why in better if why == f"{level} is forced by FORESAY_CPU"]
    assert offered == LEVELS[: LEVELS.index(level)]
    assert all(why for _, why in better)


def test_levels_are_told_apart() -> None:
    """Else the test above would see nothing: what is fused is rounded less often. Products of
    bfloat16 are exact, so that there is nothing to fuse; but tiles add them in another order."""
    plain = results("plain")
    for level in LEVELS[:-1]:
        found = results(level)
        assert found["attention"] != plain["attention"]
        assert found["residual"] != plain["residual"]
        assert found["blocks"] != plain["blocks"]
        assert (found["linear"] != plain["linear"]) == (level == "amx")


def test_choices_and_norms_are_the_same_on_all_levels() -> None:
    found = [results(level) for level in LEVELS]
    for name in ("choices", "norm"):
        assert len({result[name] for result in found}) == 1


@pytest.mark.parametrize("value", ["sse9", "NEON", "tiles", *sorted(set(KNOWN) - set(LEVELS))])
def test_a_level_that_is_not_there_is_said_where_it_is_used(value: str) -> None:
    """And nowhere else: the package can be imported, and its versions asked for."""
    code = (
        "from core.test_levels import InputError, _core, results\n"
        "import foresay; from foresay.drafters import SuffixDrafter; SuffixDrafter()\n"
        "for use in (_core.cpu_level, _core.better_cpu_levels, results):\n"
        "    try: use()\n"
        "    except InputError as error: print(error)\n"
        "print(len(results('plain')))"
    )
    done = python(code, FORESAY_CPU=value)
    assert done.returncode == 0, done.stderr
    *said, kinds = done.stdout.splitlines()
    valid = ", ".join(LEVELS)
    sentence = f'the environment variable FORESAY_CPU is "{value}", a level that cannot be run here'
    assert len(said) == 3 and kinds == "6"
    assert all(line.startswith(f"{sentence}; expected {valid},") for line in said)


@pytest.mark.parametrize(("value", "shown"), [("\udcff\n", ".."), ("x" * 99, "x" * 40 + "...")])
def test_a_sentence_can_show_any_value(value: str, shown: str) -> None:
    code = "from foresay import _core\ntry: _core.cpu_level()\nexcept ValueError as e: print(e)"
    assert f'FORESAY_CPU is "{shown}", a level' in python(code, FORESAY_CPU=value).stdout


def test_an_empty_variable_is_none() -> None:
    done = python("from foresay import _core; print(_core.cpu_level())", FORESAY_CPU="")
    assert done.stdout.strip() == LEVELS[0], done.stderr


def test_one_product_is_of_one_level() -> None:
    if len(LEVELS) == 1:
        pytest.skip("this machine offers one level only")
    square = np.ones((32, 32), np.uint16)
    norm = (np.ones(32, np.uint16), 1e-5)
    layers = [_core.Linear(square, None, level) for level in (*LEVELS[:1], *LEVELS[1:2] * 6)]
    block = _core.DecoderLayer(*layers, norm, norm, 16)  # type: ignore[call-arg, arg-type]
    step = _core.AttentionStep([_core.Kv([(2, 16, 16)], "bfloat16")], ints(0, 1), ints(-1))
    turns = np.zeros((1, 16), np.uint16)
    with pytest.raises(InputError, match=f"^a layer is laid out for {LEVELS[1]}, another for"):
        block.forward(step, 0, np.ones((1, 32), np.uint16), turns, turns, 1.0)
