"""KV caches of both ends after each round; and what keys and values take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path
from typing import Any

import pytest

from edge.asking import answered
from foresay.draft import Draft
from foresay.drafters.decoding.state import RequestState
from foresay.drafters.lineup import with_external_drafts
from foresay.drafters.model import ModelDrafter
from foresay.edge.statistics import StreamStatistics
from foresay.engine.llm import LLM
from foresay.models.load import load
from foresay.sampling.params import SamplingParams
from foresay.serve.limits import Limits
from serve.running import MEMORY, Running, running
from tiny import llama, one_thread, randomise, save_model

COUNT = 40


@dataclass(frozen=True)
class Seen:
    """After a verdict: tokens of the text, and those stored at both ends; and what was expected of
    the edge's: the text that it drafted behind, and what was accepted of its draft."""

    position: int
    edge: int
    cloud: int
    base: int
    accepted: int
    whole: bool


class Watched(ModelDrafter):
    """Notes what is stored after each verdict on a draft."""

    server: Running
    seen: list[Seen]
    drafted: list[int]

    def propose(self, states: Sequence[RequestState], budgets: Sequence[int], /) -> list[Draft]:
        found = super().propose(states, budgets)
        self.drafted = found[0].tokens.tolist()
        return found

    def observe(self, states: Sequence[RequestState], verdicts: Any, /) -> None:
        (state,) = states
        base = len(state.text)
        super().observe(states, verdicts)
        if not self.drafted:
            return
        committed = state.text[base:].tolist()
        pairs = zip(committed, self.drafted, strict=False)
        accepted = len(list(takewhile(lambda pair: pair[0] == pair[1], pairs)))
        whole, self.drafted = accepted == len(self.drafted), []
        # The cloud waits for the next draft: its request stands still.
        (request,) = self.server.llm.engine.scheduler.running
        edge, cloud = self.kv_length(state), request.stored
        self.seen.append(Seen(len(state.text), edge, cloud, base, accepted, whole))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("kv"))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Running]:
    """Only the edge drafts, and the cloud waits for each draft."""
    drafter = with_external_drafts(None)
    with one_thread():
        llm = LLM(folder, drafter, dtype="float32", memory=MEMORY, policy="fixed")
        with running(llm, drafter, limits=Limits(draft_seconds=20.0)) as found:
            yield found


@pytest.mark.parametrize("same", [True, False], ids=["the same model", "another model"])
def test_after_each_round_both_ends_have_stored_the_same(
    server: Running, folder: Path, tmp_path: Path, same: bool
) -> None:
    source = folder
    if not same:
        other = llama(server.llm.target.vocabulary, 256, 48, 512)
        randomise(other, seed=1, size=0.3)
        randomise(other.model.layers[1], seed=2, size=0.02)  # nearly the same
        other.save_pretrained(tmp_path)
        source = tmp_path
    drafter = Watched(load(source, dtype="float32"), shape=4)
    drafter.server, drafter.seen, drafter.drafted = server, [], []
    prompt = server.llm.tokenizer.encode("one two one two one")
    params = SamplingParams(max_tokens=COUNT, temperature=0.0, ignore_eos=True)

    how: dict[str, Any] = {"drafter": drafter, "wait": "block", "ahead": False}
    vocabulary, rounds = server.llm.target.vocabulary, drafter.seen
    found = asyncio.run(answered(server.url, vocabulary, prompt, params, **how))
    plain = LLM(folder, None, dtype="float32", memory=MEMORY)
    assert list(found.tokens) == plain.generate([prompt], params)[0].token_ids
    for seen in rounds:
        assert seen.cloud == seen.position - 1
        # Nobody has read the last token of a draft that was accepted whole.
        assert seen.edge == seen.base + seen.accepted - seen.whole
        if seen.position == seen.base + seen.accepted + 1:  # the cloud added one token
            assert seen.edge == seen.cloud - seen.whole
    assert sum(seen.position == seen.base + seen.accepted + 1 for seen in rounds) > 4
    assert any(seen.whole == same for seen in rounds)
    counted = found.statistics
    assert counted.kv_rounds == len(rounds)
    assert (counted.kv_edge, counted.kv_cloud) == (rounds[-1].edge, rounds[-1].cloud)
    assert counted.kv_difference == max(seen.cloud - seen.edge for seen in rounds)
    assert counted.as_dict()["kv_cloud"] == counted.kv_cloud


def test_lengths_of_different_texts_are_not_compared() -> None:
    counted = StreamStatistics()
    counted.note_cloud_kv(10, 9)
    counted.note_cloud_kv(12, None)
    counted.note_edge_kv(11, 10)
    counted.note_edge_kv(12, 10)
    assert counted.as_dict()["kv_rounds"] == 0 and counted.as_dict()["kv_edge"] is None
    counted.note_edge_kv(10, 7)
    counted.note_edge_kv(10, 8)  # the same text again
    assert (counted.kv_rounds, counted.kv_edge, counted.kv_cloud) == (1, 7, 9)
    assert counted.kv_difference == 2
    for position in range(20, 200):
        counted.note_cloud_kv(position, position - 1)
    counted.note_edge_kv(20, 19)  # too long ago
    counted.note_edge_kv(199, 198)
    assert (counted.kv_rounds, counted.kv_edge, counted.kv_difference) == (2, 198, 2)
