"""Probes: drafts that the policy sees while a device computes plain steps. Where drafts would not
pay they cost next to nothing, and where they would the steps after it verify some.

Time is simulated: the device works off a queue, each part of the host takes its time, and whoever
reads a step waits for it. Answers are those that a model has given to real questions.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from foresay import SamplingParams
from foresay.arrays import Int32s
from foresay.bench.recorded import CountedKv, CountedTarget
from foresay.budget.adaptive import Adaptive
from foresay.budget.cost import StepCost
from foresay.budget.load import Load
from foresay.draft import DraftBatch
from foresay.drafters import SuffixDrafter
from foresay.engine import ahead
from foresay.engine.engine import Engine
from foresay.models.target import Hidden, Outputs, RunsAhead, SequenceInput
from foresay.sampling.acceptance.upload import Download
from foresay.traces import read_traces

Texts = Sequence[tuple[Int32s, Int32s]]  # prompts and answers
RECORDED = Path(__file__).parents[1] / "recorded.jsonl.gz"
TOKENS = 200  # of an answer
LAUNCH, SCHEDULE, COMMIT, ASK = 80e-6, 10e-6, 40e-6, 120e-6  # and for each request:
PER_REQUEST = 3e-6
NOTHING = np.empty(0, np.int32), np.empty(0, np.int32)


def device_seconds(rows: int) -> float:
    """Of a step: 16 rows cost what one costs."""
    return 1.15e-3 + 7.5e-6 * max(rows - 16, 0)


class Kv(CountedKv):
    prompt: Int32s
    answer: Int32s


class Device(CountedTarget):
    """Says what is recorded, to the requests in their order, and takes its time."""

    def __init__(self, texts: Texts) -> None:
        size = 1 + max(int(token.max()) for text in texts for token in text)
        super().__init__(vocabulary=size, context=1 << 14)
        self.texts = iter(texts)  # prompts begin differently: no prefix is shared
        self.now = self.free = 0.0  # when it has done all that it was asked for
        self.ahead = self.drafted = 0  # steps
        self.version = 0

    def clock(self) -> float:
        return self.now

    def open(self) -> Kv:
        kv = Kv()
        kv.prompt, kv.answer = next(self.texts, NOTHING)  # nothing: of a prefix that is kept
        return kv

    def forward_next(self, parts: Any, tokens: Tensor, /) -> Outputs:
        self.ahead += 1
        return self.forward(parts)

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        said = [self._row(part) for part in parts]
        tokens = np.concatenate(said)
        self.now += LAUNCH
        self.free = max(self.now, self.free) + device_seconds(len(tokens))
        self.drafted += any(len(part.draft.tokens) for part in parts)
        logits = torch.zeros(len(tokens), self.vocabulary)
        logits[torch.arange(len(tokens)), torch.from_numpy(tokens).long()] = 9.0
        return Outputs(logits, None)

    def _row(self, part: Any) -> Int32s:
        kv: Kv = part.kv
        at = kv.length + len(part.tokens) - len(kv.prompt)
        depths = part.draft.depths if len(part.draft.tokens) else np.empty(0, np.int64)
        places = np.minimum(at + np.append(0, depths), len(kv.answer) - 1)
        row: Int32s = kv.answer[np.maximum(places, 0)]
        return row


class TimedDrafter(SuffixDrafter):
    def __init__(self, device: Device) -> None:
        super().__init__(history=False)
        self.device = device

    def propose(self, states: Any, budgets: Any, /, **given: Any) -> DraftBatch:
        self.device.now += ASK + PER_REQUEST * len(states)
        return super().propose(states, budgets, **given)


def engine_of(
    device: Device, patch: pytest.MonkeyPatch, drafts: bool, kind: type[Adaptive]
) -> Engine:
    """Its parts take time on the host."""

    class Timed(Download):
        def __init__(self, tensor: Any) -> None:
            super().__init__(tensor)
            self.until = device.free

        def values(self) -> Any:
            device.now = max(device.now, self.until)
            return super().values()

    patch.setattr(ahead, "Download", Timed)
    cost = StepCost.measured(
        (rows, rows * keys, device_seconds(rows), keys, 1)
        for rows in (1, 8, 16, 17, 32, 64, 128, 256)
        for keys in (32, 256)
    )
    drafter = TimedDrafter(device) if drafts else None
    policy = kind(cost) if drafts else "none"
    engine = Engine(
        device, drafter, policy=policy, clock=device.clock, memory=1 << 20, max_rows=1 << 16
    )
    schedule, commit, compute = engine.scheduler.schedule, engine._commit, engine._compute

    def scheduling() -> Any:
        turns = schedule()
        device.now += SCHEDULE + PER_REQUEST * len(turns)
        return turns

    def committing(step: Any, outcome: Any) -> Any:
        device.now += COMMIT + PER_REQUEST * len(step.decoding)
        return commit(step, outcome)

    def computing(*given: Any) -> Any:
        found = compute(*given)
        device.now = max(device.now, device.free)
        return found

    patch.setattr(engine.scheduler, "schedule", scheduling)
    patch.setattr(engine, "_commit", committing)
    patch.setattr(engine, "_compute", computing)
    return engine


def run(
    texts: Texts, patch: pytest.MonkeyPatch, *, drafts: bool, policy: type[Adaptive] = Adaptive
) -> Device:
    """Answer all at once; the answers are the recorded ones."""
    with patch.context() as own:
        device = Device(texts)
        assert isinstance(device, RunsAhead)
        engine = engine_of(device, own, drafts, policy)
        requests = [
            engine.add(prompt, SamplingParams(temperature=0, max_tokens=len(answer)), together=True)
            for prompt, answer in texts
        ]
        engine.run()
        for request, (_, answer) in zip(requests, texts, strict=True):
            assert request.token_ids == answer.tolist()
        return device


def gain(texts: Texts, patch: pytest.MonkeyPatch) -> tuple[float, Device]:
    plain = run(texts, patch, drafts=False).now
    device = run(texts, patch, drafts=True)
    return plain / device.now, device


@cache
def chats(count: int) -> Texts:
    """Real questions and answers, from the second round on under other token ids."""
    traces = [trace for trace in read_traces(RECORDED) if len(trace.output) >= 100]
    kinds = np.unique(np.concatenate([np.append(t.prompt, t.output) for t in traces]))
    texts = list[tuple[Int32s, Int32s]]()
    for at in range(count):
        trace, turned = traces[at % len(traces)], 37 * (at // len(traces))
        prompt, answer = (
            ((np.searchsorted(kinds, tokens) + turned) % len(kinds)).astype(np.int32)
            for tokens in (trace.prompt, trace.output[:TOKENS])
        )
        prompt[0] = len(kinds) + at
        texts.append((prompt, answer))
    return texts


def edits(count: int) -> Texts:
    """Texts that are copied but for one token in 30."""
    random = np.random.default_rng(0)
    texts = chats(count + 1)
    edited = list[tuple[Int32s, Int32s]]()
    for (prompt, first), (_, second) in pairwise(texts):
        answer = np.append(first, second)
        answer[::30] = random.integers(0, 100, len(answer[::30]))
        edited.append((np.concatenate([prompt[:1], first, second]), answer))
    return edited


@pytest.mark.parametrize("at", [1, 5, 14])
def test_an_answer_takes_no_longer(monkeypatch: pytest.MonkeyPatch, at: int) -> None:
    times, device = gain(chats(at + 1)[at:], monkeypatch)
    assert times > 1.0 and device.ahead > 20


@pytest.mark.parametrize(("count", "least"), [(8, 0.97), (32, 0.95)])
def test_many_answers_at_once(monkeypatch: pytest.MonkeyPatch, count: int, least: float) -> None:
    """Some repeat themselves and end early, which does not end the others."""
    times, device = gain(chats(count), monkeypatch)
    assert times > least and device.ahead > 100


@pytest.mark.parametrize(("count", "least"), [(1, 5.0), (8, 3.5), (32, 1.8)])
def test_what_is_copied_is_drafted(
    monkeypatch: pytest.MonkeyPatch, count: int, least: float
) -> None:
    times, device = gain(edits(count), monkeypatch)
    assert times > least and device.drafted > 10


def test_a_policy_is_told_which_probes_were_right(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first tokens of all requests of the step, also when some have ended."""
    texts = [(prompt, answer[: 60 + 20 * at]) for at, (prompt, answer) in enumerate(chats(4))]
    seen = list[bool]()

    class Told(Adaptive):
        def observe_probe(self, firsts: Any, right: Any, load: Load) -> None:
            assert load.probed and load.ids is not None and (firsts.depths == 1).all()
            came = [
                first.tokens == texts[number][1][length - len(texts[number][0])]
                for number, length, first in zip(load.ids, load.contexts, firsts, strict=True)
            ]
            assert np.array_equal(right, np.concatenate(came))
            seen.extend(right.tolist())
            super().observe_probe(firsts, right, load)

    run(texts, monkeypatch, drafts=True, policy=Told)
    assert any(seen) and not all(seen)


def test_wrong_variants_are_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as wrong:  # drafts are always taken to pay
        wrong.setattr(Adaptive, "probe_pays", lambda *given: True)
        assert gain(chats(32), wrong)[0] < 0.9
    with monkeypatch.context() as wrong:  # or never
        wrong.setattr(Adaptive, "probe_pays", lambda *given: False)
        assert gain(edits(8), wrong)[0] < 1.1
