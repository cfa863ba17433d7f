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
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from foresay.arrays import Floats, Int32s
from foresay.draft import Draft
from foresay.drafter import SeededParams
from foresay.engine.compute import Compute, Outcome, forward_and_verify
from foresay.engine.engine import Engine
from foresay.engine.pages import PAGE
from foresay.engine.request import Request
from foresay.engine.step import Laps, Step
from foresay.engine.text import AnswerText
from foresay.errors import LogitsError
from foresay.lossless.toy import DRAFTS, DraftPlan, Toy, some_asks
from foresay.lossless.toy_target import ToyTarget, as_stored
from foresay.models.target import Target
from foresay.sampling import reference
from foresay.sampling.ask import Ask
from foresay.sampling.processors import probabilities, scores
from foresay.verdict import Verdict, Wants

__all__ = ["EngineResult", "decode", "run_engine"]

MakeText: TypeAlias = Callable[..., AnswerText]
_PIECES = ("a", "b", "ab", "ba", "c", "", "bc", "abc")  # of texts: stop strings begin anywhere
_STOPS = ("abc", "bb", "cab", "aab", "bca")
_RULES: tuple[Literal["match", "rejection"], ...] = ("match", "match", "rejection")
_FEW, _MANY = 3 * PAGE, 64 * PAGE  # bytes of memory: a toy's token is one


@dataclass(frozen=True, slots=True)
class EngineResult:
    """What was run, and sentences on what differed: none, if the engine is exact."""

    scripts: int = 0
    requests: int = 0
    tokens: int = 0
    accepted: int = 0
    stopped: int = 0
    """Answers that a stop string ended."""
    mixed: int = 0
    """Steps with requests of both rules."""
    logprobs: int = 0
    """Log probabilities that were compared."""
    preempted: int = 0
    shared: int = 0
    """Prompt tokens from the prefix cache."""
    differences: tuple[str, ...] = ()

    def __add__(self, other: EngineResult) -> EngineResult:
        both = (getattr(self, name) + getattr(other, name) for name in self.__dataclass_fields__)
        return EngineResult(*both)

    @property
    def complete(self) -> bool:
        """Whether all that a script can do was done: a proof needs some of each."""
        return all(getattr(self, name) for name in self.__dataclass_fields__ if name[:4] != "diff")


def run_engine(
    scripts: int,
    seed: int = 0,
    *,
    compute: Callable[[Target], Compute] = forward_and_verify,
    text: MakeText = AnswerText,
    progress: Callable[[int, int], None] | None = None,
    enough: int = 10,
) -> EngineResult:
    """Play this many scripts, or until `enough` differences are found.

    compute  makes what the engine computes its steps with
    text     makes what finds stop strings
    progress(done, scripts) is called after every script
    """
    total = EngineResult()
    for index in range(scripts):
        total += _Script(seed, index, compute, text).play()
        if progress is not None:
            progress(index + 1, scripts)
        if len(total.differences) >= enough:
            break
    return total


def decode(tokens: Sequence[int]) -> str:
    """The text of a toy's tokens: up to three letters each."""
    return "".join(_PIECES[token % len(_PIECES)] for token in tokens)


class _Ended(NamedTuple):
    """How an answer ends, and with which text."""

    tokens: list[int]
    reason: str
    text: str


def _ended(tokens: Sequence[int], ask: Ask, failed: bool) -> _Ended:
    """Where an answer of these tokens ends: by a search in its whole text after every token.
    `failed`: no token can follow them."""
    params, text = ask.params, ""
    for count in range(1, len(tokens) + 1):
        some = list(tokens[:count])
        if some[-1] in ask.stops:
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

    ask: Ask
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
        ask = Ask(sampling.params, sampling.seed, prompt)
        return _State(ask, self.truths.get(sampling.seed, ()))

    def propose(self, states: Sequence[_State], budgets: Sequence[int], /) -> list[Draft]:
        return [self._draft(state, most) for state, most in zip(states, budgets, strict=True)]

    def _draft(self, state: _State, most: int) -> Draft:
        ask = replace(state.ask, output=state.observed)
        if ask.params.rule == "rejection" and self.rng.random() < 0.6:
            return self._sampled(ask, min(most, self.rng.randint(0, 3)))
        plan = DraftPlan(ask, state.truth[len(state.observed) :], self.alike)
        tokens, parents = self.rng.choice(DRAFTS)(self.rng, plan)
        return Draft(tokens[:most], parents[:most])

    def _sampled(self, ask: Ask, size: int) -> Draft:
        text, vocabulary = [*ask.prompt, *ask.output], self.alike.vocabulary
        tokens: list[int] = []
        rows: list[Floats] = []
        for _ in range(size):
            row = self.alike.logits(as_stored([*text, *tokens], len(ask.prompt) - 1, vocabulary))
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

    def __init__(
        self, seed: int, index: int, compute: Callable[[Target], Compute], text: MakeText
    ) -> None:
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
        self.asks: dict[int, Ask] = {}  # by the request's number
        self.plain: dict[int, tuple[list[int], bool]] = {}  # by seed
        self.found: list[str] = []
        self.mixed = self.compared = 0

    def play(self) -> EngineResult:
        """Answer all requests, and compare."""
        rng, engine = self.rng, self.engine
        waiting = self._some_asks()
        requests: list[Request] = []
        while waiting or engine.busy:
            while waiting and (rng.random() < 0.5 or not engine.busy):
                requests.append(self._add(waiting.pop()))
            engine.step()
        engine.check_integrity()
        for request in requests:
            self._check(request)
        stats = [request.stats for request in requests]
        return EngineResult(
            1,
            len(requests),
            sum(one.tokens for one in stats),
            sum(one.accepted for one in stats),
            sum(r.answer is not None and r.answer.stopped is not None for r in requests),
            self.mixed,
            self.compared,
            sum(one.preemptions for one in stats),
            sum(one.shared_tokens for one in stats),
            tuple(self.found),
        )

    def _some_asks(self) -> list[Ask]:
        """Requests with all kinds of parameters; their prompts begin alike, and their texts end
        about where a page does."""
        rng, vocabulary = self.rng, self.toy.vocabulary
        common = [rng.randrange(vocabulary) for _ in range(rng.randint(50, 62))]
        asks = []
        for ask in some_asks(rng, vocabulary):
            params = replace(
                ask.params,
                n=1,
                stop=[*ask.params.stop, *rng.sample(_STOPS, rng.choice((0, 1, 3)))],
                logprobs=rng.choice((None, 0, 3)),
                rule=rng.choice(_RULES),
            )
            prompt = [*common, *np.asarray(ask.prompt).tolist()]
            asks.append(Ask(params, rng.getrandbits(64), prompt, (), ask.stops))
        return asks

    def _add(self, ask: Ask) -> Request:
        params = ask.params
        if params.rule == "match":
            self.plain[ask.seed] = self._plain(ask)
            self.drafter.truths[ask.seed] = tuple(self.plain[ask.seed][0])
        text = self.text(decode, params.stop_texts, params.min_tokens)
        request = self.engine.add(ask.prompt, params, seed=ask.seed, stops=ask.stops, text=text)
        if params.rule == "rejection":  # its noise is new each time; a script's is not
            request._ask = replace(request._ask, seed=self.rng.getrandbits(64))
        self.asks[request.number] = ask
        return request

    def _row(self, ask: Ask, answer: Sequence[int], draft: Draft) -> Floats:
        """The rows of logits after the answer so far, and after each node."""
        text = [*np.asarray(ask.prompt).tolist(), *answer]
        return self.toy.rows(as_stored(text, len(ask.prompt) - 1, self.toy.vocabulary), draft)

    def _plain(self, ask: Ask) -> tuple[list[int], bool]:
        """The tokens of plain decoding, and whether it ended with invalid logits."""
        tokens: list[int] = []
        while len(tokens) < ask.params.max_tokens:
            now = replace(ask, output=tokens)
            try:
                verdict = reference.match(Draft.empty(), self._row(ask, tokens, Draft.empty()), now)
            except LogitsError:
                return tokens, True
            tokens.append(int(verdict.tokens[0]))
            if tokens[-1] in ask.stops:
                break
        return tokens, False

    def _compute(self, step: Step, wants: Wants, laps: Laps) -> Outcome:
        """What the engine computes, with each verdict compared to the readable rule's."""
        outcome = self._inner(step, wants, laps)
        self.mixed += len({request.params.rule for request in step.decoding}) > 1
        for at, request in enumerate(step.decoding):
            draft, ask = step.chosen.drafts[at], request.ask()
            draft = Draft(draft.tokens, draft.parents, None, step.draft_probs.get(at))
            rule = reference.match if ask.params.rule == "match" else reference.rejection
            try:
                right = rule(draft, self._row(ask, np.asarray(ask.output).tolist(), draft), ask)
            except LogitsError:
                right = Verdict._trusted(np.empty(0, np.int32), np.empty(0, np.int32))
            given = outcome.verified.verdicts[at]
            if given.tokens.tolist() != right.tokens.tolist():
                self._differs(request, "commits", right.tokens.tolist(), given.tokens.tolist())
        return outcome

    def _check(self, request: Request) -> None:
        """Compare a request that has ended."""
        ask, own = self.asks[request.number], request.token_ids
        if ask.params.rule == "match":
            tokens, failed = self.plain[ask.seed]
        else:
            tokens, failed = own, request.finish_reason == "error"
        right = _ended(tokens, ask, failed)
        text = "" if request.answer is None else request.answer.text
        given = _Ended(own, str(request.finish_reason), text)
        for name in _Ended._fields:
            if getattr(given, name) != getattr(right, name):
                self._differs(request, name, getattr(right, name), getattr(given, name))
                return
        if ask.params.logprobs is None:
            return
        noted = [(one.token, one.logprob, one.processed, one.top) for one in request.logprobs]
        self._check_logprobs(request, ask, noted)

    def _check_logprobs(self, request: Request, ask: Ask, noted: list[Any]) -> None:
        tokens = request.token_ids
        if [one[0] for one in noted] != tokens:
            self._differs(request, "log probabilities", tokens, [one[0] for one in noted])
            return
        for at, (token, raw, processed, top) in enumerate(noted):
            row = self._row(ask, tokens[:at], Draft.empty())[0]
            plain = probabilities(row, greedy=False)
            now = replace(ask, output=tokens[:at])
            sampled = probabilities(scores(row, now), ask.params.greedy)
            likeliest = np.argsort(-plain, kind="stable")[: ask.params.logprobs]
            with np.errstate(divide="ignore"):
                right = np.log([plain[token], sampled[token], *plain[likeliest]])
            given = [raw, processed, *top.values()]
            self.compared += len(given)
            same = list(top) == likeliest.tolist() and len(right) == len(given)
            if not same or not np.allclose(right, given, rtol=1e-5, atol=1e-5):
                shown = np.round(right, 4).tolist(), np.round(given, 4).tolist()
                self._differs(request, f"log probabilities of token {at}", *shown)
                return

    def _differs(self, request: Request, what: str, right: object, given: object) -> None:
        self.found.append(
            f"{self.name}, request {request.number}, {what}: expected {right}, got {given}"
        )
