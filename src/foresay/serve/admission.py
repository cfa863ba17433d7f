"""Admission of HTTP requests, before their routes: hosts, API keys, open requests, access log.

Where there are keys, only `OPEN` is answered without one; unknown paths need a key too.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections import Counter
from collections.abc import Callable
from time import perf_counter
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from foresay.serve.keys import OPERATOR, Keys
from foresay.serve.limits import Limits, Refused
from foresay.serve.refusals import refusal
from foresay.serve.stream import AnswerStream

__all__ = ["OPEN", "AdmissionMiddleware"]

OPEN = ("/health", "/live")
_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
        b"connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]
_LEFT = 499  # nginx's status for a client that left; only the log has it
_ID = re.compile(r"[\x21-\x7e]{1,128}")
_log = logging.getLogger("foresay.serve.access")


class AdmissionMiddleware:
    """ASGI middleware that admits a request to the routes, or refuses it.

    app      the routes
    keys     the API keys that are admitted
    hosts    names that the Host header may have; None: any. Without keys a page of another site
             could otherwise reach the server by DNS rebinding
    refused  called with every status from 400 on

    With several tenants each may have half of the open requests, so that none can take them all.
    """

    def __init__(
        self,
        app: ASGIApp,
        keys: Keys,
        limits: Limits,
        *,
        hosts: frozenset[str] | None = None,
        refused: Callable[[int], None] = lambda status: None,
    ) -> None:
        self.app = app
        self._limits = limits
        self._hosts = hosts
        self._refused = refused
        self._open = 0
        self._open_of: Counter[str | None] = Counter()
        self.rekey(keys)

    def rekey(self, keys: Keys) -> None:
        """Replace the keys: later requests need one of these.

        Valid until: the next call.
        """
        most = self._limits.connections
        several = len(set(keys.tenants) - {OPERATOR}) > 1
        self._keys, self._own = keys, max(most // 2, 1) if several else most

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            return
        watch = _Watch(scope, send)
        state = scope.setdefault("state", {})
        state["request_id"] = watch.name
        self._open += 1
        try:
            try:
                if scope["type"] == "websocket":
                    _check_origin(watch.headers)
                state["tenant"] = tenant = self._tenant(scope, watch.headers)
            except Refused as error:
                await refusal(error, scope["path"])(scope, receive, watch.send)
                return
            self._open_of[tenant] += 1
            try:
                await self.app(scope, receive, watch.send)
            finally:
                self._open_of[tenant] -= 1
        finally:
            self._open -= 1
            watch.end()
            if watch.status >= 400:
                self._refused(watch.status)

    def _tenant(self, scope: Scope, headers: dict[str, str]) -> str | None:
        """The tenant of a request."""
        if self._hosts is not None and _host(headers) not in self._hosts:
            raise Refused(
                403,
                f"the host is {headers.get('host', '')[:100]!r}; expected without keys: "
                f"{', '.join(sorted(self._hosts))}",
                code="wrong_host",
            )
        if scope["path"] in OPEN:
            return None  # a server that is only busy must not look dead
        if self._open > self._limits.connections:
            raise self._limits.crowded(self._limits.connections)
        good, tenant = self._keys.tenant_of(_key_header(headers))
        if not good:
            raise Refused(
                401,
                "the API key is missing or wrong; expected the header 'Authorization: Bearer KEY' "
                "or 'x-api-key: KEY'",
                code="invalid_api_key",
            )
        if self._open_of[tenant] >= self._own:
            raise self._limits.crowded(self._own, "one tenant")
        return tenant


class _Watch:
    """Watches one response while it is sent, and adds the common headers."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope = scope
        self._send = send
        self._begin = perf_counter()
        self.status = 0
        self.headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]
        }
        given = self.headers.get("x-request-id", "")
        self.name = given if _ID.fullmatch(given) else secrets.token_hex(8)

    async def send(self, message: Message) -> None:
        if message["type"] == "websocket.accept":
            self.status = 101
        if message["type"] in ("http.response.start", "websocket.http.response.start"):
            self.status = message["status"]
            headers = [*message.get("headers", ()), *_HEADERS]
            if self._scope["path"].startswith("/page/"):
                headers.append((b"cache-control", b"no-cache"))  # or old scripts outlive an upgrade
            headers.append((b"x-request-id", self.name.encode()))
            message = {**message, "headers": headers}
        await self._send(message)

    def end(self) -> None:
        """Write one line to the log, without any text of the prompt or the answer; with 499 for a
        client that left before the end, whatever status was sent."""
        state = self._scope["state"]
        stream: AnswerStream | None = state.get("stream")
        lost = "client left" if self.status == _LEFT else stream and stream.lost
        if lost:
            self.status = _LEFT
        facts: dict[str, Any] = {
            "method": self._scope.get("method", "WEBSOCKET"),
            "path": self._scope["path"][:200],
            "status": self.status,
            "seconds": round(perf_counter() - self._begin, 4),
            "tenant": state.get("tenant"),
            "request_id": self.name,
        }
        shown = "%(method)s %(path)s %(status)s %(seconds)s s"
        if stream is not None:
            facts |= {"prompt_tokens": stream.asked, "completion_tokens": stream.written}
            shown += " %(prompt_tokens)d + %(completion_tokens)d tokens"
        if lost:
            facts["lost"] = lost
            shown += " %(lost)s"
        shown = (shown + " %(request_id)s") % {**facts, "path": ascii(facts["path"])[1:-1]}
        _log.info("%s", shown, extra={"facts": facts})


def _check_origin(headers: dict[str, str]) -> None:
    """Refuse a WebSocket that a page of another site opens: a browser lets every page do so."""
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2] != headers.get("host", ""):
        raise Refused(
            403,
            f"the origin is {origin[:100]!r}; expected none, or that of this server",
            code="wrong_origin",
        )


def _key_header(headers: dict[str, str]) -> str | None:
    """The header Authorization; without one, that of Anthropic's clients in its form."""
    given, other = headers.get("authorization"), headers.get("x-api-key")
    return f"Bearer {other}" if given is None and other is not None else given


def _host(headers: dict[str, str]) -> str:
    """The host's name without its port."""
    host = headers.get("host", "").strip().lower()
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]
