"""The weights beside the package: as their README says, small enough, and of use for the default
model without changing its text."""

from __future__ import annotations

import hashlib
import re
import tarfile
from pathlib import Path
from typing import Any

import pytest
from scikit_build_core.build import build_sdist

from foresay import LLM, SamplingParams
from foresay.budget.policy import Fixed
from foresay.drafters.lineup import make_drafter
from foresay.engine.llm import Result

WEIGHTS = Path(__file__).parent.parent / "weights"
FILES = sorted(WEIGHTS.glob("*/model.safetensors"))
PROMPTS = 2 * ["What is the capital of France?", "Name three colours, one per line."]
PARAMS = [
    SamplingParams(temperature=temperature, max_tokens=24, seed=3, ignore_eos=True)
    for temperature in (0.0, 0.0, 0.8, 0.8)
]


def test_files_are_as_the_readme_says() -> None:
    said = (WEIGHTS / "README.md").read_text()
    rows = re.findall(r"\| `([\w-]+)` \|.*\| ([\d,]+) \| `([0-9a-f]{64})` \|", said)
    found = {
        file.parent.name: (file.stat().st_size, hashlib.sha256(file.read_bytes()).hexdigest())
        for file in FILES
    }
    assert found == {name: (int(size.replace(",", "")), mark) for name, size, mark in rows}
    assert len(found) == 2
    assert sum(file.stat().st_size for file in WEIGHTS.rglob("*")) <= 24e6


@pytest.mark.slow
def test_packages_hold_all_modules_and_no_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`sdist.exclude` counts for wheels too, and a name without a slash there takes every folder of
    that name, `foresay/models/weights` among them."""
    root = WEIGHTS.parent
    monkeypatch.chdir(root)
    with tarfile.open(tmp_path / build_sdist(str(tmp_path))) as packed:
        names = {name.partition("/")[2] for name in packed.getnames()}
    assert {str(file.relative_to(root)) for file in root.glob("src/**/*.py")} <= names
    assert not any(name.startswith("weights/") for name in names)


@pytest.fixture(scope="module")
def llm() -> LLM:
    return LLM("smollm2-135m", None, "none")


@pytest.fixture(scope="module")
def plain(llm: LLM) -> list[Result]:
    return llm.generate(PROMPTS, PARAMS, chat=True)


@pytest.mark.parametrize("kind", ["model", "eagle", "suffix+model", "suffix+eagle"])
def test_texts_stay_and_drafts_come_true(llm: LLM, plain: list[Result], kind: str) -> None:
    folder = {"model": "smollm2-135m-draft", "eagle": "smollm2-135m-eagle"}[kind.split("+")[-1]]
    drafter: Any = make_drafter(f"{kind}:{WEIGHTS / folder}", model="smollm2-135m")
    drafted = llm.beside(drafter, Fixed(k=4)).generate(PROMPTS, PARAMS, chat=True)
    assert [one.token_ids for one in drafted] == [one.token_ids for one in plain]
    assert sum(one.stats.accepted for one in drafted[:2]) >= 8
    assert sum(one.stats.accepted for one in drafted[2:]) >= 8
