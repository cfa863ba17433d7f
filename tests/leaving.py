"""Ways to end a process while objects of the core are in use: see test_leaving.py."""

from __future__ import annotations

import asyncio
import gc
import sys
import threading
from types import SimpleNamespace
from typing import Any

import numpy as np

from foresay.drafters import SuffixDrafter


class Holder:
    """In a cycle with itself, as the parts of large programs are."""

    def __init__(self, held: Any) -> None:
        self.held = held
        self.itself = self


def in_a_cycle() -> None:
    drafter = SuffixDrafter()
    Holder((drafter, drafter.begin([1, 2, 3, 1, 2])))


def proposer_in_a_frozen_heap() -> None:
    """As in vLLM, which calls gc.freeze() and keeps its proposer in cycles."""
    from foresay.integrations.vllm import SuffixProposer
    from integrations.vllm_side import config

    proposer = SuffixProposer(config(length=64))
    rows = np.tile(np.arange(4, dtype=np.int32), (2, 16))
    proposer.propose([[1], [1]], np.array([30, 30], np.int32), rows)
    assert proposer.stats().running == 2
    Holder(proposer)
    gc.freeze()


def server_that_nobody_stopped() -> None:
    """The engine's thread has a request under way when Python ends."""
    from foresay.engine.engine import Engine
    from foresay.models.load_transformers import target_of
    from foresay.serve.driver import Driver
    from foresay.serve.limits import Limits
    from models import zoo

    engine = Engine(target_of(zoo.make("llama")), SuffixDrafter(), policy="fixed")
    engine.pause(engine.add([1, 2, 3, 1, 2], seed=1))
    stepped = threading.Event()

    class Stepping(Driver):
        def _step(self) -> None:
            super()._step()
            stepped.set()

    async def start() -> None:
        llm: Any = SimpleNamespace(engine=engine)
        driver = Stepping(llm, None, Limits(), lambda *_: None)
        driver.start()
        await driver.call(lambda engine: engine.pause(engine.scheduler.waiting[0], False))

    asyncio.run(start())
    assert stepped.wait(30)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
