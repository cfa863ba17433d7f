"""The messages of an edge stream. docs/edge.md has them as tables.

    up    Open, then DraftMessage …        or Resume on a new connection
    down  Opened, then Commit … or Error
    both  Close

On the wire a message is an array: its tag, then its fields in order; fields at the end that have
their defaults may be left out. Every number and length has a bound, which `wire.decode` checks. Who
constructs a message is trusted: a constructor checks nothing. A `name` is the one in JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec
import numpy as np
from msgspec import Meta, field

from foresay.draft import Draft
from foresay.edge.ids import MAX_VOCABULARY, count_of, pack, unpack
from foresay.errors import InputError
from foresay.sampling.params import PROCESSORS, SamplingParams

__all__ = [
    "CODES",
    "FINISH",
    "MAX_NODES",
    "MAX_PAD",
    "VERSION",
    "WAITS",
    "Close",
    "Commit",
    "DraftMessage",
    "Error",
    "Message",
    "Open",
    "Opened",
    "Resume",
    "Sampling",
    "Wait",
]

VERSION = 2
"""2: OPENED and COMMIT have a check. OPEN is as in 1, so that every server can read its version."""
MAX_NODES = 255
"""Of one draft: a parent is one byte."""
MAX_PAD = 16384
FINISH = ("", "stop", "length", "cancelled", "error")
"""The finish reasons; on the wire the index."""

CODES = {
    "bad_frame": "a frame is not valid, or not expected there",
    "bad_request": "what OPEN asks for cannot be answered",
    "unauthorized": "the API key is missing or wrong",
    "unknown_stream": "RESUME names no stream of this server: open it again with the same seed",
    "unknown_prefix": "RESUME has another text than the stream",
    "resumed": "another connection has resumed the stream",
    "busy": "there is no room; try again later",
    "draining": "the server is stopping; try again later",
    "timeout": "no message came in time; try again",
    "internal": "the server failed; its log says why",
}
"""The codes of ERROR, and what they mean."""

Wait: TypeAlias = Literal["", "block", "free-run", "adaptive"]
WAITS: tuple[Wait, ...] = ("block", "free-run", "adaptive")
"""How long the cloud may wait for drafts."""
_Position: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Seq: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Nodes: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_NODES)]
_Hash: TypeAlias = Annotated[int, Meta(ge=0, le=2**32 - 1)]
_Secret: TypeAlias = Annotated[bytes, Meta(min_length=16, max_length=16)]
_Seed: TypeAlias = Annotated[int, Meta(ge=0)]  # msgpack's largest is 2**64 - 1
_Id: TypeAlias = Annotated[int, Meta(ge=0, le=MAX_VOCABULARY - 1)]
_Ids: TypeAlias = Annotated[tuple[_Id, ...], Meta(max_length=1024)]
_Name: TypeAlias = Annotated[str, Meta(max_length=256)]
_Text: TypeAlias = Annotated[str, Meta(max_length=1024)]
_Share: TypeAlias = Annotated[float, Meta(ge=0.0, le=1.0)]
_Penalty: TypeAlias = Annotated[float, Meta(ge=-1e6, le=1e6)]
_Vocabulary: TypeAlias = Annotated[int, Meta(ge=1, le=MAX_VOCABULARY)]
_Count: TypeAlias = Annotated[int, Meta(ge=0, le=2**31 - 1)]
_Padding: TypeAlias = Annotated[bytes, Meta(max_length=65535)]


class Sampling(msgspec.Struct, array_like=True, frozen=True, forbid_unknown_fields=True):
    """The sampling parameters that an edge client may set: those of `SamplingParams`.

    temperature         0 is greedy
    top_p               only the likeliest tokens that together reach this probability
    top_k               only the k likeliest tokens; 0: all
    min_p               only tokens at least this likely compared with the likeliest
    repetition_penalty  divides the logits of tokens in the text so far
    presence_penalty    subtracted from the logits of tokens in the answer
    frequency_penalty   the same, once per occurrence
    logit_bias          added to the logits of these ids; -inf forbids a token
    stop                stop strings
    stop_ids            stop token ids
    ignore_eos          continue after tokens that end an answer
    min_tokens          nothing ends an answer with fewer tokens
    """

    temperature: Annotated[float, Meta(ge=0.0, le=1e6)] = field(default=1.0, name="temp")
    top_p: _Share = 1.0
    top_k: _Count = 0
    min_p: _Share = 0.0
    repetition_penalty: Annotated[float, Meta(ge=1e-6, le=1e6)] = field(
        default=1.0, name="rep_penalty"
    )
    presence_penalty: _Penalty = 0.0
    frequency_penalty: _Penalty = 0.0
    logit_bias: Annotated[dict[_Id, float], Meta(max_length=1024)] = {}
    stop: Annotated[tuple[_Name, ...], Meta(max_length=64)] = ()
    stop_ids: _Ids = ()
    ignore_eos: bool = False
    min_tokens: _Count = 0

    @classmethod
    def of(cls, params: SamplingParams) -> Sampling:
        """The parameters of a request, without max_tokens and seed, which are `Open`'s.

        Raises: InputError for log probabilities, several answers, rule rejection, another order
        of processors, and a form of the answer.
        """
        order, form = ("processor_order", PROCESSORS), ("structured_outputs", None)
        for name, only in (("logprobs", None), ("n", 1), ("rule", "match"), order, form):
            if getattr(params, name) != only:
                raise InputError(
                    f"{name} is {getattr(params, name)!r}; expected {only!r}: an edge stream has "
                    "nothing else"
                )
        same = {field: getattr(params, field) for field in cls.__struct_fields__ if field in _SAME}
        bias: Mapping[int, float] = params.logit_bias
        return cls(**same, logit_bias=dict(bias), stop=params.stop_texts, stop_ids=params.stop_ids)


_SAME = set(Sampling.__struct_fields__) - {"logit_bias", "stop", "stop_ids"}


class Open(msgspec.Struct, array_like=True, tag=1, frozen=True, forbid_unknown_fields=True):
    """OPEN, up, first: starts a stream.

    version     of this protocol, 2
    model       its name; empty: the one that the server has
    tokenizer   a hash of it, which has to be the server's; empty: unknown
    vocabulary  token ids are below it
    prompt      packed ids
    sampling    the sampling parameters
    seed        of the noise; none: the cloud draws one
    max_tokens  the answer ends after this many
    wait        how long the cloud waits for drafts; empty: the cloud chooses
    pad         0, or all later messages are padded to a multiple of this number of bytes
    padding     zero bytes that fill the frame
    """

    version: Annotated[int, Meta(ge=0, le=2**16 - 1)]
    model: _Name
    tokenizer: Annotated[bytes, Meta(max_length=64)]
    vocabulary: _Vocabulary
    prompt: bytes
    sampling: Sampling = field(default=Sampling(), name="sampling_cfg")
    seed: _Seed | None = None
    max_tokens: _Count = 256
    wait: Wait = ""
    pad: Annotated[int, Meta(ge=0, le=MAX_PAD)] = 0
    padding: _Padding = b""

    def params(self) -> SamplingParams:
        """The parameters of the request that this asks for. Raises: InputError."""
        asked = self.sampling
        return SamplingParams(
            max_tokens=self.max_tokens,
            seed=self.seed,
            logit_bias=asked.logit_bias,
            stop=(*asked.stop, *asked.stop_ids),
            **{name: getattr(asked, name) for name in _SAME},
        )


class Opened(msgspec.Struct, array_like=True, tag=2, frozen=True, forbid_unknown_fields=True):
    """OPENED, down: the answer to OPEN.

    stream      16 random bytes that name the stream
    key         16 random bytes that RESUME needs; a secret
    check       CRC-32 of OPEN as the cloud has read it and of this message; see Checks
    position    tokens of the prompt: where the answer starts
    vocabulary  the model's
    seed        of the noise, the one used
    noise       names the noise: `foresay.sampling.noise.SPEC`
    window      drafted tokens that may be in flight: the credit at the start
    nodes       the most nodes of one draft
    seconds     how long the stream survives without a connection
    ends        token ids that end the answer, for the edge's own drafts
    wait        the one used
    padding     zero bytes that fill the frame
    """

    stream: _Secret = field(name="ctx_id")
    key: _Secret
    check: _Hash
    position: _Position
    vocabulary: _Vocabulary
    seed: _Seed
    noise: _Name
    window: _Count
    nodes: _Nodes
    seconds: _Count
    ends: _Ids = ()
    wait: Wait = ""
    padding: _Padding = b""

    def __repr__(self) -> str:  # which a log may have: not the key
        return f"Opened(stream={self.stream.hex()}, position={self.position}, …)"


class DraftMessage(msgspec.Struct, array_like=True, tag=3, frozen=True, forbid_unknown_fields=True):
    """DRAFT, up: a draft tree that continues the prefix up to `base`.

    seq      counts the drafts of the stream, from 1
    base     the absolute position of its first tokens
    prefix   hash of the prefix up to base; another than the cloud's: the draft is ignored
    tokens   packed ids, one per node, at most 255; none: the edge has no draft
    parents  one byte per node, 0: the prefix, i + 1: node i, before its children; empty: a chain
    padding  zero bytes that fill the frame
    """

    seq: Annotated[int, Meta(ge=1, le=2**32 - 1)]
    base: _Position
    prefix: _Hash
    tokens: Annotated[bytes, Meta(max_length=4 * MAX_NODES)] = field(name="draft_tokens")
    parents: Annotated[bytes, Meta(max_length=MAX_NODES)] = b""
    padding: _Padding = b""

    @classmethod
    def of(cls, draft: Draft, *, seq: int, base: int, prefix: int, vocabulary: int) -> DraftMessage:
        """A draft as a message; its scores stay here. Raises: InputError."""
        if len(draft) > MAX_NODES:
            raise InputError(f"the draft has {len(draft)} nodes; expected at most {MAX_NODES}")
        parents = (draft.parents + 1).astype(np.uint8).tobytes()
        if parents == bytes(range(len(draft))):
            parents = b""
        return cls(seq, base, prefix, pack(draft.tokens, vocabulary), parents)

    def draft(self, vocabulary: int) -> Draft:
        """The draft tree.

        Raises: InputError for ids outside the vocabulary, too many nodes, and for parents that are
        not one per node, each before its children.
        """
        count = count_of(self.tokens, vocabulary)
        if count > MAX_NODES:
            raise InputError(f"the draft has {count} nodes; expected at most {MAX_NODES}")
        if self.parents and len(self.parents) != count:
            raise InputError(
                f"there are {len(self.parents)} parents of {count} nodes; expected one per node, "
                "or none for a chain"
            )
        parents = np.frombuffer(self.parents or bytes(range(count)), np.uint8)
        return Draft(unpack(self.tokens, vocabulary), parents.astype(np.int32) - 1)


class Commit(msgspec.Struct, array_like=True, tag=4, frozen=True, forbid_unknown_fields=True):
    """COMMIT, down: tokens of the answer. It may be sent twice: the edge takes what it lacks.

    upto       the absolute position after these tokens
    tokens     packed ids, the last ones before upto
    check      CRC-32 of the prefix up to upto and of this message; see Checks
    seq        the latest draft that has arrived; 0: none
    accepted   tokens of that draft that are committed so far; 0 also if hidden
    examined   these, and the first one that was rejected; 0 also if hidden
    drafted    tokens of that draft; 0 also if hidden
    pending    tokens up to upto that are not in the cloud's KV cache; 0: hidden, or at the end
    server_us  microseconds from the arrival of that draft until this commit; 0: hidden
    credit     drafted tokens that may be in flight from now on; none: as before
    finish     0, or at the end of the answer 1 stop, 2 length, 3 cancelled, 4 error
    padding    zero bytes that fill the frame
    """

    upto: _Position
    tokens: bytes
    check: _Hash
    seq: _Seq = 0
    accepted: _Nodes = field(default=0, name="accepted_len")
    examined: _Nodes = 0
    drafted: _Nodes = 0
    pending: _Position = 0
    server_us: Annotated[int, Meta(ge=0, le=2**32 - 1)] = 0
    credit: _Count | None = None
    finish: Annotated[int, Meta(ge=0, le=len(FINISH) - 1)] = 0
    padding: _Padding = b""

    @property
    def reason(self) -> str:
        """The finish reason; empty while the answer goes on."""
        return FINISH[self.finish]

    @property
    def alpha_mean(self) -> float | None:
        """Accepted by examined tokens of the latest draft; None: the text has not reached it."""
        return self.accepted / self.examined if self.examined else None

    @property
    def la_over_k(self) -> float | None:
        """Accepted by drafted tokens of the latest draft; None: the text has not reached it."""
        return self.accepted / self.drafted if self.examined and self.drafted else None

    @property
    def kv_length(self) -> int | None:
        """Tokens of the text in the cloud's KV cache; None: not told."""
        return self.upto - self.pending if 0 < self.pending <= self.upto else None


class Resume(msgspec.Struct, array_like=True, tag=5, frozen=True, forbid_unknown_fields=True):
    """RESUME, up, first on a new connection: goes on with a stream.

    stream   its name, from OPENED
    key      its key, from OPENED
    have     the absolute position up to which the edge has the text
    prefix   hash of the prefix up to have
    padding  zero bytes that fill the frame
    """

    stream: _Secret = field(name="ctx_id")
    key: _Secret
    have: _Position
    prefix: _Hash
    padding: _Padding = b""

    def __repr__(self) -> str:  # which a log may have: not the key
        return f"Resume(stream={self.stream.hex()}, have={self.have}, prefix={self.prefix})"


class Close(msgspec.Struct, array_like=True, tag=6, frozen=True, forbid_unknown_fields=True):
    """CLOSE, both ways: the stream ends, and cannot be resumed.

    reason   in words; may be empty
    padding  zero bytes that fill the frame
    """

    reason: _Text = ""
    padding: _Padding = b""


class Error(msgspec.Struct, array_like=True, tag=7, frozen=True, forbid_unknown_fields=True):
    """ERROR, down: what was wrong; the connection closes afterwards.

    code     one of `CODES`
    message  a sentence that names the value and what would be valid
    param    the field; empty: none in particular
    padding  zero bytes that fill the frame
    """

    code: Annotated[str, Meta(max_length=64)]
    message: _Text
    param: _Name = ""
    padding: _Padding = b""


Message: TypeAlias = Open | Opened | DraftMessage | Commit | Resume | Close | Error
