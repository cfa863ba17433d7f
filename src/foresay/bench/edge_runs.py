"""Runs the ways of `foresay.bench.edge`: a real server, a proxy, an edge client.

Two servers: one without drafts for `cloud`, one with its own for all other ways. Ways take turns on
the same question and who begins changes. Each way at each round-trip time is a tenant of its own
and has a drafter of its own, so none can draft from the answer that another has just got.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from foresay.bench.cloud import Cloud, LinkProcess, cloud, link_process, peak_mb
from foresay.bench.edge import BASELINES, CLOUD, EDGE_ONLY, EdgeAnswer, EdgeRow
from foresay.bench.edge_table import EdgeTable
from foresay.bench.proxy import EmulatedLink
from foresay.bench.questions import Question
from foresay.corpus import open_corpus
from foresay.drafter import SeededParams
from foresay.drafters.lineup import check_drafter_name, parts_of
from foresay.edge.client import EdgeClient
from foresay.edge.drafting import edge_drafter, model_in, write_edge_only
from foresay.edge.gating import usual_gate
from foresay.edge.link import Round
from foresay.edge.messages import Wait
from foresay.edge.text_rules import CorpusWords
from foresay.errors import ForesayError, InputError
from foresay.models.load import find_model
from foresay.models.progress import Progress, silent
from foresay.models.tokenizer import Tokenizer

__all__ = ["EdgeSetup", "check_setup", "run_edge"]

_POLICY = "adaptive"  # of the server that drafts
_WAIT: dict[str, Wait] = {
    "blocking": "block",
    "ahead": "adaptive",
    "ahead-block": "block",
    "free-run": "free-run",
}
"""How long the cloud waits in the edge's ways; baselines have no drafts to wait for."""


@dataclass(frozen=True, slots=True)
class EdgeSetup:
    """What is compared, and with what.

    ways           of `edge_ways`
    links          one for each round-trip time
    model          in the cloud
    drafter        of the edge; corpus: a file for it
    gate           the edge sends as the usual gate says
    edge_model     the edge's own model, for `edge-only`
    cloud_drafter  of the server for all ways but `cloud`, which drafts as much as pays
    memory_mb      for the KV cache of each server
    device         of the servers

    Raises: InputError when constructed.
    """

    ways: Sequence[str]
    links: Sequence[EmulatedLink]
    model: str
    drafter: str = "suffix"
    corpus: Path | None = None
    gate: bool = False
    edge_model: str | None = None
    cloud_drafter: str = "suffix"
    memory_mb: int = 512
    device: str = "auto"

    def __post_init__(self) -> None:
        if EDGE_ONLY in self.ways and self.edge_model is None:
            raise InputError(
                f"the way {EDGE_ONLY} needs a model on the edge; expected its name as `edge_model`"
            )
        if not self.links:
            raise InputError("there is no round-trip time; expected one or more")

    def about(self) -> dict[str, Any]:
        """As plain values."""
        first = self.links[0]
        return {
            "model": Path(self.model).name,
            "device": self.device,
            "edge_drafter": self.drafter,
            "edge_corpus": None if self.corpus is None else self.corpus.name,
            "edge_gate": self.gate,
            "edge_model": None if self.edge_model is None else Path(self.edge_model).name,
            "cloud_drafter": self.cloud_drafter,
            "cloud_policy": _POLICY,
            "rtts_ms": [round(1e3 * link.rtt, 3) for link in self.links],
            "jitter_ms": round(1e3 * first.jitter, 3),
            "loss": first.loss,
            "bandwidth": first.bandwidth,
        }


def check_setup(setup: EdgeSetup, progress: Progress = silent) -> None:
    """Refuse now what the servers or the edge would refuse when they have started, which takes a
    while: models, drafters and the corpus file.

    Raises: InputError that names the field.
    """
    progress("find", 0, None)
    with _naming("model", setup.model):
        find_model(setup.model, device=setup.device, progress=progress)
    if setup.edge_model is not None:
        with _naming("edge_model", setup.edge_model):
            find_model(setup.edge_model, progress=progress)
    if set(setup.ways) - {CLOUD, EDGE_ONLY}:
        with _naming("cloud_drafter", setup.cloud_drafter):
            if setup.cloud_drafter not in ("none", "edge"):
                _without_models(setup.cloud_drafter, progress)
    if set(setup.ways) - {*BASELINES, EDGE_ONLY}:
        if setup.corpus is not None:
            with _naming("corpus", str(setup.corpus)):
                open_corpus(setup.corpus)
        with _naming("drafter", setup.drafter):
            others = _without_models(setup.drafter, progress)
            if others:
                edge_drafter("+".join(others), corpus=setup.corpus)
            elif setup.corpus is not None:
                raise InputError("a model uses no corpus; leave `corpus` out")


def _without_models(name: str, progress: Progress) -> list[str]:
    """The parts of a drafter's name that are no models; the models are looked for, not loaded."""
    check_drafter_name(name)
    others = []
    for part in parts_of(name):
        kind, _, of = part.removeprefix("worker:").partition(":")
        if kind == "model":
            find_model(of, progress=progress)
        else:
            others.append(part)
    return others


@contextmanager
def _naming(field: str, value: str) -> Iterator[None]:
    try:
        yield
    except ForesayError as error:
        raise InputError(f"{field} is {value!r}: {error}") from error


def _tenant(way: str, at: int) -> str:
    return f"{way}-{at}"


def _gate(setup: EdgeSetup) -> dict[str, Any]:
    """The gate of an edge client, and what its rules read with."""
    tokenizer = Tokenizer(find_model(setup.model, device=setup.device).folder)
    words = None if setup.corpus is None else CorpusWords.of(setup.corpus, tokenizer)
    return {"gate": usual_gate(words), "decode": tokenizer.decode}


class _Seat:
    """One way at one round-trip time: its server, its proxy, its client."""

    def __init__(
        self, way: str, setup: EdgeSetup, server: Cloud, link: LinkProcess, tenant: str
    ) -> None:
        self.way, self._server, self._link = way, server, link
        self._rounds: list[Round] = []
        self._alone: Any = None
        if way == EDGE_ONLY:
            self._alone = model_in(edge_drafter(f"model:{setup.edge_model}"))
            return
        own = None if way in BASELINES else setup.drafter
        gate: dict[str, Any] = {} if own is None or not setup.gate else _gate(setup)
        self._client = EdgeClient(
            link.url,
            vocabulary=server.vocabulary,
            api_key=server.keys[tenant],
            drafter=own,
            corpus=None if own is None else setup.corpus,
            wait=_WAIT.get(way, "free-run"),
            ahead=way != "blocking",
            on_round=self._rounds.append,
            **gate,
        )

    def close(self) -> None:
        if self._alone is None:
            self._client.close()

    async def ask(self, question: Question, prompt: Sequence[int]) -> EdgeAnswer:
        """One answer, measured. Raises: StreamError."""
        if self._alone is not None:
            return self._written_alone(question, prompt)
        self._rounds.clear()
        before, wire = self._server.metrics(), self._link.counts()
        answer = await self._client.answer(prompt, question.params)
        after, used = self._server.metrics(), self._link.counts()

        def more(name: str) -> float:
            return after.get(name, 0.0) - before.get(name, 0.0)

        return EdgeAnswer(
            question.where,
            list(answer.tokens),
            answer.statistics,
            lengths=Counter(done.accepted for done in self._rounds),
            wire_up=used[0] - wire[0],
            wire_down=used[1] - wire[1],
            cloud_steps=int(more("foresay_steps_total")),
            cloud_seconds=more("foresay_forward_us_sum") / 1e6,
            log=list(_lines(self._rounds)),
        )

    def _written_alone(self, question: Question, prompt: Sequence[int]) -> EdgeAnswer:
        params = question.params
        sampling = SeededParams(params, params.seed or 0)
        made, began = EdgeAnswer(question.where), perf_counter()
        ends = self._server.ends if not params.ignore_eos else []
        for tokens, _ in write_edge_only(
            self._alone, list(prompt), sampling, tokens=params.max_tokens, ends=ends
        ):
            made.statistics.ttft = made.statistics.ttft or perf_counter() - began
            made.tokens += tokens
        made.statistics.seconds = perf_counter() - began
        return made


def _lines(rounds: Sequence[Round]) -> Iterator[dict[str, Any]]:
    """The rounds of an answer, by the names that edge-cloud logs usually have."""
    sent = accepted = 0

    def milli(seconds: float | None) -> float | None:
        return None if seconds is None else round(1e3 * seconds, 4)

    for number, done in enumerate(rounds, start=1):
        sent, accepted = sent + done.sent, accepted + done.accepted
        yield {
            "round": number,
            "k": done.sent,
            "accepted_len": done.accepted,
            "la_over_k": None if done.la_over_k is None else round(done.la_over_k, 4),
            "alpha_mean": None if done.alpha_mean is None else round(done.alpha_mean, 4),
            "A_cum": round(accepted / sent, 4) if sent else None,
            "edge_time_ms": milli(done.draft),
            "cloud_ms": milli(done.verify),
            "rtt_ms": milli(done.rtt),
            "bytes_up": done.bytes_up,
            "bytes_down": done.bytes_down,
            "hard_ratio": None if done.hard is None else round(done.hard / max(done.sent, 1), 4),
        }


def run_edge(
    setup: EdgeSetup, questions: Sequence[Question], progress: Progress = silent
) -> Generator[EdgeTable, None, None]:
    """The table after each question at each round-trip time: the same one, which grows.

    progress  called with "read", "warm", then "write": answers of all

    Only the first turn of a question is asked, once. Raises: InputError for a question that asks
    for several samples and as `check_setup`, StreamError, ForesayError if a server does not start.
    """
    for question in questions:
        if question.params.n != 1:
            raise InputError(f"{question.where} asks for {question.params.n} samples; expected 1")
    check_setup(setup, progress)
    table = EdgeTable([], setup.about())
    tenants = [
        "warm",
        *(_tenant(way, at) for at in range(len(setup.links)) for way in setup.ways),
    ]
    done, total = 0, len(questions) * len(setup.ways) * len(setup.links)
    with ExitStack() as stack:
        loop = asyncio.new_event_loop()
        stack.callback(_close, loop)
        progress("read", 0, None)
        begin = partial(cloud, setup.model, tenants, memory_mb=setup.memory_mb)
        where = ("--device", setup.device)
        plain = stack.enter_context(begin(*where, "--drafter", "none"))
        drafting = plain
        if set(setup.ways) - {CLOUD, EDGE_ONLY}:
            named = ("--drafter", setup.cloud_drafter, "--policy", _POLICY)
            drafting = stack.enter_context(begin(*where, *named))
        servers = {way: plain if way in (CLOUD, EDGE_ONLY) else drafting for way in setup.ways}
        prompts = [plain.encode(question.turns[0]) for question in questions]
        progress("warm", 0, None)
        shares = _warm_up(setup, servers, questions[0], prompts[0], loop)
        progress("write", done, total)
        for at, link in enumerate(setup.links):
            with ExitStack() as inner:
                links = {
                    server.port: inner.enter_context(link_process(server.port, link))
                    for server in {one.port: one for one in servers.values()}.values()
                }
                seats = []
                for way in setup.ways:
                    server = servers[way]
                    seat = _Seat(way, setup, server, links[server.port], _tenant(way, at))
                    inner.callback(seat.close)
                    seats.append(seat)
                rows = {way: EdgeRow(way, link.rtt, []) for way in setup.ways}
                table.rows += rows.values()
                for number, question in enumerate(questions):
                    found: dict[str, EdgeAnswer] = {}
                    first = number % len(seats)
                    for seat in [*seats[first:], *seats[:first]]:
                        asked = seat.ask(question, prompts[number])
                        found[seat.way] = loop.run_until_complete(asked)
                        done += 1
                        progress("write", done, total)
                    for way, answer in found.items():
                        rows[way].answers.append(answer)
                        rows[way].sides = _sides(setup, servers[way], shares.get(way))
                    yield table


def _close(loop: asyncio.AbstractEventLoop) -> None:
    """End what still runs after an interrupt, then the streams that nobody reads, then the loop.

    A generator that a task waits in cannot be closed, so tasks end first.
    """
    try:
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        loop.close()


def _warm_up(
    setup: EdgeSetup,
    servers: dict[str, Cloud],
    question: Question,
    prompt: Sequence[int],
    loop: asyncio.AbstractEventLoop,
) -> dict[str, float]:
    """The first answer of every way, which does not count; its share of the KV cache is watched,
    which takes time."""
    shares: dict[str, float] = {}
    for way, server in servers.items():
        with (
            link_process(server.port, EmulatedLink()) as link,
            server.watching_memory() as found,
        ):
            seat = _Seat(way, setup, server, link, "warm")
            loop.run_until_complete(seat.ask(question, prompt))
            seat.close()
        shares[way] = found["kv_share"]
    return shares


def _sides(setup: EdgeSetup, server: Cloud, share: float | None) -> dict[str, float]:
    """Memory of both sides, so far."""
    found = {"edge_rss_mb": peak_mb(), "cloud_rss_mb": peak_mb(server.pid)}
    if share is not None:
        found["kv_share"], found["kv_peak_mb"] = share, share * setup.memory_mb
    return {name: value for name, value in found.items() if value is not None}
