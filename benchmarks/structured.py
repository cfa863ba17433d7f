"""Structured answers: libraries beside each other.

    python benchmarks/structured.py --schemas jsonschemabench/maskbench/data [--only libraries]

    libraries  llguidance and, where it is installed, xgrammar: schemas compiled and followed

--schemas is the folder of JSONSchemaBench's files, {"schema", "tests"}.
"""

from __future__ import annotations

from argparse import Namespace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import harness
import structured_libraries
from foresay.models.load import find_model
from foresay.models.weights import DEFAULT_MODEL

PARTS = ("libraries",)
TOKENS = 800  # of a text that is followed


def libraries(options: Namespace) -> dict[str, Any]:
    """Both libraries with the tokenizer of each model."""
    schemas = structured_libraries.read_schemas(options.schemas, options.count, options.seed)
    names = [name for name in structured_libraries.LIBRARIES if find_spec(name) is not None]
    found: dict[str, Any] = {"source": "JSONSchemaBench", "schemas": len(schemas)}
    for model in options.models:
        folder = find_model(model).folder
        found[Path(model).name] = structured_libraries.compare(folder, names, schemas, TOKENS)
    return found


def show(figures: dict[str, Any]) -> None:
    for model, found in figures["libraries"].items():
        if not isinstance(found, dict):
            continue
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


def main() -> None:
    parser = harness.parser(__doc__, parts=PARTS, quick=True)
    parser.add_argument("--schemas", type=Path, required=True, metavar="FOLDER")
    parser.add_argument("--count", type=harness.count, default=150, help="schemas of each part")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--models", nargs="+", default=[DEFAULT_MODEL], help="names or files")
    options = harness.parse(parser)
    if options.quick:
        options.count = min(options.count, 10)
    figures: dict[str, Any] = {"libraries": libraries(options)}
    harness.finish("structured", figures, options, show)


if __name__ == "__main__":
    main()
