"""An edge client of bare WebSockets, which can be right, wrong, late or rude."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, TypeAlias

import httpx
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from foresay.draft import Draft
from foresay.drafters.lineup import with_external_drafts
from foresay.edge.ids import pack, unpack
from foresay.edge.json_frames import decode_json, encode_json
from foresay.edge.messages import (
    VERSION,
    Close,
    Commit,
    DraftMessage,
    Error,
    Message,
    Open,
    Opened,
    Resume,
    Sampling,
)
from foresay.edge.prefix import hash_after
from foresay.edge.wire import check_of_commit, check_of_opened, decode, encode, hash_of_open
from foresay.engine.llm import LLM
from foresay.serve.start import tenant_drafter
from serve.running import MEMORY, Running, running, wait_for
from tiny import one_thread

SECONDS = 20.0
"""The longest that a message is waited for: a server that hangs fails, and does not hang tests."""


def edge_llm(folder: Path, tenants: int = 1, **options: Any) -> tuple[LLM, Any]:
    """A model with the server's own drafter and offers, as `foresay serve` makes it."""
    drafter = with_external_drafts(tenant_drafter(tenants, 1 << 20))
    given: dict[str, Any] = {"memory": MEMORY, "policy": "fixed", "with_sources": True, **options}
    return LLM(folder, drafter, dtype="float32", **given), drafter


@contextmanager
def edge_server(folder: Path, tenants: int = 1, **settings: Any) -> Iterator[Running]:
    options = settings.pop("options", {})
    with one_thread(), running(*edge_llm(folder, tenants, **options), **settings) as found:
        yield found


class Cloud:
    """One connection to the cloud."""

    def __init__(self, socket: ClientConnection, vocabulary: int, as_json: bool = False) -> None:
        self.socket = socket
        self.vocabulary = vocabulary
        self.as_json = as_json
        self.name = b""
        self.sizes: list[int] = []  # of frames that came

    async def send(self, message: Message, pad: int = 0) -> None:
        if self.as_json:
            await self.socket.send(
                encode_json(message, vocabulary=self.vocabulary, stream=self.name, pad=pad)
            )
        else:
            await self.socket.send(encode(message, pad))

    async def receive(self, seconds: float = SECONDS) -> Message:
        frame = await asyncio.wait_for(self.socket.recv(), seconds)
        self.sizes.append(len(frame))
        assert isinstance(frame, str) == self.as_json
        if isinstance(frame, str):
            return decode_json(frame, side="edge", vocabulary=self.vocabulary, stream=self.name)
        return decode(frame, side="edge")

    async def error(self) -> Error:
        """The error that comes, after OPENED and any commits; then the connection closes."""
        while True:
            message = await self.receive()
            if isinstance(message, Error):
                break
            assert isinstance(message, Opened | Commit), message
        assert await self.ends() == []
        return message

    async def ends(self) -> list[Message]:
        """What comes until the connection closes."""
        found: list[Message] = []
        while True:
            try:
                found.append(await self.receive())
            except ConnectionClosed:
                return found


@asynccontextmanager
async def cloud(
    server: Running, *, as_json: bool = False, key: str | None = None, **headers: str
) -> AsyncIterator[Cloud]:
    every = {} if key is None else {"Authorization": f"Bearer {key}"}
    url = server.url.replace("http", "ws", 1) + "/v1/edge"
    async with connect(
        url, compression=None, additional_headers={**every, **headers}, ping_interval=None
    ) as socket:
        yield Cloud(socket, server.llm.target.vocabulary, as_json)


class Text:
    """A stream as the client knows it."""

    def __init__(self, opened: Opened, prompt: Sequence[int]) -> None:
        self.opened = opened
        self.vocabulary = opened.vocabulary
        self.prompt = list(prompt)
        self.ids: list[int] = []
        self.seq = 0
        self.commits: list[Commit] = []
        self.finish = ""

    @property
    def position(self) -> int:
        return len(self.prompt) + len(self.ids)

    def hash(self, position: int | None = None) -> int:
        whole = [*self.prompt, *self.ids]
        return hash_after(whole[:position])

    def draft(
        self,
        draft: Draft | Sequence[int],
        *,
        base: int | None = None,
        prefix: int | None = None,
        seq: int | None = None,
    ) -> DraftMessage:
        if not isinstance(draft, Draft):
            draft = Draft.chain(list(draft))
        if seq is None:
            self.seq = seq = self.seq + 1
        return DraftMessage.of(
            draft,
            seq=seq,
            base=self.position if base is None else base,
            prefix=self.hash() if prefix is None else prefix,
            vocabulary=self.vocabulary,
        )

    def take(self, commit: Commit) -> None:
        """Take what is new; all of it must fit to what was there."""
        self.commits.append(commit)
        tokens = unpack(commit.tokens, self.vocabulary).tolist()
        first = commit.upto - len(tokens) - len(self.prompt)
        assert 0 <= first <= len(self.ids), "a commit leaves a gap"
        again = self.ids[first : first + len(tokens)]
        assert again == tokens[: len(again)], "a commit takes something back"
        self.ids += tokens[len(again) :]
        expected = check_of_commit(commit, self.opened.stream, self.hash(commit.upto))
        assert commit.check == expected, "both ends have another text"
        self.finish = commit.reason

    def resume(self, **changes: Any) -> Resume:
        given = {
            "stream": self.opened.stream,
            "key": self.opened.key,
            "have": self.position,
            "prefix": self.hash(),
            **changes,
        }
        return Resume(**given)


ENDLESS: dict[str, Any] = {"max_tokens": 4000, "ignore_eos": True}
Say: TypeAlias = Callable[[Text], Iterable[DraftMessage]]
"""What a client says after OPENED, and after each commit that has tokens."""


def opening(server: Running, prompt: Sequence[int] | str, **fields: Any) -> Open:
    """An OPEN; `sampling` may be given by its fields."""
    vocabulary = server.llm.target.vocabulary
    ids = server.llm.tokenizer.encode(prompt).tolist() if isinstance(prompt, str) else prompt
    names = set(Sampling.__struct_fields__)
    sampling = {name: fields.pop(name) for name in list(fields) if name in names}
    given = {"version": VERSION, "model": "", "tokenizer": b"", "vocabulary": vocabulary, **fields}
    return Open(prompt=pack(ids, vocabulary), sampling=Sampling(**sampling), **given)


async def opened(line: Cloud, asked: Open) -> Text:
    """Open a stream."""
    await line.send(asked)
    answer = await line.receive()
    assert isinstance(answer, Opened), answer
    assert answer.check == check_of_opened(answer, hash_of_open(asked))
    line.name = answer.stream
    return Text(answer, unpack(asked.prompt, asked.vocabulary).tolist())


async def follow(
    line: Cloud, text: Text, say: Say = lambda text: (), pad: int = 0, until: int | None = None
) -> Text:
    """Read commits until the end, or until there are so many tokens, and draft in between."""
    for first in say(text):
        await line.send(first, pad)
    while not text.finish and (until is None or len(text.ids) < until):
        message = await line.receive()
        assert isinstance(message, Commit), message
        text.take(message)
        if not text.finish:
            for draft in say(text):
                await line.send(draft, pad)
    return text


async def whole(
    server: Running, asked: Open, say: Say = lambda text: (), **how: Any
) -> tuple[Text, Cloud]:
    """One stream from its beginning to its end."""
    async with cloud(server, **how) as line:
        text = await follow(line, await opened(line, asked), say, asked.pad)
        return text, line


def wanted(plain: LLM, asked: Open) -> list[int]:
    """What the plain loop writes."""
    prompt = unpack(asked.prompt, asked.vocabulary).tolist()
    (result,) = plain.generate([prompt], asked.params())
    return result.token_ids


def right(answer: Sequence[int], count: int = 6) -> Say:
    """Drafts the next tokens of the answer."""

    def say(text: Text) -> list[DraftMessage]:
        done = len(text.ids)
        return [text.draft(answer[done : done + count])]

    return say


async def agreed(
    server: Running,
    plain: LLM,
    asked: Open,
    drafts: Callable[[Sequence[int]], Say] = right,
    **how: Any,
) -> tuple[Text, Cloud]:
    """One whole stream, with drafts made of the answer; its text is that of the plain loop."""
    answer = wanted(plain, asked)
    text, line = await whole(server, asked, drafts(answer), **how)
    assert text.ids == answer
    return text, line


async def refused(server: Running, *messages: Message | bytes | str, **how: Any) -> Error:
    """The error after these messages, which may be raw frames."""
    async with cloud(server, **how) as line:
        for message in messages:
            if isinstance(message, bytes | str):
                await line.socket.send(message)
            else:
                await line.send(message)
        return await line.error()


async def begun(server: Running, asked: Open, until: int = 5, **how: Any) -> Text:
    """A stream whose connection was lost."""
    async with cloud(server, **how) as line:
        text = await follow(line, await opened(line, asked), until=until)
        line.socket.transport.abort()
    return text


async def closed(server: Running, text: Text, **how: Any) -> Commit:
    """The first commit after the stream was resumed; then it is closed."""
    async with cloud(server, **how) as line:
        await line.send(text.resume())
        message = await line.receive()
        await line.send(Close())
        await line.ends()
    assert isinstance(message, Commit), message
    return message


async def resumed(
    server: Running, text: Text, say: Say = lambda text: (), until: int | None = None
) -> Text:
    """The stream on a new connection: to its end, or until that is lost too."""
    async with cloud(server) as line:
        await line.send(text.resume())
        await follow(line, text, say, until=until)
        if until is not None:
            line.socket.transport.abort()
    return text


def edge_counts(server: Running) -> dict[str, int]:
    """`foresay_edge_total` by what was counted."""
    found: dict[str, int] = {}
    for line in _metrics(server).splitlines():
        if line.startswith("foresay_edge_total{"):
            name = line.partition('what="')[2].partition('"')[0]
            found[name] = int(float(line.rpartition(" ")[2]))
    return found


def _metrics(server: Running) -> str:
    return httpx.get(f"{server.url}/metrics", timeout=20).text


def streams_of(server: Running) -> int:
    return len(server.server._routes.edge.streams)


def nothing_left(server: Running, seconds: float = 10.0) -> None:
    """No stream, no answer under way, no wait."""
    wait_for(lambda: streams_of(server) == 0, seconds)
    server.idle(seconds)
    assert len(server.server._routes.driver._waits) == 0
