"""Wrong variants of both ends, which the chaos tests have to notice."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from edge.test_chaos import House, leave, open_house, run_scripts
from foresay.edge import stream as stream_module
from foresay.edge.stream import Stream
from foresay.edge.text import EdgeText, Taken
from foresay.errors import StreamError
from foresay.serve.edge.streams import EdgeStreams

pytestmark = pytest.mark.slow

_commit, _hash_with, _opened = EdgeText.commit, EdgeText.hash_with, Stream._hello


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    """One for each test: a wrong variant leaves things behind."""
    with open_house(tmp_path_factory.mktemp("wrong")) as found:
        yield found


def takes_all(self: EdgeText, upto: int, tokens: Any, seq: int = 0) -> Taken:
    """Every commit counts as new, also one that comes twice."""
    return _commit(self, self.position + len(tokens), tokens, seq)


def closes_gaps(self: EdgeText, upto: int, tokens: Any, seq: int = 0) -> Taken:
    """A commit with tokens missing before it is joined to the text."""
    return _commit(self, min(upto, self.position + len(tokens)), tokens, seq)


def hashes_gaps(self: EdgeText, upto: int, tokens: Any) -> int:
    """The same, where the commit is checked."""
    return _hash_with(self, min(upto, self.position + len(tokens)), tokens)


def believes_drafts(self: EdgeText, upto: int, tokens: Any, seq: int = 0) -> Taken:
    """What is in flight at a position counts instead of what the cloud committed there."""
    given, flying = list(map(int, tokens)), self.ahead()
    if upto - len(given) == self.position == self.confirmed and flying and given:
        given[0] = flying[0]
    return _commit(self, upto, given, seq)


async def another_seed(self: Stream, connection: Any) -> Any:
    """A stream is opened with a seed of the client's own."""
    self.statistics.seed = 12345
    return await _opened(self, connection)


def believes_the_check(message: Any, *_: Any) -> Any:
    """A client that compares a commit's check with itself."""
    return message.check


def run_many(house: House) -> None:
    """Some faults need two messages to be swapped, for which a busy machine gives few chances."""
    for first in range(0, 600, 30):
        run_scripts(range(first, first + 30), house)


@pytest.mark.parametrize(
    ("place", "name", "wrong", "raised"),
    [
        (EdgeText, "commit", takes_all, (AssertionError, StreamError)),
        (EdgeText, "commit", believes_drafts, (AssertionError, StreamError)),
        (Stream, "_hello", another_seed, (AssertionError, StreamError)),
        (stream_module, "check_of_commit", believes_the_check, AssertionError),
    ],
    ids=["takes all", "believes drafts", "another seed", "believes every check"],
)
def test_a_wrong_text_is_noticed(
    house: House, monkeypatch: pytest.MonkeyPatch, place: Any, name: str, wrong: Any, raised: Any
) -> None:
    monkeypatch.setattr(place, name, wrong)
    with pytest.raises(raised):
        run_many(house)


def test_a_gap_that_is_closed_is_seen_by_the_check(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The text that is joined has another hash than the cloud's: it is asked for again."""
    monkeypatch.setattr(EdgeText, "commit", closes_gaps)
    monkeypatch.setattr(EdgeText, "hash_with", hashes_gaps)
    run_scripts(range(60), house)
    monkeypatch.setattr(stream_module, "check_of_commit", believes_the_check)
    with pytest.raises((AssertionError, StreamError)):
        run_many(house)


def test_the_same_without_a_wrong_variant(house: House) -> None:
    run_scripts(range(20), house)


def test_a_stream_that_is_not_let_go_is_noticed(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As if a connection that is lost kept its stream."""
    monkeypatch.setattr(EdgeStreams, "detach", lambda self, stream, owner: None)
    leave(house)
    with pytest.raises(AssertionError, match="it takes too long"):
        house.empty(4)
    for stream in house.server.server._routes.edge.streams._by_name.values():
        stream.owner = None
