"""Settings of an edge client by name.

`PUBLISHED` is a configuration that was published for edge-cloud speculative decoding, without its
rules that change the text: docs/edge.md has both side by side.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from foresay.edge.gating import Gate, Thresholds
from foresay.edge.link import AcceptanceRule, check_seconds
from foresay.edge.messages import WAITS, Wait
from foresay.edge.settings import check_kind
from foresay.edge.text_rules import Rules
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams

__all__ = ["PRESETS", "PUBLISHED", "EdgePreset", "preset_of"]


_THRESHOLDS = Thresholds(nll=None, entropy_bits=2.5, margin=0.2, hard_ratio=0.3)


@dataclass(frozen=True, slots=True)
class EdgePreset:
    """How an edge client samples, drafts and waits.

    temperature, top_p, repetition_penalty   of the cloud; a draft model takes them too
    k, least, most   tokens of a message: at first, and at least and at most
    up, down         accepted / sent from which k grows by 1, and up to which it shrinks by 1
    gate             whether a gate is on
    thresholds       of the gate; nll None: it has to be measured, see `nll_quantile`
    nll_quantile     of the NLLs of real drafts, for `gating.nll_threshold`
    ahead            draft on while a verdict is on its way
    wait             for drafts, by the cloud
    draft_seconds    that the cloud waits for a draft, at most: for `draft_seconds` of its `Limits`

    Raises: InputError when constructed.
    """

    temperature: float = 1.0
    top_p: float = 0.9
    repetition_penalty: float = 1.1
    k: int = 6
    least: int = 3
    most: int = 12
    up: float = 0.8
    down: float = 0.4
    gate: bool = False
    thresholds: Thresholds = _THRESHOLDS
    nll_quantile: float = 0.8
    ahead: bool = False
    wait: Wait = "block"
    draft_seconds: float = 0.4

    def __post_init__(self) -> None:
        self.sampling()
        self.rule()
        for name in ("gate", "ahead"):
            check_kind(name, getattr(self, name), bool, "True or False")
        check_kind("thresholds", self.thresholds, Thresholds, "Thresholds")
        quantile = self.nll_quantile
        if not isinstance(quantile, (int, float)) or not 0 <= quantile <= 1:
            raise InputError(f"nll_quantile is {quantile!r:.100}; expected 0 to 1")
        if self.wait not in WAITS:
            raise InputError(f"wait is {self.wait!r:.100}; expected one of {', '.join(WAITS)}")
        check_seconds("draft_seconds", self.draft_seconds)

    def sampling(self, **more: Any) -> SamplingParams:
        """The sampling parameters, with `more` of them, such as max_tokens. Raises: InputError."""
        own = {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "repetition_penalty": self.repetition_penalty,
        }
        return SamplingParams(**{**own, **more})

    def rule(self) -> AcceptanceRule:
        """How many tokens a message has; one for each client. Raises: InputError."""
        return AcceptanceRule(
            k=self.k, least=self.least, most=self.most, up=self.up, down=self.down
        )

    def new_gate(self, word_counts: Mapping[str, int] | None = None) -> Gate:
        """The gate, also if it is off; rare words by these counts."""
        return Gate(self.thresholds, Rules(word_counts=word_counts))

    def client_options(self) -> dict[str, Any]:
        """For an `EdgeClient`: EdgeClient(url, vocabulary=…, **PUBLISHED.client_options())."""
        return {
            "rule": self.rule(),
            "gate": self.new_gate() if self.gate else None,
            "ahead": self.ahead,
            "wait": self.wait,
        }


PUBLISHED = EdgePreset()
PRESETS = {"published": PUBLISHED}
"""By name, as `foresay edge --preset` takes them."""


def preset_of(name: str) -> EdgePreset:
    """The preset of this name. Raises: InputError."""
    found = PRESETS.get(name) if isinstance(name, str) else None
    if found is None:
        raise InputError(f"preset is {name!r:.100}; expected one of {', '.join(PRESETS)}")
    return found
