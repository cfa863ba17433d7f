"""What a whole decoder of the core refuses: parts that do not fit, tokens and rows that do not
exist. That it computes what transformers does is tested in tests/models."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import pytest

from core.arrays import floats, ints, longs
from foresay import _core
from foresay.errors import InputError

WIDTH, HEAD, INNER, WORDS = 32, 8, 64, 40
LEVELS = _core.cpu_levels()


class Sized(NamedTuple):
    """A layer to be made in a test: pytest keeps what a case is given to the end of the process."""

    outs: int
    ins: int = WIDTH
    name: str = "F16"
    level: str = ""

    def made(self) -> _core.BlockLinear:
        size = {"F16": 2 * self.ins, "BF16": 2 * self.ins, "Q8_0": self.ins // 32 * 34}[self.name]
        raw = np.zeros(self.outs * size, np.uint8)
        return _core.BlockLinear(self.name, raw, self.outs, self.ins, level=self.level)


PARTS = {
    "query": Sized(32),
    "key": Sized(16),
    "value": Sized(16),
    "out": Sized(WIDTH, 32),
    "gate": Sized(INNER),
    "up": Sized(INNER),
    "down": Sized(WIDTH, INNER),
}


def made(parts: dict[str, Any]) -> dict[str, Any]:
    return {name: it.made() if isinstance(it, Sized) else it for name, it in parts.items()}


def layer(**changes: Any) -> _core.BlockLayer:
    norms = {"attention_norm": floats(WIDTH), "mlp_norm": floats(WIDTH)}
    return _core.BlockLayer(**made({**PARTS, **norms, **changes}))


def decoder(*layers: _core.BlockLayer, **changes: Any) -> _core.Decoder:
    parts = {"embedding": Sized(WORDS), "norm": floats(WIDTH), "head": None, "head_dim": HEAD}
    numbers = {"eps": 1e-5, "scaling": 1.0, "frequencies": [[1.0, 0.5, 0.25, 0.125]]}
    parts |= {"layers": list(layers) or [layer()], **numbers, **changes}
    return _core.Decoder(**made(parts))


def step(rows: int = 3, dtype: str = "bfloat16", **changes: Any) -> _core.AttentionStep:
    kv = _core.Kv(changes.pop("shapes", [(2, HEAD, HEAD)]), dtype)
    return _core.AttentionStep([kv], ints(0, rows), ints(*range(-1, rows - 1)))


def forward(model: _core.Decoder, **changes: Any) -> Any:
    given: dict[str, Any] = {"step": step(), "tokens": ints(0, 1, WORDS - 1), "hidden": None}
    given |= {"needed": longs(2, 0), "logits": floats(2, WORDS, fill=9), "threads": 1, **changes}
    model.forward(**given)
    return given["logits"]


def test_what_fits_is_taken() -> None:
    model = decoder()
    assert (model.width, model.vocabulary, model.shapes) == (WIDTH, WORDS, [(2, HEAD, HEAD)])
    assert model.bytes >= 2 * WIDTH * (WORDS + 96 + 3 * INNER)
    hidden = floats(2, WIDTH, fill=9)
    assert not forward(model, hidden=hidden).any() and not hidden.any()
    assert forward(model, needed=longs(), logits=floats(0, WORDS)).size == 0
    other = decoder(head=Sized(7, WIDTH, "Q8_0"))
    assert other.vocabulary == 7
    assert not forward(other, logits=floats(2, 7, fill=9)).any()


SIX: dict[str, Any] = {"head_dim": 6, "frequencies": [[1.0]]}


def case(said: str, **changes: Any) -> tuple[str, dict[str, Any]]:
    return said, changes


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        case("^a head has the width 0; expected an even number$", head_dim=0),
        case("^a head has the width 7; expected an even number$", head_dim=7),
        case("^the queries and keys of layer 0 .* 16; .* multiples of 6", **SIX),
        case("^there are no frequencies; expected at least one list$", frequencies=[]),
        case("^there are 5 frequencies; expected at most 4", frequencies=[[1.0] * 5]),
        case("^there are 3 frequencies; expected", frequencies=[[1.0] * 4, [1.0] * 3]),
        case("^the last norm has the width 31; expected 32$", norm=floats(31)),
        case("^the head has the width 64; expected 32$", head=Sized(WORDS, 64)),
        case("^the last norm has the width 32; expected 64$", embedding=Sized(WORDS, 64)),
        case('^the activation is "relu"; expected "silu" or "gelu"$', activation="relu"),
    ],
)
def test_wholes_that_do_not_fit(said: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=said):
        decoder(**changes)


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        case("^the queries and keys of layer 1 have .* 36 and 16", query=Sized(36)),
        case(
            "^the queries of layer 1 have the width 40; expected a multiple of 16,", query=Sized(40)
        ),
        case("^the queries and keys of layer 1 have .* 32 and 12", key=Sized(12)),
        case("^the queries of layer 1 have .* 32; expected a multiple of 64,", key=Sized(64)),
        case("^the query of layer 1 has the width 64; expected 32$", query=Sized(32, 64)),
        case("^the key of layer 1 has the width 64", key=Sized(16, 64)),
        case("^the value of layer 1 has the width 64", value=Sized(16, 64)),
        case("^the value of layer 1 has the width 8; expected 16$", value=Sized(8)),
        case("^the out of layer 1 has the width 64", out=Sized(WIDTH, 64)),
        case("^the out of layer 1 has the width 31", out=Sized(31, 32)),
        case("^the gate of layer 1 has the width 64", gate=Sized(INNER, 64)),
        case("^the up of layer 1 has the width 64; expected 63$", gate=Sized(63)),
        case("^the up of layer 1 has the width 64; expected 32$", up=Sized(INNER, 64)),
        case("^the gate of layer 1 is of F16, the up of BF16", up=Sized(INNER, WIDTH, "BF16")),
        case("^the down of layer 1 has the width 96", down=Sized(WIDTH, 96)),
        case("^the down of layer 1 has the width 33", down=Sized(33, INNER)),
        case("^the norm before attention of layer 1 has", attention_norm=floats(3)),
        case("^the norm before the products of layer 1 has the", mlp_norm=floats(3)),
        case("^the norm of a head of layer 1 has the width 3", query_norm=floats(3)),
        case("^the norm of a head of layer 1 has the width 32", key_norm=floats(32)),
        case("^the norm of a result of layer 1 has", after_attention_norm=floats(3)),
        case("^the norm of a result of layer 1 has", after_mlp_norm=floats(3)),
        case("^the frequencies of layer 1 are those of list 1, which is not there$", rope=1),
    ],
)
def test_layers_that_do_not_fit(said: str, changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=said):
        decoder(layer(), layer(**changes))


@pytest.mark.parametrize("part", PARTS)
def test_every_part_is_there_and_of_one_level(part: str) -> None:
    with pytest.raises((InputError, TypeError)):
        decoder(layer(**{part: None}))
    if len(LEVELS) > 1:
        other = next(level for level in LEVELS if level != _core.cpu_level())
        with pytest.raises(InputError, match=r"^a linear layer of layer 0 is of another level"):
            decoder(layer(**{part: PARTS[part]._replace(level=other)}))
        with pytest.raises(InputError, match=r"^the head is of another level"):
            decoder(head=Sized(WORDS, level=other))


def test_the_embedding_is_there() -> None:
    with pytest.raises((InputError, TypeError)):
        decoder(embedding=None)


@pytest.mark.parametrize(
    ("said", "changes"),
    [
        case("^token 40 is not in the vocabulary; expe", tokens=ints(0, 1, WORDS)),
        case("^token -1 is not in the vocabulary; expe", tokens=ints(0, -1, 1)),
        case("^there are 2 tokens; the step has 3 rows$", tokens=ints(0, 1)),
        case("^there are 0 tokens; the step has 3 rows$", tokens=ints()),
        case("^row 3 is needed; there are 3$", needed=longs(0, 3)),
        case("^row -1 is needed; there are 3$", needed=longs(0, -1)),
        case(r"^logits has the shape \[2, 40\]; expected", needed=longs(0)),
        case(r"^logits has the shape \[2, 39\]; expected", logits=floats(2, 39, fill=9)),
        case(r"^hidden has the shape \[2, 31\]; expected", hidden=floats(2, 31)),
        case(r"^hidden has the shape \[3, 32\]; expected", hidden=floats(3, 32)),
        case("^threads is 0; expected 1 to 256$", threads=0),
        case("^threads is 257; expected 1 to 256$", threads=257),
    ],
)
def test_steps_that_do_not_fit(said: str, changes: dict[str, Any]) -> None:
    given = {"logits": floats(2, WORDS, fill=9), **changes}
    with pytest.raises(InputError, match=said):
        forward(decoder(), **given)
    assert np.all(given["logits"] == 9)


@pytest.mark.parametrize(
    ("said", "other"),
    [
        case("^the step is of float32; expected bfloat16$", dtype="float32"),
        case("^key has the shape", shapes=[(1, HEAD, HEAD)]),
        case("^value has the shape", shapes=[(2, HEAD, 2 * HEAD)]),
    ],
)
def test_steps_of_another_model(said: str, other: dict[str, Any]) -> None:
    with pytest.raises(InputError, match=said):
        forward(decoder(), step=step(**other))
    with pytest.raises(InputError, match=r"^layer 1 does not exist; there are 1$"):
        forward(decoder(layer(), layer()))


def test_more_rows_may_be_needed_than_there_are() -> None:
    """One row several times: so much room is there."""
    many = np.full(100, 1, np.int64)
    assert not forward(decoder(), needed=many, logits=floats(100, WORDS, fill=9)).any()
