"""The suffix drafter as tests write it: texts as tokens, drafts as lists."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.brute import int32s
from foresay import Verdict
from foresay._core import Request
from foresay.drafters import SuffixDrafter


class Texts(SuffixDrafter):
    def start(self, *prompt: int, group: str | None = None, tenant: str | None = None) -> Request:
        return self.begin(int32s(prompt), group=group, tenant=tenant)

    def pair(self, *prompt: int, **names: Any) -> tuple[Request, Request]:
        """Two requests with the same prompt."""
        return self.start(*prompt, **names), self.start(*prompt, **names)

    def commit(self, state: Request, *tokens: int) -> None:
        self.observe([state], [Verdict([], list(tokens))])

    def drafted(self, state: Request, budget: int = 64) -> list[int]:
        """Tokens of a draft, best first."""
        tokens: list[int] = self.propose([state], [budget])[0].tokens.tolist()
        return tokens

    def write(self, prompt: Iterable[int], output: Iterable[int], **names: Any) -> None:
        """A whole request."""
        state = self.start(*prompt, **names)
        self.commit(state, *output)
        self.finish(state)

    def knows(self, tenant: str | None, token: int) -> bool:
        """Whether a new request of the tenant is offered the token behind 1, 2."""
        return token in self.drafted(self.start(1, 2, tenant=tenant))

    def text_bytes(self) -> int:
        """Bytes held without the tables that one tenant learns into, whatever it writes."""
        empty = SuffixDrafter()
        empty.finish(empty.begin(int32s([1])))
        return self.bytes_used() - empty.bytes_used()
