"""What a WorkerDrafter and its process say to each other, and what they refuse."""

from __future__ import annotations

import socket
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from doubles import tokens
from drafters.odd_worker import NONSENSE, OddWorker
from foresay import Draft, Verdict
from foresay.drafters import ModelDrafter, WorkerDrafter
from foresay.drafters.model import Dynamic
from foresay.drafters.worker.frames import packed, receive
from foresay.drafters.worker.life import Life
from foresay.drafters.worker.values import drafts_of
from foresay.errors import InputError, WorkerError
from tiny import save_model

ONE = {"OMP_NUM_THREADS": "1"}  # tiny matrices are not worth more


@pytest.mark.parametrize("kind", [None, *NONSENSE])
def test_nonsense_is_found(kind: str | None) -> None:
    """Whatever the answer is, it is a draft of what was asked or an error."""
    right: list[Any] = [tokens(3, 4), tokens(-1, 0), np.array([0.5, 0.2], np.float32)]
    frame = packed("drafts", [*right, np.empty(0, np.float32)], step=7, held=5)
    here, there = socket.socketpair()
    with here, there:
        there.sendall(NONSENSE[kind](frame) if kind else frame)
        there.close()

        def read() -> list[Draft]:
            answer = receive(here, time.monotonic() + 5)
            answer.whole("held")
            return drafts_of(answer, 7, [2], None)

        if kind in (None, "twice"):  # the second one is of a step that is over
            assert read() == [Draft(*right)]
            if kind is None:
                return
            with pytest.raises(WorkerError, match="of step 7; expected 'drafts' of step 8"):
                drafts_of(receive(here, time.monotonic() + 5), 8, [2], None)
        else:
            with pytest.raises((WorkerError, InputError), match=r"\w+ \w+"):
                read()


@given(st.binary(max_size=80), st.booleans())
def test_no_bytes_are_more_than_an_error(data: bytes, framed: bool) -> None:
    here, there = socket.socketpair()
    with here, there:
        there.sendall(b"fsy1" + struct.pack("<II", len(data), 0) + data if framed else data)
        there.close()
        with pytest.raises(WorkerError):
            receive(here, time.monotonic() + 5)


def test_data_that_belongs_to_no_array_is_refused() -> None:
    frame = packed("drafts", [tokens(3, 4)])
    _, head, size = struct.unpack("<4sII", frame[:12])
    here, there = socket.socketpair()
    with here, there:
        there.sendall(struct.pack("<4sII", b"fsy1", head, size + 4) + frame[12:] + bytes(4))
        with pytest.raises(WorkerError, match=r"has 12 bytes of data; expected its arrays'"):
            receive(here, time.monotonic() + 5)


def test_the_worker_checks_its_messages() -> None:
    make: dict[str, Any] = {"name": "ngram", "settings": {}, "fit": None}
    wrong: list[tuple[str, dict[str, Any], str]] = [
        ("finish", {"number": 7}, "there is no request 7; expected one that was begun"),
        ("finish", {"number": -1}, "number of a message 'finish' is -1; expected a whole number"),
        ("sing", {}, "a message is of the kind 'sing'; expected one of"),
    ]
    for kind, values, sentence in wrong:
        life = Life("foresay.drafters.worker.main", packed("make", **make), {})
        assert life.hears(20, 5, 20)
        life.send(packed(kind, **values), 5)
        with pytest.raises(WorkerError, match=sentence):
            life.receive(time.monotonic() + 5)
        assert life.process.wait(5) == 1
        life.end()


def test_what_the_drafter_there_refuses_gets_no_drafts() -> None:
    drafter = OddWorker("sleepy:0:latest")
    states = [drafter.begin([first, 1, 2, 3, 1, 2]) for first in (99, 5, 6)]
    assert [len(draft) for draft in drafter.propose(states, [1, 1, 1])] == [0, 1, 1]
    drafter.observe(states, [Verdict([], [3]), Verdict([0], [3, 98]), Verdict([0], [3, 1])])
    assert [len(draft) for draft in drafter.propose(states, [1, 1, 1])] == [0, 0, 1]
    for state in states:
        drafter.finish(state)
    assert drafter.restarts == 0, drafter.last_failure
    drafter.close()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": 7}, "name is 7; expected a drafter's name, such as 'model:NAME'"),
        ({"name": "oak"}, "no drafter 'oak'; expected one of suffix"),
        (
            {"name": "ngram+self"},
            "'ngram\\+self' needs more of the target than its tokens, for self; ex",
        ),
        ({"name": "recycle"}, "for recycle; expected one that drafts from the text alone"),
        ({"timeout": 0}, "timeout is 0; expected seconds, above 0 and at most 86400"),
        ({"start_timeout": True}, "start_timeout is True; expected seconds"),
        ({"environ": {"A": 1}}, "environ is {'A': 1}; expected names of variables"),
        ({"environ": {"A=": "1"}}, "expected no NUL, and no = in a name"),
        ({"tree": 3}, "there is no setting 'tree'; expected share, corpus,"),
        ({"chain": 3}, "chain is 3; expected a value as for make_drafter"),
        ({"shape": (3, 0)}, r"shape\[1\] is 0; expected a whole number from 1 to 64"),
        ({"shape": 3}, "shape of the drafter 'ngram' cannot be set; expected model:NAME"),
        ({"name": "model:no/such+folder", "choice": "best"}, "choice is 'best'; expected 'coup"),
    ],
)
def test_bad_options(options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        WorkerDrafter(**{"name": "ngram", **options})


@pytest.mark.slow
def test_the_shape_of_a_models_drafts(tmp_path: Path) -> None:
    """One of test_worker.py has a shape by levels."""
    folder, prompt = save_model(tmp_path / "a+b"), tokens(1, 2, 3, 1, 2)
    options: dict[str, Any] = {"choice": "likeliest", "shape": Dynamic(width=2, depth=2)}
    drafter = WorkerDrafter(f"model:{folder}", timeout=60, environ=ONE, **options)
    (draft,) = drafter.propose([drafter.begin(prompt)], [9])
    drafter.close()
    here = ModelDrafter(folder, **options)
    (expected,) = here.propose([here.begin(prompt)], [9])
    assert len(draft) == 6
    assert draft.tokens.tolist() == expected.tokens.tolist()
    assert draft.parents.tolist() == expected.parents.tolist()


def test_a_worker_that_takes_too_long_to_start() -> None:
    with pytest.raises(WorkerError, match=r"not ready within 0.01 s"):
        WorkerDrafter("ngram", start_timeout=0.01)
