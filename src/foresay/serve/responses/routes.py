"""The routes of /v1/responses."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial

import msgspec
from starlette.requests import Request
from starlette.responses import Response as HttpResponse
from starlette.routing import Route

from foresay.serve.answer import Shape, encoded
from foresay.serve.chat.tools import ToolUse, use_of
from foresay.serve.limits import Limits, Refused
from foresay.serve.responses.items import items_of
from foresay.serve.responses.kept import Kept, KeptResponses
from foresay.serve.responses.schema import Deleted, InputItems, Item, OutputItem, ResponseBody
from foresay.serve.responses.shape import ResponseShape
from foresay.serve.responses.translate import NAMES, chat_of, check, choice_of, tools_of
from foresay.serve.schema import Chat
from foresay.serve.validate import ChatFields, GenerationRequest

__all__ = ["ResponseRoutes"]

_LISTED, _MOST_LISTED = 20, 100  # input items in one answer


class _Output(msgspec.Struct):
    """What is read of a response that is kept."""

    output: list[OutputItem]


class ResponseRoutes:
    """What the routes need, and the responses that are kept.

    validated  the generation request of a chat, with its tools
    shape      the shape of its answer
    name       the model's name for clients
    """

    def __init__(
        self,
        validated: Callable[[Chat, ToolUse | None, ChatFields], GenerationRequest],
        shape: Callable[[GenerationRequest], Shape],
        limits: Limits,
        name: str,
    ) -> None:
        self._validated = validated
        self._shape = shape
        self._limits = limits
        self._name = name
        self.kept = KeptResponses(limits.responses, limits.response_bytes)

    def routes(self) -> list[Route]:
        """The routes of responses that are kept."""
        one = "/v1/responses/{response_id}"
        return [
            Route(one, self.on_get),
            Route(one, self.on_delete, methods=["DELETE"]),
            Route(f"{one}/cancel", self.on_cancel, methods=["POST"]),
            Route(f"{one}/input_items", self.on_input_items),
        ]

    def rekey(self, tenants: Collection[str | None]) -> None:
        """Forget the responses of tenants that are gone."""
        self.kept.only({None, *tenants})

    def read(self, tenant: str | None, body: ResponseBody) -> ResponseShape:
        """The chat that a request asks for, with the shape of its response. It takes time.

        Raises: Refused.
        """
        check(body)
        items = items_of(body.input or [])
        before = self._before(tenant, body.previous_response_id)
        if not items and not before:
            raise Refused(400, "input is empty; expected a text or items", param="input")
        tools = tools_of(body.tools or ())
        choice, many = choice_of(body.tool_choice), body.parallel_tool_calls is not False
        use = use_of(tools.chat, choice, self._limits, many=many)
        generation = self._validated(chat_of(body, [*before, *items], tools), use, NAMES)
        chat = self._shape(generation)
        keep = None if body.store is False else partial(self.kept.put, tenant)
        return ResponseShape(chat, body, items, tools, self._name, keep)

    def _before(self, tenant: str | None, name: str | None) -> list[Item]:
        """The conversation that a response ends."""
        if name is None:
            return []
        found = self.kept.conversation(tenant, name)
        if isinstance(found, str):
            raise _unknown(found, "previous_response_id", "previous_response_not_found")
        items: list[Item] = []
        for kept in found:
            items += msgspec.json.decode(kept.input, type=list[Item])
            items += msgspec.json.decode(kept.answer, type=_Output).output
        return items

    async def on_get(self, request: Request) -> HttpResponse:
        """A response that is kept."""
        if request.query_params.get("stream", "false").lower() not in ("false", "0"):
            raise Refused(400, "stream is true; expected false: it has ended", param="stream")
        return _sent(self._found(request).answer)

    async def on_delete(self, request: Request) -> HttpResponse:
        """Forget a response."""
        name = self._found(request).name
        self.kept.drop(request.state.tenant, name)
        return _sent(encoded(Deleted(name, True)))

    async def on_cancel(self, request: Request) -> HttpResponse:
        """Always refused: there is no response that goes on without a client."""
        name = self._found(request).name
        raise Refused(400, f"the response {name!r} has ended; expected one in the background")

    async def on_input_items(self, request: Request) -> HttpResponse:
        """The input of a response, a part of it at a time."""
        query = request.query_params
        items = msgspec.json.decode(self._found(request).input, type=list[Item])
        order, limit = query.get("order", "desc"), query.get("limit", str(_LISTED))
        if order not in ("asc", "desc"):
            raise Refused(400, f"order is {order[:40]!r}; expected asc or desc", param="order")
        most = int(limit) if limit.isdecimal() and len(limit) < 4 else 0
        if not 1 <= most <= _MOST_LISTED:
            said = f"limit is {limit[:40]!r}; expected 1 to {_MOST_LISTED}"
            raise Refused(400, said, param="limit")
        if order == "desc":
            items.reverse()
        after = query.get("after")
        if after is not None:
            at = next((n for n, item in enumerate(items) if item.id == after), None)
            if at is None:
                said = f"after is {after[:80]!r}; expected the id of an item of the input"
                raise Refused(400, said, param="after")
            items = items[at + 1 :]
        page = items[:most]
        first, last = (page[0].id, page[-1].id) if page else (None, None)
        return _sent(encoded(InputItems(page, first, last, len(items) > most)))

    def _found(self, request: Request) -> Kept:
        name = request.path_params["response_id"]
        kept = self.kept.get(request.state.tenant, name)
        if kept is None:
            raise _unknown(name, "response_id", "response_not_found")
        return kept


def _unknown(name: str, param: str, code: str) -> Refused:
    return Refused(
        404,
        f"the response {name[:80]!r} is not kept; expected one that this server has kept, and not "
        "forgotten since",
        param=param,
        code=code,
    )


def _sent(body: bytes) -> HttpResponse:
    headers = {"cache-control": "no-store"}
    return HttpResponse(body, headers=headers, media_type="application/json")
