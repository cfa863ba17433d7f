"""Packed linear layers against the ordinary ones, and the search for row counts of equal bits."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

import forks
from foresay.models.cpu import invariance, linears
from foresay.models.cpu.linears import (
    ANY_ROWS,
    PackedLinear,
    RowRange,
    multiplied_by_torch,
    pack,
    prefilling,
    row_ranges,
)
from models import zoo


def works() -> bool:
    try:
        PackedLinear(torch.ones(16, 16), None)(torch.ones(2, 16))
    except (RuntimeError, AttributeError, NotImplementedError):
        return False
    return True


packing = pytest.mark.skipif(not works(), reason="oneDNN cannot lay out weights here")


class Two(nn.Module):
    """Layers of both kinds, one of them inside another module."""

    def __init__(self, bias: bool) -> None:
        super().__init__()
        torch.manual_seed(5)
        self.up = nn.Linear(24, 40, bias=bias)
        down = Conv1D(24, 40)
        nn.init.normal_(down.weight)
        self.inner = nn.Sequential(nn.SiLU(), down)
        self.norm = nn.LayerNorm(24)
        self.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.norm(self.inner(self.up(x)))
        return out


def kinds(model: Two) -> list[type[nn.Module]]:
    return [type(model.up), type(model.inner[1])]


@packing
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("rows", [1, 3, 17, 70])
def test_packed_equals_plain(bias: bool, rows: int) -> None:
    model, same = Two(bias), Two(bias)
    pack(model, deterministic=True)
    assert kinds(model) == [PackedLinear, PackedLinear]
    x = torch.randn(1, rows, 24)
    with torch.inference_mode():
        assert model(x).shape == (1, rows, 24)
        torch.testing.assert_close(model(x), same(x), rtol=1e-4, atol=1e-5)


def test_bfloat16_is_packed_too() -> None:
    model, same = Two(True).to(torch.bfloat16), Two(True)
    pack(model, deterministic=True)
    layer: object = model.up
    assert isinstance(layer, PackedLinear) and layer.core is not None
    x = torch.randn(9, 24).to(torch.bfloat16)
    with torch.inference_mode():
        torch.testing.assert_close(model(x).float(), same(x.float()), rtol=0.05, atol=0.05)


def test_in_the_core_no_row_count_is_special(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = PackedLinear(torch.randn(40, 96).bfloat16(), torch.randn(40).bfloat16())
    decode, prefill = row_ranges(layer)
    assert decode is prefill
    assert decode == RowRange(1, linears._TRIED[-1])
    monkeypatch.setattr(linears, "row_ranges", lambda layer: pytest.fail("nothing is to be tried"))
    model = Two(True).to(torch.bfloat16)
    pack(model, deterministic=True)
    up: object = model.up
    assert isinstance(up, PackedLinear)
    assert up.decode is up.prefill is ANY_ROWS
    x = torch.randn(1, 50, 96).bfloat16()
    gates = torch.cat([x, x], -1).chunk(2, -1)[0]  # not contiguous
    assert torch.equal(layer(gates), layer(x))
    assert layer(x[:, :0]).shape == (1, 0, 40)


@packing
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_wrong_product_is_not_used(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of oneDNN, and of the core."""
    right = PackedLinear._multiply
    monkeypatch.setattr(PackedLinear, "_multiply", lambda self, x: right(self, x).mul_(1.2))
    model = Two(True).to(dtype)
    pack(model, deterministic=True)
    assert kinds(model) == [nn.Linear, Conv1D]


def altered(monkeypatch: pytest.MonkeyPatch, good: Callable[[int], int]) -> PackedLinear:
    """A layer whose bits are others from the row `good(rows)` on."""
    multiply = PackedLinear._multiply

    def wrong(self: PackedLinear, x: Tensor) -> Tensor:
        rows = x.numel() // self.in_features
        # Always with the same number of rows: this machine may have classes of its own.
        out = torch.cat([multiply(self, row.expand(8, -1))[:1] for row in x.reshape(rows, -1)])
        same = good(rows)
        out = torch.cat([out[:same], torch.nextafter(out[same:], out[same:] + 1)])
        return out.reshape(*x.shape[:-1], self.out_features)

    layer = PackedLinear(torch.eye(6), None)
    monkeypatch.setattr(PackedLinear, "_multiply", wrong)
    return layer


def waver(monkeypatch: pytest.MonkeyPatch, least: int, most: int) -> PackedLinear:
    """A layer whose bits are others outside of some range of row counts."""
    return altered(monkeypatch, lambda rows: rows if least <= rows <= most else 0)


def leave_over(monkeypatch: pytest.MonkeyPatch, block: int) -> PackedLinear:
    """A layer that does whole blocks of rows in one way, and what is left over in another."""
    return altered(monkeypatch, lambda rows: rows // block * block)


FEW = tuple(rows for rows in linears._TRIED if rows <= 64)
SOME = (1, 7, 8, 15, 16, 40, 48, 80, 96, 128)


@packing
@pytest.mark.parametrize(
    ("tried", "least", "most", "decode", "prefill"),
    [
        (FEW, 1, 32, (1, 32), None),
        (FEW, 2, 33, (2, 32), None),
        (FEW, 5, 15, (5, 8), None),
        (FEW, 8, 8, (8, 8), None),
        (FEW, 1, 1 << 20, (1, 64), None),
        (FEW, 4, 48, (4, 48), None),
        (SOME, 2, 47, (7, 32), (48, 128)),
        (SOME, 1, 999, (1, 128), None),
    ],
)
def test_row_ranges_finds_the_classes_of_a_usual_draft_and_of_a_prompt(
    tried: tuple[int, ...],
    least: int,
    most: int,
    decode: tuple[int, int],
    prefill: tuple[int, int] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """None: the prompt's is the draft's."""
    monkeypatch.setattr(linears, "_TRIED", tried)
    found = row_ranges(waver(monkeypatch, least, most))
    assert found == (RowRange(*decode), RowRange(*(prefill or decode)))


@packing
@pytest.mark.parametrize("rows", [0, 1, 4, 5, 9, 12, 17, 40])
def test_no_part_is_outside_of_the_range(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    layer = waver(monkeypatch, 5, 8)
    layer.decode = RowRange(5, 8)
    x = torch.randn(1, rows, 6)
    assert torch.equal(layer(x), x)


@packing
@pytest.mark.parametrize(
    ("block", "taken"),
    [
        (6, RowRange(6, 192, 6)),
        (4, RowRange(8, 8)),
        (48, RowRange(1, 32)),  # all of them left over
        (7, RowRange(1, 1)),  # nothing serves, so rows go one by one
    ],
)
def test_where_what_is_left_over_is_done_otherwise_whole_blocks_are_asked_for(
    block: int, taken: RowRange, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = leave_over(monkeypatch, block)
    decode, _ = row_ranges(layer)
    assert decode == taken
    x = torch.randn(1, 500, 6)
    layer.decode = layer.prefill = decode
    whole = layer(x)
    for rows in (0, 1, 5, 6, 8, 100):
        assert torch.equal(layer(x[:, :rows]), whole[:, :rows])
        assert torch.equal(layer(x[:, rows : 2 * rows]), whole[:, rows : 2 * rows])
    layer.decode = layer.prefill = RowRange(1, 192)
    assert not torch.equal(layer(x[:, :101]), whole[:, :101])


@packing
def test_a_class_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(linears, "_FOUND", {})
    asked: list[int] = []

    def found(layer: PackedLinear, most: int) -> tuple[RowRange, RowRange]:
        asked.append(layer.in_features)
        return RowRange(2, 32), RowRange(48, 96)

    monkeypatch.setattr(linears, "row_ranges", found)
    for deterministic in (True, True, False):
        model = Two(True)
        pack(model, deterministic=deterministic)
        layer: object = model.up
        assert isinstance(layer, PackedLinear)
        wanted = (RowRange(2, 32), RowRange(48, 96)) if deterministic else (ANY_ROWS, ANY_ROWS)
        assert (layer.decode, layer.prefill) == wanted
    assert asked == [24, 40]


@packing
@pytest.mark.parametrize("prefill", [[], [0], [1, 2, 3], [0, 4, 5, 19], list(range(20))])
def test_prefill_rows_are_multiplied_in_their_own_class(
    prefill: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    layer = PackedLinear(torch.eye(6), None)
    layer.decode, layer.prefill = RowRange(2, 8), RowRange(32, 64)
    multiply, sizes = PackedLinear._multiply, list[int]()

    def marked(self: PackedLinear, x: Tensor) -> Tensor:
        sizes.append(x.numel() // 6)
        return multiply(self, x) + (1000 if sizes[-1] > 8 else 0)

    monkeypatch.setattr(PackedLinear, "_multiply", marked)
    x = torch.randn(1, 20, 6)
    mask = torch.zeros(20, dtype=torch.bool)
    mask[prefill] = True
    with torch.inference_mode(), prefilling(mask):
        torch.testing.assert_close(layer(x), x + 1000 * mask[None, :, None])
        assert all(2 <= size <= 8 or 32 <= size <= 64 for size in sizes)
        torch.testing.assert_close(layer(x[:, :5]), x[:, :5])  # not the step's rows
    torch.testing.assert_close(layer(x), x)


@pytest.mark.parametrize("function", [nn.SiLU(), nn.GELU(approximate="tanh"), nn.Sigmoid()])
@pytest.mark.parametrize("width", [48, 1536])
def test_an_activation_does_not_see_where_its_numbers_lie(function: nn.Module, width: int) -> None:
    steady = invariance._in_whole_vectors(function)
    x = torch.randn(1, 90, width)
    wanted = steady(x[:, :64])
    torch.testing.assert_close(wanted, function(x[:, :64]))
    for rows in (1, 2, 3, 7, 31, 43, 64, 90):
        for first in (0, 5, 40):
            given = steady(x[:, first : first + rows])
            same = wanted[:, first : first + rows]
            assert torch.equal(given[:, : same.shape[1]], same)
    halves = torch.cat([x, x], -1).chunk(2, -1)[0]  # as gates come: not contiguous
    assert torch.equal(steady(halves)[:, :64], wanted)


@pytest.mark.parametrize("missing", ["_reorder_linear_weight", "_linear_pointwise"])
def test_without_the_operation_the_layers_stay(
    monkeypatch: pytest.MonkeyPatch, missing: str
) -> None:
    there = torch.ops.mkldnn

    class Ops:
        def __getattr__(self, name: str) -> object:
            if name == missing:
                raise AttributeError(name)
            return getattr(there, name)

    model, same = Two(True), Two(True)
    with monkeypatch.context() as patch:
        patch.setattr(torch.ops, "mkldnn", Ops())
        pack(model, deterministic=True)
    assert kinds(model) == [nn.Linear, Conv1D]
    x = torch.randn(3, 24)
    assert torch.equal(model(x), same(x))


# ---- where torch has no fast product of bfloat16 -------------------------------------------------

LOADING = """
import sys, tempfile, torch, warnings
from foresay.models.load import load
from models import zoo
from transformers.utils import logging
logging.disable_progress_bar()
warnings.simplefilter("error", UserWarning)
for name, dtype in zip(sys.argv[1::2], sys.argv[2::2]):
    with tempfile.TemporaryDirectory() as folder:
        zoo.make(name, dtype=torch.bfloat16).save_pretrained(folder)
        print(name, dtype, load(folder, dtype=dtype).dtype, file=sys.stderr)
"""


@pytest.mark.slow
def test_a_slow_model_says_so_once_and_what_to_choose() -> None:
    """And no warning of torch, here an error, is a reason to refuse one."""
    slow = not torch.ops.mkldnn._is_mkldnn_bf16_supported()
    models = ("llama bfloat16", "qwen3_moe auto", "qwen3_moe bfloat16", "qwen3_moe bfloat16")
    tests = Path(__file__).parents[1]
    done = forks.run("-c", LOADING, *" ".join(models).split(), cwd=tests)
    assert done.returncode == 0, done.stderr
    said = done.stderr.splitlines()
    if slow:
        sentence = said.pop(2)
        assert sentence.startswith("Qwen3MoeForCausalLM multiplies bfloat16 in torch")
        assert 'dtype="float32" is faster here' in sentence
    chosen = "float32" if slow else "bfloat16"
    dtypes = ("bfloat16", chosen, "bfloat16", "bfloat16")
    assert said == [f"{a} torch.{b}" for a, b in zip(models, dtypes, strict=True)]


def test_what_torch_multiplies_is_seen() -> None:
    model = zoo.make("llama", dtype=torch.bfloat16)
    assert multiplied_by_torch(model, packed=True)
    assert not multiplied_by_torch(model, packed=False)
    pack(model, deterministic=False)
    assert not multiplied_by_torch(model, packed=True)
    experts = zoo.make("qwen3_moe", dtype=torch.bfloat16)
    pack(experts, deterministic=False)
    assert multiplied_by_torch(experts, packed=True) and multiplied_by_torch(experts, packed=False)
    assert not multiplied_by_torch(zoo.make("qwen3_moe"), packed=False)  # float32


def test_few_rows_of_the_output_layer_are_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the widest layer, and of a prompt it computes the last row only."""
    tried: dict[str, int] = {}
    model = zoo.make("llama")
    widths = {model.lm_head.out_features: "output"}

    def noted(layer: PackedLinear, most: int) -> tuple[RowRange, RowRange]:
        tried[widths.get(layer.out_features, "other")] = most
        return RowRange(1, 16), RowRange(1, 16)

    monkeypatch.setattr(linears, "row_ranges", noted)
    monkeypatch.setattr(linears, "_FOUND", {})
    linears.pack(model, deterministic=True)
    assert tried == {"output": 64, "other": 192}
