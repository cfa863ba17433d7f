"""Parts `steps`, `deterministic` and `offload` of gpu.py: what forward passes take, plain and with
drafted nodes, beside what their bytes take.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from foresay.drafters.lineup import make_drafter
from foresay.engine.engine import Engine
from foresay.models.target import Target
from gpu_bench import (
    Bench,
    Case,
    OutOfTime,
    alone,
    bandwidth,
    filled,
    greedy,
    random_target,
    said,
    step_of,
    timed,
    weight_bytes,
)


def steps(bench: Bench, found: dict[str, Any]) -> None:
    """The given model at batch 1, then the large shapes with random weights."""
    bench.drop(keep_given=True)
    copied = bandwidth(bench)
    bench.say(f"a copy moves {copied / 1e12:.2f} TB/s")
    found |= {"copy_tb_per_s": round(copied / 1e12, 4), "cases": []}
    if bench.options.model is not None:
        target: Target = bench.llm().target
        cases = [(1, bench.scale.context, nodes) for nodes in bench.scale.real_nodes]
        _cases(bench, "given", target, cases, copied, found["cases"])
    most = max(batch * (context + 256) for batch, context, _ in bench.scale.cases)
    target = random_target(bench, most)
    bench.say(f"random weights: {weight_bytes(target) / 1e9:.2f} GB")
    _cases(bench, "8B", target, bench.scale.cases, copied, found["cases"])


def _cases(
    bench: Bench,
    name: str,
    target: Target,
    cases: Sequence[Case],
    copied: float,
    lines: list[dict[str, Any]],
) -> None:
    """A line more for each case; cases of the same texts are timed in turns, and a case that fails,
    for want of memory say, is a line with its error."""
    for batch, context in dict.fromkeys((batch, context) for batch, context, _ in cases):
        nodes = [n for b, c, n in cases if (b, c) == (batch, context)]
        about = {"model": name, "batch": batch, "context": context}
        try:
            lines += [about | one for one in _case(bench, target, batch, context, nodes, copied)]
        except OutOfTime:
            raise
        except Exception as error:
            lines.append(about | {"error": said(error)})
        gc.collect()
        for one in lines[-len(nodes) :]:
            bench.say(f"{one}")


def _case(
    bench: Bench, target: Target, batch: int, context: int, nodes: Sequence[int], copied: float
) -> list[dict[str, Any]]:
    bench.check_time(f"{batch} x {context}")
    kvs = filled(target, batch, context)
    every = {n: step_of(target, kvs, n) for n in (0, *nodes)}
    took = timed(bench, {str(n): step for n, step in every.items()})
    middle = {n: statistics.median(took[str(n)]) for n in every}
    least = 1e3 * (weight_bytes(target) + batch * context * target.bytes_per_token) / copied
    plain = {
        "plain_ms": round(middle[0], 4),
        "plain_alone_ms": round(alone(bench, every[0]), 4),
        "bytes_ms": round(least, 4),
        "share_of_bound": round(least / middle[0], 4),
        "steps": len(took["0"]),
    }
    return [
        plain
        | {
            "nodes": n,
            "nodes_ms": round(middle[n], 4),
            "ratio": round(middle[n] / middle[0], 4),
            # Of turn by turn ratios: how far they lie apart.
            "ratios": [round(x, 3) for x in _turns(took[str(n)], took["0"])],
        }
        for n in nodes
    ]


def _turns(some: Sequence[float], plain: Sequence[float]) -> list[float]:
    """The ratio of medians in each of the three turns."""
    size = max(1, len(plain) // 3)
    places = range(0, len(plain), size)
    return [
        statistics.median(some[at : at + size]) / statistics.median(plain[at : at + size])
        for at in places
    ]


def deterministic(bench: Bench, found: dict[str, Any]) -> None:
    """What deterministic=True costs beside False: plain steps and steps with nodes, in turns."""
    lines = found.setdefault("cases", [])
    targets = {
        "True": bench.llm().target,
        "False": bench.llm(deterministic=False).target,
    }
    for batch, context, nodes in bench.scale.deterministic:
        bench.check_time(f"{batch} x {context}")
        texts = {name: filled(target, batch, context) for name, target in targets.items()}
        for rows in (0, nodes):
            every = {name: step_of(target, texts[name], rows) for name, target in targets.items()}
            took = {name: statistics.median(ms) for name, ms in timed(bench, every).items()}
            lines.append(
                {
                    "batch": batch,
                    "context": context,
                    "nodes": rows,
                    **{f"{name}_ms": round(ms, 4) for name, ms in took.items()},
                    "ratio": round(took["True"] / took["False"], 4),
                }
            )
            bench.say(f"deterministic: {lines[-1]}")
        del texts
        gc.collect()


def offload(bench: Bench, found: dict[str, Any]) -> None:
    """The large shapes with memory for a part of the weights: an answer without drafts, and one of
    a drafter that has seen it, so that fewer passes are needed. Time and passes by ratio.
    """
    bench.drop()
    scale = bench.scale
    # Bytes of all layers' weights in bf16; `weights` is what random_target may hold of them.
    shapes = scale.shapes
    width, heads = shapes["hidden_size"], shapes["num_attention_heads"]
    kv = shapes["num_key_value_heads"] * shapes["head_dim"]
    layer = 2 * width * (heads * shapes["head_dim"] + kv) + 3 * width * shapes["intermediate_size"]
    total = 2 * (layer * shapes["num_hidden_layers"] + 2 * width * shapes["vocab_size"])
    allowed = int(total * scale.offload_share)
    target = random_target(bench, 4096, allowed)
    bench.say(f"offloading: {allowed / 1e9:.2f} of {total / 1e9:.2f} GB on the device")
    prompt = [int(token) for token in np.random.default_rng(4).integers(5, 100, 32)]
    drafter = make_drafter("suffix", share="all", model=None)
    memory = 1024 * target.bytes_per_token
    sides = {
        "plain": Engine(target, None, memory=memory),
        "drafts": Engine(target, drafter, policy="fixed", memory=memory),
    }
    answer(sides["drafts"], prompt, scale.offload_tokens)  # the drafter sees it
    answer(sides["plain"], prompt, 2)
    runs = {name: answer(engine, prompt, scale.offload_tokens) for name, engine in sides.items()}
    plain, drafts = runs["plain"], runs["drafts"]
    passes, seconds = plain["passes"] / drafts["passes"], plain["seconds"] / drafts["seconds"]
    for run in runs.values():
        bench.say(f"{run['passes']} passes in {run['seconds']:.2f} s")
    found |= {
        "weight_bytes": total,
        "allowed_bytes": allowed,
        "sides": {name: {k: v for k, v in run.items() if k != "ids"} for name, run in runs.items()},
        "identical": plain["ids"] == drafts["ids"],
        "ratio_of_passes": round(passes, 4),
        "ratio_of_seconds": round(seconds, 4),
        "seconds_by_passes": round(seconds / passes, 4),
    }


def answer(engine: Engine, prompt: Sequence[int], tokens: int) -> dict[str, Any]:
    """One greedy answer of so many tokens, and its passes."""
    request = engine.add(prompt, greedy(tokens, ignore_eos=True))
    begin = time.perf_counter()
    engine.run()
    took = time.perf_counter() - begin
    if request.error is not None:
        raise request.error
    # Of tokens: a step that is launched ahead and read by nobody is none.
    return {
        "passes": request.stats.steps,
        "seconds": round(took, 5),
        "ids": list(request.token_ids),
    }
