"""Part `kernels` of gpu.py: tree attention against a float64 reference on random ragged trees, then
its time against torch's attention with a mask.
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
from torch.nn.functional import scaled_dot_product_attention

from foresay._core import PagedStep, PagedText, PagePool
from gpu_bench import Bench, OutOfTime, draft_of, said, timed

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
        from foresay.models.gpu.attention import BLOCK, Heads, attention, least_items, tile_rows
        from foresay.models.gpu.graphs import item_size, row_size
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
    least = least_items(heads, device)
    step = PagedStep(tuple(stored), offsets, parents, tile_rows(heads), least)
    step.end()
    for text, kept in zip(texts, stored, strict=True):
        slots = torch.from_numpy(kept.slots().astype(np.int64)).to(device)
        for at, given in enumerate((text.k, text.v)):
            pages[at, slots // BLOCK, :, slots % BLOCK, : case.size] = given
    # Filled up as in a target, so that addresses are aligned alike and kernels compiled once.
    capacity, items = row_size(step.rows), item_size(step.items)
    staging = Staging(step.size(capacity, items), device)
    staging.send(step, np.zeros(step.rows, np.int32), capacity, items)
    inputs = StepInputs.of(staging.buffer, capacity, items, step.by_span)
    query = torch.zeros(capacity, case.heads, size, dtype=case.dtype, device=device)
    query[: step.rows, :, : case.size] = torch.cat([text.q for text in texts])
    chunks = -(-step.results // 16) * 16 * case.heads
    results = torch.zeros(chunks * size, device=device)
    states = torch.zeros(2 * chunks, device=device)
    out = torch.full((capacity, case.heads * case.size), torch.nan, dtype=case.dtype, device=device)

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


def kernels(bench: Bench, found: dict[str, Any]) -> None:
    accuracy(bench, found.setdefault("accuracy", {"cases": 0, "worst": {}, "bad": []}))
    attention_times(bench, found.setdefault("attention", []))


def cases_of(bench: Bench) -> list[Case]:
    """Random ragged contexts and trees. Each of the shapes is a kernel of its own, which takes
    seconds to compile: so there are few, with several cases of each. That of the bars comes first.
    """
    b16, f16 = torch.bfloat16, torch.float16
    shapes: list[tuple[int, int, int, torch.dtype, bool, float | None]] = [
        (32, 8, 128, b16, False, None),  # Qwen3-8B
        (12, 2, 128, b16, False, None),  # Qwen2.5-1.5B
        (9, 3, 64, b16, False, None),  # the default model
        (32, 8, 128, f16, True, None),
        (8, 4, 256, b16, True, 30.0),
        (32, 32, 96, f16, False, None),
        (16, 1, 128, b16, True, None),
        (28, 4, 128, f16, False, 30.0),
    ]
    longest, most, each = 3000, 33, 3
    if bench.smoke:  # in Triton's interpreter
        shapes = [(6, 2, 16, torch.float32, False, None), (2, 1, 24, torch.float32, True, 30.0)]
        longest, most, each = 20, 4, 1
    random, found = np.random.default_rng(28), []
    for heads, kv_heads, size, dtype, windowed, softcap in shapes:
        for _ in range(each):
            texts = 2 if bench.smoke else int(random.integers(1, 9))
            contexts = tuple(int(x) for x in random.integers(0, longest, texts))
            nodes = tuple(int(x) for x in random.integers(0, most, texts))
            # Odd: Triton compiles again for a number that 16 divides.
            window = 1 + 2 * int(random.integers(1, longest // 2)) if windowed else None
            found.append(Case(heads, kv_heads, size, contexts, nodes, window, softcap, dtype))
    return found


def accuracy(bench: Bench, found: dict[str, Any]) -> None:
    """The largest relative error over random cases, ours and torch's, as far as there is time."""
    for at, case in enumerate(cases_of(bench)):
        bench.check_time(f"accuracy, case {at + 1}")
        try:
            _compare(bench, case, at, found)
        except Exception as error:  # the other cases are tried all the same
            found["cases"] += 1
            found["bad"].append({"case": str(case)[:300], "error": said(error)})
    bench.say(f"accuracy: {found}")


def _compare(bench: Bench, case: Case, seed: int, found: dict[str, Any]) -> None:
    texts = case.texts(bench.device, seed)
    ours = tree_attention(texts, case)
    sides: dict[str, Sequence[Tensor]] = {}
    if case.softcap is None:
        sides["torch"] = [sdpa(text, case) for text in texts]
    if ours is not None:
        sides["ours"] = ours()
        found["cases"] += 1
    for name, given in sides.items():
        for place, (text, one) in enumerate(zip(texts, given, strict=True)):
            far, kind = distance(text, case, one), f"{name}, {str(case.dtype)[6:]}"
            found["worst"][kind] = max(found["worst"].get(kind, 0.0), far)
            if name == "ours" and far > ACCURATE[case.dtype]:
                found["bad"].append({"case": str(case)[:300], "text": place, "far": far})


def distance(text: Text, case: Case, given: Tensor) -> float:
    """How far a result is from the reference, relative to it; what is no number is far."""
    wanted = reference(text, case)
    far = float((given.double() - wanted).norm() / wanted.norm())
    return math.inf if math.isnan(far) else far


def sdpa(text: Text, case: Case) -> Tensor:
    """Torch's attention with a mask over one text: [rows, heads, d]."""
    q, k, v = (one.transpose(0, 1)[None] for one in (text.q, text.k, text.v))
    mask = text.visible(case.window)[None, None]
    found = scaled_dot_product_attention(q, k, v, mask, scale=case.scale, enable_gqa=True)
    return found[0].transpose(0, 1)


def attention_times(bench: Bench, lines: list[dict[str, Any]]) -> None:
    """8 nodes at the shapes of an 8B model: torch with a mask, ours, and torch without mask and
    nodes."""
    shapes = [(8, 16_384), (1, 32_768), (32, 4096), (128, 2048)]
    for batch, context in [(2, 24)] if bench.smoke else shapes:
        bench.check_time(f"{batch} x {context}")
        try:
            line = _attention_time(bench, batch, context)
        except OutOfTime:
            raise
        except Exception as error:
            line = {"error": said(error)}
        lines.append({"batch": batch, "context": context, **line})
        bench.say(f"{lines[-1]}")


def _attention_time(bench: Bench, batch: int, context: int) -> dict[str, Any]:
    """Torch has contiguous keys, of all texts at once, and its mask ready as a bias. It is asked in
    two ways, and the faster one counts: with heads that share keys, and with those heads as rows.
    """
    nodes, dtype = (2, torch.float32) if bench.smoke else (8, torch.bfloat16)
    heads, kv_heads, size = (2, 1, 16) if bench.smoke else (32, 8, 128)
    case = Case(heads, kv_heads, size, (context,) * batch, (nodes,) * batch, dtype=dtype)
    texts = case.texts(bench.device)
    q, k, v = (
        torch.stack([getattr(text, name) for text in texts]).transpose(1, 2).contiguous()
        for name in "qkv"
    )  # [batch, heads, rows or tokens, d]
    seen = torch.stack([text.visible() for text in texts])[:, None]
    bias = torch.zeros_like(seen, dtype=dtype).masked_fill(~seen, -torch.inf)
    group = heads // kv_heads
    rows, one = q.reshape(batch, kv_heads, -1, size), q[:, :, :1].contiguous()
    row_bias = bias.repeat(1, 1, group, 1)  # of a head's rows, then the next one's
    steps: dict[str, Callable[[], object]] = {
        "sdpa_heads": lambda: scaled_dot_product_attention(q, k, v, bias, enable_gqa=True),
        "sdpa_rows": lambda: scaled_dot_product_attention(rows, k, v, row_bias),
        "sdpa_plain": lambda: scaled_dot_product_attention(one, k, v, enable_gqa=True),
    }
    ours = tree_attention(texts, case)
    if ours is not None:
        steps["ours"] = ours
    took = {name: statistics.median(ms) for name, ms in timed(bench, steps).items()}
    line: dict[str, Any] = {"nodes": nodes}
    line |= {f"{name}_us": round(1e3 * ms, 2) for name, ms in took.items()}
    packed = scaled_dot_product_attention(rows, k, v, row_bias)[0].view(heads, -1, size)
    line["far_sdpa"] = distance(texts[0], case, packed.transpose(0, 1))
    if ours is not None:
        line["far"] = distance(texts[0], case, ours()[0])
        read = sum(2 * text.k.numel() * text.k.element_size() for text in texts)
        best = min(took["sdpa_heads"], took["sdpa_rows"])
        line["ratio"] = round(best / took["ours"], 3)
        line["tb_per_s"] = round(read / took["ours"] * 1e-9, 3)
    return line
