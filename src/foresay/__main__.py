"""`python -m foresay` and the command `foresay`."""

from __future__ import annotations

import sys

__all__ = ["main"]


def main() -> None:
    """Run the command line; exits with its status, 2 if its libraries are missing, 130 for Ctrl-C
    also while they are imported, which takes a while."""
    try:
        _main()
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def _main() -> None:
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

    run()


if __name__ == "__main__":
    main()
