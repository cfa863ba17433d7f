"""Two servers compared over real HTTP: equal ones pass, wrong ones are found, broken ones named."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from foresay.errors import InputError, ServerError
from foresay.lossless.answers import Difference, GreedyResult, SampledResult
from foresay.lossless.servers import (
    PROMPTS,
    Answer,
    Server,
    _difference,
    greedy_equality,
    sampled_equality,
    two_servers,
)
from lossless.toy_server import ASK, WORDS, Toy, serving

Start = Callable[[Toy], Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """Starts the server of a toy; all are shut down after the test."""
    with ExitStack() as stack:
        yield lambda toy: Server(stack.enter_context(serving(toy)), timeout=10)


def test_a_server_is_found_by_its_url(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")  # which knows nothing of this machine
    seen: list[Any] = []
    with serving(Toy(), seen) as url:
        for given in (url, url + "/", url + "/v1", url + "/v1/"):
            assert Server(given).url == url + "/v1"
        assert Server(url).model == "toy"
        with pytest.raises(
            ServerError, match="/v2/models answered with status 404: 'no such page'"
        ):
            Server(url + "/v2")
        seen.clear()
        server = Server(url, model="mine", api_key="secret", extra={"top_k": -1})
        assert not seen and "secret" not in repr(server)
        server.complete("sea", max_tokens=1, temperature=0)
    path, key, body = seen[0]
    assert (path, key) == ("/v1/completions", "Bearer secret")
    assert body["model"] == "mine" and body["top_k"] == -1 and body["prompt"] == "sea"


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000",
        "file:///etc/passwd",
        "http://",
        "ws://host",
        "http://[::1",
        "http://host:port",
        "http://host:99999",
    ],
)
def test_what_is_no_url_is_refused(url: str) -> None:
    with pytest.raises(InputError, match="is no server"):
        Server(url)


@pytest.mark.parametrize("key", ["ключ", "secret\n", "se\x00cret"])
def test_a_key_that_no_header_can_carry_is_refused(key: str) -> None:
    with pytest.raises(InputError, match="API key cannot be sent in a header") as raised:
        Server("http://127.0.0.1:9", "toy", key)
    assert key not in str(raised.value)
    Server("http://127.0.0.1:9", "toy", "schlüssel")


def test_one_server_is_not_two() -> None:
    for other in ("http://127.0.0.1:9/", "http://127.0.0.1:9/v1", "HTTP://127.0.0.1:9"):
        with pytest.raises(
            InputError, match=r"both servers are http://127\.0\.0\.1:9/v1; expected two diff"
        ):
            two_servers(("http://127.0.0.1:9", other), "toy")
    a, b = two_servers(("http://127.0.0.1:9", "http://127.0.0.1:10"), "toy", "key")
    assert (a.url, b.url) == ("http://127.0.0.1:9/v1", "http://127.0.0.1:10/v1")


def test_a_connection_that_is_reset_is_tried_again() -> None:
    seen: list[Any] = []
    with serving(Toy(), seen, resets=2) as url:
        assert Server(url).model == "toy"
    assert len(seen) == 3
    with serving(Toy(), seen, resets=3) as url, pytest.raises(ServerError, match="gave no answer"):
        Server(url)
    assert len(seen) == 6


def test_equal_servers_are_equal(start: Start) -> None:
    a, b = start(Toy()), start(Toy())
    greedy = greedy_equality(a, b, max_tokens=6)
    assert greedy.equal and greedy.prompts == len(PROMPTS) == 20
    assert str(greedy) == "greedy: equal in all of 20 prompts"
    asked: list[int] = []
    sampled = sampled_equality(a, b, ASK, n=128, max_tokens=2, progress=asked.append)
    assert sampled.equal and len(sampled.tests) == 1
    assert sum(asked) == 2 * len(ASK) * 128 / 8
    assert sampled.false_alarm == pytest.approx(1e-6)
    assert sampled.each is not None and sampled.alone is not None
    assert 0.1 < sampled.each < sampled.alone < 1
    assert f"{sampled.each:.2g} in all prompts" in str(sampled)
    assert sampled.tests[0].chi_square == pytest.approx(sampled.tests[0].p_value, abs=0.1)


def test_a_greedy_difference_is_shown_with_its_margin(start: Start) -> None:
    result = greedy_equality(start(Toy()), start(Toy(turn=2)), ASK, max_tokens=4, workers=4)
    assert not result.equal and [d.prompt for d in result.differences] == [0, 1, 2]
    first = result.differences[0]
    assert (first.a, first.b) == (" sea sea sea sea", " sea sea sky sky")
    assert first.a[: first.at] == first.b[: first.at] == " sea sea s"
    assert first.margin == pytest.approx(math.log(0.45 / 0.3))
    assert result.faults() == result.differences
    assert "different in 3 of 3" in str(result)
    assert str(first) in str(result)
    assert str(first) == (
        "prompt 0 ('the sea'): A writes ' sea sea sea sea' and B ' sea sea sky sky', different "
        "from character 10 on, of margin 0.405 nats"
    )


def test_a_tie_is_told_from_a_fault(start: Start) -> None:
    a, b = start(Toy(gap=0.002)), start(Toy(turn=1, gap=0.003))
    result = greedy_equality(a, b, ASK, max_tokens=3)
    assert not result.equal and result.faults() == ()
    assert result.differences[0].margin == pytest.approx(0.003)
    assert len(result.faults(tie=0.001)) == 3


@pytest.mark.parametrize("tie", [-0.1, math.nan, math.inf])
def test_what_is_no_tie_is_refused(tie: float) -> None:
    with pytest.raises(InputError, match="expected a margin in nats"):
        GreedyResult(1, ()).faults(tie)


def test_a_margin_that_is_no_number_is_a_fault(start: Start) -> None:
    odd = Difference(0, 0, "a", "b", math.nan)
    assert GreedyResult(1, (odd,)).faults(100.0) == (odd,)
    a, b = start(Toy(gap=0.0)), start(Toy(turn=1, gap=math.nan))
    assert len(greedy_equality(a, b, ASK, max_tokens=3).faults(100.0)) == 3


def written(token: str, margin: float | None = 0.001, top: tuple[str, ...] = ("x", "y")) -> Answer:
    return Answer(token, (token,), (margin,), (token,), (top,))


@pytest.mark.parametrize(
    ("a", "b", "margin"),
    [
        (written("x"), written("y", 0.002), 0.002),
        (written("x"), written("y", None, ()), 0.001),  # one server tells of both
        (written("x"), written("z"), None),  # a tie, but not of what was written
        (written("x"), written("y", top=("x", "z")), None),
        (written("x", None, ()), written("y", None, ()), None),
        (written("x"), Answer(""), None),  # it ended there
        (written("x"), written("z", top=("x", "z")), None),
    ],
)
def test_only_a_tie_of_what_was_written_excuses(a: Answer, b: Answer, margin: float | None) -> None:
    assert _difference(0, "prompt", a, b).margin == margin


def test_a_long_prompt_is_shown_by_its_beginning() -> None:
    assert _difference(7, "0123456789" * 9, written("x"), written("y")).asked == (
        "012345678901234567890123456789…"
    )


@pytest.mark.parametrize("logprobs", ["absent", "refused"])
def test_servers_without_logprobs_are_fine(start: Start, logprobs: str) -> None:
    a, b = start(Toy(logprobs=logprobs)), start(Toy(turn=0, logprobs=logprobs))
    assert greedy_equality(a, a, ASK, max_tokens=3).equal
    result = greedy_equality(a, b, ASK, max_tokens=3)
    assert [d.margin for d in result.differences] == [None] * 3
    assert len(result.faults()) == 3


def test_logprobs_of_another_shape_are_ignored(start: Start) -> None:
    reply = b'{"choices": [{"text": "x", "logprobs": {"top_logprobs": [[1], null, {"a": 0}]}}]}'
    assert start(Toy(reply=reply)).complete("sea")[0].margins == (None, None, None)
    reply = b'{"choices": [{"text": "x", "logprobs": [1], "token_ids": [7, 8]}]}'
    assert start(Toy(reply=reply)).complete("sea")[0].tokens == (7, 8)
    reply = b'{"choices": [{"text": "x", "logprobs": {"top_logprobs": [{"a": null, "b": "c"}]}}]}'
    assert start(Toy(reply=reply)).complete("sea")[0].margins == (None,)


def test_a_biased_law_is_found(start: Start) -> None:
    result = sampled_equality(start(Toy()), start(Toy(bias=0.15)), ASK, n=160, max_tokens=1)
    assert not result.equal and len(result.tests) == 2
    assert all(test.p_value <= 1e-3 for test in result.tests)
    assert result.tests[1].chi_square < 1e-9
    prompt, text, a, b = result.tests[1].shift
    assert text.strip() in WORDS and abs(a - b) > 60 and 0 <= prompt < 3
    assert "different" in str(result) and f"A answers {text!r}" in str(result)


def test_servers_that_give_one_answer_at_a_time(start: Start) -> None:
    a, b = start(Toy()), start(Toy(answers="one"))
    result = sampled_equality(a, b, ASK[:1], n=50, max_tokens=1)
    assert result.equal and result.n == 51  # 17 requests for 3 each, not 7 for 8


def test_copies_of_one_answer_are_refused(start: Start) -> None:
    a, b = start(Toy()), start(Toy(answers="copies"))
    with pytest.raises(ServerError, match=r"copies of one answer where 8 samples.*per_request=1"):
        sampled_equality(a, b, ASK, n=128, max_tokens=1)
    assert sampled_equality(a, b, ASK, n=40, max_tokens=1, per_request=1).equal


def test_a_test_without_power_says_so(start: Start) -> None:
    result = sampled_equality(start(Toy()), start(Toy()), ASK, n=20, max_tokens=12)
    assert result.equal and result.each is None and "which says nothing" in str(result)
    assert not result.proved
    coarse = SampledResult(True, 3, 20, result.tests, 1e-6, 0.26, None)
    assert not coarse.proved and "too few answers to prove anything" in str(coarse)
    fine = SampledResult(True, 3, 20, result.tests, 1e-6, 0.25, None)
    assert fine.proved and "too few" not in str(fine)
    assert not SampledResult(False, 3, 20, result.tests, 1e-6, 0.25, None).proved


def test_no_seed_is_used_twice() -> None:
    seen: list[Any] = []
    with serving(Toy(bias=0.15), seen) as a, serving(Toy(), seen) as b:
        sampled_equality(Server(a), Server(b), ASK, n=150, max_tokens=1, seed=5)
    used = [body["seed"] + i for _, _, body in seen if body for i in range(body["n"])]
    assert len(used) == len(set(used)) and min(used) == 5


@pytest.mark.parametrize(
    "change",
    [
        {"n": 0},
        {"temperature": 0},
        {"alpha": 1e-5},
        {"per_request": 0},
        {"prompts": ()},
        {"max_tokens": 0},
    ],
)
def test_arguments_that_are_refused(change: dict[str, Any]) -> None:
    server = Server("http://127.0.0.1:9", model="none")
    with pytest.raises(InputError, match=r"not valid|expected"):
        sampled_equality(server, server, **change)
    with pytest.raises(InputError, match="max_tokens is 0; expected at least 1"):
        greedy_equality(server, server, max_tokens=0)


@pytest.mark.parametrize(
    ("toy", "sentence"),
    [
        (
            Toy(status=500, reply=b"out of memory"),
            r"/v1/completions .* status 500: 'out of memory'",
        ),
        (Toy(reply=b"<html>hello"), "status 200 but no JSON with choices.*<html>hello"),
        (Toy(reply=b"[" * 100_000), r"status 200 but no JSON.*\[\[\["),
        (Toy(reply=b"[1]"), r"no JSON with choices that have a text: '\[1\]'"),
        (Toy(reply=b'{"object": "error"}'), "no JSON with choices .*object"),
        (Toy(reply=b'{"choices": []}'), "no JSON with choices that have a text"),
        (Toy(reply=b'{"choices": [{"text": null}]}'), "no JSON with choices that have a text"),
        (Toy(reply=b'{"choices": [{"message": {}}]}'), "no JSON with choices .*message"),
        (Toy(reply=b"x" * 5_000), "'x{200}'$"),
    ],
)
def test_broken_servers_are_named(start: Start, toy: Toy, sentence: str) -> None:
    a, b = start(Toy()), start(toy)
    with pytest.raises(ServerError, match=sentence) as raised:
        greedy_equality(a, b, ASK, max_tokens=2)
    assert b.url in str(raised.value)
    with pytest.raises(ServerError, match=sentence):
        sampled_equality(a, b, ASK, n=16)


def test_a_slow_server_is_named_and_one_that_is_gone() -> None:
    with serving(Toy(delay=0.5)) as url:
        slow, began = Server(url, timeout=0.1), time.monotonic()
        with pytest.raises(ServerError, match=r"no answer, with a timeout of 0\.1 s.*timed out"):
            sampled_equality(slow, slow, n=256, workers=2)
        assert time.monotonic() - began < 5  # nobody waited for the other requests
    with pytest.raises(ServerError, match=r"/v1/models gave no answer.*Connection"):
        Server(url)


def test_what_progress_raises_comes_through(start: Start) -> None:
    def stop(answered: int) -> None:
        raise KeyboardInterrupt

    server = start(Toy())
    with pytest.raises(KeyboardInterrupt):
        sampled_equality(server, server, ASK, progress=stop)


def test_a_prefix_is_a_difference(start: Start) -> None:
    short, long = (f'{{"choices": [{{"text": "{text}"}}]}}'.encode() for text in ("ab", "abc"))
    result = greedy_equality(start(Toy(reply=short)), start(Toy(reply=long)), ["x"])
    assert [(d.at, d.a, d.b, d.margin) for d in result.differences] == [(2, "ab", "abc", None)]
