"""One mutant: a small wrong change of the real code, with the test that finds it."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Mutant"]


class Mutant(NamedTuple):
    """A small wrong change of one file.

    name  by which it is called
    file  that is changed, below the root
    old   a piece of that file, which is there once
    new   what stands there instead
    test  the node id of the test that finds it
    """

    name: str
    file: str
    old: str
    new: str
    test: str

    @property
    def room(self) -> str:
        """The folder or module of `src/foresay`, or the folder of `csrc`."""
        return "/".join(self.file.removeprefix("src/foresay/").split("/")[: 2 if self.core else 1])

    @property
    def core(self) -> bool:
        """Whether it is C++: the core has to be built again."""
        return self.file.startswith("csrc/")
