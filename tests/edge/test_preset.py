"""Presets: the values, what is refused, and that no preset changes a text."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from edge.asking import answered
from edge.test_command import asked, beside, folder  # noqa: F401
from edge.toy_cloud import VOCABULARY, plain, toy_cloud
from foresay.cli.edge import PresetOption
from foresay.edge.gating import Gate, Thresholds
from foresay.edge.messages import Open, Sampling
from foresay.edge.preset import PRESETS, PUBLISHED, EdgePreset, preset_of
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams


def test_the_published_values() -> None:
    params = PUBLISHED.sampling(max_tokens=9, seed=4)
    assert params == SamplingParams(
        max_tokens=9, seed=4, temperature=1.0, top_p=0.9, repetition_penalty=1.1
    )
    assert params.rule == "match"  # nothing else is committed but what the cloud chooses
    assert (PUBLISHED.k, PUBLISHED.least, PUBLISHED.most) == (6, 3, 12)
    assert (PUBLISHED.up, PUBLISHED.down) == (0.8, 0.4)
    assert not PUBLISHED.gate
    assert PUBLISHED.thresholds == Thresholds(
        nll=None, entropy_bits=2.5, margin=0.2, hard_ratio=0.3
    )
    assert PUBLISHED.nll_quantile == 0.8 and PUBLISHED.draft_seconds == 0.4
    options = PUBLISHED.client_options()
    assert options["rule"].next_k() == 6 and options["gate"] is None
    assert options["wait"] == "block" and options["ahead"] is False
    assert PUBLISHED.client_options()["rule"] is not options["rule"]  # k is of one client
    on = replace(PUBLISHED, gate=True).client_options()["gate"]
    assert isinstance(on, Gate) and on.thresholds.hard_ratio == 0.3
    assert preset_of("published") is PUBLISHED
    assert [one.value for one in PresetOption] == list(PRESETS)


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"temperature": -1.0}, r"^temperature is -1\.0; expected"),
        ({"top_p": 0.0}, "^top_p is"),
        ({"repetition_penalty": 0.0}, "^repetition_penalty is"),
        ({"k": 2}, "^least is 3; expected"),
        ({"k": 13}, "^most is 12; expected"),
        ({"up": 0.3}, r"^down is 0\.4 and up 0\.3; expected"),
        ({"gate": "no"}, "^gate is 'no'; expected True or False$"),
        ({"ahead": 1}, "^ahead is 1; expected True or False$"),
        ({"thresholds": 0.3}, r"^thresholds is 0\.3; expected Thresholds$"),
        ({"nll_quantile": 80}, "^nll_quantile is 80; expected 0 to 1$"),
        ({"wait": ""}, "^wait is ''; expected one of block, free-run, adaptive$"),
        ({"wait": []}, r"^wait is \[\]; expected one of"),
        ({"draft_seconds": -0.4}, r"^draft_seconds is -0\.4; expected"),
    ],
)
def test_a_wrong_value_is_named(changes: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        EdgePreset(**changes)


def test_an_unknown_name() -> None:
    unknown: list[Any] = ["lossy", None, []]
    for name in unknown:
        with pytest.raises(InputError, match=r"^preset is .*; expected one of published$"):
            preset_of(name)


async def test_the_text_is_that_of_the_plain_loop() -> None:
    """The toy cloud heeds the temperature alone."""
    async with toy_cloud() as cloud:
        options = PUBLISHED.client_options()
        asked = PUBLISHED.sampling(max_tokens=40)
        found = await answered(cloud.url, VOCABULARY, [5, 6, 7, 5, 6], asked, seed=3, **options)
        assert list(found.tokens) == plain([5, 6, 7, 5, 6], 40, 1.0, 3)
        told = cloud.heard[0]
        assert isinstance(told, Open) and told.wait == "block"
        assert told.sampling == Sampling(1.0, top_p=0.9, repetition_penalty=1.1)
        assert found.statistics.alpha_mean is not None and found.statistics.la_over_k is not None


def test_options_that_are_given_count(folder: Path) -> None:  # noqa: F811
    def told(*options: object) -> Open:
        with beside(window=64) as cloud:
            done = asked(cloud.url, folder, "--seed", 1, "--json", *options)
            assert done.status == 0, done.complaints
        first = cloud.heard[0]
        assert isinstance(first, Open)
        return first

    first = told("--preset", "published")
    assert first.sampling == Sampling(1.0, top_p=0.9, repetition_penalty=1.1)
    assert first.wait == "block"
    first = told("--preset", "published", "--temperature", 0, "--wait", "free-run", "--gate")
    assert first.sampling == Sampling(0.0, top_p=0.9, repetition_penalty=1.1)
    assert first.wait == "free-run"
    first = told("--repetition-penalty", 1.2)
    assert first.sampling == Sampling(0.0, repetition_penalty=1.2) and first.wait == ""
