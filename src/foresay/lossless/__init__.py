"""The proof that speculation changes no answer; the command is `foresay lossless`.

Every layer is of one kind: a world (a small model and parameters), a rule under test, a check, and
controls: wrong rules that the check must find.

prove            all of it, as a list of checks (Check)
exact            distributions of whole texts with rational numbers, compared with ==
  chance           every outcome of a function of coins
  worlds           small random targets and drafters
  drafts, schemes  ways to speculate that are right
  wrong            ways that are wrong, and must be detected
scripts          equality with plain decoding over random schedules
  toy              a target, drafters and requests for it
  script_controls  wrong verifications that must be detected
engine_scripts   the whole engine over random schedules
  toy_target       the toy as its target, to which prefill and decode differ
  engine_controls  wrong engines that must be detected
sampled          the batched rules in such a world, against its exact distribution
noise_quality    the keyed noise against a known distribution
  gtest            the statistics of both, with their power
user             your own verify function
servers          two OpenAI-compatible servers
  answers          how their answers differ
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """One line of a proof: what was checked, and whether it came out as it should."""

    layer: str
    name: str
    ok: bool
    result: str
    seconds: float = 0.0
    kind: Literal["proof", "test"] = "proof"
    """A test draws samples and has a stated power; a proof needs none."""
