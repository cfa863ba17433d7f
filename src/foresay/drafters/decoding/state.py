"""The text of a request for a drafter that runs a model, and what is stored of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from foresay.arrays import Int32s
from foresay.draft import Draft
from foresay.drafter import SeededParams
from foresay.drafters.decoding.noise_weight import NoiseWeight
from foresay.sampling.noise import new_seed, seed_of_sample
from foresay.sampling.params import SamplingParams
from foresay.sampling.signals import Signals
from foresay.sampling.verification import VerificationInput

if TYPE_CHECKING:
    from foresay.models.target import Target, TextKv

__all__ = ["RequestState"]

_GREEDY = SamplingParams(temperature=0)


class RequestState:
    """One request. Only its drafter writes to it.

    Stored are keys and values of the text's first tokens; between a proposal and its verdict also
    those of drafted tokens behind the text, of which the verdict keeps what was committed.

    sampling      None: the request's sampling parameters are not known, and it is taken as greedy
    noise_weight  how much of the noise its tenant's drafts follow
    """

    def __init__(
        self,
        owner: object,
        prompt: Int32s,
        sampling: SeededParams | None,
        noise_weight: NoiseWeight,
        tenant: str | None,
    ) -> None:
        self.owner = owner
        self.tenant = tenant
        self.noise_weight = noise_weight
        self.finished = False
        self.sampling = sampling
        self.forget_proposal()
        self.used = 0  # the last call that wanted a draft
        self.highest = int(prompt.max())  # of the token ids
        params = _GREEDY if sampling is None else sampling.params
        seed = 0 if sampling is None else sampling.seed
        # Under rule rejection a seed does not repeat an answer: if it repeated the drafts, answers
        # to one seed would not follow the target's distribution.
        self._noise = new_seed() if params.rule == "rejection" else None
        self._ask = VerificationInput(params, seed, prompt)
        self._prompt = len(prompt)
        self._buffer = np.empty(len(prompt) + 64, np.int32)
        self._buffer[: len(prompt)] = prompt
        self._length = len(prompt)
        self._kv: TextKv | None = None
        self._version = 0  # of the weights that these were computed with
        self._ahead: list[int] = []  # stored tokens behind the text

    @property
    def text(self) -> Int32s:
        return self._buffer[: self._length]

    @property
    def answer(self) -> Int32s:
        return self._buffer[self._prompt : self._length]

    @property
    def stored(self) -> int:
        return 0 if self._kv is None else self._kv.length

    @property
    def capacity(self) -> int:
        """Tokens that there is memory for."""
        return 0 if self._kv is None else self._kv.capacity

    @property
    def prefill_left(self) -> int:
        """Tokens to prefill: the prompt's, but for its last one, as the engine does it."""
        return max(self._prompt - 1 - self.stored, 0)

    @property
    def room(self) -> int | None:
        """How many tokens the answer may still get, if that is known."""
        if self.sampling is None:
            return None
        return self.sampling.params.max_tokens - (self._length - self._prompt)

    def asked(self, answer: Int32s, path: Int32s) -> VerificationInput:
        """The request after a drafted path, once the draft is prepared."""
        return self._ask.along(np.concatenate([answer, path]))

    def kv_of(self, target: Target) -> TextKv:
        """The keys and values, opened if there are none."""
        if self._kv is None:
            self._kv, self._version = target.open(), target.version
        return self._kv

    def share(self, kv: TextKv, version: int) -> None:
        """Go on behind what somebody else has stored of this text, all but its last token, with
        weights of this version; until `forget`."""
        self._kv, self._version, self._ahead = kv, version, []

    def prepare(self, target: Target) -> None:
        """Before a draft: forget what was drafted before, and what was computed with other weights.
        The text's last token is not stored then. Sampled tokens get noise that is new with each
        commit."""
        if self._noise is not None:
            self._ask = replace(self._ask, seed=seed_of_sample(self._noise, self._length))
        if self._kv is not None and self._version != target.version:
            self.forget()
        self._cut(self._length - 1)

    def keep(self, rows: Iterable[int], ahead: Sequence[int]) -> None:
        """Store rows of the last pass; then these drafted tokens are stored behind the text."""
        assert self._kv is not None
        self._kv.keep(np.array(list(rows), np.int32))
        self._ahead = list(ahead)

    def commit(self, tokens: Int32s) -> None:
        """Add committed tokens. What was stored of drafted ones stays where they are the same."""
        same = 0
        for drafted, token in zip(self._ahead, tokens.tolist(), strict=False):
            if drafted != token:
                break
            same += 1
        self._cut(self._length + same)
        end = self._length + len(tokens)
        if end > len(self._buffer):
            grown = np.empty(2 * end, np.int32)
            grown[: self._length] = self.text
            self._buffer = grown
        self._buffer[self._length : end] = tokens
        self._length = end
        self.highest = max(self.highest, int(tokens.max(initial=0)))
        self.forget_proposal()

    def forget_proposal(self) -> None:
        self.proposed = Draft.empty()
        self.proposed_for: tuple[int, int] | None = None  # budget, and version of the weights
        self.signals: Signals | None = None  # of the proposal, where they are kept
        self.by_weight: tuple[int, ...] = ()  # the first drafted token for each weight of noise

    def forget(self) -> None:
        """Free the keys and values; the text stays."""
        self._kv, self._ahead = None, []

    def _cut(self, length: int) -> None:
        if self._kv is not None and self._kv.length > length:
            self._kv.cut(length)
        self._ahead = []
