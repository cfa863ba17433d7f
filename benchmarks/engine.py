"""The engine against transformers and against itself, on a real model.

    python benchmarks/engine.py --prompts spec-bench.jsonl [--only plain,single,…] [--quick]

Prompts are JSON lines with question_id, category and turns; the first turn is asked, through the
model's chat template. Everything is bfloat16 with torch's own number of threads; texts are also
compared in float32.

    plain       one answer at a time, no speculation, against `generate`
    single      one at a time with the default drafter, against `generate`, `generate` with prompt
                lookup, and our own engine without speculation: summarization, rag, math, coding
    little      translation and qa: the default against no speculation
    batch       many at once, against continuous batching (and padding), default and none
    group       samples of one prompt: the default, no speculation, the same drafter not sharing
    float32     texts with and without speculation in float32
    precision   log probabilities: decoded, verified in a chain, in a tree
    acceptance  how much comes true, by place in the answer

Contestants take turns prompt by prompt, and who begins changes; a ratio is that of tokens per
second on one prompt, and a result their geometric mean. Times are from the tokens of the prompt to
the last token of the answer. Against transformers both write exactly as many tokens as are asked
for, past the end of the answer, since in bfloat16 its text may differ from ours and the work must
not; `single` also gives the mean over answers that do not end before. Among our own, answers end
where they end. Our engines are fresh and share, as for any user, the beginning that the template
gives to all prompts; in a race no engine gets a prompt twice. Every text of ours is compared with
every other to the same question; one difference and the script fails.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch

import engine_parts as parts
import record
from engine_parts import Bench
from engine_precision import precision
from engine_ways import Ours, read_prompts
from foresay.counts import tokens_per_step
from foresay.models import weights

RACES = {
    "plain": parts.plain,
    "single": parts.single,
    "little": parts.little,
    "batch": parts.batch,
    "group": parts.group,
}
EXACT = {"float32": parts.float32, "precision": precision}
NAMES = (*RACES, *EXACT, "acceptance")


def measure(bench: Bench, chosen: list[str], model: str) -> dict[str, Any]:
    """The figures of the chosen parts, in their own order."""
    found: dict[str, Any] = {}
    exact: Ours | None = None
    for name in (name for name in NAMES if name in chosen):
        start = time.perf_counter()
        if name in RACES:
            found[name] = RACES[name](bench)
        elif name in EXACT:
            if exact is None:
                same = bench.ours.llm.target.dtype == torch.float32
                exact = bench.ours if same else Ours(model, "float32")
            found[name] = EXACT[name](bench, exact)
        else:
            found[name] = parts.acceptance(bench)
        found[name]["took_seconds"] = round(time.perf_counter() - start, 1)
    return found


def identical(figures: dict[str, Any]) -> bool:
    in_float32 = figures["parts"].get("float32", {}).get("texts", {"identical": True})
    return bool(figures["texts"]["identical"] and in_float32["identical"])


def show(figures: dict[str, Any]) -> None:
    """The tables."""
    for name, part in figures["parts"].items():
        print(f"\n{name}  ({part['took_seconds']:.0f} s)")
        for line in part["results"]:
            bar = "" if line["bar"] is None else f"bar {line['bar']:.2f}  "
            met = {None: "", True: "met", False: "NOT MET"}[line["met"]]
            print(
                f"  {line['name']:<58}{line['times']:6.2f}x  "
                f"({line['least']:.2f} to {line['most']:.2f})  {bar}{met}"
            )
        _show_ways(part.get("runs", ()))
        for row in part.get("compared", ()):
            print(
                f"  {row['dtype']:<9} {row['who']:<13} {row['compared']:<38} largest "
                f"{row['largest']:.2e}, mean {row['mean']:.2e}, bits equal "
                f"{row['equal_to_the_last_bit']} of {row['tokens']}, flips {row['argmax_flips']}"
            )
        for row in part.get("by_position", ()):
            share = row["accepted_of_drafted"]
            print(
                f"  {row['category']:<16} tokens {row['from']:>3} to {row['to']:>3}: "
                f"{row['tokens_per_step']:.2f} tokens per step, "
                + ("nothing drafted" if share is None else f"{share:.0%} of the nodes accepted")
            )
        if "texts" in part:
            _show_texts(part["texts"])
    print()
    _show_texts(figures["texts"])


def _show_ways(runs: Any) -> None:
    """Tokens per second and per step of each contestant, over all its runs."""
    sums: dict[str, list[float]] = {}
    for run in runs:
        for way, one in run["ways"].items():
            total = sums.setdefault(way, [0.0, 0.0, 0.0])
            total[0] += one["tokens"]
            total[1] += one["seconds"]
            total[2] += one.get("steps", 0)
    for way, (tokens, seconds, steps) in sums.items():
        per_step = f"{tokens_per_step(tokens, steps):8.2f} tokens per step" if steps else ""
        print(f"  {way:<58}{tokens / seconds:6.1f} tokens/s{per_step}")


def _show_texts(texts: dict[str, Any]) -> None:
    count = sum(texts["compared"].values())
    print(f"  texts compared: {count}, different: {len(texts['different'])}")
    for line in texts["different"][:10]:
        print(
            f"    {line['part']}, {line['who']}: {line['asked']} differs at token {line['token']}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--prompts", type=Path, required=True, metavar="FILE", help="JSON lines")
    parser.add_argument("--model", default=weights.DEFAULT_MODEL)
    parser.add_argument("--only", default=",".join(NAMES), help="parts, with commas between")
    parser.add_argument("--quick", action="store_true", help="fewer prompts and tokens")
    parser.add_argument("--tokens", type=int, help="of every answer, at most")
    parser.add_argument("--history", action="store_true", help="`single` without history, too")
    parser.add_argument("--dtype", choices=("bfloat16", "float32"), default="bfloat16")
    parser.add_argument(
        "--step-tokens", type=int, default=512, help="of transformers' continuous batching"
    )
    parser.add_argument("--json", action="store_true", help="print the record")
    record.add_option(parser)
    options = parser.parse_args()
    chosen = options.only.split(",")
    for name in chosen:
        if name not in NAMES:
            parser.error(f"there is no part {name!r}; choose from {', '.join(NAMES)}")
    scale = replace(parts.QUICK if options.quick else parts.Scale(), history=options.history)
    if options.tokens is not None:
        scale = replace(
            scale,
            tokens=min(scale.tokens, options.tokens),
            plain_tokens=min(scale.plain_tokens, options.tokens),
            batch_tokens=min(scale.batch_tokens, options.tokens),
        )
    begin = time.perf_counter()
    folder = weights.find(options.model, convert=True)
    ours = Ours(options.model, options.dtype)
    prompts = read_prompts(options.prompts, ours.llm, scale.each)
    bench = Bench(prompts, scale, ours, folder, options.step_tokens)
    found = measure(bench, chosen, options.model)
    figures: dict[str, Any] = {
        "model": Path(options.model).name,
        "dtype": options.dtype,
        "torch_threads": torch.get_num_threads(),
        "exact_on_this_machine": ours.llm.target.exact,
        "scale": asdict(scale),
        "took_seconds": round(time.perf_counter() - begin, 1),
        "texts": bench.texts.as_dict(),
        "parts": found,
    }
    figures["identical"] = identical(figures)
    # A part of the whole, or a quick one, must not take the place of the day's record.
    some = "" if set(chosen) == set(NAMES) else "-" + "-".join(chosen)
    name = f"engine{'-quick' if options.quick or options.tokens else ''}{some}"
    path = record.write(name, figures, options.record)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    print(f"recorded in {path.name}")
    if not figures["identical"]:
        sys.exit("texts differ with and without speculation: see the record")


if __name__ == "__main__":
    main()
