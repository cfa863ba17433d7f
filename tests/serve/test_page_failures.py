"""What the page says when something fails: what failed, and what to do."""

from __future__ import annotations

import socket
import threading
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from playwright.sync_api import Browser, expect

from serve.browsing import REFUSED, opened, whole
from serve.running import Running, served

CHATS = "/v1/chat/completions"


def test_what_failed_is_told_and_what_to_do(browser: Browser, folder: Path) -> None:
    with served(folder) as server, opened(browser, server, settings={"max_tokens": 4000}) as seen:
        page, alert = seen.page, seen.page.locator("[role=alert].error")
        refused = server.refused(
            CHATS, 400, messages=[{"role": "user", "content": "a" * 200}], max_tokens=4000
        )
        seen.ask("a" * 200)
        sentence = refused["message"][0].upper() + refused["message"][1:]
        expect(alert).to_have_text(
            f"{sentence}. Begin a new chat, or lower max tokens in Settings."
        )
        expect(page.locator("#question")).to_have_value("a" * 200)  # to be asked again
        seen.set(max_tokens="20")
        seen.ask("b")
        assert seen.answered(2) == whole(server, "b", most=20)  # the first was no part of it
        page.route(f"**{CHATS}", lambda route: route.abort())
        seen.ask("c")
        host = server.url.removeprefix("http://")
        expect(alert.nth(1)).to_have_text(
            f"The server at {host} cannot be reached. It may have stopped, or the network is down. "
            "Send again when it is back."
        )
        page.unroute(f"**{CHATS}")
        seen.set(max_tokens="3000")
        page.click("#anew")
        seen.ask("d")
        expect(page.locator(".answer .token").nth(20)).to_be_attached()
        for each in list(server.server._routes.driver._streams):
            server.server._routes.driver.cancel(each)
        expect(alert).to_contain_text("“Regenerate” asks again.")
        expect(page.locator("#send")).to_be_enabled()
        assert len(page.locator(".answer .text").text_content() or "") > 20  # it stays
        seen.check(server, f"{REFUSED} 400", "Failed to load resource: net::ERR_FAILED")


def test_a_broken_connection(browser: Browser, folder: Path) -> None:
    with (
        served(folder) as server,
        Line(server) as line,
        opened(browser, replace(server, url=line.url), settings={"max_tokens": 3000}) as seen,
    ):
        seen.ask("a")
        expect(seen.page.locator(".answer .token").nth(20)).to_be_attached()
        line.cut()
        expect(seen.page.locator("[role=alert].error")).to_have_text(
            "The connection to the server broke before the answer ended. "
            "What was written stays. “Regenerate” asks again."
        )
        expect(seen.page.locator("#send")).to_be_enabled()
        assert len(seen.page.locator(".answer .text").text_content() or "") > 20


class Line:
    """A line to a server, which can be cut."""

    def __init__(self, server: Running) -> None:
        self._server = server
        self._door = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._door.getsockname()[1]}"
        self._ends: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]

    def __enter__(self) -> Line:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._door.shutdown(socket.SHUT_RDWR)
        self._door.close()
        self.cut()
        for thread in self._threads:
            thread.join(10)
        for end in self._ends:
            end.close()

    def cut(self) -> None:
        """Everything that is open ends."""
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                pair = self._door.accept()[0], self._server.connected()
                self._ends += pair
                for source, sink in (pair, pair[::-1]):
                    thread = threading.Thread(target=self._pass_on, args=(source, sink))
                    self._threads.append(thread)
                    thread.start()

    def _pass_on(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(1 << 16):
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
