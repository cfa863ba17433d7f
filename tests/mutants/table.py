"""All mutants: small wrong changes of the real code, each with the test that finds it.

`run.py` applies each to a copy of the tree and expects the named test to fail there. They show that
the tests would find such a mistake, also after the tests were made quicker or were moved.

`old` stands in its file exactly once. `new` is a mistake that somebody could make: no line that
cannot be compiled, nothing that fails everywhere.
"""

from __future__ import annotations

from mutants.chat import CHAT
from mutants.core import CORE
from mutants.mutant import Mutant
from mutants.python import PYTHON
from mutants.structured import STRUCTURED

__all__ = ["MUTANTS", "Mutant"]

MUTANTS = CORE + PYTHON + STRUCTURED + CHAT
