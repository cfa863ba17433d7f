"""The process: sockets, signals, draining.

SIGHUP            the file of keys is read again; without one the process ends at once
SIGTERM, SIGINT   new requests are refused with 503, running ones are finished, then it ends
the same again, or after `drain_seconds`   running answers are cancelled
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import socket
import threading
from collections.abc import Callable, Generator
from contextlib import suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import Any

import uvicorn
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp
from uvicorn.protocols.websockets.websockets_sansio_impl import WebSocketsSansIOProtocol
from websockets.exceptions import InvalidState

from foresay.drafter import Drafter
from foresay.engine.llm import LLM
from foresay.errors import InputError
from foresay.serve.address import LOCAL, is_loopback, listening
from foresay.serve.admission import AdmissionMiddleware
from foresay.serve.app import Routes
from foresay.serve.chat.templates import Templates
from foresay.serve.keys import OPERATOR, Keys
from foresay.serve.limits import Limits
from foresay.serve.start import ServeSettings
from foresay.serve.steps import Share, Steps
from foresay.serve.wire import Wire

__all__ = ["Server", "serve"]

_SWEEP = 2.5  # seconds between two checks of the number of connections
_FLUSH = 5  # seconds for clients to read the last bytes, at the very end
_REPORT = 10.0  # seconds between lines about acceptance
_log = logging.getLogger("foresay.serve")


class WebSocket(WebSocketsSansIOProtocol):
    """uvicorn's, which cannot stop while a client says goodbye: the whole server failed then."""

    def shutdown(self) -> None:
        """End the connection, because the server stops."""
        try:
            super().shutdown()
        except InvalidState:
            self.transport.close()


class Server(uvicorn.Server):
    """Listens until it is stopped. To be made in the event loop that will run it.

    drafter  the engine's
    ready    called with the URL when requests are accepted

    Raises: InputError when constructed with an address that is not free.
    """

    def __init__(
        self,
        llm: LLM,
        drafter: Drafter[Any] | None,
        settings: ServeSettings,
        ready: Callable[[str], None] = lambda url: None,
    ) -> None:
        keys, address = settings.keys, settings.address
        self._llm, self._settings, self._ready = llm, settings, ready
        self._limits = limits = self._shared(keys)
        templates = Templates(llm.tokenizer, llm.grammars, settings.tool_format, settings.reasoning)
        self._routes = routes = Routes(
            llm, drafter, keys, limits, settings.shield, settings.name, templates
        )
        local = not keys and is_loopback(address.host)
        self._admission = AdmissionMiddleware(
            routes.app(),
            keys,
            limits,
            hosts=LOCAL | {address.host} if local else None,
            refused=routes.metrics.refuse,
        )
        app: ASGIApp = self._admission
        if settings.origins:
            app = CORSMiddleware(
                app,
                allow_origins=settings.origins,
                allow_methods=("GET", "POST"),
                allow_headers=("*",),  # clients of OpenAI's have many
                allow_private_network=True,
                expose_headers=("x-request-id", "retry-after"),
            )
        super().__init__(
            uvicorn.Config(
                app,
                lifespan="off",
                ws=WebSocket,
                ws_max_size=limits.body,
                ws_per_message_deflate=False,
                http=partial(Wire, limits, routes.metrics.refuse),  # type: ignore[arg-type]
                loop="asyncio",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=60,
                timeout_graceful_shutdown=_FLUSH,
                ssl_certfile=address.certificate,
                ssl_keyfile=address.key,
            )
        )
        self._socket = listening(address)
        host, port = self._socket.getsockname()[:2]
        shown = f"[{host}]" if ":" in host else host
        self.url = f"{'https' if address.certificate else 'http'}://{shown}:{port}"
        self._idle: dict[Any, tuple[Any, float]] = {}  # connections: their last requests, and when
        self._signals = 0

    def _shared(self, keys: Keys) -> Limits:
        """The limits for these tenants: with several, none can fill the queue alone. The operator
        does not count: its key is for the metrics."""
        limits = self._settings.limits
        if limits.tenant_answers is not None or len({*keys.tenants} - {OPERATOR}) < 2:
            return limits
        whole = self._llm.engine.scheduler.max_running + limits.queue
        return replace(limits, tenant_answers=max(whole // 2, 1))

    async def run_until_stopped(self) -> None:
        """Serve; signals are handled in the main thread only.

        Mutates: the routes' driver, which starts and stops.
        """
        driver, loop = self._routes.driver, asyncio.get_running_loop()
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, self.drain)
            if self._settings.reread is not None:
                loop.add_signal_handler(signal.SIGHUP, self.reload)
                if self._settings.stale():  # checked after the handler is set: no signal is lost
                    self.reload()
        driver.start()
        aside = [
            asyncio.ensure_future(self._sweep()),
            asyncio.ensure_future(_report(self._routes.steps)),
        ]
        try:
            await self.serve(sockets=[self._socket])
        finally:
            for task in aside:
                task.cancel()
            await self._routes.stop()

    def drain(self) -> None:
        """Finish running answers, and stop; when called again, stop at once.

        Mutates: the driver, which refuses new requests.
        """
        self._signals += 1
        if self._signals == 1:
            _log.info("stopping: %d answers are finished first", self._routes.driver.under_way)
            self._draining = asyncio.ensure_future(self._drained())
        else:
            self._routes.driver.cancel_all()
            self.should_exit = True

    def reload(self) -> None:
        """Read the file of keys again. If it cannot be read, the old keys stay, and the log says
        why. Without a file nothing happens.

        Valid until: the next call.
        """
        known, reread = self._settings.keys, self._settings.reread
        if reread is None:
            return
        try:
            found = reread()
        except InputError as error:
            _log.error("the keys stay as they were: %s", error)
            return
        self._admission.rekey(found)
        self._routes.rekey(found)
        self._routes.driver.limits = self._shared(found)
        if len(found.tenants) > max(len(known.tenants), 1):
            _log.warning(
                "there are %d tenants, and memory for the histories of the %d tenants at the "
                "start: they share it until a restart",
                len(found.tenants),
                len(known.tenants),
            )
        digests, tenants = len(found.digests), len(found.tenants)
        _log.info("the keys were read again: %d, of %d tenants", digests, tenants)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """Nothing: uvicorn's would stop listening at once, and end the process by the signal."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to listen, and call `ready`."""
        await super().startup(sockets)
        self._ready(self.url)

    async def _drained(self) -> None:
        driver = self._routes.driver
        try:
            await asyncio.wait_for(driver.drained(), self._limits.drain_seconds)
        except asyncio.TimeoutError:
            _log.warning(
                "%d answers are cancelled: the time for draining is over", driver.under_way
            )
            driver.cancel_all()
            with suppress(asyncio.TimeoutError):
                await asyncio.wait_for(driver.drained(), _FLUSH)
        self.should_exit = True

    async def _sweep(self) -> None:
        """Close the connections that were idle for the longest, if there are too many."""
        while True:
            await asyncio.sleep(_SWEEP)
            now, before = monotonic(), self._idle
            connections: list[Any] = list(self.server_state.connections)
            self._idle = {}
            for one in connections:
                if not hasattr(one, "cycle"):
                    continue  # a WebSocket
                if one.cycle is None or one.cycle.response_complete:
                    known, since = before.get(one, (one.cycle, now))
                    self._idle[one] = (one.cycle, since if known is one.cycle else now)
            oldest = sorted(self._idle, key=lambda one: self._idle[one][1])
            for one in oldest[: max(len(connections) - 2 * self._limits.connections, 0)]:
                one.transport.close()


def serve(
    llm: LLM,
    drafter: Drafter[Any] | None,
    settings: ServeSettings,
    ready: Callable[[str], None] = lambda url: None,
) -> None:
    """Serve until a signal ends it. It is faster with an LLM that was made in a thread that has
    ended: see `foresay.cli.serve`.

    Raises: InputError.
    """

    async def run() -> None:
        await Server(llm, drafter, settings, ready).run_until_stopped()

    asyncio.run(run())


async def _report(steps: Steps) -> None:
    """Log a line about acceptance now and then, in the words of vLLM's log."""
    before = Share()
    while True:
        await asyncio.sleep(_REPORT)
        now = Share()
        now.merge(steps.total)
        drafts, drafted = now.drafts - before.drafts, now.drafted - before.drafted
        accepted = now.accepted - before.accepted
        if drafts:
            by_length = {n: times - before.lengths.get(n, 0) for n, times in now.lengths.items()}
            depths = (sum(t for n, t in by_length.items() if n > at) / drafts for at in range(8))
            _log.info(
                "SpecDecoding metrics: Mean acceptance length: %.2f, Accepted throughput: %.2f "
                "tokens/s, Drafted throughput: %.2f tokens/s, Accepted: %d tokens, Drafted: %d "
                "tokens, Per-position acceptance rate: %s, Avg Draft acceptance rate: %.1f%%",
                1 + accepted / drafts,
                accepted / _REPORT,
                drafted / _REPORT,
                accepted,
                drafted,
                ", ".join(f"{share:.3f}" for share in depths if share) or "0",
                100 * accepted / max(drafted, 1),
            )
        before = now
