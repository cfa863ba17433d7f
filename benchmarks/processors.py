"""foresay against llama.cpp on one GGUF file, and against transformers and itself, on processors.

    .venv-peers/bin/python benchmarks/processors.py [--only load,tasks,…] [--quick]

    load          from LLM to the first token: time, processor time; memory of the model
    prefill       a prompt of 512 tokens
    decode        one request without speculation, after its first token
    batch         8 requests at once, against batched decoding
    rows          a step of 1, 2, 4, 8, 16 rows, logits for all: what verifying a draft costs
    tasks         summarise, edit, extract, answer from a passage, chat: the default against
                  llama.cpp plain and with its prompt lookup, and against no speculation
    transformers  `generate`, one prompt of each task

`make peers` makes the environment. Every engine is a process of its own with as many threads, and
only one works at a time. They take turns prompt by prompt, and who begins changes; ours with and
without speculation take turns step by step, in one process. `processors_bars.py` says what is
divided by what. llama.cpp is driven through its C interface, faster than by its Python class, and
is given our token ids; its tokens of all prompts are compared with ours. All is greedy, and
everybody writes as many tokens as our answer has. Our text with speculation is compared with the
one without, token by token; one difference and the script fails.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import processors_bars
import record
from foresay.cli.show import print_table
from foresay.models import weights
from processors_bars import LLAMA, NONE, decode_speed, speed
from processors_parts import PARTS, QUICK, Bench, Engines, Prompt, Scale, say, start_all
from processors_worker import Worker, WorkerError

PROMPTS = Path(__file__).parent / "processors_prompts.jsonl"
PEERS = {"llama": "llama_cpp", "transformers": "transformers"}


def size_of(path: Path) -> int:
    """Bytes of a model's weights."""
    files = [path] if path.is_file() else [*path.glob("*.safetensors")]
    return sum(file.stat().st_size for file in files)


def read_prompts(path: Path, workers: dict[str, Worker], scale: Scale) -> list[Prompt]:
    """The first prompts of each task, their tokens, and how long our answers are. llama.cpp's
    tokens must be the same, or it would be given another text.
    """
    lines = [json.loads(text) for text in path.read_text().splitlines() if text.strip()]
    chosen, counts = [], dict.fromkeys((one["task"] for one in lines), 0)
    for one in lines:
        counts[one["task"]] += 1
        if counts[one["task"]] <= scale.each:
            chosen.append(one)
    foresay, texts = workers["foresay"], [one["text"] for one in chosen]
    if "llama" in workers:
        mine = foresay.ask("encode", texts=texts, chat=False)
        theirs = workers["llama"].ask("tokenize", texts=texts)
        for one, ours, other in zip(chosen, mine, theirs, strict=True):
            if ours != other:
                raise WorkerError(
                    f"the prompt '{one['name']}' has other tokens in llama.cpp; expected the same"
                )
    tokens = foresay.ask("encode", texts=texts, chat=True)
    lengths = foresay.ask("lengths", prompts=tokens, most=scale.tokens)
    return [
        Prompt(one["name"], one["task"], ids, max(2, length))
        for one, ids, length in zip(chosen, tokens, lengths, strict=True)
    ]


def commit() -> str:
    """Of this checkout; with a + where it has changes."""
    git = ["git", "-C", str(Path(__file__).parent)]
    said = [
        subprocess.run([*git, *what], capture_output=True, text=True, check=False).stdout.strip()
        for what in (("rev-parse", "--short=12", "HEAD"), ("status", "--porcelain", "-uno"))
    ]
    return f"{said[0] or 'unknown'}{'+' if said[1] else ''}"


def measure(options: argparse.Namespace, chosen: list[str], scale: Scale) -> dict[str, Any]:
    """Start everybody, run the chosen parts, and put the figures together.

    Raises: WorkerError.
    """
    model, left_out = options.model, options.without
    begin, busy = time.perf_counter(), os.getloadavg()
    file: Path | None = options.gguf or weights.find_stored(model).gguf
    if file is None and "llama" not in left_out:
        raise SystemExit(
            f"the model '{model}' is no GGUF file; expected one or an alias, or --without llama"
        )
    loads: dict[str, dict[str, Any]] = {"foresay": {"model": model, "dtype": options.dtype}}
    if "llama" not in left_out:
        loads["llama"] = {"path": str(file), "context": 1024, "requests": scale.requests}
    if "transformers" not in left_out:
        fast = "amx_bf16" in Path("/proc/cpuinfo").read_text()
        dtype = "bfloat16" if fast else "float32"
        loads["transformers"] = {"folder": str(weights.find(model, convert=True)), "dtype": dtype}
    engines = Engines(loads, options.threads, options.limit)
    with ExitStack() as stack:
        workers, said = start_all(engines, stack)
        prompts = read_prompts(options.prompts, workers, scale)
        size = size_of(file or Path(model))
        bench = Bench(engines, workers, scale, prompts, size, options.lookup)
        parts: dict[str, Any] = {}
        for name in (name for name in PARTS if name in chosen):
            start = time.perf_counter()
            say(f"-- {name}")
            parts[name] = PARTS[name](bench)
            parts[name]["took_seconds"] = round(time.perf_counter() - start, 1)
    kind = processors_bars.kind_of(platform.machine(), said["foresay"]["level"])
    return {
        "commit": commit(),
        "model": Path(model).name,
        "file": None if file is None else file.name,
        "file_bytes": bench.file_bytes,
        "threads": options.threads,
        "level": said["foresay"]["level"],
        "kind": kind,
        "exact_on_this_machine": said["foresay"]["exact"],
        "dtypes": {name: one["dtype"] for name, one in said.items() if "dtype" in one},
        "llama_system": said.get("llama", {}).get("system"),
        "load_average": {"before": busy, "after": os.getloadavg()},
        "scale": asdict(scale),
        "prompts": [
            {"name": p.name, "task": p.task, "tokens": len(p.tokens), "answer": p.length}
            for p in prompts
        ],
        "took_seconds": round(time.perf_counter() - begin, 1),
        "texts": {"compared": bench.compared, "different": bench.different},
        "identical": not bench.different,
        "bars": processors_bars.bars(parts, kind),
        "parts": parts,
    }


def show(figures: dict[str, Any]) -> None:
    """The tables: speeds of all ways, then every bar."""
    speeds = [
        [name, way, f"{value:.1f}"]
        for name, of in (("prefill", speed), ("decode", decode_speed), ("batch", speed))
        for way, value in _middles(figures["parts"].get(name, {"runs": ()})["runs"], of).items()
    ]
    speeds += [
        [f"tasks, {task}", way, f"{value:.1f}"]
        for task in dict.fromkeys(p["task"] for p in figures["prompts"])
        for way, value in _middles(
            [r for r in figures["parts"].get("tasks", {"runs": ()})["runs"] if r["task"] == task],
            speed,
        ).items()
    ]
    if speeds:
        print_table(["", "", "tokens/s"], speeds)
        print()
    for run in figures["parts"].get("rows", {"runs": ()})["runs"][-1:]:
        for way, times in run["ways"].items():
            shown = ", ".join(f"{n}: {1e3 * min(took):.1f}" for n, took in times.items())
            print(f"a step of rows, ms at best: {'foresay' if way == NONE else LLAMA}  {shown}")
        print()
    body = []
    for one in figures["bars"]:
        bar = "" if one["bar"] is None else f"{'≤' if one['at_most'] else '≥'} {one['bar']:g}"
        met = {None: "", True: "met", False: "SHORT"}[one["met"]]
        body.append([one["name"], f"{one['value']:.2f}{one['unit']}", bar, met])
    if body:
        print_table(["", "value", "bar", ""], body)
    for what, where in processors_bars.ELSEWHERE.items():
        print(f"measured elsewhere: {what} ({where})")
    texts = figures["texts"]
    print(f"texts compared: {texts['compared']}, different: {len(texts['different'])}")


def _middles(runs: Any, of: Any) -> dict[str, float]:
    """The median of each way's speeds."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for way, one in run["ways"].items():
            found.setdefault(way, []).append(of(one))
    return {way: statistics.median(found[way]) for way in sorted(found)}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", default=weights.DEFAULT_MODEL, help="an alias or a .gguf file")
    parser.add_argument("--gguf", type=Path, metavar="FILE", help="llama.cpp's, if already there")
    parser.add_argument("--prompts", type=Path, default=PROMPTS, metavar="FILE", help="JSON lines")
    parser.add_argument("--only", default=",".join(PARTS), help="parts, with commas between")
    parser.add_argument("--without", default="", help="peers, with commas between")
    parser.add_argument("--quick", action="store_true", help="fewer prompts, tokens and rounds")
    parser.add_argument("--rounds", type=int, help="of every part")
    parser.add_argument("--tokens", type=int, help="of every answer, at most")
    parser.add_argument("--threads", type=int, default=2, help="of every engine")
    parser.add_argument("--dtype", default="auto", help="of our weights")
    parser.add_argument("--lookup", default="2,4", help="tokens that llama.cpp's lookup drafts")
    parser.add_argument("--limit", type=float, default=900, help="seconds of one request")
    parser.add_argument("--json", action="store_true", help="print the record")
    record.add_option(parser)
    options = parser.parse_args()
    chosen, options.without = options.only.split(","), [*filter(None, options.without.split(","))]
    options.lookup = [int(size) for size in options.lookup.split(",") if size]
    for name, known in ((chosen, PARTS), (options.without, PEERS)):
        for one in name:
            if one not in known:
                parser.error(f"there is no {one!r}; choose from {', '.join(known)}")
    for peer, module in PEERS.items():
        if peer not in options.without and find_spec(module) is None:
            parser.error(f"{module} is not installed here; make peers does it, or --without {peer}")
    scale = QUICK if options.quick else Scale()
    if options.rounds is not None:
        scale = replace(scale, rounds=options.rounds)
    if options.tokens is not None:
        most = {name: min(getattr(scale, name), options.tokens) for name in _TOKENS}
        scale = replace(scale, **most)
    try:
        figures = measure(options, chosen, scale)
    except WorkerError as error:
        sys.exit(str(error))
    # A part of the whole, or a quick one, must not take the place of the day's record.
    some = "" if set(chosen) == set(PARTS) and not options.without else "-some"
    whole = Scale()
    quick = "" if scale == replace(whole, rounds=max(scale.rounds, whole.rounds)) else "-quick"
    path = record.write(f"processors-{figures['level']}{quick}{some}", figures, options.record)
    if options.json:
        print(json.dumps(figures, indent=2))
    else:
        show(figures)
    print(f"recorded in {path.name}")
    if not figures["identical"]:
        sys.exit("texts differ with and without speculation: see the record")


_TOKENS = ("tokens", "decode_tokens", "batch_tokens", "transformers_tokens")

if __name__ == "__main__":
    main()
