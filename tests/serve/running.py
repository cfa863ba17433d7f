"""A real server on this machine, in a thread of the test's process, with a tiny model."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from foresay.engine.llm import LLM
from foresay.serve.address import Address
from foresay.serve.server import Server
from foresay.serve.start import ServeSettings, tenant_drafter
from tiny import one_thread

MEMORY = 1 << 25


def tiny_llm(folder: Path, tenants: int = 1, **options: Any) -> tuple[LLM, Any]:
    """A model with the server's own drafter, and that drafter."""
    drafter = tenant_drafter(tenants, 1 << 20)
    given: dict[str, Any] = {"memory": MEMORY, "policy": "fixed", "with_sources": True, **options}
    return LLM(folder, drafter, dtype="float32", **given), drafter


@dataclass(frozen=True)
class Running:
    """A server that runs."""

    url: str
    server: Server
    llm: LLM
    http: httpx.Client

    def post(self, path: str, body: Any, **headers: str) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        every = {"content-type": "application/json", **headers}
        return self.http.post(path, content=content, headers=every)

    def lets_in(self, key: str) -> int:
        """The status of a request with this key."""
        return self.http.get("/v1/models", headers=bearer(key), timeout=5).status_code

    def samples(self) -> list[Sample]:
        """All that /metrics tells."""
        families = text_string_to_metric_families(self.http.get("/metrics", timeout=3).text)
        return [sample for family in families for sample in family.samples]

    def number(self, name: str, **labels: str) -> float:
        """The sum of what it tells under this name, with these labels at least."""
        return sum(numbers(self.samples(), name, **labels))

    def good(self, path: str, **body: Any) -> Any:
        response = self.post(path, body)
        assert response.status_code == 200, response.text
        return response.json()

    def refused(self, path: str, status: int, **body: Any) -> dict[str, Any]:
        response = self.post(path, body)
        assert response.status_code == status, (response.status_code, response.text)
        error: dict[str, Any] = response.json()["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    def events(self, path: str, **body: Any) -> list[Any]:
        """The events of a stream, which must end as streams do."""
        with self.opened(path, **body) as response:
            assert response.headers["content-type"].startswith("text/event-stream")
            lines = [line for line in response.iter_lines() if line.startswith("data: ")]
        assert lines[-1] == "data: [DONE]"
        return [json.loads(line[6:]) for line in lines[:-1]]

    @contextmanager
    def opened(self, path: str = "/v1/completions", **body: Any) -> Iterator[httpx.Response]:
        """A stream that has begun, and ends with the body of the `with`."""
        content = json.dumps({**body, "stream": True}).encode()
        headers = {"content-type": "application/json"}
        with self.http.stream("POST", path, content=content, headers=headers) as response:
            assert response.status_code == 200, response.read()
            yield response

    def connected(self, receive: int | None = None) -> socket.socket:
        """A client of bare TCP."""
        client = socket.socket()
        if receive is not None:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive)
        client.settimeout(20)
        client.connect(("127.0.0.1", int(self.url.rpartition(":")[2])))
        return client

    def idle(self, seconds: float = 10.0) -> None:
        """Wait until nothing is under way, and nothing is held for it."""
        wait_for(lambda: self.server._routes.driver.under_way == 0, seconds)
        self.llm.engine.check_integrity()
        assert not self.llm.engine.busy


def numbers(samples: list[Sample], name: str, **labels: str) -> list[float]:
    """Those of this name, with these labels at least."""
    return [s.value for s in samples if s.name == name and labels.items() <= s.labels.items()]


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def raw_request(
    server: Running,
    body: dict[str, Any],
    receive: int | None = None,
    least: int = 0,
    path: str = "/v1/completions",
) -> socket.socket:
    """A client of bare TCP that has asked, but for so many bytes at least, and not read."""
    client = server.connected(receive)
    content = json.dumps(body).encode()
    client.sendall(
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n".encode()
        + f"Content-Length: {len(content)}\r\n\r\n".encode()
        + content[: len(content) - least]
    )
    return client


def wait_for(done: Callable[[], bool], seconds: float = 10.0) -> None:
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


@contextmanager
def running(
    llm: LLM, drafter: Any, key: str | None = None, name: str = "tiny", **settings: Any
) -> Iterator[Running]:
    """The server while the body runs; all its threads have ended afterwards."""
    ready = threading.Event()
    found: dict[str, Any] = {}

    async def run() -> None:
        told = ServeSettings(name, Address(port=0), **settings)
        found["loop"] = asyncio.get_running_loop()
        found["server"] = Server(llm, drafter, told, lambda url: ready.set())
        await found["server"].run_until_stopped()

    thread = threading.Thread(target=lambda: asyncio.run(run()))
    thread.start()
    try:
        assert ready.wait(20)
        server: Server = found["server"]
        headers = {} if key is None else {"authorization": f"Bearer {key}"}
        # To read the certificates of the world takes longer than most requests.
        with httpx.Client(base_url=server.url, headers=headers, timeout=120, verify=False) as http:
            yield Running(server.url, server, llm, http)
    finally:
        if ready.is_set():
            with suppress(RuntimeError):  # it has stopped before
                found["loop"].call_soon_threadsafe(found["server"].drain)
                found["loop"].call_soon_threadsafe(found["server"].drain)
        thread.join(20)
        assert not thread.is_alive()


@contextmanager
def served(
    folder: Path,
    tenants: int = 1,
    key: str | None = None,
    options: Mapping[str, Any] | None = None,
    **settings: Any,
) -> Iterator[Running]:
    """The same for a tiny model, whose `options` are those of `LLM`, in one thread."""
    made = tiny_llm(folder, tenants, **(options or {}))
    with one_thread(), running(*made, key, **settings) as found:
        yield found
