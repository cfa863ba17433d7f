"""Token Recycling: drafts from what the target itself found likely before.

Each step the target computes its likeliest next tokens after every verified node, accepted or not.
They are kept by the tokens before them: by the last one, as the paper does, and by the last two and
more, with their probabilities. A draft tree grows from what is known after the present context and
after each node, best first. Where a request samples, the noise of each token is known before the
target speaks: so the tree holds the tokens that are likeliest to be *drawn*.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

import numpy as np

from foresay import _core
from foresay._core import RecycleRequest
from foresay.arrays import Int32s, IntsLike, as_items, check_flag, check_hash, check_whole
from foresay.draft import DraftBatch
from foresay.drafter import (
    SeededParams,
    Source,
    as_budgets,
    as_prompt,
    check_lengths,
    check_name,
    check_native,
    known_noise,
)
from foresay.drafters.recycle.table_file import Tokens, TopKTable, read_table, write_table
from foresay.errors import InputError, TokenizerMismatch
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["RecycleDrafter"]


class RecycleDrafter:
    """Drafts from the target's likeliest tokens after the same context. Threads may share one.

    k            likeliest tokens that are kept after each context
    context      tokens of the longest context; 1 is the paper's
    memory       bytes of a tenant's contexts of two and more tokens; single tokens take 5 k bytes
                 each: 1.92 MiB for a vocabulary of 50,000 and k = 8
    max_tenants  idle tenants beyond this many are forgotten, least recently used first; tenants
                 share nothing
    tree         "grown": by chance, best first; "static": one shape, by rank alone, the paper's way
    chain        draft without branches: from the text on the best candidate, and so on
    warm         a file of `save`: requests without a tenant begin with what an earlier run knew. It
                 names the vocabulary and tokenizer of the target that taught it, and `fit` refuses
                 another

    Raises: InputError when constructed.
    """

    def __init__(
        self,
        *,
        k: int = 8,
        context: int = 4,
        memory: int = 32 << 20,
        max_tenants: int = 64,
        tree: Literal["grown", "static"] = "grown",
        chain: bool = False,
        warm: str | PathLike[str] | None = None,
    ) -> None:
        for name, value, least, most in (
            ("k", k, 1, 32),
            ("context", context, 1, 8),
            ("memory", memory, 0, 1 << 40),
            ("max_tenants", max_tenants, 1, 1 << 20),
        ):
            check_whole(value, name, least, most)
        if tree not in ("grown", "static"):
            raise InputError(f"tree is {tree!r}; expected 'grown' or 'static'")
        check_flag(chain, "chain")
        self.wants = Wants(topk=k)
        self._core = _core.RecycleDrafter(
            k=k,
            orders=context,
            bytes=memory,
            max_tenants=max_tenants,
            fixed=tree == "static",
            chain=chain,
        )
        self._of: Tokens | None = None  # the target that taught it, if it was told of one
        self._tokens = 0  # of all requests' texts
        self._warm = None if warm is None else Path(warm)
        if self._warm is not None:
            table = read_table(self._warm, k)
            try:
                self._core.add_table(None, table.keys, table.tokens, table.levels)
            except InputError as error:
                raise InputError(f"{self._warm} is no file of save: {error}") from error
            self._of = table.of

    needs_target = False

    def fit(self, target: Any, tokenizer_hash: bytes | None = None) -> None:
        """Take the target's vocabulary and tokenizer, which `save` writes down; refuse others than
        those that the drafter or its warm file began with. A file that names none is refused, too;
        where the target's tokenizer is not known, the size of the vocabulary decides.

        Raises: TokenizerMismatch, InputError.
        """
        check_hash(tokenizer_hash, "tokenizer_hash")
        given, own = Tokens(int(target.vocabulary), tokenizer_hash), self._of
        what = "the drafter" if self._warm is None else str(self._warm)
        if own is None and self._warm is not None:
            raise TokenizerMismatch(
                f"{what} names no vocabulary, and the target has {given}; expected a file saved by "
                "a drafter that an engine used"
            )
        if own is not None:
            unnamed = own.tokenizer is None and self._warm is None
            unknown = given.tokenizer is None or unnamed
            if own.vocabulary != given.vocabulary or not (
                unknown or own.tokenizer == given.tokenizer
            ):
                raise TokenizerMismatch(
                    f"{what} was taught with {own}, and the target has {given}; expected the same"
                )
            given = given._replace(tokenizer=given.tokenizer or own.tokenizer)
        self._of = given

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> RecycleRequest:
        """Start a request. Groups are ignored: all requests of a tenant share what is known.

        Raises: TokenTypeError, InputError.
        """
        check_name(group, "group")
        check_name(tenant, "tenant")
        seed, temperature = known_noise(sampling)
        tokens = as_prompt(prompt)
        state = self._core.begin(tokens, tenant, seed, temperature)
        self._tokens += len(tokens)
        return state

    def propose(
        self, states: Sequence[RecycleRequest], budgets: Sequence[int], /, *, least: float = 0.0
    ) -> DraftBatch:
        """Draft for all states at once. Nodes with a chance below `least` are left out.

        Raises: StateError, InputError.
        """
        listed = as_items(states, "states", "a list of states")
        checked = np.array(as_budgets(budgets, len(listed)), np.int32)
        tokens, parents, offsets, scores = self._core.propose(listed, checked, least)
        return DraftBatch._trusted(tokens, parents, offsets, scores)

    def adopt(self, states: Sequence[RecycleRequest], drafts: DraftBatch, /) -> None:
        """Take these for the last drafts, where others drafted too: the next verdicts are on them,
        and all of their nodes are learned from.

        Raises: StateError, InputError.
        """
        self._core.adopt(
            as_items(states, "states", "a list of states"),
            drafts.tokens,
            drafts.parents,
            drafts.offsets,
        )

    def observe(self, states: Sequence[RecycleRequest], verdicts: Sequence[Verdict], /) -> None:
        """Append the committed tokens, and learn what the target found likely after each node.

        Raises: StateError, InputError; nothing has changed then.
        """
        batch = VerdictBatch.of(verdicts)
        check_lengths(len(states), len(batch), "verdicts")
        k = self.wants.topk
        likeliest, logprobs = np.empty((0, k), np.int32), np.empty((0, k), np.float32)
        offsets = np.empty(0, np.int32)
        if batch.topk is not None and batch.topk_offsets is not None:
            if batch.topk.k < k:
                raise InputError(f"verdicts have the {batch.topk.k} likeliest tokens; expected {k}")
            seen = batch.topk if batch.topk.k == k else batch.topk.first(k)
            likeliest = np.ascontiguousarray(seen.tokens)
            logprobs = np.ascontiguousarray(seen.logprobs)
            offsets = batch.topk_offsets
        self._core.observe(
            as_items(states, "states", "a list of states"),
            batch.tokens,
            batch.offsets,
            likeliest,
            logprobs,
            offsets,
        )
        self._tokens += len(batch.tokens)

    def finish(self, state: RecycleRequest, /) -> None:
        """End a request; what was learned stays.

        Raises: StateError.
        """
        size = len(self.text(state))
        self._core.finish(state)
        self._tokens -= size

    def new_version(self, keep: int, *, tenant: str | None = None) -> None:
        """The target's weights were replaced: with `keep` 0, what a tenant's requests taught is
        forgotten. A new version resembles the one before it, so otherwise it stays.

        Raises: InputError.
        """
        check_whole(keep, "keep", 0)
        if keep == 0:
            self._core.forget(tenant)

    def drop_tenant(self, tenant: str) -> None:
        """Forget all that a tenant's requests taught."""
        self._core.forget(tenant)

    def sources(self, state: RecycleRequest, /) -> list[tuple[Source, ...]]:
        """`Source.RECYCLED`, for each node of the state's last draft.

        Raises: StateError.
        """
        check_native(state, RecycleRequest)
        return [(Source.RECYCLED,)] * self._core.drafted(state)

    def text(self, state: RecycleRequest, /) -> Int32s:
        """Prompt and observed tokens: a copy.

        Raises: StateError.
        """
        check_native(state, RecycleRequest)
        text: Int32s = self._core.text(state)
        return text

    def bytes_used(self) -> int:
        """Bytes of all that was learned and of the running requests' texts."""
        return self._core.bytes

    def tokens_held(self) -> int:
        """Tokens of all running requests' texts."""
        return self._tokens

    def bytes_of(self, tenant: str | None) -> int:
        """Bytes that are held for one tenant; 0 for one that is not known."""
        return self._core.bytes_of(tenant)

    def save(self, path: str | PathLike[str], *, tenant: str | None = None) -> None:
        """Write what a tenant's requests taught, for a warm start: `RecycleDrafter(warm=path)`. The
        file is complete or not there.

        Raises: OSError.
        """
        write_table(Path(path), TopKTable(*self._core.table(tenant), self._of), self.wants.topk)
