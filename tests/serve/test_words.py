"""Single tokens as text, with tokenizers of bytes and with such as SentencePiece makes."""

from __future__ import annotations

import string
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer as Inner
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from foresay.engine.text import IncrementalDetokenizer
from foresay.models.tokenizer import Tokenizer
from foresay.sampling.logprobs import TokenLogprob
from foresay.sampling.params import SamplingParams
from foresay.serve.answer import Shape
from foresay.serve.validate import GenerationRequest
from foresay.serve.words import Words
from serve.running import Running, running, served, tiny_llm
from tiny import one_thread, save_model

TEXT = "Hello world é a"
BEGIN, END, SPACE = "<s>", "</s>", "\u2581"
SIZE = 257  # of the tiny model's vocabulary
DECODERS: dict[str, Any] = {
    # As Llama 2 and Mistral have it, and as T5 has it.
    "llama": decoders.Sequence(
        [
            decoders.Replace(SPACE, " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    ),
    "metaspace": decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace()]),
}


def save_pieces(folder: Path, decoder: str) -> Path:
    """A model whose tokenizer writes spaces before words, and rare characters as bytes."""
    save_model(folder)
    pieces = [BEGIN, "<unk>", *(f"<0x{byte:02X}>" for byte in range(128, 256)), SPACE]
    pieces += [*string.ascii_letters, *string.digits, *string.punctuation]
    pieces += [f"{SPACE}{word}" for word in ("Hello", "world", "a")] + ["Hello", "world"]
    pieces += [f"<{n}>" for n in range(SIZE - 1 - len(pieces))] + [END]
    assert len(pieces) == len({*pieces}) == SIZE
    scores = [(piece, -1.0 if len(piece) > 1 else -9.0) for piece in pieces]
    inner = Inner(models.Unigram(scores, unk_id=1, byte_fallback=True))
    inner.pre_tokenizer = pre_tokenizers.Metaspace()
    inner.decoder = DECODERS[decoder]
    inner.post_processor = processors.TemplateProcessing(
        single=f"{BEGIN} $A", special_tokens=[(BEGIN, 0)]
    )
    named = {"bos_token": BEGIN, "eos_token": END, "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=inner, **named).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module", params=list(DECODERS))
def pieces(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_pieces(tmp_path_factory.mktemp("pieces"), request.param)


@pytest.fixture(scope="module")
def spaced(pieces: Path) -> Iterator[Running]:
    with served(pieces) as found:
        yield found


def test_prompt_and_answer_are_the_whole_text(pieces: Path) -> None:
    tokenizer = Tokenizer(pieces)
    ids = tokenizer.encode(TEXT).tolist()
    whole = tokenizer.decode(ids)
    for cut in (2, 3, 4, 6):  # not within the character of two bytes
        alone, behind = (
            IncrementalDetokenizer(tokenizer.decode),
            IncrementalDetokenizer(tokenizer.decode),
        )
        behind.follow(ids[:cut])
        for text in (alone, behind):
            for token in ids[cut:]:
                text.add(token)
            text.finish()
        assert tokenizer.decode(ids[:cut]) + behind.text == whole
        assert (alone.text == behind.text) == (cut == 4)  # the others begin with a space
    within = IncrementalDetokenizer(tokenizer.decode)
    within.follow(ids[:5])
    within.add(ids[5])
    within.finish()
    assert within.text == "\ufffd"


def test_a_token_has_its_space_wherever_it_stands(pieces: Path) -> None:
    tokenizer = Tokenizer(pieces)
    words = Words(tokenizer, SIZE)
    ids = tokenizer.encode(TEXT).tolist()
    spelled = [BEGIN, " Hello", " world", " ", "\ufffd", "\ufffd", " a"]
    assert [words.of(token) for token in ids] == spelled
    # Alone they read differently, and then two of them read the same: what is to be avoided.
    assert tokenizer.decode([ids[1]]) == "Hello" and tokenizer.decode([ids[6]]) == "a"
    whole = [token for token in range(SIZE) if "\ufffd" not in words.of(token)]
    assert len({words.of(token) for token in whole}) == len(whole) == SIZE - 128
    assert len({tokenizer.decode([token], special=True) for token in whole}) < len(whole)


def test_bytes_of_tokens(pieces: Path, folder: Path) -> None:
    for source, text in ((pieces, f" {TEXT}"), (folder, TEXT)):
        tokenizer = Tokenizer(source)
        words = Words(tokenizer, SIZE)
        told = [words.bytes_of(t) for t in tokenizer.encode(TEXT, special=False).tolist()]
        assert b"".join(bytes(one or ()) for one in told) == text.encode() and None not in told
    single = [words.bytes_of(token) for token in range(256)]  # of the tokenizer of bytes
    assert sorted(one[0] for one in single if one) == list(range(256))


def test_places_in_the_text(spaced: Running) -> None:
    asked: dict[str, Any] = {"prompt": TEXT, "echo": True, "seed": 2, "max_tokens": 40}
    asked |= {"logprobs": 2, "ignore_eos": True}
    (whole,) = spaced.good("/v1/completions", **asked)["choices"]
    logprobs, text = whole["logprobs"], whole["text"]
    places, tokens = logprobs["text_offset"], logprobs["tokens"]
    assert places[:7] == [0, 0, 5, 11, 12, 12, 13] and places[7] == len(TEXT)
    assert all(a <= b for a, b in pairwise(places)) and len(places) == 47
    checked = 0
    for place, token, after in zip(places[8:], tokens[8:], places[9:], strict=False):
        if "\ufffd" not in token and after > place:
            # (What never became a character waits for what follows it.)
            assert text[place:after].lstrip("\ufffd") == token
            checked += token.startswith(" ") or len(token) > 1
    assert checked > 3
    found = spaced.good("/tokenize", prompt=TEXT, return_token_strs=True)
    assert found["token_strs"][:3] == [BEGIN, " Hello", " world"]
    told = spaced.events("/v1/completions", **asked)
    assert [o for c in told for o in c["choices"][0]["logprobs"]["text_offset"]] == places


def test_no_alternative_is_lost_to_one_that_only_reads_like_it(pieces: Path) -> None:
    tokenizer = Tokenizer(pieces)
    after, within = (tokenizer.encode(text).tolist()[-1] for text in ("b a", "ba"))
    generation = GenerationRequest(
        [tokenizer.encode("b")], SamplingParams(), chat=False, stream=False
    )
    shape = Shape(generation, Words(tokenizer, SIZE), "tiny")
    found = TokenLogprob(after, -1.0, -1.0, {after: -1.0, within: -2.0})
    assert shape._top(found) == {" a": -1.0, "a": -2.0}


def test_tokens_of_characters_in_parts(server: Running) -> None:
    """With a tokenizer of bytes: é is one character of the text, and two tokens."""
    asked = {"prompt": "aéb", "echo": True, "logprobs": 0, "max_tokens": 0}
    (whole,) = server.good("/v1/completions", **asked)["choices"]
    assert whole["logprobs"]["text_offset"] == [0, 1, 1, 2]
    assert whole["logprobs"]["tokens"] == ["a", "\ufffd", "\ufffd", "b"]


def test_a_prompt_that_cannot_be_read_back_leaves_nothing_running(tmp_path: Path) -> None:
    llm, drafter = tiny_llm(save_model(tmp_path))
    real = llm.tokenizer.decode

    def decode(tokens: Any, **options: Any) -> str:
        if list(tokens) == [1, 2, 3, 7]:
            raise ValueError("no such text")
        return real(tokens, **options)

    llm.tokenizer.decode = decode  # type: ignore[method-assign]
    body = {"prompt": [1, 2, 3, 7], "max_tokens": 20, "spec_details": True, "ignore_eos": True}
    with one_thread(), running(llm, drafter) as server:
        assert server.post("/v1/completions", body).status_code == 200  # its own words can be read
        server.idle()
        assert not llm.engine.busy
