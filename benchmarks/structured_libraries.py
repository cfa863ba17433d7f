"""Libraries for constrained decoding beside each other: one process for each, which is ended where
a schema takes too long and started anew.

Each compiles a schema and then follows texts through it, token by token: the mask before every
token is timed. Both write JSON on one line, with ", " and ": ", and allow what the schema allows.
"""

from __future__ import annotations

import json
import multiprocessing
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import harness
from foresay.models.tokenizer import Tokenizer

LIBRARIES = ("llguidance", "xgrammar")
SECONDS = 10.0  # for one schema and its texts, then the library's process is ended


@dataclass(frozen=True)
class Schema:
    """A schema and JSON texts that match it, or do not."""

    name: str
    text: str
    valid: tuple[str, ...] = ()
    invalid: tuple[str, ...] = ()


def in_line(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def read_schemas(folder: Path, count: int, seed: int) -> list[Schema]:
    """`count` of a folder of JSONSchemaBench's files, {"schema", "tests": [{"valid", "data"}]}, as
    many of each of its sets as can be."""
    sets: dict[str, list[Path]] = {}
    for path in sorted(folder.glob("*.json")):
        name = path.name.partition("---")[0] if "---" in path.name else path.name.split("_")[0]
        sets.setdefault(name, []).append(path)
    draw, chosen = random.Random(seed), []
    for paths in sets.values():
        draw.shuffle(paths)
    while len(chosen) < count and any(sets.values()):
        chosen += [paths.pop() for paths in sets.values() if paths]
    return [_read(path) for path in chosen[:count]]


def _read(path: Path) -> Schema:
    content = json.loads(path.read_text())
    texts: dict[bool, list[str]] = {True: [], False: []}
    for test in content.get("tests", []):
        texts[test["valid"]].append(in_line(test["data"]))
    return Schema(path.stem, in_line(content["schema"]), *map(tuple, (texts[True], texts[False])))


# What a library's process does


class _Llguidance:
    def __init__(self, file: str, ends: Sequence[int]) -> None:
        import llguidance
        import numpy as np

        self.library = llguidance
        slices = llguidance.LLTokenizer.json_slices()
        self.tokenizer = llguidance.LLTokenizer(file, eos_token=list(ends), slices=slices)
        self.row = np.zeros(-(-self.tokenizer.vocab_size // 32), np.int32)
        self.limits = llguidance.LLParserLimits(verbose_errors=False)

    def compile(self, schema: str) -> Any:
        form = {"item_separator": ", ", "key_separator": ": ", "whitespace_flexible": False}
        source = self.library.LLMatcher.grammar_from_json_schema(schema, defaults=form)
        made = self.library.LLMatcher(self.tokenizer, source, log_level=0, limits=self.limits)
        if made.is_error():
            raise ValueError(made.get_error())
        return made

    def start(self, compiled: Any) -> Any:
        return compiled.deep_copy()

    def mask(self, matcher: Any) -> None:
        matcher.unsafe_compute_mask_ptr(self.row.ctypes.data, self.row.nbytes)

    def advance(self, matcher: Any, token: int) -> bool:
        return bool(matcher.consume_token(token))

    def ended(self, matcher: Any) -> bool:
        return bool(matcher.is_accepting())


class _Xgrammar:
    def __init__(self, file: str, ends: Sequence[int]) -> None:
        import xgrammar
        from transformers import PreTrainedTokenizerFast

        self.library = xgrammar
        inner = PreTrainedTokenizerFast(tokenizer_file=file)
        about = xgrammar.TokenizerInfo.from_huggingface(inner, stop_token_ids=list(ends))
        self.compiler = xgrammar.GrammarCompiler(about, cache_enabled=False)
        self.end = ends[0]
        self.row = xgrammar.allocate_token_bitmask(1, about.vocab_size)

    def compile(self, schema: str) -> Any:
        return self.compiler.compile_json_schema(
            schema, any_whitespace=False, separators=(", ", ": "), strict_mode=False
        )

    def start(self, compiled: Any) -> Any:
        return self.library.GrammarMatcher(compiled)

    def mask(self, matcher: Any) -> None:
        matcher.fill_next_token_bitmask(self.row)

    def advance(self, matcher: Any, token: int) -> bool:
        return bool(matcher.accept_token(token))

    def ended(self, matcher: Any) -> bool:
        return bool(matcher.accept_token(self.end))


_MADE: dict[str, Callable[[str, Sequence[int]], Any]] = {
    "llguidance": _Llguidance,
    "xgrammar": _Xgrammar,
}


def _work(name: str, file: str, ends: Sequence[int], asked: Connection) -> None:
    library = _MADE[name](file, ends)
    asked.send(None)  # it is there
    while True:
        try:
            schema, texts = asked.recv()
        except EOFError:
            return
        found: dict[str, Any] = {"refused": "", "masks": [], "taken": []}
        start = time.perf_counter()
        try:
            compiled = library.compile(schema)
        except Exception as error:  # each library has its own
            found["refused"] = " ".join(str(error).split())[:200] or type(error).__name__
        found["compile"] = time.perf_counter() - start
        if not found["refused"]:
            for tokens in texts:
                found["taken"].append(_follow(library, compiled, tokens, found["masks"]))
        asked.send(found)


def _follow(library: Any, compiled: Any, tokens: Sequence[int], masks: list[float]) -> bool:
    """Whether the text is one of the grammar; the seconds of each mask are added to `masks`."""
    matcher = library.start(compiled)
    for token in tokens:
        start = time.perf_counter()
        library.mask(matcher)
        masks.append(time.perf_counter() - start)
        if not library.advance(matcher, token):
            return False
    return bool(library.ended(matcher))


class _Library:
    """A library's process."""

    def __init__(self, name: str, file: Path, ends: Sequence[int]) -> None:
        self._how = (name, str(file), tuple(ends))
        self._start()

    def _start(self) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._asked, theirs = spawn.Pipe()
        self._process = spawn.Process(target=_work, args=(*self._how, theirs), daemon=True)
        self._process.start()
        theirs.close()
        self._asked.recv()

    def follow(self, schema: str, texts: Sequence[Sequence[int]]) -> dict[str, Any]:
        """What the process found; `lost` is why it was ended, if it was."""
        start = time.perf_counter()
        self._asked.send((schema, texts))
        lost = "too long"
        if self._asked.poll(SECONDS):
            try:
                return self._asked.recv() | {"lost": ""}
            except EOFError:
                lost = "crashed"
        self.stop()
        self._start()
        seconds = time.perf_counter() - start
        return {"lost": lost, "refused": "", "compile": seconds, "masks": [], "taken": []}

    def stop(self) -> None:
        self._process.kill()
        self._process.join()
        self._asked.close()


# The comparison


def compare(
    folder: Path, libraries: Sequence[str], schemas: Sequence[Schema], tokens: int
) -> dict[str, Any]:
    """Every schema through every library, in turns; texts of at most `tokens` tokens."""
    tokenizer = Tokenizer(folder)
    running = {one: _Library(one, folder / "tokenizer.json", tokenizer.ends) for one in libraries}
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in libraries}
    for turn, schema in enumerate(schemas):
        known = [True] * len(schema.valid) + [False] * len(schema.invalid)
        texts = [tokenizer.encode(t, special=False) for t in schema.valid + schema.invalid]
        short = [
            (text.tolist(), good)
            for text, good in zip(texts, known, strict=True)
            if len(text) <= tokens
        ]
        tokens_of = [text for text, _ in short]
        sides = {name: partial(one.follow, schema.text, tokens_of) for name, one in running.items()}
        for name, run in harness.take_turns(sides, turn).items():
            found[name].append(run | {"name": schema.name, "good": [good for _, good in short]})
        if turn % 25 == 24:
            harness.say(f"{turn + 1} of {len(schemas)} schemas")
    for one in running.values():
        one.stop()
    return {name: _summary(name, runs) for name, runs in found.items()}


def _summary(name: str, runs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Milliseconds of compiling, microseconds of masks, and what was refused or taken wrongly."""
    answered = [run for run in runs if not run["lost"]]
    compiled = [run for run in answered if not run["refused"]]
    judged = [pair for run in compiled for pair in zip(run["good"], run["taken"], strict=True)]
    masks = [seconds * 1e6 for run in compiled for seconds in run["masks"]]
    compile_ms = [run["compile"] * 1e3 for run in compiled]
    reasons: dict[str, int] = {}
    for run in answered:
        if run["refused"]:
            reason = run["refused"][:60]
            reasons[reason] = reasons.get(reason, 0) + 1
    return {
        "version": version(name),
        "schemas": len(runs),
        "compiled": len(compiled),
        "refused": len(answered) - len(compiled),
        "reasons": dict(sorted(reasons.items(), key=lambda pair: -pair[1])[:12]),
        "too_long": [run["name"] for run in runs if run["lost"] == "too long"],
        "crashed": [run["name"] for run in runs if run["lost"] == "crashed"],
        "compile_ms": {**harness.percentiles(compile_ms, 50, 90, 99, 100)},
        "masks": len(masks),
        "mask_us": {**harness.percentiles(masks, 50, 90, 99, 100)},
        "mask_us_mean": round(sum(masks) / max(len(masks), 1), 1),
        "valid_taken": sum(taken for good, taken in judged if good),
        "valid": sum(good for good, _ in judged),
        "invalid_taken": sum(taken for good, taken in judged if not good),
        "invalid": sum(not good for good, _ in judged),
    }
