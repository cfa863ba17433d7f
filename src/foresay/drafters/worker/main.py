"""The process behind a `WorkerDrafter`: one drafter, which does what it is told over a socket.

It ends when the other side of the socket is closed: also in the middle of its work, and also if
that process was killed. What it is told of a request that its drafter refuses is dropped: the
request gets empty drafts.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import threading
from contextlib import suppress
from typing import Any

from foresay.abilities import abilities_of
from foresay.draft import Draft
from foresay.drafter import Drafter, SeededParams
from foresay.drafters.lineup import Room, check_name, make_drafter, parts_of
from foresay.drafters.worker.frames import MAX_DATA, Frame, packed, receive, send
from foresay.drafters.worker.values import MODEL_SETTINGS
from foresay.errors import ForesayError, InputError, WorkerError
from foresay.sampling.params import SamplingParams
from foresay.verdict import Verdict, Wants

__all__ = ["main"]


class _Told:
    """What a worker knows of the target."""

    def __init__(self, vocabulary: int) -> None:
        self.vocabulary = vocabulary


class _Worker:
    """The drafter and its requests, by number."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._states: dict[int, Any] = {}  # None: its drafter has refused it
        self._drafter: Drafter[Any]

    def make(self, frame: Frame) -> None:
        """The first message: make the drafter. Raises: as `make_drafter`, and `fit`."""
        settings = dict(frame.values["settings"])
        if settings.get("tokenizer_hash") is not None:
            settings["tokenizer_hash"] = bytes.fromhex(settings["tokenizer_hash"])
        if settings.get("room") is not None:
            settings["room"] = Room(**settings["room"])
        name = frame.values["name"]
        if isinstance(name, str) and "self" in parts_of(name):
            raise InputError(
                f"the drafter {name!r} is the target's own layers; expected one that can run in a "
                "process of its own"
            )
        drafter = _made(name, settings)
        if drafter.wants != Wants():
            raise InputError(
                f"the drafter {name!r} wants {drafter.wants} of each verdict; expected one that "
                "drafts from the text alone, such as model:NAME"
            )
        self._drafter, self._able = drafter, abilities_of(drafter)
        if frame.values["fit"] is not None:
            self._fit(frame.values["fit"])

    def _fit(self, told: dict[str, Any]) -> None:
        if self._able.fits is not None:
            given = told["tokenizer_hash"]
            fit: Any = self._able.fits.fit
            fit(_Told(told["vocabulary"]), None if given is None else bytes.fromhex(given))

    def do(self, frame: Frame) -> None:
        """One message. Raises: WorkerError for what is no message; what the drafter raises."""
        if frame.kind == "propose":
            self._propose(frame)
        elif frame.kind == "fit":
            try:
                self._fit(frame.values)
                send(self._sock, packed("ready"), None)
            except ForesayError as error:
                send(self._sock, _refusal(error), None)
        elif frame.kind == "begin":
            self._begin(frame)
        elif frame.kind == "observe":
            self._observe(frame)
        elif frame.kind == "finish":
            number = frame.whole("number")
            state = self._state(number)
            del self._states[number]
            if state is not None:
                self._drafter.finish(state)
        elif frame.kind in ("add_to_group", "drop_group", "drop_tenant", "new_version"):
            self._tell(frame)
        else:
            raise WorkerError(f"a message is of the kind {frame.kind!r}; expected one of propose …")

    def _state(self, number: int) -> Any:
        if number not in self._states:
            raise WorkerError(f"there is no request {number}; expected one that was begun")
        return self._states[number]

    def _begin(self, frame: Frame) -> None:
        number, (prompt, committed) = frame.whole("number"), frame.expect(2)
        if number in self._states:
            raise WorkerError(f"request {number} was begun before; expected a new number")
        values, self._states[number] = frame.values, None
        sampling = None
        if values["params"] is not None:
            params = dict(values["params"])
            params["logit_bias"] = {int(token): bias for token, bias in params["logit_bias"]}
            sampling = SeededParams(SamplingParams(**params), frame.whole("seed", high=2**64 - 1))
        group, tenant = values["group"], values["tenant"]
        try:
            state = self._drafter.begin(prompt, group=group, tenant=tenant, sampling=sampling)
        except InputError:
            return
        self._states[number] = state
        if len(committed):
            self._commit(number, Verdict([], committed))

    def _observe(self, frame: Frame) -> None:
        numbers = frame.wholes("numbers")
        arrays = frame.expect(2 * len(numbers))
        for number, path, tokens in zip(numbers, arrays[::2], arrays[1::2], strict=True):
            if self._state(number) is not None:
                self._commit(number, Verdict(path, tokens))

    def _commit(self, number: int, verdict: Verdict) -> None:
        try:
            self._drafter.observe([self._states[number]], [verdict])
        except InputError:
            self._drafter.finish(self._states[number])
            self._states[number] = None

    def _propose(self, frame: Frame) -> None:
        numbers, budgets = frame.wholes("numbers"), frame.wholes("budgets")
        states = [self._state(number) for number in numbers]
        asked = [at for at, state in enumerate(states) if state is not None]
        found = self._drafter.propose([states[at] for at in asked], [budgets[at] for at in asked])
        drafts = [Draft.empty()] * len(states)
        for at, draft in zip(asked, found, strict=True):
            drafts[at] = draft
        size = sum(draft.probs.nbytes for draft in drafts if draft.probs is not None)
        arrays: list[Any] = []
        parts = []
        for draft in drafts:
            # Sampled tokens may be given as chosen ones: fewer are accepted, the rule stays exact.
            probs = draft.probs if size < MAX_DATA // 2 else None
            parts.append([draft.scores is not None, probs is not None])
            arrays += [draft.tokens, draft.parents]
            arrays += [given for given in (draft.scores, probs) if given is not None]
        held = 0 if self._able.memory is None else self._able.memory.bytes_used()
        step = frame.whole("step")
        send(self._sock, packed("drafts", arrays, step=step, parts=parts, held=held), None)

    def _tell(self, frame: Frame) -> None:
        values, able = frame.values, self._able
        try:
            if frame.kind == "add_to_group" and able.groups is not None:
                prompt, answer = frame.expect(2)
                able.groups.add_to_group(values["group"], prompt, answer, tenant=values["tenant"])
            elif frame.kind == "drop_group" and able.groups is not None:
                able.groups.drop_group(values["group"], values["tenant"])
            elif frame.kind == "drop_tenant" and able.tenants is not None:
                able.tenants.drop_tenant(values["tenant"])
            elif frame.kind == "new_version" and able.versions is not None:
                able.versions.new_version(frame.whole("keep"), tenant=values["tenant"])
        except InputError:
            pass  # such as a group that an earlier process knew


def _made(name: str, settings: dict[str, Any]) -> Drafter[Any]:
    options = {each: settings.pop(each) for each in MODEL_SETTINGS if each in settings}
    if not options:
        return make_drafter(name, **settings)
    check_name(name)
    if not name.startswith("model:") or len(parts_of(name)) > 1 or settings.get("corpus"):
        raise InputError(
            f"{' and '.join(options)} of the drafter {name!r} cannot be set; expected model:NAME, "
            "and no corpus"
        )
    from foresay.drafters.model import Dynamic, ModelDrafter

    if isinstance(options.get("shape"), dict):
        options["shape"] = Dynamic(**options["shape"])
    return ModelDrafter(name.removeprefix("model:"), **options)


def _refusal(error: Exception) -> bytes:
    return packed("error", name=type(error).__name__, sentence=str(error)[:4000])


def _ends_with(sock: socket.socket) -> None:
    """End this process once the other side is closed, whatever it does then."""
    poll = select.poll()
    poll.register(sock.fileno(), select.POLLRDHUP)
    poll.poll()
    os._exit(0)


def main(descriptor: int) -> None:
    """Serve the socket of that number until it is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    sock = socket.socket(fileno=descriptor)
    threading.Thread(target=_ends_with, args=(sock,), daemon=True).start()
    worker = _Worker(sock)
    try:
        worker.make(receive(sock, None))
        send(sock, packed("ready"), None)
        while True:
            worker.do(receive(sock, None))
    except Exception as error:
        with suppress(WorkerError):  # if nobody is there
            send(sock, _refusal(error), 1.0)
        os._exit(1)  # the other side says what was wrong
