"""Structured answers: libraries beside each other, speed, what masks cost, validity.

    python benchmarks/structured.py --schemas jsonschemabench/maskbench/data [--only speed,share]

    libraries  llguidance and, where it is installed, xgrammar: schemas compiled and followed
    speed      extraction to a schema of 8 fields: constrained decoding with the default drafter,
               and where nothing forced is drafted, against the same without speculation
    share      what masks and states take of a step of 16 requests
    validity   answers to schemas: all that end are valid, and the same with and without drafts

--schemas is the folder of JSONSchemaBench's files, {"schema", "tests"}; `speed` and `share` need
none, their documents are made by the script.
"""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
import structured_libraries
from foresay import LLM
from foresay.models.load import find_model
from foresay.models.weights import DEFAULT_MODEL
from structured_documents import documents

PARTS = ("libraries", "speed", "share", "validity")
TOKENS = 800  # of a text that is followed
BARS = (1.6, 2.5)  # of the default model, and of those that are given besides


def libraries(options: Namespace) -> dict[str, Any]:
    """Both libraries with the tokenizer of each model."""
    schemas = structured_libraries.read_schemas(options.schemas, options.count, options.seed)
    names = [name for name in structured_libraries.LIBRARIES if find_spec(name) is not None]
    found: dict[str, Any] = {"source": "JSONSchemaBench", "schemas": len(schemas)}
    for model in options.models:
        folder = find_model(model).folder
        found[Path(model).name] = structured_libraries.compare(folder, names, schemas, TOKENS)
    return found


def answers(options: Namespace) -> dict[str, Any]:
    """The parts that need whole models, one model after the other."""
    import structured_answers  # torch, and a validator

    given = documents(options.documents, options.seed)
    found: dict[str, Any] = {part: {} for part in PARTS[1:] if part in options.chosen}
    for model in options.models:
        name, bound = Path(model).name, BARS[model != DEFAULT_MODEL]
        llm = LLM(model)
        if "speed" in found:
            found["speed"][name] = structured_answers.speed(llm, given, options.tokens, bound)
        if "share" in found:
            before = documents(2 * options.documents, options.seed)[options.documents :]
            found["share"][name] = structured_answers.share(llm, before, given, options.tokens)
        if "validity" in found:
            schemas = structured_libraries.read_schemas(
                options.schemas, 3 * options.valid, options.seed
            )
            found["validity"][name] = structured_answers.validity(
                llm, schemas, options.tokens, options.valid
            )
    return found


def show(figures: dict[str, Any]) -> None:
    for model, found in figures.get("libraries", {}).items():
        if isinstance(found, dict):
            print_libraries(model, found)
    for part in ("speed", "share"):
        for model, found in figures.get(part, {}).items():
            print(f"{part}, {model}")
            harness.print_bars(found["bars"])
    for model, found in figures.get("validity", {}).items():
        for temperature, one in found["temperatures"].items():
            print(
                f"validity, {model}, temperature {temperature}: {found['schemas']} schemas, "
                f"{one['finished']} finished, {len(one['invalid'])} invalid, "
                f"{one['different_with_speculation']} differ with speculation"
            )


def print_libraries(model: str, found: dict[str, Any]) -> None:
    head = [model, "compiled", "refused", "too long", "compile ms", "mask us", "wrong"]
    rows = []
    for name, one in found.items():
        compile_ms, mask_us = (
            " ".join(f"{one[key].get(p, 0):.4g}" for p in ("p50", "p99", "p100"))
            for key in ("compile_ms", "mask_us")
        )
        lost = len(one["too_long"]) + len(one["crashed"])
        wrong = f"{one['valid'] - one['valid_taken']} + {one['invalid_taken']}"
        counts = (one["compiled"], one["refused"], lost)
        rows.append([name, *map(str, counts), compile_ms, mask_us, wrong])
    harness.print_table(head, rows)


def failed(figures: dict[str, Any]) -> str:
    """A sentence for a text that differs, an answer that is invalid, a bar that is missed."""
    said = []
    for model, found in figures.get("speed", {}).items():
        if not found["identical"]:
            said.append(f"texts of {model} differ with speculation")
    for model, found in figures.get("validity", {}).items():
        for one in found["temperatures"].values():
            if one["different_with_speculation"] or one["invalid"] or one["failed"]:
                said.append(f"{model} has answers that are invalid, differ or failed")
    bars = [
        bar
        for part in ("speed", "share")
        for found in figures.get(part, {}).values()
        for bar in found["bars"]
    ]
    return "; ".join([*said, *filter(None, [harness.not_met(bars)])])


def main() -> None:
    parser = harness.parser(__doc__, parts=PARTS, quick=True)
    parser.add_argument("--schemas", type=Path, metavar="FOLDER")
    parser.add_argument("--count", type=harness.count, default=150, help="schemas of libraries")
    parser.add_argument("--valid", type=harness.count, default=500, help="schemas of validity")
    parser.add_argument("--documents", type=harness.count, default=16, help="of speed and share")
    parser.add_argument("--tokens", type=harness.count, default=256, help="of an answer, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", default=[DEFAULT_MODEL], help="names or files")
    options = harness.parse(parser)
    if options.schemas is None and {"libraries", "validity"} & set(options.chosen):
        parser.error("libraries and validity need --schemas; expected JSONSchemaBench's folder")
    if options.quick:
        options.count, options.valid = min(options.count, 10), min(options.valid, 10)
        options.documents, options.tokens = min(options.documents, 2), min(options.tokens, 24)
    figures: dict[str, Any] = {}
    if "libraries" in options.chosen:
        figures["libraries"] = libraries(options)
    if set(options.chosen) - {"libraries"}:
        figures |= answers(options)
    harness.finish("structured", figures, options, show, failed(figures))


if __name__ == "__main__":
    main()
