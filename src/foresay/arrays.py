"""Checks of input arrays: which tokens, indices and offsets are accepted, and the error messages.

Lists of ints become int32 arrays. An array of another dtype is refused by name: a float is never
truncated and an int64 never wrapped. Every check is vectorised. This module knows only numpy.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from os import PathLike
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from foresay.errors import InputError, TokenTypeError

Int32s: TypeAlias = NDArray[np.int32]  # 1-D, C-contiguous
Floats: TypeAlias = NDArray[np.float32]
IntsLike: TypeAlias = Int32s | Sequence[int]
FloatsLike: TypeAlias = Floats | Sequence[float]
A = TypeVar("A", bound=NDArray[Any])
T = TypeVar("T")

MAX_TOKEN = 2**31 - 2
"""The largest token id; the core keeps the largest int32 for itself."""


def as_tokens(values: IntsLike, name: str = "tokens") -> Int32s:
    """`values` as token ids, int32[n]: an int32 array as it is, a list of ints converted.

    Valid until: a contiguous array is returned without a copy. Raises: TokenTypeError for another
    dtype or shape, InputError for a token outside 0 … MAX_TOKEN.
    """
    if isinstance(values, (str, bytes, bytearray)):
        kind = type(values).__name__
        raise TokenTypeError(f"{name} is a {kind}; expected token ids; only LLM takes text")
    array = as_ints(values, name, "a token id", 0, MAX_TOKEN)
    if _outside(array, 0, MAX_TOKEN):
        at = int(np.argmax((array < 0) | (array > MAX_TOKEN)))
        raise InputError(f"{name}[{at}] is {array[at]}; expected a token id from 0 to {MAX_TOKEN}")
    return array


def as_ints(
    values: IntsLike, name: str, what: str = "an int", low: int = -(2**31), high: int = 2**31 - 1
) -> Int32s:
    """`values` as int32[n]; the last three arguments only word the error for a too large int.

    Valid until: a contiguous array is returned without a copy. Raises: TokenTypeError, InputError.
    """
    if isinstance(values, (list, tuple, range)):
        if not len(values):
            return np.empty(0, np.int32)
        try:
            wide = np.asarray(values)
        except ValueError:  # rows of different lengths
            wide = np.empty(0)
        fits = wide.dtype == np.int64 and wide.ndim == 1
        if fits and not _outside(wide, -(2**31), 2**31 - 1) and bool not in map(type, values):
            return wide.astype(np.int32)
        for at, value in enumerate(values):  # slow, to name the first entry that does not fit
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise TokenTypeError(
                    f"{name}[{at}] is {value!r}; expected an int; nothing else is converted"
                )
            if not -(2**31) <= value < 2**31:
                raise InputError(f"{name}[{at}] is {value}; expected {what} from {low} to {high}")
        return np.array(values, np.int32)
    array = np.asarray(values)
    if array.dtype != np.int32:
        raise TokenTypeError(
            f"{name} has dtype {array.dtype}; expected int32; nothing else is converted"
        )
    return np.ascontiguousarray(_flat(array, name))


def as_floats(values: FloatsLike, name: str) -> Floats:
    """`values` as float32[n]: a float32 array as it is, a list of numbers converted.

    Valid until: a contiguous array is returned without a copy. Raises: TokenTypeError, InputError
    for an int that no float can hold.
    """
    if isinstance(values, (list, tuple)):
        for at, value in enumerate(values):
            number = isinstance(value, (int, float, np.integer, np.floating))
            if not number or isinstance(value, bool):
                raise TokenTypeError(
                    f"{name}[{at}] is {value!r}; expected a number; nothing else is converted"
                )
        try:
            with np.errstate(over="ignore"):  # becomes infinity, which the range check refuses
                return np.array(values, np.float32)
        except OverflowError:
            raise InputError(
                f"{name} has an int that is too large; expected float32 numbers"
            ) from None
    array = np.asarray(values)
    if array.dtype != np.float32:
        raise TokenTypeError(f"{name} has dtype {array.dtype}; expected float32")
    return np.ascontiguousarray(_flat(array, name))


def as_offsets(values: IntsLike, size: int, name: str, first: Int32s | None = None) -> Int32s:
    """Row bounds int32[B + 1], rising from 0 to `size`; as many as the `first` of a batch.

    Raises: TokenTypeError, InputError.
    """
    offsets = as_ints(values, name)
    if not len(offsets):
        raise InputError(f"{name} is empty; expected one entry more than there are items")
    if offsets[0] != 0 or offsets[-1] != size:
        raise InputError(f"{name} runs from {offsets[0]} to {offsets[-1]}; expected 0 to {size}")
    falls = sizes_of(offsets) < 0
    if falls.any():
        at = int(np.argmax(falls))
        raise InputError(
            f"{name}[{at + 1}] is {offsets[at + 1]} after {offsets[at]}; expected {name} that "
            "never fall"
        )
    if first is not None and len(first) != len(offsets):
        raise InputError(
            f"there are {len(first)} offsets and {len(offsets)} {name}; expected equally many"
        )
    return offsets


def check_table(table: object, name: str, dtype: str, rows: int | str, columns: str) -> None:
    """Refuse what is not an array `dtype`[rows, columns]; `rows` as a str allows any number.

    Raises: TokenTypeError.
    """
    found = f"a {type(table).__name__}"
    if isinstance(table, np.ndarray):
        fits = isinstance(rows, str) or (table.ndim == 2 and len(table) == rows)
        if table.dtype == dtype and table.ndim == 2 and fits:
            return
        found = f"{table.dtype}{list(table.shape)}"
    raise TokenTypeError(f"{name} is {found}; expected an array {dtype}[{rows}, {columns}]")


def check_path(path: Int32s, path_offsets: Int32s, offsets: Int32s) -> None:
    """Refuse paths that do not go down a tree, or without one more token of the target.

    Raises: InputError.
    """
    lengths, committed = sizes_of(path_offsets), sizes_of(offsets)
    bad = committed <= lengths
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(
            f"verdict {at} committed {committed[at]} tokens with a path of {lengths[at]} nodes; "
            "expected at least one token more than nodes"
        )
    if not path.size:
        return
    first = np.zeros(len(path), bool)
    first[path_offsets[:-1][lengths > 0]] = True
    bad = np.where(first, path < 0, path <= np.roll(path, 1))
    if bad.any():
        at = int(np.argmax(bad))
        raise InputError(
            f"path[{at}] is {path[at]}; expected rising node indices from 0, as a path runs from "
            "the root to a leaf"
        )


def item_index(index: int, length: int, what: str) -> int:
    """`index` counted from the start. Raises: IndexError, as every sequence does."""
    at = index + length if index < 0 else index
    if not 0 <= at < length:
        raise IndexError(f"index {index} in a batch of {length} {what}")
    return at


def joined(arrays: Sequence[Int32s]) -> Int32s:
    """`arrays` one after the other."""
    return np.concatenate(arrays) if arrays else np.empty(0, np.int32)


def joined_or_none(arrays: Sequence[A | None], name: str) -> A | None:
    """`arrays` one after the other, None if all are None. Raises: InputError on a mixture."""
    present = [array for array in arrays if array is not None]
    if not present:
        return None
    if len(present) != len(arrays):
        raise InputError(
            f"{len(present)} of {len(arrays)} items have {name}; expected it in all or none"
        )
    whole: A = np.concatenate(present)  # type: ignore[assignment]
    return whole


def offsets_of(lengths: Sequence[int]) -> Int32s:
    """Row bounds of rows of these lengths."""
    # numpy's `cumsum` of a short list takes five times as long, and every step asks for a few.
    return np.fromiter(accumulate(lengths, initial=0), np.int32, len(lengths) + 1)


def sizes_of(offsets: Int32s) -> Int32s:
    """How long the rows between these bounds are: numpy's `diff` takes ten times as long."""
    sizes: Int32s = offsets[1:] - offsets[:-1]
    return sizes


def same(a: object, b: object, names: Sequence[str]) -> bool:
    """Whether two values hold equal arrays, or other equal values, under all `names`; None equals
    an empty one."""
    for name in names:
        x, y = getattr(a, name), getattr(b, name)
        x_empty, y_empty = x is None or not len(x), y is None or not len(y)
        equal = np.array_equal(x, y) if isinstance(x, np.ndarray) else x == y
        if x_empty != y_empty or not (x_empty or equal):
            return False
    return True


def as_items(values: Iterable[T], name: str, what: str) -> list[T]:
    """`values` as a list; `what` says what is expected. Raises: InputError for anything else."""
    if type(values) is list:
        return values.copy()  # asked in every step: the question below takes longer
    if not isinstance(values, (str, bytes, bytearray, Mapping)):
        try:
            return list(values)
        except TypeError:
            pass
    raise InputError(f"{name} are {values!r}; expected {what}")


def all_of(kind: type[T], values: Iterable[T], name: str) -> list[T]:
    """`values` as a list with items of one type. Raises: InputError."""
    listed = as_items(values, name, f"a list of {kind.__name__}s")
    for at, value in enumerate(listed):
        if not isinstance(value, kind):
            raise InputError(f"{name}[{at}] is {value!r}; expected a {kind.__name__}")
    return listed


def user_path(value: object, what: str) -> Path:
    """As `as_path`, with ~ as the user's folder.

    Raises: InputError.
    """
    text = as_path(value, what)
    try:
        return Path(text).expanduser()
    except RuntimeError as error:
        raise InputError(f"{what} is '{text}'; there is no such user") from error


def as_path(value: object, name: str) -> str:
    """A path as a str. Raises: InputError for anything else."""
    path = value if isinstance(value, str) else None
    if isinstance(value, PathLike):
        path = os.fspath(value)
    if not isinstance(path, str) or not path or "\0" in path:
        raise InputError(f"{name} is {value!r}; expected a path (str or Path)")
    return path


def check_flag(value: object, name: str) -> None:
    """Refuse what is neither True nor False. Raises: InputError."""
    if not isinstance(value, (bool, np.bool_)):
        raise InputError(f"{name} is {value!r}; expected True or False")


def check_positive(value: object, name: str) -> None:
    """Refuse what is not an int from 1. Raises: InputError."""
    check_whole(value, name, 1)


def check_whole(value: object, name: str, low: int, high: int | None = None) -> None:
    """Refuse what is not an int in this range. Raises: InputError."""
    if type(value) is not int or value < low or (high is not None and value > high):
        most = "" if high is None else f" to {high}"
        raise InputError(f"{name} is {value!r}; expected a whole number from {low}{most}")


def check_callable(value: object, name: str) -> None:
    """Refuse what is neither None nor a callable. Raises: InputError."""
    if value is not None and not callable(value):
        raise InputError(f"{name} is {value!r}; expected None or a callable")


def check_hash(value: object, name: str) -> None:
    """Refuse what is neither None nor the 32 bytes of a SHA-256. Raises: InputError."""
    if value is not None and not (isinstance(value, bytes) and len(value) == 32):
        raise InputError(f"{name} is {value!r}; expected None or the 32 bytes of a SHA-256")


def short(array: NDArray[Any]) -> str:
    """At most eight entries, for a repr."""
    head = ", ".join(str(x) for x in array[:8].tolist())
    return f"[{head}, … {len(array)} in all]" if len(array) > 8 else f"[{head}]"


def _flat(array: NDArray[Any], name: str) -> NDArray[Any]:
    if array.ndim != 1:
        raise TokenTypeError(f"{name} has shape {list(array.shape)}; expected one dimension")
    return array


def _outside(array: NDArray[Any], low: int, high: int) -> bool:
    return bool(array.size and (array.min() < low or array.max() > high))
