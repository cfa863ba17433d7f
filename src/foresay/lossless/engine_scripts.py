"""The whole engine over random scripts: stop strings, both rules in one batch, log probabilities.

A script is a toy target, some requests that come one after the other, and an engine with little
memory, so that requests share prefixes, wait and are preempted. What must hold of each request:

    rule match      its tokens are those of plain decoding
    rule rejection  each of its steps is what the readable rule makes of the same draft and noise
    both            its text and its finish reason are those that a search in the whole text finds,
                    and its log probabilities those of a softmax over the row of each token

Everything is drawn from (seed, index of the script), so a script is the same on every machine.

Mutates: nothing. Valid until: for ever. Raises: whatever the engine raises. GIL: held.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal, NamedTuple, TypeAlias

import numpy as np

from foresay.arrays import Floats, Int32s
from foresay.draft import Draft
from foresay.drafter import SeededParams
from foresay.engine.compute import Compute, forward_and_verify
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.request import Request
from foresay.engine.step import Outcome, Step, Timings
from foresay.engine.text import IncrementalDetokenizer
from foresay.errors import LogitsError
from foresay.lossless.scripts import NO_VERDICT, ScriptsResult, play
from foresay.lossless.toy import DRAFTS, DraftPlan, Plain, Toy, plain, random_inputs
from foresay.lossless.toy_target import ToyTarget, as_stored
from foresay.models.target import Target
from foresay.sampling import reference
from foresay.sampling.processors import probabilities, scores
from foresay.sampling.verification import VerificationInput
from foresay.verdict import Verdict, Wants

MakeText: TypeAlias = Callable[..., IncrementalDetokenizer]
MakeCompute: TypeAlias = Callable[[Target], Compute]
_PIECES = ("a", "b", "ab", "ba", "c", "", "bc", "abc")  # of texts: stop strings begin anywhere
_STOPS = ("abc", "bb", "cab", "aab", "bca")
_RULES: tuple[Literal["match", "rejection"], ...] = ("match", "match", "rejection")
_FEW, _MANY = 3 * PAGE, 64 * PAGE  # bytes of memory: a toy's token is one
_COUNTED = (
    *("requests", "tokens", "accepted", "answers ended by stop strings", "steps of both rules"),
    *("log probabilities", "preemptions", "prompt tokens from the prefix cache"),
)


def run_engine(
    scripts: int,
    seed: int = 0,
    *,
    compute: MakeCompute = forward_and_verify,
    text: MakeText = IncrementalDetokenizer,
    progress: Callable[[int, int], None] | None = None,
    enough: int = 10,
) -> ScriptsResult:
    """`play` scripts with an engine under test.

    compute  makes what the engine computes its steps with
    text     makes what finds stop strings
    """

    def one(index: int) -> ScriptsResult:
        return _Script(seed, index, compute, text).play()

    return play(one, scripts, progress, enough)


def decode(tokens: Sequence[int]) -> str:
    """The text of a toy's tokens: up to three letters each."""
    return "".join(_PIECES[token % len(_PIECES)] for token in tokens)


class _Ended(NamedTuple):
    """How an answer ends, and with which text."""

    tokens: list[int]
    reason: str
    text: str


def _ended(tokens: Sequence[int], request: VerificationInput, failed: bool) -> _Ended:
    """Where an answer of these tokens ends: by a search in its whole text after every token.
    `failed`: no token can follow them."""
    params, text = request.params, ""
    for count in range(1, len(tokens) + 1):
        some = list(tokens[:count])
        if some[-1] in request.stops:
            return _Ended(some, "stop", decode(some[:-1]))
        # A stop string ends the answer with the token that completes it, after min_tokens.
        before, text = len(decode(some[: max(count - 1, params.min_tokens)])), decode(some)
        hits = [
            (at + len(stop), at)
            for stop in params.stop_texts
            for at in range(len(text))
            if text.startswith(stop, at) and at + len(stop) > before
        ]
        if hits:
            return _Ended(some, "stop", text[: min(hits)[1]])
        if count == params.max_tokens:
            return _Ended(some, "length", text)
    return _Ended(list(tokens), "error" if failed else "cancelled", text)


@dataclass(slots=True, eq=False)
class _State:
    """What the toy drafter knows of a request."""

    request: VerificationInput
    truth: tuple[int, ...]
    observed: list[int] = field(default_factory=list)


class _Drafter:
    """Drafts of all kinds: right and wrong ones, and under rule rejection also sampled ones."""

    wants = Wants()

    def __init__(self, rng: random.Random, alike: Toy) -> None:
        self.rng, self.alike = rng, alike
        self.truths: dict[int, tuple[int, ...]] = {}  # by seed

    def begin(
        self, prompt: Int32s, /, *, sampling: SeededParams | None = None, **about: object
    ) -> _State:
        assert sampling is not None  # the engine tells it
        request = VerificationInput(sampling.params, sampling.seed, prompt)
        return _State(request, self.truths.get(sampling.seed, ()))

    def propose(self, states: Sequence[_State], budgets: Sequence[int], /) -> list[Draft]:
        return [self._draft(state, most) for state, most in zip(states, budgets, strict=True)]

    def _draft(self, state: _State, most: int) -> Draft:
        request = replace(state.request, output=state.observed)
        if request.params.rule == "rejection" and self.rng.random() < 0.6:
            return self._sampled(request, min(most, self.rng.randint(0, 3)))
        plan = DraftPlan(request, state.truth[len(state.observed) :], self.alike)
        tokens, parents = self.rng.choice(DRAFTS)(self.rng, plan)
        return Draft(tokens[:most], parents[:most])

    def _sampled(self, request: VerificationInput, size: int) -> Draft:
        text, vocabulary = [*request.prompt, *request.output], self.alike.vocabulary
        prefill = len(request.prompt) - 1
        tokens: list[int] = []
        rows: list[Floats] = []
        for _ in range(size):
            row = self.alike.logits(as_stored([*text, *tokens], prefill, vocabulary))
            rows.append(probabilities(row, greedy=False).astype(np.float32))
            tokens.append(self.rng.choices(range(vocabulary), rows[-1].tolist())[0])
        probs = np.stack(rows) if rows else None
        return Draft(tokens, range(-1, size - 1), None, probs)

    def observe(self, states: Sequence[_State], verdicts: Sequence[Verdict], /) -> None:
        for state, verdict in zip(states, verdicts, strict=True):
            state.observed += verdict.tokens.tolist()

    def finish(self, state: _State, /) -> None:
        pass


class _Script:
    """One script while it is played."""

    def __init__(self, seed: int, index: int, compute: MakeCompute, text: MakeText) -> None:
        self.name, rng = f"script {index}", random.Random(f"{seed}/engine/{index}")
        toy = Toy(rng.choice((8, 16, 33)), rng.getrandbits(32))
        self.rng, self.toy, self.text = rng, toy, text
        self.drafter = _Drafter(rng, replace(toy, disturbed=0.4))
        target = ToyTarget(toy)
        self._inner = compute(target)
        self.engine = Engine(
            target,
            self.drafter,
            policy=rng.choice(("fixed", "threshold", "dynamic-k")),
            memory=rng.choice((_FEW, _FEW, _MANY)),
            max_running=rng.randint(2, 6),
            max_rows=rng.choice((24, 128)),
            compute=self._compute,
        )
        self.inputs: dict[int, VerificationInput] = {}  # by the request's number
        self.plain: dict[int, Plain] = {}  # by seed
        self.counts = Counter(scripts=1, **dict.fromkeys(_COUNTED, 0))
        self.differences: list[str] = []

    def play(self) -> ScriptsResult:
        """Answer all requests, and compare."""
        rng, engine, counts = self.rng, self.engine, self.counts
        waiting = self._random_inputs()
        requests: list[Request] = []
        while waiting or engine.busy:
            while waiting and (rng.random() < 0.5 or not engine.busy):
                requests.append(self._add(waiting.pop()))
            engine.step()
        engine.check_integrity()
        for request in requests:
            self._check(request)
            stopped = request.answer is not None and request.answer.stopped is not None
            counts["requests"] += 1
            counts["tokens"] += request.stats.tokens
            counts["accepted"] += request.stats.accepted
            counts["answers ended by stop strings"] += stopped
            counts["preemptions"] += request.stats.preemptions
            counts["prompt tokens from the prefix cache"] += request.stats.shared_tokens
        return ScriptsResult(counts, tuple(self.differences))

    def _random_inputs(self) -> list[VerificationInput]:
        """Requests with all kinds of parameters; their prompts begin alike, and their texts end
        about where a page does."""
        rng, vocabulary = self.rng, self.toy.vocabulary
        common = [rng.randrange(vocabulary) for _ in range(rng.randint(50, 62))]
        inputs = []
        for one in random_inputs(rng, vocabulary):
            params = replace(
                one.params,
                n=1,
                stop=[*one.params.stop, *rng.sample(_STOPS, rng.choice((0, 1, 3)))],
                logprobs=rng.choice((None, 0, 3)),
                rule=rng.choice(_RULES),
            )
            prompt = [*common, *np.asarray(one.prompt).tolist()]
            inputs.append(VerificationInput(params, rng.getrandbits(64), prompt, (), one.stops))
        return inputs

    def _add(self, one: VerificationInput) -> Request:
        params = one.params
        if params.rule == "match":
            prefill = len(one.prompt) - 1
            self.plain[one.seed] = plain(lambda text: self._rows(text, prefill)[0], one)
            self.drafter.truths[one.seed] = self.plain[one.seed].tokens
        text = self.text(decode, params.stop_texts, params.min_tokens)
        request = self.engine.add(one.prompt, params, seed=one.seed, stops=one.stops, text=text)
        if params.rule == "rejection":  # its noise is new each time; a script's is not
            request._ask = replace(request._ask, seed=self.rng.getrandbits(64))
        self.inputs[request.number] = one
        return request

    def _rows(self, text: Sequence[int], prefill: int, draft: Draft | None = None) -> Floats:
        """The rows of logits after a text, and after each node."""
        stored = as_stored(text, prefill, self.toy.vocabulary)
        return self.toy.rows(stored, Draft.empty() if draft is None else draft)

    def _compute(self, step: Step, wants: Wants, laps: Timings) -> Outcome:
        """What the engine computes, with each verdict compared to the readable rule's."""
        outcome = self._inner(step, wants, laps)
        rules = {request.params.rule for request in step.decoding}
        self.counts["steps of both rules"] += len(rules) > 1
        for at, request in enumerate(step.decoding):
            draft, one = step.chosen.drafts[at], request.ask()
            draft = Draft(draft.tokens, draft.parents, None, step.draft_probs.get(at))
            rows = self._rows([*one.prompt, *one.output], len(one.prompt) - 1, draft)
            rule = reference.match if one.params.rule == "match" else reference.rejection
            try:
                right = rule(draft, rows, one)
            except LogitsError:
                right = NO_VERDICT
            tokens = outcome.verified.verdicts[at].tokens.tolist()
            self._compare(request, "commits", right.tokens.tolist(), tokens)
        return outcome

    def _check(self, request: Request) -> None:
        """Compare a request that has ended."""
        one, own = self.inputs[request.number], request.token_ids
        if one.params.rule == "match":
            truth = self.plain[one.seed]
            right = _ended(truth.tokens, one, truth.error is not None)
        else:
            right = _ended(own, one, request.finish_reason == "error")
        text = "" if request.answer is None else request.answer.text
        ended = _Ended(own, str(request.finish_reason), text)
        for name in _Ended._fields:
            if not self._compare(request, name, getattr(right, name), getattr(ended, name)):
                return
        if one.params.logprobs is not None:
            self._check_logprobs(request, one)

    def _check_logprobs(self, request: Request, one: VerificationInput) -> None:
        tokens = request.token_ids
        noted = [item.token for item in request.logprobs]
        if not self._compare(request, "log probabilities", tokens, noted):
            return
        for at, item in enumerate(request.logprobs):
            row = self._rows([*one.prompt, *tokens[:at]], len(one.prompt) - 1)[0]
            raw = probabilities(row, greedy=False)
            now = replace(one, output=tokens[:at])
            sampled = probabilities(scores(row, now), one.params.greedy)
            likeliest = np.argsort(-raw, kind="stable")[: one.params.logprobs]
            with np.errstate(divide="ignore"):
                right = np.log([raw[item.token], sampled[item.token], *raw[likeliest]])
            stated = [item.logprob, item.processed, *item.top.values()]
            self.counts["log probabilities"] += len(stated)
            same = list(item.top) == likeliest.tolist() and len(right) == len(stated)
            if not same or not np.allclose(right, stated, rtol=1e-5, atol=1e-5):
                shown = np.round(right, 4).tolist(), np.round(stated, 4).tolist()
                self._compare(request, f"log probabilities of token {at}", *shown)
                return

    def _compare(self, request: Request, what: str, right: object, other: object) -> bool:
        if right != other:
            where = f"{self.name}, request {request.number}, {what}"
            self.differences.append(f"{where}: expected {right}, got {other}")
        return right == other
