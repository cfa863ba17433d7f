"""The JSON form: the names of its fields, and what it refuses."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edge.messages import Case, cases
from explore import examples
from foresay.edge.ids import pack
from foresay.edge.json_frames import decode_json, encode_json
from foresay.edge.messages import VERSION, Commit, DraftMessage, Open, Sampling
from foresay.edge.wire import Side
from foresay.errors import InputError

STREAM = bytes(range(16))
DRAFT = DraftMessage(7, 31, 99, pack([5, 6, 7], 300), bytes([0, 0, 1]))
OPEN = Open(VERSION, "", b"", 300, b"")
COMMIT = Commit(34, pack([5, 6], 300), 88, 7, 1, 2, 3, 1, 1500, None, 1)


def test_the_names_of_a_draft() -> None:
    assert json.loads(encode_json(DRAFT, vocabulary=300, stream=STREAM)) == {
        "type": "draft",
        "ctx_id": STREAM.hex(),
        "seq": 7,
        "base": 31,
        "prefix": 99,
        "draft_tokens": [5, 6, 7],
        "k": 3,
        "parents": [0, 0, 1],
    }


def test_the_names_of_a_commit() -> None:
    assert json.loads(encode_json(COMMIT, vocabulary=300)) == {
        "type": "commit",
        "upto": 34,
        "tokens": [5, 6],
        "check": 88,
        "seq": 7,
        "accepted_len": 1,
        "examined": 2,
        "drafted": 3,
        "pending": 1,
        "correction": 6,
        "metrics": {"server_us": 1500, "alpha_mean": 0.5, "la_over_k": 0.3333, "kv_length": 33},
        "finish": "stop",
    }
    empty = json.loads(encode_json(Commit(34, b"", 88), vocabulary=300))
    assert empty["correction"] is None and empty["accepted_len"] == 0
    metrics = {"server_us": 0, "alpha_mean": None, "la_over_k": None, "kv_length": None}
    assert empty["metrics"] == metrics


def test_the_names_of_an_open() -> None:
    sampling = Sampling(0.5, repetition_penalty=1.1, logit_bias={3: -math.inf, 4: 1.0})
    message = Open(VERSION, "", b"\xab", 300, pack([1, 2], 300), sampling, max_tokens=9)
    assert json.loads(encode_json(message)) == {
        "type": "open",
        "version": VERSION,
        "model": "",
        "tokenizer": "ab",
        "vocabulary": 300,
        "prompt": [1, 2],
        "sampling_cfg": {"temp": 0.5, "rep_penalty": 1.1, "logit_bias": {"3": None, "4": 1.0}},
        "max_tokens": 9,
    }


def test_a_client_may_send_what_the_cloud_does_not_need() -> None:
    given = json.loads(encode_json(DRAFT, vocabulary=300))
    given |= {"q_token_probs": [0.5, 0.5, 0.5], "hard_mask": [0, 1, 0], "sampling_cfg": None}
    assert decode_json(json.dumps(given), side="cloud", vocabulary=300) == DRAFT
    del given["k"]
    assert decode_json(json.dumps(given).encode(), side="cloud", vocabulary=300) == DRAFT


@pytest.mark.parametrize(
    ("message", "name", "value", "said"),
    [
        (DRAFT, "type", "guess", "^type is 'guess'; expected one of open, opened, draft"),
        (DRAFT, "type", [], r"^type is \[\]; expected one of"),
        (DRAFT, "ctx_id", "00" * 16, "^ctx_id is '0000.*; expected '000102"),
        (DRAFT, "k", 4, "^k is 4; expected 3$"),
        (DRAFT, "draft_tokens", [5, 300, 1], r"^draft_tokens\[1\] is 300; expected"),
        (DRAFT, "draft_tokens", [5, "6", 7], r"^draft_tokens\[1\] is '6'; expected an int"),
        (DRAFT, "draft_tokens", "567", "^draft_tokens is '567'; expected a list$"),
        (DRAFT, "parents", [0, 256, 0], r"^parents is \[0, 256, 0\]; expected numbers"),
        (DRAFT, "parents", [True, 0, 0], "^parents is"),
        (DRAFT, "base", 2**80, "^base of a message draft is 1208925819614629174706176; expected"),
        (DRAFT, "base", -1, "^base of a message draft is -1; expected"),
        (DRAFT, "sampling_cfg", {"temp": 1.0}, "^sampling_cfg is .* those of open$"),
        (DRAFT, "hard", 1, "^there is a field 'hard'; expected seq, base"),
        (COMMIT, "correction", 5, "^correction is 5; expected 6$"),
        (COMMIT, "metrics", 5, "^metrics is 5; expected an object$"),
        (COMMIT, "metrics", {"server_us": -1}, "^server_us of a message commit is -1"),
        (COMMIT, "metrics", {"alpha_mean": 0.9}, "^alpha_mean is 0.9; expected 0.5$"),
        (COMMIT, "metrics", {"la_over_k": "x"}, "^la_over_k is 'x'; expected 0.3333$"),
        (COMMIT, "metrics", {"kv_length": 34}, "^kv_length is 34; expected 33$"),
        (COMMIT, "finish", "tired", "^finish is 'tired'; expected one of stop, length"),
        (OPEN, "tokenizer", "xy", "^tokenizer is 'xy'; expected hex digits$"),
        (OPEN, "vocabulary", "a", "^vocabulary is 'a'; expected"),
        (OPEN, "sampling_cfg", {"logit_bias": {"a": 1}}, "the key 'a'"),
        (OPEN, "sampling_cfg", {"heat": 1}, "there is a field 'heat'"),
        (OPEN, "sampling_cfg", {"temp": "hot"}, "^temperature of a message"),
    ],
)
def test_a_wrong_value_is_named(
    message: DraftMessage | Commit | Open, name: str, value: Any, said: str
) -> None:
    given = json.loads(encode_json(message, vocabulary=300)) | {name: value}
    side: Side = "edge" if message is COMMIT else "cloud"
    with pytest.raises(InputError, match=said):
        decode_json(json.dumps(given), side=side, vocabulary=300, stream=STREAM)


@pytest.mark.parametrize("share", [1 / 3, 0.33333333, 0.3333, 0.333])
def test_a_share_may_be_rounded_otherwise(share: float) -> None:
    given = json.loads(encode_json(COMMIT, vocabulary=300)) | {"metrics": {"la_over_k": share}}
    found = decode_json(json.dumps(given), side="edge", vocabulary=300, stream=STREAM)
    assert isinstance(found, Commit) and found.tokens == COMMIT.tokens


def test_wrong_texts() -> None:
    for text in ("", "[]", "{", "[" * 100_000, '{"type": "\ud800"}', b"\xff", '{"type": "draft"}'):
        with pytest.raises(InputError):
            decode_json(text, side="cloud", vocabulary=300)
    with pytest.raises(InputError, match=r"^there is no seq; expected it in draft$"):
        decode_json('{"type": "draft"}', side="cloud", vocabulary=300)
    wrong = {"type": "resume", "ctx_id": STREAM.hex(), "key": "secret", "have": 1, "prefix": 2}
    with pytest.raises(InputError, match=r"^key is not valid; expected hex digits$"):
        decode_json(json.dumps(wrong), side="cloud")
    with pytest.raises(InputError, match="expected at most 10"):
        decode_json(" " * 11, side="cloud", most=10)
    with pytest.raises(InputError, match=r"^vocabulary is None; expected the stream's"):
        encode_json(DRAFT)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=4,
)


@given(cases(), st.data())
@examples(120)
def test_any_value_in_any_field(case: Case, data: st.DataObject) -> None:
    """Another type in one field is an InputError or a message, and never another error."""
    message, side, vocabulary = case
    given = json.loads(encode_json(message, vocabulary=vocabulary))
    name = data.draw(st.sampled_from([*given, "metrics", "sampling_cfg", "ctx_id"]))
    given[name] = data.draw(anything)
    try:
        found = decode_json(json.dumps(given), side=side, vocabulary=vocabulary)
    except InputError as error:
        assert str(error)
    else:
        assert type(found) is type(message) or name == "type"
