"""The default drafter: the text so far, its group, the history of finished requests, corpora.

For every source a suffix automaton knows which tokens followed the present context and every
shorter one, how often, and which came last. This evidence is weighed by how often it was right so
far, and the most probable continuations become one draft tree.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Literal

from foresay import _core
from foresay.arrays import as_items, check_flag, check_hash
from foresay.corpus import open_corpus
from foresay.drafters.text import TextDrafter, default_threads
from foresay.errors import InputError

__all__ = ["SamRule", "SuffixDrafter"]

Path = str | PathLike[str]


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
        for name in ("l_threshold", "l_bias", "topk_succ", "max_predicts"):
            value = getattr(self, name)
            if type(value) is not int or not 0 <= value <= 4096:
                raise InputError(f"{name} is {value!r}; expected a whole number from 0 to 4096")
        factor = self.length_factor
        if type(factor) not in (int, float) or not 0 <= factor <= 4096:
            raise InputError(f"length_factor is {factor!r}; expected a number from 0 to 4096")
        if self.occurrence not in ("first", "latest"):
            raise InputError(f"occurrence is {self.occurrence!r}; expected 'first' or 'latest'")

    def _native(self) -> _core.SamRule:
        return _core.SamRule(
            l_threshold=self.l_threshold,
            l_bias=self.l_bias,
            latest=self.occurrence == "latest",
            topk_succ=self.topk_succ,
            length_factor=self.length_factor,
            max_predicts=self.max_predicts,
            to_anc=self.to_anc,
        )


class SuffixDrafter(TextDrafter):
    """Drafts from the request's own text, its group, finished requests, and corpora.

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
        for name, value, least, most in (
            ("history_bytes", history_bytes, 0, 1 << 50),
            ("tenant_bytes", tenant_bytes, 0, 1 << 50),
            ("group_bytes", group_bytes, 0, 1 << 50),
            ("own_bytes", own_bytes, 0, 1 << 50),
            ("max_tenants", max_tenants, 1, 1 << 20),
            ("max_tokens", max_tokens, 1, 1 << 30),
            ("threads", default_threads() if threads is None else threads, 1, 256),
        ):
            if type(value) is not int or not least <= value <= most:
                raise InputError(
                    f"{name} is {value!r}; expected a whole number from {least} to {most}"
                )
        flags = (("own", own), ("history", history), ("chain", chain), ("verify", verify))
        for name, flag in flags:
            check_flag(flag, name)
        check_hash(tokenizer_hash, "tokenizer_hash")
        if not isinstance(rule, SamRule) and not (
            isinstance(rule, str) and rule in ("blend", "sam")
        ):
            raise InputError(f"rule is {rule!r}; expected 'blend', 'sam', or a SamRule")
        given = [] if corpus is None else corpus
        paths = (
            [given]
            if isinstance(given, (str, PathLike))
            else as_items(given, "corpus", "a path, or a list of them")
        )
        sam = SamRule() if rule == "sam" else None if isinstance(rule, str) else rule
        core = _core.TextDrafter(
            [open_corpus(path, tokenizer_hash=tokenizer_hash, verify=verify) for path in paths],
            own=own,
            history=history,
            history_bytes=history_bytes,
            tenant_bytes=tenant_bytes,
            group_bytes=group_bytes,
            own_bytes=own_bytes,
            max_tenants=max_tenants,
            max_tokens=max_tokens,
            threads=default_threads() if threads is None else threads,
            chain=chain,
            sam=None if sam is None else sam._native(),
        )
        super().__init__(core, scored=sam is None)
