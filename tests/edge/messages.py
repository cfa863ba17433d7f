"""Strategies that build every message of an edge stream, with its vocabulary."""

from __future__ import annotations

import math
from typing import TypeAlias

from hypothesis import strategies as st

from foresay.edge.ids import pack
from foresay.edge.messages import (
    FINISH,
    MAX_NODES,
    MAX_PAD,
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

vocabularies = st.sampled_from([1, 2, 255, 256, 257, 49152, 65536, 65537, 151936, 2**31 - 1])
positions = st.integers(0, 2**31 - 1)
hashes = st.integers(0, 2**32 - 1)
seeds = st.integers(0, 2**64 - 1)
secrets = st.binary(min_size=16, max_size=16)
words = st.text(max_size=20)
waits = st.sampled_from(["", "block", "free-run", "adaptive"])
token_ids = st.lists(st.integers(0, 2**31 - 2), max_size=5).map(tuple)
numbers = st.floats(-1e6, 1e6, allow_nan=False)
biases = st.floats(-1e38, 1e38) | st.just(-math.inf)

samplings = st.builds(
    Sampling,
    temperature=st.just(0.0) | st.floats(1e-3, 1e6),
    top_p=st.floats(0.0, 1.0, exclude_min=True),
    top_k=st.integers(0, 2**31 - 2),
    min_p=st.floats(0.0, 1.0),
    repetition_penalty=st.floats(1e-6, 1e6),
    presence_penalty=numbers,
    frequency_penalty=numbers,
    logit_bias=st.dictionaries(st.integers(0, 2**31 - 2), biases, max_size=5),
    stop=st.lists(st.text(min_size=1, max_size=20), max_size=4).map(tuple),
    stop_ids=token_ids,
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 16),
)


@st.composite
def cases(draw: st.DrawFn) -> Case:
    vocabulary = draw(vocabularies)
    ids = st.lists(st.integers(0, vocabulary - 1), max_size=40)
    packed = ids.map(lambda tokens: pack(tokens, vocabulary))
    nodes = draw(ids)
    parents = bytes(draw(st.integers(0, at)) for at in range(len(nodes)))
    up: dict[type[Message], st.SearchStrategy[Message]] = {
        Open: st.builds(
            Open,
            version=st.just(VERSION),
            model=words,
            tokenizer=st.binary(max_size=64),
            vocabulary=st.just(vocabulary),
            prompt=packed,
            sampling=st.just(Sampling()) | samplings,
            seed=st.none() | seeds,
            max_tokens=st.integers(16, 2**31 - 1),
            wait=waits,
            pad=st.integers(0, MAX_PAD),
        ),
        DraftMessage: st.builds(
            DraftMessage,
            seq=st.integers(1, 2**32 - 1),
            base=positions,
            prefix=hashes,
            tokens=st.just(pack(nodes, vocabulary)),
            parents=st.sampled_from([b"", parents]),
        ),
        Resume: st.builds(Resume, stream=secrets, key=secrets, have=positions, prefix=hashes),
        Close: st.builds(Close, reason=words),
    }
    down: dict[type[Message], st.SearchStrategy[Message]] = {
        Opened: st.builds(
            Opened,
            stream=secrets,
            key=secrets,
            check=hashes,
            position=positions,
            vocabulary=st.just(vocabulary),
            seed=seeds,
            noise=words,
            window=positions,
            nodes=st.integers(0, MAX_NODES),
            seconds=positions,
            ends=token_ids,
            wait=waits,
        ),
        Commit: st.builds(
            Commit,
            upto=positions,
            tokens=packed,
            check=hashes,
            seq=st.integers(0, 2**32 - 1),
            accepted=st.integers(0, MAX_NODES),
            examined=st.integers(0, MAX_NODES),
            drafted=st.integers(0, MAX_NODES),
            pending=positions,
            server_us=st.integers(0, 2**32 - 1),
            credit=st.none() | positions,
            finish=st.integers(0, len(FINISH) - 1),
        ),
        Close: up[Close],
        Error: st.builds(Error, code=words, message=words, param=words),
    }
    side: Side = draw(st.sampled_from(["cloud", "edge"]))
    kinds = up if side == "cloud" else down
    message = draw(kinds[draw(st.sampled_from(list(kinds)))])
    return message, side, vocabulary
