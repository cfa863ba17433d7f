"""The edge client: drafts here, the cloud verifies, and what it commits is the answer.

    client = EdgeClient("http://127.0.0.1:8000", vocabulary=49152, drafter="suffix")
    async for piece in client.stream(prompt, SamplingParams(temperature=0.8), seed=1):
        print(piece.tokens, piece.sources)

The text is that of the target model alone: the same for every drafter, link, loss and reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

from foresay.arrays import IntsLike, user_path
from foresay.drafter import Drafter, SeededParams, Source, as_prompt
from foresay.edge.ahead import DraftThread
from foresay.edge.drafting import check_edge_drafter, edge_drafter, model_in, write_edge_only
from foresay.edge.settings import Chunk, ClientOptions
from foresay.edge.statistics import StreamStatistics
from foresay.edge.stream import Stream
from foresay.errors import InputError, StreamError
from foresay.sampling.noise import new_seed
from foresay.sampling.params import SamplingParams

__all__ = ["Answer", "Chunk", "EdgeClient", "StreamStatistics"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: its tokens, where each was drafted from, why it ended, what it cost."""

    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    finish: str
    statistics: StreamStatistics
    edge_only: int = 0
    """So many tokens at the end are the edge's own model's, not the target's."""


class EdgeClient(ClientOptions):
    """Streams from one cloud, one drafter for all of them.

    url              of the server, http(s):// or ws(s)://; without a path /v1/edge is taken
    vocabulary       token ids are below it; it has to be the model's
    api_key          sent as a bearer token; white space around it is left out
    drafter          a name as `drafters.lineup` has them, joined with +; a Drafter that needs
                     nothing of the target but its tokens; none, None: the cloud answers alone
    corpus           a corpus file for a drafter that is given by its name
    model            the model's name in the cloud; empty: the one that it has
    tokenizer_hash   of `foresay.corpus.tokenizer_hash_of`, to be compared; empty: unknown
    wait             for drafts, by the cloud: block, free-run or adaptive; empty: it chooses
    ahead            False: one draft is in flight, and the next one follows its verdict
    rule             how many tokens a message has, for all streams; None: a `LinkRule`
    gate             when to send and how far ahead; None: a message has k tokens. A drafter
                     `model:NAME` then says how uncertain it was of each token
    dropout          with a gate, passes with dropout of such a model, for the variance; 0: none
    decode           token ids to text, for the gate's rules
    tree             where nothing is in flight, a whole tree is sent
    pad              0, or messages of both sides are padded to a multiple of this number of bytes
    json             messages are JSON, to debug with
    connect_seconds  for one try to connect
    silent_seconds   without a message, after which a connection counts as lost; None: for ever
    retry_seconds    without progress, after which a lost connection is an error
    edge_only        go on with the drafter's own model where the cloud cannot be reached
    ends             ids that end an answer, for `edge_only` before the cloud has told them
    on_round         called with each draft that was decided

    One event loop at a time may use it; streams may run at the same time. `close` ends the
    drafter's thread. Raises: InputError when constructed, and for a name as `make_drafter`.
    """

    def __post_init__(self) -> None:
        super().__post_init__()
        self._drafting = self._made()
        self._edge_only = model_in(self._drafting) if self.edge_only else None
        self._thread = DraftThread()

    def _made(self) -> Drafter[Any] | None:
        """The drafter, also of its name. Raises: InputError, and for a name as `make_drafter`."""
        drafter, corpus = self.drafter, self.corpus
        if corpus is not None:
            user_path(corpus, "corpus")
        if isinstance(drafter, str) and drafter != "none":
            signals = self.gate is not None
            drafter = edge_drafter(
                drafter, corpus=corpus, tree=self.tree, signals=signals, dropout=self.dropout
            )
        elif corpus is not None:
            raise InputError(
                f"corpus is {str(corpus)!r:.100} and drafter is {drafter!r:.100}; expected the "
                "name of a drafter that drafts from it, such as suffix"
            )
        if drafter is None or isinstance(drafter, str):
            return None
        check_edge_drafter(drafter)
        return drafter

    def close(self) -> None:
        """End the drafter's thread. Streams that are under way go on without drafts."""
        self._thread.close()

    async def stream(
        self, prompt: IntsLike, params: SamplingParams | None = None, *, seed: int | None = None
    ) -> AsyncGenerator[Chunk, None]:
        """The answer to a prompt, piece by piece as the cloud commits it; the last piece has the
        finish reason and the statistics.

        seed: of the noise, instead of the parameters' own; neither: the cloud draws one.
        Who stops early calls `aclose()`, or the cloud keeps the stream for a while.
        Raises: InputError, TokenTypeError for a prompt or parameters that cannot be sent;
        StreamError if the stream cannot go on. What was given before stays true.
        """
        params = _seeded(SamplingParams() if params is None else params, seed)
        running = Stream(self, as_prompt(prompt), params, self._drafting, self._thread)
        task = asyncio.create_task(running.run())
        try:
            while (piece := await running.pieces.get()) is not None:
                yield piece
            await task
        except StreamError as error:
            if self._edge_only is None or error.code != "unreachable":
                raise
            async for piece in self._go_on(running):
                yield piece
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _go_on(self, running: Stream) -> AsyncGenerator[Chunk, None]:
        """What the edge's own model writes where the cloud's text ends."""
        assert self._edge_only is not None
        text, counted, params = running.text, running.statistics, running.params
        seed = params.seed if counted.seed is None else counted.seed
        have, left = len(text.tokens), params.max_tokens - len(text.tokens)
        # A drafter leaves the last token of an answer to the target, which there is none of.
        rest = replace(params, max_tokens=left + 1, min_tokens=max(0, params.min_tokens - have))
        sampling = SeededParams(rest, new_seed() if seed is None else seed)
        ends = self.ends if running.opened is None else running.opened.ends
        stops = (*(() if params.ignore_eos else ends), *params.stop_ids)
        so_far = [*text.prompt.tolist(), *text.tokens]
        writing = write_edge_only(self._edge_only, so_far, sampling, tokens=left, ends=stops)
        finish = "length"
        while (found := await self._thread.call(lambda: next(writing, None))) is not None:
            new, finish = found
            counted.edge_only += len(new)
            yield Chunk(tuple(new), (Source.DRAFT_MODEL,) * len(new), edge_only=True)
        yield Chunk((), (), finish, running.totals(), edge_only=True)

    async def answer(
        self, prompt: IntsLike, params: SamplingParams | None = None, *, seed: int | None = None
    ) -> Answer:
        """The whole answer. Raises: as `stream`."""
        tokens: list[int] = []
        sources: list[Source] = []
        alone = 0
        async with aclosing(self.stream(prompt, params, seed=seed)) as pieces:
            async for piece in pieces:
                tokens += piece.tokens
                sources += piece.sources
                alone += len(piece.tokens) * piece.edge_only
                if (told := piece.statistics) is not None:
                    return Answer(tuple(tokens), tuple(sources), piece.finish, told, alone)
        raise StreamError("the stream ended without a finish reason", "bad_answer")


def _seeded(params: SamplingParams, seed: int | None) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise InputError(f"params are {params!r:.100}; expected SamplingParams")
    return params if seed is None else replace(params, seed=seed)
