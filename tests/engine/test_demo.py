"""The demonstration: what is compared, how it is shown, and the whole of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foresay.bench.demo import (
    CONTEXT,
    ROWS,
    Comparison,
    Demo,
    StepTime,
    compare,
    step_times,
)
from foresay.bench.drafters import Answered
from foresay.bench.questions import Question, built_in_questions
from foresay.budget.cost import Sample, StepCost
from foresay.budget.policy import make_policy
from foresay.cli import demo as demo_module
from foresay.cli.sources import MARKS, Span, marked, spans
from foresay.drafter import Source
from foresay.engine.llm import LLM, Result
from foresay.engine.request import RequestStats
from foresay.errors import InputError, LogitsError
from foresay.sampling.params import SamplingParams
from tiny import Done, call, one_thread, save_model


def result(tokens: list[int], sources: list[Source] | None = None, error: Any = None) -> Result:
    stats = RequestStats(steps=max(len(tokens) // 2, 1), tokens=len(tokens))
    reason = "length" if error is None else "error"
    return Result("p", [1], 0, "text", tokens, reason, error, None, sources, stats)  # type: ignore[arg-type]


@dataclass
class Scripted:
    """An LLM that gives what it was told to give, and notes what it was asked."""

    answers: list[list[Result]]
    asked: list[object] = field(default_factory=list)
    tokenizer: Any = field(default_factory=lambda: SimpleNamespace(chats=True))
    engine: Any = field(default_factory=lambda: llm_with(None, active=False).engine)

    def generate(
        self,
        prompts: Any,
        params: SamplingParams,
        *,
        chat: bool = False,
        progress: Callable[[int], None] | None = None,
    ) -> list[Result]:
        self.asked.append(prompts)
        if len(self.asked) == 1:
            return [result([0])]  # the warm-up
        answers = self.answers[len(self.asked) - 2]
        if progress is not None:
            progress(sum(len(answer.token_ids) for answer in answers))
        return answers


def compared(plain: list[list[Result]], fast: list[list[Result]]) -> Demo:
    prompts = [
        Question(f"p{i}", "p", (f"text {i}",), SamplingParams(max_tokens=8, n=len(answers)))
        for i, answers in enumerate(plain)
    ]
    told: list[tuple[str, int, int | None]] = []
    first: Any = Scripted(plain)
    second: Any = Scripted(fast)
    demo = Demo(list(compare(first, second, prompts, lambda *stage: told.append(stage))))
    for llm in (first, second):
        asked = [[{"role": "user", "content": prompt.turns[0]}] for prompt in prompts]
        assert llm.asked[1:] == asked
    total = 2 * 8 * sum(map(len, plain))
    assert [stage for stage, _, _ in told[:2]] == ["warm", "answer"]
    assert told[-1] == ("answer", total, total)  # early ends included
    return demo


def test_identical_texts_are_found_identical() -> None:
    group = [result([1, 2, 3, 4]), result([5, 6])]
    fast = [
        result([1, 2, 3, 4], [Source.OWN, Source.OWN, Source.MODEL, Source.MODEL]),
        result([5, 6], [Source.GROUP, Source.MODEL]),
    ]
    demo = compared([group, [result([7])]], [fast, [result([7])]])
    assert demo.total.identical and demo.total.prompt is None
    assert demo.total.fast.tokens == 7 and demo.total.fast.steps == 4
    assert demo.comparisons[0].tokens_per_step == 2.0
    assert demo.sources == {"own": 2, "group": 1, "": 4}
    assert demo.total.as_dict()["answers"] == 3


def test_the_speedup_of_the_whole_is_that_of_its_seconds() -> None:
    """Not a mean of the prompts' own: a short one must not count as much as a long one."""
    answers = [result([1, 2, 3, 4])]
    pairs = [(8.0, 2.0), (1.0, 1.0)]
    demo = Demo([Comparison(None, *(Answered(s, answers) for s in pair)) for pair in pairs])
    assert [comparison.speedup for comparison in demo.comparisons] == [4.0, 1.0]
    assert demo.total.as_dict() == {
        "answers": 2,
        "tokens": 8,
        "plain_seconds": 9.0,
        "speculative_seconds": 3.0,
        "plain_steps": 4,
        "speculative_steps": 4,
        "tokens_per_step": 2.0,
        "speedup": 3.0,
        "identical": True,
    }


@pytest.mark.parametrize(
    ("other", "token"),
    [
        (result([1, 2, 4]), 2),
        (result([1, 2]), 2),
        (result([1, 2, 3, 3]), 3),
        (result([], error=LogitsError("invalid logits")), 0),
        (result([1, 2, 3], error=LogitsError("invalid logits")), 0),
    ],
)
def test_every_difference_is_found(other: Result, token: int) -> None:
    same = result([9])
    for pair in ([other], [result([1, 2, 3])]), ([result([1, 2, 3])], [other]):
        demo = compared([[same, *pair[0]]], [[same, *pair[1]]])
        assert demo.comparisons[0].differences == [(1, token)]
        assert not demo.total.identical


def test_no_tokens_are_no_division_by_zero() -> None:
    failed = [result([], error=LogitsError("invalid logits"))]
    demo = compared([failed], [failed])
    assert demo.total.tokens_per_step == 0.0 and not demo.total.identical


def llm_with(policy: object, active: bool = True) -> Any:
    drafter = SimpleNamespace(active=active)
    return SimpleNamespace(engine=SimpleNamespace(policy=policy, drafter=drafter))


def test_step_times_are_those_of_the_policy() -> None:
    """In this cost model the context costs nothing, so rows alone decide."""
    took = {1: 0.010, 4: 0.014, 8: 0.020, 16: 0.180}
    cost = StepCost.measured(
        [Sample(rows, rows * keys, s, keys) for rows, s in took.items() for keys in (64, 512)]
    )
    steps = step_times(llm_with(make_policy("adaptive", cost)))
    assert tuple(step.rows for step in steps) == ROWS == tuple(took)
    assert [step.seconds for step in steps] == pytest.approx(list(took.values()), rel=0.01)
    expected = [cost.of(r, r * CONTEXT, CONTEXT) for r in ROWS]
    assert [step.seconds for step in steps] == pytest.approx(expected)
    assert [step.relative for step in steps] == pytest.approx([1, 1.4, 2, 18], rel=0.01)
    assert [step.break_even for step in steps[1:3]] == pytest.approx([0.4, 1.0], rel=0.03)
    assert steps[3].break_even is None  # 15 accepted tokens would not save 17 steps


def test_what_is_drafted_in_vain_has_no_break_even() -> None:
    assert StepTime(8, 0.07, 7.0).break_even == 6.0
    assert StepTime(8, 0.08, 8.0).break_even is None
    assert StepTime(8, 0.08, 8.0).as_dict()["break_even"] is None


def test_a_policy_that_measures_nothing_has_no_step_times() -> None:
    assert step_times(llm_with(make_policy("fixed"))) == []


def test_the_built_in_prompts() -> None:
    prompts = built_in_questions(40)
    names = [prompt.category for prompt in prompts]
    assert names == [
        "rename a variable",
        "extract fields",
        "correct a paragraph",
        "summarise",
        "answer from a passage",
        "free chat",
        "code, 4 samples",
    ]
    assert all(prompt.params.max_tokens == 40 for prompt in prompts)
    groups = [prompt for prompt in prompts if prompt.params.n > 1]
    assert [(g.category, g.params.n, g.params.temperature) for g in groups] == [(names[-1], 4, 0.8)]
    assert groups[0].params.seed is not None  # or the two runs would differ
    assert all(p.params.greedy for p in prompts if p not in groups)
    with pytest.raises(InputError, match="max_tokens is 0"):
        built_in_questions(0)


def decode(tokens: Sequence[int]) -> str:
    return bytes(tokens).decode("utf-8", errors="replace")


def test_spans_join_neighbours_and_keep_characters_whole() -> None:
    text = "so: naïve"
    tokens = list(text.encode())
    own, group, model = Source.OWN, Source.GROUP, Source.MODEL
    sources = [model] * 4 + [own] * 3 + [group] + [own, model]
    pieces = spans(tokens, sources, decode)
    assert "".join(piece.text for piece in pieces) == text
    expected = [("so: ", model), ("na", own), ("ï", group), ("v", own), ("e", model)]
    assert pieces == [Span(*pair) for pair in expected]
    assert spans(tokens, [], decode) == [Span(text, model)]
    assert spans([], [], decode) == []
    assert spans(tokens, sources, decode, ["ï"])[-1] == Span("na", own)
    assert spans(list(text.encode())[:7], [own] * 7, decode) == [Span("so: na\ufffd", own)]


def test_brackets_leave_white_space_outside() -> None:
    pieces = [
        Span("It is", Source.MODEL),
        Span(" a long day\n", Source.OWN),
        Span(" \n", Source.GROUP),
        Span("x", Source.OTHER),
    ]
    assert marked(pieces) == "It is «a long day»\n \n⟪x⟫"


def test_sources_are_told_apart_without_colours() -> None:
    assert set(MARKS) == set(Source)
    drafted = [mark for source, mark in MARKS.items() if source != Source.MODEL]
    assert len({source.left for source in drafted}) == len(drafted)
    shapes = {tuple(source.style.split()[1:]) for source in drafted}
    assert len(shapes) == len(drafted) and () not in shapes


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny"))


def tiny_demo(model: Path, *arguments: object) -> Done:
    with one_thread():
        return call("demo", "--model", model, "--dtype", "float32", *arguments)


@pytest.mark.parametrize("busy", [False, True])
def test_the_demonstration_with_a_tiny_model(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, busy: bool
) -> None:
    waited = iter((0.0, 1e3 * busy))
    monkeypatch.setattr(demo_module, "seconds_kept_waiting", lambda: next(waited))
    done = tiny_demo(tiny, "--max-tokens", 6)
    assert done.status == 0 and done.complaints == "", done
    assert "texts are identical, token by token" in done.out.splitlines()[-1 - busy]
    assert ("threads waited 1000 s for one" in done.out.splitlines()[-1]) == busy
    assert "the model's own token" in done.out and "speed-up" in done.out
    assert "NO" not in done.out.split()
    shown = done.out.split("A step on this machine")[1].split("\n\n")[1].splitlines()
    assert shown[0].split()[:3] == ["rows", "time", "relative"]
    assert [int(line.split()[0]) for line in shown[1:]] == list(ROWS)
    assert shown[1].split()[3:] == ["1.00", "x"] and all(len(line) > 30 for line in shown[2:])


def test_the_demonstration_as_json(tiny: Path) -> None:
    done = tiny_demo(tiny, "--max-tokens", 3, "--json")
    assert done.status == 0 and done.complaints == "", done
    values = json.loads(done.out)
    names = [prompt.category for prompt in built_in_questions(3)]
    assert [prompt["name"] for prompt in values["prompts"]] == names
    assert [step["rows"] for step in values["step_cost"]] == list(ROWS)
    assert all(step["seconds"] > 0 and "break_even" in step for step in values["step_cost"])
    for part in ("plain_seconds", "speculative_seconds"):
        assert values[part] == pytest.approx(sum(p[part] for p in values["prompts"]), abs=0.001)
    for part in ("answers", "tokens", "plain_steps", "speculative_steps"):
        assert values[part] == sum(prompt[part] for prompt in values["prompts"]) >= 7
    ratio = values["plain_seconds"] / values["speculative_seconds"]
    assert values["speedup"] == pytest.approx(ratio, rel=0.01)
    assert values["identical"] is True and values["plain_steps"] == values["tokens"]


def test_a_difference_fails_the_demonstration(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comparison, "differences", property(lambda self: [(0, 4)]))
    monkeypatch.setattr(demo_module, "seconds_kept_waiting", lambda: 0.0)
    done = tiny_demo(tiny, "--max-tokens", 2)
    assert done.status == 1
    assert "NOT identical: 'rename a variable' from token 5 on" in done.out.splitlines()[-1]
    done = tiny_demo(tiny, "--max-tokens", 2, "--json")
    assert done.status == 1 and json.loads(done.out)["identical"] is False


@pytest.mark.model
def test_the_default_model_in_the_demonstration() -> None:
    """An edit, which copies, and the group; reading all prompts takes longer than all the rest."""
    prompts = [
        p
        for p in built_in_questions(12)
        if p.category in ("correct a paragraph", "code, 4 samples")
    ]
    plain = LLM(drafter=None, memory=1 << 28)
    fast = plain.beside("suffix", "fixed", with_sources=True)
    demo = Demo(list(compare(plain, fast, prompts)))
    assert demo.total.identical and demo.comparisons[0].tokens_per_step > 1.2
    assert demo.sources[Source.OWN] > 0


@pytest.mark.slow
@pytest.mark.model
def test_the_demonstration(monkeypatch: pytest.MonkeyPatch) -> None:
    # On a busy machine drafts may not pay, and adaptive leaves them out.
    monkeypatch.setattr(
        "foresay.engine.engine.make_policy",
        lambda policy, cost=None: make_policy("fixed" if policy == "adaptive" else policy),
    )
    done = call("demo", "--max-tokens", 24, "--json")  # drafts need some text to come from
    assert done.status == 0 and done.complaints == "", done
    values = json.loads(done.out)
    assert values["identical"] is True
    assert values["answers"] == 10 and 150 < values["tokens"] <= 240
    assert sum(values["sources"].values()) == values["tokens"]
    assert values["sources"]["own"] > 20  # edits copy
