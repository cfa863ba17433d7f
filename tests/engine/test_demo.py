"""The demonstration: what is compared, how it is shown, and the whole of it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from foresay.bench.demo import Comparison, Demo, DemoPrompt, built_in_prompts, compare, write_corpus
from foresay.budget.policy import make_policy
from foresay.cli.sources import MARKS, Span, marked, spans
from foresay.drafter import Source
from foresay.drafters.suffix import SuffixDrafter
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

    def generate(
        self,
        prompts: str,
        params: SamplingParams,
        *,
        chat: bool,
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
        DemoPrompt(f"p{i}", f"text {i}", SamplingParams(max_tokens=8, n=len(answers)))
        for i, answers in enumerate(plain)
    ]
    told: list[tuple[str, int, int | None]] = []
    first: Any = Scripted(plain)
    second: Any = Scripted(fast)
    demo = Demo(list(compare(first, second, prompts, lambda *stage: told.append(stage))))
    for llm in (first, second):
        assert llm.asked[1:] == [prompt.text for prompt in prompts]
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
    speeds = demo.total.plain_speed, demo.total.fast_speed
    assert demo.total.speedup == speeds[1] / speeds[0] > 0


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
    assert demo.total.speedup == 1.0 and not demo.total.identical


def test_the_built_in_prompts() -> None:
    prompts = built_in_prompts(40)
    assert len({prompt.name for prompt in prompts}) == len(prompts) >= 6
    assert all(prompt.params.max_tokens == 40 for prompt in prompts)
    groups = [prompt for prompt in prompts if prompt.params.n > 1]
    assert groups and all(g.params.temperature > 0 and g.params.seed is not None for g in groups)
    assert all(p.params.greedy for p in prompts if p not in groups)
    with pytest.raises(InputError, match="max_tokens is 0"):
        built_in_prompts(0)


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


def test_the_demonstration_with_a_tiny_model(tiny: Path) -> None:
    done = tiny_demo(tiny, "--max-tokens", 6)
    assert done.status == 0 and done.complaints == "", done
    assert "texts are identical, token by token" in done.out.splitlines()[-1]
    assert "own text" in done.out and "speed-up" in done.out and "NO" not in done.out.split()


def test_a_difference_fails_the_demonstration(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Comparison, "differences", property(lambda self: [(0, 4)]))
    done = tiny_demo(tiny, "--max-tokens", 2)
    assert done.status == 1
    assert "NOT identical: 'summary' from token 5 on" in done.out.splitlines()[-1]
    done = tiny_demo(tiny, "--max-tokens", 2, "--json")
    assert done.status == 1 and json.loads(done.out)["identical"] is False


@pytest.mark.model
def test_the_default_model_in_the_demonstration(tmp_path: Path) -> None:
    """The shortest of its prompts; reading the others takes longer than all the rest."""
    prompts = sorted(built_in_prompts(12), key=lambda prompt: len(prompt.text))[:3]
    assert [prompt.name for prompt in prompts[:2]] == ["question again", "question"]
    write_corpus(tmp_path / "recorded.foresay")
    plain = LLM(drafter=None, dtype="float32", memory=1 << 28)
    drafter = SuffixDrafter(corpus=tmp_path / "recorded.foresay")
    fast = plain.beside(drafter, "fixed", with_sources=True)
    demo = Demo(list(compare(plain, fast, prompts)))
    assert demo.total.identical and demo.total.tokens_per_step > 1
    assert set(demo.sources) & {"own", "history", "corpus", "group"}


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
    assert values["answers"] == 11 and 150 < values["tokens"] <= 264
    assert sum(values["sources"].values()) == values["tokens"]
    assert values["sources"].get("own", 0) + values["sources"].get("history", 0) > 0
    assert [prompt["name"] for prompt in values["prompts"]] == [
        prompt.name for prompt in built_in_prompts(24)
    ]
