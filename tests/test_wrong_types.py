"""Whatever is given where something else is needed is refused with a sentence that shows it."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from foresay import LLM, SamplingParams, Verdict, corpus
from foresay.draft import DraftBatch
from foresay.drafters import CorpusDrafter, MergeDrafter, NgramDrafter, SuffixDrafter
from foresay.errors import ForesayError, InputError
from foresay.verdict import VerdictBatch
from tiny import one_thread, save_model

THINGS: list[Any] = [
    *(5, 5.5, -1, 2**70, float("nan"), True, "x", b"x", None, object(), len),
    *([], [None], [[]], [1.5], {}, {1: 2}, ("a", None), np.float64(3), np.zeros((2, 2))),
]
SHORT: dict[str, Any] = {"temperature": 0, "max_tokens": 2}
PROMPT = np.array([1, 2], np.int32)


def refused(call: Callable[[Any], object], least: int = 1) -> None:
    """Each thing is taken or refused by a ForesayError in one line; so many are refused."""
    count = 0
    for thing in THINGS:
        try:
            call(thing)
        except ForesayError as error:
            assert "\n" not in str(error) or isinstance(thing, np.ndarray)
            count += 1
    assert count >= least


def refused_by_name(
    call: Callable[..., object], names: Iterable[str], least: int, **given: Any
) -> None:
    """Each keyword in turn."""
    for name in names:
        refused(lambda thing, name=name: call(**{**given, name: thing}), least)  # type: ignore[misc]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    with one_thread():
        return LLM(folder, dtype="float32", memory=1 << 24)


@pytest.mark.parametrize("params", [5, "x", [5], {"max_tokens": 3}, b"x"])
def test_params_that_are_none(llm: LLM, params: Any) -> None:
    said = re.escape(f"params are {params!r}; expected SamplingParams, or one for each")
    for ask in (llm.generate, llm.stream):
        with pytest.raises(InputError, match=said):
            ask("x", params)


def test_answers(llm: LLM) -> None:
    params = SamplingParams(**SHORT)
    refused(lambda thing: llm.generate("x", thing), least=18)
    refused(lambda thing: list(llm.stream("x", thing)), least=18)
    refused(lambda thing: llm.generate(thing, params), least=12)
    refused(lambda thing: llm.generate("x", params, chat=thing), least=18)
    refused(lambda thing: llm.generate("x", params, progress=None if thing is len else thing))
    refused(lambda thing: llm.generate([{"role": "user", "content": thing}], params))
    refused_by_name(llm.beside, ("drafter", "policy", "with_sources"), 17)
    refused_by_name(SamplingParams, SamplingParams.__dataclass_fields__, 8)
    assert not llm.engine.busy


def test_making_one(folder: Path) -> None:
    """All that is looked at before the model is loaded."""
    refused(lambda thing: LLM(thing), least=len(THINGS))
    names = ("drafter", "policy", "dtype", "deterministic", "with_sources", "progress")
    refused_by_name(LLM, names, len(THINGS), model=folder / "nowhere")


def test_drafters(tmp_path: Path) -> None:
    for kind in (SuffixDrafter, NgramDrafter):
        refused_by_name(kind, inspect.signature(kind).parameters, 10)
    refused(CorpusDrafter, least=len(THINGS))
    names, nowhere = ("tokenizer_hash", "verify", "chain", "max_tokens"), tmp_path / "x"
    refused_by_name(partial(CorpusDrafter, nowhere), names, len(THINGS))
    refused(MergeDrafter, least=len(THINGS))
    refused(lambda thing: MergeDrafter(NgramDrafter(), prior=thing), least=14)
    for drafter in (SuffixDrafter(), NgramDrafter(), MergeDrafter(SuffixDrafter(), NgramDrafter())):
        asked: Any = drafter
        refused(asked.begin, least=18)
        state = asked.begin(PROMPT)
        refused(lambda thing, asked=asked: asked.propose(thing, [1]), least=18)  # type: ignore[misc]
        refused(lambda thing, asked=asked, state=state: asked.propose([state], thing), least=18)  # type: ignore[misc]
        refused(lambda thing, asked=asked: asked.observe(thing, [Verdict([], [3])]), least=18)  # type: ignore[misc]
        refused(lambda thing, asked=asked, state=state: asked.observe([state], thing), least=18)  # type: ignore[misc]
        refused(asked.finish, least=len(THINGS))
        asked.finish(state)
    refused(SuffixDrafter().drop_group, least=len(THINGS))
    refused(SuffixDrafter().drop_tenant, least=18)
    refused(SuffixDrafter().bytes_of, least=17)
    refused(VerdictBatch.of, least=15)
    refused(DraftBatch.of, least=15)


def test_corpus_files(tmp_path: Path) -> None:
    for function in (corpus.open_corpus, corpus.inspect, corpus.verify):
        refused(function, least=len(THINGS))
    refused(
        lambda thing: corpus.tokenizer_hash_of(Path(__file__) if isinstance(thing, str) else thing)
    )
    out = tmp_path / "out"
    documents = [[1, 2, 3]] * 3
    refused(lambda thing: corpus.build(thing, out), least=len(THINGS))
    refused(lambda thing: corpus.build_from(thing, out), least=15)
    names = ("tokenizer_hash", "vocabulary", "max_context", "memory_bytes", "threads")
    refused_by_name(partial(corpus.build_from, documents, out), names, 17)
    refused(
        lambda thing: corpus.build_from(documents, out if isinstance(thing, str) else thing),
        least=18,
    )
