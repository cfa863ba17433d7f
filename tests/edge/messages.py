"""Strategies that build every message of an edge stream within the bounds of its fields, with its
vocabulary."""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import msgspec
from hypothesis import strategies as st
from msgspec import inspect

from foresay.edge.ids import pack
from foresay.edge.messages import (
    VERSION,
    Close,
    Commit,
    DraftMessage,
    Error,
    Message,
    Open,
    Opened,
    Resume,
    Sampling,
)
from foresay.edge.wire import Side

Case: TypeAlias = tuple[Message, Side, int]
"""A message, who reads it, the vocabulary."""
UP: tuple[type[Message], ...] = (Open, DraftMessage, Resume, Close)
DOWN: tuple[type[Message], ...] = (Opened, Commit, Close, Error)

vocabularies = st.sampled_from([1, 2, 255, 256, 257, 49152, 65536, 65537, 151936, 2**31 - 1])


def values(kind: inspect.Type) -> st.SearchStrategy[Any]:
    """The values of a field of this type; of texts and lists short ones."""
    match kind:
        case inspect.IntType():
            return st.integers(kind.ge, 2**64 - 1 if kind.le is None else kind.le)
        case inspect.FloatType():
            return st.floats(kind.ge, kind.le, allow_nan=False)
        case inspect.StrType():
            return st.text(max_size=20)
        case inspect.BytesType():
            return st.binary(min_size=kind.min_length or 0, max_size=kind.max_length)
        case inspect.VarTupleType():
            return st.lists(values(kind.item_type), max_size=5).map(tuple)
        case inspect.LiteralType():
            return st.sampled_from(kind.values)
        case inspect.UnionType():
            return st.one_of(*map(values, kind.types))
        case inspect.NoneType():
            return st.none()
    assert isinstance(kind, inspect.BoolType), kind
    return st.booleans()


def built(kind: type[msgspec.Struct], **fixed: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Structs of this kind, in some of whose fields not all that their types allow is valid."""
    fields = inspect.type_info(kind).fields  # type: ignore[attr-defined]
    open_fields = {field.name: field.type for field in fields if field.name != "padding"}
    free = {name: values(of) for name, of in open_fields.items() if name not in fixed}
    return st.builds(kind, **free, **fixed)


samplings = built(
    Sampling,
    temperature=st.just(0.0) | st.floats(1e-3, 1e6),
    top_p=st.floats(0.0, 1.0, exclude_min=True),
    top_k=st.integers(0, 2**31 - 2),
    logit_bias=st.dictionaries(
        st.integers(0, 2**31 - 2), st.floats(-1e38, 1e38) | st.just(-math.inf), max_size=5
    ),
    stop=st.lists(st.text(min_size=1, max_size=20), max_size=4).map(tuple),
    min_tokens=st.integers(0, 16),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    vocabulary = draw(vocabularies)
    ids = st.lists(st.integers(0, vocabulary - 1), max_size=40)
    packed, nodes = ids.map(lambda tokens: pack(tokens, vocabulary)), draw(ids)
    parents = bytes(draw(st.integers(0, at)) for at in range(len(nodes)))
    fixed: dict[type[Message], dict[str, st.SearchStrategy[Any]]] = {
        Open: {
            "version": st.just(VERSION),
            "vocabulary": st.just(vocabulary),
            "prompt": packed,
            "sampling": st.just(Sampling()) | samplings,
            "max_tokens": st.integers(16, 2**31 - 1),
        },
        DraftMessage: {
            "tokens": st.just(pack(nodes, vocabulary)),
            "parents": st.sampled_from([b"", parents]),
        },
        Opened: {"vocabulary": st.just(vocabulary)},
        Commit: {"tokens": packed},
    }
    side: Side = draw(st.sampled_from(["cloud", "edge"]))
    kind: type[Message] = draw(st.sampled_from(UP if side == "cloud" else DOWN))
    return draw(built(kind, **fixed.get(kind, {}))), side, vocabulary
