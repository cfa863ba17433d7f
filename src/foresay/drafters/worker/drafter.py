"""A drafter in a process of its own: several small models draft at the same time.

    MergeDrafter(WorkerDrafter("model:a"), WorkerDrafter("model:b"))

The process can be killed, hang, or answer nonsense: it is replaced, and its requests are begun anew
in the next one, with what was committed so far. Steps in between have no drafts; the text stays the
same. This module does not import torch.
"""

from __future__ import annotations

import time
import warnings
import weakref
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np

from foresay.arrays import Int32s, IntsLike, as_tokens, check_hash, check_whole
from foresay.draft import Draft
from foresay.drafter import SeededParams, as_asked, as_prompt, as_states, check_lengths, check_name
from foresay.drafters.worker.frames import packed
from foresay.drafters.worker.life import Life, refusal
from foresay.drafters.worker.values import (
    as_environ,
    as_seconds,
    as_settings,
    drafts_of,
    plain_sampling,
)
from foresay.errors import ForesayError, InputError, WorkerError
from foresay.verdict import Verdict, VerdictBatch, Wants

__all__ = ["RESTARTS", "WITHIN", "WorkerDrafter", "WorkerState"]

RESTARTS = 3
"""A process that fails more often than this …"""
WITHIN = 60.0
"""… within this time, in seconds, is not started again."""

_GRACE = 0.1  # seconds to read an answer, where its time was spent before we came to read it


class WorkerState:
    """One request, with all that is needed to begin it anew. Only its drafter writes to it."""

    __slots__ = ("answer", "begun", "drafted", "finished", "number", "owner", "prompt")

    def __init__(self, owner: WorkerDrafter, number: int, prompt: Int32s, begun: dict[str, Any]):
        self.owner = owner
        self.number = number
        self.prompt = prompt.copy()
        self.answer = bytearray()  # int32
        self.begun = begun  # group, tenant, sampling parameters and seed, as they are sent
        self.drafted: Life | None = None  # which process made the last draft
        self.finished = False

    @property
    def committed(self) -> Int32s:
        return np.frombuffer(bytes(self.answer), np.int32)


class _Asked(NamedTuple):
    given: list[tuple[WorkerState, int]]
    life: Life | None  # None: nobody was asked
    step: int
    since: float


class WorkerDrafter:
    """A drafter of the lineup in a process of its own.

    name           as for `make_drafter`, which makes it there: "model:NAME", "suffix", …; it must
                   draft from the text alone, so neither "self" nor what wants more of a verdict
    timeout        a worker that takes more seconds for one answer is killed. Its first answer after
                   a restart includes reading all texts again
    start_timeout  the same until it is ready: models are loaded
    environ        changes of its environment, such as {"OMP_NUM_THREADS": "2"}
    settings       share, corpus, tokenizer_hash, verify, chain, room as for `make_drafter`; for
                   "model:NAME" also shape, choice, memory, device as for `ModelDrafter`

    A worker that fails is killed and started again, without waiting for it; until it is ready,
    drafts are empty. After more than 3 failures within a minute all drafts are empty, with a
    warning. What it had learned (history, groups) goes with it; live requests are begun anew. A
    request that its drafter refuses gets empty drafts.

    The process ends with `close()`, with this object, and with this process. One thread at a time
    may use it.

    Raises: InputError, WorkerError if it does not start; what making the drafter raises.
    """

    wants = Wants()
    _main = "foresay.drafters.worker.main"

    def __init__(
        self,
        name: str,
        *,
        timeout: float = 5.0,
        start_timeout: float = 300.0,
        environ: Mapping[str, str] | None = None,
        **settings: Any,
    ) -> None:
        if not isinstance(name, str) or not name:
            raise InputError(f"name is {name!r}; expected a drafter's name, such as 'model:NAME'")
        self.name = name
        self._timeout = as_seconds(timeout, "timeout")
        self._start_timeout = as_seconds(start_timeout, "start_timeout")
        self._environ = as_environ(environ)
        self._settings = as_settings(settings)
        self._target: dict[str, Any] | None = None  # what `fit` was told
        self._live: dict[int, WorkerState] = {}
        self._untold: dict[int, WorkerState] = {}  # requests that the process does not know yet
        self._numbers = self._steps = self._held = 0
        self._asked: _Asked | None = None
        self._failures: list[float] = []
        self._stopped = False
        self.restarts = 0
        """How often a process was replaced."""
        self.last_failure = ""
        """Why the last one was."""
        self._life: Life | None = None
        self._end: Any = lambda: None
        try:
            life = self._start()
            if not life.hears(self._start_timeout, self._timeout, self._start_timeout):
                raise WorkerError(f"the worker was not ready within {start_timeout:g} s")
        except BaseException:
            self.close()
            raise

    @property
    def pid(self) -> int | None:
        """The id of the process, None if there is none."""
        return None if self._life is None else self._life.process.pid

    def ready(self, seconds: float = 0.0) -> bool:
        """Whether a process is ready to draft; waits so long for one."""
        last = time.monotonic() + seconds
        while not self._stopped:
            if self._worker(last - time.monotonic()) is not None:
                return True
            if time.monotonic() >= last:
                break
        return False

    def close(self) -> None:
        """End the process. Requests get empty drafts from now on, and can be finished."""
        self._stopped = True
        self._drop()

    needs_target = False

    def fit(self, target: Any, tokenizer_hash: bytes | None = None) -> None:
        """Tell the drafter of the target's vocabulary and tokenizer.

        Raises: InputError, TokenizerMismatch if it cannot draft for it.
        """
        check_hash(tokenizer_hash, "tokenizer_hash")
        vocabulary = int(target.vocabulary)
        told: dict[str, Any] = {"vocabulary": vocabulary, "tokenizer_hash": tokenizer_hash}
        refused: Any = None
        life = self._worker()
        if self._send(life, "fit", **told) and life is not None:
            with self._guarded():
                refused = life.receive(time.monotonic() + self._timeout).values.get("refused")
        if isinstance(refused, dict):
            raise refusal(refused)
        self._target = told

    def begin(
        self,
        prompt: IntsLike,
        /,
        *,
        group: str | None = None,
        tenant: str | None = None,
        sampling: SeededParams | None = None,
    ) -> WorkerState:
        """Start a request.

        Raises: TokenTypeError, InputError for an empty prompt, a token out of range, or a group or
        tenant that is no str.
        """
        tokens = as_prompt(prompt)
        check_name(group, "group")
        check_name(tenant, "tenant")
        about: dict[str, Any] = {
            "group": group,
            "tenant": tenant,
            "sampling": plain_sampling(sampling),
        }
        packed("begin", **about)  # raises before there is a request, which each process is sent
        self._numbers += 1
        state = WorkerState(self, self._numbers, tokens, about)
        self._live[state.number] = self._untold[state.number] = state
        self._worker()
        return state

    def start(self, states: Sequence[WorkerState], budgets: Sequence[int], /) -> None:
        """Send what `propose` will be called with next, which then collects the answer.

        Raises: as `propose`.
        """
        given = as_asked(states, budgets, WorkerState, self)
        self._collected()  # of an earlier question: nobody wants it any more
        checked = [budget for _, budget in given]
        life = self._worker() if any(checked) else None
        self._steps += 1
        since, numbers = time.monotonic(), [state.number for state, _ in given]
        if not self._send(life, "propose", numbers=numbers, budgets=checked, step=self._steps):
            life = None
        self._asked = _Asked(given, life, self._steps, since)

    def propose(self, states: Sequence[WorkerState], budgets: Sequence[int], /) -> list[Draft]:
        """The worker's drafts; empty ones if it fails.

        Raises: StateError, InputError for a budget outside 0 … 4096, a state that is there twice
        or lengths that differ.
        """
        given = as_asked(states, budgets, WorkerState, self)
        if self._asked is None or self._asked.given != given:
            self.start(states, budgets)
        drafts = self._collected()
        return [Draft.empty()] * len(given) if drafts is None else drafts

    def observe(self, states: Sequence[WorkerState], verdicts: Sequence[Verdict], /) -> None:
        """Add what was committed.

        Raises: StateError, InputError for a state that is there twice or lengths that differ;
        nothing has changed then.
        """
        alive = as_states(states, WorkerState, self)
        items = list(VerdictBatch.of(verdicts))
        check_lengths(len(alive), len(items), "verdicts")
        life = self._worker()  # knows the texts before this commit
        arrays: list[Any] = []
        for state, verdict in zip(alive, items, strict=True):
            # A path is one of the last draft: of this process, or it says nothing there.
            own = life is not None and state.drafted is life
            arrays += [verdict.path if own else verdict.path[:0], verdict.tokens]
            state.answer += verdict.tokens.tobytes()
            state.drafted = None
        if alive:
            self._send(life, "observe", arrays, numbers=[state.number for state in alive])

    def finish(self, state: WorkerState, /) -> None:
        """End a request.

        Raises: StateError if it was finished before or is no state of this drafter.
        """
        as_states([state], WorkerState, self)
        life = self._worker()
        state.finished = True
        del self._live[state.number]
        self._untold.pop(state.number, None)
        self._send(life, "finish", number=state.number)

    def add_to_group(
        self, group: str, prompt: IntsLike, answer: IntsLike, *, tenant: str | None = None
    ) -> None:
        """Add an earlier answer to a group, if the drafter keeps groups.

        Raises: TokenTypeError, InputError.
        """
        arrays = [as_tokens(prompt, "prompt"), as_tokens(answer, "answer")]
        self._tell("add_to_group", arrays, group=group, tenant=tenant)

    def drop_group(self, group: str, tenant: str | None = None) -> None:
        """Forget a group, if the drafter keeps groups. Raises: InputError."""
        self._tell("drop_group", group=group, tenant=tenant)

    def drop_tenant(self, tenant: str) -> None:
        """Forget a tenant, if the drafter keeps anything of tenants. Raises: InputError."""
        check_name(tenant, "the tenant", needed=True)
        self._tell("drop_tenant", tenant=tenant)

    def new_version(self, keep: int, *, tenant: str | None = None) -> None:
        """Tell a drafter with a history that its texts are of an old version now.

        Raises: InputError.
        """
        check_whole(keep, "keep", 0, 2**31 - 1)
        self._tell("new_version", keep=keep, tenant=tenant)

    def _tell(self, kind: str, arrays: Sequence[Any] = (), **values: Any) -> None:
        for name in ("group", "tenant"):
            check_name(values.get(name), name, needed=name == "group" and name in values)
        self._send(self._worker(), kind, arrays, **values)

    def text(self, state: WorkerState, /) -> Int32s:
        """A copy of prompt and observed tokens. Raises: StateError."""
        as_states([state], WorkerState, self)
        return np.concatenate([state.prompt, state.committed])

    def tokens_held(self) -> int:
        """Tokens of all live requests."""
        return sum(len(each.prompt) + len(each.answer) // 4 for each in self._live.values())

    def bytes_of(self, tenant: str | None) -> int:
        """Bytes of a tenant's texts here."""
        own = [each for each in self._live.values() if each.begun["tenant"] == tenant]
        return sum(4 * len(each.prompt) + len(each.answer) for each in own)

    def bytes_used(self) -> int:
        """Bytes of texts here, and what the worker held when it last answered."""
        return 4 * self.tokens_held() + self._held

    def _send(
        self, life: Life | None, kind: str, arrays: Sequence[Any] = (), **values: Any
    ) -> bool:
        """Whether it was sent: not without a process, nor if that fails."""
        if life is not None:
            with self._guarded():
                life.send(packed(kind, arrays, **values), self._timeout)
                return True
        return False

    def _start(self) -> Life:
        self._untold = dict(self._live)
        first = packed("make", name=self.name, settings=self._settings, fit=self._target)
        self._life = Life(self._main, first, self._environ)
        self._end = weakref.finalize(self, Life.end, self._life)  # at the latest when Python ends
        return self._life

    def _drop(self) -> None:
        self._end()
        self._life, self._asked, self._held = None, None, 0

    @contextmanager
    def _guarded(self) -> Iterator[None]:
        """What is said to the process, and heard: if that fails, it is replaced."""
        try:
            yield
        except ForesayError as error:
            self._replace(error)
        except BaseException:
            self._drop()  # in the middle of a message
            raise

    def _replace(self, error: ForesayError) -> None:
        self._drop()
        now = time.monotonic()
        self._failures = [then for then in self._failures if now - then < WITHIN] + [now]
        self.last_failure = str(error)
        if len(self._failures) > RESTARTS:
            self._stopped = True
            warnings.warn(
                f"the worker of the drafter {self.name!r} failed {len(self._failures)} times "
                f"within {WITHIN:g} s, and is not started again: {error}",
                stacklevel=4,
            )
            return
        self.restarts += 1
        try:
            self._start()
        except WorkerError as again:
            self._replace(again)

    def _worker(self, wait: float = 0.0) -> Life | None:
        """The process, if it is ready; then it knows all requests."""
        if self._asked is not None:
            self._collected()  # nobody wants it any more
        with self._guarded():
            if self._life is not None and self._life.foreign:
                self._drop()  # of the process that this one was forked from
            if self._life is None and not self._stopped:
                self._start()
            life = self._life
            if life is not None and life.hears(wait, self._timeout, self._start_timeout):
                for number, state in list(self._untold.items()):
                    arrays = [state.prompt, state.committed]
                    life.send(packed("begin", arrays, number=number, **state.begun), self._timeout)
                    del self._untold[number]
                return life
        return None

    def _collected(self) -> list[Draft] | None:
        """The answer to what was asked, None if there is none."""
        asked, self._asked = self._asked, None
        drafts: list[Draft] | None = None
        if asked is not None and asked.life is not None and asked.life is self._life:
            with self._guarded():
                deadline = max(asked.since + self._timeout, time.monotonic() + _GRACE)
                frame = asked.life.receive(deadline)
                width = None if self._target is None else self._target["vocabulary"]
                drafts = drafts_of(frame, asked.step, [n for _, n in asked.given], width)
                self._held = frame.whole("held")
                for state, _ in asked.given:
                    state.drafted = asked.life
        return drafts
