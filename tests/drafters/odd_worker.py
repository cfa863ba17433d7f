"""Workers that no user would want: slow, hanging, failing, and talking nonsense.

Names: "sleepy:SECONDS:OCCURRENCE", "hanging:FLAG", "raising:FLAG", "needs:FILE" and
"nonsense:KIND:FLAG". With a FLAG the fault happens once: in the third proposal, if there is no such
file yet, which is made then. All refuse prompts with a 99, and verdicts with a 98.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from foresay.drafters import NgramDrafter, WorkerDrafter
from foresay.drafters.worker.frames import packed
from foresay.errors import InputError

NONSENSE: dict[str, Callable[[bytes], bytes]] = {
    "no frame": lambda frame: b"\xff" * len(frame),
    "a half": lambda frame: frame[: len(frame) // 2],
    "too long": lambda frame: b"fsy1" + b"\xff" * 8,
    "no JSON": lambda frame: frame[:12] + b"{" * (len(frame) - 12),
    "another kind": lambda frame: packed("ready"),
    "another step": lambda frame: packed("drafts", step=10**6, held=0),
    "too few": lambda frame: packed("drafts", step=7, held=0),
    "no arrays": lambda frame: frame.replace(b'"arrays": [[', b'"arrays": 7,"p":[['),
    "no size": lambda frame: frame.replace(b'"held": ', b'"held":-'),
    "no tokens": lambda frame: frame[:-1] + b"\xff",
    "twice": lambda frame: frame + frame,
}


class Odd(NgramDrafter):
    """Looks in the text, and has a fault."""

    def __init__(self, fault: Any, **options: Any) -> None:
        super().__init__(1, 5, **options)
        self.fault, self.proposals = fault, 0
        self.sizes: dict[int, int] = {}  # of the last drafts

    def begin(self, prompt: Any, /, **about: Any) -> Any:
        if 99 in prompt:
            raise InputError("a prompt has 99")
        return super().begin(prompt, **about)

    def observe(self, states: Any, verdicts: Any, /) -> None:
        if any(98 in verdict.tokens for verdict in verdicts):
            raise InputError("a verdict has 98")
        for state, verdict in zip(states, verdicts, strict=True):
            if len(verdict.path) > self.sizes.get(id(state), 0):
                raise InputError("a path is not of the last draft")
        super().observe(states, verdicts)

    def propose(self, states: Any, budgets: Any, /) -> Any:
        self.proposals += 1
        self.fault(self.proposals)
        drafts = super().propose(states, budgets)
        self.sizes = {id(state): len(draft) for state, draft in zip(states, drafts, strict=True)}
        return drafts


class OddWorker(WorkerDrafter):
    """Runs what is here."""

    _main = "drafters.odd_worker"


def once(flag: str, proposals: int) -> bool:
    if proposals < 3 or Path(flag).exists():
        return False
    Path(flag).touch()
    return True


def make(name: str, **settings: Any) -> Any:
    kind, *rest = name.split(":")
    if kind == "sleepy":
        return Odd(lambda _: time.sleep(float(rest[0])), occurrence=rest[1])
    if kind == "needs" and not Path(rest[0]).exists():
        raise InputError(f"there is no {rest[0]}")

    def fault(proposals: int) -> None:
        if kind in ("hanging", "raising", "nonsense") and once(rest[-1], proposals):
            if kind == "hanging":
                time.sleep(10_000)
            if kind == "raising":
                raise ZeroDivisionError("by chance")
            wrong.append(NONSENSE[rest[0]])

    return Odd(fault)


wrong: list[Any] = []
real: Any = import_module("foresay.drafters.worker.main")
send = real.send


def send_wrong(sock: Any, frame: bytes, seconds: float | None) -> None:
    send(sock, wrong.pop()(frame) if wrong else frame, seconds)


def main(descriptor: int) -> None:
    real.make_drafter, real.send = make, send_wrong
    real.main(descriptor)
