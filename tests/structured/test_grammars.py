"""Grammars over tokens: what is allowed, forced and refused; each place is the same however it was
reached."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest

import tiny
from foresay import StructuredOutputs
from foresay.errors import InputError, ModelError
from foresay.models.load import find_model
from foresay.models.tokenizer import Tokenizer
from foresay.structured.grammars import MOST_CHARACTERS, Grammars
from foresay.structured.lead import Lead
from foresay.structured.matcher import Grammar, GrammarMatcher
from structured.words import grammars as of_words

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
TEXT = '{"name": "Zoë", "age": 42}'


@cache
def real() -> tuple[Tokenizer, Grammars]:
    """The default model's tokenizer."""
    tokenizer = Tokenizer(find_model("smollm2-135m").folder)
    return tokenizer, Grammars(tokenizer, 49152)


@cache
def letters() -> tuple[Tokenizer, Grammars]:
    """A token for each byte, and one that ends answers."""
    with TemporaryDirectory() as folder:
        tokenizer = Tokenizer(tiny.save_model(Path(folder)))
    return tokenizer, Grammars(tokenizer, 257)


def tokens_of(tokenizer: Tokenizer, text: str) -> list[int]:
    ids: list[int] = tokenizer.encode(text, special=False).tolist()
    return ids


def allowed(matcher: GrammarMatcher, words: int | None = None) -> set[int]:
    row = np.full(words or matcher.grammar.words, 0x55555555, np.int32)
    matcher.fill_mask(row)
    return set(np.unpackbits(row.view(np.uint8), bitorder="little").nonzero()[0].tolist())


def at(grammar: Grammar, tokenizer: Tokenizer, text: str, stops: tuple[int, ...]) -> GrammarMatcher:
    matcher = grammar.matcher(stops)
    for token in tokens_of(tokenizer, text):
        assert matcher.advance(token), tokenizer.decode([token])
    return matcher


@pytest.mark.parametrize(
    ("outputs", "text"),
    [
        (StructuredOutputs(json=PERSON), TEXT),
        (StructuredOutputs(json_object=True), '{"a": [1, {"b": null}], "c": "d"}'),
        (StructuredOutputs(json=True), "[1, 2.5e3, true]"),
        (StructuredOutputs(regex=r"[0-9]{3}-[a-f]+"), "123-abc"),
        (StructuredOutputs(choice=["yes", "no", 'a "b"\n\\c', "é€"]), 'a "b"\n\\c'),
        (StructuredOutputs(grammar='start: "(" start ")" | "x"'), "((x))"),
        (StructuredOutputs(json=PERSON, after="</think>"), f"so: <b> </thin</think>{TEXT}"),
    ],
)
@pytest.mark.parametrize("made", [real, letters])
def test_a_place_is_the_same_however_it_was_reached(made, outputs, text) -> None:  # type: ignore[no-untyped-def]
    """Straight, by rolling back from anywhere, and after any questions."""
    tokenizer, grammars = made()
    grammar, ids = grammars.compile(outputs), tokens_of(tokenizer, text)
    random = np.random.default_rng(1)
    straight = []
    for upto in range(len(ids) + 1):
        matcher = grammar.matcher(tokenizer.ends)
        assert all(matcher.advance(token) for token in ids[:upto])
        forced = matcher.forced() if upto % 2 else None  # before the mask, or after it
        straight.append((allowed(matcher), matcher.accepts, matcher.complete, matcher.free))
        assert forced in (None, matcher.forced())
        if upto < len(ids):
            assert ids[upto] in straight[-1][0]
    wandering = grammar.matcher(tokenizer.ends)
    for _ in range(60):
        place = int(random.integers(0, len(ids) + 1))
        if place < len(wandering):
            wandering.rollback(len(wandering) - place)
        for token in ids[len(wandering) : place]:
            assert wandering.advance(token)
            if random.random() < 0.3:
                wandering.forced()
            if random.random() < 0.5:
                allowed(wandering)
        here = (allowed(wandering), wandering.accepts, wandering.complete, wandering.free)
        assert here == straight[place]
    assert straight[-1][1], "the whole text is no answer"


def test_exactly_what_a_choice_leaves_is_allowed() -> None:
    tokenizer, grammars = letters()
    choices = ["yes", "yesterday", "no", "noé", "maybe"]
    grammar = grammars.compile(StructuredOutputs(choice=choices))
    (end,) = tokenizer.ends
    for begun in {choice.encode()[:n] for choice in choices for n in range(len(choice.encode()))}:
        matcher = grammar.matcher((end,))
        for byte in begun:
            (token,) = (t for t in range(257) if grammar.bytes_of(t) == bytes([byte]))
            assert matcher.advance(token)
        following = {grammar.bytes_of(t) for t in allowed(matcher) if t != end}
        rests = [
            choice.encode()[len(begun) :]
            for choice in choices
            if choice.encode()[: len(begun)] == begun
        ]
        assert following == {rest[:1] for rest in rests if rest}
        assert (end in allowed(matcher)) == matcher.accepts == (b"" in rests)


def test_an_answer_ends_only_where_the_grammar_accepts() -> None:
    tokenizer, grammars = real()
    grammar = grammars.compile(StructuredOutputs(regex="ab+"))
    end, own = tokenizer.ends[0], tokens_of(tokenizer, "!")[0]
    assert not {end, own, *tokenizer.ends} & allowed(at(grammar, tokenizer, "a", (end, own)))
    there = at(grammar, tokenizer, "ab", (end, own))
    assert there.accepts and not there.complete
    assert {end, own} <= allowed(there) and not allowed(there) & {*tokenizer.ends} - {end}
    ignoring = at(grammar, tokenizer, "ab", ())
    assert not allowed(ignoring) & {*tokenizer.ends} and allowed(ignoring)


def test_a_complete_answer_takes_no_more_tokens() -> None:
    tokenizer, grammars = real()
    matcher = at(grammars.compile(StructuredOutputs(json=PERSON)), tokenizer, TEXT, tokenizer.ends)
    assert (matcher.complete, allowed(matcher)) == (True, {*tokenizer.ends})
    assert matcher.forced() == [] and not matcher.advance(tokens_of(tokenizer, " ")[0])
    matcher.rollback(1)
    assert (matcher.complete, matcher.accepts) == (False, False)


def test_a_forbidden_token_changes_nothing() -> None:
    tokenizer, grammars = real()
    matcher = at(grammars.compile(StructuredOutputs(json=PERSON)), tokenizer, '{"name": "a', ())
    before, length = allowed(matcher), len(matcher)
    for token in (tokens_of(tokenizer, "\n")[0], tokenizer.ends[0], 49151 + 7):
        assert not matcher.advance(token)
    assert allowed(matcher) == before and len(matcher) == length


def test_forced_tokens_are_the_tokenizers_own_and_legal() -> None:
    tokenizer, grammars = real()
    matcher = grammars.compile(StructuredOutputs(json=PERSON)).matcher()
    forced = matcher.forced()
    assert tokenizer.decode(forced) == '{"name":'
    assert tokens_of(tokenizer, TEXT)[: len(forced)] == forced
    assert all(matcher.advance(token) for token in forced)


def test_before_the_form_only_what_breaks_its_beginning_is_masked() -> None:
    tokenizer, grammars = real()
    grammar = grammars.compile(StructuredOutputs(choice=["<yes>"], after="</think>"))
    matcher = at(grammar, tokenizer, "hm </think", tokenizer.ends)
    everything = set(range(49152))
    barred = everything - allowed(matcher)
    assert barred and matcher.free
    for token in everything:
        given = grammar.bytes_of(token)
        rest = given[1:] if given.startswith(b">") else b""
        assert (token in barred) == bool(rest and not b"<yes>".startswith(rest)), given
    (inside,) = (t for t in everything if grammar.bytes_of(t) == b"><")
    assert matcher.advance(inside)  # the lead ended inside of the token
    begun = matcher.free, tokenizer.decode([*allowed(matcher)])
    assert begun == (False, "yes")
    matcher.rollback(1)
    assert matcher.free is True and everything - allowed(matcher) == barred
    assert not matcher.advance(next(iter(barred)))


def test_a_model_may_have_more_columns_than_tokens() -> None:
    tokenizer, _ = letters()
    grammar = Grammars(tokenizer, 700).compile(StructuredOutputs(regex="[^x]+"))
    assert max(allowed(at(grammar, tokenizer, "a", tokenizer.ends))) < 257
    free = Grammars(tokenizer, 700).compile(StructuredOutputs(regex="[^x]+", after="</>"))
    matcher = at(free, tokenizer, "a<", tokenizer.ends)
    assert 699 in allowed(matcher) and matcher.advance(699)  # nothing is masked, it writes nothing
    assert all(matcher.advance(token) for token in tokenizer.encode("/>")) and not matcher.free
    fewer = Grammars(tokenizer, 100).compile(StructuredOutputs(regex="[^x]+"))
    assert fewer.words == 4 and max(allowed(fewer.matcher())) < 128  # whole words


@pytest.mark.parametrize(
    ("outputs", "said"),
    [
        (StructuredOutputs(json={"type": "foo"}), "Invalid type"),
        (StructuredOutputs(json=False), "nothing matches"),
        (StructuredOutputs(json={"not": {}}), "Unimplemented"),
        (StructuredOutputs(json={"type": "string", "format": "zz"}), "Unknown format"),
        (StructuredOutputs(regex="a(b"), "unclosed group"),
        (StructuredOutputs(grammar="start: x"), "unknown name"),
        (StructuredOutputs(grammar='begin: "x"'), "start"),
        (StructuredOutputs(regex="x" * (MOST_CHARACTERS + 1)), "characters; expected at most"),
        (StructuredOutputs(regex="\ud800"), "no character"),
        (StructuredOutputs(regex="x", after="y" * 257), "after of structured_outputs has 257"),
    ],
)
def test_what_cannot_be_compiled_is_refused_with_the_reason(
    outputs: StructuredOutputs, said: str
) -> None:
    _, grammars = letters()
    with pytest.raises(InputError, match=said) as refused:
        grammars.compile(outputs)
    assert "\n" not in str(refused.value)


def test_equal_forms_are_compiled_once() -> None:
    _, grammars = letters()
    first = grammars.compile(StructuredOutputs(json=PERSON))
    assert grammars.compile(StructuredOutputs(json=dict(PERSON))) is first
    assert grammars.compile(StructuredOutputs(json=PERSON, after="x")) is not first
    known, followed = id(first), first.matcher()
    del first
    for number in range(80):
        grammars.compile(StructuredOutputs(regex=f"a{number}"))
    assert id(grammars.compile(StructuredOutputs(json=PERSON))) == known == id(followed.grammar)
    other = StructuredOutputs(regex="a0")
    assert other not in grammars._known and other not in grammars._followed  # it was forgotten


class _Unreadable:
    def __init__(self, ends: tuple[int, ...], text: str | None) -> None:
        self.ends, self._text = ends, text

    def piece(self, token: int, /) -> str | None:
        return "x"

    def serialized(self) -> str:
        if self._text is None:
            raise ModelError("it is a SlowTokenizer, which has no tokenizer.json")
        return self._text


@pytest.mark.parametrize(
    ("tokenizer", "said"),
    [
        (_Unreadable((), "{}"), "no token that ends"),
        (_Unreadable((1,), None), "SlowTokenizer"),
        (_Unreadable((1,), "{}"), "error loading tokenizer"),
    ],
)
def test_a_tokenizer_that_cannot_be_used_is_named(tokenizer: _Unreadable, said: str) -> None:
    with pytest.raises(InputError, match=f"this model's tokenizer: .*{said}"):
        Grammars(tokenizer, 100).compile(StructuredOutputs(json=True))


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"regex": "[^\\s\\S]"}, "no text matches it"),
        ({"grammar": "start: foo"}, 'unknown name: "foo"'),
        ({"regex": "a{100000000}"}, "lexer error: too many expressions constructed"),
        ({"regex": "[0-9"}, "error: unclosed character class"),
        ({"json": {"type": "strnig"}}, "Invalid type: strnig"),
    ],
)
def test_the_reason_is_a_sentence_without_places(how: dict[str, Any], said: str) -> None:
    """The library shows lines of a source that nobody has written so."""
    with pytest.raises(InputError) as refused:
        of_words().compile(StructuredOutputs(**how))
    assert str(refused.value).startswith("structured_outputs is refused: ")
    assert str(refused.value).endswith(said) and "<" not in str(refused.value)


def test_what_comes_before_forms_is_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """For all forms behind the same text: it takes as long as a look at every token."""
    tokenizer, _ = letters()
    made: list[bytes] = []

    class Counted(Lead):
        def __init__(self, text: bytes, tokens: Iterable[bytes]) -> None:
            made.append(text)
            super().__init__(text, tokens)

    monkeypatch.setattr("foresay.structured.grammars.Lead", Counted)
    own = Grammars(tokenizer, 257)
    for number in range(3):
        own.compile(StructuredOutputs(regex=f"a{number}", after="</think>"))
    assert made == [b"</think>"]
    for number in range(9):  # more than are kept
        own.compile(StructuredOutputs(regex="b", after=f"<{number}>"))
    own.compile(StructuredOutputs(regex="c", after="</think>"))
    assert len(made) == 11
