"""Reinforcement learning with verifiable rewards: rollouts by the engine, DAPO by torch.

The model that is trained and the engine's target are two copies of the same weights: after each
step the target's are replaced in place. The log probabilities before an update are the rollout's
own. Nothing here depends on drafts, so with and without them every number is the same but for the
time.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from foresay.arrays import check_positive
from foresay.counts import acceptance, tokens_per_step
from foresay.errors import InputError
from foresay.rl import dapo
from foresay.rl.mismatch import difference
from foresay.rl.padding import Example, Padded, padded
from foresay.rl.rollouts import Rollout, Rollouts
from foresay.rl.steplog import StepRecord, few_of
from foresay.sampling.params import SamplingParams

__all__ = ["Problem", "RlSettings", "TrainingStep", "fingerprint", "train"]


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt, and the reward of an answer to it: 1 or 0."""

    prompt: Sequence[int]
    reward: Callable[[Sequence[int]], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class RlSettings:
    """How a policy is trained.

    prompts, samples    groups that are sampled at once, and answers in each
    groups, rounds      groups to train with, and how often groups are sampled to get them
    cap, buffer         the most tokens of an answer; the last `buffer` of them are punished
    updates             of the optimiser in each step; each uses other groups
    clip_low, clip_high how far a probability may move in a step: 1 - low to 1 + high of what it was
    part                texts times longest text in one forward pass of the trainer

    Raises: InputError when constructed.
    """

    prompts: int = 8
    samples: int = 8
    groups: int = 8
    rounds: int = 2
    cap: int = 192
    buffer: int = 32
    temperature: float = 1.0
    updates: int = 2
    learning_rate: float = 3e-4
    weight_decay: float = 0.0
    max_norm: float = 1.0
    clip_low: float = 0.2
    clip_high: float = 0.28
    part: int = 8192

    def __post_init__(self) -> None:
        for name in ("prompts", "samples", "groups", "rounds", "cap", "updates", "part"):
            check_positive(getattr(self, name), name)
        if not 0 <= self.buffer < self.cap:
            raise InputError(
                f"buffer is {self.buffer}; expected 0 or more, below the cap of {self.cap} tokens"
            )
        if not self.temperature > 0:
            raise InputError(f"temperature is {self.temperature}; expected a number above 0")


@dataclass(slots=True)
class TrainingStep:
    """One step of training. The first part is the same with and without drafts.

    reward         mean over all answers, before overlong shaping
    kept           groups that were trained with, of all that were `drawn`
    loss           of each update
    logprob        rollout against trainer, see `mismatch.difference`
    tokens_digest  of all tokens and their log probabilities
    parameters     of the model after the step, see `fingerprint`
    passes         of the target: steps of the engine
    tail           share of the rollout's seconds in its tail, see `steplog.few_of`
    """

    step: int
    reward: float = 0.0
    mean_length: float = 0.0
    max_length: int = 0
    capped: float = 0.0
    entropy: float = 0.0
    drawn: int = 0
    kept: int = 0
    rounds: int = 0
    tokens: int = 0
    loss: list[float] = field(default_factory=list)
    norm: list[float] = field(default_factory=list)
    clipped_low: float = 0.0
    clipped_high: float = 0.0
    logprob: dict[str, float] = field(default_factory=dict)
    tokens_digest: str = ""
    parameters: str = ""
    # what drafts change
    passes: int = 0
    tail_passes: int = 0
    drafted: int = 0
    accepted: int = 0
    acceptance: float = 0.0
    tokens_per_step: float = 0.0
    tail: float = 0.0
    seconds: dict[str, float] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class _Group:
    prompt: Sequence[int]
    rollouts: Sequence[Rollout]
    rewards: Sequence[float]
    shaped: Sequence[float]


@dataclass(frozen=True, slots=True)
class _Sample:
    """What the trainer needs of one answer."""

    example: Example
    old: Sequence[float]
    advantage: float


def train(
    model: nn.Module,
    rollouts: Rollouts,
    problems: Sequence[Problem],
    settings: RlSettings,
    *,
    steps: int,
    seed: int,
    stops: Sequence[int],
) -> Iterator[TrainingStep]:
    """Train a model by DAPO, a record for each step. The problems are taken in order, again and
    again.

    model     of transformers, float32 on a processor; its weights are those of the rollouts' target
    stops     token ids that end an answer

    Mutates: the model, and the weights of the rollouts' target. Raises: InputError without
    problems; what a reward or a rollout raises: the model is then as after the step before.
    """
    if not problems:
        raise InputError("there are no problems to train with; expected 1 or more")
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay
    )
    model.train()
    taken = 0
    for step in range(steps):
        begin = perf_counter()
        record = TrainingStep(step)
        took: list[list[StepRecord]] = []  # the steps of each rollout

        def draw(step: int = step, took: list[list[StepRecord]] = took) -> list[_Group]:
            nonlocal taken
            chosen = [problems[(taken + n) % len(problems)] for n in range(settings.prompts)]
            taken += settings.prompts
            sampled = rollouts.sample(
                [problem.prompt for problem in chosen],
                SamplingParams(max_tokens=settings.cap, temperature=settings.temperature),
                samples=settings.samples,
                seed=_seed(seed, step, 1 + len(took)),
                stops=stops,
            )
            took.append(rollouts.steps)
            return [
                _judged(problem, answers, settings)
                for problem, answers in zip(chosen, sampled, strict=True)
            ]

        kept, drawn = dapo.fill_batch(
            draw,
            lambda group: dapo.informative(group.rewards),
            wanted=settings.groups,
            rounds=settings.rounds,
        )
        _note_rollouts(record, drawn, took, few_of(settings.prompts * settings.samples))
        record.kept = len(kept)
        before_training = perf_counter()
        if kept:
            _update(model, optimiser, kept, settings, record)
            rollouts.replace_weights(dict(model.named_parameters()))
        record.parameters = fingerprint(model)
        now = perf_counter()
        record.seconds["train"] = now - before_training
        record.seconds["other"] = before_training - begin - record.seconds["rollout"]
        yield record


def fingerprint(model: nn.Module) -> str:
    """Of all parameters, bit by bit."""
    digest = hashlib.sha256()
    for name, tensor in sorted(model.named_parameters()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    return digest.hexdigest()


def _seed(seed: int, step: int, round_: int) -> int:
    """Of one rollout's noise: of nothing that drafts could change. The records in docs/rl rest on
    it, so it cannot become another function.
    """
    return int(np.random.SeedSequence([seed, step, round_]).generate_state(1, np.uint64)[0] >> 1)


def _judged(problem: Problem, answers: Sequence[Rollout], settings: RlSettings) -> _Group:
    rewards = [problem.reward(answer.token_ids) for answer in answers]
    shaped = [
        reward
        + dapo.overlong_penalty(len(answer.token_ids), cap=settings.cap, buffer=settings.buffer)
        for reward, answer in zip(rewards, answers, strict=True)
    ]
    return _Group(problem.prompt, answers, rewards, shaped)


def _note_rollouts(
    record: TrainingStep, drawn: Sequence[_Group], took: Sequence[Sequence[StepRecord]], few: int
) -> None:
    """What the rollouts found, and what their steps took; the tail is of at most `few` samples."""
    tail = [step.seconds for steps in took for step in steps if step.left <= few]
    seconds = sum(steps[-1].time for steps in took if steps)
    record.rounds, record.passes, record.tail_passes = len(took), sum(map(len, took)), len(tail)
    record.tail, record.seconds["rollout"] = sum(tail) / max(seconds, 1e-9), seconds
    answers = [answer for group in drawn for answer in group.rollouts]
    lengths = [len(answer.token_ids) for answer in answers]
    record.reward = float(np.mean([reward for group in drawn for reward in group.rewards]))
    record.mean_length, record.max_length = float(np.mean(lengths)), max(lengths)
    record.capped = float(np.mean([answer.finish_reason == "length" for answer in answers]))
    record.drawn, record.tokens = len(drawn), sum(lengths)
    digest = hashlib.sha256()
    for answer in answers:
        digest.update(np.array(answer.token_ids, np.int32).tobytes() + answer.logprobs.tobytes())
    record.tokens_digest = digest.hexdigest()
    record.drafted = sum(answer.stats.drafted for answer in answers)
    record.accepted = sum(answer.stats.accepted for answer in answers)
    record.acceptance = acceptance(record.accepted, record.drafted)
    record.tokens_per_step = tokens_per_step(sum(lengths), sum(a.stats.steps for a in answers))


def _update(
    model: nn.Module,
    optimiser: torch.optim.Optimizer,
    groups: Sequence[_Group],
    settings: RlSettings,
    record: TrainingStep,
) -> None:
    """The updates of one step.

    Mutates: the model, the optimiser, the record.
    """
    samples = [
        [
            _Sample(Example(group.prompt, answer.token_ids), answer.logprobs.tolist(), float(gain))
            for answer, gain in zip(group.rollouts, dapo.advantages(group.shaped), strict=True)
        ]
        for group in groups
    ]
    _note_logprobs(model, [s for group in samples for s in group], settings, record)
    clipped, tokens = np.zeros(2), 0
    for at in np.array_split(np.arange(len(samples)), min(settings.updates, len(samples))):
        batch = [sample for group in at for sample in samples[int(group)]]
        count = sum(len(sample.example.answer) for sample in batch)
        optimiser.zero_grad()
        loss = 0.0
        for part in _parts(batch, settings.part):
            table = padded([sample.example for sample in part])
            logits = _logits(model, table)
            new = dapo.token_logprobs(logits, table.answers, temperature=settings.temperature)
            gain = torch.tensor([sample.advantage for sample in part], dtype=torch.float32)
            old = _placed([sample.old for sample in part], table.mask)
            bounds = {"low": settings.clip_low, "high": settings.clip_high}
            terms = dapo.policy_terms(new, old, gain, **bounds)
            mean = dapo.token_mean(terms.losses, table.mask, tokens=count)
            mean.backward()
            loss += float(mean.detach())
            for side, flags in enumerate((terms.clipped_low, terms.clipped_high)):
                clipped[side] += int((flags & table.mask).sum())
        norm = nn.utils.clip_grad_norm_(model.parameters(), settings.max_norm)
        optimiser.step()
        tokens += count
        record.loss.append(loss)
        record.norm.append(float(norm))
    record.clipped_low, record.clipped_high = (float(n / tokens) for n in clipped)


def _note_logprobs(
    model: nn.Module, samples: Sequence[_Sample], settings: RlSettings, record: TrainingStep
) -> None:
    """The difference of log probabilities, and the entropy, before any update."""
    ours, theirs, entropy = list[float](), list[float](), list[float]()
    for part in _parts(samples, settings.part):
        table = padded([sample.example for sample in part])
        with torch.no_grad():
            logits = _logits(model, table)
            found = dapo.token_logprobs(logits, table.answers, temperature=settings.temperature)
            spread = dapo.entropies(logits, temperature=settings.temperature)
        ours += [value for sample in part for value in sample.old]
        theirs += found[table.mask].tolist()
        entropy += spread[table.mask].tolist()
    record.logprob, record.entropy = difference(ours, theirs), float(np.mean(entropy))


def _logits(model: nn.Module, table: Padded) -> Tensor:
    logits: Tensor = model(input_ids=table.inputs, attention_mask=table.attention).logits
    return logits


def _placed(values: Sequence[Sequence[float]], mask: Tensor) -> Tensor:
    """float32[B, T]: the values of each row where its mask is set."""
    table = torch.zeros(mask.shape, dtype=torch.float32)
    table[mask] = torch.tensor([v for row in values for v in row], dtype=torch.float32)
    return table


def _parts(samples: Sequence[_Sample], size: int) -> Iterator[list[_Sample]]:
    """The samples by length, in parts whose tables have at most `size` places (or one row)."""
    part: list[_Sample] = []
    for sample in sorted(samples, key=lambda s: s.example.tokens):
        if part and sample.example.tokens * (len(part) + 1) > size:
            yield part
            part = []
        part.append(sample)
    if part:
        yield part
