"""vLLM's side of the proposer: its config, and a batch in which a recorded answer takes the model's
place: of a draft, as many tokens are kept as the recording has, and one more.
"""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import numpy as np

from foresay.integrations.vllm import ProposerStats, SuffixProposer

LENGTH = 256


def config(most: int = 6, ranks: int = 1, length: int = LENGTH, **keys: Any) -> Any:
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=most, **keys),
        model_config=SimpleNamespace(max_model_len=length),
        parallel_config=SimpleNamespace(tensor_parallel_size=ranks),
    )


class World:
    """The batch's rows, and what the model would write."""

    def __init__(self, proposer: Any = None, rows: int = 16, length: int = LENGTH) -> None:
        self.proposer: Any = proposer or SuffixProposer(config(length=length))
        self.token_ids = np.zeros((rows, length), np.int32)
        self.num_tokens = np.zeros(rows, np.int32)
        self.running: list[tuple[str, list[int], int]] = []  # name, whole text, tokens so far
        self.drafts: dict[str, list[int]] = {}
        self.steps = self.made = 0

    @property
    def stats(self) -> ProposerStats:
        stats: ProposerStats = self.proposer.stats()
        return stats

    def add(self, name: str, prompt: list[int], answer: list[int]) -> None:
        self.running.append((name, prompt + answer, len(prompt)))

    def add_seeded(self, *seeds: int) -> None:
        for seed in seeds:
            self.add(str(seed), prompt_of(seed), answer_of(seed))

    def run(self) -> None:
        """Until all have their answers."""
        while self.running:
            self.step()

    def step(self, reading: int = 0) -> None:
        """One step; the last `reading` rows are still being read and get no token."""
        sampled: list[list[int]] = []
        for at, (name, text, known) in enumerate(self.running):
            new: list[int] = []
            if at < len(self.running) - reading:
                for drafted in [*self.drafts.pop(name, []), None]:
                    new.append(text[known + len(new)])
                    if new[-1] != drafted or known + len(new) == len(text):
                        break
            sampled.append(new)
            known += len(new)
            self.token_ids[at, :known] = text[:known]
            self.num_tokens[at] = known
            self.running[at] = (name, text, known)
            self.made += len(new)
        self.num_tokens[len(self.running) :] = 0
        self.steps += 1
        drafts = self.proposer.propose(sampled, self.num_tokens, self.token_ids, slot_mappings={})
        assert len(drafts) == len(sampled)
        for (name, _, known), new, draft in zip(self.running, sampled, drafts, strict=True):
            assert type(draft) is list and all(type(token) is int for token in draft)
            assert new or not draft
            assert known + len(draft) + 1 <= self.token_ids.shape[1] or not draft
            self.drafts[name] = draft
        self.running = [row for row in self.running if row[2] < len(row[1])]


def answer_of(seed: int, length: int = 60) -> list[int]:
    """Something that repeats itself now and then."""
    chance = random.Random(seed)
    text: list[int] = []
    while len(text) < length:
        if len(text) > 10 and chance.random() < 0.5:
            start = chance.randrange(len(text) - 8)
            text += text[start : start + 8]
        else:
            text += [chance.randrange(1000) for _ in range(3)]
    return text[:length]


def prompt_of(seed: int) -> list[int]:
    return [random.Random(f"prompt {seed}").randrange(1000) for _ in range(20)]
