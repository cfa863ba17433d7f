"""The engine of server.py without a server: rounds of questions as lines of JSON on stdin, what
came of each on stdout.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

from foresay import LLM, SamplingParams
from foresay.serve.start import tenant_drafter

clock = time.perf_counter


def params_of(body: dict[str, Any]) -> SamplingParams:
    return SamplingParams(
        max_tokens=body["max_tokens"],
        temperature=body["temperature"],
        seed=body["seed"],
        ignore_eos=body["ignore_eos"],
    )


def main() -> None:
    settings = json.loads(sys.argv[1])
    drafter: Any = None if settings["drafter"] == "none" else tenant_drafter(1, 256 << 20)
    if settings["drafter"] not in ("none", "suffix"):
        drafter = settings["drafter"]
    memory = settings["memory_mb"] << 20
    llm = LLM(
        settings["folder"], drafter, settings["policy"], dtype=settings["dtype"], memory=memory
    )
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        bodies = json.loads(line)
        start, ran = clock(), time.process_time()
        # Streamed, as the server's are: who waits for all of them would have other drafts made.
        asked = llm.stream([b["prompt"] for b in bodies], [params_of(b) for b in bodies])
        ended = {c.prompt_index: c.result for c in asked if c.result is not None}
        results = [ended[index] for index in range(len(bodies))]
        found = {
            "seconds": clock() - start,
            "cpu_seconds": time.process_time() - ran,
            "tokens": sum(len(r.token_ids) for r in results),
            "texts": [r.text for r in results],
            "steps": max(r.stats.steps for r in results),
            "drafted": sum(r.stats.drafted for r in results),
        }
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
