"""Groups of requests that end by themselves: with their last member."""

from __future__ import annotations

from foresay.engine.request import Request

__all__ = ["Groups"]


class Groups:
    """Which members of each open group have not ended. A request whose group was not opened here
    (one that the caller named in `Engine.add`) is passed over: such a group is kept until
    `Engine.drop_group`.
    """

    def __init__(self) -> None:
        self._members: dict[tuple[str | None, str], set[Request]] = {}

    def __len__(self) -> int:
        return len(self._members)

    def open(self, tenant: str | None, name: str) -> None:
        """A group without members."""
        self._members[tenant, name] = set()

    def close(self, tenant: str | None, name: str) -> None:
        """Forget a group, if it is open."""
        self._members.pop((tenant, name), None)

    def members(self, tenant: str | None, name: str) -> tuple[Request, ...]:
        """The members that have not ended."""
        return tuple(self._members.get((tenant, name), ()))

    def join(self, request: Request) -> None:
        """A request is about to be added to the scheduler."""
        members = self._members.get((request.tenant, request.group or ""))
        if members is not None:
            members.add(request)

    def leave(self, request: Request) -> bool:
        """A request is about to end: whether its group is without members now. The group stays
        until `close`, so that after an interrupt this can be called again.
        """
        members = self._members.get((request.tenant, request.group or ""))
        if members is None:
            return False
        members.discard(request)
        return not members
