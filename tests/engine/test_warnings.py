"""A drafter that fails where warnings are errors: the step is done first, so no text is damaged and
nobody waits for ever."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from foresay import LLM, SamplingParams
from foresay.drafters import NgramDrafter
from foresay.engine.answers import Result
from serve.running import running
from tiny import save_model

SHORT = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
LONG = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
COPIES, OTHER = "one two one two one", "Hello hello hello"


def fails(*_: Any, **__: Any) -> Any:
    raise ZeroDivisionError("x")


def failing(method: str) -> NgramDrafter:
    """A drafter that fails in this method."""
    made: NgramDrafter = type("Failing", (NgramDrafter,), {method: fails})()
    return made


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> LLM:
    folder = save_model(tmp_path_factory.mktemp("tiny"))
    return LLM(folder, None, dtype="float32", memory=1 << 24)


@pytest.fixture(autouse=True)
def as_errors() -> Iterator[None]:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        yield


@pytest.mark.parametrize("method", ["begin", "propose", "sources", "observe", "finish"])
def test_other_streams_have_their_texts(plain: LLM, method: str) -> None:
    """The warning is raised in one call; the others end as without drafts."""
    expected = [plain.generate(COPIES, SHORT)[0], plain.generate(OTHER, LONG)[0]]
    llm = plain.beside(failing(method), "fixed", with_sources=True)
    streams = [llm.stream(COPIES, SHORT), llm.stream(OTHER, LONG)]
    asking = llm.stream(COPIES, LONG)
    with pytest.raises(UserWarning, match="the drafter failed, and is not asked again: ZeroDiv"):
        for _ in asking:
            pass
    results: list[Result | None] = []
    for stream, wanted in zip(streams, expected, strict=True):
        *_, last = chunks = list(stream)
        results.append(last.result)
        assert "".join(chunk.text for chunk in chunks) == wanted.text
    found = [(r.text, r.token_ids, r.finish_reason) for r in results if r is not None]
    assert found == [(r.text, r.token_ids, r.finish_reason) for r in expected]
    assert not llm.engine.busy
    llm.engine.check_integrity()


def test_a_server_answers(plain: LLM) -> None:
    drafter = failing("finish")
    with running(plain.beside(drafter, "fixed"), drafter) as server:
        asked = {"prompt": COPIES, "max_tokens": 5, "temperature": 0}
        said = httpx.post(server.url + "/v1/completions", json=asked, timeout=30)
        assert (said.status_code, said.json()["error"]["code"]) == (500, "engine_error")
        assert server.good("/v1/completions", **asked)
