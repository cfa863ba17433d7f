"""`python -m foresay` and the command `foresay`."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType

__all__ = ["main"]


def main() -> None:
    """Run the command line; exits with its status, 2 if its libraries are missing, 130 for Ctrl-C,
    also while they are imported, which takes a while."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by who started us: nobody wants to read it
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    usual = signal.getsignal(signal.SIGINT)
    if usual is signal.default_int_handler:  # a background process ignores interrupts
        _handle(_end)
    try:
        run = _imported()
        if usual is signal.default_int_handler:
            _handle(usual)
        run()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _handle(handler: Callable[[int, FrameType | None], object]) -> None:
    with suppress(ValueError):  # outside the main thread, where no interrupt arrives
        signal.signal(signal.SIGINT, handler)


def _end(number: int, frame: FrameType | None) -> None:
    """End at once: there is nothing to clean up yet, and an exception in the middle of an import
    may become another one, or be lost."""
    os.write(2, b"foresay: interrupted\n")
    os._exit(130)


def _imported() -> Callable[[], None]:
    """The command line."""
    try:
        import rich  # noqa: F401
        import typer  # noqa: F401
    except ModuleNotFoundError as error:
        print(
            f"foresay: the command line needs {error.name}; install it with: "
            "pip install '.[cli]' in foresay's checkout",
            file=sys.stderr,
        )
        raise SystemExit(2) from None
    from foresay.cli import run

    return run


if __name__ == "__main__":
    main()
