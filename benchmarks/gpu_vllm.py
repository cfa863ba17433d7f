"""Part `vllm` of gpu.py: vLLM's plain decoding, and with its n-gram drafts, beside our plain
engine: the same token ids in, as many tokens out. vLLM is a process of its own, which has ended
before ours begins; run as a script this file is that process.

Its engine is in that process and gives token ids: by default another process would make texts of
them beside it. Everything else is vLLM's own choice.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import workers

ENVIRONMENT = {
    "VLLM_USE_FLASHINFER_SAMPLER": "0",
    "VLLM_USE_DEEP_GEMM": "0",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "TOKENIZERS_PARALLELISM": "false",
}
WAYS: dict[str, dict[str, Any]] = {
    "plain": {},
    "n-gram": {
        "speculative_config": {
            "method": "ngram",
            "num_speculative_tokens": 8,
            "prompt_lookup_max": 5,
            "prompt_lookup_min": 2,
        }
    },
}


def vllm(bench: Any, found: dict[str, Any]) -> None:
    """Our plain engine first, which says how long the answers are, then vLLM."""
    import gpu_answers
    from gpu_bench import greedy, said

    count, options = bench.scale.vllm_requests, bench.options
    prompts = bench.prompts["edit"][:count]
    params = greedy(bench.scale.tokens)
    gpu_answers.warm(bench, (count, 1))
    ours, lengths, alone = [], [], []
    for turn in range(bench.scale.rounds):
        run, texts = gpu_answers.asked(bench, gpu_answers.engines(bench)["plain"], prompts, params)
        ours.append(run["tokens_per_second"])
        lengths = [len(text) for text in texts]
        bench.say(f"ours, plain, {count} at once: {ours[-1]:.0f} tokens/s (round {turn + 1})")
    for prompt in prompts[:6]:
        plain = gpu_answers.engines(bench)["plain"]
        alone.append(gpu_answers.asked(bench, plain, [prompt], params)[0]["tokens_per_second"])
        del plain
    found |= {
        "requests": count,
        "tokens": sum(lengths),
        "ours_tokens_per_second": round(statistics.median(ours), 1),
        "ours_alone_tokens_per_second": round(statistics.median(alone), 1),
    }
    if bench.smoke or options.vllm_site is None or options.vllm_model is None:
        found["skipped"] = "expected --vllm-site and --vllm-model"
        return
    bench.drop()
    asked = {"prompts": [prompt.tokens for prompt in prompts], "lengths": lengths}
    for way in options.vllm_ways.split(","):
        bench.check_time(f"vLLM, {way}")
        try:
            left = max(60.0, bench.until - bench.seconds)
            found[way] = _of_vllm(bench, way, asked, left)
            bench.say(f"vLLM, {way}: {found[way]}")
        except Exception as error:
            found[way] = {"error": said(error)}
            bench.say(f"vLLM, {way}: {said(error)}")
        if "tokens_per_second" in found.get("plain", {}):
            theirs = found["plain"]["tokens_per_second"]
            found["ratio"] = round(found["ours_tokens_per_second"] / theirs, 4)


def _of_vllm(bench: Any, way: str, asked: dict[str, Any], seconds: float) -> dict[str, Any]:
    # Its own packages first; ours are not on its path.
    environment = ENVIRONMENT | {"PYTHONPATH": str(bench.options.vllm_site)}
    command = [sys.executable, __file__]
    with workers.Worker("vLLM", command, seconds=seconds, environment=environment) as worker:
        begin = time.perf_counter()
        about = worker.ask("load", folder=str(bench.options.vllm_model), way=way)
        loaded = time.perf_counter() - begin
        worker.ask("answer", **asked)  # warms up
        rates = [worker.ask("answer", **asked) for _ in range(bench.scale.rounds)]
        pairs = zip(asked["prompts"][:6], asked["lengths"][:6], strict=True)
        alone = [worker.ask("answer", prompts=[p], lengths=[n]) for p, n in pairs]
    return {
        **about,
        "load_seconds": round(loaded, 1),
        "tokens_per_second": round(statistics.median(rates), 1),
        "alone_tokens_per_second": round(statistics.median(alone), 1),
    }


# The process of vLLM

_engine: Any = None


def load(folder: str, way: str) -> dict[str, Any]:
    import torch

    import vllm as package  # type: ignore[import-not-found]

    global _engine
    free, total = torch.cuda.mem_get_info()
    _engine = package.LLM(
        model=folder,
        dtype="bfloat16",
        max_model_len=4096,
        max_num_seqs=256,
        gpu_memory_utilization=round(min(0.6, 0.9 * free / total), 2),
        enable_prefix_caching=False,
        disable_log_stats=True,
        **WAYS[way],
    )
    chosen = _engine.llm_engine.vllm_config.scheduler_config
    return {"version": package.__version__, "async_scheduling": chosen.async_scheduling}


def answer(prompts: Sequence[Sequence[int]], lengths: Sequence[int]) -> float:
    """Tokens per second of answers of these lengths, all asked at once."""
    from vllm import SamplingParams

    params = [
        SamplingParams(temperature=0.0, max_tokens=length, ignore_eos=True, detokenize=False)
        for length in lengths
    ]
    given = [{"prompt_token_ids": list(prompt)} for prompt in prompts]
    begin = time.perf_counter()
    results = _engine.generate(given, params, use_tqdm=False)
    took = time.perf_counter() - begin
    return float(sum(len(result.outputs[0].token_ids) for result in results) / took)


if __name__ == "__main__":
    del sys.path[0]  # scripts beside this one have names of other packages' modules
    workers.serve({"load": load, "answer": answer})
