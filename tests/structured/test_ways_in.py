"""Where a form can be asked for: LLM, rollouts, the command line, transformers; and where not."""

from __future__ import annotations

import gc
import json
import re
import weakref
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedTokenizerFast

from foresay import SamplingParams, StructuredOutputs
from foresay.cli.asking import form_of
from foresay.edge.messages import Sampling
from foresay.engine.llm import LLM
from foresay.errors import InputError
from foresay.integrations.transformers import generate
from foresay.integrations.transformers.forms import grammars_of
from foresay.models.target import Target
from foresay.rl.rollouts import Rollouts
from models import zoo
from models.quick import quick_target
from structured.words import END, FORMS, WORDS, grammars
from tiny import call, one_thread, save_model

SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 5}, "ok": {"type": "boolean"}},
    "required": ["name", "ok"],
    "additionalProperties": False,
}
FORM = StructuredOutputs(json=SCHEMA)
SAMPLED = SamplingParams(max_tokens=60, temperature=0.8, seed=3, structured_outputs=FORM)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with one_thread():
        yield save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def llm(folder: Path) -> LLM:
    return LLM(folder, drafter=None, dtype="float32")


@pytest.fixture(scope="module")
def target() -> Target:
    return quick_target()


def test_answers_and_streams(llm: LLM) -> None:
    fast = llm.beside("suffix", "fixed")
    params = [replace(SAMPLED, n=3), replace(SAMPLED, temperature=0, structured_outputs=None)]
    plain, drafted = (one.generate(["a b a b", "c"], params) for one in (llm, fast))
    assert [r.token_ids for r in plain] == [r.token_ids for r in drafted]
    assert len({r.text for r in plain[:3]}) > 1
    for result in plain[:3]:
        assert set(json.loads(result.text)) == {"name", "ok"} and result.finish_reason == "stop"
    assert drafted[0].stats.steps < plain[0].stats.steps
    streamed = "".join(chunk.text for chunk in fast.stream("a b a b", SAMPLED))
    assert streamed == plain[0].text


def test_log_probabilities_are_raw_and_of_the_masked_law(llm: LLM) -> None:
    """Where one token is allowed, it is certain under the law that it was sampled from; the model
    itself may think otherwise."""
    params = replace(SAMPLED, logprobs=2)
    for one in (llm, llm.beside("suffix", "fixed")):
        (result,) = one.generate("a b", params)
        assert result.logprobs is not None
        first = result.logprobs[0]  # the only token that an object begins with
        assert llm.tokenizer.decode([first.token]) == "{"
        assert first.processed == 0 and first.logprob < -0.01
        assert len(first.top) == 2


def test_what_cannot_be_compiled_is_refused(llm: LLM) -> None:
    wrong = replace(SAMPLED, structured_outputs=StructuredOutputs(regex="(a"))
    with pytest.raises(InputError, match=r"structured_outputs is refused: .*unclosed group"):
        llm.generate(["a", "b"], [SAMPLED, wrong])
    assert not llm.engine.busy


def test_rollouts(target: Target) -> None:
    params = SamplingParams(max_tokens=60, structured_outputs=FORMS[0])
    prompts = [[5, 6, 7, 5, 6], [9, 8]]
    asked: dict[str, Any] = {"samples": 3, "seed": 1, "stops": [END]}
    found = [
        [[r.token_ids for r in group] for group in rollouts.sample(prompts, params, **asked)]
        for rollouts in (
            Rollouts(target, None, grammars=grammars()),
            Rollouts(target, "suffix", "fixed", grammars=grammars()),
        )
    ]
    assert found[0] == found[1]
    assert json.loads(WORDS.decode(found[0][0][0])).keys() == {"name", "ok", "n"}
    with pytest.raises(InputError, match="an engine without grammars"):
        Rollouts(target, None).sample(prompts, params, **asked)


def test_on_the_command_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "s.json").write_text(json.dumps(SCHEMA))
    (tmp_path / "g.lark").write_text('start: "(" start ")" | "x"')

    def text(*asked: Any, status: int = 0) -> str:
        fixed = ["--model", folder, "--dtype", "float32", "--max-tokens", 60, "--json"]
        done = call("generate", "Hello", *fixed, *asked)
        assert done.status == status, done
        return done.err if status else json.loads(done.out)["text"]

    assert json.loads(text("--json-schema", tmp_path / "s.json")).keys() == {"name", "ok"}
    assert re.fullmatch(r"\(*x\)*", text("--grammar", tmp_path / "g.lark"))
    assert re.fullmatch("[ab]{3}", text("--regex", "[ab]{3}"))
    assert text("--choice", "red", "--choice", "green") in ("red", "green")
    both = text("--choice", "red", "--regex", "x", status=1)
    assert "structured_outputs has regex, choice; expected exactly one of" in both
    assert "unclosed group" in text("--regex", "(x", status=1)
    assert "missing.json" in text("--json-schema", tmp_path / "missing.json", status=1)


def test_in_transformers() -> None:
    model: Any = zoo.make("llama")
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=WORDS.inner, eos_token="<end>")
    asked: dict[str, Any] = {"max_new_tokens": 60, "do_sample": False, "eos_token_id": END}
    given = torch.from_numpy(zoo.tokens(np.random.default_rng(1), 9).astype(np.int64))[None]
    form: Any = {"custom_generate": generate, "structured_outputs": FORMS[0]}
    texts = [
        model.generate(given, **asked, **form, tokenizer=tokenizer, drafter=drafter)[0, 9:].tolist()
        for drafter in ("suffix", "none")
    ]
    assert texts[0] == texts[1]
    assert json.loads(WORDS.decode(texts[0])).keys() == {"name", "ok", "n"}
    with pytest.raises(InputError, match="without a tokenizer"):
        model.generate(given, **asked, **form)


def test_an_edge_stream_has_no_forms() -> None:
    with pytest.raises(
        InputError, match=r"structured_outputs is .*; expected None: an edge stream"
    ):
        Sampling.of(SamplingParams(structured_outputs=FORM))


def test_grammars_go_with_the_callers_tokenizer() -> None:
    class Host:
        """What is asked of a tokenizer before a form is compiled: nothing."""

    tokenizer = Host()
    known = weakref.ref(grammars_of(tokenizer, (1,), 40))
    assert grammars_of(tokenizer, (1,), 40) is known()
    del tokenizer
    gc.collect()
    assert known() is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'{file}' is not JSON: "),
        ("[1]", "'{file}' is a list; expected a schema: an object"),
        ('{"const": NaN}', "'{file}' cannot be written: "),
    ],
)
def test_a_file_that_is_no_schema_is_named(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "form.json"
    file.write_text(text)
    with pytest.raises(InputError, match="^" + re.escape(said.format(file=file))):
        form_of(file, None, None, None)
