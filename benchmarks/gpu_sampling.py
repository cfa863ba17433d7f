"""The Triton kernel of the choice on a GPU: its time against that of reading the logits once.

    python benchmarks/gpu_sampling.py [--sweep]      on a machine with CUDA
    python benchmarks/gpu_sampling.py --verify       whole verifications instead
    python benchmarks/gpu_sampling.py --cpu-smoke    a tiny run in Triton's interpreter

576 rows (64 requests of 9 positions) of 152,064 logits, normal with a deviation of 2.5, in float32
and in bfloat16; also with all but 50 per row masked. "Read once" is the faster of torch.amax and
the best of several layouts of a Triton kernel that does nothing but the maximum of a row. Times are
medians of CUDA events; the logits are several times larger than the L2 cache. With --sweep all
layouts of the choice are timed too; the first of `sweep` is what the constant LAYOUT should be.

Correctness on the same GPU: the tokens of all rows against the torch twin, and the torch twin's
uniforms against numpy's, bit for bit. Needs torch, triton and numpy, and not the compiled core.

--verify needs the core: `verify` of 1, 64 and 128 requests with chains of 8, 8 and 2 drafted tokens
over 151,936 float32 logits, for each kind of request. Times are medians, in microseconds:

    alone   from an idle GPU to the verdicts
    before  of that, what the host takes before it waits: hidden behind the forward pass
    behind  what a step gets longer behind a forward pass of 2 ms, here a GPU that spins
    read    the time of torch.amax over the same logits

The verdicts are compared with those of the core on the CPU."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))
SMOKE = "--cpu-smoke" in sys.argv
if SMOKE:
    os.environ["TRITON_INTERPRET"] = "1"  # before triton is imported
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # inf - inf in the interpreter

import numpy as np  # noqa: E402
import torch  # noqa: E402
import triton  # type: ignore[import-untyped]  # noqa: E402
import triton.language as tl  # type: ignore[import-untyped]  # noqa: E402

import harness  # noqa: E402
from foresay.sampling import noise as readable  # noqa: E402
from foresay.sampling.acceptance import noise as twin  # noqa: E402
from foresay.sampling.acceptance import triton as kernels  # noqa: E402
from foresay.sampling.acceptance.triton import LAYOUT, Layout  # noqa: E402

ROWS, VOCABULARY, KEPT = (2, 130, 5) if SMOKE else (576, 152_064, 50)
DEVICE = "cpu" if SMOKE else "cuda"
BAR = 3.0
Arguments = tuple[torch.Tensor, torch.Tensor, torch.Tensor]

READERS = [Layout(s, b, w) for s in (1, 2, 4, 8) for b, w in ((2048, 4), (4096, 8), (8192, 8))]
STEPS = [(128, 1, 64), (256, 1, None), (256, 1, 112), (256, 1, 96), (256, 1, 80), (256, 1, 64)]
STEPS += [(512, 1, 128), (512, 2, None), (512, 2, 96), (1024, 4, 96)]
CHOOSERS = [Layout(s, *step) for step in STEPS for s in (7, 9, 14, 23, 37, 59)]
if SMOKE:
    READERS, CHOOSERS = [Layout(1, 64)], [Layout(2, 64)]
CHOOSER = CHOOSERS[0] if SMOKE else LAYOUT  # the interpreter runs one program after the other


@triton.jit  # type: ignore[untyped-decorator]
def read(logits_at, out_at, vocabulary, part, block: tl.constexpr):  # type: ignore[no-untyped-def]
    row, split = tl.program_id(0).to(tl.int64), tl.program_id(1)
    top = tl.full([block], -float("inf"), tl.float32)
    begin = split * part
    for start in range(begin, tl.minimum(begin + part, vocabulary), block):
        ids = start + tl.arange(0, block)
        x = tl.load(logits_at + row * vocabulary + ids, ids < vocabulary, -float("inf"))
        top = tl.maximum(top, x.to(tl.float32))
    tl.store(out_at + row * tl.num_programs(1) + split, tl.max(top))


def read_once(logits: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The maximum of each part of each row: nothing can be less and still read all."""
    rows, vocabulary = logits.shape
    splits, block, warps, _ = layout
    part = triton.cdiv(triton.cdiv(vocabulary, splits), block) * block
    out = torch.empty(rows, splits, device=logits.device)
    read[(rows, splits)](logits, out, vocabulary, part, block=block, num_warps=warps)
    return out


def microseconds(step: Callable[[], object], repeat: int) -> float:
    """The median time of a step; `repeat` is in milliseconds, as do_bench has it."""
    if SMOKE:
        step()
        return 1.0
    median = triton.testing.do_bench(step, warmup=10, rep=repeat, return_mode="median")
    return round(float(median) * 1000, 2)


def fastest(layouts: list[Layout], step: Callable[[Layout], object]) -> dict[str, Any]:
    """The best of the layouts, and the ten next to it."""
    times = []
    for layout in layouts:
        try:
            times.append((microseconds(partial(step, layout), 25), layout))
        except Exception as error:  # one layout that does not compile must not end the run
            print(f"{layout}: {error!r}"[:300], file=sys.stderr)
    times.sort(key=lambda pair: pair[0])
    table = [{"us": us, **layout._asdict()} for us, layout in times[:11]]
    return {"us": times[0][0], "best": times[0][1]._asdict(), "table": table}


def masked(logits: torch.Tensor) -> torch.Tensor:
    """All but the largest KEPT of each row at -inf."""
    least = logits.float().topk(KEPT).values[:, -1:]
    return logits.masked_fill(logits.float() < least, -torch.inf)


def measure(dtype: torch.dtype, arguments: Arguments, sweep: bool) -> dict[str, Any]:
    """All times and comparisons for logits of one dtype."""
    ones, seeds, positions = arguments
    plain = (torch.randn(ROWS, VOCABULARY, device=DEVICE) * 2.5).to(dtype)
    variants = {
        "sampled": (plain, ones),
        "sampled_at_0.7": (plain, ones * 0.7),
        "greedy": (plain, ones * 0),
        "top_50": (masked(plain), ones),
    }
    reader = fastest(READERS, lambda layout: read_once(plain, layout))
    amax = microseconds(lambda: plain.amax(1), 100)
    once = min(amax, reader["us"])
    size = plain.numel() * plain.element_size()
    result: dict[str, Any] = {
        "read_once_us": once,
        "read_once_tb_per_s": round(size / once / 1e6, 3),
        "amax_us": amax,
        "triton_max_us": reader["us"],
        "reader": reader["best"],
    }
    if sweep:
        swept = fastest(CHOOSERS, lambda at: kernels.choose(plain, *arguments, 0, at))
        result["sweep"] = swept["table"]
    result["layout"] = CHOOSER._asdict()
    for name, (logits, temperatures) in variants.items():
        call = (logits, temperatures, seeds, positions, 0)
        us = microseconds(partial(kernels.choose, *call, CHOOSER), 100)
        found, wanted = kernels.choose(*call, CHOOSER), twin.choose(*call)
        gap = (found.values - wanted.values).abs().max()
        result[name] = {
            "us": us,
            "ratio": round(us / once, 3),
            "within_bar": us <= BAR * once,
            "different_tokens": int((found.tokens != wanted.tokens).sum()),
            "different_status": int((found.status != wanted.status).sum()),
            "largest_value_difference": float(gap),
        }
    return result


def uniforms_that_differ() -> int:
    """How many of a sample of the torch twin's uniforms on this device are not numpy's."""
    rng = np.random.default_rng(0)
    seeds = np.array([0, 1, 2**32, 2**63, 2**64 - 1, *rng.integers(2**63, size=3)], np.uint64)
    positions, ids = rng.integers(2**32, size=8), rng.integers(2**31, size=VOCABULARY)
    s, p, t = (torch.from_numpy(x).to(DEVICE) for x in (seeds.view(np.int64), positions, ids))
    found = twin.uniform(s, p, t).cpu().numpy()
    wanted = [
        readable.uniform(int(seed), int(position), ids.astype(np.int32))
        for seed, position in zip(seeds, positions, strict=True)
    ]
    return int((found != np.stack(wanted)).sum())


STEPS_VERIFIED = [(1, 2)] if SMOKE else [(1, 8), (64, 8), (128, 2)]
KINDS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0},
    "sampled": {"temperature": 0.8},
    "limits": {"temperature": 0.8, "top_p": 0.9, "top_k": 50},
    "top_p": {"temperature": 0.8, "top_p": 0.9},
    "penalties": {"repetition_penalty": 1.1, "presence_penalty": 0.2, "frequency_penalty": 0.1},
    "rejection": {"temperature": 0.8, "rule": "rejection"},
}


def verified(requests: int, nodes: int, kind: str, vocabulary: int) -> dict[str, Any]:
    """One kind of request, at one size of step."""
    from time import perf_counter

    from foresay.draft import Draft, DraftBatch
    from foresay.sampling import SamplingParams, VerificationBatch, VerificationInput
    from foresay.sampling.acceptance import match, tries, upload
    from foresay.sampling.acceptance.verify import verify

    rng = np.random.default_rng(requests)
    there = torch.randn(requests * (nodes + 1), vocabulary, device=DEVICE) * 2.5
    likely = there.argmax(1).view(requests, -1)[:, :nodes].cpu().numpy().astype(np.int32)
    drafts = DraftBatch.of([Draft.chain(tokens) for tokens in likely])
    text = rng.integers(0, vocabulary, 10 if SMOKE else 2000).astype(np.int32)
    params = SamplingParams(max_tokens=4000, stop=[1, 2], **KINDS[kind])
    asks = [VerificationInput(params, seed, text[:9], text[9:]) for seed in range(requests)]
    waited = list[float]()

    def step(logits: torch.Tensor) -> Any:
        return verify(drafts, logits, VerificationBatch(asks))

    def noting(real: Callable[..., Any]) -> Callable[..., Any]:
        def download(tensor: torch.Tensor) -> Any:
            waited.append(perf_counter())
            return real(tensor)

        return download

    def timed(spin: int, work: Callable[[], object]) -> tuple[float, float]:
        waited.clear()
        if not SMOKE:
            torch.cuda.synchronize()
        began = perf_counter()
        if spin:
            torch.cuda._sleep(spin)
        work()
        if not SMOKE:
            torch.cuda.synchronize()
        ended = perf_counter()
        return ended - began, (waited[0] if waited else ended) - began

    for module in (match, tries):
        module.download = noting(upload.download)  # type: ignore[attr-defined]
    found, wanted = step(there), step(there.cpu())
    rounds, spin = (1, 0) if SMOKE else (30, 4_000_000)  # some 2 ms
    alone = np.array([timed(0, lambda: step(there)) for _ in range(rounds)])
    behind = np.median([timed(spin, lambda: step(there))[0] for _ in range(rounds)])
    behind -= np.median([timed(spin, lambda: None)[0] for _ in range(rounds)])
    read = 1.0 if SMOKE else microseconds(lambda: there.amax(1), 50)
    different = [at for at in range(requests) if found.verdicts[at] != wanted.verdicts[at]]
    return {
        "alone": round(float(np.median(alone[:, 0])) * 1e6, 1),
        "before": round(float(np.median(alone[:, 1])) * 1e6, 1),
        "behind": round(float(behind) * 1e6, 1),
        "read": read,
        "accepted": len(found.verdicts.path),
        "different": len(different),
    }


def show_verified(figures: dict[str, Any]) -> None:
    for size, kinds in figures["steps"].items():
        print(size)
        for kind, line in kinds.items():
            print(f"  {kind:<12}" + "".join(f"{name} {value:<12}" for name, value in line.items()))


def main() -> None:
    parser = harness.parser(__doc__)
    parser.add_argument("--verify", action="store_true", help="time whole verifications")
    parser.add_argument("--sweep", action="store_true", help="time all layouts of the choice")
    parser.add_argument("--cpu-smoke", action="store_true", help="a tiny run in the interpreter")
    options = harness.parse(parser)
    figures: dict[str, Any]
    torch.manual_seed(0)
    if options.verify:
        vocabulary = 130 if SMOKE else 151_936
        steps = {
            f"{requests} x {nodes + 1}": {
                kind: verified(requests, nodes, kind, vocabulary) for kind in KINDS
            }
            for requests, nodes in STEPS_VERIFIED
        }
        gpu = "none" if SMOKE else torch.cuda.get_device_name()
        figures = {"gpu": gpu, "vocabulary": vocabulary, "steps": steps}
        harness.finish("gpu-verify", figures, options, show_verified)
        return
    seeds = torch.randint(-(2**62), 2**62, [ROWS], device=DEVICE) * 2
    positions = torch.arange(ROWS, device=DEVICE) % 9 + 1000
    arguments = (torch.ones(ROWS, device=DEVICE), seeds, positions)
    figures = {
        "gpu": "none" if SMOKE else torch.cuda.get_device_name(),
        "triton": triton.__version__,
        "rows": ROWS,
        "vocabulary": VOCABULARY,
        "bar": BAR,
        "different_uniforms": uniforms_that_differ(),
        "float32": measure(torch.float32, arguments, options.sweep),
        "bfloat16": measure(torch.bfloat16, arguments, options.sweep),
    }
    harness.finish("gpu-sampling", figures, options, show)


def show(figures: dict[str, Any]) -> None:
    for dtype in ("float32", "bfloat16"):
        print(f"{dtype}: reading once {figures[dtype]['read_once_us']:.1f} us")
        for name in ("sampled", "sampled_at_0.7", "greedy", "top_50"):
            line = figures[dtype][name]
            print(f"  {name:<16}{line['us']:>8.1f} us{line['ratio']:>8.2f}x, bar {BAR:g}x")


if __name__ == "__main__":
    main()
