"""`make mutants`: applies each mutant of the table to a copy of the tree, and runs the test that
must fail there.

The copies are in `build/mutants`, and stay for the next run: one for Python, and one for C++, whose
core is built again for each mutant, without optimisation across files. First all the tests are
run as they are: what fails without a mutant finds nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import Literal, NamedTuple

from mutants.table import MUTANTS, Mutant

ROOT = Path(__file__).parents[2]
_SECONDS = 300  # that a test may take: a mutant may never end
Verdict = Literal["found", "survived", "broken"]


class Result(NamedTuple):
    """What became of a mutant, and in how many seconds; `said`: the test's last lines."""

    mutant: Mutant
    verdict: Verdict
    seconds: float
    said: str


class Tree:
    """A copy of the repository, whose core is built elsewhere."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def update(self) -> None:
        """Make it a copy of the files as they are now; those that are the same keep their times."""
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT,
            capture_output=True,
            check=True,
        )
        names = {name for name in listed.stdout.decode().split("\0") if (ROOT / name).is_file()}
        for path in [*self.root.rglob("*")]:
            known = path.relative_to(self.root).as_posix() in names
            if path.is_file() and not known and path.suffix != ".so":
                path.unlink()
        for name in names:
            source, copy = ROOT / name, self.root / name
            if not copy.exists() or copy.read_bytes() != source.read_bytes():
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source, copy)

    @contextmanager
    def with_mutant(self, mutant: Mutant) -> Iterator[None]:
        """While the body runs, the mutant is there."""
        path = self.root / mutant.file
        right = path.read_text(encoding="utf-8")
        assert right.count(mutant.old) == 1, f"{mutant.file} has the old text not exactly once"
        try:
            _write(path, right.replace(mutant.old, mutant.new))
            yield
        finally:
            _write(path, right)

    def take_core(self, build: Path) -> None:
        """Use the core that was built there."""
        (core,) = build.glob("_core*.so")
        # A new file: a process that has mapped the old one keeps it.
        part = self.root / "src" / "foresay" / "_core.part"
        shutil.copyfile(core, part)
        part.replace(part.with_name(core.name))

    def test(self, *tests: str, options: Sequence[str] = ()) -> tuple[int, str]:
        """The exit status of pytest, and the end of what it said. -S: the installed foresay is not
        found, which is another tree's."""
        packages = [path for path in sys.path if path.endswith("-packages")]
        env = os.environ | {"PYTHONPATH": os.pathsep.join([str(self.root / "src"), *packages])}
        command = [sys.executable, "-S", "-m", "pytest", "-p", "no:cacheprovider", "--tb=line"]
        try:
            done = subprocess.run(
                [*command, *options, *tests],
                cwd=self.root,
                env=env,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=_SECONDS * len(tests),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return -1, f"not done after {_SECONDS} s"
        return done.returncode, "\n".join(done.stdout.strip().splitlines()[-12:])


def verdict_of(status: int) -> Verdict:
    """What pytest's exit status says of a mutant: only a test that ran and failed finds it."""
    return "survived" if status == 0 else "found" if status == 1 else "broken"


def build(tree: Tree, folder: Path) -> tuple[int, str]:
    """Build the tree's core in `folder`: the exit status, and the end of what was said."""
    beside = Path(sys.executable).parent
    env = os.environ | {"PATH": f"{beside}{os.pathsep}{os.environ['PATH']}"}
    commands = [["ninja", "-C", str(folder), "_core"]]
    if not (folder / "build.ninja").exists():
        found = [sys.executable, "-m", "nanobind", "--cmake_dir"]
        nanobind = subprocess.run(found, capture_output=True, text=True, check=True).stdout.strip()
        options = {
            "CMAKE_BUILD_TYPE": "RelWithDebInfo",  # which has no optimisation across files
            "CMAKE_CXX_FLAGS_RELWITHDEBINFO": "-O1 -DNDEBUG",
            "Python_EXECUTABLE": sys.executable,
            "nanobind_DIR": nanobind,
        }
        given = [f"-D{name}={value}" for name, value in options.items()]
        where = ["-S", str(tree.root), "-B", str(folder)]
        commands.insert(0, ["cmake", "-G", "Ninja", *where, *given])
    for command in commands:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        if done.returncode:
            return done.returncode, (done.stdout + done.stderr)[-2000:]
    return 0, ""


def judge(tree: Tree, mutant: Mutant, core: Path) -> Result:
    """Apply one mutant, and run its test."""
    begin = perf_counter()
    with tree.with_mutant(mutant):
        verdict: Verdict = "broken"
        status, said = build(tree, core) if mutant.core else (0, "")
        if status == 0:
            if mutant.core:
                tree.take_core(core)
            status, said = tree.test(mutant.test, options=["-x"])
            verdict = verdict_of(status)
    return Result(mutant, verdict, perf_counter() - begin, said)


def run(mutants: Sequence[Mutant], folder: Path) -> list[Result]:
    """All of these, those of Python beside those of C++; a line for each on stderr."""
    trees = {core: Tree(folder / ("core-tree" if core else "tree")) for core in (False, True)}
    core = folder / "core"
    for tree in trees.values():
        tree.update()
    _say("building the core")
    status, said = build(trees[True], core)
    if status:
        sys.exit(f"the core cannot be built:\n{said}")
    for tree in trees.values():
        tree.take_core(core)
    tests = list(dict.fromkeys(mutant.test for mutant in mutants))
    _say(f"running {len(tests)} tests without a mutant")
    status, said = trees[False].test(*tests)
    if status:
        sys.exit(f"without a mutant the tests do not pass:\n{said}")

    def lane(of_core: bool) -> list[Result]:
        found = []
        for mutant in mutants:
            if mutant.core is of_core:
                found.append(judge(trees[of_core], mutant, core))
                _say(f"{found[-1].verdict:8} {found[-1].seconds:5.1f} s  {mutant.name}")
        return found

    with ThreadPoolExecutor(2) as pool:
        found = {result.mutant: result for each in pool.map(lane, trees) for result in each}
    return [found[mutant] for mutant in mutants]


def main() -> None:
    """The command line. Exits with 1 unless every mutant was found."""
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="those with it in the name")
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    given = parser.parse_args()
    mutants = [m for m in MUTANTS if not given.only or any(part in m.name for part in given.only)]
    if not mutants:
        parser.error(f"no mutant has {' or '.join(given.only)} in its name")
    begin = perf_counter()
    results = run(mutants, ROOT / "build" / "mutants")
    seconds = perf_counter() - begin
    counted = sum(result.verdict == "found" for result in results)
    if given.json:
        lines = [
            r.mutant._asdict() | {"room": r.mutant.room, "verdict": r.verdict, "seconds": r.seconds}
            for r in results
        ]
        print(json.dumps({"found": counted, "seconds": seconds, "mutants": lines}))
    else:
        for result in results:
            mutant = result.mutant
            print(f"{result.verdict:9} {mutant.room:16} {mutant.name}\n{'':26} {mutant.test}")
            if result.verdict != "found":
                print(result.said)
        print(f"\n{counted} of {len(results)} mutants found, in {seconds:.0f} s")
    sys.exit(counted < len(results))


def _write(path: Path, text: str) -> None:
    """Write a source, and forget what Python compiled of it: its time and size may be the same."""
    path.write_text(text, encoding="utf-8")
    for old in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        old.unlink()


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
