"""A frozen corpus alone: drafts from files made by `foresay corpus build`."""

from __future__ import annotations

from os import PathLike

from foresay import _core
from foresay.drafters._text import TextDrafter
from foresay.errors import InputError

__all__ = ["CorpusDrafter"]


class CorpusDrafter(TextDrafter):
    """Drafts from one or more corpus files and nothing else; groups and tenants change nothing.

    Mutates: only through its methods. Valid until: for ever; the files stay mapped. Raises:
    InputError without a file, CorpusError for a file that is missing, damaged or foreign,
    TokenizerMismatch for another tokenizer than `tokenizer_hash`. GIL: released in long calls.
    """

    def __init__(
        self,
        *corpora: str | PathLike[str],
        tokenizer_hash: bytes | None = None,
        chain: bool = False,
        max_tokens: int = 1 << 26,
    ) -> None:
        if not corpora:
            raise InputError("0 corpus files were given; at least 1 is needed")
        core = _core.TextDrafter(
            [_core.FrozenIndex.open(str(path), tokenizer_hash) for path in corpora],
            own=False,
            history=False,
            history_bytes=0,
            group_bytes=0,
            max_tenants=1,
            max_tokens=max_tokens,
            chain=chain,
            sam=None,
        )
        super().__init__(core, scored=True)
