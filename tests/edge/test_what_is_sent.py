"""Which drafts an edge sends, and when; and what it never does instead of an error."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from doubles import Scripted
from edge.asking import answered
from edge.test_client import COUNT, PROMPT, SEED, answer, client, params
from edge.toy_cloud import VOCABULARY, ToyCloud, plain, toy_cloud
from foresay.bench.proxy import EmulatedLink, Proxy, over
from foresay.draft import Draft
from foresay.edge.ids import unpack
from foresay.edge.link import AcceptanceRule
from foresay.edge.messages import DraftMessage
from foresay.errors import StreamError
from foresay.sampling.params import SamplingParams
from tiny import save_model


class Always(Scripted):
    """Proposes what `says` says of a text, as a chain."""

    def __init__(self, says: Any) -> None:
        super().__init__()
        self._says = says

    def propose(self, states: Sequence[list[int]], budgets: Sequence[int], /) -> list[Draft]:
        return [
            Draft.chain(np.array(self._says(state[1:])[:budget], np.int32))
            for state, budget in zip(states, budgets, strict=True)
        ]


def right(text: list[int]) -> list[int]:
    """What the target will say."""
    return plain(text, 40)


def drafts_of(cloud: ToyCloud) -> list[DraftMessage]:
    return [m for m in cloud.heard if isinstance(m, DraftMessage) and m.tokens]


@pytest.mark.parametrize("reach", [4, 40])
async def test_drafts_that_would_come_too_late_are_not_sent(reach: int) -> None:
    """A round trip takes as long as about 20 tokens: 4 tokens are old news when they arrive."""
    asked = SamplingParams(max_tokens=150, temperature=0.0)
    async with toy_cloud(wait="free-run", step=0.005) as cloud:
        port = int(cloud.url.rpartition(":")[2])
        async with Proxy(port, over(EmulatedLink(rtt=0.12))) as proxy:
            drafter = Always(lambda text: right(text)[:reach])
            found = await answered(
                proxy.port, VOCABULARY, PROMPT, asked, seed=SEED, drafter=drafter
            )
    assert list(found.tokens) == plain(PROMPT, 150, 0.0, SEED)
    bases, accepted = [m.base - len(PROMPT) for m in drafts_of(cloud)], found.statistics.accepted
    assert bases
    if reach == 4:  # only before the first round trip was known
        assert max(bases) < 75
    else:
        assert max(bases) > 75 and accepted > 0


@pytest.mark.parametrize("ahead", [True, False])
async def test_without_ahead_one_draft_is_in_flight(
    monkeypatch: pytest.MonkeyPatch, ahead: bool
) -> None:
    """The cloud holds back its commits, and counts the drafts that come meanwhile."""
    counts: list[int] = []
    commit = ToyCloud._commit

    async def counted(self: ToyCloud, *given: Any) -> None:
        counts.append(len(drafts_of(self)))
        await commit(self, *given)

    monkeypatch.setattr(ToyCloud, "_commit", counted)
    async with toy_cloud(step=0.05, patience=1.0) as cloud:
        await answer(cloud, drafter=Always(right), rule=AcceptanceRule(), ahead=ahead)
    meanwhile = np.diff([0, *counts])
    assert max(meanwhile) == (2 if ahead else 1)  # it listens for one more, not for all


async def test_nothing_is_drafted_behind_an_end() -> None:
    end, behind = 299, 298

    def says(text: list[int]) -> list[int]:
        return [right(text)[0], end, behind, behind, behind, behind]

    async with toy_cloud(ends=(end,)) as cloud:
        found = await answer(cloud, drafter=Always(says), rule=AcceptanceRule(k=3))
    sent = [unpack(m.tokens, VOCABULARY).tolist() for m in drafts_of(cloud)]
    assert [end in tokens for tokens in sent].count(True) > 5
    assert not any(behind in tokens for tokens in sent)
    assert found.statistics.accepted > 0


async def test_the_drafter_hears_the_parameters_and_the_seed() -> None:
    drafter = Scripted()
    async with toy_cloud() as cloud:
        await client(cloud, drafter=drafter).answer(PROMPT, params(0.8))
    (sampling,) = drafter.sampling
    assert sampling is not None and sampling.seed == 77
    assert sampling.params.temperature == 0.8 and sampling.params.max_tokens == COUNT


@pytest.mark.parametrize(
    ("faults", "code"),
    [
        ({"drops": [20], "forgets": 1, "lies": True}, "contradiction"),
        ({"refuses": "unauthorized"}, "unauthorized"),
        ({"refuses": "bad_request"}, "bad_request"),
        ({"fails": 5}, "internal"),
        ({"cancels": [5] * 50}, "cancelled"),
    ],
)
async def test_edge_only_is_for_a_cloud_that_cannot_be_reached(
    tmp_path_factory: pytest.TempPathFactory, faults: dict[str, Any], code: str
) -> None:
    folder: Path = save_model(tmp_path_factory.mktemp("alone"))
    async with toy_cloud(**faults) as cloud:
        edge = client(cloud, drafter=f"model:{folder}", edge_only=True, retry_seconds=0.3)
        with pytest.raises(StreamError) as caught:
            async for piece in edge.stream(PROMPT, params(0.8), seed=SEED):
                assert not piece.edge_only
        edge.close()
    assert caught.value.code == code
