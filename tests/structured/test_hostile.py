"""Hostile forms are refused with a sentence, or compiled; in bounded time and memory, also while an
answer follows them.

Time is what the processor worked for this thread, and the process that tries grammars limits its
own: so a busy machine changes nothing.
"""

from __future__ import annotations

import os
import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import numpy as np
import pytest

from explore import tries
from foresay import StructuredOutputs
from foresay.errors import InputError
from foresay.models.load import find_model
from foresay.models.tokenizer import Tokenizer
from foresay.structured import trial_process
from foresay.structured.grammars import Grammars
from foresay.structured.matcher import Grammar
from structured.schemas import BOMBS, GRAMMARS, mutated_json, mutated_text, schemas

pytestmark = pytest.mark.model
T = TypeVar("T")

SECONDS = 1.0  # of compiling
STEP = 0.25  # seconds for a token: its mask, and going behind it
MEGABYTES = 256  # for all bombs together


@cache
def grammars() -> Grammars:
    tokenizer = Tokenizer(find_model("smollm2-135m").folder)
    made = Grammars(tokenizer, 49152)
    made.compile(StructuredOutputs(json_object=True))  # reads the tokenizer
    return made


def timed(work: Callable[[], T]) -> tuple[T, float]:
    start = time.thread_time()
    done = work()
    return done, time.thread_time() - start


def compiled(how: dict[str, Any]) -> Grammar | str:
    """A grammar, or the sentence by which it is refused."""

    def work() -> Grammar | str:
        try:
            return grammars().compile(StructuredOutputs(**how))
        except InputError as error:
            return str(error)

    found, seconds = timed(work)
    assert seconds < SECONDS, seconds
    if isinstance(found, str):
        assert 20 < len(found) < 700 and "\n" not in found, found
    return found


def followed(grammar: Grammar, seed: int, tokens: int) -> str:
    """Why an answer of random tokens ends, each of which the mask allows."""
    draw, row = Random(seed), np.zeros(grammar.words, np.int32)
    matcher = grammar.matcher(grammar.ends)

    def step() -> str:
        matcher.fill_mask(row)
        allowed = np.flatnonzero(np.unpackbits(row.view(np.uint8), bitorder="little"))
        if not len(allowed):
            return "nothing is allowed"
        token = draw.choice(allowed.tolist())
        if token in grammar.ends:
            return "ended"
        assert matcher.advance(token)
        return ""

    for _ in range(tokens):
        try:
            end, seconds = timed(step)
        except InputError as error:  # this answer fails, and no other
            assert "cannot be followed further" in str(error)
            return "failed"
        assert seconds < STEP, seconds
        if end:
            return end
    return "went on"


@pytest.mark.parametrize("name", BOMBS)
def test_bombs(name: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    grammar = compiled(BOMBS[name])
    if isinstance(grammar, Grammar):
        end = followed(grammar, 1, 60)
        assert (end == "nothing is allowed") == (name == "a token that ends answers")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


def test_what_takes_too_long_is_refused_and_others_are_not() -> None:
    for name in ("patterns intersected", "multipleOf a prime", "expressions intersected"):
        assert "takes too long" in str(compiled(BOMBS[name])), name
        assert isinstance(compiled({"json": {"const": name}}), Grammar)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("repeated 10^9 times", "too many expressions"),
        ("a rule a million times", "Too many items"),
        ("2^40 by rules", "Too many items"),
        ("a schema that is itself", "no text matches it"),
    ],
)
def test_what_no_answer_could_follow_is_refused(name: str, reason: str) -> None:
    """Compiling these is quick; their first tokens are beyond the limits."""
    assert reason in str(compiled(BOMBS[name]))


def test_a_grammar_does_not_wear_out() -> None:
    """Answers with one grammar share a lexer, whose states are limited."""
    grammar = compiled(BOMBS["all letters 3,000 times"])
    assert isinstance(grammar, Grammar)
    assert {followed(grammar, seed, 150) for seed in range(4)} <= {"went on", "ended"}


@pytest.mark.parametrize("regex", ["(a{1,50}){1,50}", "([ab]{1,300}){1,300}"])
def test_what_is_written_token_by_token_is_followed_at_once(regex: str) -> None:
    """The library counts its work from mask to mask. So where several tokens of a draft together
    take too much, they are followed as the plain loop does, with a mask before each."""
    grammar = compiled({"regex": regex})
    assert isinstance(grammar, Grammar)
    plain, row, told = grammar.matcher(), np.zeros(grammar.words, np.int32), list[int]()
    tokens = [grammar.pieces(text)[0] for text in (b"a", b"aa")]
    with pytest.raises(InputError, match="cannot be followed further"):
        for at in range(400):
            plain.fill_mask(row)
            assert plain.advance(tokens[at % 2])
            told.append(tokens[at % 2])
    grammar.renew()  # as when nobody has written such an answer before
    drafted = grammar.matcher()
    assert len(told) > 20 and drafted.follow(told) and drafted.renewed


def test_the_process_that_tries_grammars_comes_back() -> None:
    made = grammars()
    assert made._trial is not None
    made._trial._process.kill()
    made._trial._process.wait()
    assert isinstance(compiled({"json": {"const": "after it was killed"}}), Grammar)


@pytest.mark.parametrize("told", [True, False])
@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (None, b"+"),
        (ValueError("no rule"), b"-no rule"),
        (MemoryError(), b""),  # as when it is killed: it took too much
        (OSError("broken"), b"-it cannot be tried: OSError('broken')"),
        (BaseException("a panic"), b"-it cannot be tried: BaseException('a panic')"),
    ],
)
def test_a_trial_says_why_it_ended(
    monkeypatch: pytest.MonkeyPatch, raised: BaseException | None, said: bytes, told: bool
) -> None:
    """Also on a system that does not tell how much memory a process has."""

    def follow(tokenizer: Any, source: str) -> None:
        if raised is not None:
            raise raised

    monkeypatch.setattr(trial_process, "_follow", follow)
    if not told:
        monkeypatch.setattr(trial_process, "STATM", Path("/proc/none"))
    ours, theirs = socket.socketpair()
    with ours, theirs:
        child = os.fork()
        if child == 0:
            trial_process._try(None, theirs.detach())  # type: ignore[arg-type]
        theirs.close()
        ours.sendall((1).to_bytes(8, "little") + b"x")
        found = b"".join(iter(lambda: ours.recv(1 << 12), b""))
        os.waitpid(child, 0)
    assert found == said


def mutants(count: int) -> list[dict[str, Any]]:
    """Half of them schemas; the others grammars, and expressions."""
    draw, given = Random(5), list(schemas(200, seed=5))
    expressions = ("[a-z]+@[a-z]+\\.com", "(a|bc)*d{2,5}", "\\d{4}-\\d\\d-\\d\\d( .*)?")
    found: list[dict[str, Any]] = []
    for number in range(count):
        if number % 2:
            found.append({"json": mutated_json(draw, draw.choice(given))})
        elif number % 4:
            found.append({"grammar": mutated_text(draw, draw.choice(GRAMMARS)) or "start:"})
        else:
            found.append({"regex": mutated_text(draw, draw.choice(expressions)) or "("})
    return found


def check_mutants(forms: list[dict[str, Any]]) -> Counter[str]:
    ends: Counter[str] = Counter()
    for number, how in enumerate(forms):
        grammar = compiled(how)
        refused = isinstance(grammar, str)
        ends["refused" if refused else "compiled"] += 1
        if isinstance(grammar, Grammar):
            ends[followed(grammar, number, 12)] += 1
    return ends


def test_mutants() -> None:
    ends = check_mutants(mutants(tries(200)))
    assert min(ends["refused"], ends["compiled"]) > 30 < ends["ended"] + ends["went on"], ends
    assert not ends["nothing is allowed"], ends


@pytest.mark.slow
def test_2000_mutants() -> None:
    ends = check_mutants(mutants(2000))
    assert min(ends["refused"], ends["compiled"]) > 300 and not ends["nothing is allowed"], ends
