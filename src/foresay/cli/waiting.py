"""Progress of long work: a bar on a terminal, otherwise lines, events with --json.

All of it goes to stderr. Long work reports its stages (`foresay.models.progress`); here each stage
is named when it begins, and again every few seconds while it lasts.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from time import monotonic
from types import TracebackType
from typing import Any, TypeAlias

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from foresay.models.progress import STAGES

__all__ = ["Bar", "Lines", "Say", "Waiting", "waiting"]

EVERY = 5.0  # seconds: half of what the docs say, since a busy machine may be late

_OF_BYTES = ("download", "check", "convert", "read")

Say: TypeAlias = Callable[[str, dict[str, Any]], None]
"""Called with a message, and the same as values: `event` and its fields."""


class Lines:
    """A line for every stage when it begins, and again every few seconds while it lasts, from a
    thread that ends with the context.

    Raises: KeyboardInterrupt from a report after `end`; errors of a closed stderr are ignored. Any
    thread may report.
    """

    def __init__(self, say: Say, every: float = EVERY) -> None:
        self._say, self._every = say, every
        self._lock, self._over = threading.Lock(), threading.Event()
        self._ended = False
        self._began = self._stage_began = self._said = monotonic()
        self._now: tuple[str, int, int | None] = ("", 0, None)
        self._thread = threading.Thread(target=self._repeat, name="foresay-waiting", daemon=True)

    def __enter__(self) -> Lines:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        stage = self._now[0]
        if kind is KeyboardInterrupt and stage:
            self.tell("interrupted", f"interrupted while {_sentence(*self._now)}", stage=stage)

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if self._ended:
            raise KeyboardInterrupt
        with self._lock:
            begins = stage != self._now[0]
            self._now = (stage, done, total)
            if begins:
                self._stage_began = monotonic()
                self._tell_stage("")

    def tell(self, event: str, sentence: str, **facts: Any) -> None:
        """Report an event that is not a stage."""
        with self._lock:
            self._tell(sentence, {"event": event, **facts})

    def aside(self) -> AbstractContextManager[None]:
        """A context in which results are printed."""
        return nullcontext()

    def end(self) -> None:
        """Make the next report end the work, in any thread."""
        self._ended = True

    def _repeat(self) -> None:
        pause = self._every
        while not self._over.wait(pause):
            with self._lock:
                pause = self._said + self._every - monotonic()
                if pause <= 0:
                    pause = self._every
                    self._tell_stage(f" ({monotonic() - self._stage_began:.0f} s so far)")

    def _tell_stage(self, more: str) -> None:
        stage, done, total = self._now
        self._tell(
            _sentence(stage, done, total) + more, {"event": stage, "done": done, "total": total}
        )

    def _tell(self, sentence: str, facts: dict[str, Any]) -> None:
        self._said = monotonic()
        seconds = round(self._said - self._began, 3)
        with suppress(OSError, ValueError):  # stderr is closed; the work continues
            self._say(sentence, {**facts, "seconds": seconds})


class Bar:
    """The same on a terminal: the current stage beside a bar that vanishes at the end."""

    def __init__(self) -> None:
        columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
        # Results that are printed meanwhile go to stdout, not to stderr.
        self._bar = Progress(
            *columns, console=Console(stderr=True), transient=True, redirect_stdout=False
        )
        self._stage = ""

    def __enter__(self) -> Bar:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self._bar.stop()
        if kind is KeyboardInterrupt and self._stage:
            doing = STAGES.get(self._stage, self._stage)
            print(f"foresay: interrupted while {doing}", file=sys.stderr)

    def __call__(self, stage: str, done: int, total: int | None) -> None:
        if stage != self._stage:
            for task in self._bar.task_ids:
                self._bar.remove_task(task)
            self._stage = stage
            self._bar.add_task(_sentence(stage, done, total), total=total)
            self._bar.refresh()  # so that a short stage is seen, too
        self._bar.update(
            self._bar.task_ids[0],
            description=_sentence(stage, done, total),
            completed=done,
            total=total,
        )

    def tell(self, event: str, sentence: str, **facts: Any) -> None:
        """Nothing: on a terminal the bar and the results show it."""

    @contextmanager
    def aside(self) -> Iterator[None]:
        """A context in which results are printed; the bar is hidden meanwhile."""
        self._bar.stop()
        yield
        sys.stdout.flush()
        self._bar.start()


Waiting: TypeAlias = Lines | Bar


def waiting(as_json: bool, *, every: float = EVERY) -> Waiting:
    """A bar if stderr is a terminal; otherwise lines, as JSON objects if wanted."""
    if sys.stderr is not None and sys.stderr.isatty():
        return Bar()
    return Lines(_as_json if as_json else _as_text, every)


def _as_text(sentence: str, facts: dict[str, Any]) -> None:
    if sys.stderr is not None:
        print(f"foresay [{facts['seconds']:.1f} s]: {sentence}", file=sys.stderr, flush=True)


def _as_json(sentence: str, facts: dict[str, Any]) -> None:
    if sys.stderr is not None:
        print(json.dumps({**facts, "message": sentence}), file=sys.stderr, flush=True)


def _sentence(stage: str, done: int, total: int | None) -> str:
    doing = STAGES.get(stage, stage)
    if stage in _OF_BYTES and (done or total):
        of = "" if total is None else f" of {total / 1e6:.0f}"
        return f"{doing}: {done / 1e6:.0f}{of} MB"
    if stage == "train" and total:
        return f"{doing}: {done} of {total} updates"
    if stage == "write" and total:
        return f"{doing}: {done} of {total}"
    if stage == "answer" and done and total:
        return f"{doing}: {done} tokens, at most {total - done} to come"
    return doing
