"""The edge client: drafts here, the cloud verifies, and what it commits is the answer.

    client = EdgeClient("http://127.0.0.1:8000", vocabulary=49152, drafter="suffix")
    async for piece in client.stream(prompt, SamplingParams(temperature=0.8), seed=1):
        print(piece.tokens, piece.sources)

The text is that of the target model alone: the same for every drafter, link, loss and reconnect.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from foresay.arrays import IntsLike, as_tokens, user_path
from foresay.drafter import Drafter, SeededParams, Source, as_prompt
from foresay.edge.alone import model_in, sources_of, write_alone
from foresay.edge.connection import edge_url
from foresay.edge.drafting import EdgeDrafts, check_edge_drafter, edge_drafter
from foresay.edge.gating import Decode, Gate
from foresay.edge.link import EdgeK, LinkRule
from foresay.edge.pace import Pace
from foresay.edge.sending import Sending
from foresay.edge.settings import OnRound, Piece, StreamSettings, check_kind, clean_key
from foresay.edge.statistics import StreamStatistics
from foresay.edge.stream import Stream
from foresay.edge.wire import Wait
from foresay.errors import InputError, StreamError
from foresay.sampling.noise import new_seed
from foresay.sampling.params import SamplingParams

__all__ = ["Answer", "EdgeClient", "Piece", "StreamStatistics"]


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer: its tokens, where each was drafted from, why it ended, what it cost."""

    tokens: tuple[int, ...]
    sources: tuple[Source, ...]
    finish: str
    statistics: StreamStatistics
    edge_only: int = 0
    """So many tokens at the end are the edge's own model's, not the target's."""


class EdgeClient:
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
    pad              0, or messages of both sides are padded to a multiple of so many bytes
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

    def __init__(
        self,
        url: str,
        *,
        vocabulary: int,
        api_key: str | None = None,
        drafter: Drafter[Any] | str | None = "suffix",
        corpus: str | Path | None = None,
        model: str = "",
        tokenizer_hash: bytes = b"",
        wait: Wait = "",
        ahead: bool = True,
        rule: EdgeK | None = None,
        gate: Gate | None = None,
        dropout: int = 0,
        decode: Decode | None = None,
        tree: bool = False,
        pad: int = 0,
        json: bool = False,
        connect_seconds: float = 10.0,
        silent_seconds: float | None = 120.0,
        retry_seconds: float = 30.0,
        edge_only: bool = False,
        ends: Sequence[int] = (),
        on_round: OnRound | None = None,
    ) -> None:
        self._settings = StreamSettings(
            url=edge_url(url),
            vocabulary=vocabulary,
            api_key=clean_key(api_key),
            model=model,
            tokenizer_hash=tokenizer_hash,
            wait=wait,
            pad=pad,
            json=json,
            connect_seconds=connect_seconds,
            silent_seconds=silent_seconds,
            retry_seconds=retry_seconds,
            on_round=on_round,
        )
        flags = {"ahead": ahead, "tree": tree, "edge_only": edge_only}
        for name, value in flags.items():
            check_kind(name, value, bool, "True or False")
        _check_parts(rule, gate, decode, dropout)
        if dropout and (gate is None or not isinstance(drafter, str)):
            raise InputError(
                f"dropout is {dropout!r}; expected 0 without a gate and a drafter model:NAME"
            )
        if corpus is not None:
            user_path(corpus, "corpus")
        if isinstance(drafter, str) and drafter == "none":
            drafter = None
        if isinstance(drafter, str):
            drafter = edge_drafter(
                drafter, corpus=corpus, tree=tree, signals=gate is not None, dropout=dropout
            )
        elif corpus is not None:
            raise InputError("a corpus is given without a drafter's name that could use it")
        if drafter is not None:
            check_edge_drafter(drafter)
        self.drafter = drafter
        self.rule = LinkRule() if rule is None else rule
        self._gate, self._decode = gate, decode
        self._ahead, self._tree = ahead, tree
        self._alone = model_in(drafter) if edge_only else None
        self._ends = tuple(as_tokens(ends, "ends").tolist())
        self._pace = Pace()

    def close(self) -> None:
        """End the drafter's thread. Streams that are under way go on without drafts."""
        self._pace.close()

    async def stream(
        self, prompt: IntsLike, params: SamplingParams | None = None, *, seed: int | None = None
    ) -> AsyncGenerator[Piece, None]:
        """The answer to a prompt, piece by piece as the cloud commits it; the last piece has the
        finish reason and the statistics.

        seed: of the noise, instead of the parameters' own; neither: the cloud draws one.
        Who stops early calls `aclose()`, or the cloud keeps the stream for a while.
        Raises: InputError, TokenTypeError for a prompt or parameters that cannot be sent;
        StreamError if the stream cannot go on. What was given before stays true.
        """
        params = _seeded(SamplingParams() if params is None else params, seed)
        sending = Sending(
            self.rule, ahead=self._ahead, tree=self._tree, gate=self._gate, decode=self._decode
        )
        text = as_prompt(prompt)
        drafter = self.drafter

        def drafts(sampling: SeededParams | None) -> EdgeDrafts:
            assert drafter is not None
            return EdgeDrafts(drafter, text, sampling)

        made = None if drafter is None else drafts
        running = Stream(self._settings, text, params, sending, made, self._pace)
        task = asyncio.create_task(running.run())
        try:
            while (piece := await running.pieces.get()) is not None:
                yield piece
            await task
        except StreamError as error:
            if self._alone is None or error.code != "unreachable":
                raise
            async for piece in self._write_alone(running):
                yield piece
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _write_alone(self, running: Stream) -> AsyncGenerator[Piece, None]:
        assert self._alone is not None
        text, counted = running.text, running.statistics
        seed = counted.seed if counted.seed is not None else running.params.seed
        params, have = running.params, len(text.tokens)
        # A drafter leaves the last token of an answer to the target, which there is none of.
        rest = replace(
            params,
            max_tokens=params.max_tokens - have + 1,
            min_tokens=max(0, params.min_tokens - have),
        )
        sampling = SeededParams(rest, new_seed() if seed is None else seed)
        ends = self._ends if running.opened is None else running.opened.ends
        stops = (*(() if params.ignore_eos else ends), *params.stop_ids)
        left = params.max_tokens - have
        so_far = [*text.prompt.tolist(), *text.tokens]
        writing = write_alone(self._alone, so_far, sampling, tokens=left, ends=stops)
        finish = "length"
        while (found := await self._pace.call(lambda: next(writing, None))) is not None:
            new, finish = found
            counted.edge_only += len(new)
            yield Piece(tuple(new), sources_of(new), edge_only=True)
        yield Piece((), (), finish, running.totals(), edge_only=True)

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


def _check_parts(rule: object, gate: object, decode: object, dropout: object) -> None:
    """Refuse what is not of these parts' kinds. Raises: InputError."""
    methods = (getattr(rule, name, None) for name in ("next_k", "observe"))
    if rule is not None and (isinstance(rule, type) or not all(map(callable, methods))):
        raise InputError(
            f"rule is {rule!r:.100}; expected None, or an object with next_k and observe, such as "
            "LinkRule()"
        )
    if gate is not None:
        check_kind("gate", gate, Gate, "a Gate or None")
    if decode is not None and not callable(decode):
        raise InputError(f"decode is {decode!r:.100}; expected a function or None")
    if type(dropout) is not int or not (dropout == 0 or 2 <= dropout <= 256):
        raise InputError(
            f"dropout is {dropout!r:.100}; expected 0, or a whole number of passes from 2 to 256"
        )


def _seeded(params: SamplingParams, seed: int | None) -> SamplingParams:
    if not isinstance(params, SamplingParams):
        raise InputError(f"params are {params!r:.100}; expected SamplingParams")
    return params if seed is None else replace(params, seed=seed)
