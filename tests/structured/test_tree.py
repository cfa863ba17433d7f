"""Draft trees under a grammar, held against one text after another."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from foresay import Draft, StructuredOutputs
from foresay.structured.grammars import Grammars
from foresay.structured.matcher import Grammar, GrammarMatcher
from foresay.structured.tree import CompletedDraft, completed, tree_masks
from structured.test_grammars import allowed, real
from structured.words import END, FORMS, WORDS, grammars

STOPS = (END,)


def test_a_tree_is_one_text_after_another() -> None:
    """What is left of a draft, forced and masked is what a matcher says that was told the whole
    text; and the matcher of the tree is where it was."""
    random = np.random.default_rng(0)
    for form in FORMS:
        grammar = grammars().compile(form)
        matcher, text = grammar.matcher(STOPS), list[int]()
        for _ in range(25):
            if matcher.complete:
                matcher.rollback(len(text))
                text.clear()
            size = int(random.integers(0, 9))
            parents = [int(random.integers(-1, i)) for i in range(size)]
            draft = Draft([likely(random, matcher) for _ in range(size)], parents)
            check_masks(grammar, matcher, text, draft, [False] * size)
            whole = completed(matcher, draft, 12)
            assert len(matcher) == len(text)
            check_completed(grammar, text, draft, whole)
            check_masks(grammar, matcher, text, Draft(whole.tokens, whole.parents), whole.forced)
            token = likely(random, matcher)
            if token not in STOPS and matcher.advance(token):
                text.append(token)


def test_forced_text_is_written_as_it_is_without_drafts() -> None:
    """Token by token. Behind a part of a character the tokenizer writes the rest in another way
    than it writes the whole."""
    _, grammars = real()
    for text in ("\U0001f642's", "\U0001f600's\\): x"):
        matcher = grammars.compile(StructuredOutputs(regex=f"{text}[a-z]*")).matcher(STOPS)
        whole = matcher.forced()
        given = completed(matcher, Draft.chain(whole), 20)
        assert matcher.forced() == whole
        assert not all(given.forced) or given.tokens != whole
        for token, forced in zip(given.tokens, given.forced, strict=True):
            assert token in allowed(matcher) and forced == (len(allowed(matcher)) == 1)
            assert matcher.advance(token)


def test_a_long_forced_text_takes_no_long_time() -> None:
    """For each node of it, all that is still forced is written by the tokenizer."""
    lengths = []
    for size in (20, 500, 5000):
        grammar = grammars().compile(StructuredOutputs(choice=["abab" * size]))
        lengths.append(len(completed(grammar.matcher(STOPS), Draft.empty(), 64).tokens))
    assert lengths[0] >= 19 and lengths[0] < 64 > lengths[1] > lengths[2] > 0


def test_no_token_that_the_model_has_not_is_drafted() -> None:
    """Forced or not: the tokenizer has more tokens than the model."""
    (ab,) = WORDS.encode("abab")
    matcher = Grammars(WORDS, ab).compile(StructuredOutputs(choice=["abab"])).matcher(STOPS)
    assert matcher.forced() == [ab]
    for draft in (Draft.empty(), Draft.chain([ab])):
        assert completed(matcher, draft, 8).tokens == []


def path_to(tokens: Sequence[int], parents: Sequence[int], node: int) -> list[int]:
    """The tokens down to a node."""
    found = list[int]()
    while node >= 0:
        found, node = [tokens[node], *found], parents[node]
    return found


def check_masks(
    grammar: Grammar, matcher: GrammarMatcher, text: list[int], draft: Draft, forced: list[bool]
) -> None:
    masks = tree_masks(matcher, draft, forced)
    assert len(matcher) == len(text)
    assert (masks[0] == mask_behind(grammar, text)).all()
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    for node in range(len(draft)):
        path = path_to(tokens, parents, node)
        legal = all(
            has(mask_behind(grammar, [*text, *path[:at]]), path[at])
            and (path[at] not in STOPS or at == len(path) - 1)
            for at in range(len(path))
        )
        behind = mask_behind(grammar, [*text, *path])
        if legal and tokens[node] not in STOPS and behind is not None:
            assert (masks[node + 1] == behind).all()
        else:
            assert (masks[node + 1] == -1).all()


def check_completed(grammar: Grammar, text: list[int], draft: Draft, whole: CompletedDraft) -> None:
    """Every legal node of the draft is there once, at its place, and every forced token."""
    tokens, parents = draft.tokens.tolist(), draft.parents.tolist()
    paths = [path_to(whole.tokens, whole.parents, node) for node in range(len(whole.tokens))]
    for path, own, forced in zip(paths, whole.own, whole.forced, strict=True):
        before = mask_behind(grammar, [*text, *path[:-1]])
        assert has(before, path[-1]) and not set(path[:-1]) & set(STOPS)
        assert not forced or only_token(before) == path[-1]
        assert own < 0 or path_to(tokens, parents, own) == path
        assert own >= 0 or forced
    for node in range(len(draft)):
        path = path_to(tokens, parents, node)
        places = range(len(path))
        rows = [mask_behind(grammar, [*text, *path[:at]]) for at in places]
        ends = any(token in STOPS for token in path[:-1])
        if not ends and all(has(rows[at], path[at]) for at in places):
            assert path in paths
    for path in [list[int](), *(path for path in paths if len(path) < 8)]:
        if not path or path[-1] not in STOPS:
            matcher = grammar.matcher(STOPS)
            assert matcher.follow([*text, *path])
            forced_next = matcher.forced()[:1]
            assert not forced_next or [*path, *forced_next] in paths


def only_token(row: Any) -> int | None:
    legal = [token for token in range(128) if has(row, token)]
    return legal[0] if len(legal) == 1 else None


def likely(random: np.random.Generator, matcher: GrammarMatcher) -> int:
    """A token that is often legal."""
    row = np.zeros(matcher.grammar.words, np.int32)
    matcher.fill_mask(row)
    legal = [token for token in range(128) if has(row, token)]
    return int(random.choice(legal)) if random.random() < 0.7 else int(random.integers(128))


def has(row: Any, token: int) -> bool:
    return row is not None and bool(row[token // 32] >> token % 32 & 1)


def mask_behind(grammar: Grammar, text: Sequence[int]) -> Any:
    """None where the form is complete, or the text is not legal."""
    matcher = grammar.matcher(STOPS)
    if not all(matcher.advance(token) for token in text) or matcher.complete:
        return None
    row = np.zeros(grammar.words, np.int32)
    matcher.fill_mask(row)
    return row


@pytest.mark.parametrize("settled", [False, True])
def test_a_mask_behind_a_rollback_is_of_its_own_text(settled: bool) -> None:
    """The library remembers its last mask, and knows its place by the number of rows before it."""
    form = StructuredOutputs(grammar='start: "[" X "]" | "(" X ")"\nX: /[a-w]+/')
    grammar = grammars().compile(form)
    matcher, row = grammar.matcher(STOPS), np.zeros(grammar.words, np.int32)
    for text in ("[ab", "(ab", "[ab", "(cd", "(ab"):
        ids = WORDS.encode(text)
        assert matcher.follow(ids)
        matcher.fill_mask(row)
        assert (row == mask_behind(grammar, ids)).all()
        if settled:
            matcher.settle()
        matcher.rollback(len(ids))


class _Worn:
    """The library's matcher when its lexer has used up its limits."""

    def try_consume_tokens(self, tokens: list[int]) -> int:
        return 0

    def rollback(self, tokens: int) -> None: ...

    def compute_bitmask(self) -> bytes:
        return b""

    def is_error(self) -> bool:
        return True


@pytest.mark.parametrize("wrong", [False, True])
def test_masks_behind_a_matcher_that_was_begun_anew(wrong: bool) -> None:
    """It makes masks on its way, which are not for another text behind the same place; also where
    the last of the tokens is forbidden."""
    form = StructuredOutputs(grammar='start: "[" X "]" | "(" X ")"\nX: /[a-w]+/')
    grammar = grammars().compile(form)
    matcher, row = grammar.matcher(STOPS), np.zeros(grammar.words, np.int32)
    matcher._inner = _Worn()  # type: ignore[assignment]
    ids, others = WORDS.encode("[ab)" if wrong else "[abc"), WORDS.encode("(ab")
    assert matcher.follow(ids) is not wrong and matcher.renewed
    matcher.rollback(len(matcher))
    assert matcher.follow(others)
    matcher.fill_mask(row)
    assert (row == mask_behind(grammar, others)).all()
