"""What the engine knows of a model: one protocol for all devices.

A step is one forward pass over the rows of many texts at once: pieces of prompts (prefill), last
tokens (decode), and draft trees. Each text has a `TextKv`, its keys and values. The attention mask
of a row follows from its text and its tree; its position is its place in the text, never in memory.

`cpu/target.py` and `cpu/stored_target.py` are the targets on processors, `gpu/` has the one on
NVIDIA GPUs, `plain.py` is the readable twin in pure torch, for any device. What targets share knows
no device:

    rows         the rows of a step          passes      a forward pass of transformers' modules
    attention    the function they call      visibility  which tokens a layer attends to
    checks       is a model run exactly?     invariance  are a row's bits always the same?
    replacing    of weights, by name         skipping    of layers
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from foresay.arrays import Int32s, as_ints, as_tokens
from foresay.draft import Draft
from foresay.errors import InputError

__all__ = [
    "FillsUp",
    "Hidden",
    "InPlaceTarget",
    "KeepsTogether",
    "LoadedTarget",
    "Outputs",
    "RunsAhead",
    "SequenceInput",
    "Target",
    "TextKv",
    "check_target",
]

Hidden: TypeAlias = bool | tuple[int, ...]
"""Which hidden states of each row: none, the last, or what goes into these decoder layers, side by
side."""


class TextKv(Protocol):
    """The keys and values of one text. One thread at a time may use it.

    Mutates: itself, by its methods and by `Target.forward`. Valid until: for ever. Raises:
    InputError for lengths and rows that do not exist. GIL: released during long work.
    """

    @property
    def length(self) -> int:
        """Tokens that are stored."""
        ...

    @property
    def capacity(self) -> int:
        """Tokens that it has memory for."""
        ...

    def keep(self, path: Int32s, /) -> None:
        """Store these rows of the last step, in this order; its other rows are forgotten."""
        ...

    def cut(self, length: int, /) -> None:
        """Keep the first tokens only."""
        ...

    def copy_from(self, other: Any, length: int, /) -> None:
        """Copy the first tokens of another text of this target, while nothing is stored. A target
        with pages may share them."""
        ...

    def check_integrity(self) -> None:
        """Raise RuntimeError that names the first violation, if there is one."""
        ...


class Target(Protocol):
    """A loaded model. Threads may share one if each has its own texts.

    vocabulary  columns of the logits
    context     tokens that a text may have
    exact       whether it was found batch-invariant on this machine: a row's logits have the same
                bits whatever else is in the step; None: not tested
    depth       decoder layers whose input `forward` can give as hidden states; 0: it gives the last
                hidden states only
    threads     that the core uses for it
    identity    a text that names its weights and all that its steps' times depend on; None: unknown

    Mutates: only the texts given to `forward`, and the weights by `replace_weights`. Valid until:
    for ever. Raises: see the methods. GIL: released during long work.
    """

    vocabulary: int
    context: int
    exact: bool | None
    depth: int
    threads: int
    identity: str | None

    @property
    def version(self) -> int:
        """How often the weights were replaced; a text's keys and values belong to one version."""
        ...

    @property
    def bytes_per_token(self) -> int:
        """Bytes of one token's keys and values."""
        ...

    def open(self) -> TextKv:
        """Keys and values for a new text, of which nothing is stored."""
        ...

    def open_filled(self, tokens: int) -> TextKv:
        """As if `tokens` of a text were stored; what is stored is made up, for timing."""
        ...

    def forward(self, parts: Sequence[SequenceInput], *, hidden: Hidden = False) -> Outputs:
        """One pass over the rows of all parts: their logits, and hidden states if asked.

        Mutates: the texts have new rows that `SequenceInput.keep` stores or the next step forgets.
        Valid until: for ever. Raises: InputError for no parts, a text that is there twice, or a
        part made before its text's last step, or layers from `depth` on. GIL: released.
        """
        ...

    def weight_shapes(self) -> dict[str, tuple[int, ...]]:
        """The names that `replace_weights` takes, each with its shape."""
        ...

    def replace_weights(self, weights: Mapping[str, Tensor], *, copy: bool = True) -> None:
        """Replace the named parameters and buffers, and count the version up. A tied weight
        may be given by any of its names. Without `copy` tensors that need no packing are used as
        they are: do not write into them then. Not while a `forward` runs.

        Mutates: the weights. Valid until: replaced again; texts of the old version must not be
        used any more. Raises: InputError for an unknown name, a shape that differs, what is no
        dense tensor of floating-point values, a bias without its weight, or two values for one
        tensor; nothing has changed then. GIL: released during long work.
        """
        ...


class LoadedTarget(Target, Protocol):
    """A target that foresay has made of a model.

    dtype   of keys, values and queries
    memory  bytes that it has for keys and values on its device; None: no bound of its own, as in
            the memory of the processors
    """

    dtype: torch.dtype
    memory: int | None


class InPlaceTarget(LoadedTarget, Protocol):
    """A target that reads somebody else's tensors in every step, and does not see when they
    change."""

    def weights_changed(self) -> None:
        """Count the version up: the weights may be others since the last step. Not while a
        `forward` runs.

        Mutates: the version. Valid until: for ever; texts of the old version must not be used any
        more.
        """
        ...


@runtime_checkable
class FillsUp(Protocol):
    """A target that fills up its steps to one of few sizes: behind each of them a step takes longer
    at once.

    row_sizes  the rows of these sizes, rising
    """

    row_sizes: Sequence[int]


@runtime_checkable
class KeepsTogether(Protocol):
    """A target that stores the rows of many texts in one call, which an engine then prefers to one
    `TextKv.keep` for each."""

    def keep_together(self, kvs: Sequence[Any], rows: Int32s, offsets: Int32s, /) -> None:
        """`kvs[i].keep(rows[offsets[i]:offsets[i + 1]])` for each i.

        Mutates: the texts. Valid until: for ever. Raises: as `TextKv.keep`. GIL: released during
        long work.
        """
        ...


@runtime_checkable
class RunsAhead(Protocol):
    """A target on a device of its own, to which a step can be given before the one before has been
    read: the tokens that it has chosen are on the device."""

    def forward_next(self, parts: Sequence[SequenceInput], tokens: Tensor, /) -> Outputs:
        """`Target.forward` of texts that decode, without drafts: each with the one token of
        `tokens`, int64[B] on the device, in place of the part's own. One below 0, which a row
        without a token has, counts as 0.

        All else is as of `Target.forward`.
        """
        ...


def check_target(target: object) -> None:
    """Refuse what is no target.

    Raises: InputError.
    """
    if not callable(getattr(target, "forward", None)) or not hasattr(target, "bytes_per_token"):
        raise InputError(
            f"the target is of type {type(target).__name__}; expected a Target, such as "
            "foresay.models.load.load returns"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Outputs:
    """What a step gives for each row that needs logits: part by part, after its last token, then
    after each node of its draft; behind these, again part by part, the rows of prefill tokens.

    logits  [R, vocabulary]
    hidden  [R, width] | None   the last hidden states, which the logits were computed from; or
                                those of the layers that were asked for, side by side
    """

    logits: Tensor
    hidden: Tensor | None = None

    @property
    def on_gpu(self) -> bool:
        """Whether `forward` has returned before they were computed."""
        return self.logits.device.type == "cuda"

    def wait(self) -> Outputs:
        """The same when they are computed: for who times a step and reads nothing of it.

        GIL: released.
        """
        if self.on_gpu:
            torch.cuda.synchronize(self.logits.device)
        return self


@dataclass(frozen=True, slots=True, eq=False)
class SequenceInput:
    """One text's share of a step. `of` makes one.

    kv              what is stored of the text
    tokens          int32[m], m >= 1: the text that follows, not stored yet
    draft           the draft after these tokens
    needs_logits    whether logits are needed, after the last token and after each drafted node
    prefill         how many of the tokens, the first ones, are prefill: computed many at once,
                    which takes less time. A prompt's last token is decoded, as everything after it:
                    to be batch-invariant, what is prefill must not depend on other texts
    prefill_logits  how many of the prefill tokens, the last ones, need logits after them too
    stored          tokens of the text that were stored when the part was made

    Valid until: the kv's next step.
    """

    kv: TextKv
    tokens: Int32s
    draft: Draft
    needs_logits: bool
    prefill: int
    prefill_logits: int
    stored: int

    @classmethod
    def of(
        cls,
        target: Target,
        kv: TextKv,
        tokens: Int32s,
        draft: Draft | None = None,
        *,
        needs_logits: bool = True,
        prefill: int = 0,
        prefill_logits: int = 0,
    ) -> SequenceInput:
        """A text's share of a step of `target`.

        Valid until: the kv's next step. Raises: InputError for no tokens, tokens outside the
        vocabulary, a text or draft beyond the context, or more prefill than tokens.
        """
        draft, tokens = Draft.empty() if draft is None else draft, as_tokens(tokens)
        if not len(tokens):
            raise InputError("a part of a step has no tokens; expected at least 1")
        last = target.vocabulary - 1
        for given in (tokens, draft.tokens):
            if len(given) and not 0 <= given.min() <= given.max() <= last:
                raise InputError(
                    f"token {given[(given < 0) | (given > last)][0]} is not in the vocabulary; "
                    f"expected 0 to {last}"
                )
        text, context = kv.length + len(tokens), target.context
        if text > context:
            raise InputError(f"the text has {text} tokens; expected at most {context}, the context")
        if text + len(draft) > context and text + max(draft.depths) > context:
            raise InputError(
                f"the draft reaches {text + max(draft.depths)} tokens; expected at most {context}"
            )
        if type(prefill) is not int or not 0 <= prefill <= len(tokens):
            raise InputError(f"prefill is {prefill!r}; expected 0 to the part's {len(tokens)}")
        if type(prefill_logits) is not int or not 0 <= prefill_logits <= prefill:
            raise InputError(
                f"prefill_logits is {prefill_logits!r}; expected 0 to the {prefill} prefill tokens"
            )
        return cls(kv, tokens, draft, needs_logits, prefill, prefill_logits, kv.length)

    def keep(self, path: Int32s | Sequence[int] = ()) -> None:
        """Store the tokens and the accepted nodes, after `forward`; rejected nodes are dropped.

        Raises: InputError for a path that does not lead from the draft's root from parent to child,
        or a text that has changed since the part was made.
        """
        nodes = as_ints(path, "path")
        if self.kv.length != self.stored:
            raise InputError(
                f"the text had {self.stored} tokens stored when the part was made, and has "
                f"{self.kv.length} now; expected no change before keep"
            )
        if len(nodes) and not _is_path(nodes, self.draft.parents):
            raise InputError(
                f"the path is {nodes.tolist()}; expected nodes of the draft's {len(self.draft)}, "
                "from its root from parent to child"
            )
        tokens = len(self.tokens)
        rows = np.empty(tokens + len(nodes), np.int32)
        rows[:tokens] = np.arange(tokens)
        rows[tokens:] = nodes + tokens
        self.kv.keep(rows)


def _is_path(nodes: Int32s, parents: Int32s) -> bool:
    if not (nodes.min() >= 0 and nodes.max() < len(parents)):
        return False
    return parents[nodes[0]] == -1 and np.array_equal(parents[nodes[1:]], nodes[:-1])
