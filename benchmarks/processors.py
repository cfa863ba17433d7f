"""foresay against llama.cpp on one GGUF file, and against transformers and itself, on processors.

    .venv-peers/bin/python benchmarks/processors.py [--only load,tasks,…] [--quick]

    load          from LLM to the first token: time, processor time; memory of the model
    prefill       a prompt of 512 tokens
    decode        one request without speculation, after its first token
    batch         8 requests at once, against batched decoding and continuous batching
    rows          a step of 1, 2, 4, 8, 16 rows, logits for all: what verifying a draft costs
    tasks         summarise, edit, extract, answer from a passage, chat: the default against
                  llama.cpp plain and with its prompt lookup, and against no speculation
    transformers  `generate` and its prompt lookup, one prompt of each task

`make peers` makes the environment. Every engine is a process of its own with as many threads, and
only one works at a time (`processors_engines.py`). They take turns prompt by prompt, and who begins
changes; ours with and without speculation take turns step by step, in one process.
`processors_bars.py` says what is divided by what. llama.cpp is driven through its C interface,
faster than by its Python class, and is given our token ids; its tokens of all prompts are compared
with ours. All is greedy, and everybody writes as many tokens as our answer has. Our text with
speculation is compared with the one without; one difference and the script fails. Spec-Bench's
questions are prompts, too; with `--without llama --dtype bfloat16` it is our engine in bfloat16
against transformers.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
import processors_bars
from foresay.models import weights
from harness import say
from processors_bars import decode_speed, speed
from processors_parts import PARTS, QUICK, Bench, Prompt, Scale
from workers import WorkerError

PEERS = {"llama": "llama_cpp", "transformers": "transformers"}


def read_prompts(path: Path, bench: Bench) -> list[Prompt]:
    """The first prompts of each task, their tokens, and how long our answers are. llama.cpp's
    tokens must be the same, or it would be given another text.
    """
    lines = [json.loads(text) for text in path.read_text().splitlines() if text.strip()]
    for one in lines:
        if "turns" in one:  # Spec-Bench's: the first turn
            about = {"name": f"{one['question_id']}", "task": one["category"]}
            one |= {**about, "text": one["turns"][0]}
    by_task: dict[str, list[Any]] = {}
    for one in lines:
        by_task.setdefault(one["task"], []).append(one)
    chosen = [one for one in lines if one in by_task[one["task"]][: bench.scale.each]]
    texts = [one["text"] for one in chosen]
    if bench.llama:
        mine = bench.ask("foresay", "encode", texts=texts, chat=False)
        for one, a, b in zip(
            chosen, mine, bench.ask("llama", "tokenize", texts=texts), strict=True
        ):
            if a != b:
                raise WorkerError(
                    f"the prompt '{one['name']}' has other tokens in llama.cpp; expected the same"
                )
    tokens = bench.ask("foresay", "encode", texts=texts, chat=True)
    lengths = bench.ask("foresay", "lengths", prompts=tokens, most=bench.scale.tokens)
    return [
        Prompt(one["name"], one["task"], ids, max(2, length))
        for one, ids, length in zip(chosen, tokens, lengths, strict=True)
    ]


def measure(options: argparse.Namespace, scale: Scale) -> dict[str, Any]:
    """Start everybody, run the chosen parts, and put the figures together.

    Raises: WorkerError.
    """
    model, without = options.model, options.without
    file: Path | None = options.gguf or weights.find_stored(model).gguf
    if file is None and "llama" not in without:
        raise WorkerError(
            f"the model '{model}' is no GGUF file; expected one or an alias, or --without llama"
        )
    loads: dict[str, dict[str, Any]] = {"foresay": {"model": model, "dtype": options.dtype}}
    if "llama" not in without:
        loads["llama"] = {"path": str(file), "context": 1024, "requests": scale.requests}
    if "transformers" not in without:
        fast = "amx_bf16" in Path("/proc/cpuinfo").read_text()
        folder = str(weights.find(model, convert=True))
        loads["transformers"] = {"folder": folder, "dtype": "bfloat16" if fast else "float32"}
    files = [file] if file else [*Path(model).glob("*.safetensors")]
    size = sum(one.stat().st_size for one in files)
    bench = Bench(loads, options.threads, options.limit, scale, size, options.lookup)
    with ExitStack() as stack:
        about, parts = {}, {}
        for engine in loads:
            bench.workers[engine] = stack.enter_context(bench.start(engine))
            about[engine] = bench.load(engine, bench.workers[engine])
        bench.prompts = read_prompts(options.prompts, bench)
        for name in (name for name in PARTS if name in options.chosen):
            start = time.perf_counter()
            say(f"-- {name}")
            parts[name] = PARTS[name](bench)
            parts[name]["took_seconds"] = round(time.perf_counter() - start, 1)
    level = about["foresay"]["level"]
    kind = processors_bars.kind_of(platform.machine(), level)
    return {
        "model": Path(model).name,
        "file": None if file is None else file.name,
        "file_bytes": size,
        "threads": options.threads,
        "level": level,
        "kind": kind,
        "exact_on_this_machine": about["foresay"]["exact"],
        "dtypes": {name: one["dtype"] for name, one in about.items() if "dtype" in one},
        "llama_system": about.get("llama", {}).get("system"),
        "scale": asdict(scale),
        "prompts": [
            {"name": p.name, "task": p.task, "tokens": len(p.tokens), "answer": p.length}
            for p in bench.prompts
        ],
        "texts": {"compared": bench.compared, "different": bench.different},
        "identical": not bench.different,
        "bars": processors_bars.bars(parts, kind),
        "parts": parts,
    }


def show(figures: dict[str, Any]) -> None:
    """The tables: speeds of all sides, then every bar."""
    for name, of in (
        ("prefill", speed),
        ("decode", decode_speed),
        ("batch", speed),
        ("tasks", speed),
    ):
        runs = figures["parts"].get(name, {"runs": ()})["runs"]
        for task in dict.fromkeys(run.get("task", "") for run in runs):
            some = [run["sides"] for run in runs if run.get("task", "") == task]
            for side, value in harness.medians(some, of).items():
                print(f"{name:<8}{task:<12}{side:<24}{value:10.1f} tokens/s")
    for run in figures["parts"].get("rows", {"runs": ()})["runs"][-1:]:
        for side, times in run["sides"].items():
            shown = ", ".join(f"{n}: {1e3 * min(took):.1f}" for n, took in times.items())
            print(f"a step of rows, ms at best: {side}  {shown}")
    harness.print_bars(figures["bars"])
    texts = figures["texts"]
    print(f"texts compared: {texts['compared']}, different: {len(texts['different'])}")


def main() -> None:
    parser = harness.parser(__doc__, parts=tuple(PARTS), quick=True)
    prompts = harness.HERE / "processors_prompts.jsonl"
    parser.add_argument("--model", default=weights.DEFAULT_MODEL, help="an alias or a .gguf file")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="llama.cpp's, if already there")
    parser.add_argument("--prompts", type=Path, default=prompts, metavar="FILE", help="JSON lines")
    parser.add_argument("--without", default="", help="peers, with commas between")
    parser.add_argument("--rounds", type=int, help="of every part")
    parser.add_argument("--tokens", type=int, help="of every answer, at most")
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--dtype", default="auto", help="of our weights")
    parser.add_argument("--lookup", default="2,4", help="tokens that llama.cpp's lookup drafts")
    parser.add_argument("--limit", type=float, default=900, help="seconds of one request")
    options = harness.parse(parser)
    options.without = [*filter(None, options.without.split(","))]
    options.lookup = [int(size) for size in options.lookup.split(",") if size]
    if unknown := set(options.without) - set(PEERS):
        parser.error(f"there is no {unknown.pop()!r}; choose from {', '.join(PEERS)}")
    for peer, module in PEERS.items():
        if peer not in options.without and find_spec(module) is None:
            parser.error(f"{module} is not installed here; make peers does it, or --without {peer}")
    scale = QUICK if options.quick else Scale()
    if options.rounds is not None:
        scale = replace(scale, rounds=options.rounds)
    if options.tokens is not None:
        scale = scale.at_most(options.tokens)
    options.quick = options.quick or scale != replace(Scale(), rounds=max(scale.rounds, 3))
    try:
        figures = measure(options, scale)
    except WorkerError as error:
        sys.exit(str(error))
    failed = "" if figures["identical"] else "texts differ with and without speculation"
    name = f"processors-{figures['level']}" + ("-some" if options.without else "")
    harness.finish(name, figures, options, show, failed)


if __name__ == "__main__":
    main()
