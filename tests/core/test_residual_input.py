"""What does not fit the functions of rejection sampling is refused before anything is written."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from foresay import _core
from foresay.errors import InputError

# The checks come before the kernels; they are held to that on every level of the processor.
every_level = pytest.mark.parametrize("level", _core.cpu_levels())


def arguments() -> dict[str, dict[str, object]]:
    """Two rows for every function."""
    rows, ones = np.array([0, 1], np.int64), np.ones((2, 5), np.float32)
    return {
        "unnormalised_softmax": {
            "scores": ones,
            "rows": rows,
            "temperatures": np.ones(2, np.float32),
            "residual": np.full((2, 5), -7.0),
            "walks": rows,
            "threads": 1,
        },
        "sums": {"probs": ones, "rows": rows, "threads": 1},
        "subtract": {
            "residual": np.full((2, 5), -7.0),
            "walks": rows,
            "totals": np.ones(2),
            "probs": ones,
            "rows": rows,
            "sums": np.ones(2),
            "threads": 1,
        },
        "draw": {"residual": np.ones((2, 5)), "coins": np.full(2, 0.5), "threads": 1},
    }


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        *((name, {"threads": 0}, "^threads is 0; expected 1 to 256$") for name in arguments()),
        *((name, {"threads": 257}, "^threads is 257") for name in arguments()),
        *(
            (
                name,
                {"rows": np.array([0, bad], np.int64)},
                f"^rows has row {bad}, but there are 2 rows$",
            )
            for name in ("unnormalised_softmax", "sums", "subtract")
            for bad in (-1, 2, 2**62, -(2**63))
        ),
        *(
            (
                name,
                {"walks": np.array([bad, 1], np.int64)},
                f"^walks has row {bad}, but there are 2 rows$",
            )
            for name in ("unnormalised_softmax", "subtract")
            for bad in (-1, 2, 2**62, -(2**63))
        ),
        *(
            (name, {"walks": np.array([1, 1], np.int64)}, "^walks has row 1 twice$")
            for name in ("unnormalised_softmax", "subtract")
        ),
        *(
            (name, {"rows": np.array([1], np.int64)}, "^rows has 1 values; expected 2$")
            for name in ("unnormalised_softmax", "subtract")
        ),
        (
            "unnormalised_softmax",
            {"temperatures": np.ones(3, np.float32)},
            "^temperatures has 3 values",
        ),
        *(
            (
                "unnormalised_softmax",
                {"temperatures": np.array([1, bad], np.float32)},
                r"^temperature -?(0.5|nan|inf)",
            )
            for bad in (-0.5, np.nan, np.inf)
        ),
        (
            "unnormalised_softmax",
            {"residual": np.ones((2, 4))},
            "^rows of 5 values do not fit a residual of 4",
        ),
        ("subtract", {"residual": np.ones((2, 6))}, "^rows of 5 values do not fit a residual of 6"),
        ("subtract", {"totals": np.ones(1)}, "^totals has 1 values; expected 2$"),
        ("subtract", {"sums": np.ones(3)}, "^sums has 3 values; expected 2$"),
        *(
            ("subtract", {"sums": np.array([1, bad])}, "of probs is not valid")
            for bad in (0.0, -1.0, np.nan, np.inf)
        ),
        ("draw", {"coins": np.ones(1)}, "^coins has 1 values; expected 2$"),
        *(
            ("draw", {"coins": np.array([0, bad])}, r"^coin -?(0.1|1.0|nan)0* is not valid")
            for bad in (-0.1, 1.0, np.nan)
        ),
        ("draw", {"residual": np.ones((2, 0))}, "^a row has 0 values"),
    ],
)
@every_level
def test_what_does_not_fit_is_refused(
    level: str, name: str, changes: dict[str, object], message: str
) -> None:
    given = arguments()[name]
    function: Callable[..., object] = getattr(_core, name)
    function(**given, level=level)
    given = arguments()[name] | changes
    with pytest.raises(InputError, match=message):
        function(**given, level=level)
    if name != "draw" and "residual" in given and "residual" not in changes:
        assert (np.asarray(given["residual"]) == -7).all(), "written to before all was checked"


@pytest.mark.parametrize("name", ["unnormalised_softmax", "subtract"])
@every_level
def test_the_residual_is_written_where_it_is_or_not_at_all(level: str, name: str) -> None:
    function: Callable[..., object] = getattr(_core, name)
    for wrong in (np.ones((2, 5), np.float32), np.ones((2, 10))[:, ::2], np.ones((5, 2)).T):
        with pytest.raises(TypeError):
            function(**(arguments()[name] | {"residual": wrong}), level=level)
    locked = np.ones((2, 5))
    locked.flags.writeable = False
    with pytest.raises(TypeError):
        function(**(arguments()[name] | {"residual": locked}), level=level)
