"""Edge streams over real WebSockets: whatever is drafted, the text is that of the plain loop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from foresay.draft import Draft
from foresay.edge.messages import FINISH, WAITS, Close, DraftMessage
from foresay.engine.llm import LLM
from foresay.sampling.noise import SPEC
from foresay.serve.driver import Driver
from foresay.serve.limits import Limits
from foresay.serve.stream import AnswerStream
from pairs import pairs
from serve.edge_client import (
    ENDLESS,
    Say,
    Text,
    agreed,
    begun,
    cloud,
    edge_counts,
    edge_server,
    follow,
    nothing_left,
    opened,
    opening,
    right,
    streams_of,
    wanted,
    whole,
)
from serve.running import Running, wait_for

PROMPT = "ab and ab and"
SHORT = 0.02  # seconds that a draft is waited for: most tests draft badly


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    limits = Limits(draft_seconds=SHORT, edge_seconds=0.5)
    with edge_server(folder, limits=limits) as found:
        yield found


def wrong(answer: Sequence[int], text: Text) -> list[DraftMessage]:
    done = len(text.ids)
    return [text.draft([(token + 1) % 256 for token in answer[done : done + 5]])]


def trees(answer: Sequence[int], text: Text) -> list[DraftMessage]:
    """The right path with wrong branches beside it, and one sibling twice."""
    tokens, parents, above = list[int](), list[int](), -1
    for token in answer[len(text.ids) : len(text.ids) + 3]:
        tokens += [(token + 7) % 256, token, token]
        parents += [above, above, above]
        above = len(tokens) - 2
    return [text.draft(Draft(tokens, parents))]


def ahead(answer: Sequence[int], text: Text) -> Iterator[DraftMessage]:
    """Three drafts that continue each other, once, and then one more for each commit."""
    while (sent := 4 * text.seq) < min(len(text.ids) + 12, len(answer)):
        known = Text(text.opened, [*text.prompt, *answer[:sent]])
        base = len(text.prompt) + sent
        yield text.draft(answer[sent : sent + 4], base=base, prefix=known.hash())


def twice(answer: Sequence[int], text: Text) -> list[DraftMessage]:
    (one,) = right(answer)(text)
    return [one, one, text.draft([1, 2], seq=max(text.seq - 1, 1))]


def foreign(answer: Sequence[int], text: Text) -> list[DraftMessage]:
    (one,) = right(answer)(text)
    return [text.draft(answer[:4], prefix=one.prefix ^ 1), text.draft([3], base=2**31 - 1)]


def late(answer: Sequence[int], text: Text) -> list[DraftMessage]:
    """Always for the text before the last token, as far as it is known."""
    done = max(len(text.ids) - 1, 0)
    base = len(text.prompt) + done
    return [text.draft(answer[done : done + 6], base=base, prefix=text.hash(base))]


OTHERS = {each.__name__: each for each in (wrong, trees, ahead, twice, foreign, late)}
SAYS: dict[str, Callable[[Sequence[int]], Say]] = {
    "nothing": lambda answer: lambda text: (),
    "right": right,
    **{name: partial(partial, say) for name, say in OTHERS.items()},  # of the answer: a Say
    "empty": lambda answer: lambda text: [text.draft([])],
}


@pytest.mark.parametrize(("name", "wait", "temperature"), pairs(SAYS, WAITS, (0.0, 0.8)))
def test_the_text_is_that_of_the_plain_loop(
    server: Running, plain: LLM, name: str, wait: str, temperature: float
) -> None:
    asked = opening(server, PROMPT, temperature=temperature, seed=7, max_tokens=40, wait=wait)
    text, _ = asyncio.run(agreed(server, plain, asked, SAYS[name]))
    assert text.finish == ("length" if len(text.ids) == 40 else "stop")
    assert text.opened.wait == wait and text.opened.seed == 7
    assert text.opened.position == len(text.prompt) and text.opened.noise == SPEC
    upto = [commit.upto for commit in text.commits]
    assert upto == sorted(set(upto)) and upto[-1] == text.position


def test_right_drafts_are_used(server: Running, plain: LLM) -> None:
    """Fails if offers are dropped anywhere on their way: then a token takes a step."""
    asked = opening(server, "xyz", temperature=0.8, seed=3, max_tokens=60, wait="block")
    before = server.server._routes.steps.total.steps
    text, _ = asyncio.run(agreed(server, plain, asked))
    steps = server.server._routes.steps.total.steps - before
    assert len(text.ids) == 60
    assert steps < 20
    middle = text.commits[1:-1]
    assert sum(commit.accepted for commit in middle) > 3 * len(middle)
    counts = edge_counts(server)
    assert counts["drafts"] >= 8 and counts["drafted_tokens"] >= 40


@pytest.mark.parametrize("wait", WAITS)
@pytest.mark.parametrize("most", [1, 2, 3])
def test_short_answers(server: Running, plain: LLM, wait: str, most: int) -> None:
    asked = opening(server, "abc", temperature=0.0, max_tokens=most, wait=wait)
    text, _ = asyncio.run(agreed(server, plain, asked, lambda answer: right([*answer, 1, 2, 3])))
    assert text.finish == "length"


def test_stops(server: Running, plain: LLM) -> None:
    how: dict[str, Any] = {"temperature": 0.8, "seed": 11, "max_tokens": 50}
    answer = wanted(plain, opening(server, PROMPT, **how))
    beyond = right(answer)  # drafts beyond the stop
    at = next(n for n in range(12, 50) if answer[n] not in answer[:n])
    asked = opening(server, PROMPT, stop_ids=(answer[at],), **how)
    text, _ = asyncio.run(agreed(server, plain, asked, lambda _: beyond))
    assert text.ids == answer[: at + 1] and text.finish == "stop"
    asked = opening(server, PROMPT, stop=(server.llm.tokenizer.decode(answer[20:23]),), **how)
    text, _ = asyncio.run(agreed(server, plain, asked, lambda _: beyond))
    assert len(text.ids) <= 23 and text.finish == "stop"


def test_commits_say_what_became_of_the_latest_draft(server: Running, plain: LLM) -> None:
    asked = opening(server, PROMPT, temperature=0.0, max_tokens=30, wait="block")
    answer = wanted(plain, asked)

    def say(text: Text) -> list[DraftMessage]:
        done = len(text.ids)
        return [text.draft([*answer[done : done + 3], (answer[min(done + 3, 29)] + 1) % 256])]

    text, _ = asyncio.run(whole(server, asked, say))
    assert text.ids == answer
    for commit in text.commits[1:]:
        assert 1 <= commit.seq <= text.seq and commit.accepted <= 4
        assert 0 < commit.server_us < 60e6
    assert text.commits[-1].finish == FINISH.index("length")
    assert [commit.finish for commit in text.commits[:-1]] == [0] * (len(text.commits) - 1)
    assert any(commit.accepted >= 3 for commit in text.commits)
    nothing, _ = asyncio.run(whole(server, asked))
    assert {(c.seq, c.accepted, c.server_us) for c in nothing.commits} == {(0, 0, 0)}


@pytest.mark.parametrize(
    ("pad", "as_json"), [(64, True), *((pad, False) for pad in (1, 64, 1000, 4096, 16384))]
)
async def test_padding_hides_the_lengths(
    server: Running, plain: LLM, pad: int, as_json: bool
) -> None:
    """And who asks in JSON is answered in JSON."""
    asked = opening(server, PROMPT, temperature=0.8, seed=5, max_tokens=20, pad=pad)
    _, line = await agreed(server, plain, asked, as_json=as_json)
    assert {size % pad for size in line.sizes} == {0}
    if pad >= 1000:
        assert set(line.sizes) == {pad}


def test_close_frees_everything_at_once(server: Running) -> None:
    async def run() -> list[object]:
        async with cloud(server) as line:
            text = await opened(line, opening(server, PROMPT, **ENDLESS))
            await follow(line, text, until=3)
            await line.send(Close("enough"))
            return [m for m in await line.ends() if type(m).__name__ != "Commit"]

    errors = edge_counts(server).get("errors", 0)
    for _ in range(5):
        assert asyncio.run(run()) == []  # no error
        nothing_left(server, 2)
    assert edge_counts(server).get("errors", 0) == errors


def test_who_asks_and_leaves_leaves_nothing(server: Running) -> None:
    """Before OPENED could be sent, too."""

    async def run(wait: float) -> None:
        async with cloud(server) as line:
            await line.send(opening(server, PROMPT, **ENDLESS))
            await asyncio.sleep(wait)
            line.socket.transport.abort()

    for wait in (0, 0, 0, 0.001, 0.003, 0.01):
        asyncio.run(run(wait))
    wait_for(lambda: server.server._routes.driver.under_way == 0, 20)
    nothing_left(server, 20)


async def test_a_lost_connection_is_waited_for_and_then_forgotten(server: Running) -> None:
    await begun(server, opening(server, PROMPT, **ENDLESS), until=3)
    time.sleep(0.1)
    assert streams_of(server) == 1 and server.server._routes.driver.under_way == 1
    nothing_left(server, 5)


async def test_many_at_once(server: Running, plain: LLM) -> None:
    cases = []
    for n in range(18):
        how: dict[str, Any] = {"temperature": 0.8 if n % 3 else 0.0, "seed": n, "max_tokens": 16}
        asked = opening(server, f"{n % 4} and", wait=WAITS[n % 3], **how)
        cases.append((asked, wanted(plain, asked), list(SAYS.values())[n % len(SAYS)]))
    texts = await asyncio.gather(*(whole(server, a, say(w)) for a, w, say in cases))
    assert [text.ids for text, _ in texts] == [answer for _, answer, _ in cases]
    nothing_left(server)


TIMED = [("right", "block"), ("ahead", "block"), ("empty", "block"), ("nothing", "adaptive")]


def test_time_is_not_wasted(folder: Path, plain: LLM) -> None:
    """With the usual half second per wait: nobody may need even one of them per commit."""
    with edge_server(folder) as server:
        assert server.server._limits.draft_seconds == 0.5
        for name, wait in TIMED:
            asked = opening(server, PROMPT, temperature=0.8, seed=2, max_tokens=40, wait=wait)
            answer, start = wanted(plain, asked), time.monotonic()
            text, _ = asyncio.run(whole(server, asked, SAYS[name](answer)))
            assert text.ids == answer
            assert time.monotonic() - start < (2 if wait == "block" else 3), name


def test_the_first_draft_is_waited_for(
    folder: Path, plain: LLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the engine has begun long before the server goes on with the stream."""
    submit = Driver.submit

    async def delayed(*args: Any) -> AnswerStream:
        answer = await submit(*args)
        await asyncio.sleep(0.2)
        return answer

    monkeypatch.setattr(Driver, "submit", delayed)
    with edge_server(folder, limits=Limits(draft_seconds=5.0)) as server:
        asked = opening(server, PROMPT, temperature=0.0, max_tokens=20, wait="block")
        text, _ = asyncio.run(agreed(server, plain, asked))
    first, second, *_ = text.commits
    assert first.upto == len(text.prompt) + 1 and second.seq


@pytest.mark.parametrize("as_json", [False, True])
def test_commits_have_the_rates_of_the_latest_draft(
    folder: Path, plain: LLM, as_json: bool
) -> None:
    """Of the draft alone, not of what the cloud's own drafts add. The cloud waits for every draft,
    also on a busy machine."""
    drafts: dict[int, tuple[int, int]] = {}  # by seq: where it starts, and its right tokens

    def say(text: Text) -> list[DraftMessage]:
        done = len(text.ids)
        good = 4 if len(drafts) % 2 else 2
        wrong_ones = [(token + 1) % 256 for token in answer[done + good :]]
        found = text.draft([*answer[done : done + good], *wrong_ones][:4])
        drafts[found.seq] = done, good
        return [found]

    with edge_server(folder, limits=Limits(draft_seconds=5.0)) as server:
        asked = opening(server, PROMPT, temperature=0.0, max_tokens=40, wait="block")
        answer = wanted(plain, asked)
        text, _ = asyncio.run(whole(server, asked, say, as_json=as_json))
    assert text.ids == answer
    reached = 0
    for commit in text.commits[1:]:
        start, good = drafts[commit.seq]
        so_far = commit.upto - len(text.prompt) - start  # committed behind the draft's start
        size = min(4, len(answer) - start)
        accepted = min(good, size, so_far)
        examined = min(accepted + (accepted < so_far), size)
        assert (commit.accepted, commit.examined, commit.drafted) == (accepted, examined, size)
        assert commit.alpha_mean == (accepted / examined if examined else None)
        assert commit.la_over_k == (accepted / size if examined else None)
        reached += examined > 0
        assert commit.pending == (0 if commit.finish else 1)
        assert commit.kv_length == (None if commit.finish else commit.upto - 1)
    assert reached > 3
