"""A tokenizer of 128 tokens, as many as the tiny models of the tests have columns: characters, some
words of JSON and pairs, and what ends an answer."""

from __future__ import annotations

from functools import cache

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from foresay import StructuredOutputs
from foresay.structured.grammars import Grammars

__all__ = ["END", "FORMS", "WORDS", "grammars"]

END = 127
_CHARACTERS = [*map(chr, range(33, 127)), "Ġ", "Ċ"]
_PAIRS = [
    *(("{", '"'), ('"', ":"), ('"', ","), ('"', "}"), ("Ġ", '"'), ("n", "a"), ("na", "me")),
    *(("t", "r"), ("u", "e"), ("tr", "ue"), ("f", "a"), ("l", "se"), ("s", "e"), ("fa", "lse")),
    *(("1", "2"), ("0", "0"), ("a", "b"), ("x", "y"), ("e", "s"), ("y", "es"), ("<", "/")),
    *((">", "{"), (">", "Ċ"), ("}", "Ċ"), (":", "Ġ"), (",", "Ġ"), ('":', "Ġ"), ("ab", "ab")),
    *(("0", "1"), ("5", "5"), ("(", "x")),
]


class _Words:
    """What `Grammars` needs of a tokenizer, and texts for the tests."""

    ends: tuple[int, ...] = (END,)

    def __init__(self) -> None:
        merges = sorted(_PAIRS, key=lambda pair: len("".join(pair)))
        pieces = [*_CHARACTERS, *dict.fromkeys("".join(pair) for pair in merges)]
        pieces = pieces[:END]
        known = [pair for pair in merges if {*pair, "".join(pair)} <= {*pieces}]
        self.inner = Tokenizer(models.BPE({p: i for i, p in enumerate(pieces)}, known))
        self.inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.inner.decoder = decoders.ByteLevel()
        filler = [f"<filler {n}>" for n in range(END - len(pieces))]
        self.inner.add_special_tokens(
            [AddedToken(text, special=True) for text in [*filler, "<end>"]]
        )
        assert self.inner.token_to_id("<end>") == END

    def serialized(self) -> str:
        return str(self.inner.to_str())

    def piece(self, token: int, /) -> str | None:
        found: str | None = self.inner.id_to_token(token)
        return found

    def encode(self, text: str) -> list[int]:
        ids: list[int] = self.inner.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, tokens: list[int]) -> str:
        return str(self.inner.decode(tokens))


WORDS = _Words()


@cache
def grammars() -> Grammars:
    return Grammars(WORDS, END + 1)


_OBJECT = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 4},
        "ok": {"type": "boolean"},
        "n": {"type": "integer", "minimum": 0, "maximum": 5500},
    },
    "required": ["name", "ok", "n"],
    "additionalProperties": False,
}
FORMS = [
    StructuredOutputs(json=_OBJECT),
    StructuredOutputs(regex="(ab|x){2,9}y"),
    StructuredOutputs(choice=["yes", "yesxy", "no", "trueabab"]),
    StructuredOutputs(grammar='start: "(" start ")" | "x" | start "," start'),
    StructuredOutputs(json={"type": "array", "items": {"enum": [1, 12, "ab"]}, "maxItems": 3}),
    StructuredOutputs(regex="[^x]*x", after="a"),
    StructuredOutputs(regex="x+", after="ab"),
    StructuredOutputs(json=_OBJECT, after="}"),
]
