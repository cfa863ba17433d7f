"""What functions and classes over arrays refuse, in one table; nothing is written then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from core.arrays import doubles, floats, halves, ints, longs, read_only, single
from foresay import _core
from foresay.errors import InputError

LEVELS, NAN, INF = _core.cpu_levels(), float("nan"), float("inf")
LAYERS = [(2, 8, 6), (1, 3, 5)]  # of a Kv


def attend(**given: Any) -> None:
    kv = _core.Kv(LAYERS, "float32")
    step = _core.AttentionStep([kv], ints(0, 3), ints(-1, 0, 0))
    try:
        step.attend(**given)
    except (InputError, TypeError):
        assert kv.keys(0).shape[1] == 0
        raise
    assert kv.keys(0).shape == (2, 3, 8)


def begin_step(kvs: int, **given: Any) -> None:
    _core.AttentionStep([_core.Kv(LAYERS, "float32") for _ in range(kvs)], **given)


def linear(**given: Any) -> None:
    _core.Linear(halves(5, 8)).multiply(**given)


def with_table(call: Callable[..., Any]) -> Callable[..., Any]:
    table = np.linspace(0.1, 0.9, 5), 4.0, 128.0
    return lambda tables, **given: call(tables=tables or [_core.ClassTable(*table)], **given)


def block_linear(**given: Any) -> None:
    _core.BlockLinear("Q4_1", np.zeros(120, np.uint8), 3, 64).multiply(**given)


ROWS = {"logits": floats(2, 5), "temperatures": floats(2), "threads": 1}
SEEDS = np.zeros(2, np.uint64)
DRAFTS = {"tokens": ints(7), "parents": ints(-1), "offsets": ints(0, 1)}
ENDS = {"room": longs(9), "stop_owners": longs(), "stops": longs()}
WALKS = {"rows": longs(0, 1), "walks": longs(0, 1), "residual": np.full((2, 5), -7.0)}
PROBS = {"probs": floats(2, 5), "rows": longs(0, 1), "threads": 1}
CANDIDATES = {"parents": ints(-1), "offsets": ints(0, 1), "chances": doubles(0.5)}
CANDIDATES |= {"worth": doubles(1), "left": longs(9), "contexts": longs(5)}
COSTS = {"knots": doubles(1, 9), "shape": doubles(1, 2), "extras": (0.0, 0.0, 0.0), "level": 1.0}
BESIDES = {"other_rows": 0, "other_reads": 0, "tokens": 1.0, "seconds": 0.0, "bearable": 0.2}
HEADS = {"query": floats(1, 4, 4, 8), "key": floats(1, 2, 4, 8), "value": floats(1, 2, 4, 6)}
SEEN = {"layer": 0, "out": floats(1, 4, 4, 6, fill=7), "scaling": 0.5}
SCORED = DRAFTS | {"scores": floats(1), "tables": [], "rows": ints(0)}
LESSONS = SCORED | {"accepted": np.ones(1, bool), "factors": None, "ids": None}
PLACES = {"means": np.zeros((2, 3)), "nodes": ints(0), "accepted": np.ones(1, bool)}
PLACES |= {"asked": 2, "requests": 1, "rate": 0.5}
KEPT_NODES = {"path": ints(0), "path_offsets": ints(0, 1), "offsets": ints(0, 1)}
NO_DRAFT = {"draft_tokens": ints(), "draft_parents": ints(), "draft_offsets": ints(0)}
STEP = {f"draft_{name}": value for name, value in DRAFTS.items()}
STEP |= {"tokens": ints(5, 6), "offsets": ints(0, 2), "needs_logits": np.ones(1, bool)}
STEP |= {"prefill": ints(1), "prefill_logits": ints(1)}
KEPT = DRAFTS | {"tokens": ints(0, 2), "path": ints(0), "path_offsets": ints(0, 1)}
Given = dict[str, Any]
# What can be called, and with what: two rows for most.
RIGHT: dict[str, tuple[Callable[..., object], Given]] = {
    "choose": (_core.choose, ROWS | {"seeds": SEEDS, "positions": SEEDS.astype("I"), "stream": 0}),
    "match": (
        _core.match,
        {**ROWS, **DRAFTS, **ENDS, "seeds": SEEDS[:1], "positions": longs(3), "stream": 0},
    ),
    "follow": (_core.follow, {**DRAFTS, **ENDS, "codes": longs(1, -3)}),
    "topk": (_core.topk, {"logits": floats(2, 5), "k": 5, "threads": 1}),
    "token_logprobs": (
        _core.token_logprobs,
        ROWS | {"rows": longs(0, 1), "tokens": ints(0, 4), "top": 5},
    ),
    "unnormalised_softmax": (
        _core.unnormalised_softmax,
        WALKS | {"scores": floats(2, 5), "temperatures": floats(2), "threads": 1},
    ),
    "sums": (_core.sums, PROBS),
    "subtract": (_core.subtract, WALKS | PROBS | {"totals": np.ones(2), "sums": np.ones(2)}),
    "draw": (_core.draw, {"residual": np.ones((2, 5)), "coins": np.full(2, 0.5), "threads": 1}),
    "check_drafts": (_core.check_drafts, {**DRAFTS, "scores": None}),
    "calibrated": (with_table(_core.calibrated), SCORED),
    "learn": (with_table(_core.learn), LESSONS),
    "step_rows": (_core.step_rows, STEP),
    "kept_rows": (_core.kept_rows, KEPT),
    "selection": (_core.selection, CANDIDATES | COSTS | BESIDES | {"overlaps": False}),
    "packed": (_core.packed, {**DRAFTS, "scores": None, "keep": np.ones(1, bool)}),
    "numbered": (_core.numbered, KEPT_NODES | {"nodes": ints(0)}),
    "accepted": (_core.accepted, KEPT_NODES | {"keep": np.ones(1, bool)}),
    "follow_places": (_core.follow_places, PLACES),
    "Linear": (_core.Linear, {"weight": halves(4, 4), "bias": None}),
    "Linear.multiply": (linear, {"x": halves(3, 8), "out": halves(3, 5), "threads": 1}),
    "BlockLinear": (
        _core.BlockLinear,
        {"format": "Q4_1", "weight": np.zeros(120, np.uint8), "outs": 3, "ins": 64},
    ),
    "BlockLinear.multiply": (
        block_linear,
        {"x": floats(2, 64), "out": floats(2, 3, fill=9), "threads": 1},
    ),
    "Kv": (_core.Kv, {"layers": LAYERS, "dtype": "float32"}),
    "AttentionStep": (begin_step, {"kvs": 1, "offsets": ints(0, 2), "parents": ints(-1, 0)}),
    "attend": (attend, HEADS | SEEN),
}
WITH_LEVEL = [name for name in RIGHT if "threads" in RIGHT[name][1] and name[0].islower()]
Case = tuple[str, str, Given, type[Exception]]


def wrong(name: str, said: str, **changes: Any) -> Case:
    return name, said, changes, InputError


def of_another_type(name: str, **changes: Any) -> Case:
    return name, "", changes, TypeError


CASES: list[Case] = [
    *(
        wrong(name, f"^threads is {threads}; expected 1 to 256$", threads=threads)
        for name in (*WITH_LEVEL, "Linear.multiply", "BlockLinear.multiply", "attend")
        for threads in (0, 257)
    ),
    *(
        wrong(name, "^a row has 0 logits; expected 1 to 2147483647$", logits=floats(2, 0), **none)
        for name, none in (
            ("choose", {}),
            ("match", {}),
            ("topk", {"k": 0}),
            ("token_logprobs", {"top": 0}),
        )
    ),
    *(
        wrong(name, f"^temperature {said} is not valid; expected", temperatures=single(1, bad))
        for name in ("choose", "match", "token_logprobs", "unnormalised_softmax")
        for bad, said in ((-0.5, "-0.5"), (NAN, "-?nan"), (INF, "inf"))
        for said in (f"{said}0*",)
    ),
    *(
        wrong(name, f"^temperatures has {size} values; expected 2$", temperatures=floats(size))
        for name in ("choose", "match", "token_logprobs", "unnormalised_softmax")
        for size in (1, 3)
    ),
    *(
        wrong(name, f"^{key} has row {bad}, but there are 2 rows$", **{key: longs(bad, 1)})
        for name, key in (
            ("token_logprobs", "rows"),
            ("unnormalised_softmax", "rows"),
            ("unnormalised_softmax", "walks"),
            ("sums", "rows"),
            ("subtract", "rows"),
            ("subtract", "walks"),
        )
        for bad in (-1, 2, 2**62, -(2**63))
    ),
    wrong("choose", "^seeds has 1 values; expected 2$", seeds=np.zeros(1, np.uint64)),
    wrong("choose", "^positions has 1 values; expected 2$", positions=np.zeros(1, np.uint32)),
    wrong("match", "^offsets has 1 values; expected 2", offsets=ints(0)),
    wrong("match", "^offsets are from 0 to 2; expected 0 to 1, the number", offsets=ints(0, 2)),
    wrong("match", "^there are 1 tokens but 0 parents; expected one each", parents=ints()),
    wrong("match", r"^parents\[0\] is 0; expected -1 to -1 for node 0 of its", parents=ints(0)),
    wrong("match", r"^tokens\[0\] is -1; expected a token id", tokens=ints(-1)),
    wrong("match", "^positions has 0 values; expected 1", positions=longs()),
    wrong("match", r"^positions\[0\] is -1; expected 0 to 4294967294", positions=longs(-1)),
    wrong("match", r"^positions\[0\] is 4294967295; expected 0 to", positions=longs(2**32 - 1)),
    wrong("match", "^room has 2 values; expected 1", room=longs(1, 1)),
    wrong("match", "^stops has 1 values; expected 0", stops=longs(1)),
    wrong("match", "^stop 0 is of request 1; expected", stops=longs(1), stop_owners=longs(1)),
    wrong("match", "^stop 0 is of request -1; expected", stops=longs(1), stop_owners=longs(-1)),
    wrong("match", "^logits have 3 rows; expected 2, one for", logits=floats(3, 5)),
    wrong("follow", "^codes has 1 values; expected 2$", codes=longs(1)),
    *(
        wrong("follow", f"^code {bad} is not valid; expected a token id", codes=longs(1, bad))
        for bad in (-6, 2**31, -(2**63))
    ),
    wrong("follow", "^offsets has 1 values; expected 2", offsets=ints(0)),
    wrong("follow", r"^parents\[0\] is 0; expected -1 to -1 for node 0 of its", parents=ints(0)),
    wrong("follow", "^stops has 1 values; expected 0", stops=longs(1)),
    wrong("follow", "^stop 0 is of request 1; expected", stops=longs(1), stop_owners=longs(1)),
    wrong("topk", "^k is 6; expected 0 to the 5 logits of a row$", k=6),
    of_another_type("topk", logits=np.zeros((2, 5))),
    of_another_type("topk", logits=floats(2, 10)[:, ::2]),
    of_another_type("topk", logits=floats(5)),
    wrong("token_logprobs", "^top is 6; expected 0 to the 5 logits of a row$", top=6),
    wrong("token_logprobs", "^token 5 has no logit; expected 0 to 4$", tokens=ints(0, 5)),
    wrong("token_logprobs", "^token -1 has no logit; expected 0 to 4$", tokens=ints(-1, 0)),
    wrong("token_logprobs", "^tokens has 3 values; expected 2$", tokens=ints(0, 0, 0)),
    *(
        case
        for name in ("unnormalised_softmax", "subtract")
        for case in (
            wrong(name, "^walks has row 1 twice$", walks=longs(1, 1)),
            wrong(name, "^rows has 1 values; expected 2$", rows=longs(1)),
            wrong(name, "^rows of 5 values do not fit a residual of 4", residual=np.ones((2, 4))),
            of_another_type(name, residual=floats(2, 5)),
            of_another_type(name, residual=np.ones((2, 10))[:, ::2]),
            of_another_type(name, residual=np.ones((5, 2)).T),
            of_another_type(name, residual=read_only(np.ones((2, 5)))),
        )
    ),
    wrong("subtract", "^totals has 1 values; expected 2$", totals=np.ones(1)),
    wrong("subtract", "^sums has 3 values; expected 2$", sums=np.ones(3)),
    *(
        wrong("subtract", "^sum .* of probs is not valid", sums=doubles(1, bad))
        for bad in (0.0, -1.0, NAN, INF)
    ),
    wrong("draw", "^coins has 1 values; expected 2$", coins=np.ones(1)),
    *(
        wrong("draw", r"^coin -?(0.1|1.0|nan)0* is not valid", coins=doubles(0, bad))
        for bad in (-0.1, 1.0, NAN)
    ),
    wrong("draw", "^a row has 0 values", residual=np.ones((2, 0))),
    *(
        wrong("draw", r"^the residual of row 1 sums to -?(0.0+|inf|nan);", residual=rows)
        for rows in (np.array([[1, 1], [bad, bad]]) for bad in (0.0, INF, NAN))
    ),
    *(
        wrong(name, said, offsets=offsets)
        for name in ("check_drafts", "selection", "packed")
        for offsets, said in (
            (ints(), "^offsets is empty; expected one entry more than there are drafts$"),
            (ints(0), "^offsets are from 0 to 0; expected 0 to 1, the number of nodes$"),
            (ints(0, 2), "^offsets are from 0 to 2; expected 0 to 1, the number of nodes$"),
            (ints(1, 1), "^offsets are from 1 to 1; expected 0 to 1, the number of nodes$"),
            (ints(0, 3, 1), r"^offsets\[2\] is 1 after 3; expected offsets that never fall$"),
        )
    ),
    wrong("check_drafts", r"^tokens\[0\] is -1; expected a token id", tokens=ints(-1)),
    wrong("check_drafts", r"^tokens\[0\] is 2147483647; expected", tokens=ints(2**31 - 1)),
    wrong("calibrated", "^there are 1 tokens but 2 scores; expected one", scores=floats(2)),
    wrong("calibrated", "^table 0 is 'x'; expected a ClassTable$", tables=["x"]),
    wrong("learn", "^rows has 2 values; expected 1$", rows=ints(0, 0)),
    wrong("learn", "^accepted has 2 values; expected 1$", accepted=np.ones(2, bool)),
    *(wrong("learn", f"^table {n} is not there; expected 0 to 0$", rows=ints(n)) for n in (-1, 1)),
    wrong("step_rows", "^the offsets of the tokens do not rise", offsets=ints(0, 3)),
    wrong("step_rows", "^the drafts' offsets has 1 values", **NO_DRAFT),
    wrong("step_rows", "^prefill has 0 values; expected 1$", prefill=ints()),
    wrong("step_rows", "^prefill_logits has 2 values", prefill_logits=ints(0, 0)),
    wrong("step_rows", "^text 0 has no tokens; expected", tokens=ints(), offsets=ints(0, 0)),
    wrong("step_rows", "^text 0 has 1 tokens of prefill, and 2", prefill_logits=ints(2)),
    wrong("step_rows", r"^parents\[0\] is 0; expected -1 to -1", draft_parents=ints(0)),
    wrong("kept_rows", "^there are no offsets of tokens", tokens=ints()),
    *(
        wrong("kept_rows", f"^the offsets of the {what} do not rise", **{name: ints(1, 2)})
        for what, name in (("tokens", "tokens"), ("paths", "path_offsets"), ("drafts", "offsets"))
    ),
    *(
        wrong("kept_rows", f"^the path of text 0 goes on with node {n}", path=ints(n))
        for n in (-1, 1)
    ),
    wrong("kept_rows", "^the path of text 0 goes on with node 0", parents=ints(0)),
    *(
        wrong("selection", rf"^{key}\[0\] is .*; expected a finite number", **{key: doubles(bad)})
        for key in ("chances", "worth")
        for bad in (NAN, -0.1, INF)
    ),
    wrong("selection", r"^parents\[0\] is 0; expected -1 to -1", parents=ints(0)),
    wrong("selection", "^chances has 2 values; expected 1$", chances=doubles(1, 1)),
    wrong("selection", "^worth has 2 values; expected 1$", worth=doubles(1, 1)),
    *(
        wrong("selection", f"^{key} has 2 values", **{key: longs(5, 5)})
        for key in ("left", "contexts")
    ),
    wrong("selection", "^shape has 1 values; expected 2$", shape=doubles(1)),
    wrong("selection", "^knots is empty; expected at least", knots=doubles(), shape=doubles()),
    wrong("Linear", r"^weight has the shape \[0, 4\]", weight=halves(0, 4)),
    wrong("Linear", r"^weight has the shape \[4, 0\]", weight=halves(4, 0)),
    wrong("Linear", "expected 2 dimensions$", weight=halves(4)),
    wrong("Linear", "^weight is of another dtype", weight=floats(4, 4)),
    wrong("Linear", r"^bias has the shape \[3\]", bias=halves(3)),
    wrong("Linear", "^bias is of another dtype", bias=floats(4)),
    wrong("Linear", '^level "fast" cannot be run here; expected .*plain$', level="fast"),
    wrong("Linear.multiply", r"^x has the shape \[3, 7\]", x=halves(3, 7)),
    wrong("Linear.multiply", "^x has the shape", x=halves()),
    wrong("Linear.multiply", "^x is of another dtype", x=floats(3, 8)),
    wrong("Linear.multiply", "^x has rows at unequal distances", x=halves(8, 3).T),
    wrong("Linear.multiply", "^x has rows at unequal distances", x=halves(2, 4, 8)[:, :3]),
    wrong("Linear.multiply", "^out has 3 rows", x=halves(4, 8)),
    wrong("Linear.multiply", "^out has the shape", out=halves(3, 8)),
    wrong("Linear.multiply", "^out is not contiguous", out=halves(3, 10)[:, :5]),
    wrong("Linear.multiply", "^out is of another dtype", out=floats(3, 5)),
    of_another_type("Linear.multiply", out=read_only(halves(3, 5))),
    wrong("BlockLinear", '^the format is "Q2_K"; expected F32, F16, .*, Q6_K$', format="Q2_K"),
    wrong("BlockLinear", '^the format is "q4_1"; expected', format="q4_1"),
    wrong("BlockLinear", '^the format is ""; expected', format=""),
    wrong("BlockLinear", '^the format is "x{40}"; expected', format="x" * 99),
    wrong("BlockLinear", '^level "fast" cannot be run here; expected .*plain$', level="fast"),
    wrong("BlockLinear", r"^weight has the shape \[0, 64\]; both are from 1 to 16777216", outs=0),
    wrong("BlockLinear", r"^weight has the shape \[3, 0\]", ins=0),
    wrong("BlockLinear", r"^weight has the shape \[16777217, 64\]", outs=2**24 + 1),
    wrong("BlockLinear", "^weight has the shape", ins=2**63),
    wrong("BlockLinear", "^weight has rows of 65 numbers; Q4_1 has blocks of 32$", ins=65),
    wrong("BlockLinear", "^weight has rows of 64 numbers; Q4_K has blocks of 2", format="Q4_K"),
    wrong("BlockLinear", r"^weight has 120 bytes; \[4, 64\] of Q4_1 has 160$", outs=4),
    wrong("BlockLinear", r"^weight has 119 bytes; \[3, 64\]", weight=np.zeros(119, np.uint8)),
    wrong("BlockLinear", "^weight has 0 bytes", weight=np.zeros(0, np.uint8)),
    wrong("BlockLinear", "^order has 2 rows; expected 3$", order=ints(0, 0)),
    wrong("BlockLinear", "^order has the row 3; expected 0 to 2$", order=ints(0, 3, 1)),
    wrong("BlockLinear", "^order has the row -1; expected 0 to 2$", order=ints(0, -1, 1)),
    wrong("BlockLinear", "^bias has 4 numbers; expected 3$", bias=floats(4)),
    of_another_type("BlockLinear", weight=np.zeros(120, np.int8)),
    of_another_type("BlockLinear", weight=np.zeros((3, 40), np.uint8)),
    wrong("BlockLinear.multiply", r"^x has the shape \[2, 63\]; expected", x=floats(2, 63)),
    wrong("BlockLinear.multiply", r"^out has the shape \[2, 3\]; expected", x=floats(3, 64)),
    wrong("BlockLinear.multiply", r"^out has the shape \[2, 4\]; expected", out=floats(2, 4)),
    of_another_type("BlockLinear.multiply", x=np.zeros((2, 64))),
    of_another_type("BlockLinear.multiply", x=floats(2, 128)[:, ::2]),
    of_another_type("BlockLinear.multiply", x=floats(64)),
    of_another_type("BlockLinear.multiply", out=floats(2, 6)[:, ::2]),
    of_another_type("BlockLinear.multiply", out=np.zeros((2, 3), np.int32)),
    of_another_type("BlockLinear.multiply", out=read_only(floats(2, 3))),
    of_another_type("BlockLinear.multiply", threads=-1),
    wrong("Kv", "^there are 0 layers", layers=[]),
    wrong("Kv", "^kv_heads of layer 0 is 0", layers=[(0, 1, 1)]),
    wrong("Kv", "^key_dim of layer 1 is 0", layers=[(1, 1, 1), (1, 0, 1)]),
    wrong("Kv", "^value_dim of layer 0 is 5000; expected 1 to 4096$", layers=[(1, 1, 5000)]),
    wrong("Kv", '^dtype is "float16"', dtype="float16"),
    wrong("AttentionStep", "^there are 0 kvs", kvs=0),
    wrong("AttentionStep", "^offsets has 1 values; expected 2$", offsets=ints(0)),
    wrong("AttentionStep", "^offsets are from 1 to 2; expected 0 to 2", offsets=ints(1, 2)),
    wrong("AttentionStep", "^offsets are from 0 to 1", offsets=ints(0, 1)),
    wrong("AttentionStep", "^offsets are from 0 to -1", offsets=ints(0, -1)),
    wrong("AttentionStep", r"^offsets\[2\] is 2 after 3; expe", kvs=2, offsets=ints(0, 3, 2)),
    wrong("AttentionStep", r"^offsets\[1\] is -5 after 0", kvs=2, offsets=ints(0, -5, 2)),
    wrong("AttentionStep", "^the parent of row 0 of request 0 is -2; exp", parents=ints(-2, 0)),
    wrong("AttentionStep", "^the parent of row 1 of request 0 is 1", parents=ints(-1, 1)),
    wrong("AttentionStep", "^the parent of row 0 of request 1", kvs=2, offsets=ints(0, 1, 2)),
    *(
        wrong("AttentionStep", r"^kept\[\d\] is \d; expected layers from 0 to 1, ris", kept=kept)
        for kept in ([2], [1, 0], [0, 0], [7])
    ),
    wrong("attend", "^layer 2 does not exist; there are 2$", layer=2),
    wrong("attend", "^query has 3 dimensions; expected 4$", query=floats(4, 4, 8)),
    wrong("attend", "^query has 2 rows; expected 3 to ", query=floats(1, 4, 2, 8)),
    wrong("attend", "^there are 3 query heads; expected a mult", query=floats(1, 3, 4, 8)),
    wrong("attend", "^there are 0 query heads", query=floats(1, 0, 4, 8)),
    wrong("attend", r"^query has the shape \[1, 4, 4, 7\]", query=floats(1, 4, 4, 7)),
    wrong("attend", r"^query has the shape \[2, 4, 4, 8\]", query=floats(2, 4, 4, 8)),
    wrong("attend", r"^key has the shape .* expected \[1, 2, 4, 8\]", key=floats(1, 1, 4, 8)),
    wrong("attend", "^key has the shape", key=floats(1, 2, 3, 8)),
    *(wrong("attend", "^value has the shape", value=floats(1, 2, *s)) for s in ((4, 8), (5, 6))),
    *(wrong("attend", "^out has the shape", out=floats(1, *s)) for s in ((4, 4, 5), (3, 4, 6))),
    wrong("attend", "^query has a last stride of 2", query=floats(1, 4, 4, 16)[..., ::2]),
    wrong("attend", "^value has a last stride of 2", value=floats(1, 2, 4, 12)[..., ::2]),
    wrong("attend", "^out is not contiguous", out=floats(1, 4, 4, 12)[..., :6]),
    wrong("attend", "^key is of another dtype; the Kv is of float32", key=halves(1, 2, 4, 8)),
    wrong("attend", "^out is of another dtype", out=np.ones((1, 4, 4, 6))),
    *(wrong("attend", f"^scaling is {number}", scaling=number) for number in (NAN, INF)),
    *(wrong("attend", f"^softcap is {softcap:g}", softcap=softcap) for softcap in (-1, NAN, INF)),
    wrong("attend", "^sinks has 3 values; expected 4$", sinks=floats(3)),
    *(of_another_type("attend", **{name: -1}) for name in ("layer", "window", "chunk")),
    of_another_type("attend", query=[[[[1.0]]]]),
    of_another_type("attend", value=None),
    of_another_type("attend", sinks=np.ones(4)),
    of_another_type("attend", out=np.broadcast_to(np.float32(0), (1, 4, 4, 6))),
]


@pytest.mark.parametrize(
    ("name", "said", "changes", "error"), CASES, ids=[case[0] for case in CASES]
)
def test_refused(name: str, said: str, changes: dict[str, Any], error: type[Exception]) -> None:
    call, right = RIGHT[name]
    given = right | changes
    for level in LEVELS if name in WITH_LEVEL else ("",):
        here = given | ({"level": level} if level else {})
        before = {key: a.copy() for key, a in here.items() if isinstance(a, np.ndarray)}
        with pytest.raises(error, match=said or None):
            call(**here)
        for key, array in before.items():
            assert np.array_equal(here[key], array, equal_nan=True), f"{key} was written to"


@pytest.mark.parametrize("name", RIGHT)
def test_taken(name: str) -> None:
    call, right = RIGHT[name]
    given = {key: a.copy() if isinstance(a, np.ndarray) else a for key, a in right.items()}
    for level in LEVELS if name in WITH_LEVEL else ("",):
        call(**given | ({"level": level} if level else {}))


@pytest.mark.parametrize("kind", ["Linear", "BlockLinear"])
def test_out_is_not_x(kind: str) -> None:
    layer: Any = _core.Linear(halves(8, 8))
    memory: NDArray[Any] = halves(6, 8)
    if kind == "BlockLinear":
        layer, memory = _core.BlockLinear("F32", np.zeros(1 << 14, "B"), 64, 64), floats(6, 64)
    layer.multiply(memory[:3], memory[3:])
    with pytest.raises(InputError, match=r"^out overlaps x; expected memory of its own$"):
        layer.multiply(memory[:3], memory[2:5])
    layer.multiply(read_only(memory[:3].copy()), memory[:3])
