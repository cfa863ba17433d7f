"""The client and `foresay edge` against the real server with a tiny model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.asking import answered
from foresay.bench.proxy import Proxy
from foresay.corpus import build_from
from foresay.drafter import Source
from foresay.edge.client import EdgeClient
from foresay.edge.gating import Gate, Thresholds
from foresay.edge.link import AcceptanceRule
from foresay.engine.llm import LLM
from foresay.errors import StreamError
from foresay.sampling.params import SamplingParams
from pairs import pairs
from serve.edge_client import edge_llm
from serve.running import MEMORY, Running, running
from tiny import call, one_thread, save_model

COUNT = 48
TEXT = "one two one two one"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("edge"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, None, dtype="float32", memory=MEMORY)


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    with one_thread(), running(*edge_llm(folder)) as found:
        yield found


def params(temperature: float) -> SamplingParams:
    return SamplingParams(max_tokens=COUNT, temperature=temperature, seed=3, ignore_eos=True)


WAYS: dict[str, dict[str, Any]] = {
    "ahead": {},
    "blocking": {"ahead": False},
    "tree": {"tree": True},
    "padded": {"pad": 256},
    "json": {"json": True},
    "gate": {"gate": Gate(Thresholds(nll=0.5))},
    "no drafter": {"drafter": None},
}


@pytest.mark.parametrize(
    ("way", "temperature", "wait"), pairs(WAYS, (0.0, 0.8), ("block", "free-run", "adaptive"))
)
async def test_the_text_is_that_of_the_model(
    server: Running, llm: LLM, way: str, temperature: float, wait: Any
) -> None:
    prompt = llm.tokenizer.encode(TEXT)
    expected = llm.generate([prompt], params(temperature))[0].token_ids
    vocabulary = llm.target.vocabulary
    found = await answered(
        server.url, vocabulary, prompt, params(temperature), wait=wait, **WAYS[way]
    )
    assert list(found.tokens) == list(expected)
    counted = found.statistics
    assert found.finish == "length" and counted.wait == wait
    assert counted.drafter_error is None and counted.resumes == counted.reopens == 0
    if way != "no drafter" and wait == "block" and not temperature:
        assert counted.accepted > 0
        assert sum(s != Source.MODEL for s in found.sources) == counted.accepted
    server.idle()


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_signals_of_a_model_say_when_to_send(
    server: Running, llm: LLM, folder: Path, temperature: float
) -> None:
    """Entropy, margin and the variance over passes with dropout: each alone makes every token
    hard or none, and the text stays."""
    prompt = llm.tokenizer.encode(TEXT)
    expected = llm.generate([prompt], params(temperature))[0].token_ids
    off: dict[str, Any] = {"entropy_bits": None, "margin": None, "hard_ratio": 1.0}
    limits = {"nll": (0.0, 1e9), "entropy_bits": (0.0, 1e9), "margin": (1.0, 0.0)}
    limits["variance"] = (0.0, 1.0)

    async def run(gate: Gate) -> float:
        how: dict[str, Any] = {"wait": "block", "drafter": f"model:{folder}", "dropout": 4}
        vocabulary, asked = llm.target.vocabulary, params(temperature)
        found = await answered(server.url, vocabulary, prompt, asked, gate=gate, **how)
        assert list(found.tokens) == list(expected)
        assert found.statistics.sent > 0 and found.statistics.drafter_error is None
        assert found.statistics.hard_ratio is not None
        return found.statistics.hard_ratio

    for name, (all_hard, none_hard) in limits.items():
        assert asyncio.run(run(Gate(Thresholds(**{**off, name: all_hard})))) == 1.0, name
        assert asyncio.run(run(Gate(Thresholds(**{**off, name: none_hard})))) == 0.0, name
    server.idle()


async def test_the_target_as_draft_model_foresees_what_is_sampled(
    server: Running, llm: LLM, folder: Path
) -> None:
    """It draws with the same noise: without it about every second token would be another one."""
    prompt = llm.tokenizer.encode(TEXT)
    how: dict[str, Any] = {"wait": "block", "ahead": False, "drafter": f"model:{folder}"}
    how["rule"] = AcceptanceRule()
    sent = accepted = 0
    for seed in range(20):  # a busy cloud decodes some tokens itself: then fewer are drafted
        given = replace(params(0.8), seed=seed)
        found = await answered(server.url, llm.target.vocabulary, prompt, given, **how)
        sent, accepted = sent + found.statistics.sent, accepted + found.statistics.accepted
        if sent > 60:
            break
    assert accepted >= 0.7 * sent > 40
    server.idle()


async def test_a_lost_connection_is_resumed(server: Running, llm: LLM) -> None:
    """The client's own socket is cut under it, again and again."""
    prompt = llm.tokenizer.encode(TEXT)
    expected = llm.generate([prompt], params(0.8))[0].token_ids
    seen: list[int] = []
    async with Proxy(int(server.url.rpartition(":")[2])) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        client = EdgeClient(url, vocabulary=llm.target.vocabulary, wait="block")
        async for piece in client.stream(prompt, params(0.8)):
            seen += piece.tokens
            cuts = len(proxy.connections)
            if cuts < 4 and piece.tokens and len(seen) > 8 * cuts:
                proxy.cut()
            if piece.statistics is not None:
                assert piece.statistics.resumes >= 1 and piece.statistics.reopens == 0
        client.close()
    assert seen == list(expected)
    server.idle()


def test_refusals_are_sentences(server: Running, llm: LLM) -> None:
    vocabulary = llm.target.vocabulary
    with pytest.raises(StreamError, match=r"expected .* the model's") as caught:
        asyncio.run(answered(server.url, 1000, [1, 2], params(0.0)))
    assert caught.value.code == "bad_request"
    with pytest.raises(StreamError):
        asyncio.run(answered(server.url, vocabulary, [1, 2], params(0.0), model="another"))


def test_the_command(server: Running, llm: LLM, folder: Path) -> None:
    fixed = ("edge", "--cloud", server.url, "--model", folder, "--max-tokens", COUNT, "--seed", 3)
    for temperature in (0, 0.8):
        asked = SamplingParams(max_tokens=COUNT, temperature=temperature, seed=3)
        expected = llm.generate([TEXT], asked, chat=True)[0]
        done = call(*fixed, TEXT, "--temperature", temperature, "--json")
        assert done.status == 0, done.err
        out = json.loads(done.out)
        assert out["text"] == expected.text and out["token_ids"] == list(expected.token_ids)
        assert out["prompt"] == TEXT and out["finish_reason"] == expected.finish_reason
        assert out["edge_only"] == 0 and out["stats"]["bytes_up"] > 0
    done = call(*fixed, TEXT, "--wait", "block", "--k", "acceptance", "--gate", "--no-ahead")
    assert done.status == 0
    assert (
        done.out
        == llm.generate([TEXT], SamplingParams(max_tokens=COUNT, temperature=0), chat=True)[0].text
        + "\n"
    )
    assert "bytes up" in done.complaints and "round trip" in done.complaints


def test_the_command_with_a_gate(server: Running, llm: LLM, folder: Path, tmp_path: Path) -> None:
    corpus = tmp_path / "words.corpus"
    build_from([llm.tokenizer.encode(TEXT)], corpus, vocabulary=llm.target.vocabulary)
    asked = SamplingParams(max_tokens=COUNT, temperature=0)
    expected = llm.generate([TEXT], asked, chat=True)[0]
    fixed = ("edge", "--cloud", server.url, "--model", folder, "--max-tokens", COUNT, TEXT)
    model = ("--drafter", f"model:{folder}")
    for drafter in (("--corpus", corpus), (*model, "--dropout", 3)):
        done = call(*fixed, "--gate", "--json", "--wait", "block", *drafter)
        assert done.status == 0, done.err
        out = json.loads(done.out)
        assert out["token_ids"] == list(expected.token_ids)
        assert out["stats"]["hard_ratio"] > 0
    for options, sentence in (
        (("--dropout", 3), "--dropout is 3; expected 0 without a gate"),
        (("--gate", "--dropout", 3), "the drafter 'suffix' cannot draft with dropout"),
        (
            ("--gate", "--dropout", 1, *model),
            "--dropout is 1; expected 0, or a whole number of passes from 2 to 256",
        ),
    ):
        done = call(*fixed, *options)
        assert done.status == 1 and sentence in done.complaints


def test_the_command_refuses_in_sentences(server: Running, folder: Path) -> None:
    fixed = ("--model", folder, "Hello")
    done = call("edge", "--cloud", "http://127.0.0.1:9", *fixed)
    assert done.status == 1 and "connection refused; expected a server" in done.complaints
    done = call("edge", "--cloud", "nowhere", *fixed)
    assert done.status == 1 and "expected a URL such as" in done.complaints
    done = call("edge", "--cloud", server.url, *fixed, "--edge-only")
    assert done.status == 1 and "--draft-model" in done.complaints
    assert call("edge", *fixed).status == 2


def test_edge_only_is_labelled(folder: Path) -> None:
    asked = ("edge", "--cloud", "http://127.0.0.1:9", "--model", folder, "Hello", "--edge-only")
    done = call(*asked, "--draft-model", folder, "--max-tokens", 12, "--json")
    assert done.status == 0, done.err
    out = json.loads(done.out)
    assert out["edge_only"] == len(out["token_ids"]) == out["stats"]["edge_only"] > 0
    assert "edge-only: this is not the target model" in done.complaints
