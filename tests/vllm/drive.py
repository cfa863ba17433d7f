"""Run the model through vLLM as a plan says, and write what came of it.

    python drive.py PLAN.json RESULT.json

plan: model, dtype, method ("none", "ngram", "custom_class", "unpatched"), speculation
(further keys of vLLM's speculative_config), blocks (of the key-value cache; null: as many as there
is memory for), length (of the longest text), ranks (processes that share each layer), requests:
[{"name", "prompt" (text or token ids), "tokens", "join" (the step), "abort" (the step, or null),
"temperature", "top_k", "top_p", "seed", "ignore_eos"}]. One process per plan: an engine does not
leave its process clean. They are forked from one that has imported this file.
"""

from __future__ import annotations

import json
import os
import sys
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

os.environ |= {
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_WAIT_POLICY": "passive",
    "TORCHDYNAMO_DISABLE": "1",  # to compile takes longer than it saves here
}
VLLM: Any = import_module("vllm")  # after its settings; and not known where types are checked
LLM = VLLM.LLM  # which vllm imports when it is asked for
SPECULATION: dict[str, dict[str, Any] | None] = {
    "none": None,
    "ngram": {"method": "ngram", "prompt_lookup_min": 2, "prompt_lookup_max": 4},
    "custom_class": {
        "method": "custom_class",
        "model": "foresay.integrations.vllm.SuffixProposer",
    },
    "unpatched": {"method": "custom_class", "model": "unpatched.Unpatched"},
}
NODES = 6


def arguments_of(plan: dict[str, Any]) -> dict[str, Any]:
    """Of vLLM's engine."""
    speculation, ranks = SPECULATION[plan["method"]], plan.get("ranks", 1)
    if speculation is not None:
        speculation = speculation | {"num_speculative_tokens": NODES} | plan.get("speculation", {})
    return {
        "model": plan["model"],
        "dtype": plan["dtype"],
        "max_model_len": plan.get("length", 1024),
        "max_num_seqs": 8,
        "max_num_batched_tokens": 1024,
        "enforce_eager": True,
        "enable_prefix_caching": False,  # so that rows are computed, not taken over, in every run
        "tensor_parallel_size": ranks,
        "distributed_executor_backend": "uni" if ranks == 1 else "mp",
        "disable_log_stats": False,
        "num_gpu_blocks_override": plan.get("blocks"),
        "speculative_config": speculation,
    }


def run(plan: dict[str, Any]) -> dict[str, Any]:
    llm = LLM(**arguments_of(plan))
    engine = llm.llm_engine
    waiting = sorted(plan["requests"], key=lambda request: request.get("join", 0))
    ends = {r["name"]: r["abort"] for r in waiting if r.get("abort") is not None}
    done: dict[str, Any] = {}
    step = 0
    while waiting or engine.has_unfinished_requests():
        while waiting and waiting[0].get("join", 0) <= step:
            request = waiting.pop(0)
            prompt = request["prompt"]
            params = VLLM.SamplingParams(
                temperature=request.get("temperature", 0.0),
                top_k=request.get("top_k", 0),
                top_p=request.get("top_p", 1.0),
                seed=request.get("seed"),
                max_tokens=request["tokens"],
                logprobs=2,
                ignore_eos=request.get("ignore_eos", False),
            )
            given = prompt if isinstance(prompt, str) else {"prompt_token_ids": prompt}
            engine.add_request(request["name"], given, params)
        stopped = [name for name, end in ends.items() if end <= step]
        if stopped:
            engine.abort_request(stopped)
            for name in stopped:
                del ends[name]
        for output in engine.step():
            answer = output.outputs[0]
            done[output.request_id] = {
                "prompt": list(output.prompt_token_ids or []),
                "tokens": list(answer.token_ids),
                "text": answer.text,
                "reason": answer.finish_reason,
                # (token, its logprob, the logprob of the best other one)
                "logprobs": [
                    (
                        token,
                        row[token].logprob,
                        max((p.logprob for t, p in row.items() if t != token), default=None),
                    )
                    for token, row in zip(answer.token_ids, answer.logprobs, strict=True)
                ],
            }
        step += 1
    result = {"steps": step, "requests": done, "metrics": metrics_of(llm)}
    drafter = getattr(runner_of(engine), "drafter", None) if plan.get("ranks", 1) == 1 else None
    if drafter is not None:
        result["drafter"] = type(drafter).__module__
        if hasattr(drafter, "stats"):
            result["stats"] = asdict(drafter.stats())
    return result


def runner_of(engine: Any) -> Any:
    return engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def metrics_of(llm: Any) -> dict[str, float]:
    return {
        metric.name: metric.value
        for metric in llm.get_metrics()
        if isinstance(getattr(metric, "value", None), (int, float))
    }


if __name__ == "__main__":
    plan = json.loads(Path(sys.argv[1]).read_text())
    Path(sys.argv[2]).write_text(json.dumps(run(plan)))
