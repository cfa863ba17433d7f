"""The kernels of models/gpu one by one, against torch in float64."""

from __future__ import annotations

from importlib import import_module
from itertools import chain
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor

from core.arrays import ints
from core.paged_twin import BLOCK, path_to
from foresay._core import PagedStep, PagedText, PagePool
from foresay.models.gpu import attention as attention_module
from foresay.models.gpu.attention import Heads, attention, tile_rows
from foresay.models.gpu.chained import is_hopper
from foresay.models.gpu.elementwise import add_and_norm, copy_slots, embed, rotate_and_store
from foresay.models.gpu.inputs import Staging, StepInputs
from foresay.models.gpu.product_shapes import Shape
from foresay.models.gpu.products import Matrix, gated_product, matrix_of, product
from models.on_gpu import CUDA, DEVICE, needs_kernels

pytestmark = needs_kernels


@pytest.fixture
def _sums_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """A product adds one input after another, as on a GPU: numpy's order depends on shapes."""
    if CUDA:
        return
    interpreter = import_module("triton.runtime.interpreter")

    def dot(_: object, left: Any, right: Any, sums: Any, *__: object) -> Any:
        total = sums.data.copy()
        for at in range(left.data.shape[1]):
            total += left.data[:, at, None].astype(total.dtype) * right.data[at].astype(total.dtype)
        return interpreter.TensorHandle(total, sums.dtype.scalar)

    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", dot)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=made).to(DEVICE)


class Attention(NamedTuple):
    """Texts of a step: how much is stored of each, and its tree."""

    queries: int
    keys: int
    width: int
    texts: tuple[tuple[int, tuple[int, ...]], ...]
    window: int = 0
    cap: float = 0.0


def attended(
    case: Attention,
    values: list[tuple[Tensor, Tensor, Tensor]],
    dtype: torch.dtype,
    least_items: int = 0,
) -> list[Tensor]:
    """By the kernels: [rows, queries, width] of each text. `values`: query, keys, values."""
    padded = max(1 << (case.width - 1).bit_length(), 16)
    heads = Heads(case.queries, case.keys, case.width, padded)
    pool = PagePool(48)
    memory = numbers(2, pool.pages + 1, case.keys, BLOCK, padded, seed=9).to(dtype)  # not ours
    texts = [PagedText(pool) for _ in case.texts]
    for (stored, _), text in zip(case.texts, texts, strict=True):
        text.begin_step(stored)
        text.end_step(stored)
        text.keep(np.arange(stored, dtype=np.int32))
    counts = [len(parents) for _, parents in case.texts]
    offsets = np.cumsum([0, *counts]).astype(np.int32)
    parents = ints(*chain(*(parents for _, parents in case.texts)))
    step = PagedStep(tuple(texts), offsets, parents, tile_rows(heads), least_items)
    step.end()
    for text, (_, *both) in zip(texts, values, strict=True):
        slots = torch.from_numpy(text.slots().astype(np.int64))
        for at, given in enumerate(both):
            memory[at, slots // BLOCK, :, slots % BLOCK] = torch.nn.functional.pad(
                given.to(dtype), (0, padded - case.width)
            )
    rows, items = step.rows + 2, step.items + 1
    staging = Staging(step.size(rows, items), torch.device(DEVICE))
    staging.send(step, np.zeros(step.rows, np.int32), rows, items)
    query = numbers(rows, case.queries, padded, seed=8).to(dtype)
    query[: step.rows] = torch.nn.functional.pad(
        torch.cat([query for query, _, _ in values]).to(dtype), (0, padded - case.width)
    )
    results = numbers(step.results * case.queries * padded, seed=7)
    states = numbers(2 * step.results * case.queries, seed=7)
    out = query.new_zeros(rows, case.queries * case.width)
    inputs = StepInputs.of(staging.buffer, rows, items, step.by_span)
    attention(
        query, memory[0], memory[1], inputs, results, states, out, heads,
        scaling=case.width**-0.5, window=case.window, cap=case.cap,
    )  # fmt: skip
    assert not out[step.rows :].any()
    found = out[: step.rows].view(-1, case.queries, case.width)
    return list(found.split(counts))


def values_of(case: Attention) -> list[tuple[Tensor, Tensor, Tensor]]:
    found = []
    for at, (stored, parents) in enumerate(case.texts):
        tokens = stored + len(parents)
        keys, other = (
            numbers(tokens, case.keys, case.width, seed=3 * at + kind) for kind in (1, 2)
        )
        query = numbers(len(parents), case.queries, case.width, seed=3 * at) * 2
        found.append((query, keys, other))
    return found


def wanted(
    case: Attention, stored: int, parents: tuple[int, ...], values: tuple[Tensor, ...]
) -> Tensor:
    """Row by row, over its own path alone."""
    query, keys, others = (each.double() for each in values)
    rows, group = [], case.queries // case.keys
    for row in range(len(parents)):
        path = [*range(stored), *(stored + at for at in path_to(parents, row))]
        path = path[-case.window :] if case.window else path
        k, v = (each[path].repeat_interleave(group, 1) for each in (keys, others))
        scores = torch.einsum("hd,thd->ht", query[row], k) * case.width**-0.5
        if case.cap:
            scores = case.cap * torch.tanh(scores / case.cap)
        rows.append(torch.einsum("ht,thd->hd", scores.softmax(-1), v))
    return torch.stack(rows)


CASES = {
    "groups of 3": Attention(6, 2, 16, ((70, (-1, 0, 0, 1, 1, 2)), (0, (-1, 0)), (5, (-1,)))),
    "groups of 6, padded": Attention(6, 1, 40, ((62, (-1, 0, 1, 2, 0, 4, 1)), (130, (-1, -1)))),
    "a window": Attention(4, 2, 16, ((150, (-1, 0, 1, 0)), (3, (-1, 0))), window=70),
    "a narrow one and a cap": Attention(4, 4, 64, ((66, (-1, 0, 0, 2)),), window=2, cap=0.5),
    "several tiles": Attention(16, 1, 16, ((127, (-1, 0, 1, 2, 3, 4, 0, 6, 6, 8)),)),
}


DIVISIONS = {"spans": 0, "chunks": 8, "chunks, the last by path": 1 << 30}


@pytest.mark.parametrize("items", DIVISIONS)
@pytest.mark.parametrize("name", CASES)
def test_attention(name: str, items: str) -> None:
    case = CASES[name]
    values = values_of(case)
    found = attended(case, values, torch.float32, least_items=DIVISIONS[items])
    for given, text, its in zip(found, case.texts, values, strict=True):
        assert torch.allclose(given.double(), wanted(case, *text, its), atol=2e-5), text


LONG = {
    "over the end of a span": Attention(2, 1, 16, ((1020, (-1, 0, 1, 2, 3, 1, 5)), (70, (-1,)))),
    "over two spans": Attention(1, 1, 16, ((2045, (-1, 0, 0, 1, 3, 4)),)),
    "a window, several tiles": Attention(16, 1, 16, ((1090, (-1, 0, 1, 2, 0)),), window=70),
}


def has_same_bits(name: str) -> bool:
    """However the work is divided."""
    values, case = values_of(LONG[name]), LONG[name]
    found = [attended(case, values, torch.float32, least_items=n) for n in DIVISIONS.values()]
    return all(
        torch.equal(one, other)
        for some in found[1:]
        for one, other in zip(found[0], some, strict=True)
    )


@pytest.mark.usefixtures("_sums_in_order")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * ("tiles" in name)) for name in LONG]
)
def test_the_division_of_the_work_changes_no_bits(name: str) -> None:
    assert has_same_bits(name)


@pytest.mark.usefixtures("_sums_in_order")
def test_other_chunks_within_a_span_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention_module, "_CHUNK", 4)  # items that are chunks still have 2 blocks
    assert not has_same_bits("over the end of a span")


@pytest.mark.usefixtures("_sums_in_order")
def test_a_row_has_the_bits_of_its_path_alone() -> None:
    """Whatever else is in the step: the same text as a chain, with another's rows before it."""
    case = CASES["groups of 3"]
    values = values_of(case)
    (trees, *_) = attended(case, values, torch.float32)
    stored, parents = case.texts[0]
    path = path_to(parents, 4)
    query, keys, others = values[0]
    kept = [*range(stored), *(stored + row for row in path)]
    chain_of_it = stored, tuple(range(-1, len(path) - 1))
    beside = case._replace(texts=((9, (-1, 0, 0)), chain_of_it))
    own = query[path], keys[kept], others[kept]
    (_, alone) = attended(beside, [values_of(beside)[0], own], torch.float32)
    assert torch.equal(alone, trees[path])


ROWS = (1, 17, 70, 97, 130, 170)


def products_of(
    kind: str, rows: Tensor, weights: list[Tensor], dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    """By the kernel, its parts added in order; and by torch in float64."""
    rows, weights = rows.to(dtype), [weight.to(dtype) for weight in weights]
    if kind == "product":
        matrix = matrix_of(*weights)
        assert matrix.parts == 2
        out = torch.full((matrix.parts, len(rows), matrix.outputs), 7.0, device=DEVICE)
        product(rows, matrix, out)
        return out[0] + out[1], rows.double() @ torch.cat(weights).double().T
    found = torch.full((len(rows), len(weights[0])), 7.0, dtype=dtype, device=DEVICE)
    gated_product(rows, weights[0], weights[1], found, gelu=kind == "gelu")
    gate, up = (rows.double() @ weight.double().T for weight in weights[:2])
    act = torch.nn.functional
    bent = act.gelu(gate, approximate="tanh") if kind == "gelu" else act.silu(gate)
    return found, bent * up


@pytest.mark.usefixtures("_sums_in_order")
@pytest.mark.parametrize("kind", ["product", "silu", "gelu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16][: 1 + CUDA])
def test_a_row_of_a_product_has_the_same_bits_among_any_number(
    kind: str, dtype: torch.dtype
) -> None:
    inputs = 500 if kind == "product" else 70
    rows = numbers(max(ROWS), inputs)
    weights = [numbers(size, inputs, seed=size) / inputs**0.5 for size in (70, 70, 9)]
    first = None
    for count in ROWS if kind == "product" else ROWS[::2] if kind == "silu" else ROWS[:1]:
        some = rows.flip(0)[:count].flip(0)  # the last stays the last: in another place each time
        found, right = products_of(kind, some, weights, dtype)
        close = 1e-4 if dtype == torch.float32 else 3e-2
        assert found.shape == right.shape
        assert torch.allclose(found.double(), right, atol=close, rtol=close), count
        first = found[-1] if first is None else first
        assert torch.equal(found[-1], first), count


SHAPES = {
    "tall": Shape(128, (64, 0), 64, 8, 3),
    "wide": Shape(64, (32, 16), 32, 4, 3, "wide"),
    "wide, one tile": Shape(128, (64, 0), 64, 8, 4, "wide"),
    "copied": Shape(64, (32, 16), 64, 4, 3, "copied"),
    "two tiles of weights": Shape(64, (32, 16), 64, 8, 3, "wide", more=32),
    "few outputs": Shape(32, (16, 0), 64, 4, 4, "wide"),
    **(
        {
            "early": Shape(64, (64, 0), 64, 4, 4, "early"),
            "early, two tiles": Shape(64, (32, 16), 64, 4, 5, "early", lag=1),
            "early, tall": Shape(128, (64, 32), 64, 8, 2, "early"),
        }
        if CUDA and is_hopper(torch.device("cuda"))
        else {}
    ),
}


@pytest.mark.usefixtures("_sums_in_order")
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16][: 1 + CUDA])
def test_the_shape_of_a_product_changes_no_bits(name: str, dtype: torch.dtype) -> None:
    """Of one weight or three, in parts or gated; where no step is whole, too."""
    if dtype == torch.float32 and CUDA:
        pytest.skip("these tiles of float32 take more memory than there is")
    shape, most, outputs = SHAPES[name], 50, (70, 40, 9)
    for inputs in (128, 70) if name in ("wide", "two tiles of weights") else (128,):
        rows = numbers(most, inputs).to(dtype)
        weights = [numbers(size, inputs, seed=size).to(dtype) for size in outputs]
        some = [weights[:1] if shape.kernel == "copied" else weights] if shape.outputs >= 64 else []
        for matrix in (Matrix(each, 64) for each in some):  # fewer outputs: another instruction
            found = [torch.full((2, most, matrix.outputs), 7.0, device=DEVICE) for _ in range(2)]
            product(rows, matrix, found[0])
            product(rows, matrix, found[1], shape)
            assert torch.equal(*found)
        both = [torch.full((most, outputs[0]), 7.0, dtype=dtype, device=DEVICE) for _ in range(2)]
        ups = numbers(outputs[0], inputs, seed=5).to(dtype)
        gated_product(rows, weights[0], ups, both[0], gelu=False)
        gated_product(rows, weights[0], ups, both[1], gelu=False, shape=shape)
        assert torch.equal(*both)


def normed(x: Tensor, weight: Tensor, above: bool) -> Tensor:
    scale = weight.double() + above
    return x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * scale


@pytest.mark.parametrize("above", [False, True])
def test_embedding_and_norms(above: bool) -> None:
    width, rows, vocabulary = 40, 3, 11
    table, norm = numbers(vocabulary, width, seed=1), numbers(width, seed=2)
    after, bias = numbers(width, seed=3), numbers(width, seed=4)
    tokens = torch.tensor([10, 0, 4], dtype=torch.int32, device=DEVICE)
    residual, out = numbers(rows, width, seed=5), numbers(rows, width, seed=6)
    how: dict[str, Any] = {"padded": 64, "above_one": above, "chained": False, "num_warps": 1}
    embed[(rows,)](tokens, table, residual, norm, out, width, 1e-5, 1.5, **how)
    right = table[tokens.long()].double() * 1.5
    assert torch.allclose(residual.double(), right, atol=1e-6)
    assert torch.allclose(out.double(), normed(right, norm, above), atol=1e-5)
    parts = numbers(2, rows, width, seed=7)
    for biased, with_after in ((True, False), (False, True)):
        add_and_norm[(rows,)](
            parts, rows * width, bias, after, residual, norm, out, width, 1e-5, parts=2,
            biased=biased, after=with_after, **how,
        )  # fmt: skip
        added = parts.double().sum(0) + biased * bias.double()
        right = right + (normed(added, after, above) if with_after else added)
        assert torch.allclose(residual.double(), right, atol=1e-5)
        assert torch.allclose(out.double(), normed(right, norm, above), atol=1e-5)


@pytest.mark.parametrize("biased", [False, True])
def test_keys_are_turned_by_their_position_and_stored_in_their_slot(biased: bool) -> None:
    """With biases, and norms of the heads; a part of each head is turned."""
    queries, keys, width, padded, turned = 2, 1, 12, 16, 8
    positions, slots = ints(5, 9, 6), ints(130, 64, 191)
    rows, heads = len(slots), queries + 2 * keys
    parts = numbers(2, rows, heads * width, seed=1)
    biases = [numbers(size * width, seed=size + 1) * biased for size in (queries, keys, keys)]
    norms = [numbers(width, seed=seed) for seed in (5, 6)]
    angles = numbers(10, turned // 2, seed=7) * 3
    query = torch.full((rows, queries, padded), 7.0, device=DEVICE)
    memory = torch.full((2, 3, keys, BLOCK, padded), 7.0, device=DEVICE)
    sent = [torch.from_numpy(each).to(DEVICE) for each in (positions, slots)]
    rotate_and_store[(rows, heads)](
        parts, rows * heads * width, *biases, *norms, angles.cos(), angles.sin(), *sent, query,
        memory[0], memory[1], 1e-5, parts=2, queries=queries, key_heads=keys, width=width,
        turned=turned, padded=padded, block=BLOCK, biased=biased, normed=biased, above_one=False,
        chained=False, num_warps=1,
    )  # fmt: skip
    x = (parts.sum(0) + torch.cat(biases)).view(rows, heads, width).double()
    if biased:
        x[:, :queries] = normed(x[:, :queries], norms[0], above=False)
        x[:, queries:-keys] = normed(x[:, queries:-keys], norms[1], above=False)
    first, second, rest = x[:, :-keys].split([turned // 2, turned // 2, width - turned], -1)
    angle = angles[positions.tolist()].double()[:, None]
    cos, sin = angle.cos(), angle.sin()
    both = first * cos - second * sin, second * cos + first * sin, rest
    x[:, :-keys] = torch.cat(both, -1)
    assert torch.allclose(query[:, :, :width].double(), x[:, :queries], atol=1e-5)
    assert not query[:, :, width:].any()
    there = torch.from_numpy(slots.astype(np.int64))
    for at, right in enumerate((x[:, queries:-keys], x[:, -keys:])):
        given = memory[at, there // BLOCK, :, there % BLOCK]
        assert torch.allclose(given[..., :width].double(), right, atol=1e-5)
    assert int((memory == 7).sum()) == memory.numel() - 2 * rows * keys * padded


def test_copies_of_a_group_are_in_their_order() -> None:
    """As a kept path moves its rows: what is read has not been written by the copy before."""
    memory = numbers(2, 2, 3, 2, BLOCK, 16)  # layers, both, pages, heads
    right = memory.clone()
    moved = [(64 + at + 1 + at // 7, 64 + at) for at in range(37)]
    copied = [(3 + at, 128 + at) for at in range(5)]
    for source, target in moved + copied:
        s, t = divmod(source, BLOCK), divmod(target, BLOCK)
        right[:, :, t[0], :, t[1]] = right[:, :, s[0], :, s[1]]
    source, target = torch.tensor(moved + copied, dtype=torch.int32, device=DEVICE).T.contiguous()
    offsets = torch.tensor([0, len(moved), len(moved + copied)], dtype=torch.int32, device=DEVICE)
    copy_slots[(2, 4, 2)](
        memory, source, target, offsets, memory.stride(1), 2, block=BLOCK, width=16, many=16
    )
    assert torch.equal(memory, right)
