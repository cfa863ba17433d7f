"""A small cloud: the plain loop on a toy target behind a WebSocket, and faults on demand."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import numpy as np
from msgspec.structs import replace
from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed

from foresay.edge.ids import pack, unpack
from foresay.edge.messages import Close, Commit, DraftMessage, Error, Message, Open, Opened, Resume
from foresay.edge.prefix import Prefix, hashes_along
from foresay.edge.wire import checked_commit, checked_opened, decode, encode, hash_of_open
from foresay.sampling.noise import SPEC, gumbel

VOCABULARY = 300
FEW = 12
"""Ids that the target ever says: its texts repeat themselves."""


def next_token(text: list[int], temperature: float, seed: int) -> int:
    """The target: logits from the last two tokens, the noise of the house."""
    draw = np.random.default_rng([len(text) % 5 == 0, *text[-2:]])
    logits = draw.normal(size=FEW) * 3
    if temperature:
        logits = logits / temperature + gumbel(seed, len(text), np.arange(FEW))
    return int(np.argmax(logits))


def plain(prompt: list[int], count: int, temperature: float = 0.0, seed: int = 0) -> list[int]:
    """The plain loop: what every stream has to give."""
    text = list(prompt)
    while len(text) < len(prompt) + count:
        text.append(next_token(text, temperature, seed))
    return text[len(prompt) :]


@dataclass
class Kept:
    """A stream as the cloud keeps it."""

    asked: Open
    seed: int
    text: list[int]
    name: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    key: bytes = field(default_factory=lambda: secrets.token_bytes(16))
    pool: dict[tuple[int, int], set[int]] = field(default_factory=dict)
    hashes: dict[int, int] = field(default_factory=dict)  # of known prefixes, with their position
    seqs: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.start, self.prefix = len(self.text), Prefix(self.text)


@dataclass
class ToyCloud:
    """Faults, each done once or as often as its list is long.

    drops      close the connection when the answer has so many tokens
    cancels    end the stream as cancelled when the answer has so many tokens
    fails      end it with an error then; None: never
    refuses    answer OPEN with this code; empty: no
    forgets    answer the next RESUME with unknown_stream
    doubts     answer so many RESUMEs with unknown_prefix
    complains  answer with bad_frame when the answer has so many tokens
    damages    so many OPENED arrive with another seed
    busy       answer so many OPENs with busy
    garbage    send these frames after the first commit
    twice      send each commit twice, and older ones again
    gap        leave out this commit, by its number
    lies       after a stream was forgotten, the target is another
    ends       told as the ids that end an answer, which this target does not heed
    patience   seconds for a draft before the cloud goes on alone; step: seconds of a step
    """

    drops: list[int] = field(default_factory=list)
    cancels: list[int] = field(default_factory=list)
    fails: int | None = None
    refuses: str = ""
    forgets: int = 0
    doubts: int = 0
    complains: list[int] = field(default_factory=list)
    damages: int = 0
    busy: int = 0
    garbage: list[bytes | str] = field(default_factory=list)
    twice: bool = False
    gap: int | None = None
    lies: bool = False
    ends: tuple[int, ...] = ()
    patience: float = 0.01
    step: float = 0.0
    window: int = 64
    wait: str = "block"
    url: str = ""
    heard: list[Message] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    kept: dict[bytes, Kept] = field(default_factory=dict)
    forgotten: int = 0
    ignored: int = 0

    async def talk(self, socket: ServerConnection) -> None:
        assert socket.request is not None
        self.keys.append(socket.request.headers.get("Authorization"))
        first = await self._hear(socket)
        if refused := self._refused(first):
            await socket.send(encode(refused))
            return
        if isinstance(first, Resume):
            kept = self.kept[first.stream]
            assert first.key == kept.key and kept.prefix.agrees(first.have, first.prefix)
            await self._commit(socket, kept, first.have)
        else:
            assert isinstance(first, Open)
            seed = 77 if first.seed is None else first.seed
            kept = Kept(first, seed, unpack(first.prompt, VOCABULARY).tolist())
            self.kept[kept.name] = kept
            told = (kept.name, kept.key, 0, kept.start, VOCABULARY, seed, SPEC, self.window, 32, 60)
            opened = Opened(*told, self.ends, self.wait)  # type: ignore[arg-type]
            opened = checked_opened(opened, hash_of_open(first))
            if self.damages:
                self.damages -= 1
                opened = replace(opened, seed=seed ^ 1)
            await socket.send(encode(opened, first.pad))
        if await self._decode(socket, kept):
            while not isinstance(await self._hear(socket), Close):
                pass  # drafts that were under way
            del self.kept[kept.name]

    def _refused(self, first: Message) -> Error | None:
        if isinstance(first, Open):
            if self.busy:
                self.busy -= 1
                return Error("busy", "there are too many streams")
            return Error(self.refuses, "this stream is not for you") if self.refuses else None
        assert isinstance(first, Resume)
        if self.forgets and first.stream in self.kept:
            del self.kept[first.stream]
            self.forgets -= 1
            self.forgotten += 1
        if first.stream not in self.kept:
            return Error("unknown_stream", "there is no such stream")
        if self.doubts:
            self.doubts -= 1
            return Error("unknown_prefix", "the prefix is another one")
        return None

    async def _hear(self, socket: ServerConnection) -> Message:
        frame = await socket.recv()
        assert isinstance(frame, bytes)
        message = decode(frame, side="cloud")
        self.heard.append(message)
        return message

    async def _decode(self, socket: ServerConnection, kept: Kept) -> bool:
        """Step after step; whether the answer is complete."""
        patience = 0.0005 if self.wait == "free-run" else self.patience
        hearing = asyncio.create_task(self._hear(socket))
        try:
            while len(kept.text) < kept.start + kept.asked.max_tokens:
                done, _ = await asyncio.wait({hearing}, timeout=patience)
                if done:
                    message = hearing.result()
                    if isinstance(message, Close):
                        return False
                    assert isinstance(message, DraftMessage)
                    self._note(kept, message)
                    hearing = asyncio.create_task(self._hear(socket))
                await asyncio.sleep(self.step)
                have = len(kept.text)
                self._step(kept)
                if self.drops and len(kept.text) - kept.start >= self.drops[0]:
                    self.drops.pop(0)
                    socket.transport.abort()
                    return False
                if self.complains and len(kept.text) - kept.start >= self.complains[0]:
                    self.complains.pop(0)
                    await socket.send(encode(Error("bad_frame", "the frame is no message")))
                    return False
                early = self._early(len(kept.text) - kept.start)
                await self._commit(socket, kept, have, early)
                if early:
                    return True
        except ConnectionClosed:
            with suppress(ConnectionClosed):
                await hearing
                while True:  # what came before the end
                    await self._hear(socket)
            return False
        finally:
            hearing.cancel()
            await asyncio.gather(hearing, return_exceptions=True)
        return True

    def _note(self, kept: Kept, message: DraftMessage) -> None:
        assert not kept.seqs or message.seq > kept.seqs[-1], "a number came again"
        kept.seqs.append(message.seq)
        known = kept.prefix.agrees(message.base, message.prefix)
        if not known and kept.hashes.get(message.prefix) != message.base:
            self.ignored += 1
            return
        draft = message.draft(VOCABULARY)
        along = hashes_along(draft, message.prefix)
        depth: list[int] = []
        for node, parent in enumerate(draft.parents.tolist()):
            before = message.prefix if parent < 0 else along[parent]
            depth.append(message.base if parent < 0 else depth[parent] + 1)
            kept.pool.setdefault((depth[node], before), set()).add(int(draft.tokens[node]))
            kept.hashes[along[node]] = depth[node] + 1

    def _step(self, kept: Kept) -> None:
        """Commit what drafts foresaw, and one token more."""
        end = kept.start + kept.asked.max_tokens
        while len(kept.text) < end:
            seed = kept.seed + (1 if self.lies and self.forgotten else 0)
            token = next_token(kept.text, kept.asked.sampling.temperature, seed)
            at = len(kept.text)
            foreseen = token in kept.pool.get((at, kept.prefix.at(at)), ())
            kept.text.append(token)
            kept.prefix.extend(np.array([token], np.int32))
            if not foreseen:
                return

    def _early(self, have: int) -> int:
        """The finish reason of an answer that ends here before its time; 0: it goes on."""
        if self.cancels and have >= self.cancels[0]:
            self.cancels.pop(0)
            return 3
        return 4 if self.fails is not None and have >= self.fails else 0

    async def _commit(
        self, socket: ServerConnection, kept: Kept, have: int, early: int = 0
    ) -> None:
        upto = len(kept.text)
        finish = early or (2 if upto == kept.start + kept.asked.max_tokens else 0)
        seq = kept.seqs[-1] if kept.seqs else 0
        tokens = pack(np.array(kept.text[have:], np.int32), VOCABULARY)
        commit = Commit(upto, tokens, 0, seq, finish=finish)
        frame = encode(checked_commit(commit, kept.name, kept.prefix.at(upto)), kept.asked.pad)
        if self.gap is not None and not finish:
            self.gap -= 1
            if self.gap < 0:
                self.gap = None
                return
        if self.twice:
            half = (kept.start + upto) // 2
            again = pack(np.array(kept.text[kept.start : half], np.int32), VOCABULARY)
            old = checked_commit(Commit(half, again, 0, seq), kept.name, kept.prefix.at(half))
            await socket.send(encode(old))
        await socket.send(frame)
        if self.twice and not finish:
            await socket.send(frame)
        if self.garbage:
            await socket.send(self.garbage.pop(0))


@asynccontextmanager
async def toy_cloud(port: int = 0, **faults: object) -> AsyncIterator[ToyCloud]:
    """A running cloud."""
    cloud = ToyCloud(**faults)  # type: ignore[arg-type]
    async with serve(cloud.talk, "127.0.0.1", port, compression=None) as server:
        cloud.url = f"http://127.0.0.1:{next(iter(server.sockets)).getsockname()[1]}"
        yield cloud
