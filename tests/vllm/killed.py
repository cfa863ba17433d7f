"""Kill vLLM's engine in the middle of its answers, begin another, and write what came of it.

    python killed.py PLAN.json RESULT.json

plan: model, dtype, method, length as for drive.py; prompts, tokens, params (vLLM's SamplingParams),
kill: which processes are killed, "engine" or "worker", each of an engine of its own, before the one
that answers. The client is the one of vLLM's server, which verl has too: it starts the engine's
process, and that the worker's, where the drafter is. FORESAY_VLLM_STEPS_FILE says what it does.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

DRIVE: Any = import_module("drive")  # beside this file, and not known where types are checked
VLLM: Any = DRIVE.VLLM
os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "1",
    "VLLM_WORKER_MULTIPROC_METHOD": "spawn",
    "VLLM_ALLOW_INSECURE_SERIALIZATION": "1",  # for `changed`
}
HALF = '{"pid": 1, "version": 3, "ste'


def changed(_: Any) -> None:
    """In the engine's process: what a trainer's new weights cause."""
    from foresay.integrations.vllm.versions import weights_changed

    weights_changed()


def engine_of(plan: dict[str, Any]) -> Any:
    return VLLM.AsyncLLMEngine.from_engine_args(VLLM.AsyncEngineArgs(**DRIVE.arguments_of(plan)))


async def answers(engine: Any, plan: dict[str, Any], tokens: int) -> Sequence[Any]:
    """The tokens of each prompt, or what was raised instead of them."""
    params = VLLM.SamplingParams(**plan["params"], max_tokens=tokens)

    async def one(at: int, prompt: str) -> list[int]:
        found: list[int] = []
        async for output in engine.generate(prompt, params, f"{at} of {time.monotonic()}"):
            found = list(output.outputs[0].token_ids)
        return found

    each = (one(at, prompt) for at, prompt in enumerate(plan["prompts"]))
    return await asyncio.gather(*each, return_exceptions=True)


def steps() -> list[int]:
    """The process that made each."""
    lines = Path(os.environ["FORESAY_VLLM_STEPS_FILE"]).read_text().split("\n")[:-1]
    return [json.loads(line)["pid"] for line in lines]


async def killed(engine: Any, plan: dict[str, Any], whom: str, more: int) -> dict[str, Any]:
    """A process is killed when it has made some steps more: what clients get, at once and from
    then on.
    """
    [process] = multiprocessing.active_children()
    worker, last, at = steps()[-1], len(steps()) + more, list[float]()

    def kill() -> None:
        while len(steps()) < last:
            time.sleep(0.005)
        at.append(time.monotonic())
        os.kill(worker if whom == "worker" else process.pid or 0, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    errors = await answers(engine, plan, 400)
    seconds = time.monotonic() - at[0]
    errors = [*errors, *await answers(engine, plan, 4)]
    process.join(60)
    return {
        "engine": process.pid,
        "worker": worker,
        "name": process.name,
        "status": process.exitcode,
        "errors": [[type(error).__name__, str(error)] for error in errors],
        "seconds": seconds,
    }


async def main(plan: dict[str, Any], versions: Path) -> dict[str, Any]:
    found: dict[str, Any] = {"killed": {}}
    for whom in plan["kill"]:
        engine = engine_of(plan)
        await answers(engine, plan, 8)
        await engine.collective_rpc(changed)
        found["killed"][whom] = await killed(engine, plan, whom, 12)
        engine.shutdown()
        with versions.open("a") as file:
            file.write(HALF)
    engine = engine_of(plan)
    found["texts"] = await answers(engine, plan, plan["tokens"])
    if plan["kill"]:
        await engine.collective_rpc(changed)
        await answers(engine, plan, 4)
    [process] = multiprocessing.active_children()
    engine.shutdown()
    process.join(30)
    found["left"] = [child.pid for child in multiprocessing.active_children()]
    return found


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    done = asyncio.run(main(given, Path(os.environ["FORESAY_VLLM_VERSIONS_FILE"])))
    Path(sys.argv[2]).write_text(json.dumps(done))
