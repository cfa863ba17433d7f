"""What is refused, and what fails, as responses."""

from __future__ import annotations

import logging
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from foresay.errors import InputError
from foresay.serve.answer import encoded, error_body
from foresay.serve.limits import Refused
from foresay.serve.messages.errors import PATH, message_error

__all__ = ["HANDLERS", "refusal"]

_log = logging.getLogger("foresay.serve")


def refusal(refused: Refused, path: str) -> Response:
    """The response to a refused request of that path: much is refused before there is a route."""
    headers = {} if refused.retry_after is None else {"retry-after": str(refused.retry_after)}
    body = encoded((message_error if path.startswith(PATH) else error_body)(refused))
    response = Response(body, refused.status, headers, media_type="application/json")
    if refused.status == 401:  # a line for each: browsers do not read a list
        response.headers.append("www-authenticate", 'Basic realm="foresay"')
        response.headers.append("www-authenticate", "Bearer")
    return response


async def _refused(request: Request, error: Exception) -> Response:
    refused = error if isinstance(error, Refused) else Refused(400, str(error))
    return refusal(refused, request.url.path)


async def _http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    said = {404: f"there is no route {request.url.path[:100]!r}; see /openapi.json"}
    if error.status_code == 405:
        allowed = (error.headers or {}).get("Allow", "another method")
        said[405] = f"the method is {request.method[:20]!r}; expected {allowed}"
    refused = Refused(error.status_code, said.get(error.status_code, str(error.detail)))
    response = refusal(refused, request.url.path)
    response.headers.update(error.headers or {})
    return response


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # the client has left


async def _failed(request: Request, error: Exception) -> Response:
    _log.error("the request %s failed: %r", request.state.request_id, error)
    refused = Refused(500, "the server failed at this request; see its log")
    return refusal(refused, request.url.path)


HANDLERS: dict[Any, Any] = {
    Refused: _refused,
    InputError: _refused,
    HTTPException: _http,
    ClientDisconnect: _gone,
    Exception: _failed,
}
"""The responses to what a route raises, by its type."""
