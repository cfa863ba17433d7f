"""`foresay bench drafters` with a tiny model: the table, its protocol, and every way to fail."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from foresay.bench import drafters
from foresay.bench.drafters import Answered, Round, Table, ways_of
from foresay.bench.questions import (
    Question,
    built_in_questions,
    in_order,
    read_questions,
    some_of_each,
)
from foresay.drafters.suffix import SuffixDrafter
from foresay.engine.llm import LLM, Result
from foresay.engine.request import RequestStats
from foresay.errors import InputError, LogitsError, TraceError
from foresay.sampling.params import SamplingParams
from tiny import Done, call, one_thread, save_model

GREEDY = SamplingParams(max_tokens=8, temperature=0.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with one_thread():
        yield save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture
def questions(tmp_path: Path) -> Path:
    """Two turns of MT-Bench, a question about a passage, and one that has another category."""
    lines: list[dict[str, Any]] = [
        {"question_id": 81, "category": "writing", "turns": ["a b a b a b", "Again."]},
        {"question_id": 1, "category": "rag", "turns": ["c d c d c d c"]},
        {"task_id": "HumanEval/0", "prompt": "def f(a, b, a, b):\n"},
        {"prompt": "x y x y"},
    ]
    path = tmp_path / "questions.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def bench(model: Path, *arguments: object) -> Done:
    fixed = ["--model", model, "--dtype", "float32", "--max-tokens", 8, "--memory-mb", 16]
    return call("bench", "drafters", *fixed, *arguments)


def test_the_table_as_json(model: Path, questions: Path) -> None:
    names = "suffix,recycle,suffix+recycle,self"
    asked = ("--drafters", names, "--nodes", 4, "--prompts", questions, "--json")
    done = bench(model, *asked)
    assert done.status == 0 and done.complaints == "", done
    table = json.loads(done.out)
    assert table["policy"] == "fixed" and table["nodes"] == 4 and table["identical"] is True
    assert table["questions"] == {"mt_bench": 1, "rag": 1, "humaneval": 1, "other": 1}
    rows = {row["drafter"]: row for row in table["rows"]}
    assert list(rows) == ["none", *names.split(",")]
    assert rows["none"]["tokens_per_step"] == 1 and rows["none"]["nodes_per_step"] == 0
    assert rows["none"]["bytes"] is None and rows["none"]["speedup_median"] == 1
    assert len({row["tokens"] for row in table["rows"]}) == 1
    for name in names.split(","):
        row = rows[name]
        assert 0 < row["nodes_per_step"] <= 4 and row["draft_ms_per_step"] > 0
        assert row["speedup_median"] > 0 and row["speedup_mean"] > 0 and row["bytes"] > 0
        assert row["tokens_per_step"] == pytest.approx(row["tokens"] / row["steps"], abs=1e-4)
        assert list(row["by_category"]) == list(table["questions"])
    assert rows["suffix"]["tokens_per_step"] > 1


def test_the_table_as_text(model: Path, questions: Path) -> None:
    done = bench(model, "--drafters", "ngram", "--prompts", questions, "--per-category", 1)
    assert done.status == 0 and done.complaints == "", done
    assert "\x1b" not in done.out
    lines = done.out.splitlines()
    assert lines[0] == "4 prompts, as many nodes as pay in a draft"
    assert lines[2].split("  ")[0] == "drafter" and lines[3].startswith("none")
    assert "category   none  ngram" in lines
    assert lines[-1] == "All 5 texts with drafts are those without, token by token."
    assert "answering" in done.err


def test_the_built_in_prompts(model: Path) -> None:
    done = bench(model, "--drafters", "suffix", "--nodes", 2, "--json")
    assert done.status == 0, done
    table = json.loads(done.out)
    assert "free chat" in table["questions"] and len(table["questions"]) == 7


def test_a_text_that_differs_fails(
    model: Path, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    generate = LLM.generate

    def wrong(self: LLM, *values: Any, **how: Any) -> list[Result]:
        results = generate(self, *values, **how)
        if not self.engine.drafter.active:
            return results
        return [replace(r, token_ids=[*r.token_ids[:2], 1, *r.token_ids[3:]]) for r in results]

    monkeypatch.setattr(LLM, "generate", wrong)
    asked = ("--drafters", "ngram", "--nodes", 2, "--prompts", questions)
    done = bench(model, *asked)
    assert done.status == 1
    place = f"{questions}, line 2: ngram differs from none in answer 1 from token 3 on"
    assert f"NOT identical: {place}" in done.out.splitlines()
    again = bench(model, *asked, "--json")
    table = json.loads(again.out)
    assert again.status == 1 and table["identical"] is False and place in table["differences"]


def test_a_drafter_that_fails_is_told(
    model: Path, questions: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("no more")

    monkeypatch.setattr(SuffixDrafter, "propose", broken)
    with pytest.warns(UserWarning, match="the drafter failed"):
        done = bench(model, "--drafters", "suffix", "--nodes", 2, "--prompts", questions)
    assert done.status == 1
    assert "FAILED: the drafter suffix failed, and was not asked again" in done.out


def test_ways_take_turns(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    llm = LLM(model, None, "none", dtype="float32", memory=16 << 20)
    order: list[bool] = []
    answered = drafters._answered

    def noted(engine: LLM, *values: Any) -> Answered:
        order.append(engine.engine.drafter.active)
        return answered(engine, *values)

    monkeypatch.setattr(drafters, "_answered", noted)
    asked = [Question(str(i), "qa", ("a b a b",), GREEDY) for i in range(3)]
    told: list[tuple[str, int, int | None]] = []
    rounds = list(
        drafters.answer_all(llm, ["none", "ngram"], asked, 2, lambda *said: told.append(said))
    )
    assert order == [False, True, True, False, False, True]
    assert [list(one.answers) for one in rounds] == [["none", "ngram"]] * 3
    assert told[-1] == ("answer", 48, 48)


def test_every_turn_is_asked_with_what_was_said(model: Path) -> None:
    llm = LLM(model, None, "none", dtype="float32", memory=16 << 20)
    asked = Question("here", "mt_bench", ("a b a b", "Again."), GREEDY)
    (one,) = drafters.answer_all(llm, ["none"], [asked], 2)
    first = llm.generate("a b a b", GREEDY, chat=True)[0]
    second = llm.generate(
        [
            {"role": "user", "content": "a b a b"},
            {"role": "assistant", "content": first.text},
            {"role": "user", "content": "Again."},
        ],
        GREEDY,
    )[0]
    assert one.answers["none"].texts == [first.token_ids, second.token_ids]


def test_a_model_without_a_chat_template(tmp_path: Path) -> None:
    with one_thread():
        llm = LLM(save_model(tmp_path, chats=False), None, "none", memory=16 << 20)
        asked = Question("here", "qa", ("a b a b", "Again."), GREEDY)
        (one,) = drafters.answer_all(llm, ["none", "suffix"], [asked], 2)
    assert one.differences == [] and len(one.answers["suffix"].texts) == 2


def test_a_prompt_that_is_too_long_is_named(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "long.jsonl"
    path.write_text(json.dumps({"prompt": "a" * 5000}) + "\n")
    done = bench(model, "--drafters", "ngram", "--nodes", 2, "--prompts", path)
    assert done.status == 1 and f"foresay: {path}, line 1: the prompt has 50" in done.complaints


def test_sums() -> None:
    def answer(seconds: float, steps: int, tokens: list[int], error: Any = None) -> Answered:
        stats = RequestStats(steps, drafted=16, accepted=4, tokens=8)
        stats.seconds["draft"] = 0.5
        result = Result("p", [1], 0, "", tokens, "length", error, None, None, stats)
        return Answered(seconds, [result], 100 * steps)

    asked = Question("here", "qa", ("a",), GREEDY)
    rounds = [
        Round(asked, {"none": answer(4.0, 8, [1, 2]), "x": answer(seconds, 4, *other)})
        for seconds, *other in ((1.0, [1, 2]), (4.0, [1, 2, 3]), (2.0, [1], LogitsError("no")))
    ]
    table = Table(None, rounds)
    row = table.row("x")
    assert row["tokens_per_step"] == 2 and row["nodes_per_step"] == 4 and row["acceptance"] == 0.25
    assert row["draft_ms_per_step"] == 125 and row["bytes"] == 400
    assert row["speedup_median"] == 2 and row["speedup_mean"] == 2
    assert table.as_dict()["policy"] == "adaptive"
    assert table.differences == [
        "here: x differs from none in answer 1 from token 3 on",
        "here: x differs from none in answer 1, which failed",
    ]


def test_names() -> None:
    assert ways_of("suffix, ngram,none,suffix") == ["none", "suffix", "ngram"]
    assert ways_of("model:a,suffix+eagle:b") == ["none", "model:a", "suffix+eagle:b"]
    for names in ("suffix,oracle", "suffix+oracle", "suffix,"):
        with pytest.raises(InputError, match=r"no drafter .*; expected one of suffix"):
            ways_of(names)


def test_questions(questions: Path) -> None:
    found = read_questions([questions, questions], GREEDY)
    assert [question.category for question in found[:4]] == [
        "mt_bench",
        "rag",
        "humaneval",
        "other",
    ]
    assert found[0].turns == ("a b a b a b", "Again.") and found[0].where == f"{questions}, line 1"
    assert some_of_each(found, 1) == found[:4] and some_of_each(found, 9) == found
    assert in_order(["zoo", "rag", "qa", "zoo", "mt_bench"]) == ["mt_bench", "qa", "rag", "zoo"]
    assert {question.params.n for question in built_in_questions(4)} == {1, 4}
    with pytest.raises(InputError, match="per category are 0; expected 1 or more"):
        some_of_each(found, 0)


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("{", "is not JSON"),
        ("[]", "is a list; expected a JSON object"),
        ('{"question": "a"}', "has neither 'turns' nor 'prompt'; expected"),
        ('{"turns": []}', "'turns' is []; expected"),
        ('{"turns": ["a", 3]}', "'turns' is ['a', 3]; expected"),
        ('{"prompt": ""}', "'prompt' is ''; expected"),
        ('{"prompt": "a", "category": 3}', "'category' is 3; expected a name"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, sentence: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text('{"prompt": "good"}\n' + line + "\n")
    done = call("bench", "drafters", "--prompts", path)
    assert done.status == 1 and done.out == "" and done.err.count("\n") == 1
    assert done.err.startswith(f"foresay: {path}, line 2") and sentence in done.err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--drafters", "suffix,oracle"], "there is no drafter 'oracle'; expected one of suffix"),
        (["--drafters", "corpus"], "'corpus' needs a corpus file, which is not compared here"),
        (["--nodes", 0], "--nodes is 0; expected 1 to 4096"),
        (["--nodes", 5000], "--nodes is 5000; expected 1 to 4096"),
        (["--max-tokens", 0], "--max-tokens is 0"),
        (["--per-category", 0], "--per-category is 0; expected 1 or more"),
        (["--prompts", "missing.jsonl"], "missing.jsonl cannot be read: No such file"),
    ],
)
def test_failures_are_one_sentence(arguments: list[object], sentence: str) -> None:
    done = call("bench", "drafters", *arguments)
    assert done.status == 1 and done.out == ""
    assert done.err.startswith("foresay: ") and sentence in done.err
    assert done.err.count("\n") == 1


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "empty.jsonl"
    path.write_text("\n")
    with pytest.raises(TraceError, match="holds no question"):
        read_questions([path], GREEDY)
