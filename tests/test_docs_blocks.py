"""The Python of every page in docs/ runs: here, with paths and addresses of the test, or in another
test."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from documents import MODEL, ROOT, blocks, program, promised
from eagle.heads import save_target
from edge.toy_cloud import VOCABULARY, toy_cloud
from models import zoo
from tiny import one_thread, save_model

HERE = ("eagle.md", "edge.md", "rl.md")
ELSEWHERE = {
    **dict.fromkeys(("drafter.md", "exact.md", "python.md", "structured.md"), "test_docs.py"),
    "trl.md": "integrations/trl/test_trl_docs.py",
}


def ran(page: str, *replaced: tuple[str, str]) -> dict[str, Any]:
    """The names that the page's blocks leave, one after the other."""
    names: dict[str, Any] = {"__name__": page}
    exec(compile(program(f"docs/{page}", *replaced), page, "exec"), names)
    return names


def test_every_page_with_python_is_run() -> None:
    docs = (ROOT / "docs").glob("*.md")
    pages = {path.name for path in docs if blocks(f"docs/{path.name}")}
    assert pages == {*HERE, *ELSEWHERE}
    for page, test in ELSEWHERE.items():
        assert page in (Path(__file__).parent / test).read_text()


def test_rl(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with one_thread():
        ran("rl.md", (MODEL, repr(str(save_model(tmp_path)))))
    lines = promised(program("docs/rl.md"))
    assert lines and capsys.readouterr().out.splitlines() == lines


def test_edge(capsys: pytest.CaptureFixture[str]) -> None:
    async def asked() -> None:
        async with toy_cloud() as cloud:
            address, size = ("http://127.0.0.1:8000", cloud.url), ("49152", str(VOCABULARY))
            await ran("edge.md", address, size)["ask"]([1, 2, 3])

    asyncio.run(asked())
    assert capsys.readouterr().out.splitlines()[-1].endswith("length")


def test_eagle(tmp_path: Path) -> None:
    random, answers = np.random.default_rng(1), tmp_path / "answers.jsonl"
    texts = [random.integers(0, zoo.VOCABULARY, 12).tolist() for _ in range(8)]
    traces = [
        {"id": str(at), "group": str(at), "prompt": text[:4], "output": text[4:]}
        for at, text in enumerate(texts)
    ]
    answers.write_text("".join(json.dumps(trace) + "\n" for trace in traces))
    folder = save_target(tmp_path / "target", zoo.make("llama"))
    with one_thread():
        ran(
            "eagle.md",
            (MODEL, repr(str(folder))),
            ('"answers.jsonl.gz"', repr(str(answers))),
            ('"head"', repr(str(tmp_path / "head"))),
            ('"cuda"', '"cpu"'),
            ("epochs=20", "epochs=1"),
        )
    assert (tmp_path / "head" / "model.safetensors").is_file()
