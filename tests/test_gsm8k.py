"""benchmarks/gsm8k.py: which answers are right, when two accuracies differ, and a whole run."""

from __future__ import annotations

import json
import subprocess
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from scipy import stats  # type: ignore[import-untyped]

import forks
from scripts import BENCHMARKS, script
from tiny import save_model

gsm8k = script("gsm8k")


@pytest.mark.parametrize(
    ("text", "marked", "last"),
    [
        ("She makes 9 * 2 = $<<9*2=18>>18.\n#### 18", 18, 18),
        ("#### $1,234.50 in all, or 7", "1234.5", 7),
        ("####-3", -3, -3),
        ("#### 18.", 18, 18),
        ("#### 10\n\n#### 20", 10, 20),
        ("the answer is 42.", None, 42),
        ("no number, #### nor here", None, None),
        ("1,000,000 in 3 years: 5,000", None, 5000),
        ("", None, None),
    ],
)
def test_the_number_of_an_answer(text: str, marked: Any, last: Any) -> None:
    assert gsm8k.marked(text) == (None if marked is None else Decimal(marked))
    assert gsm8k.last(text) == (None if last is None else Decimal(last))


def test_scores() -> None:
    right = "so it is 1,050\n#### 1,050"
    assert gsm8k.score("#### 1050.0", right) == dict.fromkeys(
        ("strict", "flexible", "marked"), True
    )
    found = {"strict": False, "flexible": True, "marked": False}
    assert gsm8k.score("it is 1050", right) == found
    assert not any(gsm8k.score("nothing", right).values())
    assert not gsm8k.score("#### 105", right)["strict"]
    with pytest.raises(ValueError, match="no number after ####"):
        gsm8k.score("#### 1", "no mark: 1")


def test_two_accuracies() -> None:
    one = [[question % 4 == 0 for question in range(100)] for _ in range(3)]
    other = [[question % 3 == 0 for question in range(100)] for _ in range(3)]
    found = gsm8k.compared(one, other)
    table = [[75, 225], [102, 198]]
    expected = stats.chi2_contingency(table, correction=False).pvalue
    assert found["p_value"] == pytest.approx(expected, rel=1e-5)
    assert found["shares"] == [0.25, 0.34] and found["answers"] == [300, 300]
    low, high = found["interval_95"]
    assert 0 < low < 0.09 < high and (low + high) / 2 == pytest.approx(found["difference"])
    assert gsm8k.compared(one, one)["p_value"] == 1
    assert gsm8k.compared([[False]], [[False]])["p_value"] == 1  # nobody was right
    few = gsm8k.compared(one[:1], other[:1])
    assert few["detectable_with_power_80"] > found["detectable_with_power_80"] > 0.1


def test_a_run(tmp_path: Path) -> None:
    folder, questions = save_model(tmp_path / "model"), tmp_path / "questions.jsonl"
    rows = [{"question": f"What is {n} and {n}?", "answer": f"#### {2 * n}"} for n in range(5)]
    questions.write_text("".join(json.dumps(row) + "\n" for row in rows))
    kept = tmp_path / "answers.jsonl"
    more = ["--shots", "2", "--seeds", "1", "--max-tokens", "12", "--answers", kept]
    more += ["--record-dirty"]
    command = [BENCHMARKS / "gsm8k.py", questions, "--model", folder, *more]

    def run() -> subprocess.CompletedProcess[str]:
        return forks.run(*command, "--record", tmp_path / "record", cwd=tmp_path)

    done = run()
    assert done.returncode == 0, done.stderr
    (path,) = (tmp_path / "record").iterdir()
    found = json.loads(path.read_text())
    assert found["questions"] == 3 and found["greedy"]["identical"] == 3
    assert found["same_seed"]["identical"] == 3 and found["sampled"]["strict"]["answers"] == [3, 3]

    lines = kept.read_text().splitlines()  # a later call goes on from the answers
    for at, line in enumerate(lines[1:], 1):
        chunk = json.loads(line)
        if (chunk[0]["arm"], chunk[0]["seed"]) == ("suffix", None):
            chunk[0]["token_ids"][-1] ^= 1
            lines[at] = json.dumps(chunk)
    kept.write_text("\n".join(lines) + "\n")
    wrong = run()
    assert wrong.returncode != 0 and "greedy: drafts changed an answer" in wrong.stderr
    assert "2 of 3 answers identical" in wrong.stdout
