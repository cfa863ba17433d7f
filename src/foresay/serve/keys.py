"""API keys, and the tenants whose history they share.

A key is kept as its digest only. A request's key is compared with every one of them in constant
time, so that the time of the answer tells nothing about any.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import logging
import re
import stat
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from foresay.errors import InputError

__all__ = ["OPERATOR", "Keys", "read_keys"]

OPERATOR = "operator"
"""The tenant that may see the metrics of all tenants, if there are several."""

_log = logging.getLogger("foresay.serve")
_SHORTEST = 8  # characters: shorter keys are easily found by trying
_NUMBERED = re.compile(r"key-\d+")  # tenants of keys without a name


@dataclass(frozen=True, slots=True)
class Keys:
    """Digests of keys, each with its tenant; without any, all clients are one nameless tenant.

    Raises: InputError for a key that is given twice.
    """

    digests: tuple[tuple[bytes, str], ...] = ()

    def __post_init__(self) -> None:
        seen: dict[bytes, str] = {}
        for digest, tenant in self.digests:
            if digest in seen:
                raise InputError(
                    f"one key is given to '{seen[digest]}' and to '{tenant}'; expected one tenant"
                )
            seen[digest] = tenant

    @classmethod
    def of(cls, keys: Iterable[tuple[str, str | None]]) -> Keys:
        """From plain keys, each with the name of its tenant; None: a tenant of its own.

        Raises: InputError.
        """
        # Numbered: with a name made of the key, readers of the log could search for the key.
        return cls(
            tuple(
                (_digest(_checked(key)), f"key-{number}" if tenant is None else tenant)
                for number, (key, tenant) in enumerate(keys, start=1)
            )
        )

    def __bool__(self) -> bool:
        return bool(self.digests)

    def __add__(self, other: Keys) -> Keys:
        return Keys(self.digests + other.digests)

    @property
    def tenants(self) -> list[str]:
        """The names of all tenants."""
        return list(dict.fromkeys(tenant for _, tenant in self.digests))

    def tenant_of(self, authorization: str | None) -> tuple[bool, str | None]:
        """Whether a header `Authorization` has a valid key, and its tenant: `Bearer KEY`, or
        `Basic` with the key as password, which a browser asks its user for.
        """
        if not self.digests:
            return True, None
        given = _digest(_key_in(authorization or ""))
        found = None
        for digest, tenant in self.digests:  # all of them, for constant time
            if hmac.compare_digest(given, digest):
                found = tenant
        return found is not None, found


def read_keys(path: Path) -> Keys:
    """The keys of a file: lines of a tenant's name and its key, or `sha256:` and the key's digest
    in hexadecimal digits. A tenant may have several. A # begins a comment. If every
    user can read the file, a warning is logged.

    Raises: InputError.
    """
    found: list[tuple[bytes, str]] = []
    try:
        kind = path.stat().st_mode
        if stat.S_ISFIFO(kind) or stat.S_ISSOCK(kind):  # reading would wait for a writer
            raise InputError(f"'{path}' is not a regular file; expected a file with lines of text")
        lines, mode = path.read_text(encoding="utf-8").splitlines(), stat.S_IMODE(kind)
    except UnicodeDecodeError as error:
        raise InputError(f"'{path}' is not UTF-8 at byte {error.start}; expected UTF-8") from error
    except OSError as error:
        raise InputError(f"the file of keys '{path}' cannot be read: {error.strerror}") from error
    if mode & (stat.S_IROTH | stat.S_IWOTH):
        _log.warning(
            "every user of this machine can read or change the file of keys '%s': its mode is "
            "%04o; 0600 is safe",
            path,
            mode,
        )
    for number, line in enumerate(lines, start=1):
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) != 2:
            raise InputError(
                f"line {number} of '{path}' has {len(words)} words; expected a tenant and a key"
            )
        tenant, key = words
        if _NUMBERED.fullmatch(tenant):
            raise InputError(
                f"line {number} of '{path}' has the tenant '{tenant}', which is reserved for "
                "keys without a file; expected another name"
            )
        digest = _digest(key)
        if key.startswith("sha256:"):
            digest = _hex(key.removeprefix("sha256:"), number, path)
        else:
            _checked(key, f"the key in line {number} of '{path}'")
        if digest in (known for known, _ in found):
            raise InputError(f"line {number} of '{path}' repeats the key of an earlier line")
        found.append((digest, tenant))
    if not found:
        raise InputError(f"'{path}' holds no key; expected lines of a tenant and a key")
    return Keys(tuple(found))


def _hex(digits: str, number: int, path: Path) -> bytes:
    try:
        digest = bytes.fromhex(digits)
    except ValueError:
        digest = b""
    if len(digest) != 32:
        raise InputError(
            f"line {number} of '{path}' has a wrong digest; expected 64 hexadecimal digits"
        )
    return digest


def _checked(key: str, name: str = "an API key") -> str:
    if len(key) < _SHORTEST or not key.isascii() or not key.isprintable() or " " in key:
        raise InputError(
            f"{name} is not valid; expected {_SHORTEST} or more ASCII characters without spaces"
        )
    return key


def _digest(key: str) -> bytes:
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def _key_in(header: str) -> str:
    scheme, _, value = header.strip().partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            pair = base64.b64decode(value.strip(), validate=True).decode("latin-1")
        except (binascii.Error, ValueError):
            return ""
        return pair.partition(":")[2]
    return ""
