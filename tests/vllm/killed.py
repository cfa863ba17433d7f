"""Kill vLLM's engine in the middle of its answers, begin another, and write what came of it.

    python killed.py PLAN.json RESULT.json

plan: model, dtype, method, length as for drive.py; prompts, tokens, params (vLLM's SamplingParams),
kill: whether an engine is killed before the one that answers. The engine is a process of its own,
and its client the one of vLLM's server, which verl has too. FORESAY_VLLM_STEPS_FILE is where the
drafter is seen to work.
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
from pathlib import Path
from typing import Any

from drive import VLLM, arguments_of

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
    return VLLM.AsyncLLMEngine.from_engine_args(VLLM.AsyncEngineArgs(**arguments_of(plan)))


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


def steps() -> int:
    file = Path(os.environ["FORESAY_VLLM_STEPS_FILE"])
    return file.read_text().count("\n") if file.exists() else 0


async def killed(engine: Any, plan: dict[str, Any], more: int) -> dict[str, Any]:
    """The engine is killed when it has made some steps more: what its clients get, at once and
    from then on.
    """
    [process] = multiprocessing.active_children()
    last, at = steps() + more, list[float]()

    def kill() -> None:
        while steps() < last:
            time.sleep(0.005)
        at.append(time.monotonic())
        os.kill(process.pid or 0, signal.SIGKILL)

    thread = threading.Thread(target=kill, daemon=True)
    thread.start()
    errors = await answers(engine, plan, 400)
    seconds = time.monotonic() - at[0]
    errors = [*errors, *await answers(engine, plan, 4)]
    process.join(10)
    return {
        "pid": process.pid,
        "name": process.name,
        "status": process.exitcode,
        "errors": [[type(error).__name__, str(error)] for error in errors],
        "seconds": seconds,
    }


async def main(plan: dict[str, Any], versions: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if plan["kill"]:
        engine = engine_of(plan)
        await answers(engine, plan, 8)
        await engine.collective_rpc(changed)
        found["killed"] = await killed(engine, plan, 12)
        engine.shutdown()
        with versions.open("a") as file:
            file.write(HALF)
    engine = engine_of(plan)
    found["texts"] = await answers(engine, plan, plan["tokens"])
    if plan["kill"]:
        await engine.collective_rpc(changed)
        await answers(engine, plan, 4)
    [process] = multiprocessing.active_children()
    found["pid"] = process.pid
    engine.shutdown()
    process.join(30)
    found["left"] = [child.pid for child in multiprocessing.active_children()]
    return found


if __name__ == "__main__":
    given = json.loads(Path(sys.argv[1]).read_text())
    done = asyncio.run(main(given, Path(os.environ["FORESAY_VLLM_VERSIONS_FILE"])))
    Path(sys.argv[2]).write_text(json.dumps(done))
