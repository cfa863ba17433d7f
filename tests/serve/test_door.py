"""Who may ask: keys that change while the server runs, files that others can read, web pages."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import pytest

from foresay.errors import InputError
from foresay.serve.keys import Keys, read_keys
from foresay.serve.limits import Limits
from foresay.serve.start import ServeSettings
from serve.running import Running, bearer, served

ONE, TWO, THREE = "the-key-of-one", "the-key-of-two", "the-key-of-three"
OWN, OTHER = "https://chat.example.org", "https://elsewhere.example.org"


def reloaded(server: Running) -> None:
    """As the signal does it; what it logs is there when this returns."""
    loop, done = server.server._routes.driver._loop, threading.Event()
    assert loop is not None
    loop.call_soon_threadsafe(server.server.reload)
    loop.call_soon_threadsafe(done.set)
    assert done.wait(10)


def test_keys_are_read_again(
    folder: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "keys"
    file.write_text(f"one {ONE}\n")
    file.chmod(0o600)
    caplog.set_level(logging.INFO, "foresay.serve")
    options: Any = {"keys": read_keys(file), "reread": lambda: read_keys(file)}
    options |= {"options": {"max_running": 2}, "limits": Limits(queue=2)}
    with served(folder, 2, **options) as server:
        assert [server.lets_in(key) for key in (ONE, TWO)] == [200, 401]
        body: Any = {"prompt": ["a"] * 3, "max_tokens": 1}

        def ask(key: str) -> httpx.Response:
            return server.post("/v1/completions", body, **bearer(key))

        assert ask(ONE).status_code == 200  # alone it may have all four places

        file.write_text(f"one {ONE}\ntwo {TWO}\n")
        reloaded(server)
        assert [server.lets_in(key) for key in (ONE, TWO)] == [200, 200]
        assert "the keys were read again: 2, of 2 tenants" in caplog.text
        assert "memory for the histories of the 1" in caplog.text
        refused = ask(TWO)
        assert refused.status_code == 429 and "one tenant may have 2" in refused.text
        tokenized = server.post("/tokenize", {"prompt": "a"}, **bearer(TWO))
        assert tokenized.status_code == 200
        metrics = server.http.get("/metrics", headers=bearer(ONE))
        assert metrics.status_code == 403  # there are several now

        file.write_text(f"two {TWO}\nthree\n")
        reloaded(server)  # a broken file changes nothing, and the log says why
        assert [server.lets_in(key) for key in (ONE, TWO)] == [200, 200]
        assert f"the keys stay as they were: line 2 of '{file}' has 1 words" in caplog.text

        file.write_text(f"two {TWO}\nthree {THREE}\n")
        reloaded(server)
        assert [server.lets_in(key) for key in (ONE, TWO, THREE)] == [401, 200, 200]

        file.write_text(f"two {TWO}\n")
        reloaded(server)  # what was counted for all is not told to the one that is left
        metrics = server.http.get("/metrics", headers=bearer(TWO))
        assert metrics.status_code == 403

        file.unlink()
        os.mkfifo(file)
        reloaded(server)  # nobody waits for somebody to write into it
        assert server.lets_in(TWO) == 200 and f"'{file}' is not a regular file" in caplog.text


def test_who_has_begun_goes_on_when_the_key_is_revoked(folder: Path) -> None:
    found = [Keys.of([(ONE, "one")]), Keys.of([(TWO, "two")])]
    options: Any = {"keys": found[0], "reread": lambda: found[1]}
    with served(folder, 2, ONE, **options) as server:
        with server.opened(prompt="a", max_tokens=300, ignore_eos=True) as answer:
            lines = answer.iter_lines()
            next(lines)
            reloaded(server)
            assert server.lets_in(ONE) == 401
            assert [line for line in lines if line][-1] == "data: [DONE]"
        assert server.lets_in(TWO) == 200


def test_a_file_that_others_can_read(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file = tmp_path / "keys"
    file.write_text(f"one {ONE}\n")
    for mode, warned in ((0o600, False), (0o640, False), (0o644, True), (0o602, True)):
        caplog.clear()
        file.chmod(mode)
        assert read_keys(file).tenants == ["one"]
        assert ("every user of this machine" in caplog.text) == warned, oct(mode)
        if warned:
            assert f"'{file}': its mode is {mode:04o}; 0600 is safe" in caplog.text


@pytest.fixture(scope="module")
def paged(folder: Path) -> Iterator[Running]:
    keys = Keys.of([(ONE, "one")])
    with served(folder, keys=keys, origins=(OWN,)) as found:
        yield found


def preflight(server: Running, origin: str, method: str = "POST") -> httpx.Response:
    headers = {
        "origin": origin,
        "access-control-request-method": method,
        "access-control-request-headers": "authorization,content-type,x-stainless-os",
    }
    return server.http.request("OPTIONS", "/v1/chat/completions", headers=headers)


def test_a_page_of_a_named_origin_may_ask(paged: Running) -> None:
    asked = preflight(paged, OWN)
    assert asked.status_code == 200 and asked.headers["access-control-allow-origin"] == OWN
    assert "authorization" in asked.headers["access-control-allow-headers"]
    assert "x-stainless-os" in asked.headers["access-control-allow-headers"]
    assert {"POST", "DELETE"} <= {*asked.headers["access-control-allow-methods"].split(", ")}
    assert "access-control-allow-credentials" not in asked.headers
    body: Any = {"prompt": "a", "max_tokens": 1}
    answer = paged.post("/v1/completions", body, origin=OWN, **bearer(ONE))
    assert answer.status_code == 200 and answer.headers["access-control-allow-origin"] == OWN
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    refused = paged.post("/v1/completions", body, origin=OWN)  # a key is needed all the same
    assert refused.status_code == 401 and refused.headers["access-control-allow-origin"] == OWN


def test_a_page_of_another_origin_may_not(paged: Running, server: Running) -> None:
    for one, origin in ((paged, OTHER), (paged, "null"), (paged, OWN + ".evil"), (server, OWN)):
        asked = preflight(one, origin)
        assert asked.status_code in (400, 405), origin
        assert "access-control-allow-origin" not in asked.headers
        answer = one.http.get("/live", headers={"origin": origin})
        assert answer.status_code == 200 and "access-control-allow-origin" not in answer.headers
    assert preflight(paged, OWN, "PUT").status_code == 400
    assert preflight(paged, OTHER, "DELETE").status_code == 400


def test_any_origin(folder: Path) -> None:
    with served(folder, origins=("*",)) as server:
        for origin in (OWN, OTHER):
            asked = preflight(server, origin)
            assert asked.status_code == 200
            assert asked.headers["access-control-allow-origin"] == "*"


@pytest.mark.parametrize(
    "origin",
    [
        *("", "chat.example.org", "https://a.org/", "https://a.org/b", "file://"),
        *("https://*.a.org", "https://A.org", "https://user@a.org", "https://a.org:x"),
        *("null", "https://a.org b"),
    ],
)
def test_an_origin_that_is_none(origin: str) -> None:
    with pytest.raises(InputError, match=r"--cors-origin\); expected '\*', or a scheme"):
        ServeSettings("tiny", origins=(origin,))


@pytest.mark.parametrize("origin", ["*", OWN, "http://localhost:3000", "http://[::1]:80"])
def test_an_origin(origin: str) -> None:
    assert ServeSettings("tiny", origins=(origin,)).origins == (origin,)


@pytest.fixture
def page() -> Iterator[str]:
    """Another server with an empty page: another origin on this machine."""

    class Empty(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(b"<!doctype html><title>elsewhere</title>")

        def log_message(self, format: str, *args: Any) -> None:
            pass

    site = ThreadingHTTPServer(("127.0.0.1", 0), Empty)
    thread = threading.Thread(target=site.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{site.server_address[1]}"
    finally:
        site.shutdown()
        site.server_close()
        thread.join()


ASK = """async ([url, key]) => {
  try {
    const response = await fetch(url + "/v1/chat/completions", {
      method: "POST",
      headers: {"content-type": "application/json", authorization: "Bearer " + key},
      body: JSON.stringify({
        messages: [{role: "user", content: "a"}], max_tokens: 3, ignore_eos: true
      }),
    });
    const said = await response.json();
    return [response.status, said.usage?.completion_tokens ?? null, said.error?.code ?? null];
  } catch (error) {
    return [0, null, String(error)];
  }
}"""


def test_in_a_browser(browser: Any, folder: Path, page: str) -> None:
    """A page of another origin, in Chromium: named it may ask, with a key; not named it may not."""
    keys = Keys.of([(ONE, "one")])
    with (
        served(folder, keys=keys, origins=(page,)) as named,
        served(folder, keys=keys) as closed,
        browser.new_context() as context,
    ):
        tab = context.new_page()
        tab.goto(page)
        assert tab.evaluate(ASK, [named.url, ONE]) == [200, 3, None]
        assert tab.evaluate(ASK, [named.url, "a-wrong-key"]) == [401, None, "invalid_api_key"]
        status, _, said = tab.evaluate(ASK, [closed.url, ONE])
        assert status == 0 and "Failed to fetch" in said


def test_a_body_of_a_foreign_page_is_not_taken_without_being_asked_for(server: Running) -> None:
    """What a page may send without a preflight has another content type."""
    with server.connected() as client:
        client.sendall(
            b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: https://evil.example\r\n"
            b"Content-Type: text/plain\r\nContent-Length: 14\r\n\r\n"
            b'{"prompt":"a"}'
        )
        assert b" 415 " in client.recv(100)
