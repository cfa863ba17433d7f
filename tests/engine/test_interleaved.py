"""Several calls of one LLM that take turns: each gets the whole of its own answers."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from foresay import LLM, SamplingParams, Wants
from foresay.drafters import NgramDrafter
from foresay.engine.answers import Chunk, Result
from foresay.errors import InputError, StateError
from tiny import save_model

PARAMS = (
    SamplingParams(temperature=0, max_tokens=9),
    SamplingParams(temperature=0.9, seed=5, max_tokens=14, n=2),
    SamplingParams(temperature=1.0, seed=1, max_tokens=12, stop=["e", "zz"], n=2),
)
PROMPTS = (["Hello, hello, hello", "one two one two one"], ["a"], ["b" * 40, "a", "b" * 40])
Plain = tuple[str, list[int], str]
ASKED = [(prompts, params) for prompts in PROMPTS for params in PARAMS]


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = save_model(tmp_path_factory.mktemp("tiny"))
    return LLM(folder, dtype="float32", memory=1 << 24, policy="fixed")


@pytest.fixture(scope="module")
def alone(llm: LLM) -> list[list[Plain]]:
    """What each call answers where there is no other, and no draft."""
    plain = llm.beside(None)
    return [_plainly(plain.generate(prompts, params)) for prompts, params in ASKED]


def _plainly(results: list[Result]) -> list[Plain]:
    return [(result.text, result.token_ids, result.finish_reason) for result in results]


@dataclass
class Heard:
    """What came out of one stream."""

    which: int
    stream: Iterator[Chunk]
    texts: dict[tuple[int, int], str] = field(default_factory=dict)
    tokens: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    results: dict[tuple[int, int], Result] = field(default_factory=dict)

    def take(self) -> bool:
        """Take the next chunk; False at the stream's end."""
        chunk = next(self.stream, None)
        if chunk is None:
            return False
        key = chunk.prompt_index, chunk.sample
        assert key not in self.results, "a chunk after the result"
        assert chunk.token_ids or chunk.result is not None
        self.texts[key] = self.texts.get(key, "") + chunk.text
        self.tokens[key] = self.tokens.get(key, []) + chunk.token_ids
        if chunk.result is not None:
            self.results[key] = chunk.result
        return True

    def check(self, expected: list[Plain]) -> None:
        order = sorted(self.results)
        streamed = [(self.texts[key], self.tokens[key]) for key in order]
        assert streamed == [(text, tokens) for text, tokens, _ in expected]
        assert _plainly([self.results[key] for key in order]) == expected


@pytest.mark.parametrize("streams", [(0, 3), *((which,) for which in range(len(ASKED)))])
def test_two_streams_in_turns(llm: LLM, alone: Any, streams: tuple[int, ...]) -> None:
    """Or one alone."""
    heard = [Heard(which, llm.stream(*ASKED[which])) for which in streams]
    while sum(one.take() for one in heard):
        pass
    for one in heard:
        one.check(alone[one.which])


def test_generate_between_two_chunks_of_a_stream(llm: LLM, alone: Any) -> None:
    heard = Heard(0, llm.stream(*ASKED[0]))
    assert heard.take()
    assert _plainly(llm.generate(*ASKED[7])) == alone[7]
    assert not llm.engine.busy  # it was longer: the answers of the stream have ended, too
    while heard.take():
        pass
    heard.check(alone[0])


def test_a_call_within_the_progress_of_another(llm: LLM, alone: Any) -> None:
    counts: list[int] = []
    inner: list[list[Result]] = []

    def progress(count: int) -> None:
        counts.append(count)
        if len(counts) == 2:
            inner.append(llm.generate(*ASKED[4]))

    assert _plainly(llm.generate(*ASKED[1], progress=progress)) == alone[1]
    assert sum(counts) == sum(len(tokens) for _, tokens, _ in alone[1])
    assert [_plainly(results) for results in inner] == [alone[4]]


def test_the_engine_stepped_by_its_user(llm: LLM, alone: Any) -> None:
    heard = Heard(2, llm.stream(*ASKED[2]))
    assert heard.take()
    llm.engine.run()
    while heard.take():
        pass
    heard.check(alone[2])


def test_a_refused_request_whose_step_fails_has_its_result(llm: LLM) -> None:
    """The step that noted the refusal raises, so it returns nothing."""

    class Refusing(NgramDrafter):
        def begin(self, prompt: Any, /, **about: Any) -> Any:
            if len(prompt) == 1:
                raise InputError("not this one")
            return super().begin(prompt, **about)

    other = llm.beside(Refusing(), policy="fixed")
    first = Heard(0, other.stream(["a"], PARAMS[0]))
    second = Heard(0, other.stream(["b" * 40], PARAMS[0]))
    forward, other.engine._compute = other.engine._compute, _fails
    with pytest.raises(ZeroDivisionError):
        second.take()
    other.engine._compute = forward
    while first.take():
        pass
    assert str(first.results[0, 0].error) == "not this one"


def _fails(*_: Any) -> Any:
    raise ZeroDivisionError


def test_a_stream_that_is_closed_during_a_step_ends_after_it(llm: LLM, alone: Any) -> None:
    """As the garbage collector does with one that was forgotten."""
    forgotten: list[Any] = []

    class Collecting(NgramDrafter):
        def propose(self, states: Any, budgets: Any, /) -> Any:
            while forgotten and len(states) > 2:
                forgotten.pop().close()
            return super().propose(states, budgets)

    other = llm.beside(Collecting(), policy="fixed")
    heard = Heard(1, other.stream(*ASKED[1]))
    forgotten.append(other.stream(*ASKED[7]))
    while heard.take():
        pass
    heard.check(alone[1])
    assert not forgotten and not other.engine.busy
    other.engine.check_integrity()


@settings(max_examples=8, deadline=None)
@given(st.lists(st.tuples(st.sampled_from("soongcb"), st.integers(0, 8)), max_size=25))
def test_any_interleaving(llm: LLM, alone: Any, acts: list[tuple[str, int]]) -> None:
    """Begin a stream, take a chunk of one, generate, close one, generate beside: in any order."""
    beside = llm.beside("ngram", policy="fixed")
    heard: list[Heard] = []
    for act, which in acts:
        if act == "s":
            heard.append(Heard(which, llm.stream(*ASKED[which])))
        elif act == "g":
            assert _plainly(llm.generate(*ASKED[which])) == alone[which]
        elif act == "b":
            assert _plainly(beside.generate(*ASKED[which])) == alone[which]
        elif heard:
            one = heard[which % len(heard)]
            if act == "c":
                heard.remove(one)
                one.stream.close()  # type: ignore[attr-defined]
            else:
                one.take()
    while sum(one.take() for one in heard):
        pass
    for one in heard:
        one.check(alone[one.which])
    assert not llm.engine.busy
    llm.engine.check_integrity()


class Interrupted(NgramDrafter):
    """Ctrl-C comes amid the commit of a step: when the drafter is asked what it was shown."""

    left = 3

    def wants_now(self) -> Wants:
        return self.wants

    def shown(self, seconds: float) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


def test_an_interrupt_amid_a_commit_ends_the_other_streams_too(llm: LLM) -> None:
    """Their text may have a token that their tokens have not: it is not gone on with."""
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, logprobs=1)
    both = llm.beside(Interrupted(), "fixed")
    other = both.stream("Hello, hello, hello", params)
    with pytest.raises(KeyboardInterrupt):
        for _ in both.stream("one two one two one", params):
            pass
    results = [chunk.result for chunk in other if chunk.result is not None]
    assert [result.finish_reason for result in results] == ["cancelled"]
    (again,) = both.generate("Hello, hello, hello", params)
    assert _plainly([again]) == _plainly(llm.beside(None).generate("Hello, hello, hello", params))


def test_a_paused_answer_cannot_be_waited_for(llm: LLM) -> None:
    plain = llm.beside(None)  # which gives one token in each step
    heard = Heard(3, plain.stream(*ASKED[3]))
    assert heard.take()
    (request,) = plain.engine.scheduler.running
    plain.engine.pause(request)
    while request.stats.tokens > len(heard.tokens[0, 0]):
        heard.take()
    with pytest.raises(StateError, match=r"paused; expected `engine.pause\(request, False\)`"):
        heard.take()
    assert not plain.engine.busy


def test_two_threads_are_told_so(llm: LLM, alone: Any) -> None:
    """The second one asks while the first one's step is computed."""
    said: list[str] = []

    class Asking(NgramDrafter):
        def propose(self, states: Any, budgets: Any, /) -> Any:
            thread = threading.Thread(target=ask)
            thread.start()
            thread.join()
            return super().propose(states, budgets)

    both = llm.beside(Asking(), "fixed")

    def ask() -> None:
        try:
            both.generate("b", PARAMS[0])
        except StateError as error:
            said.append(str(error))

    assert _plainly(both.generate(*ASKED[0])) == alone[0]
    assert said and all("expected one thread at a time" in each for each in said)
    assert not both.engine.busy
    both.engine.check_integrity()
