"""The default drafter: the text so far, its group, the history of finished requests, corpora.

For every source a suffix automaton knows which tokens followed the present context and every
shorter one, how often, and which came last. This evidence is weighed by how often it was right so
far, and the most probable continuations become one draft tree.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from os import PathLike
from typing import Any, Literal

from foresay import _core
from foresay._core import Request
from foresay.arrays import (
    Int32s,
    IntsLike,
    as_items,
    as_tokens,
    check_flag,
    check_hash,
    check_whole,
)
from foresay.corpus import open_corpus
from foresay.draft import DraftBatch
from foresay.drafter import SeededParams, Source, as_prompt, check_name, check_native
from foresay.errors import InputError
from foresay.machine import usable_processors
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["CorpusDrafter", "SamRule", "SuffixDrafter", "default_threads"]

Path = str | PathLike[str]
_BITS = (Source.OWN, Source.GROUP, Source.HISTORY, Source.CORPUS)
"""What the bits of the core's `kinds` mean."""


def default_threads(processes: int = 1) -> int:
    """One thread per processor that this process may use, at most 4; `processes` share them."""
    return min(4, max(1, usable_processors() // processes))


@dataclass(frozen=True, slots=True, kw_only=True)
class SamRule:
    """SAM-Decoding's settings by their names: the longest match alone decides.

    l_threshold    nothing is drafted below this match length
    l_bias         a corpus is used only if it matches more than this many tokens longer
    occurrence     which earlier place of the match is continued: "first" (min_endpos) or "latest",
                   which takes time in proportion to the text in every step
    topk_succ      0: a chain; else a tree of the most probable paths by occurrence counts, with at
                   most this many successors per node
    length_factor  0: as long as the budget; else 1 + floor(length_factor * match length) tokens
    max_predicts   never more than this many tokens
    to_anc         shorten a match until as many tokens as are wanted follow its occurrence, if
                   possible

    Raises: InputError when constructed.
    """

    l_threshold: int = 5
    l_bias: int = 5
    occurrence: Literal["first", "latest"] = "first"
    topk_succ: int = 0
    length_factor: float = 0.0
    max_predicts: int = 60
    to_anc: bool = False

    def __post_init__(self) -> None:
        for name, value in (
            ("l_threshold", self.l_threshold),
            ("l_bias", self.l_bias),
            ("topk_succ", self.topk_succ),
            ("max_predicts", self.max_predicts),
        ):
            check_whole(value, name, 0, 4096)
        factor = self.length_factor
        if type(factor) not in (int, float) or not 0 <= factor <= 4096:
            raise InputError(f"length_factor is {factor!r}; expected a number from 0 to 4096")
        if self.occurrence not in ("first", "latest"):
            raise InputError(f"occurrence is {self.occurrence!r}; expected 'first' or 'latest'")

    def _native(self) -> _core.SamRule:
        given = asdict(self)
        return _core.SamRule(latest=given.pop("occurrence") == "latest", **given)


class SuffixDrafter:
    """Drafts from the request's own text, its group, finished requests, and corpora. Threads may
    share one; each call locks it.

    A call that raises has changed nothing. Only a MemoryError in the middle of a shared change
    cannot be undone: after it every further call raises StateError.

    own            whether a request drafts from its own text
    history        whether finished requests' outputs, with the up to 32 tokens of the prompt that
                   lead into them, are drafted from, by requests of the same tenant only
    history_bytes  limit of one tenant's history; the oldest part is evicted first
    tenant_bytes   limit of all tenants together; beyond it idle ones lose their history
    group_bytes    beyond this, idle groups are dropped when a request begins or finishes
    own_bytes      beyond this, the members of groups with the longest texts draft from their group
                   alone, which has their answer and the prompt of its first member, too; looked at
                   every 16 observed steps
    max_tenants    idle tenants beyond this many lose their history, least recently used first
    max_tokens     the most tokens one request may have
    threads        at most this many draft for a batch of 64 requests or more (default: up to 4)
    corpus         a corpus file made by `foresay corpus build`, or several
    tokenizer_hash refuses a corpus of another tokenizer (see `foresay.corpus.tokenizer_hash_of`)
    verify         check every byte of the corpus first, about a second per 6M tokens
    chain          drafts without branches
    rule           "blend" (the default: all evidence, calibrated), "sam", or a SamRule

    Raises: InputError, CorpusError and TokenizerMismatch when constructed.
    """

    wants = Wants()
    looks_up = True

    def __init__(
        self,
        *,
        own: bool = True,
        history: bool = True,
        history_bytes: int = 256 << 20,
        tenant_bytes: int = 4 << 30,
        group_bytes: int = 1 << 30,
        own_bytes: int = 1 << 50,
        max_tenants: int = 256,
        max_tokens: int = 1 << 26,
        threads: int | None = None,
        corpus: Path | Sequence[Path] | None = None,
        tokenizer_hash: bytes | None = None,
        verify: bool = False,
        chain: bool = False,
        rule: Literal["blend", "sam"] | SamRule = "blend",
    ) -> None:
        used = default_threads() if threads is None else threads
        for name, value, least, most in (
            ("history_bytes", history_bytes, 0, 1 << 50),
            ("tenant_bytes", tenant_bytes, 0, 1 << 50),
            ("group_bytes", group_bytes, 0, 1 << 50),
            ("own_bytes", own_bytes, 0, 1 << 50),
            ("max_tenants", max_tenants, 1, 1 << 20),
            ("max_tokens", max_tokens, 1, 1 << 30),
            ("threads", used, 1, 256),
        ):
            check_whole(value, name, least, most)
        for name, flag in (
            ("own", own),
            ("history", history),
            ("chain", chain),
            ("verify", verify),
        ):
            check_flag(flag, name)
        check_hash(tokenizer_hash, "tokenizer_hash")
        if not isinstance(rule, SamRule) and not (
            isinstance(rule, str) and rule in ("blend", "sam")
        ):
            raise InputError(f"rule is {rule!r}; expected 'blend', 'sam', or a SamRule")
        given = [] if corpus is None else corpus
        given = [given] if isinstance(given, (str, PathLike)) else given
        paths = as_items(given, "corpus", "a path, or a list of them")
        sam = SamRule() if rule == "sam" else None if isinstance(rule, str) else rule
        self._core = _core.TextDrafter(
            [open_corpus(path, tokenizer_hash=tokenizer_hash, verify=verify) for path in paths],
            own=own,
            history=history,
            history_bytes=history_bytes,
            tenant_bytes=tenant_bytes,
            group_bytes=group_bytes,
            own_bytes=own_bytes,
            max_tenants=max_tenants,
            max_tokens=max_tokens,
            threads=used,
            chain=chain,
            sam=None if sam is None else sam._native(),
        )
        self._scored = sam is None

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> Request:
        """Start a request, at 0.1 to 0.3 microseconds per prompt token. Its sampling parameters are
        ignored.

        Mutates: the group's text, which gets a new sequence. Valid until: `finish`. Raises:
        TokenTypeError, InputError for an empty prompt, a token out of range, or more tokens than a
        request may have; nothing has changed then.
        """
        check_name(group, "group")
        check_name(tenant, "tenant")
        return self._core.begin(as_prompt(prompt), group, tenant)

    def propose(
        self, states: Sequence[Request], budgets: Sequence[int], /, *, least: float = 0.0
    ) -> DraftBatch:
        """Draft for all states at once: one call into the core. Nodes with a chance below `least`
        are left out, where there are scores, and cost no time.

        Raises: StateError, InputError for a budget outside 0 … 4096, a chance outside 0 … 1 or
        lengths that differ.
        """
        listed = as_items(states, "states", "a list of states")
        return self._drafts(self._core.propose, listed, budgets, least)

    def observe(self, states: Sequence[Request], verdicts: Sequence[Verdict], /) -> None:
        """Append the committed tokens to the states and their groups, and calibrate the scores.

        Mutates: the states, their groups, the calibration. Valid until: `finish`, and beyond it in
        groups and calibration. Raises: StateError, InputError for lengths that differ; nothing has
        changed then.
        """
        batch = VerdictBatch.of(verdicts)
        self._core.observe(
            as_items(states, "states", "a list of states"), batch.tokens, batch.offsets
        )

    def step(
        self,
        states: Sequence[Request],
        verdicts: Sequence[Verdict],
        budgets: Sequence[int],
        /,
        *,
        least: float = 0.0,
    ) -> DraftBatch:
        """`observe` and then `propose` for the same states: the same drafts, in less time.

        Mutates: the states, their groups, the calibration. Raises: StateError, InputError as both
        of them; nothing has changed then.
        """
        batch, listed = VerdictBatch.of(verdicts), as_items(states, "states", "a list of states")
        return self._drafts(self._core.step, listed, batch.tokens, batch.offsets, budgets, least)

    def _drafts(self, ask: Callable[..., Any], *given: Any) -> DraftBatch:
        try:
            tokens, parents, offsets, scores = ask(*given)
        except TypeError as error:
            budgets, least = given[-2:]
            raise InputError(
                f"budgets are {budgets!r} and least is {least!r}; expected a list of whole numbers "
                "and a chance"
            ) from error
        return DraftBatch._trusted(tokens, parents, offsets, scores if self._scored else None)

    def finish(self, state: Request, /) -> None:
        """End a request; with a history, its output enters the tenant's history.

        Mutates: the state, which is dead afterwards; the history, which may drop its oldest part.
        Raises: StateError if it was finished before.
        """
        check_native(state, Request)
        self._core.finish(state)

    def add_to_group(
        self, group: str, prompt: IntsLike, answer: IntsLike, *, tenant: str | None = None
    ) -> None:
        """Let a group draft from an earlier answer to its prompt, too. A group that is not there is
        made; without members it may be dropped to keep a limit.

        Raises: TokenTypeError, InputError for what is no name, an empty prompt, a token out of
        range or too many tokens; nothing has changed then.
        """
        check_name(group, "group", needed=True)
        check_name(tenant, "tenant")
        tokens = as_prompt(prompt), as_tokens(answer, "answer")
        self._core.add_to_group(group, tenant, *tokens)

    def new_version(self, keep: int, *, tenant: str | None = None) -> None:
        """The model that writes the texts was changed: of a tenant's history the texts of the last
        `keep` versions before the new one stay.

        Raises: InputError.
        """
        check_name(tenant, "tenant")
        check_whole(keep, "keep", 0, 2**31 - 1)
        self._core.new_version(tenant, keep)

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        """Forget a group's text at once; members that still run go on without it.

        Valid until: the next `begin` with this group starts it afresh. Raises: UnknownGroup,
        InputError for what is no name.
        """
        check_name(group, "group", needed=True)
        check_name(tenant, "tenant")
        self._core.drop_group(group, tenant)

    def drop_tenant(self, tenant: str) -> None:
        """Forget all shared text of a tenant at once: its history and its groups.

        Valid until: the tenant's next `begin`. Raises: InputError for what is no name; nothing for
        a tenant that has no text.
        """
        check_name(tenant, "tenant", needed=True)
        self._core.drop_tenant(tenant)

    def sources(self, state: Request, /) -> list[tuple[Source, ...]]:
        """The kinds of text that each node of the state's last draft came from, node by node.

        Raises: StateError.
        """
        check_native(state, Request)
        return [
            tuple(source for bit, source in enumerate(_BITS) if kinds >> bit & 1) or (Source.USUAL,)
            for kinds in self._core.kinds(state)
        ]

    def text(self, state: Request, /) -> Int32s:
        """Prompt and observed tokens, as the drafter holds them.

        A copy. Raises: StateError.
        """
        check_native(state, Request)
        text: Int32s = self._core.text(state)
        return text

    def bytes_used(self) -> int:
        """Bytes of all automata and texts held."""
        return self._core.bytes

    def bytes_of(self, tenant: str | None) -> int:
        """Bytes that are held for one tenant: its history, its groups, its running requests; 0 for
        one that is not known.

        Raises: InputError.
        """
        check_name(tenant, "tenant")
        return self._core.bytes_of(tenant)

    def tokens_held(self) -> int:
        """Tokens held, all copies counted."""
        return self._core.tokens

    def check_integrity(self) -> None:
        """Check every promise of every automaton, in time linear in the text.

        Raises: RuntimeError with the first broken promise.
        """
        self._core.check_integrity()


class CorpusDrafter(SuffixDrafter):
    """Drafts from one or more corpus files and nothing else; groups and tenants change nothing.
    With `verify` every byte of the files is checked first.

    Valid until: for ever; the files stay mapped. Raises: InputError without a file, CorpusError for
    a file that is missing, damaged or foreign, TokenizerMismatch for another tokenizer than
    `tokenizer_hash`.
    """

    def __init__(
        self,
        *corpora: Path,
        tokenizer_hash: bytes | None = None,
        verify: bool = False,
        chain: bool = False,
        max_tokens: int = 1 << 26,
    ) -> None:
        if not corpora:
            raise InputError("0 corpus files were given; expected at least 1")
        super().__init__(
            own=False,
            history=False,
            history_bytes=0,
            tenant_bytes=0,
            group_bytes=0,
            own_bytes=0,
            max_tenants=1,
            max_tokens=max_tokens,
            corpus=corpora,
            tokenizer_hash=tokenizer_hash,
            verify=verify,
            chain=chain,
        )

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> Request:
        """Start a request; its group, tenant and sampling parameters are ignored.

        Valid until: `finish`. Raises: TokenTypeError, InputError for an empty prompt, a token out
        of range, or more tokens than a request may have.
        """
        return super().begin(prompt)
