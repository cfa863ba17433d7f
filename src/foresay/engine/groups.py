"""Samples of one prompt: added together, drafted from each other, dropped with the last one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from uuid import uuid4

from foresay.arrays import IntsLike
from foresay.engine.request import Request
from foresay.engine.text import AnswerText
from foresay.errors import InputError
from foresay.sampling.params import SamplingParams

__all__ = ["Groups"]


class Groups:
    """The groups that an engine made itself; each ends with its last member, however that one ends.
    (A group that the caller named in `Engine.add` is kept until `Engine.drop_group`.)
    `add`, `cancel` and `drop` are methods of the engine.
    """

    def __init__(
        self,
        add: Callable[..., Request],
        cancel: Callable[..., None],
        drop: Callable[[str, str | None], None],
    ) -> None:
        self._add, self._cancel, self._drop = add, cancel, drop
        self._members: dict[tuple[str | None, str], set[Request]] = {}  # that have not ended

    def __len__(self) -> int:
        return len(self._members)

    def add(
        self,
        prompt: IntsLike,
        params: SamplingParams | None = None,
        *,
        seeds: Sequence[int],
        stops: Sequence[int] = (),
        tenant: str | None = None,
        text: Callable[[], AnswerText] | None = None,
        prompt_logprobs: int | None = None,
        together: bool = False,
    ) -> list[Request]:
        """A new request for each of the seeds, all of them or none: with several, they are a group.
        `text` makes the AnswerText of each; the rest is as in `Engine.add`.

        Raises: InputError without seeds, and as `Engine.add`; nothing has changed then.
        """
        if not len(seeds):
            raise InputError("there are no seeds; expected one for each sample, 1 or more")
        # Unlike any name of a user or of another engine: drafters may be shared.
        name = f"samples {uuid4()}" if len(seeds) > 1 else None
        asked: list[Request] = []
        try:
            if name is not None:
                self._members[tenant, name] = set()
            for seed in seeds:
                request = self._add(
                    prompt,
                    params,
                    seed=seed,
                    stops=stops,
                    group=name,
                    tenant=tenant,
                    text=None if text is None else text(),
                    prompt_logprobs=prompt_logprobs,
                    together=together,
                )
                asked.append(request)
        except BaseException:
            if name is not None:
                self._cancel(*self._members.get((tenant, name), ()))
                self._members.pop((tenant, name), None)
            raise
        return asked

    def join(self, request: Request) -> None:
        """A request is about to be added to the scheduler.

        Mutates: its group, if that is one of these.
        """
        members = self._members.get((request.tenant, request.group or ""))
        if members is not None:
            members.add(request)

    def leave(self, request: Request) -> None:
        """A request is about to end. After an interrupt this may be called again.

        Mutates: its group, if that is one of these; the drafter forgets it with the last member.
        """
        key = (request.tenant, request.group or "")
        members = self._members.get(key)
        if members is None:
            return
        members.discard(request)
        if not members:
            self._drop(key[1], request.tenant)
            self._members.pop(key, None)
