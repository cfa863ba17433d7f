"""What an EdgeClient is given is checked when it is made; errors never show a key."""

from __future__ import annotations

import asyncio
import math
from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from edge.asking import answered
from edge.test_client import PROMPT, params
from edge.toy_cloud import VOCABULARY, toy_cloud
from foresay.edge.client import EdgeClient
from foresay.edge.connection import edge_url
from foresay.edge.gating import Gate
from foresay.edge.link import LinkRule
from foresay.errors import ForesayError, InputError, StreamError
from test_wrong_types import THINGS

URL = "http://127.0.0.1:1"


def made(**options: Any) -> EdgeClient:
    return EdgeClient(**{"url": URL, "vocabulary": VOCABULARY, **options})


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"retry_seconds": math.nan}, "retry_seconds is nan; expected a finite number of seconds"),
        ({"retry_seconds": -1}, "retry_seconds is -1; expected"),
        ({"retry_seconds": "x"}, "retry_seconds is 'x'; expected"),
        ({"retry_seconds": None}, "retry_seconds is None; expected"),
        ({"retry_seconds": math.inf}, "retry_seconds is inf; expected"),
        ({"connect_seconds": -0.1}, r"connect_seconds is -0\.1; expected"),
        ({"silent_seconds": "5"}, "silent_seconds is '5'; expected"),
        ({"pad": "x"}, "pad is 'x'; expected a number of bytes"),
        ({"pad": 1.5}, r"pad is 1\.5; expected a number of bytes"),
        ({"ends": 5}, "ends"),
        ({"ends": [1.5]}, "ends"),
        ({"ends": "ab"}, "ends"),
        ({"rule": 5}, "rule is 5; expected None, or an object with next_k and observe"),
        ({"rule": LinkRule}, "rule is .*expected None, or an object"),
        ({"gate": 0.5}, r"gate is 0\.5; expected a Gate or None"),
        ({"decode": "x"}, "decode is 'x'; expected a function or None"),
        ({"on_round": 5}, "on_round is 5; expected a function or None"),
        ({"api_key": 5}, "api_key is a int; expected a str"),
        ({"dropout": -3}, "dropout is -3; expected 0, or a whole number of passes from 2 to 256"),
        ({"dropout": 1}, "dropout is 1; expected 0, or"),
        ({"ahead": "no"}, "ahead is 'no'; expected True or False"),
        ({"json": 1}, "json is 1; expected True or False"),
        ({"model": None}, "model is None; expected a str"),
        ({"model": "x\ud800"}, r"model is 'x\\ud800'.*; expected a text of at most 256 characters"),
        ({"model": "x" * 257}, "model is 'xxx.*; expected a text of at most 256 characters"),
        ({"tokenizer_hash": bytes(65)}, "tokenizer_hash has 65 bytes; expected .* at most 64"),
        ({"connect_seconds": 10**400}, "connect_seconds is 1000.*; expected a finite number"),
        ({"tokenizer_hash": "x"}, "tokenizer_hash is 'x'; expected bytes"),
        ({"wait": "fast"}, "wait is 'fast'; expected block"),
        ({"pad": -1}, "pad is -1"),
        ({"drafter": "recycle"}, "needs to see the target"),
        ({"drafter": "self"}, "needs to see the target"),
        ({"edge_only": True}, "no model drafts"),
        ({"vocabulary": 0}, "vocabulary is 0"),
    ],
)
def test_wrong_kinds(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        made(**options)


@pytest.mark.parametrize(
    "name",
    [
        *("vocabulary", "api_key", "corpus", "model", "tokenizer_hash", "wait", "ahead", "rule"),
        *("gate", "dropout", "decode", "tree", "pad", "json", "connect_seconds", "edge_only"),
        *("silent_seconds", "retry_seconds", "ends", "on_round", "drafter", "url"),
    ],
)
def test_any_thing_is_taken_or_refused_with_a_sentence(name: str) -> None:
    refused = 0
    for thing in THINGS:
        try:
            made(**{name: thing})
        except ForesayError:
            refused += 1
    assert refused >= 10


async def test_wrong_params() -> None:
    with pytest.raises(InputError, match="params are 5; expected SamplingParams"):
        await made().answer(PROMPT, 5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "key", ["sk-top\nsecret", "sk-secret-ключ", "sk-secret\x7f", "sk secret", " \n"]
)
def test_a_key_that_cannot_be_sent_is_refused_and_not_shown(key: str) -> None:
    with pytest.raises(InputError, match="api_key is no key; expected printable") as caught:
        made(api_key=key)
    assert "secret" not in str(caught.value) and caught.value.__cause__ is None


async def test_the_line_break_of_a_file_is_no_part_of_a_key() -> None:
    async with toy_cloud() as cloud:
        await answered(cloud.url, VOCABULARY, PROMPT, params(), api_key=" sk-1\r\n")
        assert cloud.keys == ["Bearer sk-1"]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("127.0.0.1:8000", "expected a URL such as"),
        ("ftp://x", "expected a URL such as"),
        ("http://me:hunter2@host:80", "has a user or a password; expected none there"),
        ("http://me:hunter2@host:99999", "has a user or a password; expected none there"),
        ("me:hunter2@host", "one with an @, which is not shown here; expected a URL such as"),
        ("ftp://me:hunter2@host", "one with an @, which is not shown"),
        ("http://me:hunter2/@host", "expected a port from 1 to 65535"),
        ("http://a..b:80", "'http://a..b:80'; expected the name of a host"),
        ("http://" + "a" * 70 + ".org", "expected the name of a host"),
        ("http://host:99999", "'http://host:99999'; expected a port from 1 to 65535"),
        ("http://host:0", "expected a port from 1 to 65535"),
        ("http://host:x", "expected a port from 1 to 65535"),
    ],
)
def test_addresses_that_are_none(url: str, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        edge_url(url)
    assert sentence in str(caught.value) and "hunter2" not in str(caught.value)


def test_addresses() -> None:
    for url in ("http://[::1]:80", "https://bücher.example", "ws://host.", "http://my_host"):
        assert edge_url(url).endswith("/v1/edge")


@pytest.mark.parametrize("said", [b"HTTP/1.1 400 Bad Request\r\n\r\n", b""])
async def test_tls_where_there_is_none(said: bytes) -> None:
    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(100)
        writer.write(said)
        if said:
            writer.close()
        else:
            writer.transport.abort()

    server = await asyncio.start_server(plain, "127.0.0.1", 0)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    with pytest.raises(StreamError, match=r"; try http:// if the server has no TLS"):
        await answered(url, VOCABULARY, PROMPT, params())
    server.close()


def test_what_was_checked_cannot_be_changed() -> None:
    client: Any = made(tree=True)
    for name, value in {"tree": False, "retry_seconds": "x", "drafter": None}.items():
        with pytest.raises(FrozenInstanceError, match=name):
            setattr(client, name, value)
    client.close()


def test_what_is_valid_is_taken() -> None:
    made(gate=Gate(), rule=LinkRule(), silent_seconds=None, retry_seconds=0, ends=(1, 2)).close()
