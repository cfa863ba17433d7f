"""The verifier that the package shows its users, as the tests run it."""

from __future__ import annotations

import re
import textwrap

from foresay.lossless.schemes import user_scheme


def example() -> str:
    """The source of `verify` in the docstring of `user_scheme`."""
    text = textwrap.dedent(user_scheme.__doc__ or "")
    found = re.search(r"^ *def verify.*", text, re.DOTALL | re.MULTILINE)
    assert found is not None
    return textwrap.dedent(found[0])
