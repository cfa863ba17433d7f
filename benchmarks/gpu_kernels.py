"""Part `kernels` of gpu.py: tree attention against a float64 reference on random ragged trees, its
time against torch's attention with a mask; and whether the bits of a product of matrices depend on
how many rows there are.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import linear, scaled_dot_product_attention

from foresay._core import PagedStep, PagedText, PagePool
from gpu_bench import Bench, OutOfTime, draft_of, said, timed

ROW_COUNTS = (1, 2, 8, 9, 16, 17, 32, 64, 128, 256)
ACCURATE = {torch.bfloat16: 1e-2, torch.float16: 2e-3, torch.float32: 1e-5}
"""How far the result may be from the reference, by norms."""


@dataclass(frozen=True)
class Text:
    """One text of a step.

    q        [rows, heads, d]   the last token and the nodes
    k, v     [stored + rows, kv heads, d]   what is stored, then the step's own rows
    parents  [rows]   of each row among the step's rows; -1: only what is stored comes before it
    """

    q: Tensor
    k: Tensor
    v: Tensor
    parents: tuple[int, ...]

    @property
    def stored(self) -> int:
        return len(self.k) - len(self.q)

    @property
    def ancestors(self) -> Tensor:
        """bool[rows, rows]: whether a row is another one, or comes before it on its path."""
        found = torch.eye(len(self.parents), dtype=torch.bool)
        for row, parent in enumerate(self.parents):
            if parent >= 0:
                found[row] |= found[parent]
        return found.to(self.q.device)

    def visible(self, window: int | None = None) -> Tensor:
        """bool[rows, tokens]: what each row attends to; a window counts places in the text, the
        row's own among them."""
        ancestors, stored = self.ancestors, self.stored
        depth = ancestors.sum(1)  # 1 for the first row
        seen = torch.ones(len(self.q), stored, dtype=torch.bool, device=self.q.device)
        whole = torch.cat([seen, ancestors], 1)
        if window is None:
            return whole
        place = torch.cat([torch.arange(stored, device=self.q.device), stored + depth - 1])
        own = stored + depth - 1
        return whole & (own[:, None] - place[None] < window)


@dataclass(frozen=True)
class Case:
    """Shapes of attention; `contexts` are the stored tokens, `nodes` the drafted ones, by text."""

    heads: int
    kv_heads: int
    size: int
    contexts: tuple[int, ...]
    nodes: tuple[int, ...]
    window: int | None = None
    softcap: float | None = None
    dtype: torch.dtype = torch.bfloat16

    @property
    def scale(self) -> float:
        return 1 / math.sqrt(self.size)

    def texts(self, device: torch.device, seed: int = 0) -> list[Text]:
        """Random values, and a random tree for each text."""
        made = torch.Generator(device).manual_seed(seed)
        found = []
        for at, (stored, nodes) in enumerate(zip(self.contexts, self.nodes, strict=True)):
            draft = draft_of(nodes, max(nodes, 2), seed + at)
            below = [] if draft is None else [int(parent) + 1 for parent in draft.parents]

            def value(rows: int, heads: int) -> Tensor:
                return torch.randn(rows, heads, self.size, generator=made, device=device).to(
                    self.dtype
                )

            k, v = (value(stored + nodes + 1, self.kv_heads) for _ in range(2))
            found.append(Text(value(nodes + 1, self.heads), k, v, (-1, *below)))
        return found


def reference(text: Text, case: Case) -> Tensor:
    """Attention in float64: [rows, heads, d]."""
    group = case.heads // case.kv_heads
    q, k, v = (one.double() for one in (text.q, text.k, text.v))
    k, v = (one.repeat_interleave(group, 1) for one in (k, v))
    scores = torch.einsum("rhd,thd->hrt", q, k) * case.scale
    if case.softcap is not None:
        scores = case.softcap * torch.tanh(scores / case.softcap)
    scores = scores.masked_fill(~text.visible(case.window), -torch.inf)
    return torch.einsum("hrt,thd->rhd", torch.softmax(scores, -1), v)


def tree_attention(texts: Sequence[Text], case: Case) -> Callable[[], Sequence[Tensor]] | None:
    """The package's own tree attention over these texts, ready to be called again and again: it
    gives [rows, heads, d] for each text. None: there is none. Pages are made here, outside of what
    is timed; on a GPU it is a CUDA graph, as in a target.
    """
    try:
        from foresay.models.gpu.attention import BLOCK, Heads, attention, tile_rows
        from foresay.models.gpu.inputs import Staging, StepInputs
    except ImportError:  # no triton
        return None
    device, size = texts[0].q.device, max(1 << (case.size - 1).bit_length(), 16)
    heads = Heads(case.heads, case.kv_heads, case.size, size)
    rows = [len(text.q) for text in texts]
    pool = PagePool(sum(-(-len(text.k) // BLOCK) for text in texts))
    pages = torch.zeros(
        2, pool.pages + 1, case.kv_heads, BLOCK, size, dtype=case.dtype, device=device
    )
    stored = []
    for text in texts:
        stored.append(PagedText(pool))
        stored[-1].begin_step(text.stored)
        stored[-1].end_step(text.stored)
        stored[-1].keep(np.arange(text.stored, dtype=np.int32))
    offsets = np.cumsum([0, *rows]).astype(np.int32)
    parents = np.array([parent for text in texts for parent in text.parents], np.int32)
    step = PagedStep(tuple(stored), offsets, parents, tile_rows(heads))
    step.end()
    for text, kept in zip(texts, stored, strict=True):
        slots = torch.from_numpy(kept.slots().astype(np.int64)).to(device)
        for at, given in enumerate((text.k, text.v)):
            pages[at, slots // BLOCK, :, slots % BLOCK, : case.size] = given
    capacity = -(-step.rows // 16) * 16
    staging = Staging(step.size(capacity, step.items), device)
    staging.send(step, np.zeros(step.rows, np.int32), capacity, step.items)
    inputs = StepInputs.of(staging.buffer, capacity, step.items)
    query = torch.zeros(capacity, case.heads, size, dtype=case.dtype, device=device)
    query[: step.rows, :, : case.size] = torch.cat([text.q for text in texts])
    results = torch.zeros(step.results * case.heads * size, device=device)
    states = torch.zeros(2 * step.results * case.heads, device=device)
    out = torch.zeros(capacity, case.heads * case.size, dtype=case.dtype, device=device)

    def run() -> Sequence[Tensor]:
        attention(
            query, pages[0], pages[1], inputs, results, states, out, heads,
            scaling=case.scale, window=case.window or 0, cap=case.softcap or 0.0,
        )  # fmt: skip
        return out[: step.rows].view(-1, case.heads, case.size).split(rows)

    found = run()
    if device.type != "cuda":
        return run
    graph: Any = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()

    def replay() -> Sequence[Tensor]:
        graph.replay()
        return found

    replay.staging = staging  # type: ignore[attr-defined]  # which the graph reads
    return replay


def product(rows: Tensor, weight: Tensor) -> Tensor | None:
    """The package's own rows @ weight.T of a linear layer; None: there is none."""
    try:
        from foresay.models.gpu import products
    except ImportError:
        return None
    matrix = products.matrix_of(weight)
    parts = rows.new_empty(matrix.parts, len(rows), len(weight), dtype=torch.float32)
    products.product(rows, matrix, parts)
    found = parts[0]
    for part in parts[1:]:
        found = found + part
    return found


def kernels(bench: Bench, found: dict[str, Any]) -> None:
    parts = {"accuracy": accuracy, "attention": attention_times, "bits": bits}
    for name, part in parts.items():
        bench.check_time(name)
        try:
            found[name] = part(bench)
        except OutOfTime:
            raise
        except Exception as error:
            found[name] = {"error": said(error)}
        bench.say(f"kernels, {name}: {str(found[name])[:300]}")


def cases_of(bench: Bench) -> list[Case]:
    """Random ragged contexts and trees: head sizes and groups, windows, softcaps, dtypes."""
    random, found = np.random.default_rng(28), []
    shapes = [(12, 2, 128), (32, 8, 128), (9, 3, 64), (14, 2, 64), (8, 4, 256), (32, 32, 96)]
    shapes += [(16, 1, 128), (28, 4, 128)]
    if bench.smoke:  # in Triton's interpreter
        shapes = [(6, 2, 16), (2, 1, 24)]
    longest, most, count = (20, 4, 2) if bench.smoke else (3000, 33, 24)
    dtypes = [torch.float32] if bench.smoke else [torch.bfloat16, torch.float16]
    for at in range(count):
        heads, kv_heads, size = shapes[at % len(shapes)]
        texts = 2 if bench.smoke else int(random.integers(1, 9))
        contexts = tuple(int(x) for x in random.integers(0, longest, texts))
        nodes = tuple(int(x) for x in random.integers(0, most, texts))
        window = int(random.integers(2, longest)) if at % 3 == 1 else None
        softcap = 30.0 if at % 4 == 3 else None
        dtype = dtypes[at % len(dtypes)]
        found.append(Case(heads, kv_heads, size, contexts, nodes, window, softcap, dtype))
    return found


def accuracy(bench: Bench) -> dict[str, Any]:
    """The largest relative error over random cases, ours and torch's."""
    worst: dict[str, float] = {}
    bad, tried = [], 0
    for at, case in enumerate(cases_of(bench)):
        bench.check_time("accuracy")
        texts = case.texts(bench.device, at)
        ours = tree_attention(texts, case)
        sides: dict[str, Sequence[Tensor]] = {}
        if case.softcap is None:
            sides["torch"] = [sdpa(text, case) for text in texts]
        if ours is not None:
            sides["ours"], tried = ours(), tried + 1
        for name, given in sides.items():
            for place, (text, one) in enumerate(zip(texts, given, strict=True)):
                wanted = reference(text, case)
                far = float((one.double() - wanted).norm() / wanted.norm())
                far = math.inf if math.isnan(far) else far
                kind = f"{name}, {str(case.dtype).removeprefix('torch.')}"
                worst[kind] = max(worst.get(kind, 0.0), far)
                if name == "ours" and far > ACCURATE[case.dtype]:
                    bad.append({"case": str(case)[:300], "text": place, "error": far})
    return {"cases": tried, "worst": worst, "bad": bad[:10]}


def sdpa(text: Text, case: Case) -> Tensor:
    """Torch's attention with a mask over one text: [rows, heads, d]."""
    q, k, v = (one.transpose(0, 1)[None] for one in (text.q, text.k, text.v))
    mask = text.visible(case.window)[None, None]
    found = scaled_dot_product_attention(q, k, v, mask, scale=case.scale, enable_gqa=True)
    return found[0].transpose(0, 1)


def attention_times(bench: Bench) -> list[dict[str, Any]]:
    """8 nodes at the shapes of an 8B model: torch with a mask over contiguous keys, all texts at
    once, which is the best that it can do; torch without a mask and nodes; ours."""
    shapes = [(1, 32_768), (8, 16_384), (32, 4096), (128, 2048)]
    lines: list[dict[str, Any]] = []
    for batch, context in [(2, 24)] if bench.smoke else shapes:
        bench.check_time(f"{batch} x {context}")
        nodes, dtype = (2, torch.float32) if bench.smoke else (8, torch.bfloat16)
        heads = (2, 1, 16) if bench.smoke else (32, 8, 128)
        case = Case(*heads, (context,) * batch, (nodes,) * batch, dtype=dtype)
        texts = case.texts(bench.device)
        q, k, v = (
            torch.stack([getattr(text, name) for text in texts]).transpose(1, 2).contiguous()
            for name in "qkv"
        )
        mask = torch.stack([text.visible() for text in texts])[:, None]
        one = q[:, :, :1].contiguous()
        steps: dict[str, Callable[[], object]] = {
            "sdpa": lambda q=q, k=k, v=v, m=mask: scaled_dot_product_attention(  # type: ignore[misc]
                q, k, v, m, enable_gqa=True
            ),
            "sdpa_plain": lambda q=one, k=k, v=v: scaled_dot_product_attention(  # type: ignore[misc]
                q, k, v, enable_gqa=True
            ),
        }
        ours = tree_attention(texts, case)
        if ours is not None:
            steps["ours"] = ours
        took = {name: statistics.median(ms) for name, ms in timed(bench, steps).items()}
        line: dict[str, Any] = {"batch": batch, "context": context, "nodes": nodes}
        line |= {f"{name}_us": round(1e3 * ms, 2) for name, ms in took.items()}
        read = sum(2 * text.k.numel() * text.k.element_size() for text in texts)
        if "ours" in took:
            line["ratio"] = round(took["sdpa"] / took["ours"], 3)
            line["tb_per_s"] = round(read / took["ours"] * 1e-9, 3)
        lines.append(line)
        bench.say(f"{line}")
        del texts, q, k, v, mask, one, steps, ours
    return lines


def bits(bench: Bench) -> list[dict[str, Any]]:
    """Row counts at which the first row's bits differ from those of a row alone, for the shapes of
    an 8B model's and a 1.5B model's linear layers: torch's products, and ours."""
    shapes = {
        "8B qkv": (6144, 4096),
        "8B out": (4096, 4096),
        "8B gate, up": (24_576, 4096),
        "8B down": (4096, 12_288),
        "1.5B qkv": (2048, 1536),
        "1.5B out": (1536, 1536),
        "1.5B gate, up": (17_920, 1536),
        "1.5B down": (1536, 8960),
        "1.5B head": (151_936, 1536),
    }
    if bench.smoke:
        shapes = {"small": (32, 16)}
    counts = ROW_COUNTS[:4] if bench.smoke else ROW_COUNTS
    made, lines = torch.Generator(bench.device).manual_seed(1), []
    for name, shape in shapes.items():
        bench.check_time(name)
        weight = (
            torch.randn(shape, generator=made, device=bench.device).bfloat16() / shape[1] ** 0.5
        )
        rows = torch.randn(max(counts), shape[1], generator=made, device=bench.device).bfloat16()
        line: dict[str, Any] = {"layer": name}
        sides: dict[str, Callable[[Tensor, Tensor], Tensor | None]] = {
            "torch": linear,
            "ours": product,
        }
        for side, multiply in sides.items():
            results = {count: multiply(rows[:count], weight) for count in counts}
            one = results[1]
            if one is not None:
                there = {count: given for count, given in results.items() if given is not None}
                line[side] = [n for n, given in there.items() if not torch.equal(given[:1], one)]
        lines.append(line)
    return lines
