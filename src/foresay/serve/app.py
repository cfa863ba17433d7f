"""The routes."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.routing import BaseRoute, Mount, Route, WebSocketRoute
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from foresay import __version__
from foresay.abilities import abilities_of
from foresay.drafter import SOURCE_NAMES, Drafter
from foresay.engine.answers import Chunk
from foresay.engine.engine import Engine
from foresay.engine.llm import LLM
from foresay.serve import answer_schema, schema
from foresay.serve.answer import Shape, encoded
from foresay.serve.chat.structure import Structured
from foresay.serve.chat.templates import Templates
from foresay.serve.chat.tools import tools_of
from foresay.serve.driver import Driver
from foresay.serve.edge.connection import EdgeRoute
from foresay.serve.events import AnswerShape, Events, shaped, unless_gone
from foresay.serve.keys import OPERATOR, Keys
from foresay.serve.limits import Limits, Refused
from foresay.serve.messages.routes import MessageRoutes
from foresay.serve.messages.schema import CountBody, MessageBody
from foresay.serve.metrics import Metrics, memory_of
from foresay.serve.openapi import openapi
from foresay.serve.parse import parse_body
from foresay.serve.refusals import HANDLERS
from foresay.serve.responses.routes import ResponseRoutes
from foresay.serve.responses.schema import ResponseBody
from foresay.serve.shield import Shield
from foresay.serve.steps import Ended, StepReport, Steps
from foresay.serve.stream import AnswerStream
from foresay.serve.validate import GenerationRequest, Validator
from foresay.serve.words import Words
from foresay.serve.workers import Workers
from foresay.structured.matcher import Grammar

__all__ = ["Routes"]

T = TypeVar("T")
A = TypeVar("A", bound=msgspec.Struct)
PAGE = Path(__file__).parent / "page"
_log = logging.getLogger("foresay.serve")


class Routes:
    """The routes and what they need. To be made in an event loop.

    llm      its engine is driven by `driver`
    drafter  the engine's, for its memory
    name     the model's name for clients
    templates  the model's chat template
    """

    def __init__(
        self,
        llm: LLM,
        drafter: Drafter[Any] | None,
        keys: Keys,
        limits: Limits,
        shield: Shield,
        name: str,
        templates: Templates,
    ) -> None:
        self.name = name
        self.steps = Steps()
        self._memory, self._by_tenant = memory_of(drafter), abilities_of(drafter).tenants
        self.driver = Driver(llm, self._memory, limits, self._seen)
        self._llm = llm
        self._limits = limits
        self._shield = shield
        self._validator = Validator(llm, limits, templates)
        self._readers = Workers("read")  # tokenizing a long text takes time
        self.metrics = Metrics(name, self._validator.context)
        self.edge = EdgeRoute(
            *(llm, self.driver, limits, shield, self._validator),
            *(self._check_model, self._readers.run, self.metrics.edge),
        )
        self._words = Words(llm.tokenizer, llm.target.vocabulary)
        self._responses = ResponseRoutes(self._validator.chat, self._shape, limits, name)
        self._messages = MessageRoutes(self._validator, self._shape, limits, name)
        self._created = int(time.time())
        # A hostile form takes seconds; requests without one do not wait for it.
        self._compilers = Workers("compile")
        self._several = False
        self.rekey(keys)

    def rekey(self, keys: Keys) -> None:
        """Replace the tenants. Requests that are under way continue.

        Valid until: the next call.
        """
        # Metrics that were counted for several tenants stay private when one of them is left.
        self._responses.rekey(keys.tenants)
        self._several = self._several or len(keys.tenants) > 1
        # One tenant's long texts and slow forms leave a thread for the others.
        several = len(set(keys.tenants) - {OPERATOR}) > 1
        for workers in (self._readers, self._compilers):
            workers.rekey(keys.tenants, 1 if several else None)

    def app(self) -> ASGIApp:
        """The application, to be put behind an AdmissionMiddleware."""
        routes: list[BaseRoute] = [
            Route("/v1/models", self._on_models),
            Route("/v1/models/{model:path}", self._on_model),
            Route("/v1/completions", self._on_completions, methods=["POST"]),
            Route("/v1/chat/completions", self._on_chat, methods=["POST"]),
            Route("/v1/responses", self._on_responses, methods=["POST"]),
            *self._responses.routes(),
            Route("/v1/messages", self._on_messages, methods=["POST"]),
            Route("/v1/messages/count_tokens", self._on_count, methods=["POST"]),
            Route("/v1/spec/stats", self._on_stats),
            WebSocketRoute("/v1/edge", self.edge.serve),
            Route("/tokenize", self._on_tokenize, methods=["POST"]),
            Route("/detokenize", self._on_detokenize, methods=["POST"]),
            Route("/tokenizer_info", self._on_tokenizer_info),
            Route("/health", self._on_health),
            Route("/live", _json(answer_schema.Status("ok")), methods=["GET"]),
            Route("/version", _json(answer_schema.Version(__version__)), methods=["GET"]),
            Route("/metrics", self._on_numbers),
            Route("/openapi.json", _json(openapi()), methods=["GET"]),
            Route("/", self._on_welcome),
        ]
        if PAGE.is_dir():
            routes.append(Route("/page/sources.js", self._on_sources))
            routes.append(Mount("/page", StaticFiles(directory=PAGE)))
        return Starlette(routes=routes, exception_handlers=HANDLERS)

    async def stop(self) -> None:
        """End the engine's thread and all others."""
        await self.edge.stop()
        await self.driver.stop()
        self._readers.stop()
        self._compilers.stop()

    def _seen(self, step: StepReport | None, ended: list[Ended]) -> None:
        if step is not None:
            self.steps.note(step)
        self.metrics.note(step, ended)

    async def _on_completions(self, request: Request) -> Response:
        def read(body: schema.Completion) -> AnswerShape:
            return self._shape(self._validator.completion(body))

        return await self._answered(request, schema.Completion, read)

    async def _on_chat(self, request: Request) -> Response:
        def read(body: schema.Chat) -> AnswerShape:
            return self._shape(self._validator.chat(body, tools_of(body, self._limits)))

        return await self._answered(request, schema.Chat, read)

    async def _on_responses(self, request: Request) -> Response:
        read = partial(self._responses.read, request.state.tenant)
        return await self._answered(request, ResponseBody, read)

    async def _on_messages(self, request: Request) -> Response:
        return await self._answered(request, MessageBody, self._messages.read)

    async def _on_count(self, request: Request) -> Response:
        return _json(await self._read(request, CountBody, self._messages.count))

    def _shape(self, generation: GenerationRequest) -> Shape:
        return Shape(generation, self._words, self.name, hide=self._shield.hide)

    async def _answered(
        self, request: Request, kind: type[A], read: Callable[[A], AnswerShape]
    ) -> Response:
        tenant = request.state.tenant
        self.driver.admit(1, tenant)  # before the body is read and tokenized in vain
        shape = await self._read(request, kind, read)
        generation = shape.generation
        if generation.prompt_logprobs is not None:
            tokens = sum(map(len, generation.prompts)) * generation.params.n
            self._limits.check_prompt_logprobs(tokens, generation.prompt_logprobs)
        if generation.details and self._shield.hide:
            raise Refused(
                403,
                "spec_details is true; expected false: this server hides acceptance",
                param="spec_details",
            )
        if generation.structure is not None:
            # Held until the answer has ended, so that the engine finds it compiled.
            request.state.grammar = await self._compiled(tenant, generation.structure)
        request.state.stream = stream = await self.driver.submit(generation, tenant)
        stream.asked = sum(map(len, generation.prompts))
        if generation.stream:
            # It only has to be called as a response is.
            return Events(self.driver, stream, shape, self._limits, self._shield)  # type: ignore[return-value]
        try:
            pieces = await unless_gone(request.receive, _all_of(stream))
        finally:
            self.driver.cancel(stream)
        if pieces is None:
            stream.lost = "client left"
            return Response(status_code=499)  # the client has left
        return _sent(await shaped(lambda pieces: encoded(shape.whole(pieces)), pieces))

    async def _on_models(self, request: Request) -> Response:
        return _json(answer_schema.Models([self._model()]))

    async def _on_model(self, request: Request) -> Response:
        self._check_model(request.path_params["model"])
        return _json(self._model())

    async def _on_tokenize(self, request: Request) -> Response:
        return _sent(await self._read(request, schema.Tokenize, self._tokenized))

    async def _on_detokenize(self, request: Request) -> Response:
        return _json(await self._read(request, schema.Detokenize, self._detokenized))

    async def _on_tokenizer_info(self, request: Request) -> Response:
        return _json(self._words.about(self._validator.context))

    async def _on_health(self, request: Request) -> Response:
        if self.driver.draining:
            raise self._limits.draining()
        if not self.driver.alive:
            raise Refused(503, "the engine has stopped", code="stopped")
        if self.driver.waited > self._limits.stuck_seconds:
            raise Refused(
                503,
                f"answers are under way and the engine has taken no step for "
                f"{self.driver.waited:.0f} s; expected one within {self._limits.stuck_seconds:g} s",
                code="stuck",
            )
        return _json(answer_schema.Status("ok"))

    async def _on_welcome(self, request: Request) -> Response:
        """The web page, with its other files at /page/; a line of text without it."""
        if (PAGE / "index.html").is_file():
            return FileResponse(PAGE / "index.html", headers={"cache-control": "no-store"})
        return PlainTextResponse(
            f"foresay {__version__} serves {self.name} at /v1; see /openapi.json\n"
        )

    async def _on_sources(self, request: Request) -> Response:
        """What the page calls each source: the names that the command line has, too."""
        names = {source or "model": told._asdict() for source, told in SOURCE_NAMES.items()}
        text = f"export const SOURCES = {msgspec.json.encode(names).decode()};\n"
        return Response(text, media_type="text/javascript")

    async def _on_numbers(self, request: Request) -> Response:
        if self._several and request.state.tenant != OPERATOR:
            raise Refused(
                403,
                f"the metrics are of all tenants; expected a key of the tenant '{OPERATOR}': name "
                "one in the file of --keys",
            )
        text = self.metrics.text({**self.driver.gauges, "edge_streams": len(self.edge.streams)})
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    async def _on_stats(self, request: Request) -> Response:
        if self._shield.hide:
            raise Refused(403, "this server hides acceptance statistics")
        tenant = request.state.tenant
        running, waiting = await self.driver.call(partial(_load, tenant=tenant))
        held = await self._readers.run(tenant, self._held_by, tenant)
        whose: Any = "everybody" if tenant is None else "tenant"
        return _json(
            answer_schema.Stats(*self.steps.seen_by(tenant), running, waiting, held, whose)
        )

    def _held_by(self, tenant: str | None) -> int | None:
        """Bytes that the drafter holds for one tenant; None if unknown."""
        if self._by_tenant is not None:
            return self._by_tenant.bytes_of(tenant)
        return None if self._several or self._memory is None else self._memory()

    def _tokenized(self, sent: schema.Tokenize) -> bytes:
        if (sent.prompt is None) == (sent.messages is None):
            raise Refused(
                400,
                "prompt and messages are both given or both absent; expected one",
                param="prompt",
            )
        if sent.messages is None:
            special = sent.add_special_tokens is not False
            tokens = self._words.encode(sent.prompt or "", special=special)
        else:
            tokens = self._validator.conversation(sent.messages).tolist()
        words = [self._words.of(token) for token in tokens] if sent.return_token_strs else UNSET
        return encoded(answer_schema.Tokens(tokens, len(tokens), self._validator.context, words))

    def _detokenized(self, sent: schema.Detokenize) -> answer_schema.Text:
        return answer_schema.Text(self._words.decode(sent.tokens))

    def _model(self) -> answer_schema.Model:
        return answer_schema.Model(self.name, self._created, "foresay", self._validator.context)

    def _check_model(self, name: str | None) -> None:
        if name not in (None, "", self.name):
            raise Refused(
                404,
                f"the model {str(name)[:100]!r} does not exist; expected {self.name!r}",
                param="model",
                code="model_not_found",
            )

    async def _read(self, request: Request, kind: type[A], validate: Callable[[A], T]) -> T:
        """Parse and validate the body, in a worker thread. Bodies that wait for it are bytes:
        parsed values take many times as much memory."""
        given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if given != "application/json":
            raise Refused(415, f"the content type is {given[:100]!r}; expected 'application/json'")
        length = request.headers.get("content-length", "0")
        if length.isdigit() and int(length[:20]) > self._limits.body:
            raise self._limits.body_refused()
        seconds = self._limits.body_seconds
        try:
            body = await asyncio.wait_for(self._body(request), seconds)
        except asyncio.TimeoutError:
            raise Refused(408, f"the body did not arrive within {seconds:g} s") from None

        def validated() -> T:
            sent = parse_body(body, kind)
            self._check_model(getattr(sent, "model", None))
            return validate(sent)

        return await self._readers.run(request.state.tenant, validated)

    async def _body(self, request: Request) -> bytes:
        body = bytearray()
        async for part in request.stream():
            body += part
            if len(body) > self._limits.body:
                raise self._limits.body_refused()
        return bytes(body)

    async def _compiled(self, tenant: str | None, structure: Structured) -> Grammar:
        known = self._llm.grammars.known(structure.outputs)
        if known is not None:
            return known
        return await self._compilers.run(tenant, self._validator.compiled, structure)


async def _all_of(stream: AnswerStream) -> list[Chunk]:
    pieces: list[Chunk] = []
    while not stream.ended or stream.waiting:
        pieces += await stream.take()
    return pieces


def _load(engine: Engine, tenant: str | None) -> list[int]:
    """How many of a tenant's requests run, and how many wait."""
    queues = engine.scheduler.running, engine.scheduler.waiting
    return [sum(request.tenant == tenant for request in queue) for queue in queues]


def _json(value: object) -> Response:
    return _sent(encoded(value))


def _sent(body: bytes) -> Response:
    return Response(body, headers={"cache-control": "no-store"}, media_type="application/json")
