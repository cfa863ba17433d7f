"""Wheels from the package index: broken downloads, bad servers, full disks."""

from __future__ import annotations

import errno
import hashlib
import http.server
import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import pytest

from foresay.errors import ModelError
from foresay.models.weights import index
from models.weight_files import visible


class Server(http.server.BaseHTTPRequestHandler):
    """Serves one body, as badly as it is told to."""

    body: ClassVar[bytes] = b""
    ranges: ClassVar[bool] = True
    drops: ClassVar[list[int]] = []
    status: ClassVar[int] = 200
    asked: ClassVar[list[str | None]] = []

    def do_GET(self) -> None:
        wanted = self.headers.get("Range")
        self.asked.append(wanted)
        if self.status != 200:
            self.send_error(self.status)
            return
        begin = int(wanted[len("bytes=") : -1]) if wanted and self.ranges else 0
        if begin >= len(self.body):
            self.send_error(416)
            return
        self.send_response(206 if begin else 200)
        self.send_header("Content-Length", str(len(self.body) - begin))
        if begin:
            self.send_header(
                "Content-Range", f"bytes {begin}-{len(self.body) - 1}/{len(self.body)}"
            )
        self.end_headers()
        end = begin + self.drops.pop(0) if self.drops else len(self.body)
        self.wfile.write(self.body[begin:end])

    def log_message(self, format: str, *args: object) -> None:
        pass


class Served(NamedTuple):
    kind: type[Server]
    folder: Path


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Served]:
    """A server that pip says has the wheel; pip itself cannot fetch anything."""
    body = os.urandom(3_000_000)
    kind = type("Own", (Server,), {"body": body, "asked": [], "drops": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), kind)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}/x-1.0-py3-none-any.whl"
    address = index._Address(url, hashlib.sha256(body).hexdigest())
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(index, "_ask_pip", lambda requirement: address)

    def refuses(requirement: str, folder: Path) -> Path:
        raise ModelError(f"pip could not fetch '{requirement}'")

    monkeypatch.setattr(index, "_let_pip_fetch", refuses)
    yield Served(kind, tmp_path / "downloads")
    server.shutdown()
    server.server_close()
    thread.join()


def fetch(served: Served, limit: int = 10**9, progress: Any = None) -> bytes:
    return index.fetch_wheel("x==1.0", served.folder, limit=limit, progress=progress).read_bytes()


def test_a_broken_download_goes_on_where_it_broke(served: Served) -> None:
    served.kind.drops = [1_000_000, 500_000]
    seen: list[tuple[str, int, int | None]] = []
    assert fetch(served, progress=lambda *s: seen.append(s)) == served.kind.body
    assert served.kind.asked == [None, "bytes=1000000-", "bytes=1500000-"]
    assert seen[0] == ("ask", 0, None)
    assert [s for s in seen if s[0] == "download"][-1] == ("download", 3_000_000, 3_000_000)
    assert {stage for stage, _, _ in seen} <= {"ask", "download", "check"}
    assert visible(served.folder) == ["x-1.0-py3-none-any.whl"]


def test_an_interrupted_download_goes_on_in_the_next_call(served: Served) -> None:
    def interrupts(what: str, done: int, total: int | None) -> None:
        if done > 1_500_000:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch(served, progress=interrupts)
    (part,) = served.folder.glob("*.part")
    size = part.stat().st_size
    assert size > 1_000_000
    assert fetch(served) == served.kind.body
    assert served.kind.asked[-1] == f"bytes={size}-"


def test_a_server_without_ranges_starts_again(served: Served) -> None:
    served.kind.drops, served.kind.ranges = [1_000_000], False
    assert fetch(served) == served.kind.body


@pytest.mark.parametrize("size", [1_000, 3_000_000, 4_000_000])
def test_a_part_of_something_else_is_thrown_away(served: Served, size: int) -> None:
    served.folder.mkdir()
    mark = hashlib.sha256(served.kind.body).hexdigest()[:16]
    (served.folder / f"{mark}-x-1.0-py3-none-any.whl.part").write_bytes(bytes(size))
    assert fetch(served) == served.kind.body


def test_an_address_that_refuses_is_left_to_pip(served: Served) -> None:
    served.kind.status = 403
    with pytest.raises(ModelError, match=r"pip could not fetch 'x==1.0'"):
        fetch(served)
    assert len(served.kind.asked) == 1


def test_an_answer_that_is_too_large_is_not_kept(served: Served) -> None:
    with pytest.raises(ModelError, match="pip could not"):
        fetch(served, limit=2_000_000)
    assert not visible(served.folder)


def test_a_full_disk_keeps_no_part(served: Served, tiny_disk: Path) -> None:
    with pytest.raises(OSError, match="No space left") as caught:
        fetch(Served(served.kind, tiny_disk))
    assert caught.value.errno == errno.ENOSPC
    assert not visible(tiny_disk)
