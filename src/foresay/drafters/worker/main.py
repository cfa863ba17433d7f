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
from types import SimpleNamespace
from typing import Any

import numpy as np

from foresay.abilities import abilities_of
from foresay.draft import Draft
from foresay.drafter import Drafter, SeededParams
from foresay.drafters.lineup import Room, check_drafter_name, make_drafter, parts_of, sees_target
from foresay.drafters.worker.frames import MAX_DATA, Frame, packed, receive, send
from foresay.drafters.worker.values import MODEL_SETTINGS
from foresay.errors import ForesayError, InputError, WorkerError
from foresay.sampling.params import SamplingParams
from foresay.verdict import Verdict, Wants

__all__ = ["main"]

_NONE = np.empty(0, np.float32)


class _Worker:
    """The drafter and its requests, by number. What it does raises WorkerError for what is no
    message, and what the drafter raises."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._states: dict[int, Any] = {}  # None: its drafter has refused it
        self._drafter: Drafter[Any]
        self._kinds = {
            "propose": self._propose,
            "fit": self._answer_fit,
            "begin": self._begin,
            "observe": self._observe,
            "finish": self._finish,
            **dict.fromkeys(
                ("add_to_group", "drop_group", "drop_tenant", "new_version"), self._tell
            ),
        }

    def make(self, frame: Frame) -> None:
        """The first message: make the drafter. Raises: as `make_drafter`, and `fit`."""
        settings = dict(frame.values["settings"])
        if settings.get("tokenizer_hash") is not None:
            settings["tokenizer_hash"] = bytes.fromhex(settings["tokenizer_hash"])
        if settings.get("room") is not None:
            settings["room"] = Room(**settings["room"])
        name = frame.values["name"]
        if needing := [part for part in parts_of(name) if sees_target(part)]:
            raise InputError(
                f"the drafter {name!r} needs more of the target than its tokens, for {needing[0]}; "
                "expected one that drafts from the text alone, such as model:NAME"
            )
        self._drafter = _made(name, settings)
        if self._drafter.wants != Wants():
            raise InputError(
                f"the drafter {name!r} wants {self._drafter.wants} of each verdict; expected one "
                "that drafts from the text alone, such as model:NAME"
            )
        self._able = abilities_of(self._drafter)
        if frame.values["fit"] is not None:
            self._fit(frame.values["fit"])

    def _fit(self, told: dict[str, Any]) -> None:
        if self._able.fits is not None:
            given, target = told["tokenizer_hash"], SimpleNamespace(vocabulary=told["vocabulary"])
            fit: Any = self._able.fits.fit
            fit(target, None if given is None else bytes.fromhex(given))

    def _answer_fit(self, frame: Frame) -> None:
        refused = None
        try:
            self._fit(frame.values)
        except ForesayError as error:
            refused = _told(error)
        send(self._sock, packed("ready", refused=refused), None)

    def do(self, frame: Frame) -> None:
        """One message."""
        if frame.kind not in self._kinds:
            raise WorkerError(f"a message is of the kind {frame.kind!r}; expected one of propose …")
        self._kinds[frame.kind](frame)

    def _state(self, number: int) -> Any:
        if number not in self._states:
            raise WorkerError(f"there is no request {number}; expected one that was begun")
        return self._states[number]

    def _begin(self, frame: Frame) -> None:
        number, (prompt, committed) = frame.whole("number"), frame.expect(2)
        if number in self._states:
            raise WorkerError(f"request {number} was begun before; expected a new number")
        values, sampling = frame.values, frame.values["sampling"]
        if sampling is not None:
            params = dict(sampling["params"])
            sampling = SeededParams(
                SamplingParams(**{**params, "logit_bias": dict(params["logit_bias"])}),
                sampling["seed"],
            )
        group, tenant = values["group"], values["tenant"]
        self._states[number] = None
        with suppress(InputError):
            state = self._drafter.begin(prompt, group=group, tenant=tenant, sampling=sampling)
            self._states[number] = state
        if len(committed):
            self._commit(number, Verdict([], committed))

    def _observe(self, frame: Frame) -> None:
        numbers = frame.wholes("numbers")
        arrays = frame.expect(2 * len(numbers))
        for number, path, tokens in zip(numbers, arrays[::2], arrays[1::2], strict=True):
            self._commit(number, Verdict(path, tokens))

    def _commit(self, number: int, verdict: Verdict) -> None:
        state = self._state(number)
        try:
            if state is not None:
                self._drafter.observe([state], [verdict])
        except InputError:
            self._drafter.finish(state)
            self._states[number] = None

    def _finish(self, frame: Frame) -> None:
        number = frame.whole("number")
        state = self._state(number)
        del self._states[number]
        if state is not None:
            self._drafter.finish(state)

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
        for draft in drafts:
            # Sampled tokens may be given as chosen ones: fewer are accepted, the rule stays exact.
            probs = draft.probs if size < MAX_DATA // 2 else None
            arrays += [draft.tokens, draft.parents]
            arrays += [_NONE if given is None else given for given in (draft.scores, probs)]
        held = 0 if self._able.memory is None else self._able.memory.bytes_used()
        send(self._sock, packed("drafts", arrays, step=frame.whole("step"), held=held), None)

    def _tell(self, frame: Frame) -> None:
        values, able = frame.values, self._able
        with suppress(InputError):  # such as a group that an earlier process knew
            if frame.kind == "add_to_group" and able.groups is not None:
                prompt, answer = frame.expect(2)
                able.groups.add_to_group(values["group"], prompt, answer, tenant=values["tenant"])
            elif frame.kind == "drop_group" and able.groups is not None:
                able.groups.drop_group(values["group"], values["tenant"])
            elif frame.kind == "drop_tenant" and able.tenants is not None:
                able.tenants.drop_tenant(values["tenant"])
            elif frame.kind == "new_version" and able.versions is not None:
                able.versions.new_version(frame.whole("keep"), tenant=values["tenant"])


def _made(name: str, settings: dict[str, Any]) -> Drafter[Any]:
    options = {each: settings.pop(each) for each in MODEL_SETTINGS if each in settings}
    if not options:
        return make_drafter(name, **settings)
    check_drafter_name(name)
    if not name.startswith("model:") or len(parts_of(name)) > 1 or settings.get("corpus"):
        raise InputError(
            f"{' and '.join(options)} of the drafter {name!r} cannot be set; expected model:NAME, "
            "and no corpus"
        )
    from foresay.drafters.model import Dynamic, ModelDrafter

    if isinstance(options.get("shape"), dict):
        options["shape"] = Dynamic(**options["shape"])
    return ModelDrafter(name.removeprefix("model:"), **options)


def _told(error: Exception) -> dict[str, Any]:
    return {"name": type(error).__name__, "sentence": str(error)[:4000]}


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
            send(sock, packed("error", **_told(error)), 1.0)
        os._exit(1)  # the other side says what was wrong
