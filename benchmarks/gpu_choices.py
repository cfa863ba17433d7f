"""What gpu_tune.py tries: choices, models and steps; and which of the choices were best."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from foresay.models.gpu.tuning import Tuning
from gpu_bench import QWEN3_8B, SMALL

MB = 1 << 20
STANDARD = Tuning()
DEEP = {"known": True, "flat": True}
SETS = ((5, 8, 4, 4, 5), (5, 16, 8, 8, 5), (16, 0, 8, 8, 16))
FETCH = ("rotate", "attend", "combine", "first_norm", "last_norm")
AMOUNTS = ((5, 16), (8, 16, 24), (4, 8, 16), (4, 8, 16), (5, 16))
CHANGES: dict[str, dict[str, dict[str, Any]]] = {
    "keys": {
        "5 stages": {"stages": 5},
        "known": {"known": True},
        "flat": {"flat": True},
        "deep": DEEP,
        "deep, 2 stages": DEEP | {"stages": 2},
        "deep, keys 1": DEEP | {"keys": 1},
        "deep, keys 2": DEEP | {"keys": 2},
    },
    "softmax": {"deep, lean": DEEP | {"lean": True}},
    "chunks": {f"deep, chunk {n}": DEEP | {"chunk": n} for n in (1, 4)},
    "tiles": {f"deep, 2 tiles, {n}": DEEP | {"groups": 2, "stages": n} for n in (2, 3)},
    "chunks' sum": {"early": {"early": True}},
    **{
        it: {f"{it} {n}": {it: n * MB} for n in some}
        for it, some in zip(FETCH, AMOUNTS, strict=True)
    },
    "all": {
        f"all {'+'.join(map(str, some))}": {it: n * MB for it, n in zip(FETCH, some, strict=True)}
        for some in SETS
    },
}
"""By kind, of which the best one is taken: what is changed of the defaults."""
OTHER_BITS = ("lean", "chunk")  # of these choices: for all steps alike


class Case(NamedTuple):
    model: str
    batch: int
    context: int
    nodes: int

    @property
    def name(self) -> str:
        return f"{self.model} {self.batch}x{self.context}" + f" +{self.nodes}" * bool(self.nodes)


QWEN2_15B = QWEN3_8B | {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "hidden_size": 1536,
    "intermediate_size": 8960,
    "num_hidden_layers": 28,
    "num_attention_heads": 12,
    "num_key_value_heads": 2,
    "tie_word_embeddings": True,
}
SMALLEST = SMALL | {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 1}
MODELS: dict[str, dict[str, Any]] = {"1.5B": QWEN2_15B, "8B": QWEN3_8B, "tiny": SMALLEST}
PLACES: dict[tuple[str, int, int], tuple[int, ...]] = {
    ("1.5B", 1, 1024): (0, 8, 16),
    ("8B", 1, 1024): (0,),
    ("8B", 8, 16_384): (0, 8),
    ("8B", 32, 4096): (0, 4),
    ("8B", 128, 2048): (0, 2),
    ("8B", 1, 32_768): (0, 16),
}
CASES = [Case(*place, nodes) for place, many in PLACES.items() for nodes in many]
TINY = [Case("tiny", 1, 70, 1)]


def candidates(smoke: bool, without: Sequence[str] = ()) -> dict[str, Tuning]:
    found = {"defaults": STANDARD}
    for kind in CHANGES.values():
        found |= {name: replace(STANDARD, **changes) for name, changes in kind.items()}
    if smoke:  # one of the same bits, one of others, and one that cannot be
        found = {name: found[name] for name in ("defaults", "deep", "deep, chunk 1")}
        found["broken"] = replace(STANDARD, chunk=3)
    return {name: its for name, its in found.items() if name not in without}


def for_case(case: Case, choices: Mapping[str, Tuning]) -> dict[str, Tuning]:
    """Those that may change this step: two tiles only where a text fills one; what one kernel
    fetches only where few keys are read, else the sets."""
    shapes = MODELS[case.model]
    group = shapes["num_attention_heads"] // shapes["num_key_value_heads"]
    large = 1 + case.nodes > 64 // group
    tiles, single = CHANGES["tiles"], {name for kind in FETCH for name in CHANGES[kind]}
    few = case.batch * case.context < 100_000
    return {
        name: its
        for name, its in choices.items()
        if (large or name not in tiles) and (few or name not in single)
    }


def best_of(done: Mapping[str, Mapping[str, Any]], kind: str) -> dict[str, Any]:
    """The changes of the fastest choice of that kind over these cases, if it is right in all that
    have it and faster than what it is built on: the defaults, or `deep`."""
    best, least = dict[str, Any](), 0.995
    for name, changes in CHANGES[kind].items():
        base = "deep" if name.startswith("deep,") and kind != "keys" else "defaults"
        lines = [(case[name], case[base]) for case in done.values() if name in case]
        if lines and all("ratio" in it and it["good"] for both in lines for it in both):
            logs = [math.log(one["ratio"] / other["ratio"]) for one, other in lines]
            ratio = math.exp(statistics.mean(logs))
            best, least = (changes, ratio) if ratio < least else (best, least)
    return dict(best)


def together(done: Mapping[str, Mapping[str, Any]]) -> dict[str, Tuning]:
    """The best of every kind; of what is fetched, once by kernel and once as a set."""
    parts = {kind: best_of(done, kind) for kind in CHANGES}
    attention = {
        k: v for kind in CHANGES if kind not in (*FETCH, "all") for k, v in parts[kind].items()
    }
    single = {k: v for kind in FETCH for k, v in parts[kind].items()}
    return {
        "defaults": STANDARD,
        "best attention": replace(STANDARD, **attention),
        "best by kernel": replace(STANDARD, **attention, **single),
        "best as a set": replace(STANDARD, **attention, **parts["all"]),
    }
