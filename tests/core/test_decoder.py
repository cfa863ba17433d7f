"""What a whole decoder of the core refuses: parts that do not fit, tokens and rows that do not
exist. That it computes what transformers does is tested in tests/models."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from foresay import _core
from foresay.errors import InputError

WIDTH, HEAD, INNER, WORDS = 32, 8, 64, 40
PARTS = ("query", "key", "value", "out", "gate", "up", "down")
LEVELS = _core.cpu_levels()


def linear(outs: int, ins: int, name: str = "F16", level: str = "") -> _core.BlockLinear:
    size = {"F16": 2 * ins, "BF16": 2 * ins, "Q8_0": ins // 32 * 34}[name]
    return _core.BlockLinear(name, np.zeros(outs * size, np.uint8), outs, ins, level=level)


def layer(**changes: Any) -> _core.BlockLayer:
    parts: dict[str, Any] = {
        "query": linear(32, WIDTH),
        "key": linear(16, WIDTH),
        "value": linear(16, WIDTH),
        "out": linear(WIDTH, 32),
        "gate": linear(INNER, WIDTH),
        "up": linear(INNER, WIDTH),
        "down": linear(WIDTH, INNER),
        "attention_norm": np.ones(WIDTH, np.float32),
        "mlp_norm": np.ones(WIDTH, np.float32),
    }
    return _core.BlockLayer(**{**parts, **changes})


def decoder(*layers: _core.BlockLayer, **changes: Any) -> _core.Decoder:
    parts: dict[str, Any] = {
        "embedding": linear(WORDS, WIDTH),
        "layers": list(layers) or [layer()],
        "norm": np.ones(WIDTH, np.float32),
        "head": None,
        "head_dim": HEAD,
        "eps": 1e-5,
        "scaling": 1.0,
        "frequencies": [[1.0, 0.5, 0.25, 0.125]],
    }
    return _core.Decoder(**{**parts, **changes})


def step(rows: int = 3, dtype: str = "bfloat16", **changes: Any) -> _core.AttentionStep:
    shapes = changes.pop("shapes", [(2, HEAD, HEAD)])
    parents = np.arange(-1, rows - 1, dtype=np.int32)
    return _core.AttentionStep([_core.Kv(shapes, dtype)], np.array([0, rows], np.int32), parents)


def forward(model: _core.Decoder, **changes: Any) -> Any:
    given: dict[str, Any] = {
        "step": step(),
        "tokens": np.array([0, 1, WORDS - 1], np.int32),
        "needed": np.array([2, 0], np.int64),
        "logits": np.full((2, WORDS), 9, np.float32),
        "hidden": None,
        "threads": 1,
    }
    given |= changes
    model.forward(**given)
    return given["logits"]


def test_what_fits_is_taken() -> None:
    model = decoder()
    assert (model.width, model.vocabulary, model.shapes) == (WIDTH, WORDS, [(2, HEAD, HEAD)])
    assert model.bytes >= 2 * WIDTH * (WORDS + 96 + 3 * INNER)
    hidden = np.full((2, WIDTH), 9, np.float32)
    assert not forward(model, hidden=hidden).any() and not hidden.any()
    none = np.array([], np.int64)
    assert forward(model, needed=none, logits=np.empty((0, WORDS), np.float32)).size == 0
    other = decoder(head=linear(7, WIDTH, "Q8_0"))
    assert other.vocabulary == 7
    assert not forward(other, logits=np.full((2, 7), 9, np.float32)).any()


class Sized(NamedTuple):
    """A layer to be made in a test: pytest keeps what a case is given to the end of the process."""

    outs: int
    ins: int
    name: str = "F16"


def made(changes: dict[str, Any]) -> dict[str, Any]:
    return {name: linear(*it) if isinstance(it, Sized) else it for name, it in changes.items()}


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"head_dim": 0}, "^a head has the width 0; expected an even number$"),
        ({"head_dim": 7}, "^a head has the width 7; expected an even number$"),
        (
            {"head_dim": 6, "frequencies": [[1.0]]},
            "^the queries and keys of layer 0 have the widths 32 and 16; expected multiples of 6",
        ),
        ({"frequencies": []}, "^there are no frequencies; expected at least one list$"),
        ({"frequencies": [[1.0] * 5]}, "^there are 5 frequencies; expected at most 4"),
        ({"frequencies": [[1.0] * 4, [1.0] * 3]}, "^there are 3 frequencies; expected"),
        ({"norm": np.ones(31, np.float32)}, "^the last norm has the width 31; expected 32$"),
        ({"head": Sized(WORDS, 64)}, "^the head has the width 64; expected 32$"),
        ({"embedding": Sized(WORDS, 64)}, "^the last norm has the width 32; expected 64$"),
        ({"activation": "relu"}, '^the activation is "relu"; expected "silu" or "gelu"$'),
    ],
)
def test_wholes_that_do_not_fit(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        decoder(**made(changes))


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"query": Sized(36, WIDTH)},
            "^the queries and keys of layer 1 have .* 36 and 16",
        ),
        (
            {"query": Sized(40, WIDTH)},
            "^the queries of layer 1 have the width 40; expected a multiple of 16,",
        ),
        ({"key": Sized(12, WIDTH)}, "^the queries and keys of layer 1 have .* 32 and 12"),
        (
            {"key": Sized(64, WIDTH)},
            "^the queries of layer 1 have .* 32; expected a multiple of 64,",
        ),
        ({"query": Sized(32, 64)}, "^the query of layer 1 has the width 64; expected 32$"),
        ({"key": Sized(16, 64)}, "^the key of layer 1 has the width 64"),
        ({"value": Sized(16, 64)}, "^the value of layer 1 has the width 64"),
        ({"value": Sized(8, WIDTH)}, "^the value of layer 1 has the width 8; expected 16$"),
        ({"out": Sized(WIDTH, 64)}, "^the out of layer 1 has the width 64"),
        ({"out": Sized(31, 32)}, "^the out of layer 1 has the width 31"),
        ({"gate": Sized(INNER, 64)}, "^the gate of layer 1 has the width 64"),
        ({"gate": Sized(63, WIDTH)}, "^the up of layer 1 has the width 64; expected 63$"),
        ({"up": Sized(INNER, 64)}, "^the up of layer 1 has the width 64; expected 32$"),
        ({"up": Sized(INNER, WIDTH, "BF16")}, "^the gate of layer 1 is of F16, the up of BF16"),
        ({"down": Sized(WIDTH, 96)}, "^the down of layer 1 has the width 96"),
        ({"down": Sized(33, INNER)}, "^the down of layer 1 has the width 33"),
        ({"attention_norm": np.ones(3, np.float32)}, "^the norm before attention of layer 1 has"),
        ({"mlp_norm": np.ones(3, np.float32)}, "^the norm before the products of layer 1 has the"),
        ({"query_norm": np.ones(3, np.float32)}, "^the norm of a head of layer 1 has the width 3"),
        ({"key_norm": np.ones(32, np.float32)}, "^the norm of a head of layer 1 has the width 32"),
        ({"after_attention_norm": np.ones(3, np.float32)}, "^the norm of a result of layer 1 has"),
        ({"after_mlp_norm": np.ones(3, np.float32)}, "^the norm of a result of layer 1 has"),
        ({"rope": 1}, "^the frequencies of layer 1 are those of list 1, which is not there$"),
    ],
)
def test_layers_that_do_not_fit(changes: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        decoder(layer(), layer(**made(changes)))


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_there_and_of_one_level(part: str) -> None:
    with pytest.raises((InputError, TypeError)):
        decoder(layer(**{part: None}))
    if len(LEVELS) > 1:
        shapes = {"query": (32, WIDTH), "out": (WIDTH, 32), "down": (WIDTH, INNER)}
        outs, ins = shapes.get(part, (INNER if part in ("gate", "up") else 16, WIDTH))
        other = next(level for level in LEVELS if level != _core.cpu_level())
        with pytest.raises(InputError, match=r"^a linear layer of layer 0 is of another level"):
            decoder(layer(**{part: linear(outs, ins, level=other)}))
        with pytest.raises(InputError, match=r"^the head is of another level"):
            decoder(head=linear(WORDS, WIDTH, level=other))


def test_the_embedding_is_there() -> None:
    with pytest.raises((InputError, TypeError)):
        decoder(embedding=None)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"tokens": np.array([0, 1, WORDS], np.int32)}, "^token 40 is not in the vocabulary; expe"),
        (
            {"tokens": np.array([0, -1, 1], np.int32)},
            "^token -1 is not in the vocabulary; expe",
        ),
        ({"tokens": np.array([0, 1], np.int32)}, "^there are 2 tokens; the step has 3 rows$"),
        ({"tokens": np.array([], np.int32)}, "^there are 0 tokens; the step has 3 rows$"),
        ({"needed": np.array([0, 3], np.int64)}, "^row 3 is needed; there are 3$"),
        ({"needed": np.array([0, -1], np.int64)}, "^row -1 is needed; there are 3$"),
        (
            {"needed": np.array([0], np.int64)},
            r"^logits has the shape \[2, 40\]; expected",
        ),
        ({"logits": np.zeros((2, 39), np.float32)}, r"^logits has the shape \[2, 39\]; expected"),
        ({"hidden": np.zeros((2, 31), np.float32)}, r"^hidden has the shape \[2, 31\]; expected"),
        ({"hidden": np.zeros((3, 32), np.float32)}, r"^hidden has the shape \[3, 32\]; expected"),
        ({"threads": 0}, "^threads is 0; expected 1 to 256$"),
        ({"threads": 257}, "^threads is 257; expected 1 to 256$"),
    ],
)
def test_steps_that_do_not_fit(changes: dict[str, Any], said: str) -> None:
    logits = np.full((2, WORDS), 9, np.float32)
    with pytest.raises(InputError, match=said):
        forward(decoder(), **{"logits": logits, **changes})
    assert np.all(logits == 9)


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"dtype": "float32"}, "^the step is of float32; expected bfloat16$"),
        ({"shapes": [(1, HEAD, HEAD)]}, "^key has the shape"),
        ({"shapes": [(2, HEAD, 2 * HEAD)]}, "^value has the shape"),
    ],
)
def test_steps_of_another_model(other: dict[str, Any], said: str) -> None:
    with pytest.raises(InputError, match=said):
        forward(decoder(), step=step(**other))
    with pytest.raises(InputError, match=r"^layer 1 does not exist; there are 1$"):
        forward(decoder(layer(), layer()))


def test_more_rows_may_be_needed_than_there_are() -> None:
    """One row several times: so much room is there."""
    many = np.full(100, 1, np.int64)
    found = forward(decoder(), needed=many, logits=np.full((100, WORDS), 9, np.float32))
    assert not found.any()
