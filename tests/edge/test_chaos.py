"""A real client, a real server, and a network that breaks: the text is always the plain loop's.

Each script of faults is drawn from its number, and so is all else of the stream: temperature,
wait, drafter, forms of messages. Nothing may take longer than `LIMIT`; afterwards the server has
no stream, no request, and no memory that belongs to one.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from edge.asking import answered
from edge.chaos import Action, chaos, random_script
from explore import EXPLORES
from foresay.arrays import Int32s
from foresay.bench.proxy import Proxy
from foresay.draft import Draft
from foresay.edge.client import Answer, EdgeClient
from foresay.engine.llm import LLM
from foresay.errors import StreamError
from foresay.sampling.params import SamplingParams
from foresay.serve.limits import Limits
from foresay.verdict import Verdict, Wants
from pairs import pairs
from serve.edge_client import edge_server, nothing_left
from serve.running import MEMORY, Running
from tiny import one_thread, save_model

LIMIT = 30.0
"""Seconds for one stream, whatever happens; most take one."""
FORGOTTEN = 1.0
"""Seconds that the server keeps a stream without a connection."""
AT_ONCE = 8
PROMPTS = ("abcabcabcabc", "the cat and the cat and the", "x", "0 1 2 3 0 1 2 3 0 1")


class Guessing:
    """Drafts what is told beforehand: the true text, some of it wrong."""

    wants = Wants()

    def __init__(self, truth: list[int], wrong: float, seed: int) -> None:
        self._truth, self._wrong, self._draw = truth, wrong, random.Random(seed)

    def begin(self, prompt: Int32s, /, **_: Any) -> list[int]:
        return [0]

    def propose(self, states: Any, budgets: Any, /) -> list[Draft]:
        (state,), (budget,) = states, budgets
        tokens = [
            self._draw.randrange(200) if self._draw.random() < self._wrong else token
            for token in self._truth[state[0] : state[0] + budget]
        ]
        return [Draft.chain(np.array(tokens, np.int32))]

    def observe(self, states: Any, verdicts: Any, /) -> None:
        (state,), (verdict,) = states, verdicts
        assert isinstance(verdict, Verdict)
        state[0] += len(verdict.tokens)

    def finish(self, state: Any, /) -> None:
        pass


@dataclass(frozen=True)
class House:
    """The server, its plain twin, and answers that the twin has given before."""

    server: Running
    plain: LLM
    known: dict[Any, list[int]]

    @property
    def vocabulary(self) -> int:
        return self.plain.target.vocabulary

    @property
    def port(self) -> int:
        return int(self.server.url.rpartition(":")[2])

    def expected(self, prompt: list[int], params: SamplingParams) -> list[int]:
        key = (tuple(prompt), repr(params))
        if key not in self.known:
            self.known[key] = self.plain.generate(prompt, params)[0].token_ids
        return self.known[key]

    def empty(self, seconds: float = FORGOTTEN + 10) -> None:
        """Wait until the server has forgotten all streams; nothing is held for them."""
        nothing_left(self.server, seconds)
        scheduler = self.server.llm.engine.scheduler
        assert not scheduler.running and not scheduler.waiting
        assert scheduler.pages.total - scheduler.pages.free == scheduler.prefixes.held


@contextmanager
def open_house(folder: Path) -> Iterator[House]:
    save_model(folder)
    limits = Limits(draft_seconds=0.05, edge_seconds=FORGOTTEN)
    with one_thread():
        plain = LLM(folder, None, dtype="float32", memory=MEMORY)
        with edge_server(folder, limits=limits, options={"with_sources": False}) as server:
            yield House(server, plain, {})


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    with open_house(tmp_path_factory.mktemp("chaos")) as found:
        yield found


def drawn(number: int, house: House) -> tuple[list[int], SamplingParams, dict[str, Any]]:
    """A prompt, its parameters and the client's options, by the script's number."""
    draw = random.Random(f"stream {number}")
    prompt = house.plain.encode(draw.choice(PROMPTS)).tolist()
    temperature = draw.choice((0.0, 0.8))
    params = SamplingParams(
        max_tokens=draw.choice((24, 48)),
        temperature=temperature,
        seed=draw.randrange(3),
        ignore_eos=draw.random() < 0.8,
    )
    options: dict[str, Any] = {
        "wait": draw.choice(("", "block", "free-run", "adaptive")),
        "ahead": draw.random() < 0.7,
        "tree": draw.random() < 0.3,
        "pad": draw.choice((0, 0, 64)),
        "json": draw.random() < 0.2,
    }
    kind = draw.choice(("none", "suffix", "ngram", "true", "half"))
    if kind in ("true", "half"):
        wrong = 0.0 if kind == "true" else 0.3
        options["drafter"] = Guessing(house.expected(prompt, params), wrong, number)
    else:
        options["drafter"] = None if kind == "none" else kind
    return prompt, params, options


async def answer_through(
    port: int, prompt: list[int], params: SamplingParams, **options: Any
) -> Answer:
    waits: dict[str, Any] = {"connect_seconds": 2.0, "silent_seconds": 2.0, "retry_seconds": LIMIT}
    return await answered(port, prompt=prompt, params=params, seconds=LIMIT, **waits, **options)


async def one_script(number: int, house: House, faults: Counter[str]) -> None:
    prompt, params, options = drawn(number, house)
    script = random_script(number)
    expected = house.expected(prompt, params)
    # A fault before anything was heard is an error by design: the address may be wrong.
    script = [Action("delay", "up", 1, 0.0), Action("delay", "down", 2, 0.0), *script]
    faults.update(action.fault for action in script[2:])
    async with Proxy(house.port, chaos(script)) as proxy:
        try:
            found = await answer_through(
                proxy.port, prompt, params, vocabulary=house.vocabulary, **options
            )
        except StreamError as error:
            # Of a flipped OPEN or ERROR, after a connection was lost: nothing tells it from a
            # server that refuses.
            assert any(action.fault == "flip" for action in script), (number, script, options)
            assert error.code not in ("contradiction", "internal"), (number, script, options)
            faults["refused"] += 1
            return
    assert list(found.tokens) == expected, (number, script, options)
    assert found.statistics.drafter_error is None
    faults["damaged"] += found.statistics.damaged
    faults["resumes"] += found.statistics.resumes
    faults["reopens"] += found.statistics.reopens
    faults["accepted"] += found.statistics.accepted


def run_scripts(numbers: range, house: House) -> Counter[str]:
    faults: Counter[str] = Counter()

    async def run() -> None:
        free = asyncio.Semaphore(AT_ONCE)

        async def one(number: int) -> None:
            async with free:
                await one_script(number, house, faults)

        # All of them end, also if one fails: what is cut off in its middle leaves sockets open.
        found = await asyncio.gather(*(one(n) for n in numbers), return_exceptions=True)
        for error in found:
            if error is not None:
                raise error

    for number in numbers:  # the twin is not for several threads, nor for the event loop
        prompt, params, _ = drawn(number, house)
        house.expected(prompt, params)
    asyncio.run(run())
    house.empty()
    return faults


def test_some_scripts(house: House) -> None:
    faults = run_scripts(range(24), house)
    assert all(
        faults[fault]
        for fault in ("drop", "truncate", "half-close", "duplicate", "reorder", "flip")
    )
    # Whether a flipped bit meets a check depends on what it hits: see `test_flipped_bits`.
    assert faults["refused"] <= 2
    assert faults["resumes"] > 8 and faults["accepted"] > 80  # the faults did happen


@pytest.mark.slow
def test_many_scripts(house: House) -> None:
    """With FORESAY_EXPLORE=1 two thousand."""
    faults: Counter[str] = Counter()
    numbers = range(24, 2024 if EXPLORES else 224, 200)
    for first in numbers:
        faults += run_scripts(range(first, first + 200), house)
    assert faults["damaged"] > 2 * len(numbers) and faults["refused"] <= 2 * len(numbers)


@pytest.mark.parametrize("json", [False, True])
async def test_many_flipped_bits_of_both_ways(house: House, json: bool) -> None:
    """Drafts that arrive as others cost speed; commits that do are asked for again."""
    prompt = house.plain.encode("the cat and the cat").tolist()
    params = SamplingParams(max_tokens=48, temperature=0.8, seed=1, ignore_eos=True)
    expected = house.expected(prompt, params)
    draw = random.Random(json)
    script = [Action("delay", "up", 1, 0.0), Action("delay", "down", 2, 0.0)]
    # Not what opens or resumes a connection: see `test_flipped_bits` for these.
    script += [
        Action("flip", way, 3, bit=draw.randrange(4096)) for way in ("up", "down") for _ in range(2)
    ]
    async with Proxy(house.port, chaos(script)) as proxy:
        options = {"drafter": Guessing(expected, 0.5, 1), "wait": "block", "json": json}
        found = await answer_through(
            proxy.port, prompt, params, vocabulary=house.vocabulary, **options
        )
    assert list(found.tokens) == expected and found.finish == "length"
    assert found.statistics.resumes + found.statistics.reopens > 0
    house.empty()


@pytest.mark.parametrize(
    ("after", "fault", "way"),
    pairs((0, 1, 2, 3), ("drop", "truncate", "half-close"), ("up", "down")),
)
def test_a_cut_at_every_place_of_the_beginning(
    house: House, fault: Any, way: Any, after: int
) -> None:
    """Also before the first answer: then a stream may fail, with a sentence, and leaves nothing."""
    prompt = house.plain.encode("the cat and the cat").tolist()
    params = SamplingParams(max_tokens=24, temperature=0.8, seed=1, ignore_eos=True)
    expected = house.expected(prompt, params)

    async def run() -> Answer:
        carry = chaos([Action(fault, way, after)])
        async with Proxy(house.port, carry) as proxy:
            return await answer_through(
                proxy.port, prompt, params, vocabulary=house.vocabulary, drafter="suffix"
            )

    try:
        assert list(asyncio.run(run()).tokens) == expected
    except StreamError as error:
        assert error.code == "unreachable" and "\n" not in str(error)
        assert (way, after) in {("up", 0), ("up", 1), ("down", 0), ("down", 1)}
    house.empty()


def leave(house: House) -> None:
    """A client that loses its connection in the middle, and never comes back."""
    prompt = house.plain.encode("the cat").tolist()
    params = SamplingParams(max_tokens=2000, seed=1, temperature=0.8, ignore_eos=True)

    async def run() -> None:
        async with Proxy(house.port) as proxy:
            client = EdgeClient(f"http://127.0.0.1:{proxy.port}", vocabulary=house.vocabulary)
            stream = client.stream(prompt, params)
            async for _ in stream:
                break
        # The proxy has ended: the stream's goodbye must not reach the server.
        await stream.aclose()
        client.close()

    asyncio.run(run())


def test_a_client_that_leaves_is_forgotten(house: House) -> None:
    leave(house)
    house.empty()
