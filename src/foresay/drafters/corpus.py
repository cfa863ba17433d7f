"""A frozen corpus alone: drafts from files made by `foresay corpus build`."""

from __future__ import annotations

from os import PathLike
from typing import TYPE_CHECKING

from foresay import _core
from foresay.arrays import IntsLike, check_flag
from foresay.corpus import open_corpus
from foresay.drafter import SeededParams
from foresay.drafters.text import TextDrafter, default_threads
from foresay.errors import InputError

if TYPE_CHECKING:
    from foresay._core import Request

__all__ = ["CorpusDrafter"]


class CorpusDrafter(TextDrafter):
    """Drafts from one or more corpus files and nothing else; groups and tenants change nothing.
    With `verify` every byte of the files is checked first.

    Valid until: for ever; the files stay mapped. Raises: InputError without a file, CorpusError for
    a file that is missing, damaged or foreign, TokenizerMismatch for another tokenizer than
    `tokenizer_hash`.
    """

    def __init__(
        self,
        *corpora: str | PathLike[str],
        tokenizer_hash: bytes | None = None,
        verify: bool = False,
        chain: bool = False,
        max_tokens: int = 1 << 26,
    ) -> None:
        if not corpora:
            raise InputError("0 corpus files were given; expected at least 1")
        check_flag(chain, "chain")
        if type(max_tokens) is not int or not 1 <= max_tokens <= 1 << 30:
            raise InputError(
                f"max_tokens is {max_tokens!r}; expected a whole number from 1 to {1 << 30}"
            )
        core = _core.TextDrafter(
            [open_corpus(path, tokenizer_hash=tokenizer_hash, verify=verify) for path in corpora],
            own=False,
            history=False,
            history_bytes=0,
            tenant_bytes=0,
            group_bytes=0,
            own_bytes=0,
            max_tenants=1,
            max_tokens=max_tokens,
            threads=default_threads(),
            chain=chain,
            sam=None,
        )
        super().__init__(core, scored=True)

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
