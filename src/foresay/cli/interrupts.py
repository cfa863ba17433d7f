"""Ctrl-C while results are printed: the current result is completed, then the command ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

__all__ = ["Interrupts"]


class Interrupts:
    """Inside this context, an interrupt during `held` waits until `held` ends; a second interrupt
    does not wait. Outside the main thread, where no interrupt arrives, it does nothing.

    Mutates: the handler of SIGINT, until the context ends. Raises: KeyboardInterrupt.
    """

    def __init__(self) -> None:
        self._holding = self._came = False
        self._before: object = None

    def __enter__(self) -> Interrupts:
        main = threading.current_thread() is threading.main_thread()
        # A background process ignores interrupts, and must go on doing so.
        if main and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
            self._before = signal.signal(signal.SIGINT, self._interrupt)
        return self

    def __exit__(self, *error: object) -> None:
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)  # type: ignore[arg-type]

    @contextmanager
    def held(self) -> Iterator[None]:
        """The body is not interrupted, except by a second interrupt."""
        self._holding = True
        try:
            yield
        finally:
            self._holding = False
        if self._came:
            self._came = False
            raise KeyboardInterrupt

    def _interrupt(self, number: int, frame: FrameType | None) -> None:
        if self._holding and not self._came:
            self._came = True
        else:
            raise KeyboardInterrupt
